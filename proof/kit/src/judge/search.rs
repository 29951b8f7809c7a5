//! Registers and seats: is there an order of all operations in which every answer is true?
//!
//! How: an order is searched effect by effect, and no state of the search is looked at twice (Wing and Gong 1993, Lowe
//! 2017). Operations without an answer are apart: they may take effect, or not, at any time after they began.
//! Invariant: no false alarm; what is too entangled to decide is said to be so.

use std::collections::HashSet;
use std::hash::Hash;

use super::{Action, Done, Operation, SeatAnswer, SeatState};

/// Operations at once that are told apart, and those without an answer.
const OPEN_MAX: usize = 128;
/// Most states of the search.
const WORLDS_MAX: usize = 1 << 20;

/// An operation with the time that it took.
#[derive(Debug, Clone, Copy)]
pub struct Span<T> {
    /// When it began.
    pub call: u64,
    /// When it was answered; none if the answer is not known.
    pub answered: Option<u64>,
    /// What was asked and answered.
    pub what: T,
}

/// Whether answers can be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Fits,
    /// There is none: no order gets past the answer to the operation that began then.
    Impossible {
        /// When it began.
        call: u64,
    },
    /// Too much at once.
    Undecided,
}

/// A state of the search: what has taken effect so far.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World<S> {
    state: S,
    /// All answered operations before this one.
    first: usize,
    /// Of the answered ones from there on, these.
    done: u128,
    /// Of those without an answer, these.
    open_done: u128,
}

/// Searches for an order. `step` gives the state after an operation, none if its answer is not true of the state; what
/// has no answer and cannot take effect leaves the state as it is.
pub fn fits_an_order<T, S: Clone + Eq + Hash>(
    operations: &[Span<T>],
    initial: S,
    step: impl Fn(&S, &T) -> Option<S>,
) -> Verdict {
    let mut sorted: Vec<&Span<T>> = operations.iter().collect();
    sorted.sort_by_key(|span| span.call);
    let (known, open): (Vec<_>, Vec<_>) = sorted.iter().partition(|span| span.answered.is_some());
    let (known, open): (Vec<&Span<T>>, Vec<&Span<T>>) = (known, open);
    if open.len() > OPEN_MAX {
        return Verdict::Undecided;
    }
    let ends = |span: &Span<T>| span.answered.unwrap_or(u64::MAX);
    let mut left = vec![World {
        state: initial,
        first: 0,
        done: 0,
        open_done: 0,
    }];
    let mut seen = HashSet::new();
    let mut furthest = (0, 0);
    while let Some(world) = left.pop() {
        let not_done = |(at, _): &(usize, &&Span<T>)| *at >= OPEN_MAX || world.done >> at & 1 == 0;
        let waiting = || known[world.first..].iter().enumerate().filter(not_done);
        let Some((end, call)) = waiting().map(|(_, span)| (ends(span), span.call)).min() else {
            return Verdict::Fits;
        };
        furthest = furthest.max((end, call));
        let (mut next, mut is_look) = (Vec::new(), false);
        for (at, span) in waiting() {
            if span.call > end {
                break;
            }
            if at >= OPEN_MAX {
                return Verdict::Undecided;
            }
            let Some(state) = step(&world.state, &span.what) else {
                continue;
            };
            let done = world.done | 1 << at;
            let passed = done.trailing_ones();
            is_look = state == world.state;
            let further = World {
                state,
                first: world.first + passed as usize,
                done: done.checked_shr(passed).unwrap_or(0),
                open_done: world.open_done,
            };
            if is_look {
                // What is true now and changes nothing need not wait: nothing is lost by it.
                next = vec![further];
                break;
            }
            next.push(further);
        }
        // Those without an answer are tried last: so they lie below the others.
        let mut tried_last = Vec::new();
        for (at, span) in open.iter().enumerate() {
            if is_look || span.call > end || world.open_done >> at & 1 == 1 {
                continue;
            }
            let state = step(&world.state, &span.what).filter(|state| *state != world.state);
            tried_last.extend(state.map(|state| World {
                state,
                open_done: world.open_done | 1 << at,
                ..world.clone()
            }));
        }
        for further in tried_last.into_iter().chain(next) {
            if seen.insert(further.clone()) {
                left.push(further);
            }
        }
        if seen.len() > WORLDS_MAX {
            return Verdict::Undecided;
        }
    }
    Verdict::Impossible { call: furthest.1 }
}

fn spans(operations: &[Operation]) -> Vec<Span<&Action>> {
    let span = |operation: &Operation| (operation.call, operation.answered);
    let spans = operations.iter().map(|operation| {
        let (call, answered) = span(operation);
        let what = &operation.action;
        Span {
            call,
            answered,
            what,
        }
    });
    spans.collect()
}

/// Judges all operations of a register.
#[must_use]
pub fn judge_register(operations: &[Operation]) -> Verdict {
    fits_an_order(&spans(operations), None, |held, action| match action {
        Action::Write { input, .. } => Some(Some(input.to)),
        Action::CompareAndSet { input, output } => {
            let holds = *held == input.from;
            match output {
                None | Some(Done::Done) if holds => Some(Some(input.to)),
                None => Some(*held),
                Some(Done::Refused) if !holds => Some(*held),
                Some(_) => None,
            }
        }
        Action::ReadRegister { output } => (output.value == *held).then_some(*held),
        _ => None,
    })
}

/// Judges all operations of a seat.
#[must_use]
pub fn judge_seat(operations: &[Operation]) -> Verdict {
    use SeatState::{Free, Paid, Reserved};
    fits_an_order(&spans(operations), Free, |seat, action| {
        let (from, to, output) = match action {
            Action::Reserve { output } => (Free, Reserved, output),
            Action::Cancel { output } | Action::GiveBack { output } => (Reserved, Free, output),
            Action::Pay { output } => (Reserved, Paid, output),
            Action::ReadSeat { output } => return (output.seat == *seat).then_some(*seat),
            _ => return None,
        };
        match output {
            None | Some(SeatAnswer::Done) if *seat == from => Some(to),
            None => Some(*seat),
            Some(SeatAnswer::Refused { seat: said }) if *seat != from => {
                said.is_none_or(|said| said == *seat).then_some(*seat)
            }
            Some(_) => None,
        }
    })
}
