//! What a database must offer so that the append pipeline, the tail hub and the reads can be built on it.
//!
//! An application never calls this. `gesta-store` makes an [`EventStore`](crate::EventStore) out of any [`Backend`].
//!
//! The heart is the *chained insert* ([`LogWriter::submit`]): a batch is stored only if the row that
//! its author believes to be the last of the log exists and *is* the last. That row is named by its
//! position and its [`WriterEpoch`], a random number of the writer that stored it. An event id
//! would not do: clients choose it, and a retry through another server can put the same id at the same position.
//!
//! Streams and event types are interned: the row id of a stream (or type) is the position of the first event that used
//! it, so ids need no counter, and a batch that missed leaves none.

mod history;
mod virtual_index;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{BoxFuture, try_join_all};
use futures::stream::BoxStream;
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
pub use virtual_index::*;

/// Random number of one [`LogWriter`], stored with each row that it wrote. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct WriterEpoch(pub i64);

/// Id of an interned stream name or event type within one log: the position of the first event that used it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct RowId(pub u64);

/// The last row of a log, by what identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogEnd {
    /// Its position; 0 if the log is empty.
    pub position: Position,
    /// The writer of it.
    pub writer: WriterEpoch,
    /// When it was stored.
    pub created: Timestamp,
}

impl LogEnd {
    /// What a database that is one of several of its store gives as the end of a log that is closed in it: the log is
    /// open in another one, or is just being moved. No row of a log has this position.
    pub const CLOSED: LogEnd = LogEnd {
        position: Position(i64::MAX as u64),
        writer: WriterEpoch(0),
        created: Timestamp(0),
    };
}

/// One event, ready to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its place in the log: predecessor + 1, + 2, ….
    pub position: Position,
    /// Its stream's name.
    pub stream: StreamId,
    /// Its interned stream.
    pub stream_row: RowId,
    /// Its number in the stream.
    pub revision: Revision,
    /// Its identity.
    pub id: EventId,
    /// Its type's name.
    pub event_type: EventType,
    /// Its interned type.
    pub type_row: RowId,
    /// When it is stored.
    pub created: Timestamp,
    /// What `data` is.
    pub content_type: ContentType,
    /// The payload.
    pub data: Bytes,
    /// The payload as [`Backend::pack`] made it, if it did.
    pub packed: Option<Bytes>,
    /// Data about the event.
    pub metadata: Bytes,
    /// Its labels.
    pub tags: Tags,
}

impl Row {
    /// The event as readers will see it.
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
    /// The log.
    pub log: LogId,
    /// The row that must be the last of the log.
    pub after: LogEnd,
    /// The events, in order of position. Empty: store nothing, only confirm that `after` is the last row.
    pub rows: Vec<Row>,
    /// Streams that this batch creates, with the row id that they get.
    pub new_streams: Vec<(RowId, StreamId)>,
    /// Event types that this batch uses for the first time in this log.
    pub new_types: Vec<(RowId, EventType)>,
}

/// What became of a batch.
#[derive(Clone, Debug)]
pub enum BatchOutcome {
    /// Stored and durable (or, without rows, confirmed).
    Committed,
    /// Nothing stored: another row is the last of the log.
    Missed,
    /// Nothing stored: the database refuses what the batch contains. Splitting it finds the offending append.
    Refused(Error),
    /// Nothing stored, for a passing reason (deadlock, serialization, lock time-out, full disk). Sending it again may
    /// work.
    Failed(Error),
    /// The connection died or durability is in doubt: it may be stored, may yet be stored, or not. The writer must be
    /// discarded.
    Unknown(Error),
}

/// A handle that appends to one log. Dropping it gives it up; what it has submitted may still be stored.
///
/// A backend may let the handles of several logs share a connection. Each has an epoch of its own all the same: an epoch
/// belongs to one author, who decides nothing again before all that he has submitted is answered.
pub trait LogWriter: Send {
    /// Its number, stored with the rows it writes.
    fn epoch(&self) -> WriterEpoch;

    /// True if what is submitted here gathers with the batches of other logs, and leaves when the backend decides. Then
    /// a small batch costs no statement of its own, and there is nothing to gain by holding it back.
    fn is_gathered(&self) -> bool;

    /// Sends a batch. Batches of a handle reach the database in the order of these calls, whatever order the futures are
    /// polled in; up to [`Capabilities::batches_in_flight_max`] may be pending. Several batches, those of other handles
    /// among them, may share a transaction; each is stored, misses or is refused by itself. If one does not commit, every
    /// later one that was chained to it misses.
    ///
    /// The answer of a batch must not be lost by dropping the future: the work goes on.
    fn submit(&mut self, batch: Arc<Batch>) -> BoxFuture<'static, BatchOutcome>;
}

/// Observes every batch that this process has committed, in order of position, right after the commit.
pub trait CommitObserver: Send + Sync + 'static {
    /// The rows of `batch` are durable. Must not block.
    fn committed(&self, batch: &Arc<Batch>);

    /// Asks the observer to read the end of the log, which may hold rows of a batch whose outcome was not known at
    /// first. Must not block.
    fn read_log_end(&self, log: LogId);
}

