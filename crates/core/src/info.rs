//! What a store tells about itself.

use std::time::Duration;

use crate::ids::{Incarnation, Position};

/// How safe an acknowledged append is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Committed with the database's full durability; the text names the settings found.
    Full(String),
    /// Weaker, and asked for by name; the text says what can be lost.
    Weakened(String),
    /// Nothing survives the process.
    None,
}

impl Durability {
    /// `full`, `weakened` or `none`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Durability::Full(_) => "full",
            Durability::Weakened(_) => "weakened",
            Durability::None => "none",
        }
    }

    /// The settings that it rests on.
    #[must_use]
    pub fn detail(&self) -> &str {
        match self {
            Durability::Full(detail) | Durability::Weakened(detail) => detail,
            Durability::None => "in memory",
        }
    }
}

/// What a backend can do beside the contract. The conformance suite prints the differences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Events survive closing and opening the store again.
    pub persistent: bool,
    /// Several processes may append to the store at once.
    pub shared: bool,
    /// Several logs per store.
    pub several_logs: bool,
    /// Batches that may be in flight at once on one log.
    pub batches_in_flight_max: usize,
}

/// How long a retry with expected revision `any` or `stream_exists` is recognised: both hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdempotencyWindow {
    /// At least this long.
    pub time: Duration,
    /// And among at least the newest so many positions of the log.
    pub positions: u64,
}

/// What a store tells about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreInfo {
    /// The kind of store: `memory`, `sqlite`, `postgres`, ….
    pub backend: String,
    /// Version of the database engine, for people.
    pub engine: String,
    /// This life of the store.
    pub incarnation: Incarnation,
    /// Number of logs.
    pub logs: u16,
    /// How safe an acknowledged append is.
    pub durability: Durability,
    /// What it can do.
    pub capabilities: Capabilities,
    /// How long retries are recognised.
    pub idempotency: IdempotencyWindow,
    /// Last position of each log.
    pub heads: Vec<Position>,
}
