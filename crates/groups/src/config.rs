//! What the groups of a process are given: their bounds, and which groups other processes run.

use std::time::Duration;

use gesta_core::{StreamId, units};
use serde::{Deserialize, Serialize};

use crate::error::Elsewhere;

/// Bounds and times of the groups of a process. In the form of serde it has the keys of the section `[groups]` of a
/// configuration file; what is skipped there is no setting of users.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Groups")]
pub struct Config {
    /// Most groups that run at once.
    pub running_max: usize,
    /// Most bytes of events that all groups hold together. Each group may hold one event beyond them.
    #[serde(with = "units::size")]
    pub held_bytes_max: usize,
    /// Most bytes of events that one group holds. The group may hold one event beyond them.
    #[serde(with = "units::size")]
    pub group_bytes_max: usize,
    /// How long a group without consumers runs on before it stops.
    #[serde(with = "units::span")]
    pub idle_max: Duration,
    /// How long a group without consumers runs on that holds events of which deliveries have failed. When it stops, it
    /// forgets how many tries these events have had.
    #[serde(skip)]
    pub tries_kept_max: Duration,
    /// How long a group that stops may take to store its last checkpoint. After that, events are delivered again.
    #[serde(skip)]
    pub last_checkpoint_max: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            running_max: 1_000,
            held_bytes_max: 256 * 1024 * 1024,
            group_bytes_max: 64 * 1024 * 1024,
            idle_max: Duration::from_secs(30),
            tries_kept_max: Duration::from_secs(600),
            last_checkpoint_max: Duration::from_secs(5),
        }
    }
}

/// Tells which process runs a group if several processes share a store.
pub trait GroupPlacement: Send + Sync + 'static {
    /// Returns the process that is to run the groups whose checkpoints lie on this stream; `None` if it is this
    /// process, or if no process is to run them. It must not block.
    fn elsewhere(&self, stream: &StreamId) -> Option<Elsewhere>;
}

/// A placement that lets this process run every group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl GroupPlacement for Alone {
    fn elsewhere(&self, _: &StreamId) -> Option<Elsewhere> {
        None
    }
}
