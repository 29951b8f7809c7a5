//! What judges say of a run: what they have counted, and which promises were broken.
//!
//! Why one type for all of them: a run has several judges (of appends, of tails, of seats, of groups), and whoever ends
//! it wants one answer, printed in one way.
//! Invariant: every violation has a [`Kind`], by which it is counted. Those of appends and tails name what they are
//! about, since a run may excuse some of them (a fail-over that lost commits); all of those are kept. Of other kinds
//! the first few are kept in words, and all are counted.
//! Not here: how violations are found (`judge`).

mod kind;

use std::collections::BTreeMap;
use std::fmt;

use gesta_core::{EventId, LogId, Position, Revision, StreamId};

pub use kind::Kind;

/// Most violations of a kind that are kept in words, if they name nothing else.
const FINDINGS_MAX: usize = 10;
/// The most broken promises that are written out.
const SHOWN_MAX: usize = 20;

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
    /// Any other promise.
    Broken {
        /// Which one.
        kind: Kind,
        /// How often, here.
        times: u64,
        /// What shows it, for people.
        detail: String,
    },
}

impl Violation {
    /// Which promise is broken.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::AcknowledgedLost { .. } => Kind::NotStored,
            Self::StoredTwice { .. } => Kind::StoredTwice,
            Self::RefusedStored { .. } => Kind::RefusedStored,
            Self::RefusedAfterAcknowledged { .. } => Kind::RefusedAfterAcknowledged,
            Self::PartlyStored { .. } => Kind::PartlyStored,
            Self::WrongPlace { .. } => Kind::WrongPlace,
            Self::Untrue { .. } => Kind::Untrue,
            Self::Stale { .. } => Kind::Stale,
            Self::RevisionGap { .. } => Kind::RevisionGap,
            Self::PositionOrder { .. } => Kind::PositionOrder,
            Self::CreatedDecreased { .. } => Kind::CreatedDecreased,
            Self::TailerOrder { .. } => Kind::TailerOrder,
            Self::AppearedBelowPassed { .. } => Kind::AppearedBelowPassed,
            Self::Vanished { .. } => Kind::Vanished,
            Self::Broken { kind, .. } => *kind,
        }
    }

    /// What shows it, for people who know which promise it is.
    #[must_use]
    pub fn detail(&self) -> String {
        match self {
            Self::Broken { detail, .. } => detail.clone(),
            named => named.to_string(),
        }
    }

    /// How often it was broken.
    #[must_use]
    pub fn times(&self) -> u64 {
        match self {
            Self::Broken { times, .. } => *times,
            _ => 1,
        }
    }
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
            Self::Broken {
                kind,
                times: 1,
                detail,
            } => write!(f, "{}: {detail}", kind.sentence()),
            Self::Broken {
                kind,
                times,
                detail,
            } => write!(f, "{times} times {}: {detail}", kind.sentence()),
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

/// What judges have found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// How many appends were sent; each is counted once however often it was retried.
    pub requests: usize,
    /// How many attempts were made to send them.
    pub attempts: usize,
    /// How many appends were acknowledged at least once.
    pub acknowledged: usize,
    /// How many appends were never acknowledged and were refused in the end, or said to have written nothing.
    pub refused: usize,
    /// How many attempts were refused for something else than the state of a stream. A load that asks for nothing odd
    /// has none.
    pub refused_otherwise: usize,
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
    /// How often the end of a stream was read, or all seats of a show.
    pub looks: usize,
    /// How many events the tailers have seen, all together.
    pub events_tailed: usize,
    /// How many registers, seats and entities were judged.
    pub keys: usize,
    /// How many answers about them.
    pub answers: usize,
    /// How many requests about them stayed without an answer.
    pub answers_open: usize,
    /// How many events groups have delivered.
    pub deliveries: usize,
    /// How many of those not for the first time.
    pub redeliveries: usize,
    /// How many events were finished by consumers, or parked.
    pub events_settled: usize,
    /// The broken promises. The list is empty if all is well.
    pub violations: Vec<Violation>,
    /// How many more there are of some kinds, which are not in the list.
    pub more: BTreeMap<Kind, u64>,
}

