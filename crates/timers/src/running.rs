//! A running service of timers.

use gesta_core::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What a process does about its timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Phase {
    /// It begins, or looks who fires.
    #[default]
    Starting,
    /// No timer is pending, and nobody fires.
    Idle,
    /// Another process fires.
    StandingBy,
    /// This process fires.
    Firing,
    /// The store does not answer, or refuses; it is tried again.
    Away,
    /// It was shut down.
    Stopped,
}

/// What a process knows of its timers. The numbers are those of the process that fires; others know none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Status {
    /// What the process does.
    pub phase: Phase,
    /// The number of pending timers, with those that are firing.
    pub pending: usize,
    /// The most bytes of memory that they take, as [`Config::pending_bytes_max`](crate::Config::pending_bytes_max)
    /// counts them.
    pub pending_bytes: usize,
    /// The number of timers whose handler has failed, and that fire again.
    pub failing: usize,
    /// The number of timers that have fired in this process.
    pub fired: u64,
    /// When the next timer fires, of those that have not failed.
    pub next: Option<Timestamp>,
    /// The number of requests that this process has skipped because they cannot be read, or break a bound: another
    /// program has appended them. The log, and `error` while no handler fails, name the last one by its revision.
    pub skipped: u64,
    /// The last error: of a handler, of a request, or of the store; or which bound the pending timers have reached, so
    /// that what was set since is not read yet.
    pub error: Option<String>,
}

/// A running service of timers.
///
/// Dropping it ends it at once, as a crash does: another process takes over after the lease.
#[derive(Debug)]
pub struct RunningTimers {
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) stopping: CancellationToken,
    pub(crate) task: Option<JoinHandle<()>>,
}

impl RunningTimers {
    /// Returns what this process knows, as a channel that tells each change.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Ends in good order: waits for the handlers that run, for half a lease at most, stores what has fired, and gives
    /// the timers free, so that another process takes over at once.
    ///
    /// # Cancel safety
    /// If the future is dropped, the service ends at once.
    pub async fn shutdown(mut self) {
        self.stopping.cancel();
        if let Some(task) = &mut self.task
            && let Err(error) = task.await
        {
            tracing::warn!(%error, "the timers did not stop in good order");
        }
        self.task = None;
    }
}

impl Drop for RunningTimers {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
