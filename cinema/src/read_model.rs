//! The read model: how many seats of each show are available. A subscription to all events of shows keeps it.
//!
//! Why it stores batches: one small transaction for the changes of two seconds costs the application next to nothing;
//! when nothing else happens an event is seen at once.
//! Invariants: rows and checkpoint change in one transaction, and only if the checkpoint is still the one after which
//! the changes begin. So nothing is counted twice or left out, whatever fails, and even if several processes keep the
//! same rows: one of them moves the checkpoint on, the others wait.
//! A row begins with the event that creates its show. If scavenging has removed that event, what is left of the show is
//! no show, and has no row: its seats would be counted from a beginning that nobody knows.
//! Not here: following the events (`worker`), SQL (`sqlite`, `postgres`).

mod postgres;
mod sqlite;
mod worker;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use gesta::EventStore;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::read_model::postgres::PostgresViews;
use crate::read_model::sqlite::SqliteViews;
use crate::read_model::worker::Worker;

/// The reason why the read model cannot answer or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database of the read model does not answer or refuses.
    #[error("the database of the read model: {0}")]
    Database(String),
    /// The store has failed.
    #[error("{0}")]
    Store(#[from] gesta::Error),
    /// An event cannot be read. Going on without it would count wrongly for ever.
    #[error("event {0}")]
    Unreadable(String),
}

/// The available seats of one show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AvailableSeats {
    /// Identity of the show.
    pub show_id: Uuid,
    /// Number of its seats that can be reserved.
    #[serde(rename = "availableSeats")]
    pub available: i64,
}

/// Change of the number of available seats of one show.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    /// Number to add; the whole number if the show is new.
    seats: i64,
    /// True if the show was created. A row of a show of the same id, whose stream was deleted, is replaced. Otherwise a
    /// show without a row gets none.
    is_new: bool,
}

/// Changes of the numbers of available seats between two checkpoints.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Checkpoint after which the changes begin; empty for the first batch.
    from: String,
    /// Checkpoint that the changes reach.
    to: String,
    /// Change of each show.
    changes: HashMap<Uuid, Change>,
    /// Number of events that were counted.
    events: u64,
    /// True if all rows are removed first.
    is_anew: bool,
}

/// The place of the rows. Each method is one transaction, and opens a connection if there is none.
#[async_trait]
pub(crate) trait Views: fmt::Debug + Send + Sync + 'static {
    /// Returns the checkpoint; it is empty before the first event. Makes the tables if they are missing.
    async fn checkpoint(&self) -> Result<String, Error>;

    /// Adds the changes and moves the checkpoint on. Returns false if another process has moved the checkpoint, so that
    /// the batch does not begin after it: then nothing was changed.
    async fn apply(&self, batch: &Batch) -> Result<bool, Error>;

    /// Returns the rows after this show, in order of the ids of shows, at most `limit`.
    async fn page(&self, after: Option<Uuid>, limit: u16) -> Result<Vec<AvailableSeats>, Error>;
}

/// Makes the place for rows next to the store at `url`.
pub(crate) fn beside(url: &str) -> gesta::Result<Arc<dyn Views>> {
    match url.split_once(':') {
        Some(("sqlite", path)) => Ok(Arc::new(SqliteViews::beside(path))),
        Some(("postgres" | "postgresql", _)) => Ok(Arc::new(PostgresViews::beside(url)?)),
        _ => Err(gesta::Error::invalid(
            "store",
            "must be sqlite:PATH, sqlite::memory: or postgres://…",
        )),
    }
}

/// What the read model has done since it was started.
#[derive(Debug, Default, Clone)]
pub struct Stats {
    /// Number of events counted.
    pub events: Counter,
    /// Number of transactions that stored them.
    pub batches: Counter,
    /// How many times it began again from the first event.
    pub rebuilds: Counter,
    /// How many times something failed and was tried again.
    pub failures: Counter,
    /// How many times another process had moved the checkpoint on.
    pub stood_by: Counter,
}

/// A running read model.
#[derive(Debug)]
pub struct ReadModel {
    views: Arc<dyn Views>,
    stats: Stats,
    stopping: CancellationToken,
    worker: TaskTracker,
}

impl ReadModel {
    /// Starts to keep rows of the shows of `store`. It waits for a database that is away. Must be called within a tokio
    /// runtime.
    pub(crate) fn start(store: Arc<dyn EventStore>, views: Arc<dyn Views>) -> Self {
        let (stats, stopping) = (Stats::default(), CancellationToken::new());
        let worker = TaskTracker::new();
        let following = Worker::new(store, Arc::clone(&views), stats.clone());
        worker.spawn(following.run(stopping.clone()));
        Self {
            views,
            stats,
            stopping,
            worker,
        }
    }

    /// Returns at most `limit` shows after this one, in order of ids. What was just reserved may not be counted yet.
    ///
    /// # Errors
    /// [`Error::Database`] if the database does not answer or refuses.
    pub async fn page(
        &self,
        after: Option<Uuid>,
        limit: u16,
    ) -> Result<Vec<AvailableSeats>, Error> {
        self.views.page(after, limit).await
    }

    /// Returns what the read model has done so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Stops counting. Events that were not stored are counted after the next start.
    pub async fn shutdown(&self) {
        self.stopping.cancel();
        self.worker.close();
        self.worker.wait().await;
    }
}

#[cfg(test)]
mod tests;
