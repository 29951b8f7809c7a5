//! The state that all requests share.

use std::fs::File;
use std::sync::Arc;

use futures::future::BoxFuture;
use gesta_access::Access;
use gesta_core::EventStore;
use gesta_core::newcomers::Newcomers;
use gesta_groups::Groups;
use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::body::Budget;
use crate::config::Config;
use crate::fanout::EncodedEvents;
use crate::gate::Gate;
use crate::metrics::{InFlight, Metrics};
use crate::placement::{Cluster, host_and_port};
use crate::problem::{Problem, Result};
use crate::readiness::Readiness;
use crate::tls::Tls;

/// Most connections beyond the maximum at once.
const RESERVE_CONNECTIONS: usize = 16;

/// Makes copies of the store that is served.
pub trait BackupSource: Send + Sync {
    /// Makes a consistent copy of the store in a file, which is deleted once it is closed.
    ///
    /// # Errors
    /// `Unsupported` if the database makes its own backups; `Overloaded` while another copy is being made;
    /// `Unavailable` if the copy cannot be made.
    ///
    /// # Cancel safety
    /// Dropping the future ends the copy soon.
    fn copy(&self) -> BoxFuture<'_, gesta_core::Result<File>>;
}

/// The state that all requests share.
///
/// It has more fields than most structs: each is a bound, a part or a service with a type of its own, and a request
/// gets all of them together.
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) connections: Gate,
    /// Connections beyond the maximum. Only probes are answered on them.
    pub(crate) reserve: Gate,
    /// TLS, if the server speaks it.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Connections whose TLS handshake has not ended.
    pub(crate) handshakes: Arc<Newcomers>,
    pub(crate) requests: Gate,
    pub(crate) subscriptions: Gate,
    /// Turns for reading pages. How many reads wait is bounded by `requests`.
    pub(crate) reads: Semaphore,
    pub(crate) budget: Budget,
    pub(crate) metrics: Metrics,
    pub(crate) encoded: EncodedEvents,
    pub(crate) readiness: Readiness,
    /// Source of copies of the store, if it can be copied.
    pub(crate) backups: Option<Arc<dyn BackupSource>>,
    /// Consumer groups that this server runs.
    pub(crate) groups: Groups,
    /// Cluster, if the server is a node of one.
    pub(crate) cluster: Option<Arc<dyn Cluster>>,
    /// Random id that tells this process from others, for clients that ask which nodes there are.
    pub(crate) instance: Uuid,
    /// Accounts of the callers and what they may do; `None` if anybody may do everything.
    pub(crate) access: Option<Access>,
    /// Cancelled when the server stops: then there are no new requests and no endless answers.
    pub(crate) stopping: CancellationToken,
}

/// What a server may have beside a store.
#[derive(Default)]
pub(crate) struct Beside {
    pub(crate) backups: Option<Arc<dyn BackupSource>>,
    pub(crate) cluster: Option<Arc<dyn Cluster>>,
    pub(crate) access: Option<Access>,
}

impl State {
    pub(crate) fn new(
        config: Config,
        tls: Option<Arc<Tls>>,
        store: Arc<dyn EventStore>,
        registry: Registry,
        groups: Groups,
        beside: Beside,
    ) -> Arc<Self> {
        let Beside {
            backups,
            cluster,
            access,
        } = beside;
        Arc::new(Self {
            store,
            connections: Gate::new("connections", config.connections_max),
            reserve: Gate::new("connections beyond the maximum", RESERVE_CONNECTIONS),
            tls,
            handshakes: Newcomers::new(config.handshakes_max, config.handshakes_max.div_ceil(2)),
            requests: Gate::new("requests", config.requests_in_flight_max),
            subscriptions: Gate::new("subscriptions", config.subscriptions_max),
            reads: Semaphore::new(config.reads_in_flight_max),
            budget: Budget::new(config.bytes_in_flight_max),
            metrics: Metrics::new(registry),
            encoded: EncodedEvents::default(),
            readiness: Readiness::default(),
            backups,
            cluster,
            instance: Uuid::new_v4(),
            groups,
            access,
            stopping: CancellationToken::new(),
            config,
        })
    }

    /// Waits for a turn to read a page.
    ///
    /// # Errors
    /// Unavailable if the server stops.
    pub(crate) async fn turn_to_read(&self) -> Result<SemaphorePermit<'_>> {
        let turn = self.reads.acquire().await;
        turn.map_err(|_| Problem::stopping())
    }

    /// Returns host and port at which clients reach a node of the cluster, if it has told them.
    pub(crate) fn client_address(&self, node: u32) -> Option<(String, u16)> {
        let placement = self.cluster.as_deref()?.placement();
        let found = placement.nodes.iter().find(|other| other.node == node)?;
        host_and_port(found.api.as_deref()?)
    }

    pub(crate) fn in_flight(&self) -> InFlight {
        InFlight {
            connections: self.connections.inside(),
            requests: self.requests.inside(),
            subscriptions: self.subscriptions.inside(),
            bytes: self.budget.used(),
            groups: self.groups.load(),
            groups_halted: self.groups.halted(),
            group_counts: self.groups.totals(),
        }
    }
}
