//! The side of the forwarder: it sends calls to the owners of their logs.

mod ask;
mod lane;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use gesta_core::capacity::Capacity;
use gesta_core::{Incarnation, LogId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use self::lane::{Input, LaneTask, Parts, Ticket};
use crate::clock::Clock;
use crate::config::{Bounds, LinkConfig};
use crate::error::{AskError, ForwardError, LinkStartError, Result, ReturnReason};
use crate::frame::IN_DOUBT;
use crate::peer::{Peer, Peers};
use crate::reach::Reach;
use crate::route::{Address, Epoch, Hint, Route, RouteOwner};
use crate::sending::Patience;
use crate::stats::{Counts, ForwarderStats};

/// Is told the outcome of a call, exactly once. For the calls of one log that come back this happens in their order,
/// one after the other. It must not block.
pub type OnReply = Box<dyn FnOnce(Result<Reply>) + Send>;

/// Takes each hint that is newer than the route of its log. The function must not block.
pub type OnHint = Arc<dyn Fn(LogId, &Hint) + Send + Sync>;

/// The reply of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// What the owner has replied.
    pub body: Bytes,
    /// True if the call was written before, to this owner or another, and that attempt may have been done as well, or
    /// may yet be done. A refusal then says nothing about that attempt.
    pub is_in_doubt: bool,
}

/// A call to forward.
pub struct Outgoing {
    /// The kind of the call, below 128. The link does not know what it means.
    pub kind: u8,
    /// The body of the call, encoded once.
    pub body: Bytes,
    /// The moment after which the caller no longer waits. Suspension of the machine makes it earlier.
    pub deadline: Instant,
    /// How long the call waits for an owner that is not heard.
    pub patience: Patience,
    /// The function that takes the outcome.
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

/// What is known about the link to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReach {
    /// The address of the node.
    pub address: Address,
    /// Whether calls can be sent to the node.
    pub reach: Reach,
    /// Why the last try to connect failed, or the link broke, as a sentence.
    pub trouble: Option<String>,
    /// Whether nobody listened at the address when it was last dialled, so that its process is gone.
    pub is_refused: bool,
    /// Whether the node has answered, when it was last dialled, that it has another secret than this one.
    pub has_other_secret: bool,
}

/// Forwards calls. A clone is another handle of the same forwarder.
#[derive(Clone, Debug)]
pub struct Forwarder {
    shared: Arc<ForwarderShared>,
}

#[derive(Debug)]
struct ForwarderShared {
    peers: Arc<Peers>,
    logs: Vec<Log>,
    /// The nodes that are held so that they stay connected.
    nodes: Mutex<Vec<Arc<Peer>>>,
    bounds: Bounds,
    clock: Clock,
    counts: Arc<Counts>,
    /// The bound of all logs together.
    capacity: Arc<Capacity<2>>,
}

/// The way to the task of a log.
#[derive(Debug)]
struct Log {
    inputs: mpsc::UnboundedSender<Input>,
    /// The calls and bytes that wait or are in flight. These bound the channel above.
    capacity: Arc<Capacity<2>>,
}

impl Forwarder {
    /// Starts a forwarder that has no routes yet: all logs are owned by nobody. This must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`LinkStartError::Config`] if a value of the configuration is out of range.
    pub fn start(config: LinkConfig, on_hint: OnHint) -> std::result::Result<Self, LinkStartError> {
        Self::start_with(config, on_hint, Clock::MACHINE)
    }

