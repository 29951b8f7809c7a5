//! The contract of `EventStore`, on PostgreSQL, with one log and with four.

#![expect(clippy::expect_used, reason = "tests stop at the first surprise")]

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{Clock, EventStore, SystemClock};
use gesta_kit::{StoreFactory, TestStore};
use gesta_postgres::{Config, PostgresBackend};
use gesta_rig::{fresh_schema, shared};
use gesta_store::Store;

/// Makes stores in schemas of their own on the server that all tests share.
struct PostgresFactory {
    logs: u16,
}

impl PostgresFactory {
    /// `None`, said aloud, if PostgreSQL is not installed.
    fn new(logs: u16) -> Option<Self> {
        shared().map(|_| Self { logs })
    }

    async fn open(&self, schema: Arc<String>, clock: Arc<dyn Clock>) -> TestStore {
        TestStore::owned(self.start(&schema, clock).await, schema)
    }

    async fn start(&self, schema: &str, clock: Arc<dyn Clock>) -> Arc<Store> {
        let backend = self.backend(schema).await;
        let store = Store::open(Arc::new(backend), gesta_store::Config::default(), clock);
        store.expect("starts")
    }

    async fn backend(&self, schema: &str) -> PostgresBackend {
        let server = shared().expect("found before");
        // What is compressed, and where, makes no difference to anybody.
        let compression = if self.logs > 1 {
            "&compression=client"
        } else {
            ""
        };
        // No busy machine exceeds these times.
        let times = "answer_timeout=60&connect_timeout=60";
        let url = format!(
            "{}?schema={schema}&readers=2&{times}{compression}",
            server.url()
        );
        let mut config = Config::parse(&url).expect("valid");
        config.logs_if_new = self.logs;
        PostgresBackend::open(config).await.expect("opens")
    }
}

#[async_trait]
impl StoreFactory for PostgresFactory {
    fn name(&self) -> String {
        format!("postgres ({} logs)", self.logs)
    }

    fn logs(&self) -> u16 {
        self.logs
    }

    async fn create(&self) -> TestStore {
        self.open(Arc::new(fresh_schema()), Arc::new(SystemClock))
            .await
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(self.open(Arc::new(fresh_schema()), clock).await)
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        if self.logs > 1 {
            return None;
        }
        let schema = Arc::new(fresh_schema());
        let store = self.start(&schema, Arc::new(SystemClock)).await;
        store.switch_virtual_streams(true).await.expect("switched");
        Some(TestStore::owned(store, schema))
    }

    async fn reopen(&self, store: &TestStore) -> Option<TestStore> {
        store.shutdown().await.expect("shuts down");
        self.second(store).await
    }

    async fn second(&self, store: &TestStore) -> Option<TestStore> {
        Some(self.open(store.home(), Arc::new(SystemClock)).await)
    }
}

mod one_log {
    use super::*;
    gesta_kit::conformance_tests!(match PostgresFactory::new(1) {
        Some(factory) => factory,
        None => return,
    });
}

mod four_logs {
    use super::*;
    gesta_kit::conformance_tests!(match PostgresFactory::new(4) {
        Some(factory) => factory,
        None => return,
    });
}

/// Goal: entries of virtual streams are written once and stay.
#[tokio::test]
async fn entries_of_virtual_streams_are_kept() {
    let Some(factory) = PostgresFactory::new(1) else {
        return;
    };
    let backend = factory.backend(&fresh_schema()).await;
    gesta_kit::check_virtual_index(Arc::new(backend)).await;
}

/// Goal: scavenging leaves gaps in virtual streams, and moves nothing.
#[tokio::test]
async fn places_of_virtual_streams_stay_when_events_are_scavenged() {
    let Some(factory) = PostgresFactory::new(1) else {
        return;
    };
    let store = factory.start(&fresh_schema(), Arc::new(SystemClock)).await;
    store.switch_virtual_streams(true).await.expect("switched");
    gesta_kit::check_scavenged_places(&store).await;
    store.shutdown().await.expect("shuts down");
}
