//! Databases of the tests: what a database holds, and the statements that it executes, as plain data without tasks,
//! time or faults.
//!
//! All such tables are here. [`faulty`](crate::faulty) adds processes, connections and faults; the simulation
//! (`gesta-sim`) adds schedules, which must not depend on tasks. The reference store (`gesta-memory`) is
//! separate on purpose: it is the model with which answers are compared, so it shares nothing with what it judges.
//!
//! Invariants: a batch is stored whole or not at all, and only after the row that it names; what a constraint of a
//! database would refuse is refused, and so is everything else that no correct pipeline sends.

mod virtual_tables;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gesta_core::backend::*;
use gesta_core::*;

pub use virtual_tables::VirtualTables;

/// A moment in the life of a database: a number that grows whenever a moment is asked for or something becomes durable.
/// If one thing happened before another, its moment is the smaller one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

/// A row that was stored.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The row itself.
    pub row: Row,
    /// The writer epoch of the connection that stored it.
    pub writer: WriterEpoch,
    /// The moment at which it became durable.
    pub durable: Moment,
    /// Whether it was scavenged, so that no read finds it any more.
    pub is_removed: bool,
    /// End of the log when it was scavenged.
    removed_at: Position,
}

impl Stored {
    /// Returns the row as lookups return it.
    #[must_use]
    pub fn to_ref(&self) -> EventRef {
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

    fn end(&self) -> LogEnd {
        LogEnd {
            position: self.row.position,
            writer: self.writer,
            created: self.row.created,
        }
    }
}

/// The tables of one log.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// The rows in the order of their positions, from 1 on.
    rows: Vec<Stored>,
    streams: BTreeMap<StreamId, Stream>,
    types: HashMap<EventType, RowId>,
    forgets_writers: bool,
}

/// An interned stream, with the position of each revision.
#[derive(Debug, Clone)]
struct Stream {
    row: RowId,
    positions: Vec<Position>,
}

impl Stream {
    fn next(&self) -> Revision {
        Revision(self.positions.len() as u64)
    }
}

// ---- writing ----

impl Log {
    /// Plants a mistake: from now on chained inserts compare only the position of the last row, not its writer.
    pub fn forget_writers(&mut self) {
        self.forgets_writers = true;
    }

    /// Returns the end of the log.
    #[must_use]
    pub fn end(&self) -> LogEnd {
        self.rows.last().map_or(LogEnd::default(), Stored::end)
    }

    /// Tells whether the row that the batch names is the last of the log.
    #[must_use]
    pub fn is_followed_by(&self, batch: &Batch) -> bool {
        let end = self.end();
        end.position == batch.after.position
            && (self.forgets_writers || end.writer == batch.after.writer)
    }

