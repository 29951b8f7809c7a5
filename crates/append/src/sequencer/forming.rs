//! A batch being formed: decided appends become rows, and answers that depend on the commit of the batch are kept with
//! it.

use std::sync::Arc;

use bytes::Bytes;
use gesta_core::backend::{Batch, LogEnd, Row, RowId, StreamHead, WriterEpoch};
use gesta_core::{
    Appended, AppendedStream, Checkpoint, ContentType, ErrorKind, EventData, EventId, EventType,
    Incarnation, Lifecycle, LifecycleChange, LogId, Moment, Position, Revision, StreamId,
    StreamMetadata, Timestamp,
};

use super::clock::{ClockPolicy, ClockWatch};
use super::knowledge::{Knowledge, StreamState};
use crate::command::{Change, Command, Cost, IdSource, LostStatement, StreamPart};

/// A command without rows in the batch, whose answer depends on the commit of the batch. The commit proves that nothing
/// else came between.
#[derive(Debug)]
pub(crate) struct Dependent<T> {
    pub(crate) command: Command<T>,
    pub(crate) answer: DependentAnswer,
}

/// What becomes of a dependent command when the batch has committed.
#[derive(Debug)]
pub(crate) enum DependentAnswer {
    /// The command is refused. The refusal rests on the state that the commit confirms.
    Refused(ErrorKind),
    /// A later attempt of the command may have been stored before this one, and be gone with this stream.
    Overtaken(StreamId),
    /// The command only asked whether its claims hold, and they do.
    Confirmed,
    /// The events of the command are stored already, in these streams.
    Stored(Vec<AppendedStream>),
}

/// What a batch carries besides its rows.
#[derive(Debug)]
pub(crate) struct Cargo<T> {
    /// The commands whose events are the rows of the batch, with their answers.
    pub(crate) placed: Vec<(Command<T>, Appended)>,
    pub(crate) dependents: Vec<Dependent<T>>,
    /// The streams that the batch touches, each with the state in which the batch leaves it.
    pub(crate) touched: Vec<(StreamId, StreamState)>,
    /// The rows whose ids the client made. Their ids are remembered to recognise retries.
    pub(crate) retryable: Vec<(RowId, EventId, Position)>,
}

impl<T> Default for Cargo<T> {
    fn default() -> Self {
        Self {
            placed: Vec::new(),
            dependents: Vec::new(),
            touched: Vec::new(),
            retryable: Vec::new(),
        }
    }
}

impl<T> Cargo<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.placed.is_empty() && self.dependents.is_empty()
    }

    fn into_commands(self) -> impl Iterator<Item = Command<T>> {
        let placed = self.placed.into_iter().map(|(command, _)| command);
        let dependents = self.dependents.into_iter().map(|one| one.command);
        placed.chain(dependents)
    }
}

/// A batch being formed.
#[derive(Debug)]
pub(crate) struct Forming<T> {
    rows: Vec<Row>,
    bytes: usize,
    pub(crate) cargo: Cargo<T>,
    new_streams: Vec<(RowId, StreamId)>,
    new_types: Vec<(RowId, EventType)>,
}

impl<T> Default for Forming<T> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            bytes: 0,
            cargo: Cargo::default(),
            new_streams: Vec::new(),
            new_types: Vec::new(),
        }
    }
}

/// A batch in flight, with everything that is to be done when its outcome is known.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    pub(crate) batch: Arc<Batch>,
    pub(crate) sent: Moment,
    /// The number of batches in flight when this batch was sent, itself included.
    pub(crate) queue: usize,
    pub(crate) end: LogEnd,
    pub(crate) cargo: Cargo<T>,
}

/// The bounds of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) events_max: usize,
    pub(crate) bytes_max: usize,
    pub(crate) commands_max: usize,
}

/// The greatest number of answers that may depend on one batch.
const DEPENDENTS_MAX: usize = 10_000;

/// Where and when rows are placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) log: LogId,
    pub(crate) logs: u16,
    pub(crate) incarnation: Incarnation,
    /// The row that the batch follows.
    pub(crate) after: LogEnd,
    /// The last row that is known to be committed.
    pub(crate) committed: Position,
    pub(crate) now: Timestamp,
    pub(crate) clock: ClockPolicy,
}

