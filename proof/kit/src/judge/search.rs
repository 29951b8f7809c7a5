//! Is there an order of all operations in which every answer is true? For what is in no log: registers and seats.
//!
//! How: an order is searched effect by effect, and no state of the search is looked at twice (Wing and Gong 1993, Lowe
//! 2017). Operations without an answer are apart: they may take effect, or not, at any time after they began. Those
//! that ask for the same can stand for each other, so only their number is part of a state.
//! Invariant: no false alarm; what is too entangled to decide is said to be so.
//! Not here: orders that are known (`order`); what operations mean (`registers`, `seats`).

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Operations at once that are told apart, and kinds of those without an answer.
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

/// What an operation does to a state in which its answer is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect<S> {
    /// Nothing, in whatever state it is true.
    Nothing,
    /// The state becomes this one. It may be the same by chance.
    Becomes(S),
}

/// Whether answers can be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// There is an order.
    Fits,
    /// There is none: no order gets past the answer to this operation, by its number in the list.
    Impossible {
        /// Its number.
        at: usize,
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
    /// Of those without an answer, so many of each kind.
    open_done: u128,
}

/// Operations without an answer that ask for the same.
struct OpenKind<'a, T> {
    what: &'a T,
    /// When they began, in order.
    calls: Vec<u64>,
}

/// The numbers of several kinds in one word.
#[derive(Clone, Copy)]
struct Counts {
    bits: u32,
}

impl Counts {
    /// None if they are too many, or too many kinds.
    fn of<T>(kinds: &[OpenKind<'_, T>]) -> Option<Self> {
        let bits = 128 / u32::try_from(kinds.len().max(1)).ok()?;
        let counts = Self { bits };
        let most = kinds.iter().map(|kind| kind.calls.len()).max().unwrap_or(0);
        (bits > 0 && most as u128 <= counts.most()).then_some(counts)
    }

    fn most(self) -> u128 {
        u128::MAX >> (128 - self.bits)
    }

    fn get(self, word: u128, kind: usize) -> usize {
        let count = (word >> self.shift(kind)) & self.most();
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    /// With one more of a kind.
    fn plus_one(self, word: u128, kind: usize) -> u128 {
        word + (1 << self.shift(kind))
    }

    fn shift(self, kind: usize) -> u32 {
        self.bits * u32::try_from(kind).unwrap_or(u32::MAX)
    }
}

/// Searches for an order. `step` gives the effect of an operation on a state, none if its answer is not true of the
/// state; what has no answer and cannot take effect has none either. Operations that are equal have the same effect.
pub fn search<T: Eq + Hash, S: Clone + Eq + Hash>(
    operations: &[Span<T>],
    initial: S,
    step: impl Fn(&S, &T) -> Option<Effect<S>>,
) -> Search {
    let mut known: Vec<(u64, usize, &Span<T>)> = Vec::new();
    let mut open: Vec<OpenKind<'_, T>> = Vec::new();
    let mut kinds: HashMap<&T, usize> = HashMap::new();
    for (at, span) in operations.iter().enumerate() {
        if let Some(answered) = span.answered {
            known.push((answered, at, span));
            continue;
        }
        let kind = *kinds.entry(&span.what).or_insert(open.len());
        if kind == open.len() {
            let (what, calls) = (&span.what, Vec::new());
            open.push(OpenKind { what, calls });
        }
        open[kind].calls.push(span.call);
    }
    known.sort_by_key(|(.., span)| span.call);
    open.iter_mut().for_each(|kind| kind.calls.sort_unstable());
    let Some(counts) = Counts::of(&open) else {
        return Search::Undecided;
    };
    let mut left = vec![World {
        state: initial,
        first: 0,
        done: 0,
        open_done: 0,
    }];
    let mut seen = HashSet::new();
    let mut furthest = (0, 0);
    while let Some(world) = left.pop() {
        let not_done = |at: usize| at >= OPEN_MAX || world.done >> at & 1 == 0;
        let waiting = || {
            let rest = known[world.first..].iter().enumerate();
            rest.filter(move |(at, _)| not_done(*at))
        };
        // What has ended first must come before whatever began after that.
        let Some(end) = first_end(waiting().map(|(_, (end, at, span))| (span.call, *end, *at)))
        else {
            return Search::Fits;
        };
        furthest = furthest.max(end);
        let (end, _) = end;
        let (mut next, mut is_look) = (Vec::new(), false);
        for (at, (.., span)) in waiting() {
            if span.call > end {
                break;
            }
            if at >= OPEN_MAX {
                return Search::Undecided;
            }
            let Some(effect) = step(&world.state, &span.what) else {
                continue;
            };
            let done = world.done | 1 << at;
            let passed = done.trailing_ones();
            let further = |state| World {
                state,
                first: world.first + passed as usize,
                done: done.checked_shr(passed).unwrap_or(0),
                open_done: world.open_done,
            };
            match effect {
                Effect::Becomes(state) => next.push(further(state)),
                Effect::Nothing => {
                    // What is true now and never changes anything need not wait: nothing is lost by it.
                    next = vec![further(world.state.clone())];
                    is_look = true;
                    break;
                }
            }
        }
        // Those without an answer are tried last: so they lie below the others.
        let mut tried_last = Vec::new();
        for (number, kind) in open.iter().enumerate() {
            // Of those that ask for the same, the one that began first takes effect first.
            let taken = counts.get(world.open_done, number);
            let has_begun = kind.calls.get(taken).is_some_and(|call| *call <= end);
            if is_look || !has_begun {
                continue;
            }
            // What changes nothing may as well never take effect.
            if let Some(Effect::Becomes(state)) = step(&world.state, kind.what)
                && state != world.state
            {
                tried_last.push(World {
                    state,
                    open_done: counts.plus_one(world.open_done, number),
                    ..world.clone()
                });
            }
        }
        for further in tried_last.into_iter().chain(next) {
            if seen.insert(further.clone()) {
                left.push(further);
            }
        }
        if seen.len() > WORLDS_MAX {
            return Search::Undecided;
        }
    }
    Search::Impossible { at: furthest.1 }
}

/// The first end of operations that are in the order of their beginnings, and whose it is.
fn first_end(spans: impl Iterator<Item = (u64, u64, usize)>) -> Option<(u64, usize)> {
    let mut first: Option<(u64, usize)> = None;
    for (call, end, at) in spans {
        // The others end later, since they begin later.
        if first.is_some_and(|(earliest, _)| call > earliest) {
            break;
        }
        if first.is_none_or(|(earliest, _)| end < earliest) {
            first = Some((end, at));
        }
    }
    first
}