    /// Executes the chained insert. Returns false if another row is the last of the log.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub fn insert(
        &mut self,
        batch: &Batch,
        writer: WriterEpoch,
        durable: Moment,
    ) -> std::result::Result<bool, String> {
        if !self.is_followed_by(batch) {
            return Ok(false);
        }
        self.check(batch)?;
        self.intern_types(batch);
        for row in &batch.rows {
            self.store(row, writer, durable);
        }
        Ok(true)
    }

    /// Checks the constraints: positions and revisions without gaps, names interned once, times in order.
    ///
    /// # Errors
    /// What a constraint would refuse; a correct pipeline never causes this.
    pub fn check(&self, batch: &Batch) -> std::result::Result<(), String> {
        let mut streams = HashMap::new();
        for (row, stream) in &batch.new_streams {
            if self.streams.contains_key(stream) || streams.insert(stream, *row).is_some() {
                return Err(format!("stream {stream} was created twice"));
            }
        }
        let mut types = HashMap::new();
        for (row, event_type) in &batch.new_types {
            if self.types.contains_key(event_type) || types.insert(event_type, *row).is_some() {
                return Err(format!("type {event_type} was created twice"));
            }
        }
        let mut revisions: HashMap<&StreamId, Revision> = HashMap::new();
        let mut end = self.end();
        for row in &batch.rows {
            let position = end.position.next();
            if row.position != position {
                return Err(format!("position {} instead of {position}", row.position));
            }
            if row.created < end.created {
                return Err(format!("position {position} is older than the one before"));
            }
            (end.position, end.created) = (position, row.created);
            let known = self.streams.get(&row.stream);
            let next = known.map_or(Revision(0), Stream::next);
            let next = revisions.entry(&row.stream).or_insert(next);
            if row.revision != *next {
                return Err(format!(
                    "revision {} of stream {} instead of {next}",
                    row.revision, row.stream
                ));
            }
            *next = next.next();
            let interned = known.map(|stream| stream.row);
            if interned.or_else(|| streams.get(&row.stream).copied()) != Some(row.stream_row) {
                let (stream, wrong) = (&row.stream, row.stream_row);
                return Err(format!("a row of {stream} is stored as one of {wrong:?}"));
            }
            let interned = self.types.get(&row.event_type);
            if interned.or_else(|| types.get(&row.event_type)) != Some(&row.type_row) {
                let (event_type, wrong) = (&row.event_type, row.type_row);
                return Err(format!("a row of type {event_type} is stored as {wrong:?}"));
            }
        }
        Ok(())
    }

    /// Interns the types that a batch uses for the first time.
    pub fn intern_types(&mut self, batch: &Batch) {
        let types = batch.new_types.iter();
        self.types
            .extend(types.map(|(row, event_type)| (event_type.clone(), *row)));
    }

    /// Stores one row, which [`check`](Self::check) has accepted, and interns its stream.
    pub fn store(&mut self, row: &Row, writer: WriterEpoch, durable: Moment) {
        let new = || Stream {
            row: row.stream_row,
            positions: Vec::new(),
        };
        let stream = self.streams.entry(row.stream.clone()).or_insert_with(new);
        stream.positions.push(row.position);
        self.rows.push(Stored {
            row: row.clone(),
            writer,
            durable,
            is_removed: false,
            removed_at: Position::START,
        });
    }

    /// Makes a batch that appends these events to a stream as it is now.
    #[must_use]
    pub fn batch_of(
        &self,
        log: LogId,
        stream: &StreamId,
        events: Vec<EventData>,
        now: Timestamp,
    ) -> Batch {
        let after = self.end();
        let mut position = after.position;
        let first = position.next();
        let known = self.streams.get(stream);
        let stream_row = known.map_or(RowId(first.0), |stream| stream.row);
        let mut revision = known.map_or(Revision(0), Stream::next);
        let mut new_types: Vec<(RowId, EventType)> = Vec::new();
        let mut rows = Vec::with_capacity(events.len());
        for event in events {
            position = position.next();
            let interned = self.types.get(&event.event_type).copied().or_else(|| {
                let mut new = new_types.iter();
                new.find(|(_, name)| *name == event.event_type)
                    .map(|(row, _)| *row)
            });
            let type_row = interned.unwrap_or_else(|| {
                new_types.push((RowId(position.0), event.event_type.clone()));
                RowId(position.0)
            });
            rows.push(Row {
                position,
                stream: stream.clone(),
                stream_row,
                revision,
                id: event.id.unwrap_or_else(EventId::random),
                event_type: event.event_type,
                type_row,
                created: now.max(after.created),
                content_type: event.content_type,
                data: event.data,
                packed: None,
                metadata: event.metadata,
                tags: event.tags,
            });
            revision = revision.next();
        }
        let new_streams = match known {
            None if !rows.is_empty() => vec![(stream_row, stream.clone())],
            _ => Vec::new(),
        };
        Batch {
            log,
            after,
            rows,
            new_streams,
            new_types,
        }
    }

    /// Loses the newest rows, as a fail-over to a lagging standby does, and returns them. The row that is the last then
    /// is not removed: a database never scavenges the last row of a log, so the standby still has it.
    pub fn lose_newest(&mut self, count: usize) -> Vec<Stored> {
        let keep = self.rows.len().saturating_sub(count);
        let lost = self.rows.split_off(keep);
        if let Some(last) = self.rows.last_mut() {
            last.is_removed = false;
        }
        let end = self.end().position;
        // What was scavenged after the first lost row was stored is lost with it: the rows are there again.
        for stored in &mut self.rows {
            stored.is_removed &= stored.removed_at <= end;
        }
        self.types.retain(|_, row| row.0 <= end.0);
        for stream in self.streams.values_mut() {
            stream.positions.retain(|position| *position <= end);
        }
        self.streams
            .retain(|_, stream| !stream.positions.is_empty());
        lost
    }

    /// Removes rows as scavenging does, never the last row of the log.
    pub fn remove(&mut self, wanted: impl Fn(&Row) -> bool, mode: RunMode) -> Removed {
        let end = self.end().position;
        let mut removed = Removed::default();
        let there = self.rows.iter_mut().filter(|stored| !stored.is_removed);
        for stored in there.filter(|stored| stored.row.position < end && wanted(&stored.row)) {
            removed.events += 1;
            removed.payload_bytes += (stored.row.data.len() + stored.row.metadata.len()) as u64;
            if mode == RunMode::Real {
                (stored.is_removed, stored.removed_at) = (true, end);
            }
        }
        removed
    }

    /// Damages the data of the last event of a stream.
    ///
    /// # Panics
    /// If the stream has no event.
    pub fn damage_last(&mut self, stream: &StreamId) {
        let mut newest_first = self.rows.iter_mut().rev();
        let last = newest_first.find(|stored| stored.row.stream == *stream);
        last.expect("the stream has an event").row.data = "damaged".into();
    }
}

