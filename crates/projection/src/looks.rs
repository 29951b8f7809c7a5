//! Looks at the target: the states, leases and commands of all projections, for all that this process runs.
//!
//! Why: a hundred projections that are idle, paused or standing by cost as many statements as one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gesta_core::Checkpoint;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::batch::covers;
use crate::definition::ProjectionId;
use crate::error::TargetError;
use crate::target::{Command, Stored, Target};

/// What the last look has found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// When it was begun; `None` before the first one.
    pub(crate) at: Option<tokio::time::Instant>,
    pub(crate) rows: Arc<Vec<Stored>>,
    pub(crate) commands: Arc<Vec<Command>>,
}

impl Look {
    pub(crate) fn row(&self, id: &ProjectionId) -> Option<&Stored> {
        self.rows.iter().find(|row| row.id == *id)
    }
}

/// What the session of a version knows to be stored, for the target has answered its commit.
///
/// Why: a target that has lost commits, by a fail-over or because it was put back, answers as one does that has not.
/// A session that is idle would never hear of it.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    /// When the answer had come: what is read later shows it.
    pub(crate) at: tokio::time::Instant,
    pub(crate) epoch: i64,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) resets: i64,
    /// Events since the last reset. A replay adds to them, and leaves the checkpoint where it is.
    pub(crate) events: i64,
}

impl Committed {
    /// Returns true if the target has lost this commit, as what was read of the version shows, in a read that was begun
    /// at a time. A later session of the version is no loss.
    pub(crate) fn is_lost(&self, begun: tokio::time::Instant, row: Option<&Stored>) -> bool {
        let is_kept = |row: &Stored| {
            row.epoch > self.epoch
                || row.epoch == self.epoch
                    && row.resets == self.resets
                    && row.events >= self.events
                    && covers(&row.checkpoint, &self.checkpoint) == Some(true)
        };
        begun > self.at && !row.is_some_and(is_kept)
    }
}

/// The last commit of the session of a version in this process; none while there is no session.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastCommit(Arc<Mutex<Option<Committed>>>);

impl LastCommit {
    pub(crate) fn get(&self) -> Option<Committed> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    pub(crate) fn set(&self, committed: Option<Committed>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = committed;
    }
}

/// Longest time between two renewals of a lease.
const RENEW_MAX: Duration = Duration::from_secs(5);

/// The task that looks.
pub(crate) struct Looker<T> {
    pub(crate) target: T,
    pub(crate) node: Uuid,
    pub(crate) node_name: String,
    pub(crate) lease: Duration,
    pub(crate) look_every: Duration,
    /// Wakes the task before its time.
    pub(crate) at_once: Arc<Notify>,
    pub(crate) found: watch::Sender<Look>,
}

impl<T: Target> Looker<T> {
    /// Renews the lease and looks.
    pub(crate) async fn look(&self, renewed: &mut Option<Instant>) -> Result<(), TargetError> {
        let at = tokio::time::Instant::now();
        let now = at.into_std();
        // Processes with much shorter leases may shorten this one: see `Target::renew`.
        let pause = (self.lease / 3).min(RENEW_MAX);
        if renewed.is_none_or(|at| now.duration_since(at) >= pause) {
            self.renew(renewed, now).await?;
        }
        let mut rows = self.target.list().await?;
        // A clock was set ahead, or the lease was taken for one of before it was set back.
        let is_over = |row: &Stored| row.owner == Some(self.node) && !row.owned;
        if rows.iter().any(is_over) {
            self.renew(renewed, now).await?;
            rows = self.target.list().await?;
        }
        let rows = Arc::new(rows);
        let commands = Arc::new(self.target.commands().await?);
        let at = Some(at);
        self.found.send_replace(Look { at, rows, commands });
        Ok(())
    }

    async fn renew(&self, renewed: &mut Option<Instant>, now: Instant) -> Result<(), TargetError> {
        let renewing = self.target.renew(self.node, &self.node_name, self.lease);
        renewing.await?;
        *renewed = Some(now);
        Ok(())
    }

    /// Looks until the task is ended, which is after the last projection has stopped: until then the lease is kept.
    pub(crate) async fn run(self, mut renewed: Option<Instant>) {
        loop {
            tokio::select! {
                () = self.at_once.notified() => {}
                () = tokio::time::sleep(self.look_every) => {}
            }
            if let Err(error) = self.look(&mut renewed).await {
                tracing::warn!(%error, "the states of projections could not be read");
            }
        }
    }
}
