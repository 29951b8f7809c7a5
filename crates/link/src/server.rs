//! The side of the owner: it accepts links and serves the calls of other nodes.

mod connection;
mod freshness;
mod lane;
#[cfg(test)]
mod tests;
mod unproven;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use gesta_core::LogId;
use gesta_core::capacity::Capacity;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::freshness::Freshness;
use self::unproven::Unproven;
use crate::clock::Clock;
use crate::config::LinkConfig;
use crate::error::LinkStartError;
use crate::hello::Introduction;
use crate::peer::introduction;
use crate::receiving::Newest;
use crate::serve::Serve;

/// The pause after the listener has failed, for example because there were no file descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Serves the links of other nodes. A clone is another handle of the same server. When the last one is dropped, all
/// links are cut and the port is given back, as if the process had died.
#[derive(Clone, Debug)]
pub struct LinkServer {
    shared: Arc<ServerShared>,
    address: SocketAddr,
    /// The guard that ends the tasks. Only handles hold it.
    _ends: Arc<Ends>,
}

/// Ends the tasks of a server when it is dropped.
#[derive(Debug)]
struct Ends {
    _closing: DropGuard,
    _closed: DropGuard,
}

struct ServerShared {
    config: LinkConfig,
    clock: Clock,
    introduction: Introduction,
    serve: Arc<dyn Serve>,
    newest: NewestLanes,
    /// The calls and questions that were taken and are not answered.
    open: Arc<Capacity>,
    unproven: Arc<Unproven>,
    /// Says that no more connections are accepted.
    closing: CancellationToken,
    /// Says that lanes end.
    ending: CancellationToken,
    /// Says that connections end, whatever is on them.
    closed: CancellationToken,
    tasks: TaskTracker,
}

impl std::fmt::Debug for ServerShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerShared").finish_non_exhaustive()
    }
}

/// The newest lanes of one forwarder.
#[derive(Debug, Default)]
struct ForwarderLanes(Mutex<HashMap<LogId, Arc<Mutex<Newest>>>>);

impl ForwarderLanes {
    fn get(&self, log: LogId) -> Arc<Mutex<Newest>> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(lanes.entry(log).or_default())
    }
}

/// The newest lanes of all forwarders. Each connection holds those of its forwarder: as long as one is open, calls of
/// an old lane may still arrive on it.
#[derive(Debug, Default)]
struct NewestLanes(Mutex<HashMap<Uuid, Weak<ForwarderLanes>>>);

impl NewestLanes {
    fn of(&self, forwarder: Uuid) -> Arc<ForwarderLanes> {
        let mut forwarders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lanes) = forwarders.get(&forwarder).and_then(Weak::upgrade) {
            return lanes;
        }
        forwarders.retain(|_, lanes| lanes.strong_count() > 0);
        let lanes = Arc::default();
        forwarders.insert(forwarder, Arc::downgrade(&lanes));
        lanes
    }
}

/// The forwarder of a connection.
#[derive(Debug, Clone)]
struct Caller {
    process: Uuid,
    lanes: Arc<ForwarderLanes>,
    freshness: Arc<Freshness>,
}

impl LinkServer {
    /// Serves links that come to this listener, until [`shutdown`](Self::shutdown) or until the last handle is dropped.
    /// This must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`LinkStartError`] if a value of the configuration is out of range or the listener has no address.
    pub fn start(
        listener: TcpListener,
        config: LinkConfig,
        serve: Arc<dyn Serve>,
    ) -> Result<Self, LinkStartError> {
        Self::start_with(listener, config, serve, Clock::MACHINE)
    }

    fn start_with(
        listener: TcpListener,
        config: LinkConfig,
        serve: Arc<dyn Serve>,
        clock: Clock,
    ) -> Result<Self, LinkStartError> {
        config.check()?;
        let address = listener
            .local_addr()
            .map_err(|source| LinkStartError::Listen {
                address: config.address.to_string(),
                source,
            })?;
        let shared = Arc::new(ServerShared {
            introduction: introduction(&config, Uuid::new_v4(), &config.address),
            config,
            clock,
            serve,
            newest: NewestLanes::default(),
            open: Capacity::new([usize::MAX]),
            unproven: Arc::default(),
            closing: CancellationToken::new(),
            ending: CancellationToken::new(),
            closed: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        shared.tasks.spawn(accept(listener, Arc::clone(&shared)));
        let ends = Ends {
            _closing: shared.closing.clone().drop_guard(),
            _closed: shared.closed.clone().drop_guard(),
        };
        Ok(Self {
            shared,
            address,
            _ends: Arc::new(ends),
        })
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more links, waits up to `within` until the calls that were taken are answered, and closes all links.
    ///
    /// Calls that come meanwhile are still handed over. The [`Serve`] that takes them should answer them as *not here*
    /// by now.
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, no more links are taken, but open links may stay open. Another
    /// call closes them.
    pub async fn shutdown(&self, within: Duration) {
        let shared = &self.shared;
        shared.closing.cancel();
        // Calls that take longer are cut off; their forwarders send them again.
        let _ = tokio::time::timeout(within, shared.open.emptied()).await;
        shared.ending.cancel();
        shared.tasks.close();
        let flush_within = shared.config.times.flush_within;
        if tokio::time::timeout(flush_within, shared.tasks.wait())
            .await
            .is_err()
        {
            shared.closed.cancel();
            shared.tasks.wait().await;
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<ServerShared>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shared.closing.cancelled() => return,
        };
        let (socket, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a link");
                let pause = tokio::time::sleep(ACCEPT_AGAIN_AFTER);
                if shared.closing.run_until_cancelled(pause).await.is_none() {
                    return;
                }
                continue;
            }
        };
        let stranger = shared.unproven.admit(from);
        let connection = connection::run(socket, from, stranger, Arc::clone(&shared));
        let closed = shared.closed.clone();
        shared
            .tasks
            .spawn(async move { closed.run_until_cancelled(connection).await });
    }
}
