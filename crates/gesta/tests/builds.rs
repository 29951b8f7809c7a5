//! Nodes of different builds in one cluster: neighbours work together, also back again, and the rest is refused.
#![cfg(feature = "cluster")]
#![expect(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta::*;
use gesta_core::registry::{ClusterVersion, Registry};
use gesta_rig::{fresh_schema, shared};
use tokio::net::TcpListener;

const LOGS: u16 = 2;
const PATIENCE: Duration = Duration::from_secs(120);
const SECRET: &[u8] = b"what the nodes of these tests share";
const VERSIONS: [ClusterVersion; 2] = [ClusterVersion(1), ClusterVersion(2)];

/// A build that speaks these versions of the protocol.
fn build(min: u16, max: u16) -> NodeBuild {
    NodeBuild {
        name: format!("0.{max}.0"),
        protocols: Protocols { min, max },
    }
}

/// The cluster of one store, and the addresses of its nodes.
struct Cluster {
    url: String,
    _database: Database,
    registry: Arc<dyn Registry>,
    addresses: [String; 2],
}

impl Cluster {
    async fn new() -> Option<Self> {
        let server = shared()?;
        // No busy machine exceeds these times.
        let times = "answer_timeout=60&connect_timeout=60";
        let (server, name) = (server.url(), fresh_schema());
        let url = format!("{server}?schema={name}&readers=2&{times}");
        schema::create(&url, LOGS).await.expect("made");
        let database = Database::open(&url, &Options::default()).await;
        let database = database.expect("opens");
        let registries = database.registries().expect("shared");
        let address = || gesta_rig::free_address().expect("a port").to_string();
        Some(Self {
            url,
            _database: database,
            registry: Arc::clone(&registries[0]),
            addresses: [address(), address()],
        })
    }

    /// Starts a node. If that fails for a passing reason, as where the machine is too busy for a first look, it is
    /// tried again.
    async fn start(&self, number: usize, build: NodeBuild) -> Result<Arc<Node>> {
        let begun = Instant::now();
        loop {
            match self.try_to_start(number, build.clone()).await {
                Err(error) if error.is_retryable() && begun.elapsed() < PATIENCE => {}
                started => return started,
            }
        }
    }

    async fn try_to_start(&self, number: usize, build: NodeBuild) -> Result<Arc<Node>> {
        let address = &self.addresses[number];
        let listener = TcpListener::bind(address.as_str()).await;
        let options = NodeOptions {
            build,
            give_up_after: PATIENCE,
            ..NodeOptions::new(address.as_str(), SECRET)?
        };
        let database = Database::open(&self.url, &Options::default()).await?;
        let listener = listener.expect("the port is free");
        database
            .start_node(&Options::default(), listener, options)
            .await
    }

    /// Gives log 0 to the first node and log 1 to the second one.
    async fn share(&self, nodes: &[Arc<Node>; 2]) {
        for (log, node) in (0..).map(LogId).zip(nodes) {
            let shared = async {
                while !node.placement().is_mine(log) {
                    // Statements of the registry have little time: the next look tells what was done.
                    if let Ok(look) = self.registry.look().await {
                        let lease = look.lease(log).expect("a lease");
                        let to = node.placement().me;
                        let owner = look.holder(lease).map(|holder| holder.id);
                        if owner.is_some() && owner != to && lease.next_owner != to {
                            let _ = self.registry.set_next_owner(log, lease.epoch, to).await;
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let within = tokio::time::timeout(PATIENCE, shared).await;
            within.expect("the node gets its log");
        }
    }
}

/// Appends to both logs through each of the nodes; none of them does it beside an owner.
async fn appends_pass(nodes: &[Arc<Node>; 2]) {
    for (number, node) in nodes.iter().enumerate() {
        for log in (0..LOGS).map(LogId) {
            let mut names = (0..).map(|n| format!("s-{number}-{n}"));
            let is_there =
                |name: &String| log_of(&StreamId::from_stored(name.as_str().into()), LOGS) == log;
            let name = names.find(is_there).expect("endless");
            let begun = Instant::now();
            loop {
                let direct = node.stats().direct;
                let event = EventData::json(EventType::new("happened").expect("valid"), "{}");
                let appended = node
                    .append_to(&name, ExpectedRevision::Any, vec![event])
                    .await;
                assert_eq!(appended.expect("stored").log, log);
                if node.stats().direct == direct {
                    break;
                }
                // On a busy machine the owner may seem silent for a while.
                assert!(begun.elapsed() < PATIENCE, "it is never forwarded");
            }
        }
    }
}

async fn refusal(cluster: &Cluster, number: usize, build: NodeBuild) -> String {
    let refused = cluster.start(number, build).await;
    let error = refused.expect_err("refused");
    assert!(matches!(error.kind(), ErrorKind::Schema(_)), "{error:?}");
    error.to_string()
}

/// Goal: builds that speak versions 1, and 1 and 2, take each other's calls in each role, back and forth; nothing of
/// version 2 may be used before all can read it and it is finalized; then nobody goes back.
#[tokio::test(flavor = "multi_thread")]
async fn neighbouring_builds_work_together_and_back_until_it_is_finalized() {
    let Some(cluster) = Cluster::new().await else {
        return;
    };
    let (old, new) = (build(1, 1), build(1, 2));
    let start = async |number, build: &NodeBuild| {
        let started = cluster.start(number, build.clone()).await;
        started.expect("joins")
    };
    let stop = async |node: &Arc<Node>| node.shutdown().await.expect("stops");
    let [first, second] = VERSIONS;
    let mut nodes = [start(0, &old).await, start(1, &new).await];
    cluster.share(&nodes).await;
    appends_pass(&nodes).await;
    let may_use = |node: &Node, version| node.placement().may_use(version);
    assert!(
        nodes
            .iter()
            .all(|node| may_use(node, first) && !may_use(node, second))
    );
    let raised = cluster.registry.finalize(first, second).await;
    assert!(!raised.expect("answers"), "the old one cannot read it");

    // Back to the old build, and forward again, with each in the other's role.
    for (number, to) in [(1, &old), (0, &new), (0, &old), (0, &new), (1, &new)] {
        stop(&nodes[number]).await;
        nodes[number] = start(number, to).await;
        cluster.share(&nodes).await;
        appends_pass(&nodes).await;
    }
    let raised = cluster.registry.finalize(first, second).await;
    assert!(raised.expect("answers"), "all can read it");
    for node in &nodes {
        let known = async {
            while !may_use(node, second) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let within = tokio::time::timeout(PATIENCE, known).await;
        within.expect("a look shows it");
    }
    appends_pass(&nodes).await;

    stop(&nodes[1]).await;
    let said = refusal(&cluster, 1, old).await;
    assert!(said.contains("0.1.0 speaks versions 1 to 1"), "{said}");
    assert!(said.contains("finalized for newer builds"), "{said}");
    let said = refusal(&cluster, 1, build(3, 4)).await;
    assert!(said.contains("a build in between first"), "{said}");
    start(1, &build(2, 3))
        .await
        .shutdown()
        .await
        .expect("stops");
    stop(&nodes[0]).await;
}
