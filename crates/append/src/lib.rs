//! Append pipeline: turns many small appends into few database transactions.
//!
//! Why: one durable commit per append bounds throughput; a batch shares the cost.
//! Invariants: appends of one stream keep their order; a caller is answered only after the commit.
//! Not here: SQL (backend crates), reads, subscriptions.
//!
//! This is the way of an append: `admission` admits it or refuses it; the backend may make its own form of large data,
//! still in the caller's task (`command`); the `sequencer`, a pure core, decides it and forms batches; the `engine`
//! connects the sequencer with the backend, which stores each batch by a chained insert; the caller is answered.

mod admission;
mod command;
mod engine;
mod jobs;
mod reply;
mod sequencer;
mod stats;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt, TryFutureExt};
use gesta_core::backend::{Backend, CommitObserver};
use gesta_core::capacity::{Capacity, Permit};
use gesta_core::{
    Append, Appended, Attempt, Clock, DeleteStream, Deleted, Error, ErrorKind, EventId,
    IdempotencyWindow, KnownEnd, LogId, MetadataSet, Position, Result, SetStreamMetadata,
    Submission, units,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::admission::admit;
use crate::command::{Command, Cost, StreamPart, Wanted};
use crate::engine::{Callers, Parts, Question, Ticket};
use crate::reply::{OwnerReply, Reply};
use crate::stats::Stats;

/// The pure core of a pipeline, for simulations.
#[doc(hidden)]
pub mod core {
    pub use crate::command::{Command, Cost};
    pub use crate::jobs::run as run_job;
    pub use crate::sequencer::job::{Answer, Job, JobId};
    pub use crate::sequencer::{Connected, Input, Output, Sequencer, Setting};
    pub use crate::stats::{Counter, End, Gauge, Stats};
}

pub use crate::admission::Admission;
pub use crate::sequencer::clock::ClockPolicy;
pub use crate::stats::PipelineStats;

/// The size in bytes above which data is packed in a place where a worker of the runtime may be blocked.
const PACKED_IN_PLACE_MAX: usize = 1024 * 1024;
/// The time within which a pipeline must say whether it is ready. Otherwise it counts as not ready.
const READY_ANSWER_MAX: Duration = Duration::from_secs(2);

/// The bounds and times of one pipeline, which serves one log. In the form of serde it has the keys of the section
/// `[append]` of a configuration file; what is skipped there is no setting of users.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "struct Append")]
pub struct Config {
    /// The greatest number of events in one batch. A larger append is sent in a batch of its own.
    pub batch_events_max: usize,
    /// The greatest number of bytes of events in one batch, counted as in [`Cost::bytes`](core::Cost::bytes). A
    /// larger append is sent in a batch of its own.
    #[serde(with = "units::size")]
    pub batch_bytes_max: usize,
    /// The greatest number of events that may wait or be in flight, in all pipelines of the store together. Beyond this
    /// number appends are refused as overloaded.
    pub queue_events_max: usize,
    /// Most bytes that events may hold while they wait or are in flight, with names and tags, and with the backend's
    /// own form of their data. When there is no room for that form, the data are stored as they came.
    #[serde(with = "units::size")]
    pub queue_bytes_max: usize,
    /// The number of streams whose last revision is kept in memory, of all logs together.
    pub streams_cached_max: usize,
    /// The greatest number of names of streams of the log that are kept in memory (about ten bytes each), so that the
    /// first append to a new stream needs no lookup. If the log has more names, or if this is 0, each new stream is
    /// looked up.
    pub names_max: usize,
    /// How many new streams are looked up before the names of all streams are read in the background.
    pub names_listed_after: usize,
    /// The greatest number of newest events that are kept in memory for conditions on all events, of all logs together.
    /// A condition on older ones asks the database.
    #[serde(skip)]
    pub newest_events_max: usize,
    /// The most memory that these events take, in bytes, of all logs together.
    #[serde(skip)]
    pub newest_bytes_max: usize,
    /// How many values of filters are compared with values of events in one turn of a pipeline, about. A condition that
    /// needs more goes on in the next turn, after what has come in meanwhile.
    #[serde(skip)]
    pub compared_values_max: usize,
    /// How long an append may wait for a database that does not answer before the append is given up.
    #[serde(with = "units::span")]
    pub give_up_after: Duration,
    /// How long retries with expected revision `any` are recognised, at least.
    #[serde(with = "units::span")]
    pub idempotency_time: Duration,
    /// Among how many newest positions retries with expected revision `any` are recognised, at least.
    pub idempotency_positions: u64,
    /// What is done about a clock of this machine that is not plausible.
    pub clock: ClockPolicy,
}

impl Config {
    /// Returns the configuration of each pipeline of a store with `logs` logs. The bounds on what is kept in memory are
    /// divided among the pipelines.
    #[must_use]
    pub fn for_each_of(&self, logs: u16) -> Self {
        let part = |whole: usize| whole.div_ceil(usize::from(logs.max(1)));
        Self {
            streams_cached_max: part(self.streams_cached_max),
            names_max: part(self.names_max),
            newest_events_max: part(self.newest_events_max),
            newest_bytes_max: part(self.newest_bytes_max),
            ..self.clone()
        }
    }

    /// Returns among which events retries with expected revision `any` are recognised.
    #[must_use]
    pub fn idempotency(&self) -> IdempotencyWindow {
        IdempotencyWindow {
            time: self.idempotency_time,
            positions: self.idempotency_positions,
        }
    }

    /// Makes the bound on what waits and is in flight, for all pipelines of a store.
    #[must_use]
    pub fn admission(&self) -> Arc<Admission> {
        Admission::new([self.queue_events_max, self.queue_bytes_max])
    }
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
            newest_events_max: 200_000,
            newest_bytes_max: 64 * 1024 * 1024,
            compared_values_max: 50_000,
            give_up_after: Duration::from_secs(30),
            idempotency_time: Duration::from_secs(600),
            idempotency_positions: 100_000,
            clock: ClockPolicy::default(),
        }
    }
}

