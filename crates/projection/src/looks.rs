//! Looks at the target: the states, leases and commands of all projections, for all that this process runs.
//!
//! Why: a hundred projections that are idle, paused or standing by cost as many statements as one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use uuid::Uuid;

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
        if renewed.is_none_or(|at| now.duration_since(at) >= self.lease / 3) {
            self.target
                .renew(self.node, &self.node_name, self.lease)
                .await?;
            *renewed = Some(now);
        }
        let rows = Arc::new(self.target.list().await?);
        let commands = Arc::new(self.target.commands().await?);
        let at = Some(at);
        self.found.send_replace(Look { at, rows, commands });
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
