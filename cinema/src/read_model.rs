//! The read model: how many seats of each show are available, kept by a subscription to all events of shows.
//!
//! Why in batches: one small transaction for the changes of two seconds costs the application next to nothing; when
//! nothing else happens an event is seen at once.
//! Invariants: rows and checkpoint change in one transaction, and only if the checkpoint is still the one that the
//! changes begin after. So nothing is counted twice or left out, whatever fails, and even if several processes keep
//! the same rows: one of them moves the checkpoint on, the others stand by.
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

/// Why the read model cannot answer or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its database does not answer or refuses.
    #[error("the database of the read model: {0}")]
    Database(String),
    /// The store, or an event in it.
    #[error("{0}")]
    Store(#[from] gesta::Error),
    /// An event cannot be read. Going on without it would count wrongly for ever.
    #[error("event {0}")]
    Unreadable(String),
}

/// The seats of one show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AvailableSeats {
    /// The show.
    pub show_id: Uuid,
    /// How many of its seats can be reserved.
    #[serde(rename = "availableSeats")]
    pub available: i64,
}

/// Changes of the numbers of available seats between two checkpoints.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The checkpoint that they begin after; empty for the first.
    from: String,
    /// The checkpoint that they reach.
    to: String,
    /// What to add, by show. A new show adds its seats to nothing.
    changes: HashMap<Uuid, i64>,
    /// How many events were counted.
    events: u64,
    /// First all rows are removed.
    is_anew: bool,
}

/// Where the rows are kept. Each method is one transaction, and opens a connection if there is none.
#[async_trait]
pub(crate) trait Views: fmt::Debug + Send + Sync + 'static {
    /// The checkpoint; empty before the first event. Makes the tables if they are missing.
    async fn checkpoint(&self) -> Result<String, Error>;

    /// Adds the changes and moves the checkpoint on. False if it is not what the batch begins after, because another
    /// process has moved it: then nothing was changed.
    async fn apply(&self, batch: &Batch) -> Result<bool, Error>;

    /// Rows after this show, in order of their ids.
    async fn page(&self, after: Option<Uuid>, limit: u16) -> Result<Vec<AvailableSeats>, Error>;
}

/// The place for rows next to the store at `url`.
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
    /// Events counted.
    pub events: Counter,
    /// Transactions that stored them.
    pub batches: Counter,
    /// Times it began again from the first event.
    pub rebuilds: Counter,
    /// Times something failed; it tried again.
    pub failures: Counter,
    /// Times another process was ahead.
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
    /// Starts to keep rows of the shows of `store`. A database that is away is waited for. Must be called within a
    /// tokio runtime.
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

    /// Shows after this one, in order of their ids. What was just reserved may not be counted yet.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn page(
        &self,
        after: Option<Uuid>,
        limit: u16,
    ) -> Result<Vec<AvailableSeats>, Error> {
        self.views.page(after, limit).await
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Stops counting. What was not stored is counted after the next start.
    pub async fn shutdown(&self) {
        self.stopping.cancel();
        self.worker.close();
        self.worker.wait().await;
    }
}

#[cfg(test)]
mod tests;
