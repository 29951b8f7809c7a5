//! What the groups of a process are given: their bounds, and which of them are run elsewhere.

use std::time::Duration;

use gesta_core::StreamId;

use crate::error::Elsewhere;

/// Bounds and times of the groups of a process.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most groups that run at once.
    pub running_max: usize,
    /// Most bytes of events that all groups hold. Each may hold one event beyond.
    pub held_bytes_max: usize,
    /// Most bytes of events that one group holds. It may hold one event beyond.
    pub group_bytes_max: usize,
    /// How long a group without consumers runs on.
    pub idle_max: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            running_max: 1_000,
            held_bytes_max: 256 * 1024 * 1024,
            group_bytes_max: 64 * 1024 * 1024,
            idle_max: Duration::from_secs(30),
        }
    }
}

/// Which process runs what, where several share a store.
pub trait GroupPlacement: Send + Sync + 'static {
    /// Who is to run what lies on this stream, unless it is this process or nobody. Must not block.
    fn elsewhere(&self, stream: &StreamId) -> Option<Elsewhere>;
}

/// This process runs everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl GroupPlacement for Alone {
    fn elsewhere(&self, _: &StreamId) -> Option<Elsewhere> {
        None
    }
}
