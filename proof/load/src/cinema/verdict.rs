//! Whether a run is a result: every answer can be true, and everything acknowledged is there.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use gesta_core::{AllFrom, EventStore};
use gesta_report::Report;
use gesta_report::failure::Result;
use gesta_report::read_back::ReadBack;

use super::generator::Generator;
use super::history;
use super::ledger::Ledger;
use super::model::{Call, Op};
use super::stored;

/// Most findings of a kind that are told in words.
const FINDINGS_MAX: usize = 10;

/// What can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// Accepted reservations of a seat that was held.
    HeldTwice,
    /// Accepted cancellations of a seat that was free.
    CancelledTwice,
    /// Answers during the run that show a state which had passed, or never was.
    Stale,
    /// Seats whose last state is not what was acknowledged.
    Lost,
    /// Seats with too much at once to decide.
    Undecided,
    /// Answers that no request of the run deserves.
    Answer,
    /// Commands without an answer although nothing is in the way of one.
    Unanswered,
    /// Shows that could not be read at the end.
    Unread,
    /// Events that reserve a held seat or free a free one.
    StoredTwice,
    /// Acknowledged, but not stored.
    NotStored,
    /// Stored, though nobody asked for so many.
    Uninvited,
    /// Events that cannot be understood.
    Unreadable,
    /// Events that are other ones, or are not there, when all is read again.
    ReadOtherwise,
    /// Seats that a timer has given back twice, or that were free.
    GivenBackTwice,
    /// Seats that were given back before their time.
    GivenBackEarly,
    /// Seats that were given back by no timer, or by that of another reservation.
    GivenBackWrongly,
    /// Seats that were given back although they were paid.
    PaidGivenBack,
    /// Seats whose time to pay is over, and that are held all the same.
    NotGivenBack,
    /// Reservations for which no timer was set.
    NotWatched,
    /// Timers whose time is over, and that have neither fired nor were cancelled.
    TimerPending,
    /// Timers that are not those of a reservation.
    FalseTimer,
}

impl Wrong {
    fn told(self) -> &'static str {
        match self {
            Wrong::HeldTwice => "seats were held twice",
            Wrong::CancelledTwice => "free seats were cancelled",
            Wrong::Stale => "answers were stale",
            Wrong::Lost => "seats are not as was acknowledged",
            Wrong::Undecided => "seats cannot be decided",
            Wrong::Answer => "answers were wrong",
            Wrong::Unanswered => "commands stayed without an answer",
            Wrong::Unread => "shows could not be read at the end",
            Wrong::StoredTwice => "events reserve or free what was so already",
            Wrong::NotStored => "acknowledged events are not stored",
            Wrong::Uninvited => "events are stored that nobody asked for",
            Wrong::Unreadable => "events cannot be understood",
            Wrong::ReadOtherwise => "events are other ones when all is read again",
            Wrong::GivenBackTwice => "seats were given back twice",
            Wrong::GivenBackEarly => "seats were given back too early",
            Wrong::GivenBackWrongly => "seats were given back that were not to be",
            Wrong::PaidGivenBack => "paid seats were given back",
            Wrong::NotGivenBack => "seats were never given back",
            Wrong::NotWatched => "reservations are not watched",
            Wrong::TimerPending => "timers are pending past their time",
            Wrong::FalseTimer => "timers are not those of a reservation",
        }
    }
}

/// What is wrong, how often, and the first of each kind in words.
#[derive(Debug, Clone, Default)]
pub struct Wrongs(BTreeMap<Wrong, (u64, Vec<String>)>);

impl Wrongs {
    /// Adds so many of a kind; the first are told in words.
    pub fn add(&mut self, kind: Wrong, count: u64, told: impl FnOnce() -> String) {
        let (sum, findings) = self.0.entry(kind).or_default();
        *sum += count;
        if findings.len() < FINDINGS_MAX {
            findings.push(told());
        }
    }

    /// How often this was found.
    pub fn count(&self, kind: Wrong) -> u64 {
        self.0.get(&kind).map_or(0, |(count, _)| *count)
    }

    /// True if nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The counts, then the findings.
    pub fn told(&self) -> Vec<String> {
        let counts = self.0.iter();
        let counts = counts.map(|(kind, (count, _))| format!("{count} {}", kind.told()));
        let findings = self.0.values().flat_map(|(_, findings)| findings.iter());
        counts.chain(findings.cloned()).collect()
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
        let mut verdict = generator.with_ledger(|ledger| history::judge(ledger, last_from));
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
