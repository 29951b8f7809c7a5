//! What the database of a [`World`](super::World) holds, and the statements that it knows.

use std::collections::{BTreeMap, HashMap};

use gesta_core::backend::*;
use gesta_core::*;

use super::world::Moment;

/// A stored row, who wrote it and when it became durable.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) row: Row,
    pub(super) writer: WriterEpoch,
    pub(super) durable: Moment,
}

/// One log.
#[derive(Clone, Default)]
pub(super) struct Log {
    pub(super) rows: BTreeMap<Position, Stored>,
    pub(super) streams: BTreeMap<StreamId, Stream>,
    pub(super) types: HashMap<EventType, RowId>,
}

/// An interned stream. What scavenging removed is still in `positions`.
#[derive(Clone)]
pub(super) struct Stream {
    row: RowId,
    positions: BTreeMap<Revision, Position>,
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

// ---- writing ----

impl Log {
    pub(super) fn end(&self) -> LogEnd {
        let last = self.rows.last_key_value();
        last.map_or(LogEnd::default(), |(position, stored)| LogEnd {
            position: *position,
            writer: stored.writer,
            created: stored.row.created,
        })
    }

    /// The chained insert: false if another row is the last of the log.
    ///
    /// # Errors
    /// What a constraint of the database would refuse; a pipeline that is right never meets one.
    pub(super) fn insert(
        &mut self,
        batch: &Batch,
        writer: WriterEpoch,
        durable: Moment,
    ) -> std::result::Result<bool, String> {
        let end = self.end();
        if (end.position, end.writer) != (batch.after.position, batch.after.writer) {
            return Ok(false);
        }
        self.check(batch)?;
        for (row, event_type) in &batch.new_types {
            self.types.insert(event_type.clone(), *row);
        }
        for row in &batch.rows {
            self.store(row, writer, durable);
        }
        Ok(true)
    }

    /// The constraints: positions and revisions without gaps, names interned once.
    fn check(&self, batch: &Batch) -> std::result::Result<(), String> {
        let mut next: HashMap<&StreamId, Revision> = HashMap::new();
        let mut position = batch.after.position;
        for row in &batch.rows {
            position = position.next();
            if row.position != position {
                return Err(format!("position {} instead of {position}", row.position));
            }
            let known = self.streams.get(&row.stream);
            let free = known.and_then(|stream| stream.positions.last_key_value());
            let free = free.map_or(Revision(0), |(revision, _)| revision.next());
            let expected = next.entry(&row.stream).or_insert(free);
            if row.revision != *expected {
                return Err(format!(
                    "revision {} of stream {} instead of {expected}",
                    row.revision, row.stream
                ));
            }
            *expected = expected.next();
            if known.is_some_and(|stream| stream.row != row.stream_row) {
                return Err(format!("stream {} interned twice", row.stream));
            }
        }
        let twice = |(_, name): &&(RowId, EventType)| self.types.contains_key(name);
        match batch.new_types.iter().find(twice) {
            Some((_, name)) => Err(format!("event type {name} interned twice")),
            None => Ok(()),
        }
    }

    fn store(&mut self, row: &Row, writer: WriterEpoch, durable: Moment) {
        let new = || Stream {
            row: row.stream_row,
            positions: BTreeMap::new(),
        };
        let stream = self.streams.entry(row.stream.clone()).or_insert_with(new);
        stream.positions.insert(row.revision, row.position);
        let row = row.clone();
        let stored = Stored {
            row,
            writer,
            durable,
        };
        self.rows.insert(stored.row.position, stored);
    }

