//! Entities on real nodes: one database in memory, links over sockets, owners that the test sets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]
#![allow(dead_code, reason = "the account can do more than is asked of it here")]

#[path = "../../node/tests/support/mod.rs"]
mod cluster;
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cluster::database::World;
use cluster::{PATIENCE, Seat, TestNode, gives_up_after_a_second};
use futures::future::join_all;
use gesta_core::peers::Peers;
use gesta_core::{EventStore, OwnerStore, ReadStream, StreamId, SystemClock};
use gesta_entity::{Builder, Config, Entities, Error, Request};
use gesta_kit::support::within;
use support::{Account, Command, Insufficient, account_type, config};

const NODES: u32 = 3;
/// How long a node and a runtime keep a caller waiting before it gets an error. A machine that stands still must not
/// cause one.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// The time between two looks at whether something has happened.
const PAUSE: Duration = Duration::from_millis(5);

struct Cluster {
    nodes: Vec<TestNode>,
    accounts: Vec<Entities<Account>>,
    members: Vec<(u32, Arc<str>)>,
    epoch: u64,
}

impl Cluster {
    /// All nodes believe the first one to own the only log.
    async fn new() -> Self {
        let world = World::new(1);
        let seats = join_all((0..NODES).map(|_| Seat::new())).await;
        let nodes: Vec<TestNode> = (0..)
            .zip(seats)
            .map(|(number, seat)| {
                let seat = seat.with(gives_up_after_a_second());
                seat.start(number, &world, Arc::new(SystemClock), WAIT_MAX)
            })
            .collect();
        let config = Config {
            forward_within: WAIT_MAX,
            ..config()
        };
        let accounts = nodes.iter().map(|node| {
            Builder::new()
                .config(config.clone())
                .peers(Arc::clone(&node.node) as Arc<dyn Peers>)
                .start(
                    Arc::clone(&node.node) as Arc<dyn OwnerStore>,
                    account_type().forwarded(),
                )
        });
        let members = nodes
            .iter()
            .map(|node| (node.number, Arc::clone(&node.address)));
        let mut cluster = Self {
            accounts: accounts.collect(),
            members: members.collect(),
            nodes,
            epoch: 0,
        };
        cluster.agree(Some(0));
        cluster
    }

    fn agree(&mut self, owner: Option<usize>) {
        self.epoch += 1;
        for node in &self.nodes {
            node.believes(self.epoch, &self.members, &[owner]);
        }
    }

    /// Waits until the account has so many events.
    async fn reaches(&self, count: u64) {
        let stream = StreamId::new("account-1").unwrap();
        let reached = async {
            loop {
                let read = ReadStream::forwards(stream.clone());
                match self.nodes[1].node.read_stream(read).await {
                    Ok(page) if page.last_revision.0 + 1 >= count => return,
                    _ => tokio::time::sleep(PAUSE).await,
                }
            }
        };
        within("the account has so many events", reached).await;
    }

    /// How many events the account has.
    async fn stored(&self) -> u64 {
        let stream = StreamId::new("account-1").unwrap();
        let read = self.nodes[1].node.read_stream(ReadStream::forwards(stream));
        read.await.unwrap().last_revision.0 + 1
    }
}

/// Goal: commands and reads work on every node, and are carried out by the owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_carries_out_what_any_node_is_asked() {
    let mut cluster = Cluster::new().await;
    let deposits = cluster.accounts.iter().flat_map(|accounts| {
        (0..20).map(|_| accounts.submit("1", Request::new(Command::Deposit(1))))
    });
    let replies: BTreeSet<u64> = join_all(deposits)
        .await
        .into_iter()
        .map(|done| done.unwrap().reply)
        .collect();
    assert!(
        replies.into_iter().eq(1..=60),
        "each was decided on another state"
    );
    let [owner, other, _] = &cluster.accounts[..] else {
        panic!("three nodes")
    };
    let balance = other.read("1", |account| account.balance).await;
    assert_eq!(balance.unwrap(), 60);
    let rejected = other.execute("1", Command::Withdraw(61)).await;
    assert!(matches!(
        rejected,
        Err(Error::Rejected(Insufficient { balance: 60 }))
    ));
    // A machine that stands still looks like a link that is dead: what comes back is sent again.
    let came_back = |node: &TestNode| -> u64 {
        let ends = node.node.stats().forwarded;
        let came_back = ends.iter().filter(|(end, _)| *end != "answered");
        came_back.map(|(_, count)| count).sum()
    };
    let stats = other.stats();
    let sent_again = came_back(&cluster.nodes[1]);
    assert_eq!((stats.loads, stats.forwarded - sent_again), (0, 22));
    let from_nodes = owner.stats().from_nodes;
    match cluster.nodes.iter().map(came_back).sum::<u64>() {
        0 => assert_eq!(from_nodes, 42),
        sent_again => assert!(from_nodes >= 42, "{from_nodes}, {sent_again} came back"),
    }
    // Another owner: the first one lets go of the entity.
    cluster.agree(Some(2));
    for (accounts, expected) in cluster.accounts.iter().zip(61..) {
        let reply = accounts.execute("1", Command::Deposit(1)).await;
        assert_eq!(reply.unwrap(), expected);
    }
    // A node that learned of the other owner while it carried out a command lets go of the entity with the next one.
    let active = || -> Vec<u64> { cluster.accounts.iter().map(|a| a.stats().active).collect() };
    let begun = Instant::now();
    while active() != [0, 0, 1] {
        assert!(begun.elapsed() < PATIENCE, "{:?}", active());
        let done = cluster.accounts[0].execute("1", Command::Deposit(1)).await;
        assert!(done.is_ok(), "{done:?}");
    }
    for accounts in &cluster.accounts {
        accounts.shutdown().await;
    }
}

