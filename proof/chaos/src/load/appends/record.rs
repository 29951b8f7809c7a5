//! What happened during a run, beside the history that the checker judges: answers, and which unknown outcomes are
//! excused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gesta_core::{Append, Checkpoint, ErrorKind, RecordedEvent};
use gesta_kit::history::{Acknowledged, RunHistory, TailerId};
use gesta_kit::verdict::Verdict;
use gesta_load::machine::ask::Answer;

use super::tails::Sink;
use crate::load::Excuse;

/// Most findings that are told in words.
const TOLD_MAX: usize = 50;

/// What is counted of each way to the store.
pub(crate) const COUNTED: [&str; 7] = [
    "acknowledged",
    // Events of acknowledged appends.
    "events",
    // Appends refused for their expectation.
    "refused",
    // Answers *unavailable* or *overloaded*; tried again.
    "unavailable",
    // Answers *outcome unknown* while the server lived, was reachable, and its database was back in time.
    "unknown",
    // The other ones: the way to the server was cut, or it was killed.
    "unknown (excused)",
    // Appends that never got an answer.
    "open",
];

/// An attempt whose outcome was unknown. Whether that is excused is known once its round is over.
#[derive(Debug)]
struct Unknown {
    way: String,
    from: Instant,
    to: Instant,
    text: String,
}

/// The whole record, shared by all tasks.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Every attempt and every event that a tail received.
    pub(crate) history: RunHistory,
    /// By the way to the store, and by what is counted.
    counts: Mutex<BTreeMap<String, BTreeMap<&'static str, u64>>>,
    /// How often tails have come back.
    resumed: AtomicU64,
    unknown: Mutex<Vec<Unknown>>,
    violations: Findings,
}

/// What was found wrong: the first findings in words, and how many there are.
#[derive(Debug, Default)]
pub(crate) struct Findings(Mutex<(Vec<String>, usize)>);

impl Findings {
    /// Adds one, and tells it at once.
    pub(crate) fn add(&self, text: String) {
        let (told, count) = &mut *self.0.lock().unwrap();
        *count += 1;
        if told.len() < TOLD_MAX {
            eprintln!("  WRONG: {text}");
            told.push(text);
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().1
    }

    /// The first, and how many more there are.
    pub(crate) fn told(&self) -> Vec<String> {
        let (mut told, count) = self.0.lock().unwrap().clone();
        if count > told.len() {
            told.push(format!("and {} more", count - told.len()));
        }
        told
    }
}

impl Record {
    /// One attempt ended in a passing error.
    pub(crate) fn attempt_failed(&self, way: &str, kind: &ErrorKind, from: Instant) {
        if let ErrorKind::OutcomeUnknown(text) = kind {
            self.add_unknown(way, from, Instant::now(), text.clone());
        } else {
            self.count(way, "unavailable", 1);
        }
    }

    /// One attempt ended in an unknown outcome.
    pub(super) fn add_unknown(&self, way: &str, from: Instant, to: Instant, text: String) {
        let unknown = Unknown {
            way: way.to_owned(),
            from,
            to,
            text,
        };
        self.unknown.lock().unwrap().push(unknown);
    }

    /// Judges the unknown outcomes, once the run is over, by what excuses them. `members` are the names of the ways to
    /// the members, by their numbers; whoever appends by another way may have asked any of them.
    pub(crate) fn settle_unknown(&self, excused: &[Excuse], members: &[String]) {
        for unknown in std::mem::take(&mut *self.unknown.lock().unwrap()) {
            let member = members.iter().position(|name| *name == unknown.way);
            let covers = |excuse: &Excuse| excuse.covers(member, unknown.from, unknown.to);
            if excused.iter().any(covers) {
                self.count(&unknown.way, "unknown (excused)", 1);
            } else {
                self.count(&unknown.way, "unknown", 1);
                let text = unknown.text;
                self.violation(format!("an outcome was unknown without need: {text}"));
            }
        }
    }

    /// An append has its last answer.
    pub(crate) fn answered(&self, way: &str, request: &Append, answer: &Answer) {
        match answer {
            Answer::Stored(_) => {
                self.count(way, "acknowledged", 1);
                self.count(way, "events", request.events() as u64);
            }
            Answer::Refused(_) => self.count(way, "refused", 1),
            Answer::Open => self.count(way, "open", 1),
        }
    }

    fn count(&self, way: &str, what: &'static str, number: u64) {
        let mut counts = self.counts.lock().unwrap();
        let of_way = counts.entry(way.to_owned()).or_default();
        *of_way.entry(what).or_default() += number;
    }

    /// A count of one way to the store.
    pub(crate) fn counted(&self, way: &str, what: &str) -> u64 {
        let counts = self.counts.lock().unwrap();
        let of_way = counts.get(way);
        of_way.map_or(0, |of_way| of_way.get(what).copied().unwrap_or_default())
    }

    /// What was acknowledged so far.
    pub(crate) fn acknowledged(&self) -> Vec<Acknowledged> {
        self.history.acknowledged()
    }

    /// How many of these writers had no append acknowledged that began after a moment.
    pub(crate) fn behind(&self, writers: usize, since: Instant) -> usize {
        self.history.behind(0..writers as u64, since).len()
    }

    /// Something that must not happen did.
    pub(crate) fn violation(&self, text: String) {
        self.violations.add(text);
    }

    /// What must not happen and did, and how often.
    pub(crate) fn violations(&self) -> (Vec<String>, usize) {
        (self.violations.told(), self.violations.count())
    }

    /// Every promise that was broken: those written down here, and those that the checker of the history found.
    pub(crate) fn problems(&self, verdict: &Verdict) -> Vec<String> {
        let mut problems = self.violations.told();
        let found = &verdict.violations;
        problems.extend(found.iter().take(TOLD_MAX).map(ToString::to_string));
        if found.len() > TOLD_MAX {
            problems.push(format!("and {} more", found.len() - TOLD_MAX));
        }
        if verdict.events_foreign > 0 {
            let foreign = verdict.events_foreign;
            problems.push(format!("{foreign} events are stored that nobody appended"));
        }
        problems
    }

    /// The same where others append to the store as well.
    pub(crate) fn problems_but_foreign(&self, verdict: &Verdict) -> Vec<String> {
        let others = Verdict {
            events_foreign: 0,
            ..verdict.clone()
        };
        self.problems(&others)
    }

    /// How often tails have come back.
    pub(crate) fn resumed(&self) -> u64 {
        self.resumed.load(Ordering::Relaxed)
    }
}

/// What a tail receives goes into the history. In the end it must be exactly the stored log: whatever a tail does not
/// have although it stands before a position that the tail has passed became visible too late.
pub(crate) struct Tailed {
    /// Where everything is written down.
    pub(crate) record: Arc<Record>,
    /// The tail in the history.
    pub(crate) id: TailerId,
}

impl Sink for Tailed {
    fn received(&mut self, event: &RecordedEvent) {
        self.record.history.saw(self.id, event);
    }

    fn broken(&mut self, _: &gesta_core::Error) {
        self.record.resumed.fetch_add(1, Ordering::Relaxed);
    }

    fn wrong(&mut self, text: String) {
        self.record.violation(text);
    }

    fn let_go(&mut self, at: Option<Checkpoint>) -> Option<Checkpoint> {
        self.record.resumed.fetch_add(1, Ordering::Relaxed);
        at
    }
}
