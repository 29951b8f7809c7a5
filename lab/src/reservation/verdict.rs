//! Whether a run is a result: every answer can be true, and everything acknowledged is there.

use gesta_core::{AllFrom, EventStore};
use tokio_util::sync::CancellationToken;

use crate::failure::Result;
use crate::report::Report;
use crate::reservation::generator::Generator;
use crate::reservation::history::{self, Judgement};
use crate::reservation::ledger::Ledger;
use crate::reservation::model::{Call, Op};
use crate::reservation::stored::{self, StoredCheck};

/// All checks of a run.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Reservations and cancellations acknowledged.
    pub(crate) acknowledged: u64,
    /// Shows whose creation was acknowledged.
    pub(crate) shows: u64,
    /// Answers that no request of the run deserves.
    pub(crate) wrong: u64,
    /// The first of them.
    pub(crate) wrongs: Vec<String>,
    /// Shows that could not be read at the end.
    pub(crate) unread: u64,
    /// The answers.
    pub(crate) answers: Judgement,
    /// The events, if the store was given.
    pub(crate) events: Option<StoredCheck>,
}

impl Verdict {
    /// True if the run is a result.
    pub(crate) fn is_clean(&self) -> bool {
        self.wrong == 0
            && self.unread == 0
            && self.answers.is_clean()
            && self.events.as_ref().is_none_or(StoredCheck::is_clean)
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
        let mut counts = vec![
            (a.held_twice, "seats were held twice"),
            (a.cancelled_twice, "free seats were cancelled"),
            (a.stale, "answers were stale"),
            (a.lost, "seats are not as was acknowledged"),
            (a.undecided, "seats cannot be decided"),
            (self.wrong, "answers were wrong"),
            (self.unread, "shows could not be read at the end"),
        ];
        if let Some(e) = &self.events {
            counts.extend([
                (e.held_twice, "events reserve or free what was so already"),
                (e.lost, "acknowledged events are not stored"),
                (e.uninvited, "events are stored that nobody asked for"),
                (e.unreadable, "events cannot be understood"),
            ]);
        }
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let told = counts.map(|(count, what)| format!("{count} {what}"));
        let of_events = self.events.iter().flat_map(|events| &events.findings);
        let findings = self.wrongs.iter().chain(&a.findings).chain(of_events);
        told.chain(findings.cloned()).collect()
    }

    /// Tells of the checks.
    pub(crate) fn tell(&self, report: &mut Report) {
        report.text(self.sentence());
        report.problems.extend(self.problems());
    }
}

/// Reads every show from every server, and judges all answers so far.
pub(crate) fn of_answers(generator: &mut Generator, stop: &CancellationToken) -> Result<Verdict> {
    let last_from = generator.ledger.now();
    let shows: Vec<u32> = generator.ledger.created().collect();
    let reads = shows.iter().map(|show| Op {
        call: Call::Read,
        show: *show,
        seat: 0,
    });
    let servers = 0..generator.targets.len();
    let unread = generator.batch(reads, servers, stop)?.len() as u64;
    let ledger = &generator.ledger;
    Ok(Verdict {
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
    verdict: &mut Verdict,
    store: &dyn EventStore,
    from: AllFrom,
    ledger: &Ledger,
) -> Result<()> {
    verdict.events = Some(stored::check(store, from, ledger).await?);
    Ok(())
}
