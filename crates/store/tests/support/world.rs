//! The database of the tests: rows in memory, shared by processes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

use gesta_core::backend::*;
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::*;
use tokio::sync::mpsc::UnboundedSender;

use super::index::{Index, MemoryIndex};

pub struct World {
    pub logs: u16,
    pub incarnation: Incarnation,
    state: Mutex<State>,
}

#[derive(Clone)]
struct Stored {
    row: Row,
    writer: WriterEpoch,
}

#[derive(Default, Clone)]
struct Log {
    rows: BTreeMap<Position, Stored>,
    streams: BTreeMap<StreamId, Stream>,
    types: HashMap<EventType, RowId>,
}

#[derive(Clone)]
struct Stream {
    head: StreamHead,
    positions: BTreeMap<Revision, Position>,
}

#[derive(Default)]
struct State {
    logs: Vec<Log>,
    index: Index,
    listeners: Vec<Vec<UnboundedSender<Signal>>>,
}

impl World {
    pub fn new(logs: u16) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self {
            logs,
            incarnation: Incarnation::random(),
            state: Mutex::new(State {
                logs: vec![Log::default(); usize::from(logs)],
                index: Index::default(),
                listeners: Vec::new(),
            }),
        })
    }

    /// What is kept for virtual streams.
    pub fn index(self: &std::sync::Arc<Self>) -> MemoryIndex {
        MemoryIndex(std::sync::Arc::clone(self))
    }

    /// Whether entries of virtual streams can be written.
    pub fn refuse_entries(&self, refuse: bool) {
        self.lock().index.refuses = refuse;
    }

    /// Works on what is kept for virtual streams; `is_there` tells whether log 0 has the row of this writer.
    pub fn with_index<T>(
        &self,
        work: impl FnOnce(&mut Index, &dyn Fn(Position, WriterEpoch) -> bool) -> T,
    ) -> T {
        let state = &mut *self.lock();
        let rows = &state.logs[0].rows;
        let is_there = |position: Position, writer: WriterEpoch| {
            rows.get(&position)
                .is_some_and(|stored| stored.writer == writer)
        };
        work(&mut state.index, &is_there)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }

    // ---- messages ----

    pub fn join(&self) -> usize {
        let mut state = self.lock();
        state.listeners.push(Vec::new());
        state.listeners.len() - 1
    }

    pub fn listen(&self, process: usize, sender: UnboundedSender<Signal>) {
        self.lock().listeners[process].push(sender);
    }

    pub fn send(&self, to: usize, signal: Signal) {
        for listener in &self.lock().listeners[to] {
            let _ = listener.send(signal);
        }
    }

    pub fn send_to_others(&self, from: usize, signal: Signal) {
        let processes = self.lock().listeners.len();
        for to in (0..processes).filter(|to| *to != from) {
            self.send(to, signal);
        }
    }

    // ---- appending ----

    pub fn commit(&self, batch: &Batch, writer: WriterEpoch) -> BatchOutcome {
        let mut state = self.lock();
        let log = &mut state.logs[usize::from(batch.log.0)];
        let end = log.end();
        if (end.position, end.writer) != (batch.after.position, batch.after.writer) {
            return BatchOutcome::Missed;
        }
        for (row, event_type) in &batch.new_types {
            log.types.insert(event_type.clone(), *row);
        }
        for row in &batch.rows {
            log.store(row, writer);
        }
        BatchOutcome::Committed
    }

    /// Loses the newest `count` rows of log 0, as a fail-over to a lagging standby does.
    pub fn lose(&self, count: usize) {
        let mut state = self.lock();
        let old = std::mem::take(&mut state.logs[0]);
        let keep = old.rows.len() - count;
        let log = &mut state.logs[0];
        log.types = old.types;
        for stored in old.rows.values().take(keep) {
            log.store(&stored.row, stored.writer);
        }
        // The entries were committed after their events, so they are lost with them.
        let end = log.end().position;
        state.index.lose_above(end);
    }

    /// Damages the last metadata event of a stream.
    pub fn damage_metadata(&self, stream: &StreamId) {
        let mut state = self.lock();
        let log = &mut state.logs[0];
        let head = log.streams[&stream.metadata_stream()].head;
        let stored = log.rows.get_mut(&head.position).expect("there");
        stored.row.data = "damaged".into();
    }

    // ---- reading ----

    pub fn end(&self, log: LogId) -> LogEnd {
        self.lock().logs[usize::from(log.0)].end()
    }

    pub fn load(&self, log: LogId, request: &LoadRequest) -> Loaded {
        let state = self.lock();
        let log = &state.logs[usize::from(log.0)];
        let load = |stream: &StreamId| LoadedStream {
            head: log.streams.get(stream).map(|stream| log.head(stream)),
            meta: log.streams.get(&stream.metadata_stream()).map(|meta| {
                let row = &log.rows[&meta.head.position].row;
                LoadedMeta {
                    head: meta.head,
                    data: row.data.clone(),
                    metadata: row.metadata.clone(),
                }
            }),
        };
        Loaded {
            end: log.end(),
            streams: request.streams.iter().map(load).collect(),
            types: request
                .types
                .iter()
                .map(|event_type| log.types.get(event_type).copied())
                .collect(),
        }
    }

    pub fn lookup(&self, log: LogId, lookup: &EventLookup) -> Vec<EventRef> {
        let state = self.lock();
        let log = &state.logs[usize::from(log.0)];
        let of_row = |wanted: RowId| {
            log.streams
                .values()
                .find(|stream| stream.head.row == wanted)
                .into_iter()
                .flat_map(|stream| stream.positions.iter())
                .filter_map(|(_, position)| log.rows.get(position))
        };
        let found: Vec<&Stored> = match lookup {
            EventLookup::Revisions {
                stream,
                first,
                count,
            } => of_row(*stream)
                .filter(|stored| stored.row.revision >= *first)
                .take_while(|stored| stored.row.revision.0 < first.0 + *count as u64)
                .collect(),
            EventLookup::Positions(positions) => positions
                .iter()
                .filter_map(|position| log.rows.get(position))
                .collect(),
            EventLookup::Ids {
                events,
                after,
                created_from,
                until,
            } => log
                .rows
                .range(..=*until)
                .map(|(_, stored)| stored)
                .filter(|s| events.contains(&(s.row.stream_row, s.row.id)))
                .filter(|s| s.row.position > *after || s.row.created >= *created_from)
                .collect(),
            EventLookup::After { position, limit } => log
                .rows
                .range(position.next()..)
                .take(*limit)
                .map(|(_, stored)| stored)
                .collect(),
        };
        found.into_iter().map(Stored::to_ref).collect()
    }

    pub fn read_stream(&self, slice: &StreamSlice) -> Rows {
        let state = self.lock();
        let log = &state.logs[usize::from(slice.log.0)];
        let positions = log
            .streams
            .get(&slice.stream)
            .map(|stream| stream.positions.range(slice.from..=slice.to));
        let rows = positions
            .into_iter()
            .flatten()
            .filter_map(|(_, position)| log.rows.get(position))
            .filter(|s| slice.created_from.is_none_or(|from| s.row.created >= from));
        page(rows, slice.log, slice.direction, slice.limit)
    }

    /// Parts of streams, one after the other, until they fill a page together.
    pub fn read_streams(&self, slices: &[StreamSlice]) -> Vec<Rows> {
        let mut left = PAGE_BYTES_MAX;
        let mut any = false;
        let mut full = false;
        let mut read = |slice: &StreamSlice| {
            let mut rows = self.read_stream(slice);
            let taken = rows.events.iter().take_while(|event| {
                full |= any && event.cost_bytes() > left;
                left = left.saturating_sub(event.cost_bytes());
                any = true;
                !full
            });
            let taken = taken.count();
            rows.complete &= taken == rows.events.len();
            rows.events.truncate(taken);
            rows
        };
        slices.iter().map(&mut read).collect()
    }

    pub fn read_log(&self, slice: &LogSlice) -> Rows {
        let state = self.lock();
        let log = &state.logs[usize::from(slice.log.0)];
        if slice.after >= slice.to {
            return page(std::iter::empty(), slice.log, slice.direction, slice.limit);
        }
        let rows = log.rows.range(slice.after.next()..=slice.to);
        let rows = rows.map(|(_, stored)| stored).filter(|s| {
            slice.filter.is_all() || slice.filter.matches(&s.row.to_recorded(slice.log))
        });
        page(rows, slice.log, slice.direction, slice.limit)
    }

    pub fn list(&self, prefix: &str, after: Option<&StreamId>, limit: usize) -> Vec<StreamId> {
        let state = self.lock();
        let mut names: Vec<StreamId> = state
            .logs
            .iter()
            .flat_map(|log| log.streams.keys())
            .filter(|name| name.as_str().starts_with(prefix))
            .filter(|name| !name.is_system() || prefix.starts_with('$'))
            .filter(|name| after.is_none_or(|after| *name > after))
            .cloned()
            .collect();
        names.sort();
        names.truncate(limit);
        names
    }

    pub fn remove_hidden(
        &self,
        log: LogId,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Removed {
        let mut state = self.lock();
        let log = &mut state.logs[usize::from(log.0)];
        let end = log.end().position;
        let hidden: Vec<Position> = log
            .rows
            .values()
            .map(|stored| &stored.row)
            .filter(|row| row.stream_row == stream && row.position < end)
            .filter(|row| !visibility.shows(row.revision, row.created))
            .map(|row| row.position)
            .collect();
        let mut removed = Removed::default();
        for position in hidden {
            let row = &log.rows[&position].row;
            removed.events += 1;
            removed.payload_bytes += (row.data.len() + row.metadata.len()) as u64;
            if mode == RunMode::Real {
                log.rows.remove(&position);
            }
        }
        removed
    }
}