    fn start_with(
        config: LinkConfig,
        on_hint: OnHint,
        clock: Clock,
    ) -> std::result::Result<Self, LinkStartError> {
        config.check()?;
        let peers = Arc::new(Peers::new(config.clone()));
        let epoch = Epoch {
            incarnation: Incarnation(Uuid::nil()),
            number: 0,
        };
        let owner = RouteOwner::Nobody;
        let route = Route { owner, epoch };
        let bounds = config.bounds;
        let counts = Arc::<Counts>::default();
        let start = |log| {
            let (inputs, receiver) = mpsc::unbounded_channel();
            let parts = Parts {
                log: LogId(log),
                inputs: receiver,
                peers: Arc::clone(&peers),
                on_hint: Arc::clone(&on_hint),
                clock,
                counts: Arc::clone(&counts),
            };
            let task = LaneTask::new(parts, route.clone(), &config);
            // The tasks end when the last handle is dropped, or when the forwarder is shut down.
            drop(peers.tasks.spawn(task.run()));
            let capacity = Capacity::new([bounds.waiting_calls_max, bounds.waiting_bytes_max]);
            Log { inputs, capacity }
        };
        let logs = (0..config.store.logs).map(start).collect();
        let shared = ForwarderShared {
            peers,
            logs,
            nodes: Mutex::default(),
            bounds,
            clock,
            counts,
            capacity: Capacity::new([bounds.all_waiting_calls_max, bounds.all_waiting_bytes_max]),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Sets who gets the calls of a log from now on: unanswered calls too, which are sent again, in order, to the new
    /// owner, or come back if that is this node. This is for what the database says, or the new owner: a route that is
    /// older than one set before is ignored. Hints are followed without it.
    ///
    /// The route is set by the invocation, in order with calls. The future ends when the route is in force; if this
    /// node is the owner, all calls made before have come back by then. It may be dropped.
    pub fn set_route(&self, log: LogId, route: Route) -> impl Future<Output = ()> + Send + use<> {
        let (done, is_done) = oneshot::channel();
        if let Some(log) = self.log(log) {
            // A forwarder that is shut down has no routes.
            drop(log.inputs.send(Input::Route(route, done)));
        }
        async move {
            let _ = is_done.await;
        }
    }

    /// Forwards a call. Calls of one log keep the order of the invocations of `submit` and `call`.
    pub fn submit(&self, log: LogId, call: Outgoing) {
        let closed = |reason| {
            Err(ForwardError::Returned {
                reason,
                was_written: false,
            })
        };
        let Some(log) = self.log(log) else {
            return (call.on_reply)(closed(ReturnReason::NoOwner));
        };
        debug_assert!(
            call.kind < IN_DOUBT,
            "the highest bit of a kind is the link's"
        );
        let bytes = call.body.len();
        if u32::try_from(bytes).map_or(true, |bytes| bytes > self.shared.bounds.body_bytes_max) {
            return (call.on_reply)(Err(ForwardError::TooLarge));
        }
        let of_all = self.shared.capacity.take_alone([1, bytes]);
        let of_log = log.capacity.take_alone([1, bytes]);
        let (Ok(of_all), Ok(of_log)) = (of_all, of_log) else {
            return (call.on_reply)(Err(ForwardError::Overloaded));
        };
        let permit = [of_all, of_log];
        let (deadline, patience) = (self.shared.clock.moment(call.deadline), call.patience);
        let input = Input::Call(Ticket::new(call, permit), deadline, patience);
        if let Err(mpsc::error::SendError(Input::Call(ticket, ..))) = log.inputs.send(input) {
            ticket.end(closed(ReturnReason::Closed));
        }
    }

    /// Forwards a call that only its owner can do, and waits for its outcome. The order is fixed by the invocation, not
    /// by the first poll.
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
    ) -> impl Future<Output = Result<Reply>> + Send + use<> {
        self.call_with(log, kind, body, deadline, Patience::UntilUnreachable)
    }

    /// Forwards a call as [`call`](Self::call) does, with this patience.
    ///
    /// # Errors
    /// [`ForwardError`] says why there is no reply.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call goes on.
    pub fn call_with(
        &self,
        log: LogId,
        kind: u8,
        body: Bytes,
        deadline: Instant,
        patience: Patience,
    ) -> impl Future<Output = Result<Reply>> + Send + use<> {
        let (done, outcome) = oneshot::channel();
        let on_reply: OnReply = Box::new(move |result| drop(done.send(result)));
        self.submit(
            log,
            Outgoing {
                kind,
                body,
                deadline,
                patience,
                on_reply,
            },
        );
        async move {
            // The sender is always told; see `Ticket`.
            outcome.await.unwrap_or(Err(ForwardError::Returned {
                reason: ReturnReason::Closed,
                was_written: true,
            }))
        }
    }

    /// Asks a node a question that belongs to no log, with a body of at most `body_bytes_max`. Questions have no order
    /// and are never sent twice.
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
        ask::ask(&self.shared.peers, node, kind, body, deadline).await
    }

    /// Sets which nodes are kept connected even if they own no log, so that [`unreachable`](Self::unreachable) tells
    /// about them too.
    pub fn set_nodes(&self, nodes: &[Address]) {
        let nodes = nodes
            .iter()
            .map(|node| self.shared.peers.get(node))
            .collect();
        let mut kept = self
            .shared
            .nodes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *kept = nodes;
    }

    /// Returns the nodes that are connected or are to be, in the order of their addresses.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeReach> {
        let states = self.shared.peers.states().into_iter();
        states
            .map(|(address, state)| NodeReach {
                address,
                reach: state.reach,
                is_refused: state
                    .trouble
                    .as_ref()
                    .is_some_and(|trouble| trouble.is_refused),
                has_other_secret: state
                    .trouble
                    .as_ref()
                    .is_some_and(|trouble| trouble.has_other_secret),
                trouble: state.trouble.map(|trouble| trouble.text),
            })
            .collect()
    }

    /// Returns the addresses that this node cannot call now.
    #[must_use]
    pub fn unreachable(&self) -> Vec<Address> {
        let unreachable = |node: NodeReach| {
            let is_unreachable = node.reach == Reach::Unreachable;
            is_unreachable.then_some(node.address)
        };
        self.nodes().into_iter().filter_map(unreachable).collect()
    }

    /// Returns what has hindered calls since the forwarder was started.
    #[must_use]
    pub fn stats(&self) -> ForwarderStats {
        self.shared.counts.read()
    }

    /// Returns all calls as [`Closed`](crate::ReturnReason::Closed), closes all links and waits for their tasks.
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, the forwarder shuts down all the same.
    pub async fn shutdown(&self) {
        self.shared.peers.closed.cancel();
        self.shared.peers.tasks.close();
        self.shared.peers.tasks.wait().await;
    }

    /// Returns the number of logs.
    #[must_use]
    pub fn logs(&self) -> u16 {
        self.shared.peers.logs()
    }

    fn log(&self, log: LogId) -> Option<&Log> {
        self.shared.logs.get(usize::from(log.0))
    }
}
