//! The contract, on a node that owns nothing: every change goes to another node over a link.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::backend::Backend;
use gesta_core::{Clock, SystemClock};
use gesta_kit::{StoreFactory, TestStore};
use gesta_store::{Config, Store};
use support::database::{MemoryBackend, World};
use support::{GIVE_UP_AFTER, Seat, TestNode};

/// Makes clusters of two nodes on worlds of this many logs; the store under test is the node that owns nothing.
struct ClusterFactory(u16);

/// The database, and the node that owns all logs.
struct Home {
    world: Arc<World>,
    owner: TestNode,
}

impl ClusterFactory {
    async fn cluster(&self, clock: Arc<dyn Clock>) -> TestStore {
        let world = World::new(self.0);
        let owner = Seat::new().await;
        let owner = owner.start(1, &world, Arc::clone(&clock), GIVE_UP_AFTER);
        let members = [(1, Arc::clone(&owner.address))];
        owner.believes(1, &members, &self.owners());
        let home = Arc::new(Home { world, owner });
        self.edge(&home, clock).await
    }

    fn owners(&self) -> Vec<Option<usize>> {
        vec![Some(0); usize::from(self.0)]
    }

    /// A node that owns nothing.
    async fn edge(&self, home: &Arc<Home>, clock: Arc<dyn Clock>) -> TestStore {
        let edge = Seat::new().await;
        let edge = edge.start(2, &home.world, clock, GIVE_UP_AFTER);
        let members = [
            (1, Arc::clone(&home.owner.address)),
            (2, Arc::clone(&edge.address)),
        ];
        edge.believes(1, &members, &self.owners());
        TestStore::owned(edge.node, Arc::clone(home) as _)
    }
}

#[async_trait]
impl StoreFactory for ClusterFactory {
    fn name(&self) -> String {
        format!("a node that forwards ({} logs)", self.0)
    }

    fn logs(&self) -> u16 {
        self.0
    }

    async fn create(&self) -> TestStore {
        self.cluster(Arc::new(SystemClock)).await
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(self.cluster(clock).await)
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        if self.0 > 1 {
            return None;
        }
        let store = self.create().await;
        let backend = MemoryBackend::new(&store.home::<Home>().world);
        let index = backend.virtual_index().expect("kept");
        index.switch(true).await.expect("switched");
        Some(store)
    }

    async fn reopen(&self, store: &TestStore) -> Option<TestStore> {
        store.shutdown().await.expect("shut down");
        Some(
            self.edge(&store.home::<Home>(), Arc::new(SystemClock))
                .await,
        )
    }

    /// A process that knows nothing of the cluster.
    async fn second(&self, store: &TestStore) -> Option<TestStore> {
        let home = store.home::<Home>();
        let backend = MemoryBackend::new(&home.world) as Arc<dyn Backend>;
        let second = Store::open(backend, Config::default(), Arc::new(SystemClock));
        Some(TestStore::owned(second.expect("opened"), home as _))
    }
}

mod one_log {
    use super::ClusterFactory;
    gesta_kit::conformance_tests!(ClusterFactory(1));
}

mod four_logs {
    use super::ClusterFactory;
    gesta_kit::conformance_tests!(ClusterFactory(4));
}
