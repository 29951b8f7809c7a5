//! How a store moves to another database: computes the next step from what the two databases hold. Pure.
//!
//! Why so: whoever moves a store may die at any moment, and anybody may go on, or undo it. So nothing is remembered but
//! what the databases hold. The source is *open*, *closed* (nothing can be appended) or *shut* (nothing can be read
//! either); the target is empty, a copy that is not whole, given up, or *arrived* (opened).
//!
//! The order: the target is marked, and the rows are copied there while the source is used; when few are missing the
//! source is closed, the rest is copied and compared; the source is shut; the target is opened. Invariants: the target
//! is opened only after the source was shut, by the same move; whether it is opened or given up, the target alone
//! decides, since both are changes of one row; the source is opened again only after the target was given up, or is
//! gone for good. Not here: doing the steps (`mover`).

use gesta_core::{Error, ErrorKind, Result};
use uuid::Uuid;

/// How far the source has gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SourceStand {
    Open,
    Closed(Note),
    Shut(Note),
}

/// What the source says about its move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub(crate) id: Uuid,
    pub(crate) place: String,
    /// What was copied; `None` before the source was shut.
    pub(crate) copied: Option<String>,
}

/// What stands in the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TargetStand {
    /// A store without any event, or none.
    Empty,
    /// The unfinished target of this move.
    Copying(Uuid),
    /// That of a move that was undone.
    GivenUp(Uuid),
    /// It was opened by this move.
    Arrived(Uuid),
}

/// What is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    /// The store is to lie in the target.
    Move,
    /// The store is to stay in the source. This is possible until the target was opened.
    Undo(Target),
}

/// What is known of the target of a move that is to be undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// It is asked, and decides.
    There,
    /// It is gone for good: an operator has said so.
    Gone,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Mark the target.
    Begin,
    /// Copy what is new; close the source when few rows are missing.
    Follow,
    /// Copy and compare the rest; then shut the source.
    Rest(Uuid),
    /// Open the target.
    Open(Uuid),
    /// Give the target up.
    GiveUp(Uuid),
    /// Open the source again.
    Reopen(Uuid),
    /// The goal is reached.
    Done,
}

fn refuse(why: impl Into<String>) -> Result<Next> {
    Err(ErrorKind::Unsupported(why.into()).into())
}

/// Returns the next step.
///
/// # Errors
/// `Unsupported` if the goal cannot be reached from here; `Corrupt` if a database has lost what it had.
pub(crate) fn next_step(source: &SourceStand, target: TargetStand, goal: Goal) -> Result<Next> {
    let noted = match source {
        SourceStand::Open => None,
        SourceStand::Closed(note) | SourceStand::Shut(note) => Some(note),
    };
    match goal {
        Goal::Move => forward(source, noted, target),
        Goal::Undo(known) => back(noted, target, known),
    }
}

fn forward(source: &SourceStand, noted: Option<&Note>, target: TargetStand) -> Result<Next> {
    match (source, noted, target) {
        (_, Some(note), TargetStand::Empty) => other_target(note),
        (_, Some(note), TargetStand::Copying(id) | TargetStand::Arrived(id)) if note.id != id => {
            other_target(note)
        }
        (_, None, TargetStand::Empty) => Ok(Next::Begin),
        (_, None, TargetStand::Copying(_)) => Ok(Next::Follow),
        (SourceStand::Closed(_), _, TargetStand::Copying(id)) => Ok(Next::Rest(id)),
        (_, _, TargetStand::Copying(id)) => Ok(Next::Open(id)),
        (SourceStand::Shut(_), _, TargetStand::Arrived(_)) => Ok(Next::Done),
        (_, _, TargetStand::Arrived(_)) => Err(Error::corrupt(
            "the target was opened, and the source is not shut: it has lost that, by a restore or a fail-over. Stop all that \
             uses the source; what was appended there since is not in the target",
        )),
        (_, None, TargetStand::GivenUp(_)) => refuse(
            "the move to this target was undone, and what was copied there is not used again: make the target anew",
        ),
        (_, Some(note), TargetStand::GivenUp(id)) if note.id != id => other_target(note),
        (_, Some(_), TargetStand::GivenUp(_)) => refuse(
            "the move is being undone: end that by `gesta move … --undo`, with the same arguments",
        ),
    }
}

fn back(noted: Option<&Note>, target: TargetStand, known: Target) -> Result<Next> {
    match (noted, target) {
        (
            Some(note),
            TargetStand::Copying(id) | TargetStand::Arrived(id) | TargetStand::GivenUp(id),
        ) if note.id != id => other_target(note),
        (_, TargetStand::Arrived(_)) => refuse(
            "the target was opened, so the move cannot be undone any more: move the store back, to another database",
        ),
        (_, TargetStand::Copying(id)) => Ok(Next::GiveUp(id)),
        (Some(note), TargetStand::GivenUp(_)) => Ok(Next::Reopen(note.id)),
        (Some(note), TargetStand::Empty) if known == Target::Gone => Ok(Next::Reopen(note.id)),
        (Some(note), TargetStand::Empty) => refuse(format!(
            "the target does not hold what was copied, but the source has noted that it moves to {}: name that target; only \
             if it is gone for good, and will never be served again, open the source by `--undo --target-is-gone`",
            note.place
        )),
        (None, _) => Ok(Next::Done),
    }
}

