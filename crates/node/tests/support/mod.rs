//! Nodes on one database in memory, with owners that the test sets.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    reason = "test code, of which each test file uses a part"
)]

/// The database of the nodes.
pub mod database {
    pub use gesta_kit::faulty::{FaultyBackend as MemoryBackend, World};
}

use std::sync::Arc;
use std::time::Duration;

use database::{MemoryBackend, World};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use gesta_cluster::{LogPlace, Member, Owner, Placement};
use gesta_core::registry::{ClusterVersion, LeaseEpoch, NodeId, NodeState};
use gesta_core::{Clock, Incarnation, Result};
use gesta_link::{Address, LinkConfig, Protocols, Reach, Secret, StoreIdentity, Times};
use gesta_node::{Node, Placements};
use gesta_rig::FaultProxy;
use gesta_store::Store;
use tokio::net::TcpListener;
use tokio::sync::watch;
use uuid::Uuid;

/// No test waits longer for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The time after which a node gives a change up, where a test does not wait for that.
pub const GIVE_UP_AFTER: Duration = PATIENCE;

/// Times with which no link is dead, silent or late because this machine stands still for a while.
pub fn patient() -> Times {
    let never = Duration::from_secs(3_600);
    Times {
        connect_within: never,
        silent_after: never,
        dead_after: never,
        return_after: never,
        ..Times::default()
    }
}

/// Times with which calls come back when there was no link, or no owner, for a second.
pub fn gives_up_after_a_second() -> Times {
    Times {
        return_after: Duration::from_secs(1),
        ..patient()
    }
}

/// Waits until a node has a link to the owners that it believes in: else a call may not wait for it.
pub async fn until_linked(node: &TestNode) {
    let is_linked = async {
        loop {
            let nodes = node.node.forwarder().nodes();
            if !nodes.is_empty() && nodes.iter().all(|node| node.reach == Reach::Reachable) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, is_linked).await;
    waited.expect("linked");
}

/// The placement that one node sees; at first it knows nothing.
#[derive(Default)]
pub struct Arrangement(watch::Sender<Arc<Placement>>);

impl Placements for Arrangement {
    fn changes(&self) -> watch::Receiver<Arc<Placement>> {
        self.0.subscribe()
    }

    fn leave(&self) -> BoxFuture<'static, ()> {
        ready(()).boxed()
    }
}

/// A node that is to start: its address is known, so that others can be told of it.
pub struct Seat {
    listener: TcpListener,
    pub address: Arc<str>,
    /// The times of its links; patient ones at first.
    times: Times,
}

impl Seat {
    pub async fn new() -> Self {
        let address = gesta_rig::free_address().expect("a port");
        let listener = TcpListener::bind(address).await.expect("bound");
        Self {
            listener,
            address: address.to_string().into(),
            times: patient(),
        }
    }

    /// Sets the times of its links.
    pub fn with(self, times: Times) -> Self {
        Self { times, ..self }
    }

    /// A node that the others reach by way of a network, which a test can hurt.
    pub async fn behind_a_network() -> (Self, FaultProxy) {
        let seat = Self::new().await;
        let network = FaultProxy::start(seat.listener.local_addr().expect("an address"));
        let network = network.expect("a proxy");
        let address = network.addr().to_string().into();
        (Self { address, ..seat }, network)
    }

    /// Starts the node with this number on the database, with a placement that the test sets.
    pub fn start(
        self,
        number: u32,
        world: &Arc<World>,
        clock: Arc<dyn Clock>,
        give_up_after: Duration,
    ) -> TestNode {
        let address = Arc::clone(&self.address);
        let arrangement = Arc::<Arrangement>::default();
        let placements = Arc::clone(&arrangement) as Arc<dyn Placements>;
        let backend = MemoryBackend::new(world);
        let mut config = gesta_store::Config::default();
        config.append.give_up_after = give_up_after;
        let store = Store::open(backend, config, clock).expect("opened");
        let node = self.start_with(store, give_up_after, placements);
        TestNode {
            number,
            address,
            node: node.expect("started"),
            arrangement,
        }
    }

    /// Starts a node of this store, with this placement.
    pub fn start_with(
        self,
        store: Arc<Store>,
        give_up_after: Duration,
        placements: Arc<dyn Placements>,
    ) -> Result<Arc<Node>> {
        let logs = store.backend().info().logs;
        let identity = StoreIdentity {
            id: Uuid::from_u128(1),
            logs,
        };
        let link = LinkConfig {
            store: identity,
            secret: Secret::new(b"a secret of the tests").expect("long enough"),
            address: Address::new(self.address),
            build: "test".into(),
            protocols: Protocols::THIS,
            times: self.times,
            bounds: gesta_link::Bounds::default(),
        };
        let config = gesta_node::Config {
            link,
            give_up_after,
        };
        Node::start(store, self.listener, config, placements)
    }
}

/// A node, and what it believes.
pub struct TestNode {
    pub number: u32,
    pub address: Arc<str>,
    pub node: Arc<Node>,
    arrangement: Arc<Arrangement>,
}

impl TestNode {
    /// The membership of the node fails: nothing is known any more.
    pub fn knows_nothing(&self) {
        self.arrangement.0.send_modify(|placement| {
            let version = placement.version + 1;
            *placement = Arc::new(Placement {
                version,
                ..Placement::default()
            });
        });
    }

    /// Tells the node who owns each log at this epoch: one of the members, by its place, or nobody.
    pub fn believes(&self, epoch: u64, members: &[(u32, Arc<str>)], owners: &[Option<usize>]) {
        let owner = |place: usize| Owner {
            node: NodeId(members[place].0),
            address: Arc::clone(&members[place].1),
        };
        let log = |place: &Option<usize>| LogPlace {
            owner: place.map(owner),
            next_owner: None,
            epoch: LeaseEpoch(epoch),
            is_mine: place.is_some_and(|place| members[place].0 == self.number),
        };
        let member = |(id, address): &(u32, Arc<str>)| Member {
            id: NodeId(*id),
            address: Arc::clone(address),
            state: NodeState::Up,
            build: "test".into(),
            protocol: (1, 1),
        };
        self.arrangement.0.send_replace(Arc::new(Placement {
            version: epoch,
            incarnation: Some(Incarnation(Uuid::from_u128(2))),
            cluster: Some(ClusterVersion::FIRST),
            me: Some(NodeId(self.number)),
            logs: owners.iter().map(log).collect(),
            nodes: members.iter().map(member).collect(),
        }));
    }
}
