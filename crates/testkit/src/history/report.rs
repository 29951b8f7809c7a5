//! What a check has found.

use std::fmt;

use gesta_core::{EventId, LogId, Position, Revision, StreamId};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// An acknowledged event is not stored.
    AcknowledgedLost {
        /// Its stream.
        stream: StreamId,
        /// The event.
        id: EventId,
    },
    /// An event is stored more than once in its stream.
    StoredTwice {
        /// Its stream.
        stream: StreamId,
        /// The event.
        id: EventId,
    },
    /// An append was refused, or said to have written nothing, but is stored.
    RefusedStored {
        /// Its first stream.
        stream: StreamId,
        /// Its first event.
        id: EventId,
    },
    /// A retry was refused although an earlier attempt had been acknowledged.
    RefusedAfterAcknowledged {
        /// Its first stream.
        stream: StreamId,
        /// Its first event.
        id: EventId,
    },
    /// An append is stored in part, or its events do not follow each other.
    PartlyStored {
        /// The stream that lacks events.
        stream: StreamId,
        /// Its first event.
        id: EventId,
    },
    /// An acknowledged append is stored at another place than its answer says.
    WrongPlace {
        /// The stream.
        stream: StreamId,
        /// Its first event.
        id: EventId,
        /// What differs.
        detail: String,
    },
    /// A revision of a stream is missing, doubled or out of order.
    RevisionGap {
        /// The stream.
        stream: StreamId,
        /// The revision that should have come.
        expected: Revision,
        /// The one that came.
        found: Revision,
    },
    /// Positions of a log do not grow.
    PositionOrder {
        /// The log.
        log: LogId,
        /// The position that is not above the one before it.
        position: Position,
    },
    /// `created` is earlier than at the position before.
    CreatedDecreased {
        /// The log.
        log: LogId,
        /// The position.
        position: Position,
    },
    /// A tailer got an event at or below a position that it had seen.
    TailerOrder {
        /// The tailer.
        tailer: String,
        /// The log.
        log: LogId,
        /// The position of the event.
        position: Position,
    },
    /// An event is stored at or below a position that a tailer had passed, but the tailer never got it:
    /// it appeared late, or the subscription dropped it.
    AppearedBelowPassed {
        /// The tailer.
        tailer: String,
        /// The log.
        log: LogId,
        /// The position of the event.
        position: Position,
    },
    /// A tailer got an event that is not stored there: it vanished or is another one.
    Vanished {
        /// The tailer.
        tailer: String,
        /// The log.
        log: LogId,
        /// The position of the event.
        position: Position,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AcknowledgedLost { stream, id } => event(f, "acknowledged, but lost", stream, id),
            Self::StoredTwice { stream, id } => event(f, "stored twice", stream, id),
            Self::RefusedStored { stream, id } => append(f, "refused, but stored", stream, id),
            Self::RefusedAfterAcknowledged { stream, id } => {
                append(f, "refused after it was acknowledged", stream, id)
            }
            Self::PartlyStored { stream, id } => append(f, "stored in part", stream, id),
            Self::WrongPlace { stream, id, detail } => {
                event(f, "stored elsewhere than answered", stream, id)?;
                write!(f, ": {detail}")
            }
            Self::RevisionGap {
                stream,
                expected,
                found,
            } => write!(
                f,
                "gap in stream {stream}: revision {found} instead of {expected}"
            ),
            Self::PositionOrder { log, position } => write!(
                f,
                "position {position} of log {log} is not above the one before it"
            ),
            Self::CreatedDecreased { log, position } => write!(
                f,
                "position {position} of log {log} was created before the one before it"
            ),
            Self::TailerOrder {
                tailer,
                log,
                position,
            } => write!(
                f,
                "tailer {tailer} got position {position} of log {log} at or below one that it had seen"
            ),
            Self::AppearedBelowPassed {
                tailer,
                log,
                position,
            } => write!(
                f,
                "position {position} of log {log} is below one that tailer {tailer} had passed, who never got it"
            ),
            Self::Vanished {
                tailer,
                log,
                position,
            } => write!(
                f,
                "tailer {tailer} got position {position} of log {log}, where something else is stored"
            ),
        }
    }
}

/// What is wrong with an event.
fn event(f: &mut fmt::Formatter<'_>, what: &str, stream: &StreamId, id: &EventId) -> fmt::Result {
    write!(f, "{what}: event {id} of stream {stream}")
}

/// What is wrong with the append of an event.
fn append(f: &mut fmt::Formatter<'_>, what: &str, stream: &StreamId, id: &EventId) -> fmt::Result {
    write!(f, "{what}: the append of event {id} to stream {stream}")
}

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Appends sent, each counted once however often it was retried.
    pub requests: usize,
    /// Attempts to send them.
    pub attempts: usize,
    /// Appends acknowledged at least once.
    pub acknowledged: usize,
    /// Appends never acknowledged, whose last word is a refusal or that nothing was written.
    pub refused: usize,
    /// Appends of unknown outcome that turned out to be stored.
    pub unknown_stored: usize,
    /// Appends of unknown outcome that turned out to be absent.
    pub unknown_absent: usize,
    /// Events in the store.
    pub events_stored: usize,
    /// Events of acknowledged appends.
    pub events_acknowledged: usize,
    /// Events in the store that none of the appends asked for (lifecycle events, earlier contents).
    pub events_foreign: usize,
    /// Events that tailers have seen, all together.
    pub events_tailed: usize,
    /// Broken promises. Empty is what one wants.
    pub violations: Vec<Violation>,
}

impl Report {
    /// True if every promise was kept.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Fails unless every promise was kept.
    ///
    /// # Panics
    /// With the first broken promises.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

/// Most broken promises that are written out.
const SHOWN_MAX: usize = 20;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} appends in {} attempts: {} acknowledged, {} refused, {} unknown ({} stored, {} absent); \
             {} events stored, {} tailed; {} violations",
            self.requests,
            self.attempts,
            self.acknowledged,
            self.refused,
            self.unknown_stored + self.unknown_absent,
            self.unknown_stored,
            self.unknown_absent,
            self.events_stored,
            self.events_tailed,
            self.violations.len()
        )?;
        for violation in self.violations.iter().take(SHOWN_MAX) {
            write!(f, "\n  {violation}")?;
        }
        if self.violations.len() > SHOWN_MAX {
            write!(f, "\n  and {} more", self.violations.len() - SHOWN_MAX)?;
        }
        Ok(())
    }
}
