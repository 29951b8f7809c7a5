//! What happened during a torture run, beside the history that the checker judges: counts of answers,
//! and which unknown outcomes are excused.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gesta_core::{ErrorKind, LogId, Position, RecordedEvent};
use gesta_testkit::history::{History, TailerId};

use crate::faults::Fault;
use crate::faults::ask::Answer;
use crate::faults::tails::Sink;

/// Most violations told in words.
const TOLD_MAX: usize = 50;

/// Counts of answers.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    /// Appends acknowledged.
    pub(crate) acknowledged: u64,
    /// Events in them.
    pub(crate) events: u64,
    /// Appends refused for their expectation.
    pub(crate) refused: u64,
    /// Answers *unavailable* or *overloaded*; tried again.
    pub(crate) unavailable: u64,
    /// Answers *outcome unknown* while the server lived, was reachable, and its database was back in time.
    pub(crate) unknown: u64,
    /// The other answers *outcome unknown*: the way to the server was cut, or it was killed.
    pub(crate) unknown_excused: u64,
    /// Appends that never got an answer.
    pub(crate) open: u64,
}

/// One round.
#[derive(Debug, Clone, Copy)]
struct Round {
    begin: Instant,
    end: Option<Instant>,
    excused: bool,
}

/// An attempt whose outcome was unknown. Whether that is excused is known once its round is over.
#[derive(Debug)]
struct Unknown {
    entry: usize,
    from: Instant,
    to: Instant,
    text: String,
}

/// The whole record, shared by all tasks.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Every attempt and every event that a tail received.
    pub(crate) history: History,
    counts: Mutex<BTreeMap<usize, Counts>>,
    unknown: Mutex<Vec<Unknown>>,
    rounds: Mutex<Vec<Round>>,
    violations: Mutex<(Vec<String>, u64)>,
}

impl Record {
    /// A round begins.
    pub(crate) fn round_begins(&self, fault: Fault) {
        let round = Round {
            begin: Instant::now(),
            end: None,
            excused: fault.excuses_unknown(),
        };
        self.rounds.lock().unwrap().push(round);
    }

    /// The database was away for too long in this round.
    pub(crate) fn excuse_round(&self) {
        if let Some(round) = self.rounds.lock().unwrap().last_mut() {
            round.excused = true;
        }
    }

    /// The round is over: the fault is healed and everybody works again.
    pub(crate) fn round_ends(&self) {
        if let Some(round) = self.rounds.lock().unwrap().last_mut() {
            round.end = Some(Instant::now());
        }
    }

    /// True if an unknown outcome of an attempt in this time is nobody's fault.
    fn excused(&self, from: Instant, to: Instant) -> bool {
        let rounds = self.rounds.lock().unwrap();
        rounds.iter().any(|round| {
            let overlaps = round.begin <= to && round.end.is_none_or(|end| end >= from);
            overlaps && round.excused
        })
    }

    /// One attempt ended in a passing error.
    pub(crate) fn attempt_failed(&self, entry: usize, kind: &ErrorKind, from: Instant) {
        if let ErrorKind::OutcomeUnknown(text) = kind {
            let unknown = Unknown {
                entry,
                from,
                to: Instant::now(),
                text: text.clone(),
            };
            self.unknown.lock().unwrap().push(unknown);
        } else {
            let mut counts = self.counts.lock().unwrap();
            counts.entry(entry).or_default().unavailable += 1;
        }
    }

    /// Judges the unknown outcomes, once all rounds are over.
    pub(crate) fn settle_unknown(&self) {
        for unknown in std::mem::take(&mut *self.unknown.lock().unwrap()) {
            let excused = self.excused(unknown.from, unknown.to);
            let mut counts = self.counts.lock().unwrap();
            let counts = counts.entry(unknown.entry).or_default();
            if excused {
                counts.unknown_excused += 1;
            } else {
                counts.unknown += 1;
                let text = unknown.text;
                self.violation(format!("an outcome was unknown without need: {text}"));
            }
        }
    }

    /// An append of so many events has its last answer.
    pub(crate) fn answered(&self, entry: usize, events: usize, answer: &Answer) {
        let mut counts = self.counts.lock().unwrap();
        let counts = counts.entry(entry).or_default();
        match answer {
            Answer::Stored(_) => {
                counts.acknowledged += 1;
                counts.events += events as u64;
            }
            Answer::Refused(_) => counts.refused += 1,
            Answer::Open => counts.open += 1,
        }
    }

    /// Something that must not happen did.
    pub(crate) fn violation(&self, text: String) {
        let (told, count) = &mut *self.violations.lock().unwrap();
        *count += 1;
        if told.len() < TOLD_MAX {
            eprintln!("VIOLATION: {text}");
            told.push(text);
        }
    }

    /// The first of them, and how many there were.
    pub(crate) fn violations(&self) -> (Vec<String>, u64) {
        self.violations.lock().unwrap().clone()
    }

    /// Counts per entry to the store.
    pub(crate) fn counts(&self) -> BTreeMap<usize, Counts> {
        self.counts.lock().unwrap().clone()
    }
}

/// Shared by all tasks of a run.
pub(crate) type SharedRecord = Arc<Record>;

/// How far a tail is.
#[derive(Debug, Default)]
pub(crate) struct TailLog {
    ends: Mutex<HashMap<LogId, Position>>,
    resumed: AtomicU64,
}

impl TailLog {
    /// The last position per log.
    pub(crate) fn ends(&self) -> HashMap<LogId, Position> {
        self.ends.lock().unwrap().clone()
    }

    /// How often it resumed.
    pub(crate) fn resumed(&self) -> u64 {
        self.resumed.load(Ordering::Relaxed)
    }
}

/// What a tail receives goes into the history. In the end it must be exactly the stored log: whatever a tail does not
/// have although it stands before a position that the tail has passed became visible too late.
pub(crate) struct Tailed {
    /// Where everything is written down.
    pub(crate) record: SharedRecord,
    /// The tail in the history.
    pub(crate) id: TailerId,
    /// How far it is.
    pub(crate) log: Arc<TailLog>,
}

impl Sink for Tailed {
    fn received(&mut self, event: &RecordedEvent) {
        let (log, position) = (event.log, event.position);
        self.log.ends.lock().unwrap().insert(log, position);
        self.record.history.saw(self.id, event);
    }

    fn broken(&mut self, _: &gesta_core::Error) {
        self.log.resumed.fetch_add(1, Ordering::Relaxed);
    }

    fn wrong(&mut self, text: String) {
        self.record.violation(text);
    }

    fn let_go(&mut self, at: Option<gesta_core::Checkpoint>) -> Option<gesta_core::Checkpoint> {
        self.log.resumed.fetch_add(1, Ordering::Relaxed);
        at
    }
}
