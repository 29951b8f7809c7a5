//! What was asked and answered, as the facts that are judged (`gesta_kit::history::Seats`), and which answers no
//! request deserves.
//!
//! Why numbers instead of times: all requests pass through one thread, so one counter orders their starts and ends
//! exactly; one request came before another if it had ended before the other began.
//! Not here: whether it can be true (`gesta_kit::judge::seats`).

use gesta_kit::history::{Creation, Entry, NEVER, Reading, SeatEvent, Seats};
use gesta_kit::operations::Operation;
use gesta_kit::verdict::{Kind, Verdict};

use super::model::{Answer, Call, Fact, Op, Outcome, Shows};

/// Everything that was asked and answered.
#[derive(Debug)]
pub struct Ledger {
    /// What is asked about.
    pub shows: Shows,
    /// What was asked and answered about seats.
    pub seats: Seats,
    /// Reservations and cancellations acknowledged.
    pub acknowledged: u64,
    /// Answers that no request of the run deserves.
    pub verdict: Verdict,
}

impl Ledger {
    /// Nothing was asked yet.
    pub fn new(shows: Shows) -> Self {
        Self {
            shows,
            seats: Seats::new(shows.seats),
            acknowledged: 0,
            verdict: Verdict::default(),
        }
    }

    /// The next number: of a start or an end.
    pub fn tick(&mut self) -> u32 {
        self.seats.tick()
    }

    /// Where the counter stands: what is recorded from now on is after it.
    pub fn now(&self) -> u32 {
        self.seats.now()
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
                self.seats.read(Reading {
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
                    (Call::Reserve, Outcome::Accepted, _) => (SeatEvent::Reserved, end),
                    (_, Outcome::Accepted, _) => (SeatEvent::Cancelled, end),
                    (_, _, Fact::SeatReserved) => (SeatEvent::SeenReserved, end),
                    (_, _, Fact::SeatFree) => (SeatEvent::SeenFree, end),
                    (Call::Reserve, Outcome::Failed, _) => (SeatEvent::MaybeReserved, NEVER),
                    (_, Outcome::Failed, _) => (SeatEvent::MaybeCancelled, NEVER),
                    _ => return self.wrong(op, answer.status),
                };
                if outcome == Outcome::Accepted {
                    self.acknowledged += 1;
                }
                let place = self.seats.place(op.show, op.seat);
                self.seats.record(Entry {
                    place,
                    begin,
                    end,
                    what,
                });
            }
        }
    }

    fn create(&mut self, op: Op, outcome: Outcome, fact: Fact, status: u16) {
        let present = self.seats.creation(op.show);
        let creation = match (outcome, fact, present) {
            (Outcome::Accepted, ..) | (_, _, Creation::Created) => Creation::Created,
            // An earlier attempt has created it after all.
            (_, Fact::ShowExists, Creation::Unknown) => Creation::Created,
            (Outcome::Failed, ..) => Creation::Unknown,
            _ => {
                // It was asked for all the same.
                self.seats.create(op.show, present);
                return self.wrong(op, status);
            }
        };
        self.seats.create(op.show, creation);
    }

    /// An answer that no request of the run deserves.
    fn wrong(&mut self, op: Op, status: u16) {
        let Op { call, show, seat } = op;
        let (id, call) = (self.shows.id(show), call.name());
        let told = || format!("{call} of show {id} seat {seat}: answered {status}");
        self.verdict.add(Kind::Answer, 1, told);
    }

    /// The shows whose creation was acknowledged.
    pub fn created(&self) -> impl Iterator<Item = u32> + '_ {
        self.seats.created()
    }

    /// Everything that was asked and answered about seats, in the form that others can judge.
    pub fn operations(&self) -> Vec<Operation> {
        let name = |show, seat| format!("seat-{}-{seat}", self.shows.id(show));
        self.seats.operations(name)
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
            let found = ledger.verdict.count(Kind::Answer);
            assert_eq!(found, wrong, "{call:?} {show} {outcome:?}");
        }
        assert_eq!(ledger.created().collect::<Vec<_>>(), [0]);
        assert_eq!(
            (ledger.acknowledged, ledger.seats.sorted_entries().len()),
            (0, 0)
        );
        assert_eq!(size_of::<Entry>(), 16);
    }
}
