//! The forwarder's side: sends calls to the owners of their logs.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use gesta_core::LogId;
use tokio::time::Instant;

use crate::config::LinkConfig;
use crate::error::{AskError, ForwardError, Result};
use crate::route::{Address, Hint, Route};

/// Is told the outcome of a call, exactly once. For the calls of one log that come back this happens in their order, one
/// after the other. It must not block.
pub type OnReply = Box<dyn FnOnce(Result<Bytes>) + Send>;

/// Is told each hint that is newer than the route of its log. It must not block.
pub type OnHint = Arc<dyn Fn(LogId, &Hint) + Send + Sync>;

/// A call to forward.
pub struct Outgoing {
    /// What is called. The link does not know the meaning.
    pub kind: u8,
    /// The body, encoded once.
    pub body: Bytes,
    /// When the caller no longer waits.
    pub deadline: Instant,
    /// Told the outcome.
    pub on_reply: OnReply,
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing")
            .field("kind", &self.kind)
            .field("body", &self.body.len())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// Whether calls can be sent to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// There is no link, but not for so long yet that the node counts as unreachable.
    Connecting,
    /// There is a link, and calls are sent.
    Reachable,
    /// There has been no link for a while, or it has not held long enough since.
    Unreachable,
}

/// What is known about the link to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReach {
    /// The node.
    pub address: Address,
    /// Whether calls can be sent to it.
    pub reach: Reach,
    /// Why the last try to connect failed, or the link broke, as a sentence.
    pub trouble: Option<String>,
}

/// Forwards calls. A clone is another handle of the same forwarder.
#[derive(Clone, Debug)]
pub struct Forwarder {}

impl Forwarder {
    /// Starts a forwarder that has no routes yet: all logs are owned by nobody. Must be called in a tokio runtime.
    #[must_use]
    pub fn start(config: LinkConfig, on_hint: OnHint) -> Self {
        let _ = (config, on_hint);
        todo!()
    }

    /// Sets who gets the calls of a log from now on: unanswered calls too, which are sent again, in order, to the new
    /// owner, or come back if that is this node. A route that is older than the known one is ignored.
    ///
    /// The route is set by the invocation, in order with calls. The future ends when the route is in force; if this node
    /// is the owner, all calls made before have come back by then. It may be dropped.
    pub fn set_route(&self, log: LogId, route: Route) -> impl Future<Output = ()> + Send + 'static {
        let _ = (log, route);
        async { todo!() }
    }

    /// Forwards a call. Calls of one log keep the order of the invocations of `submit` and `call`.
    pub fn submit(&self, log: LogId, call: Outgoing) {
        let _ = (log, call);
        todo!()
    }

    /// Forwards a call and waits for its outcome. The order is fixed by the invocation, not by the first poll.
    ///
    /// Futures of several calls that come back may be polled in any order: who needs the order then uses
    /// [`submit`](Self::submit).
    ///
    /// # Errors
    /// [`ForwardError`].
    ///
    /// # Cancel safety
    /// The call goes on without its future.
    pub fn call(
        &self,
        log: LogId,
        kind: u8,
        body: Bytes,
        deadline: Instant,
    ) -> impl Future<Output = Result<Bytes>> + Send + 'static {
        let _ = (log, kind, body, deadline);
        async { Err(ForwardError::Overloaded) }
    }

    /// Asks a node a question that belongs to no log. Questions have no order and are never sent twice.
    ///
    /// # Errors
    /// [`AskError`].
    ///
    /// # Cancel safety
    /// The node may have been asked.
    pub async fn ask(
        &self,
        node: &Address,
        kind: u8,
        body: Bytes,
        deadline: Instant,
    ) -> std::result::Result<Bytes, AskError> {
        let _ = (node, kind, body, deadline);
        Err(AskError::Unreachable)
    }

    /// Sets which nodes are kept connected even if they own no log, so that [`unreachable`](Self::unreachable) tells
    /// about them too.
    pub fn set_nodes(&self, nodes: &[Address]) {
        let _ = nodes;
        todo!()
    }

    /// The nodes that are connected or are to be, in the order of their addresses.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeReach> {
        todo!()
    }

    /// The addresses that this node cannot call now.
    #[must_use]
    pub fn unreachable(&self) -> Vec<Address> {
        todo!()
    }

    /// Returns all calls as [`Closed`](crate::ReturnReason::Closed), closes all links and waits for their tasks.
    pub async fn shutdown(&self) {
        todo!()
    }
}
