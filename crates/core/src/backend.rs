//! A backend is the interface to a database on which the append pipeline, the tail hub and the reads are built.
//!
//! An application never calls this. `gesta-store` makes an [`EventStore`](crate::EventStore) out of any [`Backend`].
//!
//! Appends rest on the *chained insert* ([`LogWriter::submit`]): a batch is stored only if the row that its author
//! believes to be the last of the log exists and *is* the last. That row is named by its position and its
//! [`WriterEpoch`], a random number of the writer that stored it. An event id would not do: clients choose it, and a
//! retry through another server can put the same id at the same position.
//!
//! Streams and event types are interned: the row id of a stream (or type) is the position of the first event that used
//! it. So ids need no counter, and a batch that missed leaves none.

mod history;
mod log_tail;
mod virtual_index;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{BoxFuture, try_join_all};
use futures::stream::{self, BoxStream, StreamExt as _};
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::{ContentType, RecordedEvent, Tags};
use crate::filter::Filter;
use crate::ids::{EventId, EventType, LogId, Position, Revision, StreamId};
use crate::info::{Capabilities, Durability};
use crate::lifecycle::Visibility;
use crate::registry::Registry;
use crate::request::Direction;
pub use history::{CurrentHistory, History};
pub use log_tail::LogTail;
pub use virtual_index::*;

/// Random number of one [`LogWriter`], stored with each row that this writer wrote. It is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct WriterEpoch(pub i64);

/// Id of an interned stream name or event type within one log: the position of the first event that used it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct RowId(pub u64);

/// What a clock showed at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockReading {
    /// The [`uptime`](crate::uptime) of this machine when the clock was asked.
    pub uptime: Duration,
    /// What the clock showed.
    pub shown: Timestamp,
}

impl ClockReading {
    /// Returns what the clock shows at an uptime of this machine, if nobody sets it.
    #[must_use]
    pub fn at(self, uptime: Duration) -> Timestamp {
        let since = uptime.saturating_sub(self.uptime).as_micros();
        let since = i64::try_from(since).unwrap_or(i64::MAX);
        Timestamp(self.shown.0.saturating_add(since))
    }
}

/// What identifies the last row of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogEnd {
    /// Position of the row; 0 if the log is empty.
    pub position: Position,
    /// Epoch of the writer that stored the row.
    pub writer: WriterEpoch,
    /// Time at which the row was stored.
    pub created: Timestamp,
}

impl LogEnd {
    /// The end of a log that is closed in a database: the log is open in another database of the store, or is just
    /// being moved. Only a database that is one of several of its store gives it. No row of a log has this position.
    pub const CLOSED: LogEnd = LogEnd {
        position: Position(i64::MAX as u64),
        writer: WriterEpoch(0),
        created: Timestamp(0),
    };
}

/// One event, ready to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Place of the event in the log: the position of the row before it, plus 1.
    pub position: Position,
    /// Name of the event's stream.
    pub stream: StreamId,
    /// Row id of the event's stream.
    pub stream_row: RowId,
    /// Number of the event in its stream.
    pub revision: Revision,
    /// Identity of the event.
    pub id: EventId,
    /// Name of the event's type.
    pub event_type: EventType,
    /// Row id of the event's type.
    pub type_row: RowId,
    /// Time at which the event is stored.
    pub created: Timestamp,
    /// Kind of `data`.
    pub content_type: ContentType,
    /// Payload of the event, as the client sent it.
    pub data: Bytes,
    /// The payload in the form that [`Backend::pack`] made; `None` if it made none.
    pub packed: Option<Bytes>,
    /// Data about the event; empty if there is none.
    pub metadata: Bytes,
    /// Labels of the event.
    pub tags: Tags,
}

impl Row {
    /// Makes the event that readers will see.
    #[must_use]
    pub fn to_recorded(&self, log: LogId) -> RecordedEvent {
        RecordedEvent {
            stream: self.stream.clone(),
            revision: self.revision,
            log,
            position: self.position,
            id: self.id,
            event_type: self.event_type.clone(),
            created: self.created,
            content_type: self.content_type,
            data: self.data.clone(),
            metadata: self.metadata.clone(),
            tags: self.tags.clone(),
        }
    }
}

/// Appends that are committed together: one statement, one round trip, one commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Log to append to.
    pub log: LogId,
    /// What identifies the row that must be the last of the log.
    pub after: LogEnd,
    /// The events in order of position. Without events the batch stores nothing and only confirms that `after` is the
    /// last row.
    pub rows: Vec<Row>,
    /// Streams that this batch creates, each with the row id that it gets.
    pub new_streams: Vec<(RowId, StreamId)>,
    /// Event types that this batch uses for the first time in this log, each with the row id that it gets.
    pub new_types: Vec<(RowId, EventType)>,
}

