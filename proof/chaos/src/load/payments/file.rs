//! The replies of a round in the form that others can judge. What a timer does nobody asks for, and nobody is told when
//! it was done: so it is an operation that began with the reservation before it, and has no answer.

use std::collections::{HashMap, HashSet};

use gesta_kit::operations::{Action, Operation, SeatAnswer, SeatSeen, SeatState};

use super::book::{Book, Did, Seat};
use super::users::{Command, Record, Reply, Saw};

/// All replies of a round, with what timers have done of its reservations.
pub(super) fn operations(book: &Book, told: &Record) -> Vec<Operation> {
    let mut operations = Vec::new();
    let mut begins: HashMap<&str, u64> = HashMap::new();
    let mut seats: HashSet<Seat> = HashSet::new();
    for asked in &told.asked {
        begins.insert(&asked.key, asked.first);
        seats.insert(asked.seat);
        operations.extend(of_command(asked));
    }
    for (seat, changes) in &book.seats {
        for pair in changes.windows(2) {
            let is_timer = pair[1].did == Did::Cancelled && !begins.contains_key(&*pair[1].key);
            let begin = begins.get(pair[0].key.as_str()).filter(|_| is_timer);
            if let Some(begin) = begin {
                let action = Action::GiveBack { output: None };
                operations.push(operation(*seat, *begin, None, action));
            }
        }
    }
    for read in &told.reads {
        for (number, saw) in (0..).zip(&read.seats) {
            let show = read.show;
            let seat = Seat { show, number };
            // Nobody ever had the others, and nobody said so.
            if let Some(state) = state(*saw)
                && (seats.contains(&seat) || state != SeatState::Free)
            {
                let output = SeatSeen { seat: state };
                let action = Action::ReadSeat { output };
                operations.push(operation(seat, read.begin, Some(read.end), action));
            }
        }
    }
    operations
}

fn operation(seat: Seat, call: u64, answered: Option<u64>, action: Action) -> Operation {
    Operation {
        key: format!("seat-{}-{}", seat.show, seat.number),
        client: 0,
        call,
        answered,
        action,
    }
}

/// A command takes effect once, however often it is sent. One that is refused after an attempt without an answer may
/// have taken effect all the same.
fn of_command(asked: &Command) -> Vec<Operation> {
    let of = |call, answered, output| {
        let action = match asked.did {
            Did::Reserved => Action::Reserve { output },
            Did::Paid => Action::Pay { output },
            Did::Cancelled => Action::Cancel { output },
        };
        operation(asked.seat, call, answered, action)
    };
    match asked.reply {
        Reply::Done => vec![of(asked.first, Some(asked.end), Some(SeatAnswer::Done))],
        Reply::Open => vec![of(asked.first, None, None)],
        Reply::Refused(saw) => {
            let refused = SeatAnswer::Refused { seat: state(saw) };
            let mut both = vec![of(asked.begin, Some(asked.end), Some(refused))];
            if asked.in_doubt {
                both.push(of(asked.first, None, None));
            }
            both
        }
    }
}

/// None if it is not said exactly.
fn state(saw: Saw) -> Option<SeatState> {
    match saw {
        Saw::Free => Some(SeatState::Free),
        Saw::Reserved => Some(SeatState::Reserved),
        Saw::Paid => Some(SeatState::Paid),
        Saw::Held => None,
    }
}
