//! Moves a group to another place, at the wish of an administrator: above all a group that is halted.
//!
//! Invariant: what the group had finished, or would have passed over, is lost only for whoever asked for it.

use gesta_core::Error;
use uuid::Uuid;

use crate::commands::Stop;
use crate::error::Result;
use crate::groups::{Groups, TRIES, changed_too_often};
use crate::history::Standing;
use crate::names::GroupId;
use crate::record::Progressed;
use crate::storage::Storage;

/// Where a group is to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetTo {
    /// The group goes on with the first event.
    Start,
    /// The group goes on with the first event that is stored from now on.
    End,
    /// The group goes on with this revision of its stream, or with this position of all events.
    At(u64),
    /// The group goes on at the greatest place of which it knows that nothing before it was lost.
    Surviving,
}

impl Groups {
    /// Lets a group go on at another place, whatever it has finished. Its consumers are told to join again. Returns the
    /// revision or position with which it goes on.
    ///
    /// # Errors
    /// `NotFound` if the group does not exist; `NotHere`; `Stopping`; `Overloaded` if the group changes all the time;
    /// `Store`: `InvalidArgument` if the place is beyond the end of the source, or if the group knows no place that
    /// survives.
    ///
    /// # Cancel safety
    /// If the future is dropped, the group is moved or not.
    pub async fn reset(&self, group: &GroupId, to: ResetTo) -> Result<u64> {
        let storage = self.storage(group)?;
        for _ in 0..TRIES {
            self.stop_running(group, Stop::Dropped).await;
            let moved = try_move(&storage, to).await;
            match moved.map_err(|error| error.or_history_changed(group)) {
                Ok(Some(next)) => {
                    // A consumer may have joined in between.
                    self.stop_running(group, Stop::Dropped).await;
                    self.set_halted(group, false);
                    tracing::warn!(%group, next, ?to, "a consumer group was moved to another place");
                    return Ok(next);
                }
                // Another process has written a checkpoint, or the store began another history meanwhile.
                Ok(None) | Err(crate::Error::HistoryChanged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(changed_too_often(group))
    }
}

/// Moves a group to another place in the present history. Returns the place; `None` if another process has written a
/// checkpoint meanwhile. Fails with `InvalidCheckpoint` if the store begins another history meanwhile.
async fn try_move(storage: &Storage, to: ResetTo) -> Result<Option<u64>> {
    let Some(stored) = storage.configuration().await? else {
        return Err(crate::Error::NotFound(storage.group.clone()));
    };
    let life = stored.configuration.life;
    let incarnation = storage.incarnation().await?;
    let last = storage.last_checkpoint(life).await?;
    let next = match to {
        ResetTo::Start => 0,
        ResetTo::End => storage.end_of_source().await?,
        ResetTo::At(at) => {
            let end = storage.end_of_source().await?;
            if at > end {
                let rule = format!("must be at most {end}, the next place, found {at}");
                return Err(Error::invalid("to.at", rule).into());
            }
            at
        }
        ResetTo::Surviving => {
            let place = last.place.unwrap_or_else(|| stored.place());
            match place.judge(storage, incarnation).await? {
                Standing::Stands { next, .. } => next,
                Standing::Lost(halt) => halt.surviving.ok_or_else(|| {
                    let rule =
                        "must be start, end or a place: the group knows of none that survives";
                    Error::invalid("to", rule)
                })?,
            }
        }
    };
    let mark = match next.checked_sub(1) {
        Some(before) => storage.mark_at(before, incarnation).await?,
        None => None,
    };
    let moved = Progressed {
        life,
        run: Uuid::new_v4(),
        moved: Some(Uuid::new_v4()),
        next: Some(next),
        incarnation: Some(incarnation.0),
        marks: mark.into_iter().collect(),
    };
    let written = storage.write_checkpoint(moved, last.expected).await?;
    Ok(written.map(|_| next))
}
