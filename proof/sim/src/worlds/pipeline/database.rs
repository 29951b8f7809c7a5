//! A database for schedules: the [tables of the tests](gesta_kit::database), with the state of each stream at any
//! moment, and fail-overs that lose commits.
//!
//! It is stricter than a real database: an insert that would break the contract although its condition holds (a
//! revision used again, a row under the name of another stream) is reported as a violation.
//!
//! Why the faulty store of the test kit is not used: its connections are tasks, whose turns the runtime chooses. Here
//! every answer can be had at once, and the schedule chooses when it is made and when it arrives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use gesta_core::backend::{
    Backend, BackendInfo, Batch, EventLookup, EventRef, History, LoadRequest, Loaded, LogEnd,
    LogSlice, LogTail, LogWriter, Purpose, Removed, RowId, Rows, RunMode, Signal, StoredId,
    StreamSlice, Topic, WriterEpoch,
};
use gesta_core::{
    Capabilities, ContentType, Direction, Durability, Error, EventData, EventId, Filter,
    Incarnation, Lifecycle, LogId, Position, Result, Revision, StreamId, Timestamp, Visibility,
};
use gesta_kit::database::{Log, Moment, Stored};

/// The state of a stream by which claims are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamTruth {
    /// Last revision that readers can see.
    pub visible: Option<Revision>,
    /// Last revision, with deleted events.
    pub last: Option<Revision>,
    /// Id of the last event, whether it was scavenged or not.
    pub last_id: Option<EventId>,
    /// Last revision of the metadata stream.
    pub meta: Option<Revision>,
    /// Revision before which all events were deleted.
    pub deleted_before: Revision,
    /// True if the stream was closed for ever.
    pub is_tombstoned: bool,
    /// True if the metadata hide events.
    pub hides_events: bool,
}

#[derive(Debug, Default)]
struct State {
    log: Log,
    /// Number of the history. It grows with each loss of commits.
    history: u64,
    /// Number of times that rows were removed, or came back.
    scavenges: u64,
    /// Number of the moment. It grows with each change of what is stored.
    moment: u64,
    /// States of each stream, each with the moment from which it was so.
    truths: HashMap<StreamId, Vec<(u64, StreamTruth)>>,
    /// The number of the history and the end of the log, each with the moment from which it was so.
    ends: Vec<(u64, u64, Position)>,
    violations: Vec<String>,
}

/// The database. It is cheap to clone, and all clones are the same database.
#[derive(Debug, Clone, Default)]
pub struct Database {
    state: Arc<Mutex<State>>,
}

impl Database {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out the chained insert: stores the batch if the row that it follows is the last one. Returns true if the
    /// batch is stored.
    pub fn insert(&self, batch: &Batch, writer: WriterEpoch) -> bool {
        let mut state = self.state();
        if !state.log.is_followed_by(batch) {
            return false;
        }
        if let Err(violation) = state.log.check(batch) {
            state.violations.push(violation);
            return false;
        }
        state.log.intern_types(batch);
        // One moment per row: appends of one batch come one after the other, and an answer may rest on what is between
        // two of them.
        for row in &batch.rows {
            let moment = Moment(state.moment);
            state.log.store(row, writer, moment);
            state.advance([row.stream.clone()]);
        }
        true
    }

    /// Appends an event, as a process would that is alone.
    pub fn append(&self, stream: &StreamId, event: EventData, now: Timestamp, writer: WriterEpoch) {
        let batch = self
            .state()
            .log
            .batch_of(LogId(0), stream, vec![event], now);
        self.insert(&batch, writer);
    }

    /// Returns the violations of the contract that were found.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// Returns the number of the present history.
    #[must_use]
    pub fn history(&self) -> u64 {
        self.state().history
    }

    /// Returns the present moment, which grows with every change.
    #[must_use]
    pub fn moment(&self) -> u64 {
        self.state().moment
    }

    /// Returns the end of the log.
    #[must_use]
    pub fn end(&self) -> LogEnd {
        self.state().log.end()
    }

