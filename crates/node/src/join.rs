//! A node that takes part in the cluster of its store: its memberships, and what they need of the node.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all, try_join_all};
use gesta_cluster::{
    HandOvers, Membership, Options, Placement, Preparation, Progress, Readiness, Sign, Status, Stop,
};
use gesta_core::registry::{ClusterVersion, NodeId, NodeInfo, Registry};
use gesta_core::{Error, ErrorKind, LogId, Result};
use gesta_link::{Address, Bounds, LinkConfig, Protocols, Reach, Secret, StoreIdentity, Times};
use gesta_store::Store;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::memberships::Memberships;
use crate::node::{Config, Node};
use crate::placements::Placements;
use crate::questions::{LOOK_NOW, PREPARE};
use crate::{address, standing, strangers};

/// The time within which another node is told that logs have moved. A node that is not told sees it at its next beat.
const TELL_WITHIN: Duration = Duration::from_millis(500);
/// The time within which another node prepares for a log. After that time the log is handed over to it in any case.
const PREPARE_WITHIN: Duration = Duration::from_millis(300);
/// How often the membership is told which nodes cannot be called.
const REACH_EVERY: Duration = Duration::from_millis(250);
/// The greatest weight of a node.
const WEIGHT_MAX: u16 = 1_000;
/// The time within which the first look must come.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(10);

/// What a node says about its program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// The version of the program. The version is shown to people, and tells whether nodes differ.
    pub name: String,
    /// The versions of the protocol between nodes that the program speaks.
    pub protocols: Protocols,
}

impl Build {
    /// Returns the description of this program.
    #[must_use]
    pub fn this() -> Self {
        Self {
            name: env!("CARGO_PKG_VERSION").to_owned(),
            protocols: Protocols::THIS,
        }
    }
}

/// How a node takes part in a cluster.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The host and port at which the other nodes reach this one, as they know it. No other process may have the same
    /// address. The address has at most 255 bytes.
    pub address: String,
    /// The secret that all nodes share.
    pub secret: Secret,
    /// The node's share of the logs, relative to the weights of the other nodes: 1 to 1,000.
    pub weight: u16,
    /// How long a change may wait for the owner of its log before it is given up.
    pub give_up_after: Duration,
    /// How long the node hands its logs over when it shuts down.
    pub leave_within: Duration,
    /// The times of leases. These times must be equal in all nodes.
    pub leases: gesta_cluster::Config,
    /// What the node says about its program. Only tests of builds that differ set another one.
    pub build: Build,
}

impl NodeOptions {
    /// Makes the options of most nodes.
    ///
    /// # Errors
    /// `InvalidArgument` if the secret is shorter than 16 bytes.
    pub fn new(address: impl Into<String>, secret: &[u8]) -> Result<Self> {
        let secret = Secret::new(secret).map_err(|_| {
            let rule = format!("must have at least 16 bytes, found {}", secret.len());
            Error::invalid("the secret of the cluster", rule)
        })?;
        Ok(Self {
            address: address.into(),
            secret,
            weight: 100,
            give_up_after: Duration::from_secs(30),
            leave_within: Duration::from_secs(10),
            leases: gesta_cluster::Config::default(),
            build: Build::this(),
        })
    }

    /// Refuses options that are out of range, as [`Node::join`] does.
    ///
    /// # Errors
    /// `InvalidArgument` if the weight or the address breaks a rule.
    pub fn check(&self) -> Result<()> {
        if !(1..=WEIGHT_MAX).contains(&self.weight) {
            let rule = format!("must be 1 to {WEIGHT_MAX}, found {}", self.weight);
            return Err(Error::invalid("the weight of the node", rule));
        }
        address::check(&self.address)
    }
}

