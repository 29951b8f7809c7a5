//! The shell, in real time, on a registry in memory.
//!
//! A node must not seem dead because this machine is slow. So beats are rare, and the nodes look all the time because
//! they are asked to. Only tests that need beats have short ones, and what they wait for comes about even if a node is
//! taken for dead in between.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gesta_cluster::{Config, Preparation, Readiness, Sign, Stop};
use gesta_cluster::{HandOvers, Membership, Options, Placement, Progress, WithoutLinks};
use gesta_core::LogId;
use gesta_core::registry::{ClusterVersion, NodeInfo, Registry};
use gesta_kit::registry::MemoryRegistry;
use tokio::sync::{Semaphore, mpsc};

const LOGS: u16 = 8;
const SOON: Duration = Duration::from_secs(120);

/// The time between beats where something must happen because of them.
const SHORT: Duration = Duration::from_millis(250);
/// The time between beats where a time of some beats must pass. A node is dead after four of them.
const MEDIUM: Duration = Duration::from_secs(2);
/// The time between beats where nothing must happen because of them.
const LONG: Duration = Duration::from_secs(20);
/// The time from one request to look to the next. With beats of 20 s each node may be asked every 625 ms.
const LOOK_EVERY: Duration = Duration::from_millis(700);

fn options(number: u32, beat: Duration) -> Options {
    Options {
        info: NodeInfo {
            address: format!("node-{number}:4000").into(),
            weight: 100,
            build: "1.0.0".into(),
            protocol_min: 1,
            protocol_max: 1,
        },
        config: Config {
            beat_min: beat,
            settle: Duration::from_millis(300),
        },
    }
}

/// Pipelines that always move, but for those of one log while it is stuck.
#[derive(Debug, Default)]
struct Pipelines {
    done: AtomicU64,
    is_first_stuck: AtomicBool,
}

impl Progress for Pipelines {
    fn sign(&self, log: LogId) -> Sign {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let is_stuck = log == LogId(0) && self.is_first_stuck.load(Ordering::Relaxed);
        Sign {
            done: if is_stuck { 0 } else { done },
            is_busy: true,
        }
    }
}

/// Starts a node whose beats are rare, and which looks all the time.
fn start(registry: &MemoryRegistry, number: u32) -> Membership {
    start_with(registry, number, LONG, Arc::new(WithoutLinks))
}

/// Starts a node that looks all the time. It lives until the test ends, even if the returned handle is dropped.
fn start_with(
    registry: &MemoryRegistry,
    number: u32,
    beat: Duration,
    hand_overs: Arc<dyn HandOvers>,
) -> Membership {
    let registry = Arc::new(registry.clone());
    let options = options(number, beat);
    let membership = Membership::start(
        registry,
        options,
        Arc::new(Pipelines::default()),
        hand_overs,
    );
    let membership = membership.expect("starts");
    let asked = membership.clone();
    tokio::spawn(async move {
        loop {
            asked.look_now();
            tokio::time::sleep(LOOK_EVERY).await;
        }
    });
    membership
}

/// Starts a node that looks when it beats, which it does often.
fn start_beating(registry: &MemoryRegistry, number: u32, pipelines: Arc<Pipelines>) -> Membership {
    let registry = Arc::new(registry.clone());
    let options = options(number, SHORT);
    Membership::start(registry, options, pipelines, Arc::new(WithoutLinks)).expect("starts")
}

async fn until(membership: &Membership, what: &str, holds: impl FnMut(&Arc<Placement>) -> bool) {
    let mut changes = membership.changes();
    let waited = tokio::time::timeout(SOON, changes.wait_for(holds)).await;
    let holds = waited.is_ok_and(|held| held.is_ok());
    assert!(
        holds,
        "{what}: {:?} {:?}",
        membership.placement(),
        membership.status()
    );
}

fn mine(placement: &Placement) -> usize {
    placement.mine().count()
}

#[tokio::test]
async fn nodes_share_the_logs_and_take_over_those_of_one_that_dies() {
    let registry = MemoryRegistry::new(LOGS);
    let one = start_beating(&registry, 1, Arc::default());
    until(&one, "all are mine", |placement| mine(placement) == 8).await;
    let two = start_beating(&registry, 2, Arc::default());
    until(&two, "half are mine", |placement| mine(placement) == 4).await;
    until(&one, "half are left, half are at node 2", |placement| {
        let owners = placement.logs.iter().filter_map(|log| log.owner.as_ref());
        let others = owners.filter(|owner| &*owner.address == "node-2:4000");
        (mine(placement), others.count()) == (4, 4)
    })
    .await;
    drop(two);
    until(&one, "all are mine again", |placement| mine(placement) == 8).await;
    assert!(one.status().look.is_some() && one.status().trouble.is_none());
}

