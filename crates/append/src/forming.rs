//! A batch being formed: decided appends become rows, and what can only be answered with its commit rides along.

use std::sync::Arc;

use bytes::Bytes;
use gesta_core::backend::{Batch, LogEnd, Row, RowId, StreamHead};
use gesta_core::{
    Appended, AppendedStream, Checkpoint, ContentType, ErrorKind, EventData, EventId, EventType,
    Incarnation, Lifecycle, LifecycleChange, LogId, Position, Revision, StreamId, StreamMetadata,
    Timestamp,
};
use tokio::time::Instant;

use crate::command::{Change, Command, IdSource, Part};
use crate::heads::{Heads, StreamState};

/// A command that is answered when the batch that it rides on has committed.
pub(crate) enum Rider {
    /// The refusal rests on the state that the commit confirms.
    Refuse(Command, ErrorKind),
    /// Only asks whether its claim holds: yes, if the batch commits.
    Confirm(Command),
    /// The events that it may be a retry of are still being committed: decide again after them.
    Recheck(Command),
}

impl Rider {
    pub(crate) fn into_command(self) -> Command {
        match self {
            Rider::Refuse(command, _) | Rider::Confirm(command) | Rider::Recheck(command) => {
                command
            }
        }
    }
}

/// A batch being formed.
#[derive(Default)]
pub(crate) struct Forming {
    pub(crate) rows: Vec<Row>,
    pub(crate) bytes: usize,
    pub(crate) commands: Vec<(Command, Appended)>,
    pub(crate) riders: Vec<Rider>,
    /// Each stream that it touches and the state that it leaves it in.
    pub(crate) touched: Vec<(StreamId, StreamState)>,
    /// Rows whose ids the client made, to recognise retries.
    pub(crate) retryable: Vec<(RowId, EventId, Position)>,
    new_streams: Vec<(RowId, StreamId)>,
    new_types: Vec<(RowId, EventType)>,
}

/// A batch on its way, with all that is to be done when its outcome is known.
pub(crate) struct InFlight {
    pub(crate) batch: Arc<Batch>,
    pub(crate) sent: Instant,
    /// Batches under way when it was sent, itself included.
    pub(crate) queue: usize,
    pub(crate) end: LogEnd,
    pub(crate) commands: Vec<(Command, Appended)>,
    pub(crate) riders: Vec<Rider>,
    pub(crate) touched: Vec<(StreamId, StreamState)>,
    pub(crate) retryable: Vec<(RowId, EventId, Position)>,
}

/// Where rows are placed.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) log: LogId,
    pub(crate) logs: u16,
    pub(crate) incarnation: Incarnation,
    /// The row that the batch follows.
    pub(crate) after: LogEnd,
    pub(crate) now: Timestamp,
}

