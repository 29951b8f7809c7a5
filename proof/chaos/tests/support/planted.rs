//! Faults that are planted in the history of one key: a stale read, a lost and a doubled append, a seat with two
//! owners, an answer out of the future, and changes of any kind, which may be faults or not.

#![allow(
    clippy::ptr_arg,
    reason = "all ways of planting have one type, though few add or remove"
)]

use std::collections::BTreeMap;

use gesta_kit::faulty::Random;
use gesta_kit::operations::{Action, Appended, Done, Held, Operation, SeatAnswer, SeatState, Seen};
use uuid::Uuid;

/// Times are spread by this, so that something fits between any two.
const SPREAD: u64 = 8;
/// So many operations are written at most, and what is over in the end.
const OPERATIONS_MAX: usize = 300_000;

/// A history with a fault.
pub(crate) struct Planted {
    /// Its key, which names the fault, too.
    pub(crate) key: String,
    pub(crate) history: Vec<Operation>,
    /// No order of all operations can make all answers true.
    pub(crate) is_certain: bool,
}

/// What a way of planting has done: nothing if it does not fit this history.
type Fault = fn(&mut Vec<Operation>, &mut Random) -> Option<()>;

/// All ways, by name, and whether what they plant is a fault for certain.
const FAULTS: [(&str, Fault, bool); 9] = [
    ("stale-read", stale_read, true),
    ("stale-register", stale_register, true),
    ("lost-append", lost_append, true),
    ("doubled-append", doubled_append, true),
    ("from-the-future", from_the_future, true),
    ("two-owners", two_owners, false),
    ("one-change", change, false),
    ("one-change-more", change, false),
    ("many-changes", changes, false),
];

/// Plants so many faults, or fewer if the histories are long, each alone, in keys that chance names.
pub(crate) fn plant(history: &[Operation], count: usize, random: &mut Random) -> Vec<Planted> {
    let mut by_key: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        by_key.entry(&operation.key).or_default().push(operation);
    }
    // With few operations there is little to plant.
    let keys: Vec<_> = by_key.values().filter(|all| all.len() > 3).collect();
    let (mut planted, mut operations) = (Vec::new(), 0);
    for number in 0..count * 4 {
        if planted.len() == count || keys.is_empty() || operations > OPERATIONS_MAX {
            break;
        }
        let (name, fault, is_certain) = random.pick(&FAULTS);
        let original = random.pick(&keys);
        let spread = |operation: &&Operation| Operation {
            call: operation.call * SPREAD,
            answered: operation.answered.map(|answered| answered * SPREAD),
            ..(*operation).clone()
        };
        let mut history: Vec<Operation> = original.iter().map(spread).collect();
        history.sort_by_key(|operation| operation.call);
        if fault(&mut history, random).is_none() {
            continue;
        }
        let key = format!("{number}-{name}-{}", history[0].key);
        for operation in &mut history {
            operation.key.clone_from(&key);
        }
        operations += history.len();
        planted.push(Planted {
            key,
            history,
            is_certain: *is_certain,
        });
    }
    planted
}

/// The places where something is so, one of them by chance.
fn pick<T: Copy>(places: impl IntoIterator<Item = T>, random: &mut Random) -> Option<T> {
    let places: Vec<T> = places.into_iter().collect();
    (!places.is_empty()).then(|| *random.pick(&places))
}

/// An append that was acknowledged: when, where its events are, and how many there are.
fn stored(operation: &Operation) -> Option<(u64, u64, u64)> {
    match &operation.action {
        Action::Append {
            input,
            output: Some(Appended::Stored { first }),
        } => Some((operation.answered?, *first, input.ids.len() as u64)),
        _ => None,
    }
}

/// The last read of a stream, which shows all of it.
fn whole(history: &[Operation]) -> Option<(usize, Vec<Uuid>)> {
    let shows = |(at, operation): (usize, &Operation)| match &operation.action {
        Action::ReadStream { output } if output.length == output.ids.len() as u64 => {
            Some((at, output.ids.clone()))
        }
        _ => None,
    };
    history.iter().enumerate().filter_map(shows).next_back()
}

/// Reads that show the end of a stream, but for the last.
fn looks(history: &[Operation]) -> impl Iterator<Item = (usize, &Operation, &Seen)> {
    let last = whole(history).map(|(at, _)| at);
    let all = history.iter().enumerate();
    all.filter_map(move |(at, operation)| match &operation.action {
        Action::ReadStream { output } if Some(at) != last => Some((at, operation, output)),
        _ => None,
    })
}

