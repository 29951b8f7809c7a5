//! What the handles of a running runtime share.

use std::convert::Infallible;
use std::sync::Arc;

use gesta_core::capacity::{Capacity, Permit, Refusal};
use gesta_core::{StreamId, slice_of};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

use crate::ask::Ask;
use crate::decider::Decider;
use crate::error::Error;
use crate::kind::EntityKind;
use crate::message::Message;
use crate::stats::Counters;

pub(crate) struct Shared<D: Decider> {
    pub(crate) kind: Arc<EntityKind<D>>,
    pub(crate) shards: Vec<mpsc::UnboundedSender<Message<D>>>,
    pub(crate) commands: Arc<Capacity>,
    pub(crate) reads: Arc<Capacity>,
    pub(crate) counters: Arc<Counters>,
    /// The tasks that have not ended yet. A call of `shutdown` holds the lock until all have ended, so another call
    /// meanwhile waits as long.
    pub(crate) tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl<D: Decider> Drop for Shared<D> {
    fn drop(&mut self) {
        self.stop_shards();
    }
}

impl<D: Decider> Shared<D> {
    pub(crate) fn stop_shards(&self) {
        for shard in &self.shards {
            let _ = shard.send(Message::Stop);
        }
    }

    /// Returns the permit for one more command or read.
    pub(crate) fn admit(&self, capacity: &Arc<Capacity>) -> Result<Permit, Error<Infallible>> {
        capacity.take([1]).map_err(|refusal| match refusal {
            Refusal::Full { taken, .. } => {
                self.counters.overloaded.add(1);
                Error::Overloaded(format!("{taken} wait already"))
            }
            Refusal::Closed => Error::Unavailable(gesta_core::Error::unavailable(
                "the entity runtime is shutting down",
            )),
        })
    }

    pub(crate) fn send(&self, stream: StreamId, ask: Ask<D>) {
        let shard = usize::from(slice_of(&stream)) % self.shards.len();
        if let Some(shard) = self.shards.get(shard) {
            // If the shard has failed, the ask is dropped, and with it the channel for the answer: the caller gets an
            // error.
            let _ = shard.send(Message::Ask { stream, ask });
        }
    }
}
