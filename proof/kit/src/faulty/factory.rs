//! A factory of stores without faults, since the stores of fault tests must keep the contract themselves.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{Clock, SystemClock};
use gesta_store::{Config, Store};

use super::store::FaultyStore;
use super::world::World;
use crate::factory::{StoreFactory, TestStore};

/// Makes a world without faults for each store.
#[derive(Debug, Clone, Copy)]
pub struct WorldFactory {
    logs: u16,
}

impl WorldFactory {
    /// Makes a factory of worlds with this many logs.
    #[must_use]
    pub fn new(logs: u16) -> Self {
        Self { logs }
    }

    fn open(world: &Arc<World>) -> TestStore {
        TestStore::owned(Self::store(world), Arc::clone(world) as _)
    }

    fn store(world: &Arc<World>) -> Arc<Store> {
        let mut config = Config::default();
        // A reader of a virtual stream must not give up because the machine stands still.
        config.virtual_streams.wait_max = Duration::from_secs(600);
        FaultyStore::on(world, config).share()
    }
}

#[async_trait]
impl StoreFactory for WorldFactory {
    fn name(&self) -> String {
        format!("store over a backend in memory ({} logs)", self.logs)
    }

    fn logs(&self) -> u16 {
        self.logs
    }

    async fn create(&self) -> TestStore {
        Self::open(&World::with_clock(self.logs, Arc::new(SystemClock)))
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(Self::open(&World::with_clock(self.logs, clock)))
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        if self.logs > 1 {
            return None;
        }
        let world = World::with_clock(self.logs, Arc::new(SystemClock));
        let store = Self::store(&world);
        store.switch_virtual_streams(true).await.expect("switched");
        Some(TestStore::owned(store, world as _))
    }

    async fn reopen(&self, store: &TestStore) -> Option<TestStore> {
        store.shutdown().await.expect("shut down");
        Some(Self::open(&store.home::<World>()))
    }

    async fn second(&self, store: &TestStore) -> Option<TestStore> {
        Some(Self::open(&store.home::<World>()))
    }
}