/// Outcome of a batch.
#[derive(Clone, Debug)]
pub enum BatchOutcome {
    /// The batch is stored and durable. A batch without rows is confirmed.
    Committed,
    /// Nothing is stored: another row is the last of the log.
    Missed,
    /// Nothing is stored: the database refuses what the batch contains. Splitting the batch finds the offending append.
    Refused(Error),
    /// Nothing is stored, for a passing reason (deadlock, serialization, lock time-out, full disk). Sending the batch
    /// again may succeed.
    Failed(Error),
    /// The connection died or durability is in doubt: the batch is stored, will yet be stored, or will not. The writer
    /// must be discarded.
    Unknown(Error),
}

/// A handle that appends to one log. Dropping it gives the handle up; what it has submitted may still be stored.
///
/// A backend may let the handles of several logs share a connection. Each handle has an epoch of its own all the same:
/// an epoch belongs to one author, who decides nothing again before everything that he has submitted is answered.
pub trait LogWriter: Send {
    /// Returns the number of this handle, which is stored with the rows that it writes.
    fn epoch(&self) -> WriterEpoch;

    /// Returns true if the batches of this handle gather with the batches of other logs and leave when the backend
    /// decides. Then a small batch costs no statement of its own, and holding it back gains nothing.
    fn is_gathered(&self) -> bool;

    /// Sends a batch. Batches of a handle reach the database in the order of these calls, whatever order the futures
    /// are polled in; up to [`Capabilities::batches_in_flight_max`] may be pending. Several batches, those of other
    /// handles among them, may share a transaction; each is stored, misses or is refused by itself. If one does not
    /// commit, every later one that was chained to it misses.
    ///
    /// Dropping the future does not stop the batch, so the caller must keep the future to learn the outcome.
    fn submit(&mut self, batch: Arc<Batch>) -> BoxFuture<'static, BatchOutcome>;
}

/// Observes every batch that this process has committed, in order of position, right after the commit.
pub trait CommitObserver: Send + Sync + 'static {
    /// Tells the observer that the rows of `batch` are durable. The observer must not block.
    fn committed(&self, batch: &Arc<Batch>);

    /// Asks the observer to read the end of the log, which may hold rows of a batch whose outcome was not known at
    /// first. The observer must not block.
    fn read_log_end(&self, log: LogId);
}

/// Who waits for a read of the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// An append waits. Its read must not wait for reads that are slow or hang.
    Append,
    /// Something other than an append waits.
    Read,
}

/// Request to look up streams and types.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LoadRequest {
    /// Streams to look up. None of them may be the metadata stream of another stream.
    pub streams: Vec<StreamId>,
    /// Event types to look up.
    pub types: Vec<EventType>,
}

/// The answer to a [`LoadRequest`]. All of it is of one snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// End of the log in that snapshot.
    pub end: LogEnd,
    /// One entry per stream of the request, in its order.
    pub streams: Vec<LoadedStream>,
    /// One entry per type of the request, in its order; `None` if the log has never used the type.
    pub types: Vec<Option<RowId>>,
}

/// What the database holds about a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LoadedStream {
    /// Last event of the stream; `None` if the stream has none.
    pub head: Option<StreamHead>,
    /// Last event of the metadata stream; `None` if the stream has no metadata.
    pub meta: Option<LoadedMeta>,
}

/// The last event of a stream. After scavenging the event may no longer be stored; its numbers stay valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamHead {
    /// Row id of the stream.
    pub row: RowId,
    /// Revision of the last event.
    pub last: Revision,
    /// Position of the last event.
    pub position: Position,
    /// Id of the last event; `None` if the event is no longer stored. The head of a metadata stream may lack it.
    pub id: Option<EventId>,
}

/// The last event of a metadata stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadedMeta {
    /// Revision, position and id of the event.
    pub head: StreamHead,
    /// Data of the event: the user's metadata document.
    pub data: Bytes,
    /// Metadata of the event: the state that the store keeps about the stream.
    pub metadata: Bytes,
}

