//! Changes gathered from events, to be stored at once.

use std::collections::HashMap;

use gesta::RecordedEvent;
use uuid::Uuid;

use super::Error;
use crate::events::{self, CATEGORY};

/// Changes of the number of available seats between two checkpoints.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    /// The checkpoint that they begin after; empty for the first.
    pub(super) from: String,
    /// The checkpoint that they reach.
    pub(super) to: String,
    /// What to add, by show. A new show adds its seats to nothing.
    pub(super) changes: HashMap<Uuid, i64>,
    /// How many events were counted.
    pub(super) events: usize,
}

impl Batch {
    /// No changes yet.
    pub(super) fn after(checkpoint: String) -> Self {
        Self {
            to: checkpoint.clone(),
            from: checkpoint,
            ..Self::default()
        }
    }

    /// Counts an event.
    ///
    /// # Errors
    /// [`Error::Unreadable`].
    pub(super) fn count(&mut self, event: &RecordedEvent) -> Result<(), Error> {
        self.events += 1;
        let change = match event.event_type.as_str() {
            events::SEAT_RESERVED => -1,
            events::SEAT_RESERVATION_CANCELLED => 1,
            events::SHOW_CREATED => {
                let seats = events::seats_created(&event.data);
                let seats = seats.map_err(|detail| unreadable(event, detail))?;
                i64::try_from(seats).unwrap_or(i64::MAX)
            }
            // The filter lets nothing else through; a later version of this program may add types.
            _ => return Ok(()),
        };
        *self.changes.entry(show_id(event)?).or_default() += change;
        Ok(())
    }

    /// Shows and changes side by side, as databases take them.
    pub(super) fn columns(&self) -> (Vec<Uuid>, Vec<i64>) {
        self.changes.iter().unzip()
    }
}

/// The show whose stream holds the event: its name costs less to read than its data.
fn show_id(event: &RecordedEvent) -> Result<Uuid, Error> {
    let id = event.stream.as_str().strip_prefix(CATEGORY);
    let id = id.and_then(|id| id.strip_prefix('-')).unwrap_or_default();
    Uuid::try_parse(id).map_err(|error| unreadable(event, error.to_string()))
}

fn unreadable(event: &RecordedEvent, detail: String) -> Error {
    Error::Unreadable {
        stream: event.stream.to_string(),
        position: event.position.0,
        detail,
    }
}