    /// A batch that appends these events to a stream as it is now.
    pub(super) fn batch_of(
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
        let last = known.and_then(|stream| stream.positions.last_key_value());
        let mut revision = last.map_or(Revision(0), |(revision, _)| revision.next());
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

    /// Loses the newest rows, as a fail-over to a lagging standby does.
    pub(super) fn lose_newest(&mut self, count: usize) {
        let old = std::mem::take(self);
        let keep = old.rows.len().saturating_sub(count);
        let end = old
            .rows
            .values()
            .take(keep)
            .last()
            .map_or(0, |s| s.row.position.0);
        self.types = old.types;
        self.types.retain(|_, row| row.0 <= end);
        for stored in old.rows.values().take(keep) {
            self.store(&stored.row, stored.writer, stored.durable);
        }
    }

    pub(super) fn remove_hidden(
        &mut self,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Removed {
        let end = self.end().position;
        let of_stream = self.rows.values().map(|stored| &stored.row);
        let hidden: Vec<Position> = of_stream
            .filter(|row| row.stream_row == stream && row.position < end)
            .filter(|row| !visibility.shows(row.revision, row.created))
            .map(|row| row.position)
            .collect();
        let mut removed = Removed::default();
        for position in hidden {
            let row = &self.rows[&position].row;
            removed.events += 1;
            removed.payload_bytes += (row.data.len() + row.metadata.len()) as u64;
            if mode == RunMode::Real {
                self.rows.remove(&position);
            }
        }
        removed
    }
}

// ---- reading ----

impl Log {
    fn head(&self, stream: &Stream) -> Option<StreamHead> {
        let (last, position) = stream.positions.last_key_value()?;
        Some(StreamHead {
            row: stream.row,
            last: *last,
            position: *position,
            id: self.rows.get(position).map(|stored| stored.row.id),
        })
    }

    pub(super) fn load(&self, request: &LoadRequest) -> Loaded {
        let meta = |name: &StreamId| {
            let head = self.head(self.streams.get(&name.metadata_stream())?)?;
            let row = &self.rows.get(&head.position)?.row;
            Some(LoadedMeta {
                head,
                data: row.data.clone(),
                metadata: row.metadata.clone(),
            })
        };
        let load = |name: &StreamId| LoadedStream {
            head: self.streams.get(name).and_then(|stream| self.head(stream)),
            meta: meta(name),
        };
        let types = request.types.iter();
        Loaded {
            end: self.end(),
            streams: request.streams.iter().map(load).collect(),
            types: types.map(|name| self.types.get(name).copied()).collect(),
        }
    }

    pub(super) fn lookup(&self, lookup: &EventLookup) -> Vec<EventRef> {
        let of_row = |wanted: RowId| {
            let stream = self.streams.values().find(|stream| stream.row == wanted);
            let positions = stream.into_iter().flat_map(|s| s.positions.values());
            positions.filter_map(|position| self.rows.get(position))
        };
        let found: Vec<&Stored> = match lookup {
            EventLookup::Revisions {
                stream,
                first,
                count,
            } => of_row(*stream)
                .skip_while(|stored| stored.row.revision < *first)
                .take_while(|stored| stored.row.revision.0 < first.0 + *count as u64)
                .collect(),
            EventLookup::Positions(positions) => positions
                .iter()
                .filter_map(|position| self.rows.get(position))
                .collect(),
            EventLookup::Ids {
                events,
                after,
                created_from,
                until,
            } => self
                .rows
                .range(..=*until)
                .map(|(_, stored)| stored)
                .filter(|s| events.contains(&(s.row.stream_row, s.row.id)))
                .filter(|s| s.row.position > *after || s.row.created >= *created_from)
                .collect(),
            EventLookup::After { position, limit } => {
                let rest = self.rows.range(position.next()..).take(*limit);
                rest.map(|(_, stored)| stored).collect()
            }
        };
        found.into_iter().map(Stored::to_ref).collect()
    }

    pub(super) fn read_stream(&self, slice: &StreamSlice, bytes_max: usize) -> Rows {
        if slice.from > slice.to {
            return page(std::iter::empty(), slice, bytes_max);
        }
        let stream = self.streams.get(&slice.stream);
        let positions = stream.map(|stream| stream.positions.range(slice.from..=slice.to));
        let rows = positions
            .into_iter()
            .flatten()
            .filter_map(|(_, position)| self.rows.get(position))
            .filter(|s| slice.created_from.is_none_or(|from| s.row.created >= from));
        page(rows, slice, bytes_max)
    }

    /// Several slices that share one page's bytes.
    pub(super) fn read_streams(&self, slices: &[StreamSlice], bytes_max: usize) -> Vec<Rows> {
        let mut left = bytes_max;
        let mut any = false;
        let read = slices.iter().map(|slice| {
            let mut rows = self.read_stream(slice, left);
            if any && payload_bytes(&rows.events) > left {
                rows.events.clear();
                rows.complete = false;
            }
            any |= !rows.events.is_empty();
            let bytes_ended_it = !rows.complete && rows.events.len() < slice.limit;
            left = match bytes_ended_it {
                true => 0,
                false => left.saturating_sub(payload_bytes(&rows.events)),
            };
            rows
        });
        read.collect()
    }

    pub(super) fn read_log(&self, slice: &LogSlice, bytes_max: usize) -> Rows {
        let order = Order {
            log: slice.log,
            direction: slice.direction,
            limit: slice.limit,
        };
        if slice.after >= slice.to {
            return page(std::iter::empty(), order, bytes_max);
        }
        let rows = self.rows.range(slice.after.next()..=slice.to);
        let matching = rows.map(|(_, stored)| stored).filter(|s| {
            slice.filter.is_all() || slice.filter.matches(&s.row.to_recorded(slice.log))
        });
        page(matching, order, bytes_max)
    }
}

fn payload_bytes(events: &[RecordedEvent]) -> usize {
    events.iter().map(RecordedEvent::payload_bytes).sum()
}

/// What of a slice concerns its page.
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

/// The first rows in the order asked for: at most `limit` and `bytes_max`, but at least one.
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