impl Node {
    /// Joins the cluster of the store's database, or of each of its databases. `listener` takes the links of the other
    /// nodes. Returns when the node knows who owns which log.
    ///
    /// # Errors
    /// `Unsupported` if the database is used by one process alone; `Unavailable` if a database does not answer;
    /// `InvalidArgument` if an option is out of range, a node with this address is alive, or the nodes of the cluster
    /// have another secret; `Schema` if this build cannot take part in a cluster of the version that this one has.
    pub async fn join(
        store: Arc<Store>,
        listener: TcpListener,
        options: NodeOptions,
    ) -> Result<Arc<Self>> {
        options.check()?;
        let backend = store.backend();
        let registries = backend.registries();
        let first = registries.first().ok_or_else(|| {
            let text = "this database is used by one process; several nodes need PostgreSQL";
            Error::new(ErrorKind::Unsupported(text.into()))
        })?;
        let logs = backend.info().logs;
        let id = first.store_id().await?;
        let (here, leases) = (&options.address, &options.leases);
        let link = LinkConfig {
            store: StoreIdentity { id, logs },
            secret: options.secret.clone(),
            address: Address::new(here.as_str()),
            build: options.build.name.clone(),
            protocols: options.build.protocols,
            times: Times::default(),
            bounds: Bounds::default(),
        };
        for registry in &registries {
            check_version(&options.build, registry.look().await?.version)?;
            address::ensure_free(&**registry, &listener, here, leases).await?;
        }
        strangers::ensure_none(&registries, &link, leases).await?;
        let joining = Joining::start(&store, registries, &options)?;
        joining.first_look().await?;
        let config = Config {
            link,
            give_up_after: options.give_up_after,
        };
        let parts = joining.memberships.parts().to_vec();
        let (node_of, telling) = (Arc::clone(&joining.node), joining.telling.clone());
        let node = Node::start(store, listener, config, Arc::new(joining))?;
        // Nothing else sets it.
        let _ = node_of.set(Arc::downgrade(&node));
        telling.spawn(tell_others(&node));
        let here = Address::new(options.address);
        tokio::spawn(strangers::watch(Arc::downgrade(&node), here, parts.clone()));
        for membership in parts {
            tokio::spawn(report_reach(Arc::downgrade(&node), membership));
        }
        Ok(node)
    }
}

/// The memberships, and the node to which they belong, once there is one.
struct Joining {
    memberships: Memberships,
    node: Arc<OnceLock<Weak<Node>>>,
    /// The tasks that tell others of logs that this node has moved.
    telling: TaskTracker,
    leave_within: Duration,
    leases: gesta_cluster::Config,
    started: Instant,
}

impl Joining {
    fn start(
        store: &Arc<Store>,
        registries: Vec<Arc<dyn Registry>>,
        options: &NodeOptions,
    ) -> Result<Self> {
        let info = NodeInfo {
            address: options.address.as_str().into(),
            weight: options.weight,
            build: options.build.name.as_str().into(),
            protocol_min: options.build.protocols.min,
            protocol_max: options.build.protocols.max,
        };
        let config = options.leases;
        let node = Arc::new(OnceLock::new());
        let progress = Arc::new(PipelineProgress(Arc::clone(store)));
        let telling = TaskTracker::new();
        let hand_overs = Arc::new(LinkHandOvers {
            store: Arc::clone(store),
            node: Arc::clone(&node),
            telling: telling.clone(),
        });
        let start = |registry| {
            let options = Options {
                info: info.clone(),
                config,
            };
            let (progress, hand_overs) = (Arc::clone(&progress), Arc::clone(&hand_overs));
            Membership::start(registry, options, progress as _, hand_overs as _)
        };
        let parts: Result<Vec<Membership>> = registries.into_iter().map(start).collect();
        Ok(Self {
            memberships: Memberships::new(parts?),
            node,
            telling,
            leave_within: options.leave_within,
            leases: config,
            started: Instant::now(),
        })
    }

    /// Waits until this node is registered in every database.
    async fn first_look(&self) -> Result<()> {
        let looks = self.memberships.parts().iter().map(first_look);
        try_join_all(looks).await.map(drop)
    }
}

/// Refuses to join a cluster whose nodes may send and write what this build cannot read, or that expects of its nodes
/// what this build can no longer do.
fn check_version(build: &Build, version: ClusterVersion) -> Result<()> {
    let Build { name, protocols } = build;
    let what_to_do = if version.0 > protocols.max {
        "it was finalized for newer builds"
    } else if version.0 < protocols.min {
        "upgrade all nodes to a build in between first, then run `gesta cluster finalize`"
    } else {
        return Ok(());
    };
    let text = format!(
        "build {name} speaks versions {} to {} of the protocol between nodes, but the cluster is at version {version}: \
         {what_to_do}",
        protocols.min, protocols.max
    );
    Err(ErrorKind::Schema(text).into())
}

