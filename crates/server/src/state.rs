//! The state that all requests share.

use std::fs::File;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_access::Access;
use gesta_core::EventStore;
use gesta_core::newcomers::Newcomers;
use gesta_core::shares::{Holder, Load};
use gesta_groups::Groups;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::{Config, Trusted};
use crate::shared::appends::Appends;
use crate::shared::body::Budget;
use crate::shared::fanout::EncodedEvents;
use crate::shared::gate::{Gate, Ticket};
use crate::shared::maintainer::{Maintainer, Maintenance};
use crate::shared::metrics::{InFlight, Metrics};
use crate::shared::pace::Paces;
use crate::shared::patterns::Patterns;
use crate::shared::placement::{Cluster, host_and_port};
use crate::shared::problem::Result;
use crate::shared::readiness::Readiness;
use crate::shared::request_log::RequestLog;
use crate::shared::scavenges::Scavenges;
use crate::tls::Tls;

/// Fewest requests at once of callers who have not proved who they are that are taken.
const STRANGERS_MIN: usize = 16;
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
    pub(crate) trusted: Trusted,
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) connections: Gate,
    /// Number of connections that have as many calls in flight as they may have.
    pub(crate) full_connections: Arc<AtomicUsize>,
    /// Connections beyond the maximum. Only probes are answered on them.
    pub(crate) reserve: Gate,
    /// TLS, if the server speaks it.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Connections whose TLS handshake has not ended.
    pub(crate) handshakes: Arc<Newcomers>,
    pub(crate) requests: Gate,
    /// Requests of callers of whom it is not known who they are, by address: those that wait until it is known, those
    /// that anybody may make, and those that were refused. They take nothing of what users need.
    pub(crate) strangers: Gate,
    pub(crate) subscriptions: Gate,
    /// Turns for reading pages. How many reads wait is bounded by `requests`.
    pub(crate) reads: Gate,
    /// Turns for what is handed to the store to be appended. A caller who appends very much waits here, and not where
    /// the appends of all others stand behind.
    pub(crate) appends: Appends,
    pub(crate) budget: Budget,
    /// Bytes of the heads and bodies of callers of whom it is not known who they are.
    pub(crate) budget_of_strangers: Budget,
    pub(crate) patterns: Patterns,
    pub(crate) paces: Paces,
    pub(crate) metrics: Metrics,
    pub(crate) request_log: RequestLog,
    pub(crate) encoded: EncodedEvents,
    pub(crate) readiness: Readiness,
    /// Source of copies of the store, if it can be copied.
    pub(crate) backups: Option<Arc<dyn BackupSource>>,
    /// Checks and scavenges of the store.
    pub(crate) maintainer: Maintainer,
    /// Consumer groups that this server runs.
    pub(crate) groups: Groups,
    /// Cluster, if the server is a node of one.
    pub(crate) cluster: Option<Arc<dyn Cluster>>,
    /// Scavenges that clients have begun by gRPC.
    pub(crate) scavenges: Scavenges,
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
    pub(crate) maintenance: Option<Arc<dyn Maintenance>>,
    pub(crate) cluster: Option<Arc<dyn Cluster>>,
    pub(crate) access: Option<Access>,
}

impl State {
    pub(crate) fn new(
        config: Config,
        trusted: Trusted,
        tls: Option<Arc<Tls>>,
        store: Arc<dyn EventStore>,
        registry: Registry,
        groups: Groups,
        beside: Beside,
    ) -> Arc<Self> {
        let Beside {
            backups,
            maintenance,
            cluster,
            access,
        } = beside;
        Arc::new(Self {
            store,
            full_connections: Arc::default(),
            connections: Gate::new("connections", config.connections_max),
            reserve: Gate::new("connections beyond the maximum", RESERVE_CONNECTIONS),
            tls,
            handshakes: Newcomers::new(config.handshakes_max, config.handshakes_max.div_ceil(2)),
            requests: Gate::new("requests", config.requests_in_flight_max),
            strangers: Gate::new(
                "requests of callers who have not proved who they are",
                (config.requests_in_flight_max / 8).max(STRANGERS_MIN),
            ),
            subscriptions: Gate::new("subscriptions", config.subscriptions_max),
            reads: Gate::new("reads", config.reads_in_flight_max),
            appends: Appends::new(),
            budget: Budget::new(config.bytes_in_flight_max),
            budget_of_strangers: Budget::new(config.bytes_in_flight_max / 16),
            patterns: Patterns::default(),
            paces: Paces::default(),
            metrics: Metrics::new(registry),
            request_log: RequestLog::new(config.slow_request),
            encoded: EncodedEvents::default(),
            readiness: Readiness::default(),
            backups,
            maintainer: Maintainer::new(maintenance),
            cluster,
            scavenges: Scavenges::default(),
            instance: Uuid::new_v4(),
            groups,
            access,
            stopping: CancellationToken::new(),
            config,
            trusted,
        })
    }

    /// Returns whose share a request uses as long as it is not known who calls.
    pub(crate) fn stranger(&self, from: IpAddr) -> Holder {
        match &self.access {
            Some(access) if access.is_on() => Holder::at(from),
            _ => Holder::Everybody,
        }
    }

    /// Returns whether appends can succeed. All who ask at the same time share one question to the store.
    pub(crate) async fn probe(self: &Arc<Self>) -> Result<()> {
        let state = Arc::clone(self);
        let probe = || {
            async move {
                let accounts = state.access.as_ref().map_or(Ok(()), Access::ready);
                state.readiness.probe(accounts, &*state.store).await
            }
            .boxed()
        };
        self.readiness.probed(probe).await
    }

    /// Waits for a caller's turn to read a page.
    pub(crate) async fn turn_to_read(&self, holder: &Holder) -> Ticket {
        self.reads.turn(holder).await
    }

    /// Returns what is held of all that callers use together, by the name under which metrics show it.
    fn loads(&self) -> [(&'static str, Load); 9] {
        [
            ("connections", self.connections.load()),
            ("requests", self.requests.load()),
            ("requests_of_strangers", self.strangers.load()),
            ("subscriptions", self.subscriptions.load()),
            ("reads", self.reads.load()),
            ("appends", self.appends.load()),
            ("patterns", self.patterns.load()),
            ("bytes", self.budget.load()),
            ("bytes_of_strangers", self.budget_of_strangers.load()),
        ]
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
            full_connections: self.full_connections.load(Ordering::Relaxed),
            requests: self.requests.inside(),
            subscriptions: self.subscriptions.inside(),
            bytes: self.budget.load().taken,
            shares: self.loads(),
            groups: self.groups.load(),
            groups_halted: self.groups.halted(),
            group_counts: self.groups.totals(),
            audit_lines_left_out: self.access.as_ref().map_or(0, Access::audit_lines_left_out),
            certificate: self
                .tls
                .as_ref()
                .and_then(|tls| Some((tls.certificate(), tls.seconds_left()?))),
        }
    }
}