/// Request to look up events without their payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventLookup {
    /// Looks up `count` events of a stream from revision `first` on.
    Revisions {
        /// Row id of the stream.
        stream: RowId,
        /// Revision of the first event.
        first: Revision,
        /// Number of events to look up.
        count: usize,
    },
    /// Looks up the events at these positions.
    Positions(Vec<Position>),
    /// Looks up events with one of these pairs of stream and id, at position `until` or before it, that are after
    /// position `after` *or* not older than `created_from`.
    Ids {
        /// Pairs of the row id of a stream and the id of an event.
        events: Vec<(RowId, EventId)>,
        /// Looks up only events after this position, unless `created_from` includes them.
        after: Position,
        /// Looks up also events that were not stored before this time, wherever they are.
        created_from: Timestamp,
        /// Looks up only events up to this position, in any case.
        until: Position,
    },
    /// Looks up the next `limit` events of the log after position `position`.
    After {
        /// Looks up events after this position.
        position: Position,
        /// Looks up at most this number of events.
        limit: usize,
    },
}

/// An event without its payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventRef {
    /// Position of the event.
    pub position: Position,
    /// Epoch of the writer that stored the event.
    pub writer: WriterEpoch,
    /// Time at which the event was stored.
    pub created: Timestamp,
    /// Name of the event's stream.
    pub stream: StreamId,
    /// Row id of the event's stream.
    pub stream_row: RowId,
    /// Number of the event in its stream.
    pub revision: Revision,
    /// Identity of the event.
    pub id: EventId,
    /// Name of the event's type.
    pub event_type: EventType,
    /// Row id of the event's type.
    pub type_row: RowId,
}

impl EventRef {
    /// Returns what identifies the event, and where it is.
    #[must_use]
    pub fn stored_id(&self) -> StoredId {
        StoredId {
            stream: self.stream_row,
            id: self.id,
            position: self.position,
            created: self.created,
        }
    }
}

/// The identity of a stored event, and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredId {
    /// Row id of the event's stream.
    pub stream: RowId,
    /// Identity of the event.
    pub id: EventId,
    /// Position of the event.
    pub position: Position,
    /// Time at which the event was stored.
    pub created: Timestamp,
}

/// Request to read a part of one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSlice {
    /// Log of the stream.
    pub log: LogId,
    /// Name of the stream.
    pub stream: StreamId,
    /// Row id of the stream.
    pub stream_row: RowId,
    /// Lowest revision wanted, included.
    pub from: Revision,
    /// Highest revision wanted, included.
    pub to: Revision,
    /// Time before which events are left out; `None` leaves out none.
    pub created_from: Option<Timestamp>,
    /// Direction of the read.
    pub direction: Direction,
    /// Largest number of events in the answer.
    pub limit: usize,
}

/// Request to read a part of one log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSlice {
    /// Log to read.
    pub log: LogId,
    /// Position after which events are wanted, not included.
    pub after: Position,
    /// Highest position wanted, included.
    pub to: Position,
    /// Direction of the read.
    pub direction: Direction,
    /// Conditions that the events must meet.
    pub filter: Filter,
    /// Largest number of events in the answer.
    pub limit: usize,
}

/// Events of a slice, in the direction asked for. No matching event between the first and the last is left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rows {
    /// The events, in the direction asked for.
    pub events: Vec<RecordedEvent>,
    /// True if the slice holds no further matching event. False if `limit` or
    /// [`PAGE_BYTES_MAX`](crate::limits::PAGE_BYTES_MAX) ended the page, which then holds at least one event.
    pub complete: bool,
    /// Epoch of the writer of the last of the events, if this is a part of a log and the backend tells it.
    pub last_writer: Option<WriterEpoch>,
}

/// A message between processes that share a store. It is only a hint: it may be lost or come late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// Events up to `position` were committed.
    Appended {
        /// Log that the events were appended to.
        log: LogId,
        /// Position of the last event that was committed.
        position: Position,
    },
    /// A process whose batches miss asks the others to send nothing to the log for a while.
    GiveWay {
        /// Log to which the others shall send nothing.
        log: LogId,
        /// Random number of the process that asks.
        by: Uuid,
        /// Time for which the others shall send nothing. Zero means that the process has committed and the others may
        /// go on.
        needed: Duration,
        /// Time that the process has been waiting.
        waited: Duration,
    },
    /// Messages may have been lost. The receiver must ask the database for what the messages would have told it.
    Interrupted,
    /// The result of [`Backend::history`] has changed. This signal is a wake-up and never leaves the process.
    HistoryChanged,
}

