//! The voice of the owner: what it says in the stream of states, and that it lives while it does something long.

use std::pin::pin;
use std::time::Duration;

use gesta_core::{Result, Revision};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use crate::record::{State, What};
use crate::states::States;

/// The voice of the owner.
pub(crate) struct Voice<'a> {
    states: &'a States,
    node: Uuid,
    lease: Duration,
    /// The revision of the last state.
    last: Revision,
    /// When it was begun to append that state.
    said_at: Instant,
    /// The number of states since all timers were stored together.
    pub(crate) said: u64,
}

impl<'a> Voice<'a> {
    /// Makes the voice of an owner that has claimed the timers by a state, which it began to append at a time.
    pub(crate) fn new(
        states: &'a States,
        node: Uuid,
        lease: Duration,
        (claimed, since): (Revision, Instant),
    ) -> Self {
        Self {
            states,
            node,
            lease,
            last: claimed,
            said_at: since,
            said: 0,
        }
    }

    /// Returns the revision of the last state.
    pub(crate) fn last(&self) -> Revision {
        self.last
    }

    /// Returns when the owner has to say next that it lives.
    pub(crate) fn says_at(&self) -> Instant {
        self.said_at + self.lease / 3
    }

    /// Appends a state. Returns false if another process has appended one.
    pub(crate) async fn say(&mut self, does: What) -> Result<bool> {
        let owner = Some(self.node);
        self.append(&State { owner, does }).await
    }

    /// Appends the state that gives the timers free.
    pub(crate) async fn free(&mut self, does: What) -> Result<bool> {
        self.append(&State { owner: None, does }).await
    }

    /// Does something, and says as often as is due that the owner lives: what is read at a start may take longer than a
    /// lease. Returns nothing if another process has taken over.
    pub(crate) async fn during<T>(
        &mut self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done.map(Some),
                () = sleep_until(self.says_at()) => {}
            }
            if !self.say(What::Owned).await? {
                return Ok(None);
            }
        }
    }

    async fn append(&mut self, state: &State) -> Result<bool> {
        let now = Instant::now();
        // The lease is not over then.
        let within = self.lease / 2;
        let Some(last) = self.states.append(Some(self.last), state, within).await? else {
            return Ok(false);
        };
        (self.last, self.said_at) = (last, now);
        self.said += 1;
        Ok(true)
    }
}
