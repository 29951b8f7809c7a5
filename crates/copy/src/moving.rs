//! How a store moves to another database: computes the next step from what the two databases hold. Pure.
//!
//! Why so: whoever moves a store may die at any moment, and anybody may go on, or undo it. So nothing is remembered but
//! what the databases hold. The source is *open*, *closed* (nothing can be appended), *shut* (nothing can be read
//! either), *opening* (it knows which opening of the target is next) or *opened* (it knows that this has happened); the
//! target is empty, a copy that is not whole, given up, or *arrived* (opened).
//!
//! The order: the target is marked, and the rows are copied there while the source is used; when few are missing the
//! source is closed, the rest is copied and compared; the source is shut; the target gets the id of its opening, and
//! the source notes it; the target is opened; the source notes that. Invariants: the target is opened only after the
//! source was shut, by the same move; whether it is opened or given up, the target alone decides, since both are
//! changes of one row; the source is opened again only after the target was given up, or is gone for good, and never
//! once it knows that the target was opened; a target without the id that the source has noted is one that was set
//! back, or a copy of one, and nothing is decided by it. Not here: doing the steps (`mover`).

use gesta_core::{Error, ErrorKind, Result};
use uuid::Uuid;

/// How far the source has gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SourceStand {
    Open,
    Closed(Note),
    Shut(Note),
    /// It is shut, and the target may be open, by the opening with this id.
    Opening(Note, Uuid),
    /// It is shut, and the target was opened, by the opening with this id.
    Opened(Note, Uuid),
}

impl SourceStand {
    /// Returns what the source says about its move; `None` if it is open.
    pub(crate) fn note(&self) -> Option<&Note> {
        match self {
            Self::Open => None,
            Self::Closed(note)
            | Self::Shut(note)
            | Self::Opening(note, _)
            | Self::Opened(note, _) => Some(note),
        }
    }
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
    Copying(Mark),
    /// That of a move that was undone.
    GivenUp(Mark),
    /// It was opened by this move.
    Arrived(Mark),
    /// It is that of a move whose source had another incarnation than this one, which is open.
    OfAnother,
}

/// What the target says about its move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    /// The id of the move.
    pub(crate) id: Uuid,
    /// The id of its opening; `None` before the target had everything.
    pub(crate) opening: Option<Uuid>,
}

impl TargetStand {
    fn mark(self) -> Option<Mark> {
        match self {
            Self::Empty | Self::OfAnother => None,
            Self::Copying(mark) | Self::GivenUp(mark) | Self::Arrived(mark) => Some(mark),
        }
    }
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
    /// Give the target the id of its opening.
    Prepare(Uuid),
    /// Note in the source which opening of the target is next.
    Announce(Uuid, Uuid),
    /// Make certain that the source stays as it is; then open the target, by this opening.
    Open(Uuid, Uuid),
    /// Shut the source, which has lost that, although the target is open.
    ShutAgain(Uuid),
    /// Make certain that the target stays open; then note in the source that it was opened.
    Note(Uuid, Uuid),
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
    if let (Some(note), Some(mark)) = (source.note(), target.mark())
        && note.id != mark.id
    {
        return refuse(format!(
            "the source moves to {}, by another move than this one: name that target, to end the move or to undo it",
            note.place
        ));
    }
    match goal {
        Goal::Move => forward(source, target),
        Goal::Undo(known) => back(source, target, known),
    }
}