impl Forming {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.riders.is_empty()
    }

    /// Places all events of a command whose claims hold.
    pub(crate) fn place(&mut self, command: Command, heads: &mut Heads, place: Place) {
        let mut streams = Vec::with_capacity(command.parts.len());
        for part in &command.parts {
            streams.push(self.place_part(part, heads, place));
        }
        self.bytes += command.permit.bytes;
        let position = streams
            .iter()
            .map(|stream| stream.position)
            .max()
            .unwrap_or_default();
        let checkpoint = Checkpoint::in_log(place.incarnation, place.logs, place.log, position);
        let answer = Appended {
            streams,
            log: place.log,
            position,
            checkpoint,
        };
        self.commands.push((command, answer));
    }

    fn place_part(&mut self, part: &Part, heads: &mut Heads, place: Place) -> AppendedStream {
        let mut state = heads.tip(&part.stream).unwrap_or_default();
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
                change_lifecycle(&mut state, *kind);
                lifecycle_event = [lifecycle_event_of(&state, *kind, metadata, *id)];
                &lifecycle_event
            }
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
            last = self.push(&target, row, Revision(revision), event, heads, place);
            if part.ids_from() == IdSource::Client
                && let Some(id) = last.id
            {
                self.retryable.push((row, id, last.position));
            }
        }
        match part.change {
            Change::Events { .. } | Change::Owned { .. } => state.main = Some(last),
            Change::Lifecycle { .. } => state.meta = Some(last),
        }
        self.touch(&part.stream, state, heads);
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
        heads: &mut Heads,
        place: Place,
    ) -> StreamHead {
        let position = self.next_position(place);
        let previous = self
            .rows
            .last()
            .map_or(place.after.created, |row| row.created);
        let type_row = heads.type_tip(&event.event_type).unwrap_or_else(|| {
            let row = RowId(position.0);
            heads.create_type(&event.event_type, row);
            self.new_types.push((row, event.event_type.clone()));
            row
        });
        let id = event.id.unwrap_or_else(EventId::random);
        self.rows.push(Row {
            position,
            stream: stream.clone(),
            stream_row,
            revision,
            id,
            event_type: event.event_type.clone(),
            type_row,
            created: place.now.max(previous),
            content_type: event.content_type,
            data: event.data.clone(),
            packed,
            metadata: event.metadata.clone(),
            tags: event.tags.clone(),
        });
        StreamHead {
            row: stream_row,
            last: revision,
            position,
            id: Some(id),
        }
    }

    fn next_position(&self, place: Place) -> Position {
        self.rows
            .last()
            .map_or(place.after.position, |row| row.position)
            .next()
    }

    /// Looks at the newest entries only: a stream may stand twice, the later entry counts.
    fn touch(&mut self, stream: &StreamId, state: StreamState, heads: &mut Heads) {
        let known = self
            .touched
            .iter_mut()
            .rev()
            .take(8)
            .find(|(touched, _)| touched == stream);
        let opens = known.is_none();
        match known {
            Some(entry) => entry.1 = state,
            None => self.touched.push((stream.clone(), state)),
        }
        heads.advance(stream, state, opens);
    }

    /// Closes the batch. `after` is the row that it follows, `writer` the end that it makes.
    pub(crate) fn close(
        self,
        log: LogId,
        after: LogEnd,
        writer: gesta_core::backend::WriterEpoch,
        queue: usize,
    ) -> InFlight {
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
            sent: Instant::now(),
            queue,
            end,
            commands: self.commands,
            riders: self.riders,
            touched: self.touched,
            retryable: self.retryable,
        }
    }

    /// Undoes it: all streams and types are as committed, and the commands are free again.
    pub(crate) fn undo(self, heads: &mut Heads) -> Vec<Command> {
        self.touched
            .iter()
            .for_each(|(stream, _)| heads.rewind(stream));
        self.new_types
            .iter()
            .for_each(|(_, event_type)| heads.rewind_type(event_type));
        free(self.commands, self.riders)
    }
}

impl InFlight {
    /// Its outcome is unknown: its appends may be stored, or may yet be.
    pub(crate) fn lose(&mut self) {
        let behind = Some(self.batch.after.position);
        for (command, _) in &mut self.commands {
            command.lost_behind = command.lost_behind.max(behind);
        }
    }

    /// Undoes it, as [`Forming::undo`].
    pub(crate) fn undo(self, heads: &mut Heads) -> Vec<Command> {
        self.touched
            .iter()
            .for_each(|(stream, _)| heads.rewind(stream));
        self.batch
            .new_types
            .iter()
            .for_each(|(_, event_type)| heads.rewind_type(event_type));
        free(self.commands, self.riders)
    }
}

fn free(commands: Vec<(Command, Appended)>, riders: Vec<Rider>) -> Vec<Command> {
    let commands = commands.into_iter().map(|(command, _)| command);
    let all = commands.chain(riders.into_iter().map(Rider::into_command));
    all.map(|command| Command {
        rechecked: false,
        ..command
    })
    .collect()
}

fn change_lifecycle(state: &mut StreamState, kind: LifecycleChange) {
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
