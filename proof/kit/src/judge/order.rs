//! Do answers fit an order that is known?
//!
//! A log is the order of all changes, so no search is needed. What is said of it is true at some *places* of the log,
//! which is wherever it had ended when the answer was true: an answer about a stream at all places from one event of
//! the stream to the next one, an answer about a seat wherever the seat was so, a change exactly at its own.
//!
//! How: what is said is taken in the order in which it was asked for, and each gets the first place at which it is true
//! and which is not before the places of what had been answered before it was asked. A later place would only leave
//! less room for others; so if one gets no place, there is no order at all. A place is reached when all changes up to
//! it have been asked for, at the earliest.
//! Cost: `n log n`.
//! Invariant: no false alarm. What contradicts an earlier answer is told once, and bounds no others.
//! Not here: which places an answer has (`streams`, `entities`, `payments`); orders that nobody knows (`search`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Places one after the other: the first and the last.
pub type Stretch = (u64, u64);

/// Where something is true.
#[derive(Debug, Clone, Copy)]
pub enum Places<'a> {
    /// At these places.
    During(Stretch),
    /// In any of these stretches, which are in order and apart, but before that place.
    Any {
        /// The stretches.
        of: &'a [Stretch],
        /// The first place at which it is not true any more.
        before: u64,
    },
    /// It is a change: the log ended at the one place before it, and at the other one after it.
    Change {
        /// Before.
        from: u64,
        /// After.
        to: u64,
    },
}

/// Something that is said of a log.
#[derive(Debug, Clone, Copy)]
pub struct Statement<'a> {
    /// When it was asked for.
    pub began: u64,
    /// When it was answered: it was true at some moment between. `u64::MAX` if it never was.
    pub ended: u64,
    /// Those that were handed over one after the other to somebody who keeps their order have the same number.
    pub caller: Option<u64>,
    /// Where it is true.
    pub places: Places<'a>,
}

/// Why a statement has no place. Others are named by their numbers in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// It was true nowhere.
    Never,
    /// It was answered before a change was asked for on which it rests.
    Early {
        /// The change.
        change: usize,
    },
    /// It does not include what had been answered before it was asked.
    Stale {
        /// What had been answered.
        known: usize,
    },
    /// It does not include what was handed over before it.
    Overtaken {
        /// What was handed over before.
        earlier: usize,
    },
}

/// What has no place, by its number in the list, in the order in which it was asked for. Statements that begin at once
/// are taken as they stand in the list.
#[must_use]
pub fn misfits(statements: &[Statement<'_>]) -> Vec<(usize, Misfit)> {
    let reached = Reached::by(statements);
    let mut by_beginning: Vec<usize> = (0..statements.len()).collect();
    by_beginning.sort_by_key(|at| statements[*at].began);
    // Those that have a place and are not yet known to all who ask.
    let mut open: BinaryHeap<Reverse<(u64, u64, usize)>> = BinaryHeap::new();
    let mut least: (u64, Option<usize>) = (0, None);
    let mut callers: HashMap<u64, (u64, usize)> = HashMap::new();
    let mut found = Vec::new();
    for at in by_beginning {
        let statement = &statements[at];
        while let Some(Reverse((ended, place, other))) = open.peek().copied() {
            if ended >= statement.began {
                break;
            }
            open.pop();
            if place > least.0 {
                least = (place, Some(other));
            }
        }
        let of_caller = statement.caller.and_then(|caller| callers.get(&caller));
        let of_caller = of_caller.copied().unwrap_or_default();
        let Some(place) = statement.places.first_from(least.0, of_caller.0) else {
            let is_true_from = |known| statement.places.first_from(known, 0).is_some();
            let misfit = match least.1 {
                _ if !is_true_from(0) => Misfit::Never,
                Some(known) if !is_true_from(least.0) => Misfit::Stale { known },
                _ => Misfit::Overtaken {
                    earlier: of_caller.1,
                },
            };
            found.push((at, misfit));
            continue;
        };
        if let Some(change) = reached.after(place, statement.ended) {
            found.push((at, Misfit::Early { change }));
            continue;
        }
        open.push(Reverse((statement.ended, place, at)));
        if let Some(caller) = statement.caller {
            callers.insert(caller, (place, at));
        }
    }
    found
}

impl Places<'_> {
    /// The first place at which it is true and which is neither before what was known nor before what its caller had
    /// handed over earlier. That of a change is where it ends; it must begin where what was known ends, or later.
    fn first_from(&self, known: u64, earlier: u64) -> Option<u64> {
        let bound = known.max(earlier);
        match *self {
            Self::During((first, last)) => (last >= bound).then(|| first.max(bound)),
            Self::Any { of, before } => {
                let at = of.partition_point(|(_, last)| *last < bound);
                let (first, _) = of.get(at)?;
                Some(bound.max(*first)).filter(|place| *place < before)
            }
            Self::Change { from, to } => (from >= known && to >= earlier).then_some(to),
        }
    }
}

/// When places were reached, at the earliest.
struct Reached {
    /// In order: a place, when the changes up to it had been asked for, and the last of them that was.
    places: Vec<(u64, u64, usize)>,
}

impl Reached {
    fn by(statements: &[Statement<'_>]) -> Self {
        let changes = statements.iter().enumerate();
        let mut places: Vec<(u64, u64, usize)> = changes
            .filter_map(|(at, statement)| match statement.places {
                Places::Change { to, .. } => Some((to, statement.began, at)),
                _ => None,
            })
            .collect();
        places.sort_unstable();
        let mut last = (0, 0);
        for (_, began, at) in &mut places {
            last = last.max((*began, *at));
            (*began, *at) = last;
        }
        Self { places }
    }

    /// A change that was asked for after this moment and is needed to reach this place.
    fn after(&self, place: u64, moment: u64) -> Option<usize> {
        let count = self.places.partition_point(|(to, ..)| *to <= place);
        let (_, began, change) = *self.places.get(count.checked_sub(1)?)?;
        (began > moment).then_some(change)
    }
}
