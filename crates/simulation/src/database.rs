//! A database in memory: chained inserts, lookups, scavenging, and fail-overs that lose commits.
//!
//! It is as strict as a real one, and stricter: an insert that would break the contract although its condition holds (a
//! revision used again, a row under the name of another stream) is reported as a violation, where a real one would
//! store it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use gesta_core::backend::{
    Backend, BackendInfo, Batch, EventLookup, EventRef, History, LoadRequest, Loaded, LoadedMeta,
    LoadedStream, LogEnd, LogSlice, LogWriter, Purpose, Removed, Row, RowId, Rows, RunMode, Signal,
    StoredId, StreamHead, StreamSlice, WriterEpoch,
};
use gesta_core::{
    Capabilities, ContentType, Durability, Error, EventId, EventType, Incarnation, Lifecycle,
    LogId, Position, Result, Revision, StreamId, Visibility,
};

/// A row that was stored at some time, in some history.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The row.
    pub row: Row,
    /// The connection that stored it.
    pub writer: WriterEpoch,
    /// It is no longer there: scavenged.
    pub is_removed: bool,
}

/// The state of a stream that claims are judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamTruth {
    /// The last revision that readers can see.
    pub visible: Option<Revision>,
    /// The last revision, deleted events included.
    pub last: Option<Revision>,
    /// The id of the last event, scavenged or not.
    pub last_id: Option<EventId>,
    /// The last revision of the metadata stream.
    pub meta: Option<Revision>,
    /// The stream was closed for ever.
    pub is_tombstoned: bool,
}

#[derive(Debug, Default)]
struct State {
    /// By position, from 1 on.
    rows: Vec<Stored>,
    /// Where in `rows` those of each stream are.
    of_stream: HashMap<StreamId, Vec<usize>>,
    streams: HashMap<StreamId, RowId>,
    types: HashMap<EventType, RowId>,
    /// Grows with each loss of commits.
    history: u64,
    /// Counts everything that changes what is stored.
    moment: u64,
    /// What each stream was, and from which moment on.
    truths: HashMap<StreamId, Vec<(u64, StreamTruth)>>,
    violations: Vec<String>,
}

/// The database. Cheap to clone: all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Database {
    state: Arc<Mutex<State>>,
}

impl Database {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chained insert: stores the batch if the row that it follows is the last one.
    pub fn insert(&self, batch: &Batch, writer: WriterEpoch) -> bool {
        let mut state = self.state();
        let end = state.end();
        if (end.position, end.writer) != (batch.after.position, batch.after.writer) {
            return false;
        }
        if batch.rows.is_empty() {
            return true;
        }
        for (row, stream) in &batch.new_streams {
            if state.streams.insert(stream.clone(), *row).is_some() {
                state.violate(format!("stream {stream} was created twice"));
            }
        }
        for (row, event_type) in &batch.new_types {
            if state.types.insert(event_type.clone(), *row).is_some() {
                state.violate(format!("type {event_type} was created twice"));
            }
        }
        // One moment per row: appends of one batch come one after the other, and an answer may rest on what is between
        // two of them.
        for row in &batch.rows {
            state.store(row, writer);
            state.advance([row.stream.clone()]);
        }
        true
    }

    /// What was found to be wrong.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// The number of the present history.
    #[must_use]
    pub fn history(&self) -> u64 {
        self.state().history
    }

    /// The present moment: it grows with every change.
    #[must_use]
    pub fn moment(&self) -> u64 {
        self.state().moment
    }

    /// The end of the log.
    #[must_use]
    pub fn end(&self) -> LogEnd {
        self.state().end()
    }

    /// What a stream is now.
    #[must_use]
    pub fn truth(&self, stream: &StreamId) -> StreamTruth {
        self.state().truth(stream)
    }

    /// True if the stream was so at some moment from `since` on.
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

    /// The ids of the events of a stream, in their order.
    #[must_use]
    pub fn ids_of(&self, stream: &StreamId) -> Vec<EventId> {
        let state = self.state();
        let rows = state.rows.iter().map(|stored| &stored.row);
        let of_stream = rows.filter(|row| row.stream == *stream);
        of_stream.map(|row| row.id).collect()
    }

    /// All rows of the present history, removed ones included.
    #[must_use]
    pub fn rows(&self) -> Vec<Stored> {
        self.state().rows.clone()
    }