// ---- reading ----

impl Log {
    /// Returns all rows in order of position, removed ones included.
    #[must_use]
    pub fn rows(&self) -> &[Stored] {
        &self.rows
    }

    /// Returns the last row of a stream, removed or not.
    #[must_use]
    pub fn last(&self, stream: &StreamId) -> Option<&Stored> {
        let position = self.streams.get(stream)?.positions.last()?;
        self.rows.get(index(*position))
    }

    /// Returns the names of streams that begin with `prefix` and come after `after`, in order. Names that begin with
    /// `$` are included only if `prefix` begins with `$`.
    pub fn names(&self, prefix: &str, after: Option<&StreamId>) -> impl Iterator<Item = &StreamId> {
        self.streams
            .keys()
            .filter(move |name| name.as_str().starts_with(prefix))
            .filter(move |name| !name.is_system() || prefix.starts_with('$'))
            .filter(move |name| after.is_none_or(|after| *name > after))
    }

    /// Returns the row at a position, if it is there.
    #[must_use]
    pub fn at(&self, position: Position) -> Option<&Stored> {
        let stored = self.rows.get(index(position));
        stored.filter(|stored| !stored.is_removed)
    }

    fn between(&self, after: Position, to: Position) -> impl DoubleEndedIterator<Item = &Stored> {
        let count = |position: Position| {
            usize::try_from(position.0).map_or(self.rows.len(), |count| count.min(self.rows.len()))
        };
        let to = count(to);
        let rows = &self.rows[count(after).min(to)..to];
        rows.iter().filter(|stored| !stored.is_removed)
    }

    fn head(&self, stream: &StreamId) -> Option<StreamHead> {
        let last = self.last(stream)?;
        Some(StreamHead {
            row: last.row.stream_row,
            last: last.row.revision,
            position: last.row.position,
            id: (!last.is_removed).then_some(last.row.id),
        })
    }

    /// Answers [`Backend::load`].
    #[must_use]
    pub fn load(&self, request: &LoadRequest) -> Loaded {
        let meta = |name: &StreamId| {
            let head = self.head(&name.metadata_stream())?;
            let row = &self.at(head.position)?.row;
            Some(LoadedMeta {
                head,
                data: row.data.clone(),
                metadata: row.metadata.clone(),
            })
        };
        let load = |name: &StreamId| LoadedStream {
            head: self.head(name),
            meta: meta(name),
        };
        let types = request.types.iter();
        Loaded {
            end: self.end(),
            streams: request.streams.iter().map(load).collect(),
            types: types.map(|name| self.types.get(name).copied()).collect(),
        }
    }

    /// Returns the rows of an interned stream that are there, from a revision on.
    fn of_stream(&self, row: RowId, from: Revision) -> impl Iterator<Item = &Stored> {
        // The row of a stream is the position of its first event.
        let first = self.rows.get(index(Position(row.0)));
        let stream = first.and_then(|first| self.streams.get(&first.row.stream));
        let stream = stream.filter(|stream| stream.row == row);
        let skipped = usize::try_from(from.0).unwrap_or(usize::MAX);
        let positions = stream.into_iter().flat_map(|stream| &stream.positions);
        positions
            .skip(skipped)
            .filter_map(|position| self.at(*position))
    }

    /// Answers [`Backend::lookup`].
    #[must_use]
    pub fn lookup(&self, lookup: &EventLookup) -> Vec<EventRef> {
        let mut found: Vec<&Stored> = match lookup {
            EventLookup::Revisions {
                stream,
                first,
                count,
            } => self
                .of_stream(*stream, *first)
                .take_while(|stored| stored.row.revision.0 - first.0 < *count as u64)
                .collect(),
            EventLookup::Positions(positions) => positions
                .iter()
                .filter_map(|position| self.at(*position))
                .collect(),
            EventLookup::Ids {
                events,
                after,
                created_from,
                until,
            } => {
                let wanted: HashSet<&(RowId, EventId)> = events.iter().collect();
                let streams: BTreeSet<RowId> = events.iter().map(|(stream, _)| *stream).collect();
                let rows = streams
                    .into_iter()
                    .flat_map(|stream| self.of_stream(stream, Revision(0)));
                rows.filter(|s| s.row.position <= *until)
                    .filter(|s| s.row.position > *after || s.row.created >= *created_from)
                    .filter(|s| wanted.contains(&(s.row.stream_row, s.row.id)))
                    .collect()
            }
            EventLookup::After { position, limit } => {
                let rest = self.between(*position, Position::MAX);
                rest.take(*limit).collect()
            }
        };
        found.sort_by_key(|stored| stored.row.position);
        found.into_iter().map(Stored::to_ref).collect()
    }

