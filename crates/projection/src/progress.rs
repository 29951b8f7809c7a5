//! What a process knows of a projection that it runs.

use gesta_core::Checkpoint;

/// What a projection is doing in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It has not begun yet.
    Starting,
    /// Another process owns it; this one takes over when that one is gone.
    StandingBy,
    /// It applies events that were stored before.
    CatchingUp,
    /// It has applied everything, and applies events as they are stored.
    Live,
    /// The target does not answer, or its transactions fail: it is tried again and again, and nothing is parked.
    TargetAway,
    /// The store does not answer: it is tried again and again.
    StoreAway,
    /// An event could not be applied, and is tried again.
    Retrying,
    /// Somebody has paused it.
    Paused,
    /// It cannot go on until somebody acts.
    Stopped,
    /// Its rows are gone.
    Retired,
    /// The process is stopping.
    Ended,
}

/// What a process knows of a projection that it runs.
#[derive(Clone, Debug)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// The place up to which it has come; `None` before it has begun here. It may be ahead of the stored checkpoint
    /// where no event matches.
    pub checkpoint: Option<Checkpoint>,
    /// How often it was reset.
    pub resets: i64,
    /// Events that this process has applied.
    pub events: u64,
    /// Batches that this process has committed.
    pub batches: u64,
    /// Streams whose first events were hidden or removed when the view met them.
    pub hidden_fronts: u64,
    /// How often something has failed here and was tried again.
    pub failures: u64,
    /// The last error; `None` once a batch has committed.
    pub error: Option<String>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            phase: Phase::Starting,
            checkpoint: None,
            resets: 0,
            events: 0,
            batches: 0,
            hidden_fronts: 0,
            failures: 0,
            error: None,
        }
    }
}
