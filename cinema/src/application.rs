//! The whole application: store, shows, read model and server, which it starts and stops in order.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, pending};
use gesta::{Clock, Database, DatabaseStore, EventStore, Node, NodeOptions, Options, SystemClock};
use tokio::sync::Mutex;

use crate::config::Config;
pub use crate::error::Error;
use crate::http::{self, App, Server};
use crate::metrics::Metrics;
use crate::payments::Payments;
use crate::read_model::{self, ReadModel};
use crate::shows::Shows;

/// The running application.
#[derive(Debug)]
pub struct Application {
    server: Server,
    app: Arc<App>,
    payments: Mutex<Option<Payments>>,
}

impl Application {
    /// Opens the store and serves it. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`Error`]; then nothing is left running.
    ///
    /// # Cancel safety
    /// If the future is dropped, the parts that were started run until the process ends.
    pub async fn start(config: Config) -> Result<Self, Error> {
        // First, so that what is refused leaves no new store behind.
        let listener = http::bind(config.listen, &config).await?;
        let rows = read_model::beside(&config.store)?;
        let (store, node) = open(&config).await?;
        let shows = match &node {
            Some(node) => {
                let (own, peers) = (Arc::clone(node) as _, Arc::clone(node) as _);
                Shows::start(own, Some(peers), &config, clock())
            }
            None => Shows::start(Arc::clone(&store) as _, None, &config, clock()),
        }?;
        let events: Arc<dyn EventStore> = match &node {
            Some(node) => Arc::clone(node) as _,
            None => Arc::clone(&store) as _,
        };
        let payments = match config.pay_within {
            Some(within) => Some(Payments::start(&events, &shows, within, clock()).await?),
            None => None,
        };
        let of_store: Arc<dyn EventStore> = Arc::clone(&store) as _;
        let read_model = ReadModel::start(&of_store, rows).await;
        let read_model = read_model.map_err(Error::ReadModel)?;
        let app = Arc::new(App {
            metrics: Metrics::new(
                &store,
                node.as_ref(),
                &shows,
                read_model.progress.clone(),
                payments.as_ref().map(Payments::timers),
            ),
            shows,
            read_model,
            store,
            node,
        });
        let server = Server::start(listener, &app, &config);
        Ok(Self {
            server,
            app,
            payments: Mutex::new(payments),
        })
    }

    /// Returns the store as this process takes part in it.
    #[must_use]
    pub fn store(&self) -> &dyn EventStore {
        self.app.store()
    }

    /// Waits until this process is a node no more, although it was not stopped. Returns why; it should be stopped then.
    #[must_use]
    pub fn ended_by_itself(&self) -> BoxFuture<'static, String> {
        let node = self.app.node.as_ref();
        node.map_or_else(|| pending().boxed(), |node| node.ended_by_itself())
    }

    /// Returns the server of the application.
    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Answers the requests that are running, then closes the store.
    ///
    /// # Errors
    /// The errors of [`EventStore::shutdown`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the application is half stopped; what was answered is stored.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.server.shutdown().await;
        if let Some(node) = &self.app.node {
            // As long as the node owns logs, the others send it what they are asked of their shows.
            node.leave().await;
        }
        if let Some(payments) = self.payments.lock().await.take() {
            payments.shutdown().await;
        }
        self.app.shows.shutdown().await;
        self.app.read_model.shutdown().await;
        Ok(self.app.store().shutdown().await?)
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

/// Opens the store. Joins the other nodes on its database, if this process is to be a node.
async fn open(config: &Config) -> Result<(Arc<DatabaseStore>, Option<Arc<Node>>), Error> {
    let options = Options::creating();
    let (Some(address), Some(path)) = (config.node, &config.cluster_secret_file) else {
        return Ok((options.open_database(&config.store).await?, None));
    };
    let secret = std::fs::read(path);
    let secret =
        secret.map_err(|why| gesta::Error::invalid("--cluster-secret-file", why.to_string()))?;
    let (listener, address) = http::bind(address, config).await?;
    let told = config.advertise.clone();
    let told = told.unwrap_or_else(|| address.to_string());
    let mut how = NodeOptions::new(told, secret.trim_ascii_end())?;
    how.leave_within = config.leave_within;
    let database = Database::open(&config.store, &options).await?;
    let node = database.start_node(&options, listener, how).await?;
    Ok((Arc::clone(node.store()), Some(node)))
}