/// Which messages of other processes a listener is told. [`Signal::Interrupted`] and [`Signal::HistoryChanged`] are for
/// all listeners.
///
/// Why: each message wakes each of its listeners, and a store has a listener for each log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topic {
    /// [`Signal::Appended`], of all logs.
    Appends,
    /// [`Signal::GiveWay`], of this log.
    Requests(LogId),
}

impl Topic {
    /// Returns whether a listener to this topic is told the signal.
    #[must_use]
    pub fn includes(self, signal: Signal) -> bool {
        match (signal, self) {
            (Signal::Interrupted | Signal::HistoryChanged, _)
            | (Signal::Appended { .. }, Self::Appends) => true,
            (Signal::GiveWay { log, .. }, Self::Requests(own)) => log == own,
            _ => false,
        }
    }
}

/// What a backend tells about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendInfo {
    /// Kind of the backend: `sqlite`, `postgres`, ….
    pub backend: &'static str,
    /// Version of the database engine, for people.
    pub engine: String,
    /// Number of logs of the store.
    pub logs: u16,
    /// Durability of an acknowledged append, as of the last look at the settings of the database.
    pub durability: Durability,
    /// What the backend can do beside the contract.
    pub capabilities: Capabilities,
}

/// What scavenging one stream removed, or would remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// Number of events removed.
    pub events: u64,
    /// Size of their data and metadata, in bytes.
    pub payload_bytes: u64,
}

/// Whether a change is made or only reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunMode {
    /// Makes the change.
    Real,
    /// Changes nothing and reports what would be changed.
    Dry,
}

