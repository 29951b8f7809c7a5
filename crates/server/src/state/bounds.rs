//! What all callers use together, and how much of it there is.
//!
//! Invariant: whatever callers hold or wait for is counted in one of these, and each has a maximum (contract C8).

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use gesta_core::newcomers::Newcomers;
use gesta_core::shares::Load;

use crate::config::Config;
use crate::shared::appends::Appends;
use crate::shared::body::Budget;
use crate::shared::gate::Gate;
use crate::shared::pace::Paces;
use crate::shared::patterns::Patterns;

/// Fewest requests at once of callers who have not proved who they are that are taken.
const STRANGERS_MIN: usize = 16;
/// Most connections beyond the maximum at once.
const RESERVE_CONNECTIONS: usize = 16;

/// The bounds of a server, with what is held of each.
pub(crate) struct Bounds {
    pub(crate) connections: Gate,
    /// Number of connections that have as many calls in flight as they may have.
    pub(crate) full_connections: Arc<AtomicUsize>,
    /// Connections beyond the maximum. Only probes are answered on them.
    pub(crate) reserve: Gate,
    /// Connections whose TLS handshake has not ended.
    pub(crate) handshakes: Arc<Newcomers>,
    pub(crate) requests: Gate,
    /// Requests of callers of whom it is not known who they are, by address: those that wait until it is known, those
    /// that anybody may make, and those that were refused. They take nothing of what users need.
    pub(crate) strangers: Gate,
    pub(crate) subscriptions: Gate,
    /// Turns for reading pages. How many reads wait is bounded by `requests`.
    pub(crate) reads: Gate,
    /// Turns for what is handed to the store to be appended. A caller who appends very much waits here, and not where
    /// the appends of all others stand behind.
    pub(crate) appends: Appends,
    pub(crate) budget: Budget,
    /// Bytes of the heads and bodies of callers of whom it is not known who they are.
    pub(crate) budget_of_strangers: Budget,
    pub(crate) patterns: Patterns,
    pub(crate) paces: Paces,
}

impl Bounds {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            connections: Gate::new("connections", config.connections_max),
            full_connections: Arc::default(),
            reserve: Gate::new("connections beyond the maximum", RESERVE_CONNECTIONS),
            handshakes: Newcomers::new(config.handshakes_max, config.handshakes_max.div_ceil(2)),
            requests: Gate::new("requests", config.requests_in_flight_max),
            strangers: Gate::new(
                "requests of callers who have not proved who they are",
                (config.requests_in_flight_max / 8).max(STRANGERS_MIN),
            ),
            subscriptions: Gate::new("subscriptions", config.subscriptions_max),
            reads: Gate::new("reads", config.reads_in_flight_max),
            appends: Appends::new(),
            budget: Budget::new(config.bytes_in_flight_max),
            budget_of_strangers: Budget::new(config.bytes_in_flight_max / 16),
            patterns: Patterns::default(),
            paces: Paces::default(),
        }
    }

    /// Returns what is held of all that callers use together, by the name under which metrics show it.
    pub(super) fn loads(&self) -> [(&'static str, Load); 9] {
        [
            ("connections", self.connections.load()),
            ("requests", self.requests.load()),
            ("requests_of_strangers", self.strangers.load()),
            ("subscriptions", self.subscriptions.load()),
            ("reads", self.reads.load()),
            ("appends", self.appends.load()),
            ("patterns", self.patterns.load()),
            ("bytes", self.budget.load()),
            ("bytes_of_strangers", self.budget_of_strangers.load()),
        ]
    }
}