/// Who waits for a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// An append: it must not wait for reads that are slow or hang.
    Append,
    /// Anybody else.
    Read,
}

/// Streams and types to look up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LoadRequest {
    /// Streams; none of them a metadata stream of another stream.
    pub streams: Vec<StreamId>,
    /// Event types.
    pub types: Vec<EventType>,
}

/// The answer to a [`LoadRequest`], all as of one snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// The end of the log in that snapshot.
    pub end: LogEnd,
    /// One entry per stream, in the order of the request.
    pub streams: Vec<LoadedStream>,
    /// One entry per type, in the order of the request; `None` if the log has never used it.
    pub types: Vec<Option<RowId>>,
}

/// What the database knows of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LoadedStream {
    /// Its last event; `None` if it has none.
    pub head: Option<StreamHead>,
    /// The last event of its metadata stream.
    pub meta: Option<LoadedMeta>,
}

/// The last event of a stream. After scavenging it may no longer be stored; the numbers stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamHead {
    /// The interned stream.
    pub row: RowId,
    /// Revision of the last event.
    pub last: Revision,
    /// Position of the last event.
    pub position: Position,
    /// Id of the last event; `None` if it is no longer stored. A head of a metadata stream may lack it.
    pub id: Option<EventId>,
}

/// The last event of a metadata stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadedMeta {
    /// Where it is.
    pub head: StreamHead,
    /// Its data: the user's document.
    pub data: Bytes,
    /// Its metadata: the system's state.
    pub metadata: Bytes,
}

/// Which events to look up, without their payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventLookup {
    /// Events of a stream, `count` from revision `first` on.
    Revisions {
        /// The stream.
        stream: RowId,
        /// First revision.
        first: Revision,
        /// How many.
        count: usize,
    },
    /// Events at these positions.
    Positions(Vec<Position>),
    /// Events with one of these pairs of stream and id, at or below position `until`, that are after position `after`
    /// *or* not older than `created_from`.
    Ids {
        /// The streams, each with an id.
        events: Vec<(RowId, EventId)>,
        /// Looks up only events after this position, unless `created_from` includes them.
        after: Position,
        /// Looks up also events that are not older than this, wherever they are.
        created_from: Timestamp,
        /// Looks up only events up to this position, in any case.
        until: Position,
    },
    /// The next `limit` events of the log after position `position`.
    After {
        /// Looks up events after this position.
        position: Position,
        /// Looks up at most so many events.
        limit: usize,
    },
}

/// An event without its payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventRef {
    /// Its position.
    pub position: Position,
    /// The writer of it.
    pub writer: WriterEpoch,
    /// When it was stored.
    pub created: Timestamp,
    /// Its stream.
    pub stream: StreamId,
    /// Its interned stream.
    pub stream_row: RowId,
    /// Its revision.
    pub revision: Revision,
    /// Its identity.
    pub id: EventId,
    /// Its type.
    pub event_type: EventType,
    /// Its interned type.
    pub type_row: RowId,
}

impl EventRef {
    /// What identifies it, and where it is.
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
    /// Its interned stream.
    pub stream: RowId,
    /// Its identity.
    pub id: EventId,
    /// Its position.
    pub position: Position,
    /// When it was stored.
    pub created: Timestamp,
}

/// A part of one stream to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamSlice {
    /// The log.
    pub log: LogId,
    /// The stream's name.
    pub stream: StreamId,
    /// The interned stream.
    pub stream_row: RowId,
    /// Lowest revision wanted, included.
    pub from: Revision,
    /// Highest revision wanted, included.
    pub to: Revision,
    /// Only events not older than this.
    pub created_from: Option<Timestamp>,
    /// Which way.
    pub direction: Direction,
    /// Most events wanted.
    pub limit: usize,
}

/// A part of one log to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSlice {
    /// The log.
    pub log: LogId,
    /// Only positions above this.
    pub after: Position,
    /// Highest position wanted, included.
    pub to: Position,
    /// Which way.
    pub direction: Direction,
    /// Which events.
    pub filter: Filter,
    /// Most events wanted.
    pub limit: usize,
}

/// Events of a slice, in the direction asked for, without a gap among those that match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rows {
    /// The events.
    pub events: Vec<RecordedEvent>,
    /// True if the slice holds no further matching event; false if `limit` or
    /// [`PAGE_BYTES_MAX`](crate::limits::PAGE_BYTES_MAX) ended the page (then it holds at least one event).
    pub complete: bool,
    /// The writer of the last of the events, if this is a part of a log and the backend tells it.
    pub last_writer: Option<WriterEpoch>,
}

