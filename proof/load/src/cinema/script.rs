//! What virtual users do next.
//!
//! Serial: a user creates a show and reserves its seats one after the other in random order; then the next show.
//! Concurrent: all shows exist; a user takes the next seat of a shuffled list of all seats, reserves it and cancels the
//! reservation. Many users so meet on the same shows. At its end the list is shuffled again.
//! What was refused as overloaded is asked again at the user's next turn, so that overload does not change the mix.

use serde::Serialize;

use super::model::{Call, Op, Outcome, Shows};
use crate::random::Random;

/// Who meets whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// A show per user.
    Serial,
    /// Many users on the same shows.
    Concurrent,
}

/// Where a user stands.
#[derive(Debug, Clone, Default)]
pub struct User {
    stage: Stage,
    /// Serial: seats yet to reserve.
    seats: Vec<u8>,
    /// Seats of the first show that are left out, so that users do not all create at once.
    shortened: u16,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Between two pieces of work.
    #[default]
    Ready,
    /// A show waits to be created (again).
    Create { show: u32 },
    /// Serial: the seats of the show.
    Fill { show: u32 },
    /// Concurrent: the seat is to be reserved.
    Reserve { show: u32, seat: u16 },
    /// Concurrent: the reservation is to be cancelled.
    Cancel { show: u32, seat: u16 },
}

/// What the next request of each user is.
#[derive(Debug)]
pub struct Script {
    scenario: Scenario,
    /// What is asked about.
    pub shows: Shows,
    random: Random,
    /// Serial: the next show to be created; those before it are there already.
    pub next_show: u32,
    /// Concurrent: every seat once, shuffled as it is dealt.
    deck: Vec<u32>,
    dealt: usize,
}

impl Script {
    /// A script; `existing` shows are there already.
    pub fn new(scenario: Scenario, shows: Shows, existing: u32, seed: u64) -> Self {
        Self {
            scenario,
            shows,
            random: Random::fork(seed, 3),
            next_show: existing,
            deck: (0..shows.place(existing, 0)).collect(),
            dealt: 0,
        }
    }

    /// Goes on in another way; users finish what they have begun.
    pub fn switch(&mut self, scenario: Scenario) {
        self.scenario = scenario;
    }

    /// A user with a first show of random length.
    pub fn user(&mut self) -> User {
        let left_out = self.random.below(usize::from(self.shows.seats.max(1)));
        User {
            shortened: u16::try_from(left_out).expect("below the seats"),
            ..User::default()
        }
    }

    /// What the user asks next. The same again until [`settle`](Self::settle) is called.
    pub fn next(&mut self, user: &mut User) -> Op {
        if user.stage == Stage::Ready {
            user.stage = match self.scenario {
                Scenario::Serial => {
                    self.next_show += 1;
                    let show = self.next_show - 1;
                    Stage::Create { show }
                }
                Scenario::Concurrent => {
                    let (show, seat) = self.deal();
                    Stage::Reserve { show, seat }
                }
            };
        }
        let (call, show, seat) = match user.stage {
            Stage::Create { show } => (Call::Create, show, 0),
            Stage::Fill { show } => {
                let seat = user.seats.last().copied().unwrap_or(0);
                (Call::Reserve, show, u16::from(seat))
            }
            Stage::Reserve { show, seat } => (Call::Reserve, show, seat),
            Stage::Cancel { show, seat } => (Call::Cancel, show, seat),
            Stage::Ready => unreachable!("was left above"),
        };
        Op { call, show, seat }
    }