impl<T> Forming<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.cargo.dependents.is_empty()
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns whether a command of this cost does not fit. A command that is larger than a batch is sent in a batch of
    /// its own.
    pub(crate) fn is_full_for(&self, cost: Cost, bounds: Bounds) -> bool {
        let full = !self.cargo.placed.is_empty()
            && (self.rows.len() + cost.events > bounds.events_max
                || self.bytes + cost.bytes > bounds.bytes_max
                || self.cargo.placed.len() >= bounds.commands_max);
        full || self.cargo.dependents.len() >= DEPENDENTS_MAX
    }

    /// Keeps an answer until the batch has committed.
    pub(crate) fn depend(&mut self, command: Command<T>, answer: DependentAnswer) {
        self.cargo.dependents.push(Dependent { command, answer });
    }

    /// Places all events of a command whose claims hold.
    pub(crate) fn place(&mut self, command: Command<T>, known: &mut Knowledge, place: Placement) {
        let mut streams = Vec::with_capacity(command.parts.len());
        for part in command.parts.iter().filter(|part| !part.is_question()) {
            streams.push(self.place_part(part, known, place));
        }
        self.bytes += command.cost.bytes;
        let answer = appended(streams, place);
        self.cargo.placed.push((command, answer));
    }

    fn place_part(
        &mut self,
        part: &StreamPart,
        known: &mut Knowledge,
        place: Placement,
    ) -> AppendedStream {
        let mut state = known.tip(&part.stream).unwrap_or_default();
        let target = part.target();
        let (head, lifecycle_event);
        let events: &[EventData] = match &part.change {
            Change::Events { events, .. } | Change::Owned { events, .. } => {
                head = state.main;
                events
            }
            Change::Lifecycle {
                kind, metadata, id, ..
            } => {
                head = state.meta;
                change_lifecycle(&mut state, *kind, metadata);
                lifecycle_event = [lifecycle_event_of(&state, *kind, metadata, *id)];
                &lifecycle_event
            }
            Change::Condition(_) => unreachable!("a condition is not placed"),
        };
        let first_position = self.next_position(place);
        let row = head.map_or(RowId(first_position.0), |head| head.row);
        if head.is_none() {
            self.new_streams.push((row, target.clone()));
        }
        let first_revision = head.map_or(Revision(0), |head| head.last.next());
        let mut last = StreamHead {
            row,
            last: first_revision,
            position: first_position,
            id: None,
        };
        for (number, (revision, event)) in (first_revision.0..).zip(events).enumerate() {
            let event = (event, part.packed(number));
            last = self.push(&target, row, Revision(revision), event, known, place);
            if part.ids_from() == IdSource::Client
                && let Some(id) = last.id
            {
                self.cargo.retryable.push((row, id, last.position));
            }
        }
        match part.change {
            Change::Events { .. } | Change::Owned { .. } => state.main = Some(last),
            Change::Lifecycle { .. } => state.meta = Some(last),
            Change::Condition(_) => {}
        }
        self.touch(&part.stream, state, known);
        AppendedStream {
            stream: target,
            first_revision,
            last_revision: last.last,
            position: last.position,
        }
    }

    fn push(
        &mut self,
        stream: &StreamId,
        stream_row: RowId,
        revision: Revision,
        (event, packed): (&EventData, Option<Bytes>),
        known: &mut Knowledge,
        place: Placement,
    ) -> StreamHead {
        let position = self.next_position(place);
        let previous = self
            .rows
            .last()
            .map_or(place.after.created, |row| row.created);
        let type_row = known.type_tip(&event.event_type).unwrap_or_else(|| {
            let row = RowId(position.0);
            known.create_type(&event.event_type, row);
            self.new_types.push((row, event.event_type.clone()));
            row
        });
        let id = event.id.unwrap_or_else(EventId::random);
        let row = Row {
            position,
            stream: stream.clone(),
            stream_row,
            revision,
            id,
            event_type: event.event_type.clone(),
            type_row,
            created: ClockWatch::time_after(place.clock, previous, place.now),
            content_type: event.content_type,
            data: event.data.clone(),
            packed,
            metadata: event.metadata.clone(),
            tags: event.tags.clone(),
        };
        known.see(&row, place.committed);
        self.rows.push(row);
        StreamHead {
            row: stream_row,
            last: revision,
            position,
            id: Some(id),
        }
    }

    fn next_position(&self, place: Placement) -> Position {
        self.rows
            .last()
            .map_or(place.after.position, |row| row.position)
            .next()
    }

    /// Records the state in which the batch leaves a stream. Only the newest entries are searched, so a stream may have
    /// two entries; the later one counts.
    fn touch(&mut self, stream: &StreamId, state: StreamState, known: &mut Knowledge) {
        let entry = self
            .cargo
            .touched
            .iter_mut()
            .rev()
            .take(8)
            .find(|(touched, _)| touched == stream);
        let opens = entry.is_none();
        match entry {
            Some(entry) => entry.1 = state,
            None => self.cargo.touched.push((stream.clone(), state)),
        }
        known.advance(stream, state, opens);
    }

    /// Closes the batch. `after` is the row that the batch follows, and `writer` the connection that stores it. `queue`
    /// is the number of batches under way, this one included.
    pub(crate) fn close(
        self,
        log: LogId,
        after: LogEnd,
        writer: WriterEpoch,
        queue: usize,
        now: Moment,
    ) -> InFlight<T> {
        let end = self.rows.last().map_or(after, |row| LogEnd {
            position: row.position,
            writer,
            created: row.created,
        });
        let batch = Arc::new(Batch {
            log,
            after,
            rows: self.rows,
            new_streams: self.new_streams,
            new_types: self.new_types,
        });
        InFlight {
            batch,
            sent: now,
            queue,
            end,
            cargo: self.cargo,
        }
    }

    /// Undoes the batch: all its streams and types are as committed again. Returns its commands.
    pub(crate) fn undo(self, known: &mut Knowledge) -> impl Iterator<Item = Command<T>> {
        undo(&self.cargo, &self.new_types, known);
        self.cargo.into_commands()
    }
}

