//! The lease of the owner: the states that it appends, each of which renews it, also while the owner does something
//! long.

use std::pin::pin;
use std::time::Duration;

use gesta_core::Result;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use crate::record::{State, What};
use crate::states::{Head, States};

/// The lease of an owner, which each state that it appends renews.
pub(crate) struct OwnerLease<'a> {
    states: &'a States,
    node: Uuid,
    lease: Duration,
    /// The last state.
    last: Head,
    /// When it was begun to append that state.
    renewed_at: Instant,
    /// The number of states since all timers were stored together.
    pub(crate) appended: u64,
}

impl<'a> OwnerLease<'a> {
    /// Makes the lease of an owner that has claimed the timers by a state, which it began to append at a time.
    pub(crate) fn new(
        states: &'a States,
        node: Uuid,
        lease: Duration,
        (claimed, since): (Head, Instant),
    ) -> Self {
        Self {
            states,
            node,
            lease,
            last: claimed,
            renewed_at: since,
            appended: 0,
        }
    }

    /// Returns the last state.
    pub(crate) fn last(&self) -> &Head {
        &self.last
    }

    /// Returns when the lease has to be renewed.
    pub(crate) fn renews_at(&self) -> Instant {
        self.renewed_at + self.lease / 3
    }

    /// Appends a state, which renews the lease. Returns false if another process has appended one, or the store has
    /// another history.
    pub(crate) async fn renew(&mut self, does: What) -> Result<bool> {
        let owner = Some(self.node);
        self.append(&State { owner, does }).await
    }

    /// Appends the state that gives the timers free.
    pub(crate) async fn end(&mut self, does: What) -> Result<bool> {
        self.append(&State { owner: None, does }).await
    }

    /// Does something, and renews the lease as often as is due: what is read at a start may take longer than a
    /// lease. Returns nothing if another process has taken over, or the store has another history.
    pub(crate) async fn during<T>(
        &mut self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done.map(Some),
                () = sleep_until(self.renews_at()) => {}
            }
            if !self.renew(What::Owned).await? {
                return Ok(None);
            }
        }
    }

    async fn append(&mut self, state: &State) -> Result<bool> {
        let now = Instant::now();
        // The lease is not over then.
        let within = self.lease / 2;
        let Some(last) = self.states.append(&self.last, state, within).await? else {
            return Ok(false);
        };
        (self.last, self.renewed_at) = (last, now);
        self.appended += 1;
        Ok(true)
    }
}
