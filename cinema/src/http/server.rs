//! Accepting connections, serving them, and stopping.
//!
//! Invariants: when [`Server::shutdown`] returns, no connection is served any more. A connection that brings no whole
//! request for a while is closed, by one slow timer per connection instead of one per request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::http::App;

/// Room for the head of a request, and step in which bodies are read.
const READ_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Pause after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Where and how to serve.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Allow an address that other machines can reach, although anybody there can reserve every seat.
    pub insecure: bool,
    /// Connections at once; further ones wait to be accepted.
    pub connections_max: usize,
    /// A connection without a whole request for this long is closed.
    pub idle_max: Duration,
    /// How long running requests may take to finish when the server stops.
    pub shutdown_grace: Duration,
}

impl ServerConfig {
    /// At this address; loopback only.
    #[must_use]
    pub fn at(listen: SocketAddr) -> Self {
        Self {
            listen,
            insecure: false,
            connections_max: 10_000,
            idle_max: Duration::from_secs(75),
            shutdown_grace: Duration::from_secs(10),
        }
    }

    /// Whether the address may be listened on at all; nothing need be opened to know that.
    ///
    /// # Errors
    /// [`StartError::NotLoopback`].
    pub fn check(&self) -> Result<(), StartError> {
        if self.listen.ip().is_loopback() || self.insecure {
            return Ok(());
        }
        Err(StartError::NotLoopback(self.listen))
    }
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The address can be reached from other machines.
    #[error(
        "refusing to listen on {0}: it is not a loopback address, and there is no authentication; say --insecure to allow it"
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
}

/// A running server. Dropping it does not stop the server.
#[derive(Debug, Clone)]
pub struct Server {
    address: SocketAddr,
    config: Arc<ServerConfig>,
    connections: TaskTracker,
    stopping: CancellationToken,
    aborting: CancellationToken,
}

/// Starts a server. Must be called within a tokio runtime.
///
/// # Errors
/// [`StartError`].
///
/// # Cancel safety
/// Dropping the future starts nothing.
pub async fn start(config: ServerConfig, app: Arc<App>) -> Result<Server, StartError> {
    config.check()?;
    let address = config.listen;
    let refused = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    let server = Server {
        address: listener.local_addr().map_err(refused)?,
        config: Arc::new(config),
        connections: TaskTracker::new(),
        stopping: CancellationToken::new(),
        aborting: CancellationToken::new(),
    };
    server
        .connections
        .spawn(server.clone().accept(listener, app));
    Ok(server)
}

impl Server {
    /// The address that it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Takes no new connections and requests, and lets running requests finish, for
    /// [`ServerConfig::shutdown_grace`] at most.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the server stopping.
    pub async fn shutdown(&self) {
        self.stopping.cancel();
        self.connections.close();
        let finished = self.connections.wait();
        let in_time = tokio::time::timeout(self.config.shutdown_grace, finished).await;
        if in_time.is_err() {
            let left = self.connections.len();
            tracing::warn!(
                connections = left,
                "closing connections that did not finish"
            );
            self.aborting.cancel();
            self.connections.wait().await;
        }
    }

    async fn accept(self, listener: TcpListener, app: Arc<App>) {
        let room = Arc::new(Semaphore::new(self.config.connections_max));
        loop {
            let accepted = tokio::select! {
                () = self.stopping.cancelled() => return,
                accepted = accept_one(&listener, &room) => accepted,
            };
            match accepted {
                Ok((socket, place)) => {
                    let serving = self.clone().serve(socket, Arc::clone(&app), place);
                    self.connections.spawn(serving);
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    async fn serve(self, socket: TcpStream, app: Arc<App>, _place: Option<OwnedSemaphorePermit>) {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY cannot be set");
        }
        let activity = Arc::new(Activity::default());
        let service = service_fn(|request| {
            let (app, running) = (Arc::clone(&app), activity.request());
            async move {
                let answer = app.answer(request).await;
                drop(running);
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = builder().serve_connection(TokioIo::new(socket), service);
        let mut connection = std::pin::pin!(connection);
        let mut ticks = tokio::time::interval(self.config.idle_max / 5);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = Watch::new(&activity, Instant::now());
        let mut draining = false;
        loop {
            tokio::select! {
                biased;
                served = connection.as_mut() => {
                    if let Err(error) = served {
                        tracing::debug!(%error, "connection failed");
                    }
                    return;
                }
                () = self.stopping.cancelled(), if !draining => {
                    draining = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = self.aborting.cancelled() => return,
                now = ticks.tick() => {
                    if watch.idle_for(now) >= self.config.idle_max {
                        return;
                    }
                }
            }
        }
    }
}

async fn accept_one(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, Option<OwnedSemaphorePermit>)> {
    // The semaphore is never closed.
    let place = Arc::clone(room).acquire_owned().await.ok();
    let (socket, _) = listener.accept().await?;
    Ok((socket, place))
}

/// Without `writev`: copying a small answer behind its head costs less than sending the two from two places. Without a
/// timer: see the module.
fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.writev(false).max_buf_size(READ_BUFFER_BYTES_MAX);
    builder
}

/// Requests of one connection.
#[derive(Debug, Default)]
struct Activity {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Activity {
    fn request(self: &Arc<Self>) -> Running {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Running(Arc::clone(self))
    }
}

/// A request that is not answered yet.
struct Running(Arc<Activity>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// Looks at a connection now and then.
struct Watch {
    activity: Arc<Activity>,
    seen: usize,
    idle_since: Instant,
}

impl Watch {
    fn new(activity: &Arc<Activity>, now: Instant) -> Self {
        Self {
            activity: Arc::clone(activity),
            seen: 0,
            idle_since: now,
        }
    }

    fn idle_for(&mut self, now: Instant) -> Duration {
        let ended = self.activity.ended.load(Ordering::Relaxed);
        let begun = self.activity.begun.load(Ordering::Relaxed);
        if begun != ended || begun != self.seen {
            self.seen = begun;
            self.idle_since = now;
        }
        now - self.idle_since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_idle_between_requests() {
        let (activity, start) = (Arc::new(Activity::default()), Instant::now());
        let mut watch = Watch::new(&activity, start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(watch.idle_for(after(9)).as_secs(), 9);
        let running = activity.request();
        assert_eq!(watch.idle_for(after(20)).as_secs(), 0);
        assert_eq!(watch.idle_for(after(90)).as_secs(), 0);
        drop(running);
        assert_eq!(watch.idle_for(after(95)).as_secs(), 5);
        drop(activity.request());
        assert_eq!(watch.idle_for(after(99)).as_secs(), 0);
    }
}
