//! How requests and states are stored: as events with JSON.

use gesta_core::{Error, EventId, RecordedEvent, Result, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::data::Data;
use crate::timer::{Cause, NewTimer, Timer, check};

/// The type of the event by which a timer is set.
pub(crate) const SET: &str = "timer-set";
/// The type of the event by which a timer is cancelled.
pub(crate) const CANCELLED: &str = "timer-cancelled";
/// The type of the states of an owner.
pub(crate) const STATE: &str = "timers-state";

/// The greatest number of timers that are stored in one event.
const PART: usize = 1_000;
/// About the greatest number of bytes of timers that are stored in one event.
const PART_BYTES: usize = 1024 * 1024;

/// A timer is set.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Set {
    pub(crate) key: String,
    /// RFC 3339, in UTC.
    pub(crate) due: String,
    #[serde(default, skip_serializing_if = "Data::is_none")]
    pub(crate) data: Data,
    /// The event because of which it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) because: Option<Cause>,
}

/// A timer is cancelled.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cancelled {
    pub(crate) key: String,
    /// The event because of which it is cancelled: what was set because of a later one is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) because: Option<Cause>,
}

/// A state of an owner: that it lives, and what it has done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    /// The process that fires; none if it has ended in good order.
    pub(crate) owner: Option<Uuid>,
    pub(crate) does: What,
}

/// What an owner has done.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// It has taken over, goes on, or gives the timers free.
    Owned,
    /// It gives the timers free because none is pending after the requests up to this one.
    Idle { through: Option<Through> },
    /// The timers with these ids have fired, which were set by requests up to this one. Earlier versions do not say up
    /// to which: then it counts whatever was lost.
    Fired {
        ids: Vec<Uuid>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        through: Option<Through>,
    },
    /// A part of the timers that are pending after the requests up to this one. The parts follow one another.
    Kept {
        part: u32,
        of: u32,
        through: Option<Through>,
        timers: Vec<Kept>,
    },
}

/// A request, by its place, its id, and when it was stored. One that is made again after it was lost has the same id,
/// and may have the same place, but it is stored later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Through {
    pub(crate) revision: u64,
    pub(crate) id: Uuid,
    /// In microseconds since 1970. Earlier versions do not say it: then the place and the id count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<i64>,
}

/// A timer that is pending.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) id: Uuid,
    pub(crate) key: String,
    pub(crate) due: String,
    #[serde(default, skip_serializing_if = "Data::is_none")]
    pub(crate) data: Data,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) because: Option<Cause>,
}

impl Through {
    pub(crate) fn of(event: &RecordedEvent) -> Self {
        Self {
            revision: event.revision.0,
            id: event.id.0,
            created: Some(event.created.0),
        }
    }

    /// Returns whether this event is the request.
    pub(crate) fn is(self, event: &RecordedEvent) -> bool {
        let is_then = |created| created == event.created.0;
        (self.revision, self.id) == (event.revision.0, event.id.0)
            && self.created.is_none_or(is_then)
    }
}

impl Set {
    pub(crate) fn of(timer: &NewTimer) -> Self {
        Self {
            key: timer.key.clone(),
            due: timer.due.to_string(),
            data: timer.data.clone(),
            because: timer.because,
        }
    }

    /// Returns the timer, if it is within the bounds: anybody may have appended it.
    pub(crate) fn timer(self, id: EventId) -> Result<Timer> {
        let due = Timestamp::parse(&self.due)?;
        check(&self.key, due, &self.data)?;
        Ok(Timer {
            due,
            key: self.key,
            data: self.data,
            id,
            because: self.because,
        })
    }
}

impl Kept {
    pub(crate) fn of(timer: &Timer) -> Self {
        Self {
            id: timer.id.0,
            key: timer.key.clone(),
            due: timer.due.to_string(),
            data: timer.data.clone(),
            because: timer.because,
        }
    }

    fn timer(self) -> Result<Timer> {
        Ok(Timer {
            due: Timestamp::parse(&self.due)?,
            key: self.key,
            data: self.data,
            id: EventId(self.id),
            because: self.because,
        })
    }
}

/// Divides all timers into those that are stored in one event each. There is at least one part.
pub(crate) fn parts(all: Vec<&Timer>) -> Vec<Vec<&Timer>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for timer in all {
        let of = timer.bytes();
        if let Some(part) = parts.last()
            && !part.is_empty()
            && (part.len() >= PART || bytes + of > PART_BYTES)
        {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += of;
        if let Some(part) = parts.last_mut() {
            part.push(timer);
        }
    }
    parts
}

/// Reads a state, and the timers that it holds.
pub(crate) fn read_state(event: &RecordedEvent) -> Result<(State, Vec<Timer>)> {
    let mut state: State = read(event)?;
    let kept = match &mut state.does {
        What::Kept { timers, .. } => std::mem::take(timers),
        _ => Vec::new(),
    };
    let timers: Result<Vec<Timer>> = kept.into_iter().map(Kept::timer).collect();
    let timers = timers.map_err(|error| corrupt(event, &error))?;
    Ok((state, timers))
}

/// Reads the data of an event.
pub(crate) fn read<'a, T: Deserialize<'a>>(event: &'a RecordedEvent) -> Result<T> {
    serde_json::from_slice(&event.data).map_err(|error| corrupt(event, &error))
}

fn corrupt(event: &RecordedEvent, error: &dyn std::error::Error) -> Error {
    let (stream, revision) = (&event.stream, event.revision);
    Error::corrupt(format!("stream {stream}, revision {revision}: {error}"))
}
