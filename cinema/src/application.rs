//! The whole application: store, shows, read model and server, started and stopped in order.

use std::sync::Arc;

use gesta::{EventStore, Options, Store};

use crate::http::{App, Server, ServerConfig, StartError};
use crate::metrics::Requests;
use crate::read_model::{Location, ReadModel};
use crate::shows::{Settings, Shows};

/// How to run.
#[derive(Debug, Clone)]
pub struct Config {
    /// URL of the store.
    pub store: String,
    /// Where to serve.
    pub server: ServerConfig,
    /// How shows are run.
    pub shows: Settings,
}

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
        // First: a store that does not exist would be made for nothing.
        config.server.check()?;
        let store = gesta::open_database(&config.store, Options::creating()).await?;
        match Self::start_on(&store, config).await {
            Ok(application) => Ok(application),
            Err(error) => {
                store.shutdown().await?;
                Err(error)
            }
        }
    }

    async fn start_on(store: &Arc<Store>, config: Config) -> Result<Self, Error> {
        let location = Location::beside(&config.store)?;
        let app = Arc::new(App {
            shows: Shows::start(Arc::clone(store) as _, config.shows)?,
            read_model: ReadModel::start(Arc::clone(store) as _, location),
            store: Arc::clone(store),
            requests: Requests::default(),
        });
        match crate::http::start(config.server, Arc::clone(&app)).await {
            Ok(server) => Ok(Self { server, app }),
            Err(error) => {
                app.shows.shutdown().await;
                app.read_model.shutdown().await;
                Err(error.into())
            }
        }
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
