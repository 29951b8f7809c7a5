//! The contract, on a store over a backend in memory that two processes can share.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::backend::Backend;
use gesta_core::{Clock, SystemClock};
use gesta_store::{Config, Store};
use gesta_testkit::{StoreFactory, TestStore};
use support::{MemoryBackend, World};

/// Makes stores on worlds of this many logs.
struct WorldFactory(u16);

impl WorldFactory {
    fn open(world: &Arc<World>, clock: Arc<dyn Clock>) -> TestStore {
        let backend = MemoryBackend::new(world) as Arc<dyn Backend>;
        let store = Store::open(backend, Config::default(), clock).expect("opened");
        TestStore::owned(store, Arc::clone(world) as _)
    }
}

#[async_trait]
impl StoreFactory for WorldFactory {
    fn name(&self) -> String {
        format!("store over a backend in memory ({} logs)", self.0)
    }

    fn logs(&self) -> u16 {
        self.0
    }

    async fn create(&self) -> TestStore {
        Self::open(&World::new(self.0), Arc::new(SystemClock))
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(Self::open(&World::new(self.0), clock))
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        if self.0 > 1 {
            return None;
        }
        let world = World::new(self.0);
        let backend = MemoryBackend::new(&world) as Arc<dyn Backend>;
        let store = Store::open(backend, Config::default(), Arc::new(SystemClock)).expect("opened");
        store.switch_virtual_streams(true).await.expect("switched");
        Some(TestStore::owned(store, world as _))
    }

    async fn reopen(&self, store: &TestStore) -> Option<TestStore> {
        store.shutdown().await.expect("shut down");
        Some(Self::open(&store.home::<World>(), Arc::new(SystemClock)))
    }

    async fn second(&self, store: &TestStore) -> Option<TestStore> {
        Some(Self::open(&store.home::<World>(), Arc::new(SystemClock)))
    }
}

mod one_log {
    use super::WorldFactory;
    gesta_testkit::conformance_tests!(WorldFactory(1));
}

mod four_logs {
    use super::WorldFactory;
    gesta_testkit::conformance_tests!(WorldFactory(4));
}

/// Goal: the world keeps entries of virtual streams as databases do.
#[tokio::test]
async fn entries_of_virtual_streams_are_kept() {
    let backend = MemoryBackend::new(&World::new(1)) as Arc<dyn Backend>;
    gesta_testkit::check_virtual_index(backend).await;
}
