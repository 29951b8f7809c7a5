//! [`Peers`]: the way to the node that owns a stream, for what lives beside the store, such as the entity runtime.
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
    /// Stream that the call is about.
    pub stream: StreamId,
    /// Request in the form of the service. Nodes do not read it.
    pub body: Bytes,
    /// Time within which the owner must decide the call. After it, the call is not decided at all.
    pub remaining: Duration,
    /// True if the call was sent before, to this node or another, and that attempt may have been done, or may yet be
    /// done.
    pub is_in_doubt: bool,
}

/// Serves calls about streams that other nodes forward.
pub trait PeerService: Send + Sync + 'static {
    /// Takes a call and gives its answer. The answer holds at most 16 MiB, and not more than links carry; in the place
    /// of a larger one the caller gets [`UnansweredReason::AnswerTooLarge`].
    ///
    /// Calls about one stream from one node come in their order: what must not be overtaken is handed over before this
    /// method returns. The method must not block. The future may be dropped; what was begun goes on.
    fn call(&self, call: PeerCall) -> BoxFuture<'static, Bytes>;
}

/// A call to another node that has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unanswered {
    /// Reason why there is no answer.
    pub reason: UnansweredReason,
    /// True if a node may have done the call, or may yet do it.
    pub was_written: bool,
}

/// Reason why a call has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnansweredReason {
    /// This node owns the stream now. The caller must do the call here.
    Here,
    /// The owner cannot be reached from this node. The owner may be working on the call.
    Unreachable,
    /// The log has had no owner for a while. The caller must do the call here; the store refuses it if another node was
    /// faster.
    NoOwner,
    /// The owner does not have this service: it runs another program on the same database.
    NotServed,
    /// The call was not answered in time.
    Late,
    /// The owner has answered, and its answer cannot be read, perhaps because the owner is of another build.
    Unreadable,
    /// The answer of the owner is too large to travel.
    AnswerTooLarge,
    /// Too many calls, or too many bytes, wait for the owner.
    Overloaded,
    /// The body is too large to be forwarded.
    TooLarge,
    /// This node is shutting down.
    Closed,
}

/// An answer of another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerAnswer {
    /// What the [`PeerService`] of the owner has answered.
    pub body: Bytes,
    /// True if the call was sent before, and that attempt may have been done, or may yet be done. A refusal then says
    /// nothing about that attempt.
    pub is_in_doubt: bool,
}

/// The other nodes that share the store.
pub trait Peers: Send + Sync + 'static {
    /// Returns true if this node owns the stream. It is advice: it may be outdated by the time the caller acts on it.
    fn is_here(&self, stream: &StreamId) -> bool;

    /// Sends a call about a stream to its owner. The order of these invocations is the order of the calls about streams
    /// of one log.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the call.
    fn forward(
        &self,
        service: &str,
        stream: &StreamId,
        body: Bytes,
        within: Duration,
    ) -> BoxFuture<'static, Result<PeerAnswer, Unanswered>>;

    /// Makes `handler` serve the calls that other nodes forward to this service, from now on, instead of any earlier
    /// one.
    fn register(&self, service: &str, handler: Arc<dyn PeerService>);
}
