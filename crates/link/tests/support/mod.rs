//! Nodes for the tests: an owner whose answers a test decides, and what a test waits for.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::expect_used, reason = "in tests")]

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_core::{Incarnation, LogId};
use gesta_link::{
    Address, Answer, Bounds, Call, Epoch, ForwardError, Forwarder, Hint, LinkConfig, LinkServer,
    Protocols, Question, Reach, Route, RouteOwner, Secret, Serve, Served, StoreIdentity, Times,
};
use gesta_rig::FaultProxy;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use uuid::Uuid;

/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The time after which something is dead, silent or late, if nothing may be so. No test lasts so long.
pub(crate) const NEVER: Duration = Duration::from_secs(3_600);
/// The time after which something is given up where a test waits for that. What must not be given up comes in time,
/// even if the machine stands still for a while.
pub(crate) const LONG: Duration = Duration::from_secs(15);

/// The configuration of a node that nothing is too slow for.
pub(crate) fn config() -> LinkConfig {
    LinkConfig {
        store: StoreIdentity {
            id: Uuid::from_u128(7),
            logs: 16,
        },
        secret: Secret::new(b"a secret of the cluster").expect("long enough"),
        address: Address::new("own:1"),
        build: "test".to_owned(),
        protocols: Protocols::THIS,
        times: patient(),
        bounds: Bounds::default(),
    }
}

/// Times with which only what is broken comes to an end.
pub(crate) fn patient() -> Times {
    Times {
        connect_within: NEVER,
        silent_after: NEVER,
        dead_after: NEVER,
        return_after: NEVER,
        flush_within: LONG,
        ..Times::default()
    }
}

/// Times of a forwarder that gives a node up soon after its link broke. Without an answer the link breaks after
/// [`LONG`].
pub(crate) fn quick() -> Times {
    Times {
        connect_within: Duration::from_secs(1),
        ping_every: Duration::from_millis(100),
        ping_waiting_every: Duration::from_millis(50),
        dead_after: LONG,
        return_after: Duration::from_millis(300),
        trusted_after: Duration::from_millis(700),
        ..patient()
    }
}

pub(crate) fn epoch(number: u64) -> Epoch {
    Epoch {
        incarnation: Incarnation(Uuid::from_u128(3)),
        number,
    }
}

pub(crate) fn route(address: SocketAddr, number: u64) -> Route {
    Route {
        owner: RouteOwner::Node(address.into()),
        epoch: epoch(number),
    }
}

pub(crate) fn hint(address: SocketAddr, number: u64) -> Hint {
    Hint {
        owner: Some(address.into()),
        epoch: epoch(number),
    }
}

pub(crate) fn later() -> Instant {
    Instant::now() + PATIENCE
}

pub(crate) fn body(text: impl ToString) -> Bytes {
    Bytes::from(text.to_string().into_bytes())
}

/// Waits, but not for ever.
pub(crate) async fn within<T>(what: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, what).await;
    waited.expect("it takes too long")
}

pub(crate) fn forwarder(config: LinkConfig) -> Forwarder {
    Forwarder::start(config, Arc::new(|_, _| {})).expect("started")
}

/// A forwarder with these times.
pub(crate) fn forwarder_with(times: Times) -> Forwarder {
    forwarder(LinkConfig { times, ..config() })
}

