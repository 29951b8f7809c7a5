//! The source from which a node knows who owns which log.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, pending};
use gesta_cluster::{Placement, Status, Stop};
use gesta_core::Result;
use tokio::sync::watch;

/// Tells who owns which log: the node's membership in the cluster, or a fixed arrangement in tests.
pub trait Placements: Send + Sync + 'static {
    /// Returns the present placement, and its changes.
    fn changes(&self) -> watch::Receiver<Arc<Placement>>;

    /// Gives all logs of this node to others, and leaves.
    fn leave(&self) -> BoxFuture<'static, ()>;

    /// Makes the membership look, because another node says that the placement has changed.
    fn look_now(&self) {}

    /// Returns what people may want to know about the membership, if there is one.
    fn status(&self) -> Option<Status> {
        None
    }

    /// Checks that the node takes part at present.
    ///
    /// # Errors
    /// `Unavailable` with the reason if it does not.
    fn ready(&self) -> Result<()> {
        Ok(())
    }

    /// Waits until the membership has ended, if there is one.
    fn stopped(&self) -> BoxFuture<'static, Stop> {
        pending().boxed()
    }
}