fn other_target(note: &Note) -> Result<Next> {
    refuse(format!(
        "the source moves to {}, by another move than this one: name that target, to end the move or to undo it",
        note.place
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(id: u128) -> Note {
        Note {
            id: Uuid::from_u128(id),
            place: "there".into(),
            copied: None,
        }
    }

    fn all() -> Vec<(SourceStand, TargetStand)> {
        let sources = [
            SourceStand::Open,
            SourceStand::Closed(note(1)),
            SourceStand::Shut(note(1)),
        ];
        let of = |id| {
            let id = Uuid::from_u128(id);
            [
                TargetStand::Copying(id),
                TargetStand::GivenUp(id),
                TargetStand::Arrived(id),
            ]
        };
        let targets = [
            [TargetStand::Empty].to_vec(),
            of(1).to_vec(),
            of(2).to_vec(),
        ]
        .concat();
        let pairs = sources
            .iter()
            .flat_map(|source| targets.iter().map(move |target| (source.clone(), *target)));
        pairs.collect()
    }

    /// What the two databases hold after a step.
    fn after(next: Next, source: SourceStand, target: TargetStand) -> (SourceStand, TargetStand) {
        let id = Uuid::from_u128(1);
        match next {
            Next::Begin => (source, TargetStand::Copying(id)),
            Next::Follow => (SourceStand::Closed(note(1)), target),
            Next::Rest(_) => (SourceStand::Shut(note(1)), target),
            Next::Open(id) => (source, TargetStand::Arrived(id)),
            Next::GiveUp(id) => (source, TargetStand::GivenUp(id)),
            Next::Reopen(_) => (SourceStand::Open, target),
            Next::Done => (source, target),
        }
    }

    /// Goal: from every state that steps lead to, with any change of mind between them, both goals end; at no moment
    /// both databases are open, and a store that is open nowhere is opened by either goal.
    #[test]
    fn every_way_ends_with_one_home() {
        let mut seen: Vec<(SourceStand, TargetStand)> = Vec::new();
        let mut left = vec![(SourceStand::Open, TargetStand::Empty)];
        while let Some((source, target)) = left.pop() {
            if seen.contains(&(source.clone(), target)) {
                continue;
            }
            seen.push((source.clone(), target));
            let is_double =
                source == SourceStand::Open && matches!(target, TargetStand::Arrived(_));
            assert!(!is_double, "{source:?} {target:?}");
            let goals = [Goal::Move, Goal::Undo(Target::There)];
            let steps: Vec<Result<Next>> =
                goals.map(|goal| next_step(&source, target, goal)).into();
            let opens = source == SourceStand::Open || matches!(target, TargetStand::Arrived(_));
            let goes_on = steps
                .iter()
                .any(|step| matches!(step, Ok(next) if *next != Next::Done));
            assert!(
                opens || goes_on,
                "{source:?} {target:?} is open nowhere: {steps:?}"
            );
            for next in steps.into_iter().flatten() {
                left.push(after(next, source.clone(), target));
            }
        }
        assert!(seen.contains(&(
            SourceStand::Shut(note(1)),
            TargetStand::Arrived(Uuid::from_u128(1))
        )));
        assert!(seen.contains(&(SourceStand::Open, TargetStand::GivenUp(Uuid::from_u128(1)))));
    }

    /// Goal: nothing is opened whose other side is not shut, or given up, by the same move, whatever the two hold.
    #[test]
    fn nothing_is_opened_unless_the_other_side_is_shut() {
        for (source, target) in all() {
            if let Ok(Next::Open(id)) = next_step(&source, target, Goal::Move) {
                assert_eq!(target, TargetStand::Copying(id));
                assert!(
                    matches!(&source, SourceStand::Shut(note) if note.id == id),
                    "{source:?}"
                );
            }
            for known in [Target::There, Target::Gone] {
                if let Ok(Next::Reopen(id)) = next_step(&source, target, Goal::Undo(known)) {
                    let is_gone = known == Target::Gone && target == TargetStand::Empty;
                    assert!(
                        is_gone || target == TargetStand::GivenUp(id),
                        "{source:?} {target:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_done_says_why() {
        let id = Uuid::from_u128(1);
        for (source, target, goal, says) in [
            (
                SourceStand::Open,
                TargetStand::GivenUp(id),
                Goal::Move,
                "was undone",
            ),
            (
                SourceStand::Open,
                TargetStand::Arrived(id),
                Goal::Move,
                "not shut",
            ),
            (
                SourceStand::Closed(note(2)),
                TargetStand::Copying(id),
                Goal::Move,
                "another move",
            ),
            (
                SourceStand::Shut(note(1)),
                TargetStand::Empty,
                Goal::Move,
                "moves to there",
            ),
            (
                SourceStand::Shut(note(1)),
                TargetStand::Empty,
                Goal::Undo(Target::There),
                "gone for good",
            ),
            (
                SourceStand::Shut(note(1)),
                TargetStand::Arrived(id),
                Goal::Undo(Target::Gone),
                "cannot be undone",
            ),
        ] {
            let error = next_step(&source, target, goal)
                .expect_err(says)
                .to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
