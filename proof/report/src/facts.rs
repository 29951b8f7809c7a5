//! What must be known about a store to judge a figure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is known about a store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreFacts {
    /// Its URL without the password.
    pub url: String,
    /// Kind of store.
    pub backend: String,
    /// The database and its version.
    pub engine: String,
    /// `full`, `weakened` or `none`.
    pub durability: String,
    /// The settings behind it.
    pub durability_detail: String,
    /// Number of logs.
    pub logs: u16,
    /// Injected round trip.
    pub round_trip_ms: f64,
    /// Settings of the database that bear on the figures.
    pub settings: BTreeMap<String, String>,
}
