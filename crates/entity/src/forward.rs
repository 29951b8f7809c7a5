//! Entities on the nodes that own their streams: commands and reads of other entities are forwarded.
//!
//! Why: one owner decides without conflicts. Ownership is only advice: whichever node decides, the store accepts events
//! only after the event upon which they were decided, and confirms what is answered without events.
//! Invariants: a forwarded command has a key, which is made here unless the caller gave one, so it takes effect once
//! however often it is sent. Another node may have done the command, or may do it later; then the answer says nothing
//! that this other attempt could make untrue (`CommandAsk::answer`).
//! Not here: who owns what, and links (`gesta-node`).

use std::sync::Arc;
use std::time::Duration;

use gesta_core::StreamId;
use gesta_core::peers::Peers;

pub(crate) mod owner;
pub(crate) mod queue;

/// The other nodes, for entities of one kind.
pub(crate) struct Forwarding {
    pub(crate) peers: Arc<dyn Peers>,
    /// The name under which the nodes serve each other.
    pub(crate) service: String,
    /// How long a request may wait for an owner, and for its answer.
    pub(crate) within: Duration,
}

impl Forwarding {
    pub(crate) fn is_here(&self, stream: &StreamId) -> bool {
        self.peers.is_here(stream)
    }
}
