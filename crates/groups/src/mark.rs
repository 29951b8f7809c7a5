//! Places of a group with the events by which they are recognised, and what is told if they are not.
//!
//! Why: `history`, which also says how they are compared. Pure; not here: how events are found (`storage`).

use gesta_core::{ErrorKind, EventId, Incarnation, RecordedEvent, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An event before the place of a group, by which the place is recognised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Revision or position of the event in the source.
    pub(crate) at: u64,
    id: Uuid,
    position: u64,
    /// Microseconds since 1970. A client may store an event again that was lost, with its id, and even at its place.
    created: i64,
    /// The last link in the parked stream when the group had come so far. The parked stream may lie in another database
    /// than the source, and what is lost there was neither finished nor is it parked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parked: Option<ParkedMark>,
}

/// A link in the parked stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ParkedMark {
    /// Revision of the link in the parked stream.
    pub(crate) at: u64,
    pub(crate) id: Uuid,
    pub(crate) position: u64,
    /// Number of the parked stream.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) stream: u16,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks for it")]
pub(crate) fn is_zero(number: &u16) -> bool {
    *number == 0
}

impl Mark {
    pub(crate) fn new(at: u64, event: &RecordedEvent) -> Self {
        Self {
            at,
            id: event.id.0,
            position: event.position.0,
            created: event.created.as_micros(),
            parked: None,
        }
    }

    /// Adds what was parked last.
    pub(crate) fn with_parked(self, parked: Option<ParkedMark>) -> Self {
        Self { parked, ..self }
    }

    /// Returns what was parked last when the group had come so far.
    pub(crate) fn parked(&self) -> Option<&ParkedMark> {
        self.parked.as_ref()
    }

    /// Returns true if the mark is of this event.
    pub(crate) fn is_of(&self, event: &RecordedEvent) -> bool {
        Self::new(self.at, event).with_parked(self.parked) == *self
    }

    /// Returns the id of the event.
    pub(crate) fn event_id(&self) -> EventId {
        EventId(self.id)
    }

    /// Returns the place after the event.
    pub(crate) fn next(self) -> u64 {
        self.at.saturating_add(1)
    }
}

/// What stands in the source where a mark was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MarkState {
    /// The event of the mark.
    Same,
    /// Another event, or the source does not reach so far.
    Other,
    /// The event of the mark, but what the group had parked by then was lost.
    NotParked,
    /// Nothing that can be read: the event may be hidden or removed, or lost.
    Nothing,
}

/// Adds a mark to others, which are in their order. Of those that are about equally far before it one is kept, so that
/// a few marks reach far back.
pub(crate) fn with_mark(marks: &[Mark], newest: Option<Mark>) -> Vec<Mark> {
    /// By how many powers of two the distances of two marks differ that are both kept.
    const CLASS_BITS: u32 = 6;
    let Some(newest) = newest else {
        return marks.to_vec();
    };
    let mut kept = Vec::new();
    let mut last = None;
    for mark in marks.iter().filter(|mark| mark.at < newest.at) {
        let class = (newest.at - mark.at).ilog2() / CLASS_BITS;
        if last.replace(class) != Some(class) {
            kept.push(*mark);
        }
    }
    kept.push(newest);
    kept
}

/// A place as it was stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredPlace {
    /// Revision or position below which everything is finished.
    pub(crate) next: u64,
    /// Incarnation of the store in which the place was reached; `None` if an older version stored the place.
    pub(crate) incarnation: Option<Incarnation>,
    /// Events before the place, the newest last.
    pub(crate) marks: Vec<Mark>,
    /// When the place was stored.
    pub(crate) stored: Timestamp,
    /// Whether the source may end before the place: a group may begin with an event that does not exist yet.
    pub(crate) may_be_ahead: bool,
}

/// Why a group is halted: what is before its place now is not what it has finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Halt {
    /// Revision or position at which the group would go on, if the history of the store was the same.
    pub place: u64,
    /// Greatest revision or position at which the group may go on without passing anything over, as far as it knows;
    /// `None` if it knows none. What it has finished after this place comes again.
    pub surviving: Option<u64>,
    /// Reason for people.
    pub why: String,
}

impl StoredPlace {
    /// Tells whether the place was reached in this incarnation, as far as this is known.
    pub(crate) fn is_of(&self, present: Incarnation) -> bool {
        match self.incarnation {
            Some(incarnation) => incarnation == present,
            None => present.begun().is_none_or(|begun| self.stored > begun),
        }
    }
}

/// Makes the error of a store that has another history than a group.
pub(crate) fn another_history() -> gesta_core::Error {
    let why = "the store has another history now: it was restored, or has lost events";
    ErrorKind::InvalidCheckpoint(why.into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(at: u64) -> Mark {
        Mark {
            at,
            id: Uuid::from_u128(at.into()),
            position: at,
            created: 0,
            parked: None,
        }
    }

    /// Goal: a few marks reach far back, and there is one near the newest.
    #[test]
    fn marks_get_rarer_with_their_distance() {
        let mut marks = Vec::new();
        for at in 0..1_000_000 {
            marks = with_mark(&marks, Some(mark(at)));
            assert!(marks.len() <= 6, "{marks:?}");
            assert_eq!(marks.last().map(|mark| mark.at), Some(at));
        }
        let at: Vec<u64> = marks.iter().map(|mark| 999_999 - mark.at).collect();
        assert!(at.is_sorted_by(|a, b| a > b), "{at:?}");
        for distance in [64, 4_096, 262_144] {
            let near = at.iter().filter(|at| (1..distance).contains(*at)).count();
            assert!(near > 0, "{at:?}");
        }
        // What is not before the newest any more is dropped.
        assert_eq!(with_mark(&marks, Some(mark(0))), [mark(0)]);
        assert_eq!(with_mark(&marks, None), marks);
    }
}