#[tokio::test]
async fn a_node_that_leaves_hands_everything_over_first() {
    let registry = MemoryRegistry::new(LOGS);
    let (one, two) = (start(&registry, 1), start(&registry, 2));
    until(&two, "some are mine", |placement| mine(placement) > 0).await;
    until(&one, "both are there", |placement| {
        placement.nodes.len() == 2
    })
    .await;
    assert_eq!(one.leave(SOON).await, Stop::Left);
    assert_eq!(mine(&one.placement()), 0);
    assert_eq!(one.placement().me, None);
    let look = registry.tables().look();
    assert!(
        look.leases.iter().all(|lease| look.holder(lease).is_some()),
        "no log is without owner"
    );
    until(&two, "all are mine", |placement| mine(placement) == 8).await;
    // Nobody is left to take them.
    assert_eq!(two.leave(SOON).await, Stop::Left);
    assert!(registry.tables().look().nodes.is_empty());
}

#[tokio::test]
async fn an_outage_moves_nothing_and_is_told() {
    let registry = MemoryRegistry::new(LOGS);
    let [one, two] =
        [1, 2].map(|number| start_with(&registry, number, MEDIUM, Arc::new(WithoutLinks)));
    until(&one, "half are mine", |placement| mine(placement) == 4).await;
    until(&two, "half are mine", |placement| mine(placement) == 4).await;
    registry.set_down(true);
    let before = registry.tables();
    // A node that is silent for so long is dead.
    let long = MEDIUM * 4 + Duration::from_secs(1);
    let is_told = |node: &Membership| {
        let status = node.status();
        status.trouble.is_some() && status.look_age >= Some(long)
    };
    let is_over = |node: &Membership| node.status().trouble.is_none();
    tokio::time::timeout(SOON, async {
        while !(is_told(&one) && is_told(&two)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it is told");
    registry.set_down(false);
    tokio::time::timeout(SOON, async {
        while !(is_over(&one) && is_over(&two)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it is over");
    let (before, after) = (before.look(), registry.tables().look());
    assert_eq!(before.leases, after.leases);
    assert_eq!((mine(&one.placement()), mine(&two.placement())), (4, 4));
}

#[tokio::test]
async fn a_stuck_log_goes_to_another_node() {
    let registry = MemoryRegistry::new(LOGS);
    let pipelines: Arc<Pipelines> = Arc::default();
    let one = start_beating(&registry, 1, Arc::clone(&pipelines));
    until(&one, "all are mine", |placement| mine(placement) == 8).await;
    pipelines.is_first_stuck.store(true, Ordering::Relaxed);
    let two = start_beating(&registry, 2, Arc::default());
    until(&two, "the stuck one is mine", |placement| {
        placement.is_mine(LogId(0))
    })
    .await;
}

/// Hand-overs whose taker refuses at first.
#[derive(Debug, Default)]
struct Reluctant {
    asked: AtomicUsize,
    finished: AtomicUsize,
    told: AtomicUsize,
}

#[async_trait]
impl HandOvers for Reluctant {
    async fn prepare(&self, _: Preparation) -> Readiness {
        match self.asked.fetch_add(1, Ordering::Relaxed) {
            0 => Readiness::Refused,
            1 => panic!("a link has a fault"),
            _ => Readiness::Ready,
        }
    }

    async fn finish(&self, _: LogId) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        // More than anybody waits for.
        std::future::pending().await
    }

    fn moved(&self) {
        self.told.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_hand_over_that_is_refused_is_tried_again() {
    let registry = MemoryRegistry::new(LOGS);
    let reluctant: Arc<Reluctant> = Arc::default();
    // Who refuses a log is not asked again for four beats.
    let one = start_with(&registry, 1, MEDIUM, reluctant.clone());
    until(&one, "all are mine", |placement| mine(placement) == 8).await;
    let two = start_with(&registry, 2, MEDIUM, Arc::new(WithoutLinks));
    until(&one, "both are there", |placement| {
        placement.nodes.len() == 2
    })
    .await;
    one.drain();
    until(&one, "none is left", |placement| mine(placement) == 0).await;
    until(&two, "all are mine", |placement| mine(placement) == 8).await;
    assert!(reluctant.asked.load(Ordering::Relaxed) >= 10);
    assert_eq!(reluctant.finished.load(Ordering::Relaxed), 8);
    // The claim of all logs at first, and each hand-over. The last one is told after the taker may have seen it.
    let told = tokio::time::timeout(SOON, async {
        while reluctant.told.load(Ordering::Relaxed) < 1 + 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    told.await.expect("the last hand-over is told");
    assert_eq!(reluctant.told.load(Ordering::Relaxed), 1 + 8);
    let took = one.status().took;
    assert!(took.preparing.count() >= 10 && took.beats.count() > 0);
    let counts = [took.takeovers, took.finishing, took.moving].map(|took| took.count());
    assert_eq!(counts, [8; 3]);
    // Each time in full: what was in flight did not end.
    assert!(took.finishing.micros >= 8 * 100_000);
    one.undo_drain();
    until(&one, "some are back", |placement| mine(placement) == 4).await;
}

/// Moves that the others are told of by tasks, which wait until the test lets them go on.
#[derive(Debug)]
struct SlowlyReported {
    may_end: Arc<Semaphore>,
    told: mpsc::UnboundedSender<()>,
}

#[async_trait]
impl HandOvers for SlowlyReported {
    async fn prepare(&self, _: Preparation) -> Readiness {
        Readiness::Ready
    }

    async fn finish(&self, _: LogId) {}

    fn moved(&self) {
        let (may_end, told) = (Arc::clone(&self.may_end), self.told.clone());
        tokio::spawn(async move {
            may_end.acquire().await.expect("open").forget();
            told.send(()).expect("the test waits");
        });
    }
}

/// What happened: the others were told of hand-overs by tasks on the runtime of the beats, which ends when the node has
/// left. So the telling of the last hand-overs was cut off, and the others saw them only at their next beats.
#[tokio::test]
async fn who_leaves_tells_the_others_to_the_end() {
    let registry = MemoryRegistry::new(LOGS);
    let may_end = Arc::new(Semaphore::new(0));
    let (told, mut telling) = mpsc::unbounded_channel();
    let slowly = SlowlyReported {
        may_end: Arc::clone(&may_end),
        told,
    };
    let one = start_with(&registry, 1, LONG, Arc::new(slowly));
    until(&one, "all are mine", |placement| mine(placement) == 8).await;
    let _two = start(&registry, 2);
    until(&one, "both are there", |placement| {
        placement.nodes.len() == 2
    })
    .await;
    assert_eq!(one.leave(SOON).await, Stop::Left);
    // The claim of all logs at first, and each hand-over.
    let moves = 1 + usize::from(LOGS);
    may_end.add_permits(moves);
    for _ in 0..moves {
        let one_more = tokio::time::timeout(SOON, telling.recv()).await;
        one_more
            .expect("the telling of a move was cut off")
            .expect("open");
    }
}

#[tokio::test]
async fn the_older_of_two_processes_with_one_address_stops() {
    let registry = MemoryRegistry::new(LOGS);
    let older = start(&registry, 1);
    until(&older, "all are mine", |placement| mine(placement) == 8).await;
    let newer = start(&registry, 1);
    let stopped = tokio::time::timeout(SOON, older.stopped()).await;
    assert_eq!(stopped.expect("stops"), Stop::Replaced);
    until(&newer, "all are mine", |placement| mine(placement) == 8).await;
}

/// Pipelines of a node with a fault.
#[derive(Debug)]
struct Faulty;

impl Progress for Faulty {
    fn sign(&self, _: LogId) -> Sign {
        panic!("a pipeline has a fault")
    }
}

#[tokio::test]
async fn a_membership_that_fails_says_so_and_owns_nothing() {
    let registry = MemoryRegistry::new(LOGS);
    let pipelines = Arc::new(Faulty);
    let membership = Membership::start(
        Arc::new(registry),
        options(1, SHORT),
        pipelines,
        Arc::new(WithoutLinks),
    );
    let membership = membership.expect("starts");
    let stopped = tokio::time::timeout(SOON, membership.stopped()).await;
    assert_eq!(stopped.expect("ends"), Stop::Failed);
    assert_eq!(mine(&membership.placement()), 0);
    assert_eq!(membership.leave(SOON).await, Stop::Failed);
}

/// Goal: a node that finds the cluster at a version that it cannot read owns nothing any more and stops.
#[tokio::test]
async fn a_node_that_cannot_read_the_version_of_the_cluster_stops() {
    let registry = MemoryRegistry::new(LOGS);
    let one = start(&registry, 1);
    until(&one, "all are mine", |placement| mine(placement) == 8).await;
    let (first, second) = (ClusterVersion::FIRST, ClusterVersion(2));
    let placement = one.placement();
    assert!(placement.may_use(first) && !placement.may_use(second));
    let raised = registry.finalize(first, second).await;
    assert!(!raised.unwrap(), "node 1 cannot read it");
    registry.set_version(second);
    let stopped = tokio::time::timeout(SOON, one.stopped()).await;
    assert_eq!(stopped.expect("stops"), Stop::Unreadable(second));
    assert_eq!(mine(&one.placement()), 0);
}
