//! What only fuzzing uses: what reads the documents in which the store keeps timers.

use gesta_core::{RecordedEvent, Result, Revision};

use crate::record::{self, Set, What};
use crate::requests::Place;
use crate::timer::Timer;

/// Reads the request to set a timer.
///
/// # Errors
/// `Corrupt` if the document cannot be read; `InvalidArgument` if the timer breaks a rule.
pub fn request(event: &RecordedEvent) -> Result<Timer> {
    record::read::<Set>(event)?.timer(event.id)
}

/// Reads a state of an owner. Returns the timers that it holds, and whether a request of this revision comes right
/// after those that the state has seen.
///
/// # Errors
/// `Corrupt` if the document cannot be read.
pub fn state(event: &RecordedEvent, next: Revision) -> Result<(Vec<Timer>, Option<bool>)> {
    let (state, timers) = record::read_state(event)?;
    let through = match state.does {
        What::Owned => None,
        What::Idle { through } | What::Fired { through, .. } | What::Kept { through, .. } => {
            through
        }
    };
    let place = Place {
        through,
        ..Place::default()
    };
    Ok((timers, place.is_next(next)))
}
