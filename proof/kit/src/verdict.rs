//! What a check has found.

use std::fmt;

use gesta_core::{EventId, LogId, Position, Revision, StreamId};

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// An acknowledged event is not stored.
    AcknowledgedLost {
        /// The stream of the event.
        stream: StreamId,
        /// The id of the event.
        id: EventId,
    },
    /// An event is stored more than once in its stream.
    StoredTwice {
        /// The stream of the event.
        stream: StreamId,
        /// The id of the event.
        id: EventId,
    },
    /// An append was refused, or was said to have written nothing, but is stored.
    RefusedStored {
        /// The first stream of the append.
        stream: StreamId,
        /// The id of the first event of the append.
        id: EventId,
    },
    /// A retry was refused although an earlier attempt had been acknowledged.
    RefusedAfterAcknowledged {
        /// The first stream of the append.
        stream: StreamId,
        /// The id of the first event of the append.
        id: EventId,
    },
    /// An append is stored in part, or its events do not follow each other.
    PartlyStored {
        /// The stream that lacks events.
        stream: StreamId,
        /// The id of the first event of the append in this stream.
        id: EventId,
    },
    /// An acknowledged append is stored at another place than its answer says.
    WrongPlace {
        /// The stream of the append.
        stream: StreamId,
        /// The id of the first event of the append in this stream.
        id: EventId,
        /// What differs, for people.
        detail: String,
    },
    /// An answer says of a stream what was never so, or an append is stored where its claim is not true.
    Untrue {
        /// The stream.
        stream: StreamId,
        /// What was said, for people.
        detail: String,
    },
    /// What was asked after an answer does not include what that answer rests on: a stale answer, one out of the
    /// future, or appends that were stored in another order than they were made.
    Stale {
        /// The stream.
        stream: StreamId,
        /// What was said first, and what later, for people.
        detail: String,
    },
    /// A revision of a stream is missing, doubled or out of order.
    RevisionGap {
        /// The stream with the wrong revision.
        stream: StreamId,
        /// The revision that should have come next.
        expected: Revision,
        /// The revision that came instead.
        found: Revision,
    },
    /// Positions of a log do not grow.
    PositionOrder {
        /// The log with the wrong position.
        log: LogId,
        /// The position that is not greater than the one before it.
        position: Position,
    },
    /// The time `created` of an event is earlier than at the position before.
    CreatedDecreased {
        /// The log of the event.
        log: LogId,
        /// The position of the event.
        position: Position,
    },
    /// A tailer received an event at or before a position that it had seen.
    TailerOrder {
        /// The name of the tailer.
        tailer: String,
        /// The log of the event.
        log: LogId,
        /// The position of the event.
        position: Position,
    },
    /// An event is stored at or before a position that a tailer had passed, but the tailer never received it: it
    /// appeared late, or the subscription dropped it.
    AppearedBelowPassed {
        /// The name of the tailer.
        tailer: String,
        /// The log of the event.
        log: LogId,
        /// The position of the event.
        position: Position,
    },
    /// A tailer received an event that is not stored at its position: it vanished or another event is there.
    Vanished {
        /// The name of the tailer.
        tailer: String,
        /// The log of the event.
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
            Self::Untrue { stream, detail } => write!(f, "untrue of stream {stream}: {detail}"),
            Self::Stale { stream, detail } => write!(f, "stale, of stream {stream}: {detail}"),
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

/// Describes what is wrong with an event.
fn event(f: &mut fmt::Formatter<'_>, what: &str, stream: &StreamId, id: &EventId) -> fmt::Result {
    write!(f, "{what}: event {id} of stream {stream}")
}

/// Describes what is wrong with the append of an event.
fn append(f: &mut fmt::Formatter<'_>, what: &str, stream: &StreamId, id: &EventId) -> fmt::Result {
    write!(f, "{what}: the append of event {id} to stream {stream}")
}

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryReport {
    /// How many appends were sent; each is counted once however often it was retried.
    pub requests: usize,
    /// How many attempts were made to send them.
    pub attempts: usize,
    /// How many appends were acknowledged at least once.
    pub acknowledged: usize,
    /// How many appends were never acknowledged and were refused in the end, or said to have written nothing.
    pub refused: usize,
    /// How many appends of unknown outcome turned out to be stored.
    pub unknown_stored: usize,
    /// How many appends of unknown outcome turned out to be absent.
    pub unknown_absent: usize,
    /// How many events the store holds.
    pub events_stored: usize,
    /// How many events belong to acknowledged appends.
    pub events_acknowledged: usize,
    /// How many events of the store no recorded append asked for (lifecycle events, earlier contents).
    pub events_foreign: usize,
    /// How often the end of a stream was read.
    pub looks: usize,
    /// How many events the tailers have seen, all together.
    pub events_tailed: usize,
    /// The broken promises. The list is empty if all is well.
    pub violations: Vec<Violation>,
}

impl HistoryReport {
    /// Tells whether every promise was kept.
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

/// The most broken promises that are written out.
const SHOWN_MAX: usize = 20;

impl fmt::Display for HistoryReport {
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