impl Log {
    fn end(&self) -> LogEnd {
        self.rows
            .last_key_value()
            .map_or(LogEnd::default(), |(position, stored)| LogEnd {
                position: *position,
                writer: stored.writer,
                created: stored.row.created,
            })
    }

    /// The head of a stream, without the id of an event that is no longer stored.
    fn head(&self, stream: &Stream) -> StreamHead {
        let stored = self.rows.contains_key(&stream.head.position);
        StreamHead {
            id: stream.head.id.filter(|_| stored),
            ..stream.head
        }
    }

    fn store(&mut self, row: &Row, writer: WriterEpoch) {
        let head = StreamHead {
            row: row.stream_row,
            last: row.revision,
            position: row.position,
            id: Some(row.id),
        };
        let stream = self
            .streams
            .entry(row.stream.clone())
            .or_insert_with(|| Stream {
                head,
                positions: BTreeMap::new(),
            });
        let expected = stream
            .positions
            .last_key_value()
            .map_or(0, |(r, _)| r.0 + 1);
        assert_eq!(row.revision.0, expected, "a gap in {}", row.stream);
        stream.head = head;
        stream.positions.insert(row.revision, row.position);
        let row = row.clone();
        self.rows.insert(row.position, Stored { row, writer });
    }
}

impl Stored {
    fn to_ref(&self) -> EventRef {
        let row = &self.row;
        EventRef {
            position: row.position,
            writer: self.writer,
            created: row.created,
            stream: row.stream.clone(),
            stream_row: row.stream_row,
            revision: row.revision,
            id: row.id,
            event_type: row.event_type.clone(),
            type_row: row.type_row,
        }
    }
}

fn page<'a>(
    rows: impl DoubleEndedIterator<Item = &'a Stored>,
    log: LogId,
    direction: Direction,
    limit: usize,
) -> Rows {
    let mut rows: Box<dyn Iterator<Item = &Stored>> = match direction {
        Direction::Forwards => Box::new(rows),
        Direction::Backwards => Box::new(rows.rev()),
    };
    let mut events: Vec<RecordedEvent> = Vec::new();
    let mut last_writer = None;
    let mut bytes = 0;
    let left = rows.find(|stored| {
        let event = stored.row.to_recorded(log);
        bytes += event.cost_bytes();
        let fits = events.is_empty() || (events.len() < limit && bytes <= PAGE_BYTES_MAX);
        if fits {
            last_writer = Some(stored.writer);
            events.push(event);
        }
        !fits
    });
    Rows {
        complete: left.is_none(),
        events,
        last_writer,
    }
}
