//! The counters of a pipeline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gesta_core::{Incarnation, KnownEnd, Position};

/// A counter that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one pipeline.
#[derive(Debug, Default)]
pub struct Stats {
    pub(crate) appends: Counter,
    pub(crate) refusals: Counter,
    pub(crate) retries: Counter,
    pub(crate) joined: Counter,
    pub(crate) batches: Counter,
    pub(crate) events: Counter,
    pub(crate) misses: Counter,
    pub(crate) failures: Counter,
    pub(crate) reconnects: Counter,
    pub(crate) loads: Counter,
    pub(crate) condition_lookups: Counter,
    pub(crate) condition_turns: Counter,
    /// The last position of the log that is known to be committed.
    pub(crate) known_end: End,
    /// The greatest end of the log that a read has told.
    pub(crate) seen_end: Gauge,
}

/// A position that is told to others.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn set(&self, position: Position) {
        self.0.store(position.0, Ordering::Relaxed);
    }

    pub(crate) fn raise(&self, position: Position) {
        self.0.fetch_max(position.0, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Position {
        Position(self.0.load(Ordering::Relaxed))
    }
}

/// The end of a log in its present history, as far as it is known. It is told to others.
#[derive(Debug)]
pub struct End(Mutex<Ends>);

#[derive(Debug)]
struct Ends {
    /// The last position that this process has seen committed.
    own: KnownEnd,
    /// The last position in the same history that another process has told of.
    heard: Position,
}

impl Default for End {
    fn default() -> Self {
        Self(Mutex::new(Ends {
            own: KnownEnd::NOTHING,
            heard: Position::START,
        }))
    }
}

impl End {
    pub(crate) fn set(&self, own: KnownEnd) {
        let mut ends = self.lock();
        if ends.own.incarnation != own.incarnation {
            ends.heard = Position::START;
        }
        ends.own = own;
    }

    /// Forgets what was known, because history has changed.
    pub(crate) fn forget(&self, incarnation: Incarnation) {
        let position = Position::START;
        *self.lock() = Ends {
            own: KnownEnd {
                incarnation,
                position,
            },
            heard: position,
        };
    }

    /// Takes what another process has told. What it says of another history does not count.
    pub(crate) fn hear(&self, end: KnownEnd) {
        let mut ends = self.lock();
        let position = end.within(ends.own.incarnation);
        ends.heard = ends.heard.max(position);
    }

    pub(crate) fn get(&self) -> KnownEnd {
        let ends = self.lock();
        KnownEnd {
            position: ends.own.position.max(ends.heard),
            ..ends.own
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a pipeline has done since it was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PipelineStats {
    /// The number of appends that were answered with success.
    pub appends: u64,
    /// The number of appends that were answered with an error.
    pub refusals: u64,
    /// The number of appends that were recognised as retries.
    pub retries: u64,
    /// The number of retries that waited for an attempt in flight.
    pub joined: u64,
    /// The number of batches that were sent, missed ones included.
    pub batches: u64,
    /// The number of events that were sent, those of missed batches included.
    pub events: u64,
    /// The number of batches that missed because another process had appended.
    pub misses: u64,
    /// The number of batches that failed, or whose outcome was unknown at first.
    pub failures: u64,
    /// The number of connections that were opened after the first.
    pub reconnects: u64,
    /// The number of statements that looked up streams.
    pub loads: u64,
    /// The number of searches of the database for an event that a condition excludes.
    pub condition_lookups: u64,
    /// The number of times that the comparison of a condition with the newest events went on in another turn.
    pub condition_turns: u64,
    /// The number of commands that wait or are in flight now: appends, deletes, changes of metadata, and owner's
    /// questions.
    pub queued_commands: u64,
    /// The number of events that wait or are in flight now.
    pub queued_events: u64,
}

impl Stats {
    /// Returns the end of the log, as far as it is known, in the history to which it belongs.
    #[must_use]
    pub fn known_end(&self) -> KnownEnd {
        self.known_end.get()
    }

    /// Takes the end of the log that another process has told.
    pub fn hear_of_end(&self, end: KnownEnd) {
        self.known_end.hear(end);
    }

    /// Shows the counters, beside the numbers of commands and events that wait or are in flight.
    #[must_use]
    pub fn snapshot(&self, [queued_commands, queued_events]: [usize; 2]) -> PipelineStats {
        PipelineStats {
            appends: self.appends.get(),
            refusals: self.refusals.get(),
            retries: self.retries.get(),
            joined: self.joined.get(),
            batches: self.batches.get(),
            events: self.events.get(),
            misses: self.misses.get(),
            failures: self.failures.get(),
            reconnects: self.reconnects.get(),
            loads: self.loads.get(),
            condition_lookups: self.condition_lookups.get(),
            condition_turns: self.condition_turns.get(),
            queued_commands: queued_commands as u64,
            queued_events: queued_events as u64,
        }
    }
}