/// A database that stores logs.
///
/// # Cancel safety
/// Dropping the future of a read changes nothing. Dropping that of [`remove_hidden`](Self::remove_hidden) may end the
/// removal half way; what was removed stays removed.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Returns what the backend is, as far as is known now. It does no I/O.
    fn info(&self) -> Arc<BackendInfo>;

    /// Returns the history to which the answers of this backend belong. It does no I/O and is cheap.
    fn history(&self) -> History;

    /// Returns the clock of the database in which a log lies, as it was read last; `None` if the database has no clock
    /// of its own. It does no I/O and is cheap.
    fn clock(&self, _log: LogId) -> Option<ClockReading> {
        None
    }

    /// Returns why the database takes no appends to a log at present, as far as is known without asking; `None` if
    /// nothing is known. It does no I/O and is cheap.
    fn refuses_appends(&self, _log: LogId) -> Option<String> {
        None
    }

    /// Returns the smaller form in which this backend wants to store these data, or `None` if it has none. It runs in
    /// the task that appends, so that costly work is not done one event after the other in the task that forms batches.
    fn pack(&self, stream: &StreamId, content_type: ContentType, data: &Bytes) -> Option<Bytes>;

    /// Opens a writer of `log`.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Unsupported` if the settings of the database cannot keep the
    /// contract.
    async fn open_writer(&self, log: LogId) -> Result<Box<dyn LogWriter>>;

    /// Returns why appends cannot succeed, as far as the backend knows without asking a database: the place where the
    /// data lie has gone, or can only be read. It is quick.
    ///
    /// # Errors
    /// `Unavailable` or `Unsupported`, with what to do.
    fn ready(&self) -> Result<()>;

    /// Reads the end of a log from the primary.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn log_end(&self, log: LogId, purpose: Purpose) -> Result<LogEnd>;

    /// Reads the ends of all logs from the primary, at best in one round trip. They are in the order of the logs.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn log_ends(&self, purpose: Purpose) -> Result<Vec<LogEnd>> {
        let logs = (0..self.info().logs).map(LogId);
        try_join_all(logs.map(|log| self.log_end(log, purpose))).await
    }

    /// Reads the end of each log from the primary, and tells of each log by itself, as soon as it is known: if the logs
    /// lie in several databases, one that is away or slow holds up only the ends of its own logs. Every log comes once,
    /// in any order. The ends are not all of one moment: no checkpoint may be made of them.
    fn each_log_end(&self, purpose: Purpose) -> BoxStream<'_, (LogId, Result<LogEnd>)> {
        let all = async move {
            let ends = self.log_ends(purpose).await;
            stream::iter(each_by_itself(self.info().logs, ends))
        };
        stream::once(all).flatten().boxed()
    }

    /// Looks up streams and types in one snapshot of the primary.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn load(&self, log: LogId, request: LoadRequest, purpose: Purpose) -> Result<Loaded>;

    /// Looks up events without their payload. They are in order of position.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn lookup(
        &self,
        log: LogId,
        lookup: EventLookup,
        purpose: Purpose,
    ) -> Result<Vec<EventRef>>;

    /// Reads the ids of all events after position `after`, up to position `to`, in any order.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn read_ids(&self, log: LogId, after: Position, to: Position) -> Result<Vec<StoredId>>;

    /// Reads a part of one stream.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    async fn read_stream(&self, slice: StreamSlice) -> Result<Rows>;

    /// Reads parts of several streams of one log, all forwards, at best in one round trip. There is one answer per
    /// slice, in their order.
    ///
    /// Together the answers hold at most [`PAGE_BYTES_MAX`](crate::limits::PAGE_BYTES_MAX), but at least one event if
    /// any slice holds one; a backend may bound the rows as well. Slices that a bound ended, or that were never
    /// reached, are not `complete` and may hold no event.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    async fn read_streams(&self, log: LogId, slices: Vec<StreamSlice>) -> Result<Vec<Rows>>;

    /// Reads a part of one log.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    async fn read_log(&self, slice: LogSlice) -> Result<Rows>;

    /// Reads what follows a position of a log, forwards.
    ///
    /// The reads of several logs may share a statement, and a backend may hold them back for some milliseconds so that
    /// they do. Therefore an answer that is not `complete` may hold no event here: the events of other logs have filled
    /// the page.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`; an error that [`is_log_closed`](Error::is_log_closed) if the database is one of
    /// several of its store, the log is closed in it, and the answer would have come to the end of the log.
    async fn read_tail(&self, tail: LogTail) -> Result<Rows>;

    /// Lists at most `limit` names of streams that start with `prefix` and are greater than `after`, in binary order.
    /// Names that start with `$` are listed only if `prefix` starts with `$`.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer.
    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>>;

    /// Returns an endless stream of the messages about `topic` of the other processes that share the store. A backend
    /// that is not shared gives a stream that never yields.
    fn signals(&self, topic: Topic) -> BoxStream<'static, Signal>;

    /// Sends a message to the other processes, or queues it. What cannot be sent is tried again. It is lost if the
    /// process dies before, or if the database is away when the backend is closed.
    async fn send_signal(&self, signal: Signal);

    /// Removes the events of a stream that `visibility` hides, but never the last row of the log. It stores up to which
    /// revision it removed, so that revisions are not used again.
    ///
    /// # Errors
    /// `Unavailable` if the database does not answer; `Unsupported` if the retention role is missing.
    async fn remove_hidden(
        &self,
        log: LogId,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Result<Removed>;

    /// Returns the registry of the nodes that share this database. The registry has connections of its own, which open
    /// at the first use. Returns `None` if the database serves one process only.
    fn registry(&self) -> Option<Arc<dyn Registry>>;

    /// Returns the registries of all databases of the store, each with the leases of the logs that lie in its database.
    /// The list is empty if no other process may share the store.
    fn registries(&self) -> Vec<Arc<dyn Registry>> {
        self.registry().into_iter().collect()
    }

    /// Returns what is kept for virtual streams; `None` if nothing is.
    fn virtual_index(&self) -> Option<Arc<dyn VirtualIndex>> {
        None
    }

    /// Closes all connections. Messages that are queued are sent before, if the database takes them soon.
    async fn close(&self);
}

/// Tells of each log by itself what was asked for all logs together. If that failed, the end of no log is known.
fn each_by_itself(logs: u16, ends: Result<Vec<LogEnd>>) -> Vec<(LogId, Result<LogEnd>)> {
    let logs = (0..logs).map(LogId);
    match ends {
        Ok(ends) => logs.zip(ends.into_iter().map(Ok)).collect(),
        Err(error) => logs.map(|log| (log, Err(error.clone()))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every log comes once, also if no end is known.
    #[test]
    fn ends_that_were_asked_for_together_are_told_of_each_log() {
        let logs = [0, 1, 2].map(LogId);
        let end = |position| LogEnd {
            position: Position(position),
            ..LogEnd::default()
        };
        let ends = [5, 0, 7].map(end);
        let each = each_by_itself(3, Ok(ends.to_vec()));
        let known = each
            .into_iter()
            .map(|(log, end)| (log, end.ok()))
            .collect::<Vec<_>>();
        let expected = [0, 1, 2].map(|log| (logs[log], Some(ends[log])));
        assert_eq!(known, expected);
        let failed = each_by_itself(3, Err(Error::unavailable("away")));
        let failed = failed.into_iter().filter(|(_, end)| end.is_err());
        assert_eq!(failed.map(|(log, _)| log).collect::<Vec<_>>(), logs);
    }
}