    /// A page of the log: the events after `after`, up to `to`, at most `limit`.
    #[must_use]
    pub fn page(&self, after: Position, to: Position, limit: usize) -> Rows {
        let state = self.state();
        let wanted = state.rows.iter().filter(|stored| {
            let position = stored.row.position;
            !stored.is_removed && position > after && position <= to
        });
        let mut found: Vec<&Stored> = wanted.take(limit + 1).collect();
        let complete = found.len() <= limit;
        found.truncate(limit);
        Rows {
            complete,
            last_writer: found.last().map(|stored| stored.writer),
            events: found
                .iter()
                .map(|stored| stored.row.to_recorded(LogId(0)))
                .collect(),
        }
    }

    /// Removes the events of a stream up to this revision, but never the last row of the log.
    pub fn scavenge(&self, stream: &StreamId, through: Revision) {
        let mut state = self.state();
        let last = state.end().position;
        for stored in &mut state.rows {
            let row = &stored.row;
            if row.stream == *stream && row.revision <= through && row.position != last {
                stored.is_removed = true;
            }
        }
        state.advance([stream.clone()]);
    }

    /// A fail-over to a standby that has not got the newest rows.
    pub fn lose_newest(&self, count: usize) {
        let mut state = self.state();
        let keep = state.rows.len().saturating_sub(count);
        let lost = state.rows.split_off(keep);
        for rows in state.of_stream.values_mut() {
            rows.retain(|row| *row < keep);
        }
        let keep = keep as u64;
        state.streams.retain(|_, row| row.0 <= keep);
        state.types.retain(|_, row| row.0 <= keep);
        // The last row of a log is never scavenged: a standby that lags still has it.
        if let Some(last) = state.rows.last_mut() {
            last.is_removed = false;
        }
        state.history += 1;
        state.advance(lost.into_iter().map(|stored| stored.row.stream));
    }
}

impl State {
    fn violate(&mut self, what: String) {
        self.violations.push(what);
    }

    fn store(&mut self, row: &Row, writer: WriterEpoch) {
        let expected = self.rows.len() as u64 + 1;
        if row.position.0 != expected {
            self.violate(format!(
                "position {} where {expected} is next",
                row.position
            ));
        }
        if self.streams.get(&row.stream) != Some(&row.stream_row) {
            let text = format!(
                "a row of {} is stored as one of row {:?}",
                row.stream, row.stream_row
            );
            self.violate(text);
        }
        if self.types.get(&row.event_type) != Some(&row.type_row) {
            self.violate(format!(
                "a row of type {} has the row of another",
                row.event_type
            ));
        }
        let next = self
            .last(&row.stream)
            .map_or(0, |last| last.row.revision.0 + 1);
        if row.revision.0 != next {
            let text = format!(
                "revision {} of {} where {next} is next",
                row.revision, row.stream
            );
            self.violate(text);
        }
        let previous = self.rows.last().map(|last| last.row.created);
        if previous.is_some_and(|previous| row.created < previous) {
            self.violate(format!(
                "position {} is older than the one before it",
                row.position
            ));
        }
        let number = self.rows.len();
        let rows = self.of_stream.entry(row.stream.clone()).or_default();
        rows.push(number);
        self.rows.push(Stored {
            row: row.clone(),
            writer,
            is_removed: false,
        });
    }

    fn advance(&mut self, streams: impl IntoIterator<Item = StreamId>) {
        self.moment += 1;
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

    fn end(&self) -> LogEnd {
        self.rows.last().map_or(LogEnd::default(), |stored| LogEnd {
            position: stored.row.position,
            writer: stored.writer,
            created: stored.row.created,
        })
    }

    /// The last row of a stream, removed or not.
    fn last(&self, stream: &StreamId) -> Option<&Stored> {
        let number = self.of_stream.get(stream)?.last()?;
        self.rows.get(*number)
    }

    fn truth(&self, stream: &StreamId) -> StreamTruth {
        let meta = self.last(&stream.metadata_stream());
        let lifecycle = meta
            .and_then(|meta| Lifecycle::from_event(&meta.row.data, &meta.row.metadata).ok())
            .unwrap_or_default();
        let last = self.last(stream);
        let revision = last.map(|last| last.row.revision);
        StreamTruth {
            visible: revision
                .filter(|last| !lifecycle.tombstoned && *last >= lifecycle.deleted_before),
            last: revision,
            last_id: last.map(|last| last.row.id),
            meta: meta.map(|meta| meta.row.revision),
            is_tombstoned: lifecycle.tombstoned,
        }
    }

    fn loaded(&self, stream: &StreamId) -> LoadedStream {
        let head = |stored: &Stored| StreamHead {
            row: stored.row.stream_row,
            last: stored.row.revision,
            position: stored.row.position,
            id: (!stored.is_removed).then_some(stored.row.id),
        };
        LoadedStream {
            head: self.last(stream).map(head),
            meta: self.last(&stream.metadata_stream()).map(|meta| LoadedMeta {
                head: head(meta),
                data: meta.row.data.clone(),
                metadata: meta.row.metadata.clone(),
            }),
        }
    }

    fn found(&self, wanted: impl Fn(&Row) -> bool, limit: usize) -> Vec<EventRef> {
        found(self.rows.iter(), wanted, limit)
    }
}

fn found<'a>(
    rows: impl Iterator<Item = &'a Stored>,
    wanted: impl Fn(&Row) -> bool,
    limit: usize,
) -> Vec<EventRef> {
    let there = rows.filter(|stored| !stored.is_removed);
    let wanted = there.filter(|stored| wanted(&stored.row));
    wanted.take(limit).map(reference).collect()
}

