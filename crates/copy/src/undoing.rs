//! Takes a move back: the target is given up first, and then the source is opened again.

use gesta_core::{Error, Result};
use gesta_postgres::{Blocker, Config};
use serde::Serialize;

use crate::moving::{Goal, Next, Target, TargetStand, next_step};
use crate::part::{Found, Part};
use crate::pauses::Pauses;
use crate::postgres::{PostgresPart, answers};
use crate::refusal::refuse;
use crate::sides::{are_two, source_of, target_config, target_for};
use crate::source::{Closing, Source};

/// What an undo has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Undone {
    /// The source was not moving.
    Nothing,
    /// The source is open, and the target is never opened.
    Undone,
}

/// Leaves a store that was to be moved where it is. This is possible until the target was opened. `observe` is told who
/// keeps the source from being opened again, before that is tried once more.
///
/// # Errors
/// `Unsupported` if the target was opened, or is not that of this move; `Corrupt` if it was set back, so that it may
/// have been opened; `Unavailable` if a database does not answer; `Refused` if the target lets this user not look.
///
/// # Cancel safety
/// If the future is dropped, the target may have been given up and the source not be open yet: another undo goes on.
pub async fn undo(
    source: &str,
    target: &str,
    known: Target,
    observe: impl FnMut(&[Blocker]) + Send,
) -> Result<Undone> {
    let config = target_config(source, target)?;
    if let Err(same) = are_two(source, target).await {
        return unmark(&config, same).await;
    }
    let mut source = source_of(source).await?;
    let undone = undo_on(&mut source, &config, known, observe).await;
    source.end().await;
    undone
}

/// Opens an empty store again that earlier versions have marked as the target of its own move, by another name.
async fn unmark(config: &Config, same: Error) -> Result<Undone> {
    let Some(mut part) = PostgresPart::open(config).await? else {
        return Err(same);
    };
    match part.look().await? {
        Found::Unfinished(state) => match state.moving {
            Some(moving) => part.unmark(moving.id).await.map(|()| Undone::Undone),
            None => Err(same),
        },
        _ => Err(same),
    }
}

async fn undo_on(
    source: &mut Box<dyn Source>,
    config: &Config,
    known: Target,
    mut observe: impl FnMut(&[Blocker]) + Send,
) -> Result<Undone> {
    source.lock().await?;
    let mut part = match PostgresPart::open(config).await {
        Ok(part) => part,
        Err(error) if known == Target::Gone => match answers(config).await? {
            // It may have been opened, or be about to be.
            true => return refuse(format!("the target answers, so it is not gone: {error}")),
            false => None,
        },
        Err(error) => return Err(error),
    };
    let (mut undone, mut pauses) = (Undone::Nothing, Pauses::while_closed());
    loop {
        let stand = source.stand().await?;
        if let (Target::Gone, Some(note)) = (known, stand.note())
            && note.place != config.name()
        {
            return refuse(format!(
                "the source has noted that it moves to {}, not to {}: name the target of the move",
                note.place,
                config.name()
            ));
        }
        let target = match &mut part {
            None => TargetStand::Empty,
            Some(part) => match part.look().await? {
                // Another store is not the target.
                Found::Used => TargetStand::Empty,
                found => target_for(source, &stand, part, &found).await?,
            },
        };
        match (next_step(&stand, target, Goal::Undo(known))?, &part) {
            (Next::GiveUp(id), Some(part)) => part.abandon(id).await?,
            (Next::Reopen(id), _) => {
                if source.reopen(id).await? == Closing::Later {
                    observe(&source.blockers().await?);
                    tokio::time::sleep(pauses.next()).await;
                }
            }
            _ => return Ok(undone),
        }
        undone = Undone::Undone;
    }
}