/// Waits until a node can be reached, or cannot.
pub(crate) async fn until(sender: &Forwarder, address: SocketAddr, reach: Reach) {
    let is_so = async {
        loop {
            let nodes = sender.nodes();
            let node = nodes.iter().find(|node| node.address == address.into());
            if node.is_some_and(|node| node.reach == reach) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    within(is_so).await;
}

/// Waits until the forwarder says why there is no link to its only node.
pub(crate) async fn trouble(sender: &Forwarder) -> String {
    let is_told = async {
        loop {
            if let Some(trouble) = sender.nodes().remove(0).trouble {
                return trouble;
            }
            tokio::task::yield_now().await;
        }
    };
    within(is_told).await
}

/// What an owner does with the calls of a log.
#[derive(Clone, Default)]
pub(crate) enum Behaviour {
    /// Answers with the body.
    #[default]
    Echo,
    /// Answers when the test says so.
    Hold,
    /// Refuses.
    NotHere(Hint),
}

#[derive(Default)]
struct State {
    behaviours: HashMap<LogId, Behaviour>,
    calls: Vec<(LogId, Call)>,
    held: Vec<oneshot::Sender<Answer>>,
}

/// An owner.
#[derive(Default)]
pub(crate) struct Owned {
    state: Mutex<State>,
    /// Calls taken and refused so far.
    seen: watch::Sender<usize>,
}

impl Owned {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panics")
    }

    pub(crate) fn behave(&self, log: u16, behaviour: Behaviour) {
        self.state().behaviours.insert(LogId(log), behaviour);
    }

    /// The bodies of the calls of a log so far, as texts, in the order in which they were handed over.
    pub(crate) fn texts(&self, log: u16) -> Vec<String> {
        let state = self.state();
        let calls = state.calls.iter().filter(|(of, _)| of.0 == log);
        calls
            .map(|(_, call)| String::from_utf8_lossy(&call.body).into_owned())
            .collect()
    }

    pub(crate) fn calls(&self) -> Vec<(LogId, Call)> {
        self.state().calls.clone()
    }

    /// Waits until this many calls were seen.
    pub(crate) async fn seen(&self, count: usize) {
        let mut seen = self.seen.subscribe();
        within(seen.wait_for(|seen| *seen >= count))
            .await
            .expect("alive");
    }

    /// Takes the answers that are held, in the order of their calls.
    pub(crate) fn take_held(&self) -> Vec<oneshot::Sender<Answer>> {
        std::mem::take(&mut self.state().held)
    }
}

impl Serve for Owned {
    fn call(&self, log: LogId, call: Call) -> Served {
        let mut state = self.state();
        let echo = call.body.clone();
        let behaviour = state.behaviours.get(&log).cloned().unwrap_or_default();
        state.calls.push((log, call));
        let served = match behaviour {
            Behaviour::Echo => Served::Taken(async { Answer::Reply(echo) }.boxed()),
            Behaviour::NotHere(hint) => Served::NotHere(hint),
            Behaviour::Hold => {
                let (answer, held) = oneshot::channel();
                state.held.push(answer);
                Served::Taken(
                    async {
                        match held.await {
                            Ok(answer) => answer,
                            Err(_) => std::future::pending().await,
                        }
                    }
                    .boxed(),
                )
            }
        };
        drop(state);
        self.seen.send_modify(|seen| *seen += 1);
        served
    }

    fn ask(&self, question: Question) -> BoxFuture<'static, Bytes> {
        async move { question.body }.boxed()
    }
}

/// A node that owns logs.
pub(crate) struct Node {
    pub(crate) owned: Arc<Owned>,
    pub(crate) server: LinkServer,
    pub(crate) address: SocketAddr,
}

/// A node that listens on a free port, its address.
pub(crate) async fn node(config: LinkConfig) -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").into();
    start(listener, LinkConfig { address, ..config })
}

/// A node whose address is that of a network, which a test can hurt.
pub(crate) async fn node_behind_a_network(config: LinkConfig) -> (Node, FaultProxy) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let network = FaultProxy::start(listener.local_addr().expect("an address"));
    let network = network.expect("a proxy");
    let address = network.addr().into();
    (start(listener, LinkConfig { address, ..config }), network)
}

fn start(listener: TcpListener, config: LinkConfig) -> Node {
    let owned = Arc::new(Owned::default());
    let server = LinkServer::start(listener, config, Arc::clone(&owned) as _).expect("started");
    Node {
        owned,
        address: server.local_address(),
        server,
    }
}

/// Forwards a call and waits for the body of its reply.
pub(crate) fn call(
    sender: &Forwarder,
    log: LogId,
    kind: u8,
    body: Bytes,
    deadline: Instant,
) -> impl Future<Output = Result<Bytes, ForwardError>> + Send + use<> {
    let replied = sender.call(log, kind, body, deadline);
    async move { replied.await.map(|reply| reply.body) }
}
