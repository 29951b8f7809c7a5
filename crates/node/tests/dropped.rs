//! A node that is dropped without being shut down.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_cluster::{Membership, Options, Placement, Progress, Sign, Stop, WithoutLinks};
use gesta_core::registry::NodeInfo;
use gesta_core::{
    Append, EventData, EventStore, EventType, ExpectedRevision, LogId, StreamId, SystemClock,
};
use gesta_kit::registry::MemoryRegistry;
use gesta_node::{Node, Placements};
use gesta_store::{Config, Store};
use support::database::{MemoryBackend, World};
use support::{GIVE_UP_AFTER, PATIENCE, Seat, gives_up_after_a_second, until_linked};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A membership in a registry in memory.
struct Joined(Membership);

impl Joined {
    fn start(address: &str) -> Self {
        let info = NodeInfo {
            address: address.into(),
            weight: 100,
            build: "test".into(),
            protocol_min: 1,
            protocol_max: 1,
        };
        let options = Options {
            info,
            config: Default::default(),
        };
        let registry = Arc::new(MemoryRegistry::new(1));
        let membership =
            Membership::start(registry, options, Arc::new(Idle), Arc::new(WithoutLinks));
        Self(membership.expect("started"))
    }
}

impl Placements for Joined {
    fn changes(&self) -> watch::Receiver<Arc<Placement>> {
        self.0.changes()
    }

    fn leave(&self) -> BoxFuture<'static, ()> {
        unreachable!("the node is never shut down")
    }

    fn stopped(&self) -> BoxFuture<'static, Stop> {
        self.0.stopped().boxed()
    }
}

struct Idle;

impl Progress for Idle {
    fn sign(&self, _: LogId) -> Sign {
        Sign {
            done: 0,
            is_busy: false,
        }
    }
}

async fn append(node: &Node) {
    let stream = StreamId::new("s").expect("valid");
    let event = EventData::json(EventType::new("e").expect("valid"), "{}");
    let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
    node.append(append).await.expect("appended");
}

/// Goal: a node that is dropped falls silent, so that others take its logs. What happened: the task that accepts links
/// held the store and the membership, so a dropped node beat on, owned its logs and answered calls for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_node_falls_silent() {
    let world = World::new(1);
    let (seat, other) = (Seat::new().await, Seat::new().await);
    let address = Arc::clone(&seat.address);
    let joined = Arc::new(Joined::start(&address));
    let mut placement = joined.changes();
    let backend = MemoryBackend::new(&world);
    let store = Store::open(backend, Config::default(), Arc::new(SystemClock)).expect("opened");
    let node = seat.start_with(store, GIVE_UP_AFTER, joined);
    let node = node.expect("started");
    let owns = placement.wait_for(|placement| placement.is_mine(LogId(0)));
    let owns = tokio::time::timeout(PATIENCE, owns).await;
    drop(owns.expect("in time").expect("a membership"));
    let other = other.with(gives_up_after_a_second());
    let other = other.start(2, &world, Arc::new(SystemClock), GIVE_UP_AFTER);
    other.believes(1, &[(1, Arc::clone(&address))], &[Some(0)]);
    until_linked(&other).await;
    append(&other.node).await;
    assert_eq!(other.node.stats().direct, 0, "forwarded");

    let (store, stopped) = (Arc::downgrade(node.store()), node.stopped());
    drop(node);
    let is_silent = async {
        // Ends when the thread that beats has ended.
        while placement.changed().await.is_ok() {}
        stopped.await;
        while TcpListener::bind(&*address).await.is_err() || store.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let is_silent = tokio::time::timeout(PATIENCE, is_silent).await;
    is_silent.expect("the node lives on");
    append(&other.node).await;
    assert_eq!(other.node.stats().direct, 1, "appended without its owner");
}
