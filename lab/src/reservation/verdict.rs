//! Whether a run is a result: every answer can be true, and everything acknowledged is there.

use serde::Serialize;

use gesta_core::{AllFrom, EventStore};
use tokio_util::sync::CancellationToken;

use crate::failure::Result;
use crate::reservation::generator::Generator;
use crate::reservation::history::{self, Judgement};
use crate::reservation::ledger::Ledger;
use crate::reservation::model::{Call, Op};
use crate::reservation::stored::{self, StoredCheck};

/// All checks of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Verdict {
    /// Reservations and cancellations acknowledged.
    pub(crate) acknowledged: u64,
    /// Shows whose creation was acknowledged.
    pub(crate) shows: u64,
    /// Answers that no request of the run deserves.
    pub(crate) wrong: u64,
    /// The first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
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

    /// Tells people.
    pub(crate) fn print(&self) {
        if self.is_clean() {
            let Judgement {
                unknown,
                reads,
                seats,
                ..
            } = self.answers;
            println!(
                "checked: all {} acknowledged requests hold in {seats} seats of {} shows ({reads} reads, {unknown} unknown outcomes)",
                self.acknowledged, self.shows
            );
            if let Some(events) = &self.events {
                println!("checked: {} events in the store agree", events.events);
            }
            return;
        }
        let a = &self.answers;
        println!(
            "NO RESULT: held twice {}, cancelled twice {}, stale {}, lost {}, undecided {}, wrong answers {}, unread {}",
            a.held_twice, a.cancelled_twice, a.stale, a.lost, a.undecided, self.wrong, self.unread
        );
        if let Some(e) = &self.events {
            println!(
                "  in the store: held twice {}, lost {}, uninvited {}, unreadable {}",
                e.held_twice, e.lost, e.uninvited, e.unreadable
            );
        }
        let of_events = self.events.iter().flat_map(|events| &events.findings);
        for finding in self.wrongs.iter().chain(&a.findings).chain(of_events) {
            println!("  {finding}");
        }
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
