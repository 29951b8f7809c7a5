//! What was asked and answered, 16 bytes per command, in the order in which it began and ended.
//!
//! Why numbers instead of times: all requests pass through one thread, so one counter orders their starts and ends
//! exactly; one request came before another if it had ended before the other began.
//! Not here: whether it can be true (`history`, `stored`).

use gesta_kit::operations::{Action, Operation, SeatAnswer, SeatSeen, SeatState};

use super::model::{Answer, Call, Fact, Op, Outcome, Shows};
use super::verdict::{Wrong, Wrongs};

/// End of a request whose outcome is not known: it may still take effect.
pub const NEVER: u32 = u32::MAX;
/// Entries and reads for which there is room from the beginning: a ledger that moves what it has would stop the
/// generator. Memory that is not used costs nothing.
const ROOM: (usize, usize) = (1 << 24, 1 << 21);

/// What is known of a request about a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A reservation was accepted.
    Reserved,
    /// A cancellation was accepted.
    Cancelled,
    /// It was said to be reserved.
    SeenReserved,
    /// It was said to be free.
    SeenFree,
    /// A reservation whose outcome is not known.
    MaybeReserved,
    /// A cancellation whose outcome is not known.
    MaybeCancelled,
}

/// A request about a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The seat (`Shows::place`).
    pub place: u32,
    /// When it was sent, by the counter of the ledger.
    pub begin: u32,
    /// When its answer came.
    pub end: u32,
    /// What came of it.
    pub what: What,
}

/// A read of a show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The show.
    pub show: u32,
    /// When it was sent, by the counter of the ledger.
    pub begin: u32,
    /// When its answer came.
    pub end: u32,
    /// The seats that were reserved.
    pub reserved: u128,
}

/// What is known of a show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existence {
    /// It was never asked for.
    #[default]
    Unasked,
    /// Its creation may have happened.
    Unknown,
    /// Its creation was acknowledged.
    Created,
}

/// Everything that was asked and answered.
#[derive(Debug)]
pub struct Ledger {
    /// What is asked about.
    pub shows: Shows,
    existence: Vec<Existence>,
    entries: Vec<Entry>,
    readings: Vec<Reading>,
    clock: u32,
    /// Reservations and cancellations acknowledged.
    pub acknowledged: u64,
    /// Answers that no request of the run deserves.
    pub wrongs: Wrongs,
}

impl Ledger {
    /// Nothing was asked yet.
    pub fn new(shows: Shows) -> Self {
        Self {
            shows,
            existence: Vec::new(),
            entries: Vec::with_capacity(ROOM.0),
            readings: Vec::with_capacity(ROOM.1),
            clock: 0,
            acknowledged: 0,
            wrongs: Wrongs::default(),
        }
    }

    /// The next number: of a start or an end.
    pub fn tick(&mut self) -> u32 {
        self.clock += 1;
        assert!(
            self.clock < NEVER,
            "a run has at most two thousand million requests"
        );
        self.clock
    }

    /// Where the counter stands: what is recorded from now on is after it.
    pub fn now(&self) -> u32 {
        self.clock
    }

    /// Writes down how a request ended that began at `begin`.
    pub fn record(&mut self, op: Op, begin: u32, answer: Answer) {
        let end = self.tick();
        match (op.call, answer.outcome, answer.fact) {
            // Nothing was done.
            (_, Outcome::Refused, _) => {}
            (Call::Create, outcome, fact) => self.create(op, outcome, fact, answer.status),
            (Call::Read, Outcome::Accepted, Fact::Seats(reserved)) => {
                let show = op.show;
                self.readings.push(Reading {
                    show,
                    begin,
                    end,
                    reserved,
                });
            }
            (Call::Read, Outcome::Failed, _) if answer.status == 0 => {}
            (Call::Read, ..) => self.wrong(op, answer.status),
            (call, outcome, fact) => {
                let (what, end) = match (call, outcome, fact) {
                    (Call::Reserve, Outcome::Accepted, _) => (What::Reserved, end),
                    (_, Outcome::Accepted, _) => (What::Cancelled, end),
                    (_, _, Fact::SeatReserved) => (What::SeenReserved, end),
                    (_, _, Fact::SeatFree) => (What::SeenFree, end),
                    (Call::Reserve, Outcome::Failed, _) => (What::MaybeReserved, NEVER),
                    (_, Outcome::Failed, _) => (What::MaybeCancelled, NEVER),
                    _ => return self.wrong(op, answer.status),
                };
                if outcome == Outcome::Accepted {
                    self.acknowledged += 1;
                }
                let place = self.shows.place(op.show, op.seat);
                self.entries.push(Entry {
                    place,
                    begin,
                    end,
                    what,
                });
            }
        }
    }

