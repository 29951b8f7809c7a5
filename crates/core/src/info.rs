//! What a store tells about itself.

use std::time::Duration;

use crate::ids::{Incarnation, Position};

/// Durability of an acknowledged append: what it survives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Durability {
    /// An append is committed with the full durability of the database; the text names the settings found.
    Full(String),
    /// An append is committed with less, because the operator asked for it by name; the text says what can be lost.
    Weakened(String),
    /// No event survives the process.
    None,
}

impl Durability {
    /// Returns the name: `full`, `weakened` or `none`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Durability::Full(_) => "full",
            Durability::Weakened(_) => "weakened",
            Durability::None => "none",
        }
    }

    /// Returns the settings on which the durability rests.
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
    /// Whether events survive closing and opening the store again.
    pub persistent: bool,
    /// Whether several processes may append to the store at once.
    pub shared: bool,
    /// Whether a store can have several logs.
    pub several_logs: bool,
    /// Largest number of batches that may be in flight at once on one log.
    pub batches_in_flight_max: usize,
}

/// For how long a retry with expected revision `any` or `stream_exists` is recognised. Both bounds hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdempotencyWindow {
    /// Time for which a retry is recognised at least.
    pub time: Duration,
    /// Number of the newest positions of the log among which a retry is recognised at least.
    pub positions: u64,
}

/// What a store tells about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreInfo {
    /// Kind of the store: `memory`, `sqlite`, `postgres`, ….
    pub backend: String,
    /// Version of the database engine, for people.
    pub engine: String,
    /// Incarnation of the store: this life of it.
    pub incarnation: Incarnation,
    /// Number of logs of the store.
    pub logs: u16,
    /// Durability of an acknowledged append.
    pub durability: Durability,
    /// What the store can do beside the contract.
    pub capabilities: Capabilities,
    /// For how long retries are recognised.
    pub idempotency: IdempotencyWindow,
    /// Last position of each log, in the order of the logs.
    pub heads: Vec<Position>,
    /// By how much the newest event is ahead of the clock of the process that tells this; zero if it is not. As long as
    /// it is ahead, further events are stored with its time.
    pub newest_event_ahead: Duration,
}