impl<T> InFlight<T> {
    /// Returns whether nobody waits for the batch. Such a batch was sent to see how long an answer takes, and whether
    /// there is one.
    pub(crate) fn is_probe(&self) -> bool {
        self.batch.rows.is_empty() && self.cargo.is_empty()
    }

    /// Marks the appends of the batch as in doubt: they may be stored, or may be stored later. Their answers go with
    /// the statement.
    pub(crate) fn doubt(&mut self) {
        let (after, writer) = (self.batch.after.position, self.end.writer);
        for (command, answer) in &mut self.cargo.placed {
            command.lost.push(LostStatement {
                after,
                writer,
                last: answer.position,
                streams: std::mem::take(&mut answer.streams),
            });
        }
    }

    /// Undoes the batch as [`Forming::undo`] does.
    pub(crate) fn undo(self, known: &mut Knowledge) -> impl Iterator<Item = Command<T>> {
        undo(&self.cargo, &self.batch.new_types, known);
        self.cargo.into_commands()
    }
}

fn undo<T>(cargo: &Cargo<T>, new_types: &[(RowId, EventType)], known: &mut Knowledge) {
    cargo
        .touched
        .iter()
        .for_each(|(stream, _)| known.rewind(stream));
    new_types
        .iter()
        .for_each(|(_, event_type)| known.rewind_type(event_type));
}

/// Makes the answer to a command whose events are stored in these streams.
pub(crate) fn appended(streams: Vec<AppendedStream>, place: Placement) -> Appended {
    let position = streams
        .iter()
        .map(|stream| stream.position)
        .max()
        .unwrap_or_default();
    let checkpoint = Checkpoint::in_log(place.incarnation, place.logs, place.log, position);
    Appended {
        streams,
        log: place.log,
        position,
        checkpoint,
    }
}

fn change_lifecycle(state: &mut StreamState, kind: LifecycleChange, metadata: &StreamMetadata) {
    state.hides_events = metadata.hides_events();
    match kind {
        LifecycleChange::Metadata => {}
        LifecycleChange::Deleted => {
            state.deleted_before = state.main.map_or(Revision(0), |head| head.last.next());
        }
        LifecycleChange::Tombstone => state.tombstoned = true,
    }
}

fn lifecycle_event_of(
    state: &StreamState,
    kind: LifecycleChange,
    metadata: &StreamMetadata,
    id: EventId,
) -> EventData {
    let lifecycle = Lifecycle {
        metadata: metadata.clone(),
        deleted_before: state.deleted_before,
        tombstoned: state.tombstoned,
    };
    let event = lifecycle.to_event(kind).with_id(id);
    debug_assert_eq!(event.content_type, ContentType::Json);
    event
}
