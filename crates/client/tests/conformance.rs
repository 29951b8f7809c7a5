//! The conformance suite on stores that are reached through HTTP: client, server, and the store that it serves.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::sync::Arc;

use async_trait::async_trait;
use gesta_client::HttpStore;
use gesta_core::{Clock, EventStore};
use gesta_kit::{MemoryFactory, RevivedFactory, StoreFactory, TestStore};
use gesta_server::{Config, Handle, Registry};

/// Puts a server and a client before the stores of another factory.
struct Http<F>(F);

/// The server that the client reaches, and its store.
struct Served {
    store: TestStore,
    server: Handle,
}

async fn served(store: TestStore) -> TestStore {
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..Config::default()
    };
    let server = gesta_server::start(config, store.share(), Registry::default())
        .await
        .expect("a free port");
    let url = format!("http://{}", server.local_addr());
    let client = HttpStore::connect(&url).expect("valid URL");
    let served: Arc<dyn EventStore> = Arc::new(client);
    TestStore::with_home(served, Arc::new(Served { store, server }))
}

#[async_trait]
impl<F: StoreFactory> StoreFactory for Http<F> {
    fn name(&self) -> String {
        format!("http to {}", self.0.name())
    }

    fn logs(&self) -> u16 {
        self.0.logs()
    }

    async fn create(&self) -> TestStore {
        served(self.0.create().await).await
    }

    async fn create_with_clock(&self, clock: Arc<dyn Clock>) -> Option<TestStore> {
        Some(served(self.0.create_with_clock(clock).await?).await)
    }

    async fn create_with_virtual_streams(&self) -> Option<TestStore> {
        Some(served(self.0.create_with_virtual_streams().await?).await)
    }

    async fn reopen(&self, store: &TestStore) -> Option<TestStore> {
        let home = store.home::<Served>();
        let reopened = self.0.reopen(&home.store).await?;
        home.server.shutdown().await;
        Some(served(reopened).await)
    }

    async fn second(&self, store: &TestStore) -> Option<TestStore> {
        let home = store.home::<Served>();
        Some(served(self.0.second(&home.store).await?).await)
    }
}

mod one_log {
    use super::*;
    gesta_kit::conformance_tests!(Http(MemoryFactory::new(1)));
}

mod four_logs {
    use super::*;
    gesta_kit::conformance_tests!(Http(MemoryFactory::new(4)));
}

/// The cases of persistent and shared stores.
mod revived {
    use super::*;
    gesta_kit::conformance_tests!(Http(RevivedFactory::new(1)));
}
