//! Appends in doubt, and their events that are found in the log after all (*late commits*).
//!
//! A statement whose connection died may commit late, after everything was undone. Its append is then about to be
//! decided again, although its own events are already stored. If they were not recognised, the append would be stored
//! twice, or refused although it is stored. Every late commit makes the next batch miss, so it is seen while catching
//! up, before anything is decided.

use std::collections::HashMap;

use gesta_core::backend::EventRef;
use gesta_core::{AppendedStream, EventId, Position, Revision, StreamId};

use crate::command::{Command, StreamPart};

/// The events of appends in doubt, as far as they were seen in the log.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// The events that are sought, each with the place where it was seen.
    events: HashMap<EventId, Option<(StreamId, Revision, Position)>>,
}

impl Late {
    /// Begins to seek the events of this command, which is in doubt.
    pub(crate) fn seek<T>(&mut self, command: &Command<T>) {
        for id in command.parts.iter().flat_map(StreamPart::ids) {
            self.events.entry(id).or_default();
        }
    }

    /// Takes an event of the log.
    pub(crate) fn observe(&mut self, event: &EventRef) {
        if let Some(place) = self.events.get_mut(&event.id) {
            *place = Some((event.stream.clone(), event.revision, event.position));
        }
    }

    /// Returns where the events of a command were seen, if all of them were.
    pub(crate) fn find<T>(&self, command: &Command<T>) -> Option<Vec<AppendedStream>> {
        command
            .parts
            .iter()
            .filter(|part| !part.is_question())
            .map(|part| self.find_part(part))
            .collect()
    }

    /// Returns where a part is stored, if all of its events are stored one after the other.
    fn find_part(&self, part: &StreamPart) -> Option<AppendedStream> {
        let stream = part.target();
        let mut found: Option<AppendedStream> = None;
        for id in part.ids() {
            let (of, revision, position) = self.events.get(&id)?.as_ref()?;
            let follows = found
                .as_ref()
                .is_none_or(|found| found.last_revision.next() == *revision);
            if *of != stream || !follows {
                return None;
            }
            found = Some(AppendedStream {
                stream: stream.clone(),
                first_revision: found.map_or(*revision, |found| found.first_revision),
                last_revision: *revision,
                position: *position,
            });
        }
        found
    }
}
