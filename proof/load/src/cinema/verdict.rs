//! Whether a run is a result: every answer can be true, and everything acknowledged is there.

use std::rc::Rc;
use std::sync::Arc;

use gesta_core::{AllFrom, EventStore};
use gesta_kit::judge::seats;
use gesta_report::Report;
use gesta_report::failure::Result;
use gesta_report::read_back::ReadBack;

use super::generator::Generator;
use super::ledger::Ledger;
use super::model::{Call, Op};
use super::stored;

/// What can be wrong.
pub use gesta_kit::verdict::Kind as Wrong;

/// What is wrong with a run: how often each promise was broken, and the first of each kind in words.
#[derive(Debug, Clone, Default)]
pub struct Wrongs(gesta_kit::verdict::Verdict);

impl Wrongs {
    /// Adds so many of a kind; the first are told in words.
    pub fn add(&mut self, kind: Wrong, count: u64, told: impl FnOnce() -> String) {
        self.0.add(kind, count, told);
    }

    /// Adds what a judge has found.
    pub fn absorb(&mut self, verdict: gesta_kit::verdict::Verdict) {
        self.0.absorb(verdict);
    }

    /// How often this was found.
    pub fn count(&self, kind: Wrong) -> u64 {
        self.0.count(kind)
    }

    /// True if nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_clean()
    }

    /// The counts, then the findings.
    pub fn told(&self) -> Vec<String> {
        self.0.findings()
    }
}

/// All checks of a run.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Reservations and cancellations acknowledged.
    pub acknowledged: u64,
    /// Shows whose creation was acknowledged.
    pub shows: u64,
    /// Seats that somebody asked for.
    pub seats: u64,
    /// Reads of shows.
    pub reads: u64,
    /// Requests without a known outcome.
    pub unknown: u64,
    /// Events that were compared, if the store was given.
    pub events: Option<u64>,
    /// What was found.
    pub wrongs: Wrongs,
}

impl Verdict {
    /// Reads every show from every server, and judges all answers so far.
    pub async fn of_answers(generator: &Rc<Generator>) -> Self {
        let (last_from, reads) = generator.with_ledger(|ledger| {
            let reads = ledger.created().map(|show| Op::of_show(Call::Read, show));
            (ledger.now(), reads.collect::<Vec<_>>())
        });
        let mut unread = 0;
        for server in 0..generator.servers() {
            unread += generator.batch(reads.clone(), server).await as u64;
        }
        let mut verdict = generator.with_ledger(|ledger| Self::judge(ledger, last_from));
        verdict.shows = reads.len() as u64;
        if unread > 0 {
            let told = || {
                format!(
                    "of {} shows, by {} servers",
                    reads.len(),
                    generator.servers()
                )
            };
            verdict.wrongs.add(Wrong::Unread, unread, told);
        }
        verdict
    }

    /// Judges all requests. Reads that began after `last_from` are the look at the end of the run.
    fn judge(ledger: &Ledger, last_from: u32) -> Self {
        let name = |show, seat| format!("show {} seat {seat}", ledger.shows.id(show));
        let judged = seats::judge(&ledger.seats, last_from, name);
        let mut verdict = Self {
            acknowledged: ledger.acknowledged,
            unknown: judged.answers_open as u64,
            reads: judged.looks as u64,
            seats: judged.keys as u64,
            wrongs: ledger.wrongs.clone(),
            ..Self::default()
        };
        verdict.wrongs.absorb(judged);
        verdict
    }

    /// Adds what the store holds.
    pub async fn add_events(
        &mut self,
        store: &Arc<dyn EventStore>,
        from: AllFrom,
        ledger: &Ledger,
    ) -> Result<()> {
        let events = stored::check(store, from, ledger, &mut self.wrongs).await?;
        self.events = Some(events);
        Ok(())
    }

    /// What was checked, in a sentence.
    pub fn sentence(&self) -> String {
        let events = self.events.map_or(String::new(), |events| {
            format!("; {events} events in the store were compared")
        });
        format!(
            "{} requests were acknowledged about {} seats of {} shows, {} reads were answered, {} outcomes stayed unknown{events}.",
            self.acknowledged, self.seats, self.shows, self.reads, self.unknown
        )
    }

    /// Tells of the checks of one load of many.
    pub fn tell_in_brief(&self, report: &mut Report, name: &str) {
        let told = self.wrongs.told();
        let problems = told.into_iter().map(|wrong| format!("{name}: {wrong}"));
        report.problems.extend(problems);
        report.check(
            name,
            &ReadBack {
                acknowledged: self.acknowledged + self.shows,
                found: self.events.unwrap_or_default(),
                ..ReadBack::default()
            },
        );
    }

    /// Tells of the checks.
    pub fn tell(&self, report: &mut Report) {
        report.text(self.sentence());
        report.problems.extend(self.wrongs.told());
    }
}
