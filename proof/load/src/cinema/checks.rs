//! Whether a run is a result: every answer can be true, and everything acknowledged is there.

use std::rc::Rc;
use std::sync::Arc;

use gesta_core::{AllFrom, EventStore};
use gesta_kit::judge::seats;
use gesta_kit::verdict::{Kind, Verdict};
use gesta_report::Report;
use gesta_report::failure::Result;
use gesta_report::read_back::ReadBack;

use super::generator::Generator;
use super::ledger::Ledger;
use super::model::{Call, Op};
use super::stored;

/// All checks of a run.
#[derive(Debug, Default)]
pub struct CinemaChecks {
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
    pub verdict: Verdict,
}

impl CinemaChecks {
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
        let mut checks = generator.with_ledger(|ledger| Self::judge(ledger, last_from));
        checks.shows = reads.len() as u64;
        if unread > 0 {
            let told = || {
                format!(
                    "of {} shows, by {} servers",
                    reads.len(),
                    generator.servers()
                )
            };
            checks.verdict.add(Kind::Unread, unread, told);
        }
        checks
    }

    /// Judges all requests. Reads that began after `last_from` are the look at the end of the run.
    fn judge(ledger: &Ledger, last_from: u32) -> Self {
        let name = |show, seat| format!("show {} seat {seat}", ledger.shows.id(show));
        let judged = seats::judge(&ledger.seats, last_from, name);
        let mut checks = Self {
            acknowledged: ledger.acknowledged,
            unknown: judged.answers_open as u64,
            reads: judged.looks as u64,
            seats: judged.keys as u64,
            verdict: ledger.verdict.clone(),
            ..Self::default()
        };
        checks.verdict.absorb(judged);
        checks
    }

    /// Adds what the store holds.
    pub async fn add_events(
        &mut self,
        store: &Arc<dyn EventStore>,
        from: AllFrom,
        ledger: &Ledger,
    ) -> Result<()> {
        let events = stored::check(store, from, ledger, &mut self.verdict).await?;
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
        let findings = self.verdict.findings();
        let problems = findings.into_iter().map(|wrong| format!("{name}: {wrong}"));
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
        report.problems.extend(self.verdict.findings());
    }
}
