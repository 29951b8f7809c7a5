//! The whole application: store, shows, read model and server, started and stopped in order.

use std::sync::Arc;

use gesta::{Database, EventStore, Node, NodeOptions, Options, OwnerStore, Store};
use tokio::net::TcpListener;

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
    /// The node that the store is of, if there are others.
    node: Option<Arc<Node>>,
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
        let (store, node) = open(&config).await?;
        let shows = match &node {
            Some(node) => Shows::start(Arc::clone(node) as _, Some(Arc::clone(node) as _), &config),
            None => Shows::start(Arc::clone(&store) as Arc<dyn OwnerStore>, None, &config),
        }?;
        let read_model = ReadModel::start(Arc::clone(&store) as _, views);
        let app = Arc::new(App {
            metrics: Arc::new(Metrics::new(&store, &shows, read_model.stats())),
            store,
            shows,
            read_model,
        });
        let server = Server::start(listener, &app, config);
        Ok(Self { server, app, node })
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
        if let Some(node) = &self.node {
            // As long as the node owns logs, the others send it what they are asked of their shows.
            node.leave().await;
        }
        self.app.shows.shutdown().await;
        self.app.read_model.shutdown().await;
        match &self.node {
            // It closes its links, then the store.
            Some(node) => Ok(node.shutdown().await?),
            None => Ok(self.app.store.shutdown().await?),
        }
    }
}

/// Opens the store; joins the other nodes on its database, if there are any.
async fn open(config: &Config) -> Result<(Arc<Store>, Option<Arc<Node>>), Error> {
    let options = Options::creating();
    let (Some(address), Some(path)) = (config.node, &config.cluster_secret_file) else {
        return Ok((options.open_database(&config.store).await?, None));
    };
    if !address.ip().is_loopback() && !config.insecure {
        let rule = "must be a loopback address, for links are not encrypted; say --insecure";
        return Err(gesta::Error::invalid("--node", rule).into());
    }
    let unusable =
        |what: &str, error: std::io::Error| gesta::Error::invalid(what, error.to_string());
    let secret = std::fs::read(path).map_err(|error| unusable("--cluster-secret-file", error))?;
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| unusable("--node", error))?;
    let address = listener.local_addr();
    let address = address.map_err(|error| unusable("--node", error))?;
    let told = config.advertise.clone();
    let told = told.unwrap_or_else(|| address.to_string());
    let node = NodeOptions::new(told, secret.trim_ascii_end())?;
    let database = Database::open(&config.store, &options).await?;
    let node = database.start_node(&options, listener, node).await?;
    Ok((Arc::clone(node.store()), Some(node)))
}