    fn create(&mut self, op: Op, outcome: Outcome, fact: Fact, status: u16) {
        let index = op.show as usize;
        if index >= self.existence.len() {
            self.existence.resize(index + 1, Existence::Unasked);
        }
        let state = &mut self.existence[index];
        *state = match (outcome, fact, *state) {
            (Outcome::Accepted, ..) | (_, _, Existence::Created) => Existence::Created,
            // An earlier attempt has created it after all.
            (_, Fact::ShowExists, Existence::Unknown) => Existence::Created,
            (Outcome::Failed, ..) => Existence::Unknown,
            _ => return self.wrong(op, status),
        };
    }

    /// An answer that no request of the run deserves.
    fn wrong(&mut self, op: Op, status: u16) {
        let Op { call, show, seat } = op;
        let (id, call) = (self.shows.id(show), call.name());
        let told = || format!("{call} of show {id} seat {seat}: answered {status}");
        self.wrongs.add(Wrong::Answer, 1, told);
    }

    /// What is known of a show.
    pub fn existence(&self, show: u32) -> Existence {
        let known = self.existence.get(show as usize).copied();
        known.unwrap_or_default()
    }

    /// The shows whose creation was acknowledged.
    pub fn created(&self) -> impl Iterator<Item = u32> + '_ {
        let numbered = (0_u32..).zip(&self.existence);
        numbered.filter_map(|(show, state)| (*state == Existence::Created).then_some(show))
    }

    /// Number of shows that were asked for.
    pub fn shows_asked(&self) -> u32 {
        u32::try_from(self.existence.len()).expect("shows are counted in 32 bits")
    }

    /// Everything that was asked and answered about seats, in the form that others can judge. Who asked is not known.
    pub fn operations(&self) -> Vec<Operation> {
        let operation = |place: u32, begin: u32, end: u32, action: Action| {
            let (show, seat) = self.shows.of_place(place);
            Operation {
                key: format!("seat-{}-{seat}", self.shows.id(show)),
                client: 0,
                call: begin.into(),
                answered: (end != NEVER).then_some(end.into()),
                action,
            }
        };
        let entries = self.entries.iter().map(|entry| {
            let done = Some(SeatAnswer::Done);
            let refused = |seat| Some(SeatAnswer::Refused { seat });
            let action = match entry.what {
                What::Reserved => Action::Reserve { output: done },
                What::SeenReserved => Action::Reserve {
                    output: refused(None),
                },
                What::MaybeReserved => Action::Reserve { output: None },
                What::Cancelled => Action::Cancel { output: done },
                What::SeenFree => Action::Cancel {
                    output: refused(Some(SeatState::Free)),
                },
                What::MaybeCancelled => Action::Cancel { output: None },
            };
            operation(entry.place, entry.begin, entry.end, action)
        });
        let reads = self.readings.iter().flat_map(|reading| {
            (0..self.shows.seats).map(move |seat| {
                let place = self.shows.place(reading.show, seat);
                let seat = match reading.reserved >> seat & 1 {
                    0 => SeatState::Free,
                    _ => SeatState::Reserved,
                };
                let output = SeatSeen { seat };
                operation(
                    place,
                    reading.begin,
                    reading.end,
                    Action::ReadSeat { output },
                )
            })
        });
        entries.chain(reads).collect()
    }

    /// All requests about seats, sorted by seat and start.
    pub fn sorted_entries(&self) -> Vec<Entry> {
        let mut all = self.entries.clone();
        all.sort_unstable_by_key(|entry| (entry.place, entry.begin));
        all
    }

    /// All reads, sorted by show and start.
    pub fn sorted_readings(&self) -> Vec<Reading> {
        let mut all = self.readings.clone();
        all.sort_unstable_by_key(|reading| (reading.show, reading.begin));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what no request of the run deserves is wrong; a show that exists after an unknown creation is not.
    #[test]
    fn strange_answers_are_told() {
        let mut ledger = Ledger::new(Shows { run: 1, seats: 3 });
        for (call, show, outcome, fact, wrong) in [
            (Call::Create, 0, Outcome::Failed, Fact::None, 0),
            (Call::Create, 0, Outcome::Rejected, Fact::ShowExists, 0),
            (Call::Reserve, 0, Outcome::Refused, Fact::None, 0),
            (Call::Reserve, 0, Outcome::Rejected, Fact::Absent, 1),
            (Call::Read, 0, Outcome::Rejected, Fact::Absent, 2),
            (Call::Create, 1, Outcome::Rejected, Fact::ShowExists, 3),
        ] {
            let begin = ledger.tick();
            let answer = Answer {
                outcome,
                fact,
                status: 400,
            };
            let seat = 0;
            ledger.record(Op { call, show, seat }, begin, answer);
            let found = ledger.wrongs.count(Wrong::Answer);
            assert_eq!(found, wrong, "{call:?} {show} {outcome:?}");
        }
        assert_eq!(ledger.created().collect::<Vec<_>>(), [0]);
        assert_eq!((ledger.acknowledged, ledger.sorted_entries().len()), (0, 0));
        assert_eq!(size_of::<Entry>(), 16);
    }
}