async fn first_look(membership: &Membership) -> Result<()> {
    let mut changes = membership.changes();
    let looked = changes.wait_for(|placement| placement.me.is_some());
    let looked = async {
        tokio::select! {
            looked = looked => looked.is_ok(),
            _ = membership.stopped() => false,
        }
    };
    match tokio::time::timeout(FIRST_LOOK_WITHIN, looked).await {
        Ok(true) => Ok(()),
        _ => {
            let status = membership.status();
            let why = status.stopped.map(standing::why_stopped);
            let why = why.or(status.trouble);
            let why = why.unwrap_or_else(|| "no answer".into());
            Err(Error::unavailable(format!(
                "cannot join the cluster: {why}"
            )))
        }
    }
}

impl Placements for Joining {
    fn changes(&self) -> watch::Receiver<Arc<Placement>> {
        self.memberships.changes()
    }

    fn leave(&self) -> BoxFuture<'static, ()> {
        let (parts, within) = (self.memberships.parts().to_vec(), self.leave_within);
        let telling = self.telling.clone();
        async move {
            let stops = join_all(parts.iter().map(|part| part.leave(within))).await;
            // A process that ended sooner would leave the others to find out by their next beats. Each telling is
            // bounded.
            telling.close();
            telling.wait().await;
            match stops.iter().all(|stop| *stop == Stop::Left) {
                true => tracing::info!("left the cluster"),
                false => tracing::warn!(?stops, "left the cluster, not everywhere in order"),
            }
        }
        .boxed()
    }

    fn look_now(&self) {
        for part in self.memberships.parts() {
            part.look_now();
        }
    }

    fn status(&self) -> Option<Status> {
        Some(self.memberships.status())
    }

    fn ready(&self) -> Result<()> {
        for part in self.memberships.parts() {
            let (status, placement) = (part.status(), part.placement());
            let nodes = status.look.as_ref().map_or(1, |look| look.nodes.len());
            standing::check(&status, placement.me, self.leases.dead(nodes))?;
            let look = status.look.as_deref();
            standing::check_first_logs(look, placement.me, self.started.elapsed())?;
        }
        Ok(())
    }

    fn stopped(&self) -> BoxFuture<'static, Stop> {
        self.memberships.stopped()
    }
}

/// How far the pipelines have come.
struct PipelineProgress(Arc<Store>);

impl Progress for PipelineProgress {
    fn sign(&self, log: LogId) -> Sign {
        let stats = self.0.stats_of(log).unwrap_or_default();
        Sign {
            done: stats.appends + stats.refusals,
            is_busy: stats.queued_commands > 0,
        }
    }
}

/// Hand-overs to nodes that are asked and told over the links.
struct LinkHandOvers {
    store: Arc<Store>,
    node: Arc<OnceLock<Weak<Node>>>,
    telling: TaskTracker,
}

#[async_trait]
impl HandOvers for LinkHandOvers {
    /// Asks the taker to read what it has missed of the log. A taker that does not answer, or is of a build that does
    /// not know the question, gets the log without.
    async fn prepare(&self, preparation: Preparation) -> Readiness {
        let node = self.node.get().and_then(Weak::upgrade);
        // The node may be dropped meanwhile.
        let forwarder = node.map(|node| node.forwarder.clone());
        if let Some(forwarder) = forwarder {
            let (log, within) = (preparation.log, Instant::now() + PREPARE_WITHIN);
            let body = Bytes::copy_from_slice(&log.0.to_be_bytes());
            let to = Address::new(preparation.address);
            // What is missing then, the taker reads when it appends.
            let _ = forwarder.ask(&to, PREPARE, body, within).await;
        }
        Readiness::Ready
    }

    async fn finish(&self, log: LogId) {
        self.store.idle(log).await;
    }

    /// Makes the others look. What is moved before there is a node, is told when there is one.
    fn moved(&self) {
        if let Some(node) = self.node.get().and_then(Weak::upgrade) {
            self.telling.spawn(tell_others(&node));
        }
    }
}

