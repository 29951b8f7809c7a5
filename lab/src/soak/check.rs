//! The read-back: everything acknowledged is in the log once, where it belongs and where the answer said, unchanged.
//!
//! During the run nothing is kept per append: what is stored tells which event it must be, and a sum of digests per
//! writer tells whether the answers named the places where the events are. The check keeps one bit per event.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gesta_core::{AllFrom, RecordedEvent};

use super::board::Board;
use super::plan::{Target, Which};
use super::writers::Claim;
use crate::failure::{Context, Result};
use crate::faults::{CurrentStore, ask};
use crate::target::{ReadBack, first_time};

/// Most findings that are told in words.
const FINDINGS_MAX: usize = 10;
/// How long the store may be unavailable.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads everything behind `from` and compares it with what the writers were told.
pub(super) async fn check(
    store: &CurrentStore,
    board: &Board,
    from: AllFrom,
    claims: &[Claim],
) -> Result<ReadBack> {
    let begin = Instant::now();
    let mut checker = Checker {
        board,
        claims,
        seen: vec![Vec::new(); claims.len()],
        places: vec![0; claims.len()],
        shared_next: HashMap::new(),
        last_position: 0,
        result: ReadBack::default(),
    };
    let see = |event: RecordedEvent| checker.look(&event);
    ask::read_all(store, from, PATIENCE, see)
        .await
        .context("read-back")?;
    let mut result = checker.finish();
    result.seconds = begin.elapsed().as_secs_f64();
    Ok(result)
}

struct Checker<'a> {
    board: &'a Board,
    claims: &'a [Claim],
    /// One bit per event of each writer.
    seen: Vec<Vec<u64>>,
    /// What the log says of the places of acknowledged events.
    places: Vec<u64>,
    /// Of each shared stream, the revision that comes next.
    shared_next: HashMap<usize, u64>,
    last_position: u64,
    result: ReadBack,
}

impl Checker<'_> {
    fn look(&mut self, event: &RecordedEvent) {
        if event.position.0 <= self.last_position {
            let last = self.last_position;
            self.result.misplaced += 1;
            self.finding(|| format!("{} comes after position {last}", place(event)));
        }
        self.last_position = event.position.0;
        let plan = &self.board.plan;
        let Some(which) = plan.which(event.id) else {
            return;
        };
        self.result.found += 1;
        let n = which.event / plan.per_append;
        let claim = self.claims.get(which.writer).copied().unwrap_or_default();
        if n > claim.acknowledged || (n == claim.acknowledged && !claim.open) {
            self.result.uninvited += 1;
            self.finding(|| format!("{} was never accepted", place(event)));
            return;
        }
        if !first_time(&mut self.seen[which.writer], which.event) {
            self.result.doubled += 1;
            self.finding(|| format!("{} is stored twice", place(event)));
        }
        if event.data != *plan.payload(which) || event.metadata != *plan.workload.metadata() {
            self.result.altered += 1;
            self.finding(|| format!("{} has other contents", place(event)));
        }
        self.compare_place(which, n, event);
        if n < claim.acknowledged {
            let digest = which.digest(event.revision.0, event.position.0);
            self.places[which.writer] = self.places[which.writer].wrapping_add(digest);
        }
    }

    fn compare_place(&mut self, which: Which, n: u64, event: &RecordedEvent) {
        let plan = &self.board.plan;
        let (stream, revision) = match plan.target(which.writer, n) {
            Target::Own(stream, first) => (stream, first + which.event % plan.per_append),
            Target::Shared(i) => {
                // The first of this run stands wherever the stream ended before.
                let next = self.shared_next.entry(i).or_insert(event.revision.0);
                let revision = *next;
                *next = event.revision.0 + 1;
                (plan.workload.streams()[i].clone(), revision)
            }
        };
        if event.stream != stream || event.revision.0 != revision {
            self.result.misplaced += 1;
            self.finding(|| format!("{} belongs to {stream} revision {revision}", place(event)));
        }
    }

    fn finding(&mut self, text: impl FnOnce() -> String) {
        if self.result.findings.len() < FINDINGS_MAX {
            self.result.findings.push(text());
        }
    }

    fn finish(mut self) -> ReadBack {
        let per_append = self.board.plan.per_append;
        for (writer, claim) in self.claims.iter().enumerate() {
            self.result.acknowledged += claim.acknowledged * per_append;
            let lost_before = self.result.lost;
            for event in 0..claim.acknowledged * per_append {
                if first_time(&mut self.seen[writer], event) {
                    self.result.lost += 1;
                    self.finding(|| {
                        format!("event {event} of writer {writer}, acknowledged, is not stored")
                    });
                }
            }
            if self.result.lost == lost_before
                && self.result.is_clean()
                && self.places[writer] != claim.answers
            {
                self.result.misplaced += 1;
                self.finding(|| {
                    format!("the answers to writer {writer} named other places than the log does")
                });
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