/// Goal: where nobody owns the log, each node does what it is asked, also several at once. What happened: every command
/// waited for an owner until its time was over, and was unavailable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_owner_each_node_does_what_it_is_asked() {
    let mut cluster = Cluster::new().await;
    cluster.accounts[1]
        .execute("1", Command::Deposit(1))
        .await
        .unwrap();
    cluster.agree(None);
    let deposits = cluster.accounts.iter().flat_map(|accounts| {
        (0..10).map(|_| accounts.submit("1", Request::new(Command::Deposit(1))))
    });
    let replies: BTreeSet<u64> = join_all(deposits)
        .await
        .into_iter()
        .map(|done| done.unwrap().reply)
        .collect();
    assert!(replies.into_iter().eq(2..=31));
    for accounts in &cluster.accounts {
        let balance = accounts.read("1", |account| account.balance).await;
        assert_eq!(balance.unwrap(), 31);
    }
    assert_eq!(cluster.stored().await, 31);
}

/// Goal: an owner that cannot be reached may be at work, so what is asked of its entities waits for it, and is done
/// once there is another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_waits_until_an_owner_that_is_gone_is_replaced() {
    let mut cluster = Cluster::new().await;
    cluster.accounts[1]
        .execute("1", Command::Deposit(1))
        .await
        .unwrap();
    cluster.nodes[0].node.shutdown().await.unwrap();
    let unreachable = |cluster: &Cluster| {
        let forwarded = cluster.nodes[1].node.stats().forwarded;
        forwarded
            .iter()
            .any(|(name, count)| *name == "unreachable" && *count > 2)
    };
    let pending = cluster.accounts[1].submit("1", Request::new(Command::Deposit(1)));
    let tried = async {
        while !unreachable(&cluster) {
            tokio::time::sleep(PAUSE).await;
        }
    };
    within("the owner is tried in vain", tried).await;
    assert_eq!(cluster.stored().await, 1);
    cluster.agree(Some(2));
    assert_eq!(pending.await.unwrap().reply, 2);
}

/// What happened: a runtime that was shut down on a node that still owned its streams answered what others forwarded as
/// *unavailable*, for good. Now those who ask do it themselves, until there is another owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_owner_does_no_more_is_done_where_it_is_asked() {
    let mut cluster = Cluster::new().await;
    let done = Arc::new(AtomicBool::new(false));
    let busy = cluster.accounts[1..].iter().cloned().map(|accounts| {
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            let mut count = 0;
            while !done.load(Ordering::SeqCst) {
                let deposited = accounts.execute("1", Command::Deposit(1)).await;
                let read = accounts.read("1", |account| account.balance).await;
                assert!(read.unwrap() >= deposited.unwrap());
                count += 1;
            }
            count
        })
    });
    let busy: Vec<_> = busy.collect();
    cluster.reaches(20).await;
    cluster.accounts[0].shutdown().await;
    let before = cluster.stored().await;
    cluster.reaches(before + 20).await;
    cluster.agree(Some(2));
    cluster.nodes[0].node.leave().await;
    cluster.nodes[0].node.shutdown().await.unwrap();
    cluster.reaches(before + 40).await;
    done.store(true, Ordering::SeqCst);
    let counts = join_all(busy).await;
    let count: u64 = counts.into_iter().map(Result::unwrap).sum();
    assert_eq!(cluster.stored().await, count);
}

/// Deposits with a key each, again with the same key while nobody knows what became of it. Returns how many were done.
async fn caller(accounts: Vec<Entities<Account>>, name: usize, done: Arc<AtomicBool>) -> u64 {
    let mut count = 0;
    while !done.load(Ordering::SeqCst) {
        let key = format!("{name}-{count}");
        for accounts in accounts.iter().cycle().skip(name) {
            let request = Request::new(Command::Deposit(1)).key(&*key);
            match accounts.submit("1", request).await {
                Ok(_) => break,
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
        }
        count += 1;
    }
    count
}

/// Goal: every command takes effect once, while owners change, and one of them ends without anybody's being told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_owns_the_stream_each_command_takes_effect_once() {
    let mut cluster = Cluster::new().await;
    let done = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..6)
        .map(|name| {
            let accounts = cluster.accounts[1..].to_vec();
            tokio::spawn(caller(accounts, name, Arc::clone(&done)))
        })
        .collect();
    let mut reached = 0;
    for owner in [Some(1), Some(0), None, Some(2), Some(0)] {
        cluster.agree(owner);
        // Something happens under each owner.
        reached += 20;
        let happened = async {
            while owner.is_some()
                && cluster.accounts[1].read("1", |a| a.changes).await.unwrap() < reached
            {
                tokio::time::sleep(PAUSE).await;
            }
        };
        within("commands take effect", happened).await;
    }
    cluster.nodes[0].node.shutdown().await.unwrap();
    cluster.agree(Some(1));
    cluster.reaches(cluster.stored().await + 20).await;
    done.store(true, Ordering::SeqCst);
    let counts = join_all(callers).await;
    let count: u64 = counts.into_iter().map(Result::unwrap).sum();
    assert_eq!(cluster.stored().await, count);
    let balance = cluster.accounts[2]
        .read("1", |account| account.balance)
        .await;
    assert_eq!(balance.unwrap(), count);
}