    /// Takes note of how it ended; true if the user has finished a piece of work.
    pub fn settle(&mut self, user: &mut User, outcome: Outcome) -> bool {
        use Outcome::{Accepted, Failed, Refused, Rejected};
        user.stage = match (user.stage, outcome) {
            // Nothing was done: again.
            (stage, Refused) => stage,
            (Stage::Create { show }, Accepted) => {
                self.shuffle_seats(user);
                Stage::Fill { show }
            }
            // Perhaps there, perhaps not: not to be used.
            (Stage::Create { .. }, Rejected | Failed) => Stage::Ready,
            (Stage::Fill { show }, _) => {
                user.seats.pop();
                if user.seats.is_empty() {
                    Stage::Ready
                } else {
                    Stage::Fill { show }
                }
            }
            // Perhaps reserved: a cancellation makes it free in either case.
            (Stage::Reserve { show, seat }, Accepted | Failed) => Stage::Cancel { show, seat },
            (Stage::Reserve { .. }, Rejected) => Stage::Ready,
            (stage @ Stage::Cancel { .. }, Failed) => stage,
            (Stage::Cancel { .. }, _) => Stage::Ready,
            (Stage::Ready, _) => Stage::Ready,
        };
        user.stage == Stage::Ready
    }

    fn shuffle_seats(&mut self, user: &mut User) {
        let count = u8::try_from(self.shows.seats).expect("at most 100 seats");
        user.seats.clear();
        user.seats.extend(0..count);
        self.random.shuffle(&mut user.seats);
        let kept = user.seats.len() - usize::from(std::mem::take(&mut user.shortened));
        user.seats.truncate(kept.max(1));
    }

    /// The next seat of the list: a step of Fisher and Yates' shuffle each, so that no long pause is needed.
    fn deal(&mut self) -> (u32, u16) {
        if self.dealt == self.deck.len() {
            self.dealt = 0;
        }
        let other = self.dealt + self.random.below(self.deck.len() - self.dealt);
        self.deck.swap(self.dealt, other);
        self.dealt += 1;
        self.shows.of_place(self.deck[self.dealt - 1])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const SHOWS: Shows = Shows { run: 1, seats: 50 };

    #[test]
    fn a_serial_user_creates_a_show_and_reserves_every_seat_once() {
        let mut script = Script::new(Scenario::Serial, SHOWS, 0, 7);
        let mut user = User::default();
        for show in 0..3 {
            assert_eq!(script.next(&mut user), Op::of_show(Call::Create, show));
            assert!(!script.settle(&mut user, Outcome::Accepted));
            let mut seats = Vec::new();
            loop {
                let op = script.next(&mut user);
                assert_eq!((op.call, op.show), (Call::Reserve, show));
                seats.push(op.seat);
                if script.settle(&mut user, Outcome::Accepted) {
                    break;
                }
            }
            assert_ne!(seats, (0..50).collect::<Vec<_>>());
            seats.sort_unstable();
            assert_eq!(seats, (0..50).collect::<Vec<_>>());
        }
    }

    #[test]
    fn concurrent_users_reserve_and_cancel_every_seat_once_per_round() {
        let mut script = Script::new(Scenario::Concurrent, SHOWS, 20, 7);
        let mut orders = Vec::new();
        for _ in 0..2 {
            let mut order = Vec::new();
            for _ in 0..1_000 {
                let mut user = User::default();
                let reserve = script.next(&mut user);
                assert_eq!(reserve.call, Call::Reserve);
                assert!(!script.settle(&mut user, Outcome::Accepted));
                let call = Call::Cancel;
                assert_eq!(script.next(&mut user), Op { call, ..reserve });
                assert!(script.settle(&mut user, Outcome::Accepted));
                order.push(SHOWS.place(reserve.show, reserve.seat));
            }
            assert_eq!(order.iter().collect::<HashSet<_>>().len(), 1_000);
            orders.push(order);
        }
        assert_ne!(orders[0], orders[1]);
    }

    #[test]
    fn what_was_refused_is_asked_again_and_what_is_unknown_is_made_free() {
        let mut script = Script::new(Scenario::Concurrent, SHOWS, 20, 7);
        let mut user = User::default();
        let first = script.next(&mut user);
        script.settle(&mut user, Outcome::Refused);
        assert_eq!(script.next(&mut user), first);
        script.settle(&mut user, Outcome::Failed);
        assert_eq!(script.next(&mut user).call, Call::Cancel);
        assert!(!script.settle(&mut user, Outcome::Failed));
        assert_eq!(script.next(&mut user).call, Call::Cancel);
        assert!(script.settle(&mut user, Outcome::Rejected));
    }
}
