//! Entities: does every answer rest on a state that the entity had at some moment between the call and the answer?
//!
//! The stream of an entity is the order of all its changes, and an answer names the state that it rests on, for example
//! by a count and a digest of its events. So `order` tells whether the answers fit, as of streams. Where the moments
//! are known at which changes became durable, an answer must not come before what it rests on is durable either.
//! Not here: what is stored of a command (the tests of entities).

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

use super::order::{Misfit, Places, Statement, Stretch, misfits};
use crate::verdict::{Kind, Verdict};

/// All states that an entity has had, in the order of its stream. Each has a place: the number of changes before it.
#[derive(Debug, Clone)]
pub struct States<S> {
    states: Vec<S>,
    /// When each change became durable, if that is known.
    durable: Vec<Option<u64>>,
}

/// An answer that names a state.
#[derive(Debug, Clone, Copy)]
pub struct Reply<S> {
    /// When it was asked for. 0 if it may rest on any earlier state.
    pub began: u64,
    /// When it came.
    pub ended: u64,
    /// What is handed over to one runtime, in order, has one number.
    pub runtime: Option<u64>,
    /// The state.
    pub state: S,
    /// How many changes of its own lead to the state.
    pub own: u64,
}

impl<S: Copy + Eq + Hash + Debug> States<S> {
    /// An entity that has not changed yet.
    #[must_use]
    pub fn new(initial: S) -> Self {
        Self {
            states: vec![initial],
            durable: Vec::new(),
        }
    }

    /// The next change leads to this state. It became durable then, if that is known.
    pub fn push(&mut self, state: S, durable: Option<u64>) {
        self.states.push(state);
        self.durable.push(durable);
    }

    /// The state at a place.
    #[must_use]
    pub fn at(&self, place: u64) -> Option<S> {
        self.states.get(usize::try_from(place).ok()?).copied()
    }

    /// The place of the last state.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.durable.len() as u64
    }

    /// When a place was reached, if that is known.
    #[must_use]
    pub fn reached(&self, place: u64) -> Option<u64> {
        let change = usize::try_from(place.checked_sub(1)?).ok()?;
        self.durable.get(change).copied().flatten()
    }

    /// The places at which the entity had a state.
    pub fn places(&self, state: S) -> impl Iterator<Item = u64> + '_ {
        let all = (0..).zip(&self.states);
        all.filter_map(move |(place, one)| (*one == state).then_some(place))
    }

    /// Judges all answers. `name` is that of the entity, and `tell` tells of an answer, by its number, for people.
    pub fn judge(
        &self,
        name: &str,
        replies: &[Reply<S>],
        tell: impl Fn(usize) -> String,
        verdict: &mut Verdict,
    ) {
        verdict.keys += 1;
        verdict.answers += replies.len();
        let mut places: HashMap<S, Vec<Stretch>> = HashMap::new();
        for (place, state) in (0..).zip(&self.states) {
            places.entry(*state).or_default().push((place, place));
        }
        let changes = (1..).zip(&self.durable);
        let changes = changes.filter_map(|(to, durable): (u64, _)| {
            let moment = (*durable)?;
            let from = to - 1;
            Some(statement(
                (moment, moment),
                None,
                Places::Change { from, to },
            ))
        });
        let mut statements: Vec<Statement<'_>> = changes.collect();
        let first = statements.len();
        let mut changed_by: HashMap<u64, usize> = HashMap::new();
        for (number, reply) in replies.iter().enumerate() {
            let of = places.get(&reply.state).map_or(&[][..], Vec::as_slice);
            let at = match (reply.own, of) {
                (1.., [(to, _), ..]) => Places::Change {
                    from: to.saturating_sub(reply.own),
                    to: *to,
                },
                _ => Places::Any {
                    of,
                    before: u64::MAX,
                },
            };
            if let Places::Change { to, .. } = at
                && let Some(other) = changed_by.insert(to, number)
            {
                verdict.add(Kind::SharedChange, 1, || {
                    format!("{name}: change {to}: {} and {}", tell(other), tell(number))
                });
            }
            statements.push(statement((reply.began, reply.ended), reply.runtime, at));
        }
        for (at, misfit) in misfits(&statements) {
            // The place of a change is known by the log alone: what contradicts it is told of the reply.
            let Some(number) = at.checked_sub(first) else {
                continue;
            };
            let other = |at: usize| match at.checked_sub(first) {
                Some(number) => tell(number),
                None => format!("change {}", at + 1),
            };
            let (kind, why) = match misfit {
                Misfit::Never => (Kind::Untrue, String::new()),
                Misfit::Early { change } => (Kind::Early, format!(" before {}", other(change))),
                Misfit::Stale { known } => (Kind::Stale, format!(" after {}", other(known))),
                Misfit::Overtaken { earlier } => {
                    (Kind::Overtaken, format!(" after {}", other(earlier)))
                }
            };
            verdict.add(kind, 1, || format!("{name}: {}{why}", tell(number)));
        }
    }
}

fn statement((began, ended): (u64, u64), caller: Option<u64>, places: Places<'_>) -> Statement<'_> {
    Statement {
        began,
        ended,
        caller,
        places,
    }
}
