//! The end of a move: from a source that is shut to a target that is open, and to a source that knows it.

use gesta_core::{Error, Result};
use uuid::Uuid;

use super::{Attempt, Move, MoveReport, MoveStep};
use crate::batch::State;
use crate::copy::text;
use crate::moving::SourceStand;
use crate::part::Finish;
use crate::source::{Closing, Copied};

impl Move {
    /// Gives the target, which has everything, the id of its opening.
    pub(super) async fn prepare(
        &mut self,
        id: Uuid,
        source: &SourceStand,
        state: &State,
    ) -> Result<MoveStep> {
        check_whole(source, state)?;
        self.part.prepare(id, Uuid::new_v4()).await?;
        Ok(MoveStep::Prepared)
    }

    /// Opens the target.
    pub(super) async fn arrive(
        &mut self,
        (id, opening): (Uuid, Uuid),
        source: &SourceStand,
        state: &State,
    ) -> Result<MoveStep> {
        check_whole(source, state)?;
        // Once more: what was noted by commits whose end was not seen, or that were cut off while they waited for a
        // synchronous standby, may be on one server only. What follows on this commit is not.
        self.source.note_opening(id, opening).await?;
        let moving = state.moving.as_ref();
        let finish = Finish {
            incarnation: state.incarnation_of_target(),
            virtual_streams: moving.is_some_and(|moving| moving.virtual_streams),
        };
        self.part.arrive(id, opening, finish).await?;
        Ok(MoveStep::Opened)
    }

    /// Notes in the source that the target was opened, once that is certain there.
    pub(super) async fn note(&mut self, id: Uuid, opening: Uuid) -> Result<MoveStep> {
        self.part.confirm_arrival().await?;
        self.source.note_opened(id, opening).await?;
        Ok(MoveStep::Noted)
    }

    /// Shuts a source that has lost its shutting, and nothing else, although the target was opened: whoever reads there
    /// reads what is out of date.
    pub(super) async fn shut_again(&mut self, id: Uuid, state: &State) -> Result<MoveStep> {
        let look = self.source.look().await?;
        let Some(moving) = &state.moving else {
            return Err(Error::corrupt(
                "the target does not say which move it is of",
            ));
        };
        let other = || {
            Error::corrupt(
                "the target was opened, and the source, which is closed, does not hold what was copied from it: stop all that \
                 uses the source",
            )
        };
        if look.ends != state.after {
            return Err(other());
        }
        // What was scavenged there since changes nothing: the target is the store.
        let copied = Copied {
            look,
            marks: moving.marks.clone(),
        };
        match self.source.shut(id, &text(state.digest), &copied).await? {
            Closing::Done => Ok(MoveStep::Shut),
            Closing::Later => self.later(Attempt::Shut).await,
            Closing::Changed | Closing::Scavenged => Ok(MoveStep::Waits(Vec::new())),
            Closing::OtherHistory => Err(other()),
        }
    }

    pub(super) fn report(&self, state: &State) -> MoveReport {
        let moving = state.moving.as_ref();
        let has_virtual = moving.is_some_and(|moving| moving.virtual_streams);
        let changes = match has_virtual {
            false => Vec::new(),
            true => vec![
                "the store has an incarnation of its own, since virtual streams are made again: checkpoints of consumers are \
                 refused, and they begin again"
                    .into(),
            ],
        };
        MoveReport {
            events: state.digest.events,
            streams: state.digest.streams,
            digest: text(state.digest),
            place: self.place.clone(),
            checkpoints_kept: !has_virtual,
            changes,
        }
    }
}

/// Refuses a target that does not have what was copied when the source was shut.
fn check_whole(source: &SourceStand, state: &State) -> Result<()> {
    let noted = source.note().and_then(|note| note.copied.as_deref());
    if noted == Some(&*text(state.digest)) && state.is_compared() {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "the target has lost what was copied to it, by a restore or a fail-over: it has {} events. Undo the move, and begin \
         with an empty target",
        state.digest.events
    )))
}
