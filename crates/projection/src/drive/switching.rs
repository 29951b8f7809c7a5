//! How a version that has caught up takes the readers from the one before it.

use gesta_core::Checkpoint;
use tokio::time::Instant;

use crate::batch::not_of;
use crate::control::{SWITCH_TRIES, active_of};
use crate::drive::Context;
use crate::drive::run::{End, Run};
use crate::error::TargetError;
use crate::fault::Fault;
use crate::lag::{LAG_PAGES_MAX, Next, next_match};
use crate::state::Life;
use crate::target::{Seen, SwitchFrom, Switched, Target};
use crate::work::Writer;

impl<T: Target> Run<'_, T> {
    pub(super) fn may_switch(&self) -> bool {
        self.row.life == Life::Building
            && !self.is_outdated
            && self.context.config.switch_when_caught_up
            && Instant::now() >= self.switch_from
    }

    /// Makes this version the active one, if it is being built, has caught up, and is not behind the active one.
    pub(super) async fn switch<W: Writer<T>>(&mut self, writer: W) -> Result<(), End> {
        if !self.is_live || !self.may_switch() {
            return Ok(());
        }
        self.store_position(writer).await?;
        let target = &self.context.target;
        let id = &self.context.id;
        let from = SwitchFrom::Earlier {
            owner: self.context.node,
            epoch: self.epoch,
        };
        let mut switched = target.switch(id, from, None).await;
        if let Ok(Switched::OtherStore) = switched
            && let Some(seen) = lost(self.context, &self.stored).await
        {
            switched = target.switch(id, from, Some(&seen)).await;
        }
        for _ in 0..SWITCH_TRIES {
            if !matches!(switched, Ok(Switched::Behind)) {
                break;
            }
            // The subscription tells late of events that the filter does not let pass.
            let Some(seen) = no_match(self.context, &self.stored).await else {
                break;
            };
            switched = target.switch(id, from, Some(&seen)).await;
        }
        match switched {
            Ok(Switched::Done) => {
                tracing::info!(projection = %self.context.id, "readers see this version now");
                self.row.life = Life::Active;
                Ok(())
            }
            Ok(Switched::Later) => {
                self.is_outdated = true;
                Ok(())
            }
            Ok(Switched::NotOwner) => Err(self.of_fault(Fault::Target(TargetError::lost())).await),
            // It tries again at the next look.
            Ok(
                Switched::Behind
                | Switched::OtherStore
                | Switched::ActiveRuns
                | Switched::Busy
                | Switched::NotFound,
            ) => Ok(()),
            Err(error) => Err(self.of_fault(Fault::Target(error)).await),
        }
    }
}

/// Sees whether a version that is live, and came to the end of the store at this place, is of the store as it is now,
/// and the active one is not. `None` if that is not so, or not known.
async fn lost<T: Target>(context: &Context<T>, end: &Checkpoint) -> Option<Seen> {
    let rows = context.target.list().await.ok()?;
    let active = active_of(&rows, &context.id.name).ok()?;
    let info = context.store.info().await.ok()?;
    let is_so = not_of(&info, end).is_none() && not_of(&info, &active.checkpoint).is_some();
    is_so.then(|| Seen::Lost {
        end: end.clone(),
        lost: active.checkpoint.clone(),
    })
}

/// Sees whether no event that a version wants lies between a place and the end of the store. `None` if one does, or
/// that is not known.
async fn no_match<T: Target>(context: &Context<T>, after: &Checkpoint) -> Option<Seen> {
    let (store, filter) = (&*context.store, &context.filter);
    let info = store.info().await.ok()?;
    let up_to = Checkpoint::logs(info.incarnation, info.heads);
    let next = next_match(store, after, filter, &up_to, LAG_PAGES_MAX).await;
    let after = after.clone();
    matches!(next, Ok(Next::Nothing)).then_some(Seen::NoMatch { after, up_to })
}
