//! [`Peers`]: how what lives beside the store, such as the entity runtime, reaches the node that owns a stream.
//!
//! Why in the core: an entity lives on the node that owns the log of its stream, and the runtime that holds entities
//! knows nothing of nodes, links and leases.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::ids::StreamId;

/// A call about a stream that another node forwards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerCall {
    /// What it is about.
    pub stream: StreamId,
    /// What is asked.
    pub body: Bytes,
    /// A call that is not decided within this time is not decided at all.
    pub remaining: Duration,
    /// True if the call was sent before, to this node or another, and that attempt may have been done, or may yet be
    /// done.
    pub is_in_doubt: bool,
}

/// Serves calls about streams that other nodes forward.
pub trait PeerService: Send + Sync + 'static {
    /// Takes a call and gives its answer, at most 16 MiB, and not more than links carry; in the place of a larger one the
    /// caller gets [`UnansweredReason::AnswerTooLarge`]. Calls about one stream from one node come in their order: what
    /// must not be overtaken is handed over before this returns. It must not block. The future may be dropped; what was
    /// begun goes on.
    fn call(&self, call: PeerCall) -> BoxFuture<'static, Bytes>;
}

/// A call that another node was to answer, and that has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unanswered {
    /// Why.
    pub reason: UnansweredReason,
    /// True if a node may have done the call, or may yet do it.
    pub was_written: bool,
}

/// Why a call has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnansweredReason {
    /// The stream is this node's now: do the call here.
    Here,
    /// The owner cannot be reached from this node. It may be at work.
    Unreachable,
    /// There has been no owner for a while: do the call here, where the store refuses what another node was faster with.
    NoOwner,
    /// The owner does not have this service: it is another program on the same database.
    NotServed,
    /// The time was over.
    Late,
    /// The owner has answered, and its answer cannot be read: it is of another build, perhaps.
    Unreadable,
    /// The owner's answer is too large to travel.
    AnswerTooLarge,
    /// Too much waits for the owner.
    Overloaded,
    /// The body is too large to be forwarded.
    TooLarge,
    /// This node is shutting down.
    Closed,
}

/// The answer of another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerAnswer {
    /// What the owner's [`PeerService`] has answered.
    pub body: Bytes,
    /// True if the call was sent before, and that attempt may have been done, or may yet be done: a refusal then says
    /// nothing about it.
    pub is_in_doubt: bool,
}

/// The other nodes that share the store.
pub trait Peers: Send + Sync + 'static {
    /// True if this node owns the stream. Advice: it may be outdated by the time it is acted on.
    fn is_here(&self, stream: &StreamId) -> bool;

    /// Sends a call about a stream to its owner. The invocation fixes the order of calls about streams of one log.
    ///
    /// # Cancel safety
    /// The call goes on without the future.
    fn forward(
        &self,
        service: &str,
        stream: &StreamId,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'static, Result<PeerAnswer, Unanswered>>;

    /// Serves the calls that other nodes forward to this service, from now on, instead of whoever did before.
    fn register(&self, service: &str, handler: Arc<dyn PeerService>);
}
