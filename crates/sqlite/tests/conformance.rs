//! The contract of `EventStore`, on SQLite, in a file and in memory.

#![expect(clippy::expect_used, reason = "tests stop at the first surprise")]

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{Clock, EventStore, SystemClock};
use gesta_kit::{StoreFactory, TestStore};
use gesta_sqlite::{SqliteBackend, SqliteConfig};
use gesta_store::Store;
use tempfile::TempDir;

fn start(config: SqliteConfig, clock: Arc<dyn Clock>) -> Arc<Store> {
    let backend = SqliteBackend::open(config).expect("opens");
    Store::open(Arc::new(backend), gesta_store::Config::default(), clock).expect("starts")
}

async fn start_switched(config: SqliteConfig) -> Arc<Store> {
    let store = start(config, Arc::new(SystemClock));
    store.switch_virtual_streams(true).await.expect("switched");
    store
}

/// Each store in a directory of its own. A second process is refused by design, so `second` stays `None`.
struct FileFactory;

impl FileFactory {
    fn open(home: Arc<TempDir>, clock: Arc<dyn Clock>) -> TestStore {
        let config = SqliteConfig::file(home.path().join("gesta.db"));
        TestStore::owned(start(config, clock), home)
    }

    fn new_home() -> Arc<TempDir> {
        Arc::new(tempfile::tempdir().expect("a directory"))
    }
}

#[async_trait]
impl StoreFactory for FileFactory {
    fn name(&self) -> String {
        "sqlite".into()
    }

    async fn create(&self) -> TestStore {
        Self::open(Self::new_home(), Arc::new(SystemClock))
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(Self::open(Self::new_home(), clock))
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        let home = Self::new_home();
        let config = SqliteConfig::file(home.path().join("gesta.db"));
        Some(TestStore::owned(start_switched(config).await, home))
    }

    async fn reopen(&self, store: &TestStore) -> Option<TestStore> {
        store.shutdown().await.expect("shuts down");
        Some(Self::open(store.home(), Arc::new(SystemClock)))
    }
}

struct MemoryFactory;

#[async_trait]
impl StoreFactory for MemoryFactory {
    fn name(&self) -> String {
        "sqlite in memory".into()
    }

    async fn create(&self) -> TestStore {
        TestStore::owned(
            start(SqliteConfig::memory(), Arc::new(SystemClock)),
            Arc::new(()),
        )
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        let store = start_switched(SqliteConfig::memory()).await;
        Some(TestStore::owned(store, Arc::new(())))
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(TestStore::owned(
            start(SqliteConfig::memory(), clock),
            Arc::new(()),
        ))
    }
}

mod file {
    use super::*;
    gesta_kit::conformance_tests!(FileFactory);
}

mod memory {
    use super::*;
    gesta_kit::conformance_tests!(MemoryFactory);
}

/// Goal: entries of virtual streams are written once and stay, in a file and in memory.
#[tokio::test]
async fn entries_of_virtual_streams_are_kept() {
    let home = FileFactory::new_home();
    for config in [
        SqliteConfig::memory(),
        SqliteConfig::file(home.path().join("gesta.db")),
    ] {
        let backend = SqliteBackend::open(config).expect("opens");
        gesta_kit::check_virtual_index(Arc::new(backend)).await;
    }
}

/// Goal: scavenging leaves gaps in virtual streams, and moves nothing.
#[tokio::test]
async fn places_of_virtual_streams_stay_when_events_are_scavenged() {
    let home = FileFactory::new_home();
    let store = start_switched(SqliteConfig::file(home.path().join("gesta.db"))).await;
    gesta_kit::check_scavenged_places(&store).await;
    store.shutdown().await.expect("shuts down");
}