fn forward(source: &SourceStand, target: TargetStand) -> Result<Next> {
    match (source, target) {
        (SourceStand::Opened(_, opening), TargetStand::Arrived(mark))
            if mark.opening == Some(*opening) =>
        {
            Ok(Next::Done)
        }
        (SourceStand::Opened(note, _), _) => set_back(note, "was opened"),
        (SourceStand::Opening(note, opening), _) if is_other(target, *opening) => {
            set_back(note, "may have been opened")
        }

        (SourceStand::Open, TargetStand::Empty) => Ok(Next::Begin),
        (SourceStand::Open, TargetStand::Copying(_)) => Ok(Next::Follow),
        (SourceStand::Closed(_), TargetStand::Copying(mark)) => Ok(Next::Rest(mark.id)),
        (SourceStand::Shut(_), TargetStand::Copying(mark)) => Ok(match mark.opening {
            None => Next::Prepare(mark.id),
            Some(opening) => Next::Announce(mark.id, opening),
        }),
        (SourceStand::Opening(_, opening), TargetStand::Copying(mark)) => {
            Ok(Next::Open(mark.id, *opening))
        }

        (SourceStand::Open, TargetStand::Arrived(_)) => Err(Error::corrupt(
            "the target was opened, and the source is not shut: it has lost that, by a restore or a fail-over. Stop all that \
             uses the source; what was appended there since is not in the target",
        )),
        (SourceStand::Closed(_), TargetStand::Arrived(mark)) => Ok(Next::ShutAgain(mark.id)),
        (
            SourceStand::Shut(_) | SourceStand::Opening(..),
            TargetStand::Arrived(Mark {
                id,
                opening: Some(opening),
            }),
        ) => Ok(Next::Note(id, opening)),
        (_, TargetStand::Arrived(_)) => Err(Error::corrupt(
            "the target was opened, and does not say by which opening",
        )),

        (SourceStand::Open, TargetStand::GivenUp(_)) => refuse(
            "the move to this target was undone, and what was copied there is not used again: begin with an empty target",
        ),
        (_, TargetStand::GivenUp(_)) => refuse(
            "the move is being undone: end that by `gesta move … --undo`, with the same arguments",
        ),
        (
            SourceStand::Closed(note) | SourceStand::Shut(note) | SourceStand::Opening(note, _),
            TargetStand::Empty,
        ) => nothing_there(note),
        (_, TargetStand::OfAnother) => of_another(),
    }
}

fn back(source: &SourceStand, target: TargetStand, known: Target) -> Result<Next> {
    match (source, target) {
        (SourceStand::Opened(..), _) | (_, TargetStand::Arrived(_)) => refuse(
            "the target was opened, so the move cannot be undone any more: move the store back, to another database",
        ),
        (SourceStand::Opening(note, opening), _)
            if known == Target::There && is_other(target, *opening) =>
        {
            set_back(note, "may have been opened")
        }
        (_, TargetStand::Copying(mark)) => Ok(Next::GiveUp(mark.id)),
        (_, TargetStand::OfAnother) => of_another(),
        (SourceStand::Open, TargetStand::Empty | TargetStand::GivenUp(_)) => Ok(Next::Done),
        (_, TargetStand::GivenUp(mark)) => Ok(Next::Reopen(mark.id)),
        (
            SourceStand::Closed(note) | SourceStand::Shut(note) | SourceStand::Opening(note, _),
            TargetStand::Empty,
        ) => match known {
            Target::Gone => Ok(Next::Reopen(note.id)),
            Target::There => nothing_there(note),
        },
    }
}

/// Tells whether a target has another opening than the one that the source has noted, or none.
fn is_other(target: TargetStand, opening: Uuid) -> bool {
    let mark = target.mark();
    mark.is_some_and(|mark| mark.opening != Some(opening))
}

fn set_back(note: &Note, was_opened: &str) -> Result<Next> {
    Err(Error::corrupt(format!(
        "the source has noted that its target {was_opened}: {}. The one that was named is not that: it was set back to a moment \
         before, by a restore or a fail-over, or is a copy of it. Neither is opened, for there would be two stores: set the \
         target to a later moment, or name the one that is used (docs/operating/moving.md)",
        note.place
    )))
}

fn of_another() -> Result<Next> {
    refuse(
        "the target is that of the move of another store, or of this one before it was restored or lost commits. The source \
         is open, and nothing is changed. If the target is another store's, name the right one. If it is this store's, and \
         was opened, stop all that uses the source: what was appended there since is not in the target. If it was never \
         opened, nothing has to be undone: move to an empty target",
    )
}

