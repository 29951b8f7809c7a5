//! Append pipeline: turns many small appends into few database transactions.
//!
//! Why: one durable commit per append bounds throughput; a batch shares the cost.
//! Invariants: appends of one stream keep their order; a caller is answered only after the commit.
//! Not here: SQL (backend crates), reads, subscriptions.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::backend::{Backend, Batch};
use gesta_core::{Append, Appended, Clock, DeleteStream, Deleted, IdempotencyWindow, LogId, Result, SetStreamMetadata};

/// Bounds and times of one pipeline (one log).
#[derive(Debug, Clone)]
pub struct Config {
    /// Most events in one batch; an append larger than this travels alone.
    pub batch_events_max: usize,
    /// Most bytes of data and metadata in one batch; an append larger than this travels alone.
    pub batch_bytes_max: usize,
    /// Most events that may wait or be in flight; beyond, appends are refused as overloaded.
    pub queue_events_max: usize,
    /// Most bytes that may wait or be in flight.
    pub queue_bytes_max: usize,
    /// Streams whose last revision is kept in memory.
    pub streams_cached_max: usize,
    /// How long an append may wait for a database that does not answer before it is given up.
    pub give_up_after: Duration,
    /// How long retries with expected revision `any` are recognised.
    pub idempotency: IdempotencyWindow,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_events_max: 1_000,
            batch_bytes_max: 8 * 1024 * 1024,
            queue_events_max: 100_000,
            queue_bytes_max: 256 * 1024 * 1024,
            streams_cached_max: 100_000,
            give_up_after: Duration::from_secs(30),
            idempotency: IdempotencyWindow { time: Duration::from_secs(600), positions: 100_000 },
        }
    }
}

/// Is told of every batch that this process has committed, in order of position, right after the commit.
pub trait CommitObserver: Send + Sync + 'static {
    /// The rows of `batch` are durable. Must not block.
    fn committed(&self, batch: &Arc<Batch>);
}

/// Handle of the pipeline of one log. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pipeline {}

impl Pipeline {
    /// Starts the pipeline of `log`. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(
        _backend: Arc<dyn Backend>,
        _log: LogId,
        _config: Config,
        _clock: Arc<dyn Clock>,
        _observer: Arc<dyn CommitObserver>,
    ) -> Self {
        Self {}
    }

    /// Appends to streams of this log.
    ///
    /// # Errors
    /// As [`gesta_core::EventStore::append`].
    pub async fn append(&self, _request: Append) -> Result<Appended> {
        todo!()
    }

    /// Deletes a stream of this log.
    ///
    /// # Errors
    /// As [`gesta_core::EventStore::delete_stream`].
    pub async fn delete(&self, _request: DeleteStream) -> Result<Deleted> {
        todo!()
    }

    /// Sets the metadata of a stream of this log.
    ///
    /// # Errors
    /// As [`gesta_core::EventStore::set_stream_metadata`].
    pub async fn set_metadata(&self, _request: SetStreamMetadata) -> Result<Deleted> {
        todo!()
    }

    /// Lets what waits finish, then closes the connection.
    ///
    /// # Errors
    /// `Unavailable` if the queue could not be drained.
    pub async fn shutdown(&self) -> Result<()> {
        todo!()
    }
}
