//! Configures how accounts and rights are followed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{Clock, SystemClock};

/// When callers must prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Callers must prove who they are as soon as there has ever been a user in the store.
    #[default]
    Auto,
    /// Callers must always prove who they are. Without users nobody may do anything.
    On,
}

/// The configuration of an [`Access`](crate::Access).
#[derive(Clone)]
pub struct Config {
    /// When callers must prove who they are.
    pub mode: Mode,
    /// The clock that tells when tokens expire.
    pub clock: Arc<dyn Clock>,
    /// Returns the time since some fixed moment, which must also count while the machine is suspended. It tells how old
    /// the news of the accounts is.
    pub uptime: fn() -> Duration,
    /// How many passwords are compared at once. Each comparison takes 19 MiB and a processor for some 20 ms.
    pub comparisons_max: usize,
    /// How many calls one user may make at once. Running subscriptions are not counted.
    pub user_calls_max: usize,
    /// How much payload one user may append and read in a second, in bytes.
    pub user_bytes_per_second: u64,
}

impl Default for Config {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            mode: Mode::Auto,
            clock: Arc::new(SystemClock),
            uptime: gesta_core::uptime,
            comparisons_max: (processors / 2).clamp(1, 4),
            user_calls_max: 5_000,
            user_bytes_per_second: 1024 * 1024 * 1024,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
