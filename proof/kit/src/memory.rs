//! The factories of the reference store.

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{Clock, EventStore, EventStoreExt, SystemClock};
use gesta_memory::{Config, MemoryStore};

use crate::factory::{StoreFactory, TestStore};

/// Makes [`MemoryStore`]s.
#[derive(Debug, Clone, Copy)]
pub struct MemoryFactory {
    logs: u16,
}

impl MemoryFactory {
    /// Makes a factory of stores with this many logs.
    #[must_use]
    pub fn new(logs: u16) -> Self {
        Self { logs }
    }
}

/// Makes a store in memory with this many logs.
pub(crate) fn memory_store(logs: u16, clock: Arc<dyn Clock>) -> MemoryStore {
    MemoryStore::with_config(Config {
        logs,
        clock,
        ..Config::default()
    })
}

#[async_trait]
impl StoreFactory for MemoryFactory {
    fn name(&self) -> String {
        format!("memory ({} logs)", self.logs)
    }

    fn logs(&self) -> u16 {
        self.logs
    }

    async fn create(&self) -> TestStore {
        TestStore::new(Arc::new(memory_store(self.logs, Arc::new(SystemClock))))
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(TestStore::new(Arc::new(memory_store(self.logs, clock))))
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        always_on(self).await
    }
}

/// Makes a store whose virtual streams are on. A store in memory with one log always has them.
async fn always_on(factory: &dyn StoreFactory) -> Option<TestStore> {
    match factory.logs() {
        1 => Some(factory.create().await),
        _ => None,
    }
}

/// Makes [`MemoryStore`]s that act as if they were persistent and shared, so that the cases for such stores can be
/// tested without a database. Opening again makes a new store of the events of the old one, and a second store is
/// another handle of the same one.
#[derive(Debug, Clone, Copy)]
pub struct RevivedFactory {
    logs: u16,
}

impl RevivedFactory {
    /// Makes a factory of stores with this many logs.
    #[must_use]
    pub fn new(logs: u16) -> Self {
        Self { logs }
    }
}

/// Makes a new store that holds all but the last `lost` events of each log of an old one, which is shut down.
pub(crate) async fn revive(store: &dyn EventStore, logs: u16, lost: usize) -> MemoryStore {
    let info = store.info().await.expect("info");
    let mut events = store.read_everything().await.expect("readable");
    store.shutdown().await.expect("shut down");
    let lost = u64::try_from(lost).expect("small");
    events.retain(|event| event.position.0 + lost <= info.heads[usize::from(event.log.0)].0);
    let config = Config {
        logs,
        incarnation: info.incarnation,
        ..Config::default()
    };
    MemoryStore::restored(config, events).expect("whole")
}

#[async_trait]
impl StoreFactory for RevivedFactory {
    fn name(&self) -> String {
        format!("revived memory ({} logs)", self.logs)
    }

    fn logs(&self) -> u16 {
        self.logs
    }

    async fn create(&self) -> TestStore {
        TestStore::new(Arc::new(memory_store(self.logs, Arc::new(SystemClock))))
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        always_on(self).await
    }

    async fn reopen(&self, store: &TestStore) -> Option<TestStore> {
        let revived = revive(store.as_ref(), self.logs, 0).await;
        Some(TestStore::new(Arc::new(revived)))
    }

    async fn second(&self, store: &TestStore) -> Option<TestStore> {
        Some(TestStore::new(store.share()))
    }
}
