//! The state that all requests share.

mod bounds;

use std::fs::File;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::future::BoxFuture;
use gesta_access::Access;
use gesta_core::EventStore;
use gesta_core::shares::Holder;
use gesta_groups::Groups;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::bounds::Bounds;
use crate::config::{Config, Trusted};
use crate::shared::fanout::EncodedEvents;
use crate::shared::gate::Ticket;
use crate::shared::maintainer::{Maintainer, Maintenance};
use crate::shared::metrics::{InFlight, Metrics};
use crate::shared::placement::{Cluster, host_and_port};
use crate::shared::problem::Result;
use crate::shared::readiness::Readiness;
use crate::shared::request_log::RequestLog;
use crate::shared::scavenges::Scavenges;
use crate::tls::Tls;

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
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) trusted: Trusted,
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) bounds: Bounds,
    /// TLS, if the server speaks it.
    pub(crate) tls: Option<Arc<Tls>>,
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
            bounds: Bounds::new(&config),
            tls,
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
        self.bounds.reads.turn(holder).await
    }

    /// Returns host and port at which clients reach a node of the cluster, if it has told them.
    pub(crate) fn client_address(&self, node: u32) -> Option<(String, u16)> {
        let placement = self.cluster.as_deref()?.placement();
        let found = placement.nodes.iter().find(|other| other.node == node)?;
        host_and_port(found.api.as_deref()?)
    }

    pub(crate) fn in_flight(&self) -> InFlight {
        let bounds = &self.bounds;
        InFlight {
            connections: bounds.connections.inside(),
            full_connections: bounds.full_connections.load(Ordering::Relaxed),
            requests: bounds.requests.inside(),
            subscriptions: bounds.subscriptions.inside(),
            bytes: bounds.budget.load().taken,
            shares: bounds.loads(),
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
