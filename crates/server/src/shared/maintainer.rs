//! Who does maintenance of the store that is served, and the one turn to do it.
//!
//! Not here: the calls that ask for it (`maintenance`).

use std::sync::Arc;

use futures::future::BoxFuture;
use gesta_core::backend::RunMode;
use gesta_wire::maintenance::{Progress, Scavenged, Verified, VirtualStreams};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::shared::problem::{self, Problem, Result};

/// What is told while the work goes on.
pub type OnProgress = Box<dyn FnMut(Progress) + Send>;

/// What is to be done about virtual streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VirtualStreamsCall {
    /// Only tell whether they are on.
    Look,
    /// Switch them on.
    SwitchOn,
    /// Switch them off.
    SwitchOff,
}

/// What the database of the store can have done with it. If a future is dropped, its work ends soon.
pub trait Maintenance: Send + Sync {
    /// Reads the whole store, and checks every promise that data can show. Damage is told in the result.
    ///
    /// # Errors
    /// `Unavailable` if the database cannot be read.
    fn verify(&self, on_progress: OnProgress) -> BoxFuture<'static, gesta_core::Result<Verified>>;

    /// Removes what deletes, tombstones and metadata hide, or only counts it.
    ///
    /// # Errors
    /// `Unsupported` if the server lacks the right to remove events; `Unavailable` if the database does not answer.
    fn scavenge(
        &self,
        mode: RunMode,
        on_progress: OnProgress,
    ) -> BoxFuture<'static, gesta_core::Result<Scavenged>>;

    /// Switches virtual streams on or off, or tells their state. Entries are written after they were switched on.
    ///
    /// # Errors
    /// `Unsupported` if the store can have none; `Unavailable` if the database does not answer.
    fn virtual_streams(
        &self,
        call: VirtualStreamsCall,
    ) -> BoxFuture<'static, gesta_core::Result<VirtualStreams>>;
}

/// The maintenance of a server, one at a time.
pub(crate) struct Maintainer {
    /// Who does it; `None` if the server cannot have it done.
    maintenance: Option<Arc<dyn Maintenance>>,
    turn: Arc<Semaphore>,
}

impl Maintainer {
    pub(crate) fn new(maintenance: Option<Arc<dyn Maintenance>>) -> Self {
        Self {
            maintenance,
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Returns who does the maintenance.
    pub(crate) fn maintenance(&self) -> Result<&Arc<dyn Maintenance>> {
        self.maintenance.as_ref().ok_or_else(|| {
            Problem::new(
                problem::UNSUPPORTED,
                "this server does no maintenance of its store",
            )
        })
    }

    /// Takes the one turn.
    pub(crate) fn turn(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.turn).try_acquire_owned().map_err(|_| {
            Problem::overloaded("another verify or scavenge runs on this server: try again later")
        })
    }
}
