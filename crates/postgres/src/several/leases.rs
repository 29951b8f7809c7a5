//! The registry of one of several databases: the leases of the logs that lie in it.
//!
//! Why: every database has a row for the lease of each log of the store, but only the database that a log lies in says
//! who owns the log, for appends to the log need that database and no other.
//! Invariant: an epoch that was given out under a newer map of the logs is greater than all that were given out under
//! older ones, so that of two databases which say something about a log the right one is believed.
//! Not here: who decides about owners (`gesta-cluster`), putting the databases together (`gesta-node`).

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::registry::{
    Beat, Claim, ClusterVersion, Generation, HandOver, Join, LeaseEpoch, Look, Move, NodeId,
    NodeState, Registry, Suspect, Tenure,
};
use gesta_core::{LogId, Result};
use uuid::Uuid;

use crate::several::route::Routes;

/// The registry of the database at the place `at`.
pub(crate) struct Leases {
    inner: Arc<dyn Registry>,
    routes: Arc<Routes>,
    at: usize,
}

impl Leases {
    pub(crate) fn new(inner: Arc<dyn Registry>, routes: &Arc<Routes>, at: usize) -> Self {
        let routes = Arc::clone(routes);
        Self { inner, routes, at }
    }

    /// Adds to an error which database does not answer.
    fn named<T>(&self, answer: Result<T>) -> Result<T> {
        answer.map_err(|error| self.routes.named(self.at, error))
    }

    /// Keeps of an answer only the leases of logs that lie in this database by the newest map that this process knows,
    /// with epochs that include the version of the map.
    fn of_here(&self, answer: Result<Look>) -> Result<Look> {
        let mut look = self.named(answer)?;
        let map = self.routes.map();
        let is_here = |log| {
            let home = self.routes.home_in(&map, log);
            home.is_ok_and(|home| home == self.at)
        };
        look.leases.retain(|lease| is_here(lease.log));
        for lease in &mut look.leases {
            lease.epoch = lease.epoch.by_map(map.version());
        }
        Ok(look)
    }
}

/// Converts a tenure to the form in which the database counts epochs.
fn stored(tenure: Tenure) -> Tenure {
    Tenure {
        epoch: tenure.epoch.in_database(),
        ..tenure
    }
}

#[async_trait]
impl Registry for Leases {
    async fn join(&self, join: &Join) -> Result<NodeId> {
        self.named(self.inner.join(join).await)
    }

    async fn beat(&self, beat: &Beat) -> Result<Look> {
        self.of_here(self.inner.beat(beat).await)
    }

    async fn look(&self) -> Result<Look> {
        self.of_here(self.inner.look().await)
    }

    async fn declare_dead(&self, suspect: Suspect) -> Result<bool> {
        self.named(self.inner.declare_dead(suspect).await)
    }

    async fn set_state(
        &self,
        node: NodeId,
        generation: Generation,
        state: NodeState,
    ) -> Result<bool> {
        self.named(self.inner.set_state(node, generation, state).await)
    }

    async fn claim(&self, claims: &[Claim]) -> Result<Vec<LogId>> {
        let claims = claims.iter().map(|claim| Claim {
            seen: claim.seen.in_database(),
            tenure: stored(claim.tenure),
        });
        let claims: Vec<Claim> = claims.collect();
        self.named(self.inner.claim(&claims).await)
    }

    async fn set_next_owner(
        &self,
        log: LogId,
        epoch: LeaseEpoch,
        to: Option<NodeId>,
    ) -> Result<bool> {
        let epoch = epoch.in_database();
        self.named(self.inner.set_next_owner(log, epoch, to).await)
    }

    async fn hand_over(&self, hand_over: HandOver) -> Result<bool> {
        let from = stored(hand_over.from);
        let hand_over = HandOver { from, ..hand_over };
        self.named(self.inner.hand_over(hand_over).await)
    }

    async fn release(&self, tenure: Tenure) -> Result<bool> {
        self.named(self.inner.release(stored(tenure)).await)
    }

    async fn pin(&self, log: LogId, to: Option<NodeId>) -> Result<()> {
        self.named(self.inner.pin(log, to).await)
    }

    async fn freeze(&self, frozen: bool) -> Result<()> {
        self.named(self.inner.freeze(frozen).await)
    }

    async fn hold(&self, address: &str, held: bool) -> Result<bool> {
        self.named(self.inner.hold(address, held).await)
    }

    async fn finalize(&self, from: ClusterVersion, to: ClusterVersion) -> Result<bool> {
        self.named(self.inner.finalize(from, to).await)
    }

    async fn store_id(&self) -> Result<Uuid> {
        self.named(self.inner.store_id().await)
    }

    async fn moves(&self) -> Result<Vec<Move>> {
        self.named(self.inner.moves().await)
    }
}