/// A read shows the stream as it was before an append that had been acknowledged.
fn stale_read(history: &mut Vec<Operation>, random: &mut Random) -> Option<()> {
    let (_, ids) = whole(history)?;
    let found = looks(history).flat_map(|(at, look, _)| {
        let before = history.iter().filter_map(stored);
        let before = before.filter(|(answered, ..)| *answered < look.call);
        before.map(move |(_, first, _)| (at, first))
    });
    let (at, first) = pick(found, random)?;
    let length = usize::try_from(first).ok()?;
    history[at].action = Action::ReadStream {
        output: Seen {
            length: first,
            ids: ids[length.saturating_sub(1)..length].to_vec(),
        },
    };
    Some(())
}

/// A change of a register that was done: its value.
fn written(operation: &Operation) -> Option<Uuid> {
    match &operation.action {
        Action::Write { input, output } | Action::CompareAndSet { input, output } => {
            (*output == Some(Done::Done)).then_some(input.to)
        }
        _ => None,
    }
}

/// A register is read as what was overwritten before the read began.
fn stale_register(history: &mut Vec<Operation>, random: &mut Random) -> Option<()> {
    let mut found = Vec::new();
    for (at, read) in history.iter().enumerate() {
        if !matches!(read.action, Action::ReadRegister { .. }) {
            continue;
        }
        let before = |limit: u64| {
            let is_before = move |one: &&Operation| one.answered.is_some_and(|end| end < limit);
            let all = history.iter().filter(is_before);
            all.filter(|one| written(one).is_some())
        };
        let last = before(read.call).max_by_key(|one| one.call);
        let overwritten = last.and_then(|last| before(last.call).max_by_key(|one| one.call));
        found.extend(overwritten.and_then(written).map(|value| (at, value)));
    }
    let (at, value) = pick(found, random)?;
    let value = Some(value);
    history[at].action = Action::ReadRegister {
        output: Held { value },
    };
    Some(())
}

/// The end of the stream lacks the events of an append that was acknowledged.
fn lost_append(history: &mut Vec<Operation>, random: &mut Random) -> Option<()> {
    let (at, mut ids) = whole(history)?;
    let (_, first, count) = pick(history.iter().filter_map(stored), random)?;
    let first = usize::try_from(first).ok()?;
    ids.drain(first..first + usize::try_from(count).ok()?);
    history[at].action = Action::ReadStream {
        output: Seen {
            length: ids.len() as u64,
            ids,
        },
    };
    Some(())
}

/// The end of the stream has the events of an append twice.
fn doubled_append(history: &mut Vec<Operation>, random: &mut Random) -> Option<()> {
    let (at, mut ids) = whole(history)?;
    let (_, first, count) = pick(history.iter().filter_map(stored), random)?;
    let first = usize::try_from(first).ok()?;
    let again = ids[first..first + usize::try_from(count).ok()?].to_vec();
    // At its place, or at the end.
    let place = *random.pick(&[first, ids.len()]);
    ids.splice(place..place, again);
    history[at].action = Action::ReadStream {
        output: Seen {
            length: ids.len() as u64,
            ids,
        },
    };
    Some(())
}

/// A read is answered before what it shows was asked for.
fn from_the_future(history: &mut Vec<Operation>, random: &mut Random) -> Option<()> {
    // When something was first asked for whose effect shows.
    let began = |is_it: &dyn Fn(&Operation) -> bool| {
        let all = history.iter().filter(|one| is_it(one));
        all.map(|one| one.call).min()
    };
    let mut found = Vec::new();
    for (at, look, seen) in looks(history) {
        let Some(last) = seen.ids.last() else {
            continue;
        };
        let begin = began(
            &|one| matches!(&one.action, Action::Append { input, .. } if input.ids.contains(last)),
        );
        found.extend(begin.map(|begin| (at, begin.min(look.call))));
    }
    for (at, read) in history.iter().enumerate() {
        if let Action::ReadRegister {
            output: Held { value: Some(value) },
        } = read.action
        {
            let begin = began(
                &|one| matches!(&one.action, Action::Write { input, .. } | Action::CompareAndSet { input, .. } if input.to == value),
            );
            found.extend(begin.map(|begin| (at, begin)));
        }
    }
    let (at, begin) = pick(found, random)?;
    (history[at].call, history[at].answered) = (begin - 2, Some(begin - 1));
    Some(())
}

/// Somebody else reserves a seat right after somebody has.
fn two_owners(history: &mut Vec<Operation>, random: &mut Random) -> Option<()> {
    let reserved = history
        .iter()
        .filter_map(|operation| match operation.action {
            Action::Reserve {
                output: Some(SeatAnswer::Done),
            } => operation.answered,
            _ => None,
        });
    let end = pick(reserved, random)?;
    let template = history[0].clone();
    history.push(Operation {
        client: template.client + 1,
        call: end + 1,
        answered: Some(end + 2),
        action: Action::Reserve {
            output: Some(SeatAnswer::Done),
        },
        ..template
    });
    Some(())
}

