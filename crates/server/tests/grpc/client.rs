//! Starts a server over a store in memory, and connects to it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::EventStore;
use gesta_memory::MemoryStore;
use gesta_server::{Config, Handle, Registry};

use crate::connection::Connection;

/// A server, and a connection to it.
pub(crate) struct Client {
    pub(crate) server: Handle,
    connection: Connection,
}

impl Deref for Client {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Client {
    /// Starts a new server over an empty store, and connects to it.
    pub(crate) async fn start() -> Self {
        let config = Config {
            // What is being answered when the server stops is answered, also if this machine stands still for a while.
            shutdown_grace: Duration::from_secs(30),
            ..Config::default()
        };
        Self::with(config, Arc::new(MemoryStore::new())).await
    }

    pub(crate) async fn with(config: Config, store: Arc<dyn EventStore>) -> Self {
        let config = Config {
            listen: ([127, 0, 0, 1], 0).into(),
            ..config
        };
        let server = gesta_server::start(config, store, Registry::default())
            .await
            .expect("a free port");
        Self::to(server).await
    }

    /// Makes one more connection to a server.
    pub(crate) async fn to(server: Handle) -> Self {
        let connection = Connection::to(server.local_addr()).await;
        Self { server, connection }
    }
}
