//! Whether appends can succeed, as `/health/ready` tells it, whether requests find the store, and the log of the
//! changes.
//!
//! Why here and not at each request: a probe comes every second, and a thousand requests fail in a second while a
//! database is away; a log that repeats what it said hides what changes. Invariants: one warning when the server
//! becomes unready, or requests begin to fail, and one line when that is over, however many ask; one probe runs at a
//! time, because anybody may ask for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use gesta_core::shares::{Holder, act_as};
use gesta_core::{Error, ErrorKind, EventStore};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::shared::lasting::Lasting;
use crate::shared::problem::{self, Problem, Result};

/// How long a store may take to tell whether it is ready.
pub(crate) const PROBE_MAX: Duration = Duration::from_secs(5);

/// A probe that runs in a task of its own.
#[derive(Debug)]
struct Probing {
    /// Tells whether it has ended, also if nobody waited for it.
    task: AbortHandle,
    outcome: Shared<BoxFuture<'static, Result<()>>>,
}

/// What the last probe found.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    /// Reason why the server was not ready; `None` if it was ready.
    unready: Mutex<Option<String>>,
    /// The fault that requests fail because the store is away.
    failures: Mutex<Lasting>,
    /// True if there is such a fault. Requests that succeed need no lock to read it.
    has_failed: AtomicBool,
    /// The last probe.
    probing: Mutex<Option<Probing>>,
    /// When a probe that several share was made last, and whether the server was ready.
    shared: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

impl Readiness {
    /// Waits for the probe that runs, or begins one. So the store is asked once for all who ask at the same time,
    /// however many they are, and also if they do not wait for the answer.
    pub(crate) async fn probed(
        &self,
        probe: impl FnOnce() -> BoxFuture<'static, Result<()>>,
    ) -> Result<()> {
        let probing = {
            let mut last = self.probing.lock().unwrap_or_else(PoisonError::into_inner);
            match &*last {
                Some(running) if !running.task.is_finished() => running.outcome.clone(),
                _ => {
                    let task = tokio::spawn(act_as(Holder::Server, probe()));
                    let handle = task.abort_handle();
                    let outcome = async move {
                        task.await.unwrap_or_else(|error| {
                            let detail = format!("the probe ended early: {error}");
                            Err(Problem::new(problem::UNAVAILABLE, detail))
                        })
                    };
                    let outcome = outcome.boxed().shared();
                    *last = Some(Probing {
                        task: handle,
                        outcome: outcome.clone(),
                    });
                    outcome
                }
            }
        };
        probing.await
    }

    /// Asks the store unless the accounts are not ready, and writes to the log if the answer has changed.
    pub(crate) async fn probe(
        &self,
        accounts: gesta_core::Result<()>,
        store: &dyn EventStore,
    ) -> Result<()> {
        let ready = match accounts {
            Ok(()) => in_time(store.ready()).await,
            Err(error) => Err(unavailable(&error)),
        };
        let reason = ready.as_ref().err().map(|problem| problem.detail.clone());
        let mut unready = self.unready.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*unready, &reason) {
            (None, Some(reason)) => tracing::warn!(reason, "not ready: appends cannot succeed"),
            (Some(_), None) => tracing::info!("ready again"),
            _ => {}
        }
        *unready = reason;
        ready
    }

    /// Returns whether the server is ready, as the last shared probe found it if that is not older than `age_max`;
    /// otherwise the probe is made, for all who ask meanwhile.
    pub(crate) async fn lately(
        &self,
        age_max: Duration,
        probe: impl Future<Output = Result<()>>,
    ) -> bool {
        let mut shared = self.shared.lock().await;
        if let Some((made, is_ready)) = *shared
            && made.elapsed() < age_max
        {
            return is_ready;
        }
        let is_ready = probe.await.is_ok();
        *shared = Some((Instant::now(), is_ready));
        is_ready
    }

    /// Notes that a request has failed because the store is away.
    pub(crate) fn request_failed(&self, problem: &str, detail: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_failed.store(true, Ordering::Relaxed);
        if failures.fails() {
            tracing::warn!(
                problem,
                detail,
                "requests fail because the store is away; each next one is told at level debug"
            );
        }
    }

    /// Notes that the store has answered a request.
    pub(crate) fn request_succeeded(&self) {
        if !self.has_failed.load(Ordering::Relaxed) {
            return;
        }
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.succeeds() {
            self.has_failed.store(false, Ordering::Relaxed);
            tracing::info!("the store answers requests again");
        }
    }
}

/// Waits for an answer of the store, at most for [`PROBE_MAX`]. The error tells why there is none, and is not logged.
pub(crate) async fn in_time<T>(answer: impl Future<Output = gesta_core::Result<T>>) -> Result<T> {
    match tokio::time::timeout(PROBE_MAX, answer).await {
        Ok(answer) => answer.map_err(|error| unavailable(&error)),
        Err(_) => Err(Problem::new(
            problem::UNAVAILABLE,
            format!("the store did not answer within {} s", PROBE_MAX.as_secs()),
        )),
    }
}

/// Makes the problem that a probe gets. Whatever is wrong with the store, it is a 503, because it may pass.
fn unavailable(error: &Error) -> Problem {
    match error.kind() {
        ErrorKind::Unavailable(detail) => Problem::new(problem::UNAVAILABLE, detail),
        other => Problem::new(problem::UNAVAILABLE, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use futures::future;

    use super::*;

    /// What happened: if the only one who asked went away before the probe ended, its outcome was given to whoever
    /// asked next, hours later. Goal: who asks after the end of a probe gets another.
    #[tokio::test]
    async fn who_asks_later_is_not_told_what_was_true_before() {
        let readiness = Readiness::default();
        let (sender, end) = futures::channel::oneshot::channel::<()>();
        let mut first = Box::pin(readiness.probed(|| end.map(|_| Ok(())).boxed()));
        assert!(futures::poll!(first.as_mut()).is_pending());
        let mut joins = Box::pin(readiness.probed(|| unreachable!("one probe runs")));
        assert!(futures::poll!(joins.as_mut()).is_pending());
        drop((first, joins));
        sender
            .send(())
            .expect("the probe runs, though nobody waits");
        let has_ended = || {
            let last = readiness
                .probing
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            last.as_ref().is_some_and(|last| last.task.is_finished())
        };
        while !has_ended() {
            tokio::task::yield_now().await;
        }
        let unready = || Err(Problem::new(problem::UNAVAILABLE, "the store is away"));
        let later = readiness.probed(|| future::ready(unready()).boxed()).await;
        assert_eq!(later.expect_err("not ready").detail, "the store is away");
    }
}
