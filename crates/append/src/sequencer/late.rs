//! Appends in doubt, and their statements that are found in the log after all (*late commits*).
//!
//! A statement whose connection died may commit late, after everything was undone. Its append is then about to be
//! decided again, although its own events are already stored. If they were not recognised, the append would be stored
//! twice, or refused although it is stored. Every late commit makes the next batch miss, so it is seen while catching
//! up, before anything is decided.
//!
//! A statement is recognised by its last row: the position at which that row would be, and the epoch of the connection
//! on which it was sent. The ids of the events alone prove nothing. Another process may have stored the same events
//! for an earlier attempt, and deleted them since, before the append came. Then the append is a retry, and is decided
//! as one.

use std::collections::HashMap;

use gesta_core::backend::{EventRef, WriterEpoch};
use gesta_core::{AppendedStream, EventId, Position};

use crate::command::{Command, FoundStored, StoredBy};

/// The lost statements of appends in doubt, as far as they were seen in the log.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// The last rows of the statements.
    rows: HashMap<(Position, WriterEpoch), LastRow>,
}

/// The last row of a lost statement that holds the events of one append.
#[derive(Debug)]
struct LastRow {
    id: EventId,
    was_seen: bool,
}

impl Late {
    /// Begins to seek the lost statements of this command.
    pub(crate) fn seek<T>(&mut self, command: &Command<T>) {
        for lost in &command.lost {
            if let Some(id) = command.last_id() {
                let was_seen = false;
                self.rows
                    .insert((lost.last, lost.writer), LastRow { id, was_seen });
            }
        }
    }

    /// Takes an event of the log.
    pub(crate) fn observe(&mut self, event: &EventRef) {
        if let Some(row) = self.rows.get_mut(&(event.position, event.writer)) {
            row.was_seen |= row.id == event.id;
        }
    }

    /// Notes what has become of the lost statements of a command. The log was read up to `end`, after which one that
    /// was not seen can be stored only if it must follow the last row.
    pub(crate) fn settle<T>(&self, command: &mut Command<T>, end: Position) {
        if let Some(streams) = self.find(command) {
            let by = StoredBy::Itself;
            command.stored = Some(FoundStored { streams, by });
        }
        command.lost.retain(|lost| lost.after >= end);
    }

    fn find<T>(&self, command: &Command<T>) -> Option<Vec<AppendedStream>> {
        let lost = command.lost.iter().find(|lost| {
            let row = self.rows.get(&(lost.last, lost.writer));
            row.is_some_and(|row| row.was_seen)
        });
        lost.map(|lost| lost.streams.clone())
    }
}