    /// Answers [`Backend::read_ids`].
    #[must_use]
    pub fn read_ids(&self, after: Position, to: Position) -> Vec<StoredId> {
        let id = |stored: &Stored| StoredId {
            stream: stored.row.stream_row,
            id: stored.row.id,
            position: stored.row.position,
            created: stored.row.created,
        };
        self.between(after, to).map(id).collect()
    }

    /// Answers [`Backend::read_stream`] with at most `bytes_max` bytes, but with at least one event if there is one.
    #[must_use]
    pub fn read_stream(&self, slice: &StreamSlice, bytes_max: usize) -> Rows {
        let stream = self.streams.get(&slice.stream);
        let positions = stream.map_or(&[][..], |stream| &stream.positions);
        let count = |revisions: u64| {
            usize::try_from(revisions).map_or(positions.len(), |count| count.min(positions.len()))
        };
        let to = count(slice.to.0.saturating_add(1));
        let rows = positions[count(slice.from.0).min(to)..to]
            .iter()
            .filter_map(|position| self.at(*position))
            .filter(|s| slice.created_from.is_none_or(|from| s.row.created >= from));
        page(rows, slice, bytes_max)
    }

    /// Answers [`Backend::read_streams`]. The slices share the bytes of one page.
    #[must_use]
    pub fn read_streams(&self, slices: &[StreamSlice], bytes_max: usize) -> Vec<Rows> {
        let mut left = bytes_max;
        let mut any = false;
        let read = slices.iter().map(|slice| {
            let mut rows = self.read_stream(slice, left);
            if any && cost_bytes(&rows.events) > left {
                rows.events.clear();
                rows.complete = false;
            }
            any |= !rows.events.is_empty();
            let bytes_ended_it = !rows.complete && rows.events.len() < slice.limit;
            left = match bytes_ended_it {
                true => 0,
                false => left.saturating_sub(cost_bytes(&rows.events)),
            };
            rows
        });
        read.collect()
    }

    /// Answers [`Backend::read_log`] with at most `bytes_max` bytes, but with at least one event if there is one.
    #[must_use]
    pub fn read_log(&self, slice: &LogSlice, bytes_max: usize) -> Rows {
        let order = Order {
            log: slice.log,
            direction: slice.direction,
            limit: slice.limit,
        };
        let matching = self.between(slice.after, slice.to).filter(|s| {
            slice.filter.is_all() || slice.filter.matches(&s.row.to_recorded(slice.log))
        });
        page(matching, order, bytes_max)
    }
}

fn index(position: Position) -> usize {
    let index = usize::try_from(position.0).unwrap_or(usize::MAX);
    index.wrapping_sub(1)
}

fn cost_bytes(events: &[RecordedEvent]) -> usize {
    events.iter().map(RecordedEvent::cost_bytes).sum()
}

/// The parts of a slice that decide about its page.
struct Order {
    log: LogId,
    direction: Direction,
    limit: usize,
}

impl From<&StreamSlice> for Order {
    fn from(slice: &StreamSlice) -> Self {
        Self {
            log: slice.log,
            direction: slice.direction,
            limit: slice.limit,
        }
    }
}

/// Returns the first rows in the given order: at most `limit` rows and `bytes_max` bytes, but at least one row.
fn page<'a>(
    rows: impl DoubleEndedIterator<Item = &'a Stored>,
    order: impl Into<Order>,
    bytes_max: usize,
) -> Rows {
    let order = order.into();
    let mut rows: Box<dyn Iterator<Item = &Stored>> = match order.direction {
        Direction::Forwards => Box::new(rows),
        Direction::Backwards => Box::new(rows.rev()),
    };
    let mut events: Vec<RecordedEvent> = Vec::new();
    let mut last_writer = None;
    let mut bytes = 0;
    let left = rows.find(|stored| {
        let event = stored.row.to_recorded(order.log);
        bytes += event.cost_bytes();
        let fits = events.is_empty() || (events.len() < order.limit && bytes <= bytes_max);
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
