//! Takes a move back: the target is given up first, and then the source is opened again.

use std::time::Duration;

use gesta_core::{ErrorKind, Result};
use gesta_postgres::Config;
use serde::Serialize;

use crate::copy::refuse;
use crate::moving::{Goal, Next, SourceStand, Target, TargetStand, next_step};
use crate::part::{Found, Part};
use crate::postgres::{PostgresPart, answers};
use crate::sides::{source_of, stand_of, target_config};
use crate::source::{Closing, Source};

/// How long is waited before a source is opened again, if statements of others are under way there.
const LATER: Duration = Duration::from_millis(100);

/// What an undo has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Undone {
    /// The source was not moving.
    Nothing,
    /// The source is open, and the target is never opened.
    Undone,
}

/// Leaves a store that was to be moved where it is. This is possible until the target was opened.
///
/// # Errors
/// `Unsupported` if the target was opened, or is not that of this move; `Unavailable` if a database does not answer.
///
/// # Cancel safety
/// If the future is dropped, the target may have been given up and the source not be open yet: another undo goes on.
pub async fn undo(source: &str, target: &str, known: Target) -> Result<Undone> {
    let config = target_config(source, target)?;
    let mut source = source_of(source).await?;
    let undone = undo_on(&mut source, &config, known).await;
    source.end().await;
    undone
}

async fn undo_on(source: &mut Box<dyn Source>, config: &Config, known: Target) -> Result<Undone> {
    source.lock().await?;
    let mut part = match PostgresPart::open(config).await {
        Ok(part) => Some(part),
        // There is no store.
        Err(error) if matches!(error.kind(), ErrorKind::Refused(_)) => None,
        Err(error) if known == Target::Gone => match answers(config).await? {
            // It may have been opened, or be about to be.
            true => return refuse(format!("the target answers, so it is not gone: {error}")),
            false => None,
        },
        Err(error) => return Err(error),
    };
    let mut undone = Undone::Nothing;
    loop {
        let stand = source.stand().await?;
        if let (Target::Gone, SourceStand::Closed(note) | SourceStand::Shut(note)) = (known, &stand)
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
                found => stand_of(part, &found)?,
            },
        };
        match (next_step(&stand, target, Goal::Undo(known))?, &part) {
            (Next::GiveUp(id), Some(part)) => part.abandon(id).await?,
            (Next::Reopen(id), _) => {
                if source.reopen(id).await? == Closing::Later {
                    tokio::time::sleep(LATER).await;
                }
            }
            _ => return Ok(undone),
        }
        undone = Undone::Undone;
    }
}
