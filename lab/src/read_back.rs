//! The read-back check: everything acknowledged is in the store, once, where the answer said, unchanged.
//!
//! Why: a fast run that lost an event is no result. The whole log behind the run's beginning is
//! read through the public interface; events of others are passed over.

use std::sync::Arc;
use std::time::Instant;

use gesta_core::{AllFrom, Checkpoint, EventStore, Place, ReadAll, RecordedEvent};
use serde::Serialize;

use crate::failure::{Context, Result};
use crate::load::Outcome;
use crate::workload::Workload;

/// Events per page of the check.
const PAGE: usize = 5_000;
/// Most findings that are told in words.
const FINDINGS_MAX: usize = 10;

/// What the check found.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ReadBack {
    /// Events that were acknowledged.
    pub(crate) acknowledged: u64,
    /// Events of this run that are stored.
    pub(crate) found: u64,
    /// Acknowledged, but not stored.
    pub(crate) lost: u64,
    /// Stored more than once.
    pub(crate) doubled: u64,
    /// Stored at another stream, revision or position than was answered.
    pub(crate) misplaced: u64,
    /// Stored with other contents.
    pub(crate) altered: u64,
    /// Stored, though the append was refused.
    pub(crate) uninvited: u64,
    /// Time that the check took.
    pub(crate) seconds: f64,
    /// The first findings, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) findings: Vec<String>,
}

impl ReadBack {
    /// True if nothing was found wrong.
    pub(crate) fn is_clean(&self) -> bool {
        self.lost + self.doubled + self.misplaced + self.altered + self.uninvited == 0
    }

    fn finding(&mut self, text: impl FnOnce() -> String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(text());
        }
    }
}

/// Where the store ends now: the check of a later run begins here.
pub(crate) async fn mark(store: &dyn EventStore) -> Result<AllFrom> {
    let info = store.info().await.context("reading the store's head")?;
    Ok(AllFrom::Checkpoint(Checkpoint {
        incarnation: info.incarnation,
        place: Place::Logs(info.heads),
    }))
}

/// Reads everything behind `from` and compares it with what was answered.
pub(crate) async fn check(
    store: &Arc<dyn EventStore>,
    from: AllFrom,
    workload: &Workload,
    events_per_append: u64,
    outcome: &Outcome,
) -> Result<ReadBack> {
    let begin = Instant::now();
    let mut checker = Checker::new(workload, events_per_append, outcome);
    let mut request = ReadAll::forwards().from(from).limit(PAGE);
    loop {
        let page = store.read_all(request.clone()).await.context("read-back")?;
        page.events.iter().for_each(|event| checker.look(event));
        if page.end {
            break;
        }
        request.from = AllFrom::Checkpoint(page.next);
    }
    let mut result = checker.finish();
    result.seconds = begin.elapsed().as_secs_f64();
    Ok(result)
}

struct Checker<'a> {
    workload: &'a Workload,
    outcome: &'a Outcome,
    events_per_append: u64,
    /// One bit per event number.
    seen: Vec<u64>,
    result: ReadBack,
}

impl<'a> Checker<'a> {
    fn new(workload: &'a Workload, events_per_append: u64, outcome: &'a Outcome) -> Self {
        Self {
            workload,
            outcome,
            events_per_append,
            seen: Vec::new(),
            result: ReadBack {
                acknowledged: outcome.acknowledged.len() as u64 * events_per_append,
                ..ReadBack::default()
            },
        }
    }

    fn look(&mut self, event: &RecordedEvent) {
        let Some(number) = self.workload.run.number_of(event.id) else {
            return;
        };
        self.result.found += 1;
        if !self.first_time(number) {
            self.result.doubled += 1;
            self.result
                .finding(|| format!("event {number} is stored twice, again at {}", place(event)));
        }
        if event.data != *self.workload.payload(number)
            || event.metadata != *self.workload.metadata()
            || event.event_type != *self.workload.event_type()
        {
            self.result.altered += 1;
            self.result
                .finding(|| format!("event {number} at {} has other contents", place(event)));
        }
        self.compare_place(number, event);
    }

    fn compare_place(&mut self, number: u64, event: &RecordedEvent) {
        let append = number / self.events_per_append;
        let nth = number % self.events_per_append;
        let acknowledged = &self.outcome.acknowledged;
        let Ok(i) = acknowledged.binary_search_by_key(&append, |a| a.append) else {
            if !self.outcome.unresolved.contains(&append) {
                self.result.uninvited += 1;
                self.result
                    .finding(|| format!("event {number} at {} was never accepted", place(event)));
            }
            return;
        };
        let answer = acknowledged[i];
        let stream = &self.workload.streams()[answer.stream as usize];
        // Events of one append are neighbours in the log; the answer names the last.
        let position = answer.position.0 - (self.events_per_append - 1 - nth);
        if event.stream != *stream
            || event.revision.0 != answer.first.0 + nth
            || event.position.0 != position
        {
            self.result.misplaced += 1;
            self.result.finding(|| {
                let revision = answer.first.0 + nth;
                format!(
                    "event {number} is at {}, answered was {stream} revision {revision} position {position}",
                    place(event)
                )
            });
        }
    }

    /// Remembers the number; false if it was known.
    fn first_time(&mut self, number: u64) -> bool {
        let word = usize::try_from(number / 64).expect("an index");
        if word >= self.seen.len() {
            self.seen.resize((word + 1).next_power_of_two(), 0);
        }
        let bit = 1 << (number % 64);
        let first = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        first
    }

    fn finish(mut self) -> ReadBack {
        for answer in &self.outcome.acknowledged {
            for nth in 0..self.events_per_append {
                let number = answer.append * self.events_per_append + nth;
                if self.first_time(number) {
                    self.result.lost += 1;
                    self.result.finding(|| {
                        let stream = &self.workload.streams()[answer.stream as usize];
                        let revision = answer.first.0 + nth;
                        format!("event {number}, acknowledged as {stream} revision {revision}, is not stored")
                    });
                }
            }
        }
        self.result
    }
}

fn place(event: &RecordedEvent) -> String {
    format!(
        "{} revision {} position {}",
        event.stream, event.revision, event.position
    )
}
