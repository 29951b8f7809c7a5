//! Whether a run is a result: every answer can be true, and everything acknowledged is there.

use std::rc::Rc;

use gesta_core::{AllFrom, EventStore};

use super::generator::Generator;
use super::history::{self, Judgement};
use super::ledger::Ledger;
use super::model::{Call, Op};
use super::stored::{self, StoredCheck};
use crate::failure::Result;
use crate::report::Report;

/// All checks of a run.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Reservations and cancellations acknowledged.
    pub(crate) acknowledged: u64,
    /// Shows whose creation was acknowledged.
    pub(crate) shows: u64,
    /// Answers that no request of the run deserves, and the first of them in words.
    wrong: u64,
    wrongs: Vec<String>,
    /// Shows that could not be read at the end.
    unread: u64,
    /// The answers.
    pub(crate) answers: Judgement,
    /// The events, if the store was given.
    pub(crate) events: Option<StoredCheck>,
}

impl Verdict {
    /// Reads every show from every server, and judges all answers so far.
    pub(crate) async fn of_answers(generator: &Rc<Generator>) -> Self {
        let (last_from, shows) = generator.with_ledger(|ledger| {
            let shows: Vec<u32> = ledger.created().collect();
            (ledger.now(), shows)
        });
        let reads: Vec<Op> = shows
            .iter()
            .map(|show| Op {
                call: Call::Read,
                show: *show,
                seat: 0,
            })
            .collect();
        let mut unread = 0;
        for server in 0..generator.servers() {
            unread += generator.batch(reads.clone(), server).await as u64;
        }
        generator.with_ledger(|ledger| Self {
            acknowledged: ledger.acknowledged,
            shows: shows.len() as u64,
            wrong: ledger.wrong,
            wrongs: ledger.wrongs.clone(),
            unread,
            answers: history::judge(ledger, last_from),
            events: None,
        })
    }

    /// Adds what the store holds.
    pub(crate) async fn add_events(
        &mut self,
        store: &dyn EventStore,
        from: AllFrom,
        ledger: &Ledger,
    ) -> Result<()> {
        self.events = Some(stored::check(store, from, ledger).await?);
        Ok(())
    }

    /// True if the run is a result.
    pub(crate) fn is_clean(&self) -> bool {
        self.problems().is_empty()
    }

    /// In a sentence.
    pub(crate) fn sentence(&self) -> String {
        let (answers, shows) = (&self.answers, self.shows);
        let events = self.events.as_ref().map_or(String::new(), |events| {
            format!("; {} events in the store were compared", events.events)
        });
        format!(
            "{} requests were acknowledged about {} seats of {shows} shows, {} reads were answered, {} outcomes stayed unknown{events}.",
            self.acknowledged, answers.seats, answers.reads, answers.unknown
        )
    }

    /// What keeps the run from being a result.
    pub(crate) fn problems(&self) -> Vec<String> {
        let a = &self.answers;
        let none = StoredCheck::default();
        let e = self.events.as_ref().unwrap_or(&none);
        let counts = [
            (a.held_twice, "seats were held twice"),
            (a.cancelled_twice, "free seats were cancelled"),
            (a.stale, "answers were stale"),
            (a.lost, "seats are not as was acknowledged"),
            (a.undecided, "seats cannot be decided"),
            (self.wrong, "answers were wrong"),
            (self.unread, "shows could not be read at the end"),
            (e.held_twice, "events reserve or free what was so already"),
            (e.lost, "acknowledged events are not stored"),
            (e.uninvited, "events are stored that nobody asked for"),
            (e.unreadable, "events cannot be understood"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let told = counts.map(|(count, what)| format!("{count} {what}"));
        let findings = self.wrongs.iter().chain(&a.findings).chain(&e.findings);
        told.chain(findings.cloned()).collect()
    }

    /// Tells of the checks.
    pub(crate) fn tell(&self, report: &mut Report) {
        report.text(self.sentence());
        report.problems.extend(self.problems());
    }
}
