//! The whole application: store, shows, read model and server, started and stopped in order.

use std::sync::Arc;

use gesta::{EventStore, Options, Store};

use crate::config::Config;
use crate::http::{self, App, Server, StartError};
use crate::metrics::Metrics;
use crate::read_model::{self, ReadModel};
use crate::shows::Shows;

/// Why the application did not start, or did not stop well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store.
    #[error(transparent)]
    Store(#[from] gesta::Error),
    /// The server.
    #[error(transparent)]
    Server(#[from] StartError),
}

/// The running application.
#[derive(Debug)]
pub struct Application {
    server: Server,
    app: Arc<App>,
}

impl Application {
    /// Opens the store and serves it. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`Error`]; nothing is left running.
    ///
    /// # Cancel safety
    /// Dropping the future leaves what was started running until the process ends.
    pub async fn start(config: Config) -> Result<Self, Error> {
        // First, so that what is refused leaves no new store behind.
        let listener = http::bind(&config).await?;
        let views = read_model::beside(&config.store)?;
        let store = Options::creating().open_database(&config.store).await?;
        let shows = Shows::start(Arc::clone(&store) as _, &config)?;
        let read_model = ReadModel::start(Arc::clone(&store) as _, views);
        let app = Arc::new(App {
            metrics: Metrics::new(&store, &shows, read_model.stats()),
            store,
            shows,
            read_model,
        });
        let server = Server::start(listener, &app, config);
        Ok(Self { server, app })
    }

    /// What it runs on.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.app.store
    }

    /// Where it is served.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Answers what is running, then closes the store.
    ///
    /// # Errors
    /// As [`EventStore::shutdown`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the application half stopped; what was answered is stored.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.server.shutdown().await;
        self.app.shows.shutdown().await;
        self.app.read_model.shutdown().await;
        Ok(self.app.store.shutdown().await?)
    }
}
