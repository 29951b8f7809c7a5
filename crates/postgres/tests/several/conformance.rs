//! The contract of `EventStore`, on a store whose logs lie in two and in three databases of PostgreSQL.
//!
//! All of them are on one server: what the contract says does not depend on how many servers there are.

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{Clock, SystemClock};
use gesta_kit::{StoreFactory, TestStore};
use gesta_rig::{fresh_schema, shared};

use crate::support;

/// Makes stores in schemas of their own, as many for each store as it has databases.
struct SeveralFactory {
    databases: usize,
    logs: u16,
}

impl SeveralFactory {
    /// `None`, said aloud, if PostgreSQL is not installed.
    fn new(databases: usize, logs: u16) -> Option<Self> {
        shared().map(|_| Self { databases, logs })
    }

    async fn made(&self, clock: Arc<dyn Clock>) -> TestStore {
        let server = shared().expect("found before");
        let url = || format!("{}?schema={}&readers=1", server.url(), fresh_schema());
        let urls: Vec<String> = (0..self.databases).map(|_| url()).collect();
        support::create(&urls, self.logs).await;
        open(Arc::new(urls), clock).await
    }
}

async fn open(urls: Arc<Vec<String>>, clock: Arc<dyn Clock>) -> TestStore {
    TestStore::owned(support::store(&urls, clock).await, urls)
}

#[async_trait]
impl StoreFactory for SeveralFactory {
    fn name(&self) -> String {
        let (databases, logs) = (self.databases, self.logs);
        format!("postgres ({logs} logs in {databases} databases)")
    }

    fn logs(&self) -> u16 {
        self.logs
    }

    async fn create(&self) -> TestStore {
        self.made(Arc::new(SystemClock)).await
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(self.made(clock).await)
    }

    async fn reopen(&self, store: &TestStore) -> Option<TestStore> {
        store.shutdown().await.expect("shuts down");
        self.second(store).await
    }

    async fn second(&self, store: &TestStore) -> Option<TestStore> {
        Some(open(store.home(), Arc::new(SystemClock)).await)
    }
}

mod two_databases {
    use super::*;
    gesta_kit::conformance_tests!(match SeveralFactory::new(2, 4) {
        Some(factory) => factory,
        None => return,
    });
}

mod three_databases {
    use super::*;
    gesta_kit::conformance_tests!(match SeveralFactory::new(3, 5) {
        Some(factory) => factory,
        None => return,
    });
}