fn reference(stored: &Stored) -> EventRef {
    let row = &stored.row;
    EventRef {
        position: row.position,
        writer: stored.writer,
        created: row.created,
        stream: row.stream.clone(),
        stream_row: row.stream_row,
        revision: row.revision,
        id: row.id,
        event_type: row.event_type.clone(),
        type_row: row.type_row,
    }
}

fn not_simulated<T>() -> Result<T> {
    Err(Error::unavailable("not simulated"))
}

/// The reads that jobs do. Every answer is there at once: when a job is done, and when its answer arrives, the schedule
/// says.
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
        History {
            number: self.state().history,
            incarnation: Incarnation(uuid::Uuid::nil()),
        }
    }

    fn pack(&self, _: &StreamId, _: ContentType, _: &Bytes) -> Option<Bytes> {
        None
    }

    async fn open_writer(&self, _: LogId) -> Result<Box<dyn LogWriter>> {
        not_simulated()
    }

    async fn log_end(&self, _: LogId, _: Purpose) -> Result<LogEnd> {
        Ok(self.end())
    }

    async fn load(&self, _: LogId, request: LoadRequest, _: Purpose) -> Result<Loaded> {
        let state = self.state();
        let types = request.types.iter();
        Ok(Loaded {
            end: state.end(),
            streams: request.streams.iter().map(|s| state.loaded(s)).collect(),
            types: types.map(|t| state.types.get(t).copied()).collect(),
        })
    }

    async fn lookup(&self, _: LogId, lookup: EventLookup, _: Purpose) -> Result<Vec<EventRef>> {
        let state = self.state();
        Ok(match lookup {
            EventLookup::Revisions {
                stream,
                first,
                count,
            } => {
                let last = first.0.saturating_add(count as u64);
                let is_it = |row: &Row| {
                    row.stream_row == stream && (first.0..last).contains(&row.revision.0)
                };
                state.found(is_it, usize::MAX)
            }
            EventLookup::Positions(positions) => {
                state.found(|row| positions.contains(&row.position), usize::MAX)
            }
            EventLookup::Ids {
                events,
                after,
                created_from,
                until,
            } => {
                let is_it = |row: &Row| {
                    events.contains(&(row.stream_row, row.id))
                        && row.position <= until
                        && (row.position > after || row.created >= created_from)
                };
                state.found(is_it, usize::MAX)
            }
            EventLookup::After { position, limit } => {
                let first = usize::try_from(position.0).unwrap_or(usize::MAX);
                found(state.rows.iter().skip(first), |_| true, limit)
            }
        })
    }

    async fn read_ids(&self, _: LogId, after: Position, to: Position) -> Result<Vec<StoredId>> {
        let state = self.state();
        let is_it = |row: &Row| row.position > after && row.position <= to;
        let found = state.found(is_it, usize::MAX);
        Ok(found.iter().map(EventRef::stored_id).collect())
    }

    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        let state = self.state();
        let mut names: Vec<StreamId> = state.streams.keys().cloned().collect();
        names.retain(|name| {
            name.as_str().starts_with(prefix)
                && name.is_system() == prefix.starts_with('$')
                && after.is_none_or(|after| name > after)
        });
        names.sort();
        names.truncate(limit);
        Ok(names)
    }

    async fn read_stream(&self, _: StreamSlice) -> Result<Rows> {
        not_simulated()
    }

    async fn read_streams(&self, _: LogId, _: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        not_simulated()
    }

    async fn read_log(&self, _: LogSlice) -> Result<Rows> {
        not_simulated()
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
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