/// A message between processes that share a store. Only a hint: it may be lost or come late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// Events up to `position` were committed.
    Appended {
        /// To this log.
        log: LogId,
        /// Up to here.
        position: Position,
    },
    /// A process whose batches miss asks the others to send nothing to the log for a while.
    GiveWay {
        /// The log.
        log: LogId,
        /// The process that asks: a random number.
        by: Uuid,
        /// For so long. Zero: it has committed, and the others may go on.
        needed: Duration,
        /// How long it has been waiting.
        waited: Duration,
    },
    /// Messages may have been lost: look for yourself.
    Interrupted,
    /// [`Backend::history`] has changed. Only a wake-up, and only within this process.
    HistoryChanged,
}

/// What a backend tells about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendInfo {
    /// `sqlite`, `postgres`, ….
    pub backend: &'static str,
    /// Version of the engine, for people.
    pub engine: String,
    /// Number of logs.
    pub logs: u16,
    /// How safe an acknowledged append is, as of the last look at the database's settings.
    pub durability: Durability,
    /// What it can do.
    pub capabilities: Capabilities,
}

/// What scavenging one stream removed, or would remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// Number of events.
    pub events: u64,
    /// Size of their data and metadata.
    pub payload_bytes: u64,
}

/// Whether to do it or only to tell what would be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunMode {
    /// Do it.
    Real,
    /// Only tell.
    Dry,
}

/// A database that stores logs.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// What it is, as far as is known now. No I/O.
    fn info(&self) -> Arc<BackendInfo>;

    /// The history that the answers of this backend belong to. No I/O; cheap.
    fn history(&self) -> History;

    /// The smaller form in which this backend wants to store these data, if it has one. Runs in the task of whoever
    /// appends, so that costly work is not done one event after the other in the task that forms batches.
    fn pack(&self, stream: &StreamId, content_type: ContentType, data: &Bytes) -> Option<Bytes>;

    /// Opens a writer of `log`.
    ///
    /// # Errors
    /// `Unavailable`; `Unsupported` if the settings of the database cannot keep the contract.
    async fn open_writer(&self, log: LogId) -> Result<Box<dyn LogWriter>>;

    /// The end of a log, read from the primary.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn log_end(&self, log: LogId, purpose: Purpose) -> Result<LogEnd>;

    /// The ends of all logs in their order, read from the primary, at best in one round trip.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn log_ends(&self, purpose: Purpose) -> Result<Vec<LogEnd>> {
        let logs = (0..self.info().logs).map(LogId);
        try_join_all(logs.map(|log| self.log_end(log, purpose))).await
    }

    /// Looks up streams and types in one snapshot of the primary.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn load(&self, log: LogId, request: LoadRequest, purpose: Purpose) -> Result<Loaded>;

    /// Looks up events without their payload, in order of position.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn lookup(
        &self,
        log: LogId,
        lookup: EventLookup,
        purpose: Purpose,
    ) -> Result<Vec<EventRef>>;

    /// The ids of all events after position `after`, up to `to`, in any order.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn read_ids(&self, log: LogId, after: Position, to: Position) -> Result<Vec<StoredId>>;

    /// Reads a part of one stream.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    async fn read_stream(&self, slice: StreamSlice) -> Result<Rows>;

    /// Reads parts of several streams of one log, all forwards, at best in one round trip; one answer per slice, in
    /// their order.
    ///
    /// Together they hold at most [`PAGE_BYTES_MAX`](crate::limits::PAGE_BYTES_MAX), but at least one event if any
    /// slice holds one; a backend may bound the rows as well. Slices that a bound ended, or that were never reached,
    /// are not `complete` and may hold no event.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    async fn read_streams(&self, log: LogId, slices: Vec<StreamSlice>) -> Result<Vec<Rows>>;

    /// Reads a part of one log.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    async fn read_log(&self, slice: LogSlice) -> Result<Rows>;

    /// Names of streams that start with `prefix` and are greater than `after`, in binary order, at most `limit`.
    /// Names that start with `$` only if `prefix` does.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>>;

    /// Messages of the other processes that share the store; endless. A backend that is not shared gives a stream that
    /// stays silent.
    fn signals(&self) -> BoxStream<'static, Signal>;

    /// Sends a message to the other processes. Best effort.
    async fn send_signal(&self, signal: Signal);

    /// Removes the events of a stream that `visibility` hides, never the last row of the log, and remembers
    /// how far, so that revisions are not reused.
    ///
    /// # Errors
    /// `Unavailable`; `Unsupported` if the retention role is missing.
    async fn remove_hidden(
        &self,
        log: LogId,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Result<Removed>;

    /// The registry of the nodes that share this database, with connections of its own that open at the first use.
    /// `None` if the database serves one process only, so that there is nobody to share the logs with.
    fn registry(&self) -> Option<Arc<dyn Registry>>;

    /// The registries of all databases of the store, each with the leases of the logs that lie in it. None if no other
    /// process may share the store.
    fn registries(&self) -> Vec<Arc<dyn Registry>> {
        self.registry().into_iter().collect()
    }

    /// What is kept for virtual streams; `None` if nothing is.
    fn virtual_index(&self) -> Option<Arc<dyn VirtualIndex>> {
        None
    }

    /// Closes all connections.
    async fn close(&self);
}