/// Tells the other nodes that something has changed. The node may be dropped meanwhile.
fn tell_others(node: &Node) -> impl Future<Output = ()> + Send + use<> {
    let (placement, forwarder) = (node.placement(), node.forwarder.clone());
    async move {
        let others = placement.nodes.iter();
        let others = others.filter(|other| Some(other.id) != placement.me);
        let asked = others.map(async |other| {
            let address = Address::new(Arc::clone(&other.address));
            let within = Instant::now() + TELL_WITHIN;
            // Who is not told sees it at its next beat.
            let _ = forwarder
                .ask(&address, LOOK_NOW, Bytes::new(), within)
                .await;
        });
        join_all(asked).await;
    }
}

/// Returns those of the nodes that refuse another connection. A link keeps the outcome of its last dial until the next
/// one, so that outcome must not count each time that it is read.
async fn refused_again(nodes: impl Iterator<Item = (NodeId, &Address)>) -> Vec<NodeId> {
    let dialled = nodes.map(async |(node, address)| {
        let dial = TcpStream::connect(address.as_str());
        match tokio::time::timeout(REACH_EVERY, dial).await {
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => Some(node),
            _ => None,
        }
    });
    join_all(dialled).await.into_iter().flatten().collect()
}

/// Tells the membership which nodes cannot be called, until the node is gone. When a link is lost, it makes the
/// membership look, because the other node may have handed its logs over and ended without having reached this one.
async fn report_reach(node: Weak<Node>, membership: Membership) {
    let (mut told, mut linked) = (Vec::new(), Vec::new());
    loop {
        tokio::time::sleep(REACH_EVERY).await;
        let Some(node) = node.upgrade() else { return };
        // The numbers of nodes are those of this membership's database.
        let (placement, reach) = (membership.placement(), node.forwarder.nodes());
        let id_of = |address: &Address| {
            let mut members = placement.nodes.iter();
            members
                .find(|member| &*member.address == address.as_str())
                .map(|member| member.id)
        };
        let reached = reach.iter().filter(|node| node.reach == Reach::Reachable);
        let links: Vec<Address> = reached.map(|node| node.address.clone()).collect();
        if linked.iter().any(|node| !links.contains(node)) {
            membership.look_now();
        }
        linked = links;
        let refused = reach.iter().filter(|node| node.is_refused);
        let refused = refused.filter_map(|node| Some((id_of(&node.address)?, &node.address)));
        for node in refused_again(refused).await {
            membership.refused(node);
        }
        let unreachable = node.forwarder.unreachable();
        let unreachable: Vec<NodeId> = unreachable.iter().filter_map(id_of).collect();
        if unreachable != told {
            told.clone_from(&unreachable);
            membership.unreachable(unreachable);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened: a link's last refusal was reported again four times a second, so that one refused dial counted as
    /// the two which declare a node dead early, even after the node had started again.
    #[tokio::test]
    async fn a_refusal_counts_only_if_a_dial_is_refused_again() {
        let back = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        // Bound, so that nobody else gets the port, but it takes no connections.
        let gone = tokio::net::TcpSocket::new_v4().expect("a socket");
        gone.bind("127.0.0.1:0".parse().expect("an address"))
            .expect("binds");
        let [back_at, gone_at] =
            [back.local_addr(), gone.local_addr()].map(|at| Address::from(at.expect("bound")));
        let nodes = [(NodeId(1), &back_at), (NodeId(2), &gone_at)];
        assert_eq!(refused_again(nodes.into_iter()).await, [NodeId(2)]);
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let options = |address: &str, weight| NodeOptions {
            weight,
            ..NodeOptions::new(address, b"sixteen bytes or more").expect("valid")
        };
        for weight in [1, 100, WEIGHT_MAX] {
            assert!(options("localhost:1", weight).check().is_ok());
        }
        for weight in [0, WEIGHT_MAX + 1, u16::MAX] {
            let error = options("localhost:1", weight).check();
            let error = error.expect_err("out of range").to_string();
            assert!(
                error.contains(&format!("1 to 1000, found {weight}")),
                "{error}"
            );
        }
        assert!(options("0.0.0.0:1", 100).check().is_err());
    }
}