fn nothing_there(note: &Note) -> Result<Next> {
    refuse(format!(
        "the target does not hold what was copied, but the source has noted that it moves to {}: name that target; only if \
         it is gone for good, and will never be served again, open the source by `--undo --target-is-gone`",
        note.place
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVE: Uuid = Uuid::from_u128(1);
    const OPENING: Uuid = Uuid::from_u128(11);
    const GOALS: [Goal; 3] = [
        Goal::Move,
        Goal::Undo(Target::There),
        Goal::Undo(Target::Gone),
    ];

    fn note(id: u128) -> Note {
        Note {
            id: Uuid::from_u128(id),
            place: "there".into(),
            copied: None,
        }
    }

    fn mark(id: u128, opening: Option<u128>) -> Mark {
        Mark {
            id: Uuid::from_u128(id),
            opening: opening.map(Uuid::from_u128),
        }
    }

    fn sources() -> [SourceStand; 5] {
        [
            SourceStand::Open,
            SourceStand::Closed(note(1)),
            SourceStand::Shut(note(1)),
            SourceStand::Opening(note(1), OPENING),
            SourceStand::Opened(note(1), OPENING),
        ]
    }

    fn targets() -> Vec<TargetStand> {
        let mut targets = vec![TargetStand::Empty];
        for id in [1, 2] {
            for opening in [None, Some(11), Some(12)] {
                let mark = mark(id, opening);
                targets.extend([
                    TargetStand::Copying(mark),
                    TargetStand::GivenUp(mark),
                    TargetStand::Arrived(mark),
                ]);
            }
        }
        targets
    }

    fn all() -> Vec<(SourceStand, TargetStand)> {
        let pairs = sources().into_iter().flat_map(|source| {
            let with = move |target| (source.clone(), target);
            targets().into_iter().map(with)
        });
        pairs.collect()
    }

    /// What the two databases hold after a step.
    fn after(next: Next, source: SourceStand, target: TargetStand) -> (SourceStand, TargetStand) {
        let of_target = || target.mark().expect("marked");
        match next {
            Next::Begin => (source, TargetStand::Copying(mark(1, None))),
            Next::Follow => (SourceStand::Closed(note(1)), target),
            Next::Rest(_) | Next::ShutAgain(_) => (SourceStand::Shut(note(1)), target),
            Next::Prepare(_) => (source, TargetStand::Copying(mark(1, Some(11)))),
            Next::Announce(_, opening) => (SourceStand::Opening(note(1), opening), target),
            Next::Open(..) => (source, TargetStand::Arrived(of_target())),
            Next::Note(_, opening) => (SourceStand::Opened(note(1), opening), target),
            Next::GiveUp(_) => (source, TargetStand::GivenUp(of_target())),
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
            SourceStand::Opened(note(1), OPENING),
            TargetStand::Arrived(mark(1, Some(11)))
        )));
        for opening in [None, Some(11)] {
            let given_up = TargetStand::GivenUp(mark(1, opening));
            assert!(seen.contains(&(SourceStand::Open, given_up)));
        }
    }

    /// Goal: nothing is opened whose other side is not shut, or given up, by the same move, whatever the two hold; and
    /// the target not before the source knows by which opening.
    #[test]
    fn nothing_is_opened_unless_the_other_side_is_shut() {
        for (source, target) in all() {
            if let Ok(Next::Open(id, opening)) = next_step(&source, target, Goal::Move) {
                let mark = Mark {
                    id,
                    opening: Some(opening),
                };
                assert_eq!(target, TargetStand::Copying(mark));
                assert!(
                    matches!(&source, SourceStand::Opening(note, noted) if note.id == id && *noted == opening),
                    "{source:?}"
                );
            }
            for known in [Target::There, Target::Gone] {
                if let Ok(Next::Reopen(id)) = next_step(&source, target, Goal::Undo(known)) {
                    let is_gone = known == Target::Gone && target == TargetStand::Empty;
                    let is_given_up = matches!(target, TargetStand::GivenUp(mark) if mark.id == id);
                    assert!(is_gone || is_given_up, "{source:?} {target:?}");
                }
            }
        }
    }

    /// What happened: the source did not learn that the target was opened. A target that was restored to a moment
    /// before its opening, or a copy of it, was opened once more, or given up, and the source opened beside the first.
    /// What holds now: the source notes the opening before it happens, and that it has happened; a target that does not
    /// have it decides nothing.
    #[test]
    fn a_target_that_was_set_back_is_neither_opened_again_nor_given_up() {
        let opened = SourceStand::Opened(note(1), OPENING);
        let arrived = TargetStand::Arrived(mark(1, Some(11)));
        for target in targets() {
            for goal in GOALS {
                let step = next_step(&opened, target, goal);
                match (target == arrived, goal) {
                    (true, Goal::Move) => assert_eq!(step.expect("done"), Next::Done),
                    _ => assert!(step.is_err(), "{target:?} {goal:?}: {step:?}"),
                }
            }
        }
        // Before that is noted, the target may have been opened all the same.
        let opening = SourceStand::Opening(note(1), OPENING);
        let without = targets().into_iter().filter(|target| {
            target
                .mark()
                .is_none_or(|mark| mark.opening != Some(OPENING))
        });
        for target in without {
            for goal in [Goal::Move, Goal::Undo(Target::There)] {
                let step = next_step(&opening, target, goal);
                assert!(step.is_err(), "{target:?} {goal:?}: {step:?}");
            }
        }
        let set_back = TargetStand::Copying(mark(1, None));
        let error = next_step(&opened, set_back, Goal::Move).expect_err("set back");
        assert!(error.to_string().contains("was set back"), "{error}");
        // What an operator says who knows that the target is gone counts before it was opened.
        let gone = Goal::Undo(Target::Gone);
        let step = next_step(&opening, set_back, gone).expect("goes on");
        assert_eq!(step, Next::GiveUp(MOVE));
    }

    /// What happened: a source that had lost its shutting, beside a target that was open, was called one that anybody
    /// appends to. What holds now: nobody appends to it, so it is shut again, and all goes on.
    #[test]
    fn a_source_that_was_set_back_to_its_closing_is_shut_again() {
        let arrived = TargetStand::Arrived(mark(1, Some(11)));
        let mut source = SourceStand::Closed(note(1));
        let mut steps = Vec::new();
        while steps.last() != Some(&Next::Done) {
            let next = next_step(&source, arrived, Goal::Move).expect("goes on");
            steps.push(next);
            source = after(next, source, arrived).0;
        }
        let expected = [Next::ShutAgain(MOVE), Next::Note(MOVE, OPENING), Next::Done];
        assert_eq!(steps, expected);
    }

    #[test]
    fn what_cannot_be_done_says_why() {
        let there = Goal::Undo(Target::There);
        let gone = Goal::Undo(Target::Gone);
        let (of_one, opened) = (mark(1, None), mark(1, Some(11)));
        for goal in GOALS {
            let step = next_step(&SourceStand::Open, TargetStand::OfAnother, goal);
            let error = step.expect_err("another store").to_string();
            assert!(error.contains("another store"), "{error}");
        }
        for (source, target, goal, says) in [
            (
                SourceStand::Open,
                TargetStand::GivenUp(of_one),
                Goal::Move,
                "was undone",
            ),
            (
                SourceStand::Open,
                TargetStand::Arrived(opened),
                Goal::Move,
                "not shut",
            ),
            (
                SourceStand::Closed(note(2)),
                TargetStand::Copying(of_one),
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
                there,
                "gone for good",
            ),
            (
                SourceStand::Shut(note(1)),
                TargetStand::Arrived(opened),
                gone,
                "cannot be undone",
            ),
            (
                SourceStand::Opened(note(1), OPENING),
                TargetStand::Empty,
                gone,
                "cannot be undone",
            ),
            (
                SourceStand::Opening(note(1), OPENING),
                TargetStand::Arrived(mark(1, Some(12))),
                Goal::Move,
                "was set back",
            ),
        ] {
            let error = next_step(&source, target, goal)
                .expect_err(says)
                .to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
