//! Append pipeline: turns many small appends into few database transactions.
//!
//! Why: one durable commit per append bounds throughput; a batch shares the cost.
//! Invariants: appends of one stream keep their order; a caller is answered only after the commit.
//! Not here: SQL (backend crates), reads, subscriptions.
//!
//! The life of an append: `admission` lets it in or refuses it; the backend may make its own form of large data, still in
//! the caller's task (`command`); the `sequencer` decides it against what
//! `heads` knows (`judge`), or looks up what it does not know; it becomes rows of a `forming` batch; the
//! backend stores the batch by a chained insert; the caller is answered. `recovery` is for everything else.

mod admission;
mod command;
mod deciding;
mod forming;
mod heads;
mod judge;
mod landed;
mod lookup;
mod names;
mod pace;
mod recent;
mod recovery;
mod sequencer;
mod stats;
mod turns;
mod waiting;
mod warm_up;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gesta_core::backend::{Backend, Batch};
use gesta_core::{
    Append, Appended, Clock, DeleteStream, Deleted, Error, ErrorKind, IdempotencyWindow, LogId,
    Result, SetStreamMetadata, Submission,
};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::admission::Admission;
use crate::command::{Command, OwnerReply, Part, Reply};
use crate::sequencer::Sequencer;
use crate::stats::Stats;

pub use crate::stats::PipelineStats;

/// Bounds and times of one pipeline (one log).
#[derive(Debug, Clone)]
pub struct Config {
    /// Most events in one batch; an append larger than this travels alone.
    pub batch_events_max: usize,
    /// Most bytes of data and metadata in one batch; an append larger than this travels alone.
    pub batch_bytes_max: usize,
    /// Most events that may wait or be in flight; beyond, appends are refused as overloaded.
    pub queue_events_max: usize,
    /// Most bytes of data and metadata that may wait or be in flight; a backend's own form of them comes on top.
    pub queue_bytes_max: usize,
    /// Streams whose last revision is kept in memory.
    pub streams_cached_max: usize,
    /// Most names of streams of the log kept in memory (about ten bytes each), so that the first append to a new stream needs no
    /// look at the database. If it has more, each of them is looked up. 0: always.
    pub names_max: usize,
    /// How many new streams are looked up before the names of all streams are read, in the background.
    pub names_listed_after: usize,
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
            names_max: 4_000_000,
            names_listed_after: 64,
            give_up_after: Duration::from_secs(30),
            idempotency: IdempotencyWindow {
                time: Duration::from_secs(600),
                positions: 100_000,
            },
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
pub struct Pipeline {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    /// `None` once the pipeline shuts down.
    sender: Mutex<Option<mpsc::UnboundedSender<Command>>>,
    sequence: AtomicU64,
    admission: Arc<Admission>,
    stats: Arc<Stats>,
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("admission", &self.admission)
            .finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Starts the pipeline of `log`. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(
        backend: Arc<dyn Backend>,
        log: LogId,
        config: Config,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn CommitObserver>,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let stats = Arc::new(Stats::default());
        let admission = Admission::new(config.queue_events_max, config.queue_bytes_max);
        let sequencer = Sequencer::new(
            Arc::clone(&backend),
            log,
            config,
            clock,
            observer,
            Arc::clone(&stats),
            receiver,
        );
        let task = tokio::spawn(sequencer.run());
        Self {
            shared: Arc::new(Shared {
                backend,
                sender: Mutex::new(Some(sender)),
                sequence: AtomicU64::new(0),
                admission,
                stats,
                task: tokio::sync::Mutex::new(Some(task)),
            }),
        }
    }

    /// Appends to streams of this log.
    ///
    /// Appends of one stream are stored in the order in which this method was first polled.
    ///
    /// # Errors
    /// As [`gesta_core::EventStore::append`].
    ///
    /// # Cancel safety
    /// Once polled, the append goes on whether or not the future lives.
    pub async fn append(&self, request: Append) -> Result<Appended> {
        self.call(command::of_append(request)?).await
    }