    /// Returns the state of a stream now.
    #[must_use]
    pub fn truth(&self, stream: &StreamId) -> StreamTruth {
        self.state().truth(stream)
    }

    /// Returns true if `is_so` holds for the state of the stream at some moment from `since` on.
    #[must_use]
    pub fn was_ever(
        &self,
        stream: &StreamId,
        since: u64,
        is_so: impl Fn(&StreamTruth) -> bool,
    ) -> bool {
        let state = self.state();
        let nothing = Vec::new();
        let truths = state.truths.get(stream).unwrap_or(&nothing);
        let first = truths.partition_point(|(moment, _)| *moment <= since);
        let before = first
            .checked_sub(1)
            .map_or(StreamTruth::default(), |at| truths[at].1);
        is_so(&before) || truths[first..].iter().any(|(_, truth)| is_so(truth))
    }

    /// Returns true if `is_so` holds for the number of the history and the end of the log at some moment from `since`
    /// on.
    #[must_use]
    pub fn ended_ever(&self, since: u64, is_so: impl Fn(u64, Position) -> bool) -> bool {
        let state = self.state();
        let next = state.ends.partition_point(|(moment, ..)| *moment <= since);
        let first = next.checked_sub(1);
        if first.is_none() && is_so(0, Position::START) {
            return true;
        }
        let mut ends = state.ends[first.unwrap_or(0)..].iter();
        ends.any(|(_, history, end)| is_so(*history, *end))
    }

    /// Returns the ids of the events of a stream, in their order.
    #[must_use]
    pub fn ids_of(&self, stream: &StreamId) -> Vec<EventId> {
        let state = self.state();
        let rows = state.log.rows().iter().map(|stored| &stored.row);
        let of_stream = rows.filter(|row| row.stream == *stream);
        of_stream.map(|row| row.id).collect()
    }

    /// Returns true if `is_so` holds for the state of the stream at a moment.
    #[must_use]
    pub fn was_at(
        &self,
        stream: &StreamId,
        moment: u64,
        is_so: impl Fn(&StreamTruth) -> bool,
    ) -> bool {
        let state = self.state();
        let truths = state.truths.get(stream).map_or(&[][..], Vec::as_slice);
        let next = truths.partition_point(|(since, _)| *since <= moment);
        let truth = next
            .checked_sub(1)
            .map_or(StreamTruth::default(), |at| truths[at].1);
        is_so(&truth)
    }

    /// Shows all rows of the present history, with those that were removed, its number, and the number of times that
    /// rows were removed or came back.
    pub fn look(&self, mut see: impl FnMut(&[Stored], u64, u64)) {
        let state = self.state();
        see(state.log.rows(), state.history, state.scavenges);
    }

    /// Returns all rows of the present history, with those that were removed.
    #[must_use]
    pub fn rows(&self) -> Vec<Stored> {
        self.state().log.rows().to_vec()
    }

    /// Returns a page of the log: the events after `after`, up to `to`, at most `limit`.
    #[must_use]
    pub fn page(&self, after: Position, to: Position, limit: usize) -> Rows {
        let slice = LogSlice {
            log: LogId(0),
            after,
            to,
            direction: Direction::Forwards,
            filter: Filter::ALL,
            limit,
        };
        self.state().log.read_log(&slice, usize::MAX)
    }

    /// Removes the events of a stream up to this revision, but never the last row of the log.
    pub fn scavenge(&self, stream: &StreamId, through: Revision) {
        let mut state = self.state();
        state.scavenges += 1;
        state.log.remove(
            |row| row.stream == *stream && row.revision <= through,
            RunMode::Real,
        );
        state.advance([stream.clone()]);
    }

    /// Makes a fail-over to a standby that lacks the newest `count` rows.
    pub fn lose_newest(&self, count: usize) {
        let mut state = self.state();
        let lost = state.log.lose_newest(count);
        state.history += 1;
        state.scavenges += 1;
        state.advance(lost.into_iter().map(|stored| stored.row.stream));
    }
}