/// A handle of the pipeline of one log. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Pipeline {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    /// The channel to the engine; `None` once the pipeline shuts down.
    sender: Mutex<Option<mpsc::UnboundedSender<Command<Ticket>>>>,
    questions: mpsc::UnboundedSender<Question>,
    admission: Arc<Admission>,
    /// The count of the commands and events of this pipeline alone. The count has no bound.
    queued: Arc<Capacity<2>>,
    stats: Arc<Stats>,
    /// The task of the engine. The lock is held while the task is awaited, so that every caller of `shutdown` returns
    /// when all commands are answered.
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
    /// Starts the pipeline of `log`, with a bound of its own on what waits. This must be called within a tokio runtime.
    #[must_use]
    pub fn start(
        backend: Arc<dyn Backend>,
        log: LogId,
        config: Config,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn CommitObserver>,
    ) -> Self {
        let admission = config.admission();
        Self::start_sharing(backend, log, config, clock, observer, admission)
    }

    /// Starts the pipeline of `log` as [`start`](Self::start) does, with a bound on what waits that other pipelines
    /// share.
    #[must_use]
    pub fn start_sharing(
        backend: Arc<dyn Backend>,
        log: LogId,
        config: Config,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn CommitObserver>,
        admission: Arc<Admission>,
    ) -> Self {
        let (sender, commands) = mpsc::unbounded_channel();
        let (ask, questions) = mpsc::unbounded_channel();
        let stats = Arc::new(Stats::default());
        let parts = Parts {
            backend: Arc::clone(&backend),
            log,
            config,
            clock,
            observer,
            stats: Arc::clone(&stats),
        };
        let callers = Callers {
            commands,
            questions,
        };
        let task = tokio::spawn(engine::supervise(parts, callers));
        Self {
            shared: Arc::new(Shared {
                backend,
                sender: Mutex::new(Some(sender)),
                questions: ask,
                admission,
                queued: Capacity::new([usize::MAX; 2]),
                stats,
                task: tokio::sync::Mutex::new(Some(task)),
            }),
        }
    }

    /// Appends to streams of this log.
    ///
    /// Appends to one stream are stored in the order of the calls of this method, in whatever order the futures are
    /// polled.
    ///
    /// # Errors
    /// The errors of [`gesta_core::EventStore::append`].
    ///
    /// # Cancel safety
    /// The append goes on even if the future is dropped.
    pub fn append(&self, request: Append) -> impl Future<Output = Result<Appended>> + Send + use<> {
        self.append_as(Attempt::Only, request)
    }

    /// Appends as [`append`](Self::append) does, for a node that may make several attempts.
    ///
    /// # Errors
    /// Those of [`append`](Self::append), and [`Error::overtaken`].
    ///
    /// # Cancel safety
    /// The append goes on even if the future is dropped.
    pub fn append_as(
        &self,
        attempt: Attempt,
        request: Append,
    ) -> impl Future<Output = Result<Appended>> + Send + use<> {
        self.call(command::of_append(request), attempt)
    }

    /// Takes what the owner of a stream of this log has decided, as [`gesta_core::OwnerStore::submit`] does.
    pub fn submit(&self, submission: Submission) {
        let Submission {
            stream,
            after,
            events,
            on_outcome,
        } = submission;
        let reply = Reply::Owner(OwnerReply::new(on_outcome));
        match command::of_owner(stream, after, events) {
            Ok(parts) => self.enqueue(parts.into(), Attempt::Only, reply),
            Err(error) => reply.send(Err(error.during("append"))),
        }
    }

    /// Deletes a stream of this log. `id` is the id of the event that records the delete; a retry with the same id gets
    /// the first answer. Without an id nobody can retry. The order and the cancel safety are those of
    /// [`append`](Self::append).
    ///
    /// # Errors
    /// The errors of [`gesta_core::EventStore::delete_stream`].
    pub fn delete(
        &self,
        request: DeleteStream,
        id: Option<EventId>,
    ) -> impl Future<Output = Result<Deleted>> + Send + use<> {
        self.delete_as(Attempt::Only, request, id)
    }

    /// Deletes a stream as [`delete`](Self::delete) does, for a node that may make several attempts.
    ///
    /// # Errors
    /// Those of [`delete`](Self::delete), and [`Error::overtaken`].
    pub fn delete_as(
        &self,
        attempt: Attempt,
        request: DeleteStream,
        id: Option<EventId>,
    ) -> impl Future<Output = Result<Deleted>> + Send + use<> {
        let deleted = self.call(Ok(vec![command::of_delete(request, id)].into()), attempt);
        deleted.map_ok(|deleted| Deleted {
            log: deleted.log,
            position: deleted.position,
            checkpoint: deleted.checkpoint,
        })
    }

    /// Sets the metadata of a stream of this log. The meaning of `id`, the order and the cancel safety are those of
    /// [`delete`](Self::delete).
    ///
    /// # Errors
    /// The errors of [`gesta_core::EventStore::set_stream_metadata`].
    pub fn set_metadata(
        &self,
        request: SetStreamMetadata,
        id: Option<EventId>,
    ) -> impl Future<Output = Result<MetadataSet>> + Send + use<> {
        self.set_metadata_as(Attempt::Only, request, id)
    }

    /// Sets metadata as [`set_metadata`](Self::set_metadata) does, for a node that may make several attempts.
    ///
    /// # Errors
    /// Those of [`set_metadata`](Self::set_metadata), and [`Error::overtaken`].
    pub fn set_metadata_as(
        &self,
        attempt: Attempt,
        request: SetStreamMetadata,
        id: Option<EventId>,
    ) -> impl Future<Output = Result<MetadataSet>> + Send + use<> {
        let wanted = vec![command::of_set_metadata(request, id)].into();
        let set = self.call(Ok(wanted), attempt);
        set.map_ok(|set| MetadataSet {
            log: set.log,
            position: set.position,
            checkpoint: set.checkpoint,
        })
    }

    /// Returns the last position of the log that this pipeline knows of, or that it was told of. It may be far before
    /// the end of the log; 0 if nothing is known.
    #[must_use]
    pub fn known_end(&self) -> Position {
        let stats = &self.shared.stats;
        stats.known_end().position.max(stats.seen_end.get())
    }

    /// Returns the last position of the log that this pipeline knows of, with the history to which it belongs. It may
    /// be far before the end of the log.
    #[must_use]
    pub fn known_end_in_history(&self) -> KnownEnd {
        self.shared.stats.known_end()
    }

    /// Tells the pipeline that another process has seen the log reach up to this position.
    pub fn hear_of_end(&self, end: KnownEnd) {
        self.shared.stats.hear_of_end(end);
    }

    /// Tells the pipeline that a read has found the log to reach up to this position.
    pub fn heard_of_end(&self, position: Position) {
        self.shared.stats.seen_end.raise(position);
    }

    /// Returns what the pipeline has done since it was started.
    #[must_use]
    pub fn stats(&self) -> PipelineStats {
        self.shared.stats.snapshot(self.shared.queued.taken())
    }

    /// Waits until no command waits or is in flight. Commands that arrive meanwhile are waited for, too.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the pipeline.
    pub async fn idle(&self) {
        self.shared.queued.emptied().await;
    }

    /// Checks whether appends can succeed at present.
    ///
    /// # Errors
    /// `Unavailable` with the reason: commits have failed or are unanswered for some seconds, the connection is lost
    /// and does not come back, the pipeline has failed or does not answer, or it is shut down.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the pipeline.
    pub async fn ready(&self) -> Result<()> {
        let (ask, answer) = oneshot::channel();
        let why = match self.shared.questions.send(Question::Ready(ask)) {
            Ok(()) => match tokio::time::timeout(READY_ANSWER_MAX, answer).await {
                Ok(Ok(None)) => return Ok(()),
                Ok(Ok(Some(why))) => why,
                Ok(Err(_)) => "the store is shutting down".to_owned(),
                Err(_) => "the append pipeline does not answer".to_owned(),
            },
            Err(_) => "the store is shut down".to_owned(),
        };
        Err(Error::unavailable(why))
    }

    /// Prepares for appends after other processes have appended to the log: reads what they have appended, and looks up
    /// the streams of the last events. So the first append neither misses nor waits for that. Returns when this is
    /// done, or cannot be done. It begins with this call, not when the future is polled.
    ///
    /// # Cancel safety
    /// Dropping the future does not end the preparation.
    pub fn prepare(&self) -> impl Future<Output = ()> + Send + use<> {
        let (ask, prepared) = oneshot::channel();
        // A pipeline that has ended prepares nothing.
        let _ = self.shared.questions.send(Question::Prepare(ask));
        prepared.map(drop)
    }

    /// Takes no more commands, waits until all commands are answered, and closes the connection. Later calls get
    /// `Unavailable`.
    ///
    /// A second call that is made before the first has returned, returns when the first does.
    ///
    /// # Errors
    /// `Unavailable` if the pipeline has failed before.
    ///
    /// # Cancel safety
    /// If the future is dropped, the pipeline goes on shutting down. Another call waits for the end.
    pub async fn shutdown(&self) -> Result<()> {
        drop(self.lock_sender().take());
        let mut task = self.shared.task.lock().await;
        let Some(running) = task.as_mut() else {
            return Ok(());
        };
        let ended = running.await;
        *task = None;
        ended.map_err(|error| Error::unavailable("the append pipeline failed").caused_by(error))
    }

    fn call(
        &self,
        wanted: Result<Wanted>,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Appended>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let refused = wanted
            .map(|wanted| self.enqueue(wanted, attempt, Reply::Caller(reply)))
            .err();
        async move {
            match refused {
                Some(error) => Err(error),
                None => answer.await.unwrap_or_else(|_| Err(failed())),
            }
        }
    }

    /// Gives a command to the engine, or refuses the command at once.
    fn enqueue(&self, mut wanted: Wanted, attempt: Attempt, reply: Reply) {
        let cost = command::cost_of(&wanted);
        let mut permit = match admit(&self.shared.admission, cost) {
            Ok(permit) => permit,
            Err(error) => return reply.send(Err(error.during("append"))),
        };
        // There is always room: the bound is the other one.
        let queued = match self.shared.queued.take([1, cost.events]) {
            Ok(queued) => queued,
            Err(_) => return reply.send(Err(closed())),
        };
        let arrived = engine::moment();
        self.pack(&mut wanted.parts, cost);
        hold_packed(&mut permit, &mut wanted.parts);
        let permits = (permit, queued);
        let command = Command::new(Ticket { reply, permits }, wanted, arrived).as_attempt(attempt);
        let refused = match self.lock_sender().as_ref() {
            Some(sender) => sender.send(command).err().map(|refused| refused.0),
            None => Some(command),
        };
        if let Some(command) = refused {
            let Ticket { reply, permits } = command.ticket;
            drop(permits);
            reply.send(Err(closed()));
        }
    }

    /// Lets the backend make its own form of the data. The order of appends to a stream is that of these calls, so the
    /// data is packed here and not in a task of its own. Where packing takes long, the runtime is told that the thread
    /// is blocked.
    fn pack(&self, parts: &mut [StreamPart], cost: Cost) {
        let pack = || {
            for part in parts {
                part.pack(&*self.shared.backend);
            }
        };
        let can_be_told = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        if cost.bytes > PACKED_IN_PLACE_MAX && can_be_told {
            tokio::task::block_in_place(pack);
        } else {
            pack();
        }
    }

    fn lock_sender(
        &self,
    ) -> std::sync::MutexGuard<'_, Option<mpsc::UnboundedSender<Command<Ticket>>>> {
        self.shared
            .sender
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the bytes of the backend's forms of the data, which are held beside the data until the commit. Their size is
/// known only once they are made, when the append is already admitted. If they exceed the bound, they are dropped, and
/// the data is stored as it came.
fn hold_packed(permit: &mut Permit<2>, parts: &mut [StreamPart]) {
    let bytes = parts.iter().map(StreamPart::packed_bytes).sum();
    if permit.grow([0, bytes]).is_err() {
        parts.iter_mut().for_each(|part| part.packed.clear());
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
