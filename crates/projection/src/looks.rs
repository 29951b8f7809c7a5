//! Looks at the target: the states, leases and commands of all projections, for all that this process runs.
//!
//! Why: a hundred projections that are idle, paused or standing by cost as many statements as one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::definition::ProjectionId;
use crate::error::TargetError;
use crate::target::{Command, Stored, Target};

/// What the last look has found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
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
    pub(crate) stopping: CancellationToken,
}

impl<T: Target> Looker<T> {
    /// Renews the lease and looks.
    pub(crate) async fn look(&self, renewed: &mut Option<Instant>) -> Result<(), TargetError> {
        let now = tokio::time::Instant::now().into_std();
        if renewed.is_none_or(|at| now.duration_since(at) >= self.lease / 3) {
            self.target
                .renew(self.node, &self.node_name, self.lease)
                .await?;
            *renewed = Some(now);
        }
        let rows = Arc::new(self.target.list().await?);
        let commands = Arc::new(self.target.commands().await?);
        self.found.send_replace(Look { rows, commands });
        Ok(())
    }

    /// Looks until the process stops.
    pub(crate) async fn run(self, mut renewed: Option<Instant>) {
        while !self.stopping.is_cancelled() {
            tokio::select! {
                () = self.stopping.cancelled() => return,
                () = self.at_once.notified() => {}
                () = tokio::time::sleep(self.look_every) => {}
            }
            if let Err(error) = self.look(&mut renewed).await {
                tracing::warn!(%error, "the states of projections could not be read");
            }
        }
    }
}