    /// Takes what the owner of a stream of this log has decided, as [`gesta_core::OwnerStore::submit`].
    pub fn submit(&self, submission: Submission) {
        let Submission {
            stream,
            after,
            events,
            on_outcome,
        } = submission;
        let reply = Reply::Owner(OwnerReply::new(on_outcome));
        match command::of_owner(stream, after, events) {
            Ok(parts) => self.enqueue(parts, reply),
            Err(error) => reply.send(Err(error.during("append"))),
        }
    }

    /// Deletes a stream of this log.
    ///
    /// # Errors
    /// As [`gesta_core::EventStore::delete_stream`].
    pub async fn delete(&self, request: DeleteStream) -> Result<Deleted> {
        self.call(vec![command::of_delete(request)])
            .await
            .map(deleted)
    }

    /// Sets the metadata of a stream of this log.
    ///
    /// # Errors
    /// As [`gesta_core::EventStore::set_stream_metadata`].
    pub async fn set_metadata(&self, request: SetStreamMetadata) -> Result<Deleted> {
        self.call(vec![command::of_set_metadata(request)])
            .await
            .map(deleted)
    }

    /// What the pipeline has done so far.
    #[must_use]
    pub fn stats(&self) -> PipelineStats {
        self.shared
            .stats
            .snapshot(self.shared.admission.events() as u64)
    }

    /// Whether appends can succeed now, as far as the pipeline knows without asking the database.
    ///
    /// # Errors
    /// `Unavailable` with the reason if the pipeline is shut down, or its task has ended.
    pub fn ready(&self) -> Result<()> {
        match self.lock_sender().as_ref() {
            None => Err(Error::unavailable("the store is shutting down")),
            Some(sender) if sender.is_closed() => {
                Err(Error::unavailable("the append pipeline failed"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Lets what waits finish, then closes the connection. Later calls get `Unavailable`.
    ///
    /// # Errors
    /// `Unavailable` if the pipeline has failed before.
    pub async fn shutdown(&self) -> Result<()> {
        drop(self.lock_sender().take());
        let task = self.shared.task.lock().await.take();
        match task {
            Some(task) => task
                .await
                .map_err(|error| Error::unavailable("the append pipeline failed").caused_by(error)),
            None => Ok(()),
        }
    }

    async fn call(&self, parts: Vec<Part>) -> Result<Appended> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(parts, Reply::Caller(reply));
        answer.await.unwrap_or_else(|_| Err(failed()))
    }

    /// Lets a command in, or refuses it at once.
    fn enqueue(&self, mut parts: Vec<Part>, reply: Reply) {
        let (events, bytes) = command::size_of(&parts);
        let permit = match self.shared.admission.enter(events, bytes) {
            Ok(permit) => permit,
            Err(error) => return reply.send(Err(error.during("append"))),
        };
        let arrived = Instant::now();
        for part in &mut parts {
            part.pack(&*self.shared.backend);
        }
        // Numbering and sending under one lock keep the numbers in the order of the channel.
        let guard = self.lock_sender();
        let Some(sender) = guard.as_ref() else {
            drop(guard);
            return reply.send(Err(closed()));
        };
        let command = Command {
            sequence: self.shared.sequence.fetch_add(1, Ordering::Relaxed),
            parts,
            reply,
            permit,
            arrived,
            lost_behind: None,
            registered: false,
            rechecked: false,
        };
        let refused = sender.send(command);
        drop(guard);
        if let Err(mpsc::error::SendError(command)) = refused {
            command.reply.send(Err(closed()));
        }
    }

    fn lock_sender(&self) -> std::sync::MutexGuard<'_, Option<mpsc::UnboundedSender<Command>>> {
        self.shared
            .sender
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed() -> Error {
    Error::new(ErrorKind::OutcomeUnknown(
        "the append pipeline failed".into(),
    ))
    .during("append")
}

fn closed() -> Error {
    Error::unavailable("the store is shutting down").during("append")
}

fn deleted(appended: Appended) -> Deleted {
    Deleted {
        log: appended.log,
        position: appended.position,
        checkpoint: appended.checkpoint,
    }
}