impl Verdict {
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

    /// Adds a broken promise of this kind; what shows it is asked for if it is kept.
    pub fn add(&mut self, kind: Kind, times: u64, detail: impl FnOnce() -> String) {
        if let Some(more) = self.more.get_mut(&kind) {
            *more += times;
            return;
        }
        let is_it =
            |one: &&Violation| matches!(one, Violation::Broken { kind: of, .. } if *of == kind);
        if self.violations.iter().filter(is_it).count() < FINDINGS_MAX {
            let detail = detail();
            self.violations.push(Violation::Broken {
                kind,
                times,
                detail,
            });
        } else {
            self.more.insert(kind, times);
        }
    }

    /// How often a promise was broken.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u64 {
        let kept = self.violations.iter().filter(|one| one.kind() == kind);
        kept.map(Violation::times).sum::<u64>() + self.more.get(&kind).copied().unwrap_or_default()
    }

    /// How often each promise was broken that was.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Kind, u64> {
        let mut counts = self.more.clone();
        for one in &self.violations {
            *counts.entry(one.kind()).or_default() += one.times();
        }
        counts
    }

    /// What is wrong in words: how often each promise was broken, then how it shows, promise by promise.
    #[must_use]
    pub fn findings(&self) -> Vec<String> {
        let counts = self.counts();
        let sums = counts.iter();
        let sums = sums.map(|(kind, count)| format!("{count} {}", kind.sentence()));
        let details = counts.keys().flat_map(|kind| {
            let kept = self
                .violations
                .iter()
                .filter(move |one| one.kind() == *kind);
            kept.take(FINDINGS_MAX).map(Violation::detail)
        });
        sums.chain(details).collect()
    }

    /// Adds what another judge of the same run has found.
    pub fn absorb(&mut self, other: Self) {
        self.requests += other.requests;
        self.attempts += other.attempts;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.refused_otherwise += other.refused_otherwise;
        self.unknown_stored += other.unknown_stored;
        self.unknown_absent += other.unknown_absent;
        self.events_stored += other.events_stored;
        self.events_acknowledged += other.events_acknowledged;
        self.events_foreign += other.events_foreign;
        self.looks += other.looks;
        self.events_tailed += other.events_tailed;
        self.keys += other.keys;
        self.answers += other.answers;
        self.answers_open += other.answers_open;
        self.deliveries += other.deliveries;
        self.redeliveries += other.redeliveries;
        self.events_settled += other.events_settled;
        for violation in other.violations {
            match violation {
                Violation::Broken {
                    kind,
                    times,
                    detail,
                } => self.add(kind, times, || detail),
                named => self.violations.push(named),
            }
        }
        for (kind, more) in other.more {
            *self.more.entry(kind).or_default() += more;
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.requests > 0 || self.events_stored > 0 {
            write!(
                f,
                "{} appends in {} attempts: {} acknowledged, {} refused, {} unknown ({} stored, {} absent); \
                 {} events stored, {} tailed; ",
                self.requests,
                self.attempts,
                self.acknowledged,
                self.refused,
                self.unknown_stored + self.unknown_absent,
                self.unknown_stored,
                self.unknown_absent,
                self.events_stored,
                self.events_tailed,
            )?;
        }
        if self.keys > 0 {
            let (answers, keys, open) = (self.answers, self.keys, self.answers_open);
            write!(f, "{answers} answers about {keys} keys, {open} open; ")?;
        }
        if self.deliveries > 0 {
            let (all, again, settled) = (self.deliveries, self.redeliveries, self.events_settled);
            write!(
                f,
                "{all} deliveries, {again} again, {settled} events settled; "
            )?;
        }
        write!(f, "{} violations", self.counts().values().sum::<u64>())?;
        for violation in self.violations.iter().take(SHOWN_MAX) {
            write!(f, "\n  {violation}")?;
        }
        let shown = self.violations.iter().take(SHOWN_MAX);
        let shown: u64 = shown.map(Violation::times).sum();
        match self.counts().values().sum::<u64>() - shown {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}
