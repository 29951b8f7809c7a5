//! Accepts connections, serves them, and stops.
//!
//! Why `axum::serve` is not used: it has no limit of time for a connection that brings no request.
//! Invariant: when [`Server::shutdown`] returns, no connection is served any more.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::error::Error;
use crate::http::{App, router};

/// Most connections at once. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 10_000;
/// How long running requests may take to finish when the application stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// Pause after a failed accept. Mostly file descriptors are missing then.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A listener and its address.
pub(crate) type Bound = (TcpListener, SocketAddr);

/// Takes an address, for users or for other nodes. Clients that connect wait until they are accepted.
pub(crate) async fn bind(address: SocketAddr, config: &Config) -> Result<Bound, Error> {
    if !address.ip().is_loopback() && !config.insecure {
        return Err(Error::NotLoopback(address));
    }
    let refused = |why| Error::Listen(address, why);
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    Ok((listener, address))
}

/// A running server. Dropping it does not stop the server.
#[derive(Debug, Clone)]
pub struct Server {
    address: SocketAddr,
    idle_max: Duration,
    connections: TaskTracker,
    stopping: CancellationToken,
}

impl Server {
    /// Starts to answer requests. Must be called within a tokio runtime.
    pub(crate) fn start((listener, address): Bound, app: &Arc<App>, config: &Config) -> Self {
        let server = Self {
            address,
            idle_max: config.connection_idle_max,
            connections: TaskTracker::new(),
            stopping: CancellationToken::new(),
        };
        let accepting = server.clone().accept(listener, router(app));
        server.connections.spawn(accepting);
        server
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Takes no new connections and requests, and lets running requests finish, for ten seconds at most.
    ///
    /// # Cancel safety
    /// If the future is dropped, the server goes on to stop.
    pub async fn shutdown(&self) {
        self.stopping.cancel();
        self.connections.close();
        self.connections.wait().await;
    }

    async fn accept(self, listener: TcpListener, router: Router) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.idle_max);
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // The semaphore is never closed.
            let place = Arc::clone(&room).acquire_owned().await.ok();
            let accepted = tokio::select! {
                () = self.stopping.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, _)) => {
                    let serving = self.clone().serve(socket, http.clone(), router.clone());
                    self.connections.spawn(async move {
                        serving.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    async fn serve(self, socket: TcpStream, http: http1::Builder, router: Router) {
        // A socket without it is only slower.
        let _ = socket.set_nodelay(true);
        let service = TowerToHyperService::new(router);
        let mut connection = pin!(http.serve_connection(TokioIo::new(socket), service));
        let served = tokio::select! {
            served = connection.as_mut() => Ok(served),
            () = self.stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::time::timeout(SHUTDOWN_GRACE, connection).await
            }
        };
        match served {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "connection failed"),
            Err(_) => tracing::warn!("closing a connection that did not finish"),
        }
    }
}
