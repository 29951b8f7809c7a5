//! The read model: how many seats of each show are available, kept by a subscription to all events of shows.
//!
//! Why in batches: one small transaction for the changes of two seconds costs the application next to nothing; when
//! nothing else happens an event is seen at once.
//! Invariants: rows and checkpoint change in one transaction, and only if the checkpoint is still the one that the
//! changes begin after. So nothing is counted twice or left out, whatever fails, and even if several processes keep
//! the same rows: one of them moves the checkpoint on, the others stand by.
//! Not here: SQL (`sqlite`, `postgres`).

mod batch;
mod location;
mod postgres;
mod sqlite;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use gesta::EventStore;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::read_model::batch::Batch;
pub use crate::read_model::location::Location;
use crate::read_model::worker::Worker;

/// Most pages that are read at once; further callers wait.
const PAGES_AT_ONCE_MAX: usize = 8;

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
    #[error("event at position {position} of stream {stream} cannot be read: {detail}")]
    Unreadable {
        /// Its stream.
        stream: String,
        /// Its position.
        position: u64,
        /// What is wrong.
        detail: String,
    },
}

/// The seats of one show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AvailableSeats {
    /// The show.
    pub show_id: Uuid,
    /// How many of its seats can be reserved.
    pub available: i64,
}

/// Whether a change was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moved {
    /// It was.
    Yes,
    /// The checkpoint was not the expected one: another process has gone on. Nothing was changed.
    No,
}

/// Where the rows are kept. Each method is one transaction, and opens a connection if there is none.
#[async_trait]
trait Views: Send + Sync + 'static {
    /// The checkpoint; empty before the first event. Makes the tables if they are missing.
    async fn checkpoint(&self) -> Result<String, Error>;

    /// Adds the changes and moves the checkpoint on, if it still is what the batch begins after.
    async fn apply(&self, batch: &Batch) -> Result<Moved, Error>;

    /// Removes all rows and the checkpoint, if it still is this one.
    async fn clear(&self, checkpoint: &str) -> Result<Moved, Error>;

    /// Rows behind `after`, in order of their ids.
    async fn page(&self, after: Option<Uuid>, limit: u16) -> Result<Vec<AvailableSeats>, Error>;
}

/// What the read model has done since it was started.
#[derive(Debug, Default)]
pub struct Stats {
    /// Events counted.
    pub events: AtomicU64,
    /// Transactions that stored them.
    pub batches: AtomicU64,
    /// Times it began again from the first event.
    pub rebuilds: AtomicU64,
    /// Times something failed; it tried again.
    pub failures: AtomicU64,
    /// Times another process was ahead.
    pub stood_by: AtomicU64,
}

impl Stats {
    fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// A running read model.
pub struct ReadModel {
    views: Arc<dyn Views>,
    /// Pages that are read at once: however many ask, the database is not theirs alone.
    pages: Semaphore,
    stats: Arc<Stats>,
    stopping: CancellationToken,
    worker: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for ReadModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadModel").finish_non_exhaustive()
    }
}

impl ReadModel {
    /// Starts to keep the rows at `location` for the shows of `store`. A database that is away is waited for.
    /// Must be called within a tokio runtime.
    #[must_use]
    pub fn start(store: Arc<dyn EventStore>, location: Location) -> Self {
        Self::start_with(store, location.open())
    }

    fn start_with(store: Arc<dyn EventStore>, views: Arc<dyn Views>) -> Self {
        let stopping = CancellationToken::new();
        let stats = Arc::new(Stats::default());
        let worker = Worker::new(store, Arc::clone(&views), Arc::clone(&stats));
        let worker = tokio::spawn(worker.run(stopping.clone()));
        Self {
            views,
            pages: Semaphore::new(PAGES_AT_ONCE_MAX),
            stats,
            stopping,
            worker: tokio::sync::Mutex::new(Some(worker)),
        }
    }

    /// Shows behind `after`, in order of their ids. What was just reserved may not be counted yet.
    ///
    /// # Errors
    /// [`Error::Database`].
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn page(
        &self,
        after: Option<Uuid>,
        limit: u16,
    ) -> Result<Vec<AvailableSeats>, Error> {
        // It is never closed.
        let _place = self.pages.acquire().await.ok();
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
        if let Some(worker) = self.worker.lock().await.take()
            && let Err(error) = worker.await
        {
            tracing::error!(%error, "the read model broke down");
        }
    }
}

#[cfg(test)]
mod tests;