impl State {
    fn advance(&mut self, streams: impl IntoIterator<Item = StreamId>) {
        self.moment += 1;
        let end = self.log.end().position;
        self.ends.push((self.moment, self.history, end));
        for stream in streams {
            let described = stream.described_stream().unwrap_or(stream);
            let truth = self.truth(&described);
            let moment = self.moment;
            self.truths
                .entry(described)
                .or_default()
                .push((moment, truth));
        }
    }

    fn truth(&self, stream: &StreamId) -> StreamTruth {
        let meta = self.log.last(&stream.metadata_stream());
        let lifecycle = meta
            .and_then(|meta| Lifecycle::from_event(&meta.row.data, &meta.row.metadata).ok())
            .unwrap_or_default();
        let last = self.log.last(stream);
        let revision = last.map(|last| last.row.revision);
        StreamTruth {
            visible: revision
                .filter(|last| !lifecycle.tombstoned && *last >= lifecycle.deleted_before),
            last: revision,
            last_id: last.map(|last| last.row.id),
            meta: meta.map(|meta| meta.row.revision),
            deleted_before: lifecycle.deleted_before,
            is_tombstoned: lifecycle.tombstoned,
            hides_events: lifecycle.metadata.hides_events(),
        }
    }
}

/// Returns the incarnation of the history with this number.
#[must_use]
pub fn incarnation(history: u64) -> Incarnation {
    Incarnation(uuid::Uuid::from_u128(history.into()))
}

fn not_simulated<T>() -> Result<T> {
    Err(Error::unavailable("not simulated"))
}

/// The reads that jobs do. Every answer can be had at once; the schedule decides when a job is done, and when its
/// answer arrives.
#[async_trait]
impl Backend for Database {
    fn info(&self) -> Arc<BackendInfo> {
        Arc::new(BackendInfo {
            backend: "simulated",
            engine: String::new(),
            logs: 1,
            durability: Durability::None,
            capabilities: Capabilities {
                persistent: true,
                shared: true,
                several_logs: false,
                batches_in_flight_max: 4,
            },
        })
    }

    fn history(&self) -> History {
        let number = self.state().history;
        History {
            number,
            incarnation: incarnation(number),
        }
    }

    fn pack(&self, _: &StreamId, _: ContentType, _: &Bytes) -> Option<Bytes> {
        None
    }

    fn ready(&self) -> Result<()> {
        Ok(())
    }

    async fn open_writer(&self, _: LogId) -> Result<Box<dyn LogWriter>> {
        not_simulated()
    }

    async fn log_end(&self, _: LogId, _: Purpose) -> Result<LogEnd> {
        Ok(self.end())
    }

    async fn load(&self, _: LogId, request: LoadRequest, _: Purpose) -> Result<Loaded> {
        Ok(self.state().log.load(&request))
    }

    async fn lookup(&self, _: LogId, lookup: EventLookup, _: Purpose) -> Result<Vec<EventRef>> {
        Ok(self.state().log.lookup(&lookup))
    }

    async fn read_ids(&self, _: LogId, after: Position, to: Position) -> Result<Vec<StoredId>> {
        Ok(self.state().log.read_ids(after, to))
    }

    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        let state = self.state();
        let names = state.log.names(prefix, after).take(limit);
        Ok(names.cloned().collect())
    }

    async fn read_stream(&self, _: StreamSlice) -> Result<Rows> {
        not_simulated()
    }

    async fn read_streams(&self, _: LogId, _: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        not_simulated()
    }

    async fn read_log(&self, slice: LogSlice) -> Result<Rows> {
        Ok(self.state().log.read_log(&slice, usize::MAX))
    }

    async fn read_tail(&self, tail: LogTail) -> Result<Rows> {
        self.read_log(tail.into()).await
    }

    fn signals(&self, _: Topic) -> BoxStream<'static, Signal> {
        stream::pending().boxed()
    }

    async fn send_signal(&self, _: Signal) {}

    async fn remove_hidden(
        &self,
        _: LogId,
        _: RowId,
        _: Visibility,
        _: RunMode,
    ) -> Result<Removed> {
        not_simulated()
    }

    fn registry(&self) -> Option<Arc<dyn gesta_core::registry::Registry>> {
        None
    }

    async fn close(&self) {}
}