fn changes(history: &mut Vec<Operation>, random: &mut Random) -> Option<()> {
    for _ in 0..2 + random.below(4) {
        change(history, random)?;
    }
    Some(())
}

/// Changes an operation in some way, but the last read of a stream, without which nobody could tell what it holds.
fn change(history: &mut Vec<Operation>, random: &mut Random) -> Option<()> {
    let last = whole(history).map(|(at, _)| at);
    let at = pick((0..history.len()).filter(|at| Some(*at) != last), random)?;
    let other = pick((0..history.len()).filter(|at| Some(*at) != last), random)?;
    match random.below(6) {
        // At another time.
        0 => {
            let time = history[other].call;
            let took = history[at].answered.map(|end| end - history[at].call);
            history[at].call = time + 3;
            history[at].answered = took.map(|took| time + 3 + took);
        }
        // Answered sooner.
        1 => history[at].answered = history[at].answered.map(|_| history[at].call + 1),
        // Never answered.
        2 => {
            let is_open = forget_answer(&mut history[at].action);
            if is_open {
                history[at].answered = None;
            }
        }
        // As if it had never been asked for.
        3 => {
            history.remove(at);
        }
        // Two answers are confused.
        4 => {
            let (one, two) = (history[at].clone(), history[other].clone());
            confuse(&mut history[at].action, &two.action);
            confuse(&mut history[other].action, &one.action);
        }
        // Another answer.
        _ => change_answer(&mut history[at].action, random),
    }
    Some(())
}

/// True if it may have no answer.
fn forget_answer(action: &mut Action) -> bool {
    match action {
        Action::Append { output, .. } => *output = None,
        Action::Write { output, .. } | Action::CompareAndSet { output, .. } => *output = None,
        Action::Reserve { output }
        | Action::Cancel { output }
        | Action::Pay { output }
        | Action::GiveBack { output } => *output = None,
        Action::ReadStream { .. } | Action::ReadRegister { .. } | Action::ReadSeat { .. } => {
            return false;
        }
    }
    true
}

/// Gives it the answer of another one, if both are answered and of the same kind.
fn confuse(action: &mut Action, other: &Action) {
    match (action, other) {
        (
            Action::Append {
                output: Some(output),
                ..
            },
            Action::Append {
                output: Some(other),
                ..
            },
        ) => output.clone_from(other),
        (Action::ReadStream { output }, Action::ReadStream { output: other }) => {
            output.clone_from(other);
        }
        (Action::ReadRegister { output }, Action::ReadRegister { output: other }) => {
            *output = *other
        }
        (
            Action::CompareAndSet {
                output: Some(output),
                ..
            },
            Action::CompareAndSet {
                output: Some(other),
                ..
            },
        ) => *output = *other,
        (Action::ReadSeat { output }, Action::ReadSeat { output: other }) => *output = *other,
        _ => {}
    }
}

fn change_answer(action: &mut Action, random: &mut Random) {
    let nudge = |number: &mut u64, random: &mut Random| {
        *number = match random.chance(0.5) {
            true => *number + 1,
            false => number.saturating_sub(1),
        };
    };
    match action {
        Action::Append {
            output: Some(output),
            ..
        } => match (random.below(3), &mut *output) {
            (0, _) => *output = Appended::Refused { length: None },
            (
                _,
                Appended::Stored { first: number }
                | Appended::Refused {
                    length: Some(number),
                },
            ) => nudge(number, random),
            _ => {}
        },
        Action::ReadStream { output } => nudge(&mut output.length, random),
        Action::Write { .. } => {}
        Action::CompareAndSet {
            output: Some(output),
            ..
        } => {
            *output = match output {
                Done::Done => Done::Refused,
                Done::Refused => Done::Done,
            };
        }
        Action::ReadRegister { output } => output.value = None,
        Action::Reserve {
            output: Some(output),
        }
        | Action::Cancel {
            output: Some(output),
        }
        | Action::Pay {
            output: Some(output),
        } => {
            *output = match output {
                SeatAnswer::Done => SeatAnswer::Refused { seat: None },
                SeatAnswer::Refused { .. } => SeatAnswer::Done,
            };
        }
        Action::ReadSeat { output } => {
            output.seat = match output.seat {
                SeatState::Free => SeatState::Reserved,
                SeatState::Reserved | SeatState::Paid => SeatState::Free,
            };
        }
        _ => {}
    }
}
