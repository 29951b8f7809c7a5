//! A task that works for all who wait for the same thing at the same time.
//!
//! Why a task: a caller may be dropped, or not be polled for a while, and others wait for what it has begun.

use std::sync::{Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use gesta_core::shares::{self, Holder};
use gesta_core::{Error, Result};
use tokio::task::AbortHandle;

type End = Shared<BoxFuture<'static, Result<()>>>;

/// The task that runs, or that ran last.
#[derive(Default)]
pub(super) struct SharedTask(Mutex<Option<(AbortHandle, End)>>);

impl SharedTask {
    /// Begins a task, unless one is running. The task runs to its end whether or not the future that is returned, which
    /// waits for that end, is polled.
    ///
    /// # Errors
    /// Those of the work; `Unavailable` if the task has died with its runtime.
    pub(super) fn join<F>(&self, work: impl FnOnce() -> F) -> End
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*latest {
            Some((task, end)) if !task.is_finished() => end.clone(),
            _ => {
                let task = tokio::spawn(shares::act_as(Holder::Server, work()));
                let handle = task.abort_handle();
                let end = async { task.await.unwrap_or_else(|_| Err(interrupted())) };
                let end = end.boxed().shared();
                *latest = Some((handle, end.clone()));
                end
            }
        }
    }
}

fn interrupted() -> Error {
    Error::unavailable("reading where the logs lie was interrupted: try again")
}
