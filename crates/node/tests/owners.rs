//! Owners that change, and nodes that believe different things about them: an owner is advice, so whatever a node
//! believes, an acknowledged change is stored once, and a refused one never.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all, ready};
use gesta_core::peers::{PeerCall, PeerService, Peers, UnansweredReason};
use gesta_core::{
    AllFrom, Append, ErrorKind, EventData, EventId, EventStore, EventType, ExpectedRevision,
    ReadAll, ReadStream, Result, StreamId, SystemClock,
};
use gesta_kit::depth;
use gesta_kit::faulty::Faulty;
use gesta_link::{Reach, Times};
use gesta_store::{Config, Store};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::database::{MemoryBackend, World};
use support::{
    Arrangement, GIVE_UP_AFTER, PATIENCE, Seat, TestNode, gives_up_after_a_second, patient,
    until_linked,
};
use tokio::time::Instant;

const NODES: u32 = 3;
const LOGS: u16 = 4;
/// The longest time that many changes may take, or their callers.
const LONG: Duration = Duration::from_secs(300);

/// Nodes on one database, and how they know each other.
struct Cluster {
    nodes: Vec<TestNode>,
    members: Vec<(u32, Arc<str>)>,
    epoch: u64,
}

impl Cluster {
    async fn new(logs: u16, times: Times) -> Self {
        let world = World::new(logs);
        let seats = join_all((0..NODES).map(|_| Seat::new())).await;
        let clock = || Arc::new(SystemClock);
        let nodes: Vec<TestNode> = (0..)
            .zip(seats)
            .map(|(number, seat)| {
                let seat = seat.with(times);
                seat.start(number, &world, clock(), GIVE_UP_AFTER)
            })
            .collect();
        let members = nodes
            .iter()
            .map(|node| (node.number, Arc::clone(&node.address)));
        Self {
            members: members.collect(),
            nodes,
            epoch: 0,
        }
    }

    /// All nodes believe the same.
    fn agree(&mut self, owners: &[Option<usize>]) {
        self.epoch += 1;
        for node in &self.nodes {
            node.believes(self.epoch, &self.members, owners);
        }
    }

    /// Each node believes something of its own.
    fn disagree(&mut self, random: &mut StdRng) {
        for node in &self.nodes {
            self.epoch += 1;
            let owner = |_| {
                let place = random.random_range(0..=NODES as usize);
                (place < NODES as usize).then_some(place)
            };
            let owners: Vec<Option<usize>> = (0..LOGS).map(owner).collect();
            node.believes(self.epoch, &self.members, &owners);
        }
    }
}

fn name(text: &str) -> StreamId {
    StreamId::new(text).expect("valid")
}

fn event() -> EventData {
    EventData::json(EventType::new("e").expect("valid"), "{}").with_id(EventId::random())
}

/// What a caller asked for, and was told.
struct Answered {
    id: EventId,
    result: Result<()>,
}

/// What callers and the test tell each other.
#[derive(Default)]
struct Progress {
    done: AtomicBool,
    acknowledged: AtomicUsize,
}

/// Appends one event after the other, and asks again while the outcome is unknown, through any node.
async fn caller(nodes: Vec<Arc<gesta_node::Node>>, seed: u64, all: Arc<Progress>) -> Vec<Answered> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut told = Vec::new();
    while !all.done.load(Ordering::Relaxed) {
        let stream = name(&format!("s-{}", random.random_range(0..6)));
        let event = event();
        let id = event.id.expect("given");
        let node = &nodes[random.random_range(0..nodes.len())];
        let expected = match random.random_range(0..3) {
            0 => ExpectedRevision::Any,
            1 => ExpectedRevision::StreamExists,
            _ => match node.read_stream(ReadStream::forwards(stream.clone())).await {
                Ok(page) => ExpectedRevision::Exact(page.last_revision),
                Err(_) => ExpectedRevision::NoStream,
            },
        };
        let append = Append::to(stream, expected, vec![event]);
        let mut result = node.append(append.clone()).await.map(drop);
        while matches!(&result, Err(error) if matches!(error.kind(), ErrorKind::OutcomeUnknown(_)))
        {
            let node = &nodes[random.random_range(0..nodes.len())];
            match node.append(append.clone()).await {
                // That a later attempt was refused says nothing about the earlier one.
                Err(error) if !matches!(error.kind(), ErrorKind::OutcomeUnknown(_)) => break,
                again => result = again.map(drop),
            }
        }
        all.acknowledged
            .fetch_add(usize::from(result.is_ok()), Ordering::Relaxed);
        told.push(Answered { id, result });
    }
    told
}

/// How often each event is stored.
async fn stored(node: &gesta_node::Node) -> HashMap<EventId, u32> {
    let mut times = HashMap::new();
    let mut request = ReadAll::forwards();
    loop {
        let page = node.read_all(request.clone()).await.expect("read");
        for event in &page.events {
            *times.entry(event.id).or_default() += 1;
        }
        if page.end {
            return times;
        }
        request = request.from(AllFrom::Checkpoint(page.next));
    }
}

/// Goal: nothing acknowledged is lost or stored twice and nothing refused is stored, while owners change at random and
/// no two nodes agree about them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_nodes_believe_nothing_is_lost_or_doubled() {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut cluster = Cluster::new(LOGS, Times::default()).await;
    cluster.agree(&[Some(0); LOGS as usize]);
    let nodes: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| Arc::clone(&node.node))
        .collect();
    let (all, begun) = (Arc::<Progress>::default(), Instant::now());
    let callers: Vec<_> = (0..12)
        .map(|_| tokio::spawn(caller(nodes.clone(), random.random(), Arc::clone(&all))))
        .collect();
    let mut changes: u32 = depth::count(60, 2_000);
    // On a busy machine it takes longer until the callers have done something.
    while changes > 0 || all.acknowledged.load(Ordering::Relaxed) <= 100 {
        assert!(changes > 0 || begun.elapsed() < LONG, "no progress");
        changes = changes.saturating_sub(1);
        match random.random_range(0..3) {
            0 => cluster.agree(&[Some(random.random_range(0..NODES as usize)); LOGS as usize]),
            1 => cluster.agree(&[None; LOGS as usize]),
            _ => cluster.disagree(&mut random),
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..40))).await;
    }
    // Peace: one owner, so that everybody gets an answer.
    cluster.agree(&[Some(0); LOGS as usize]);
    all.done.store(true, Ordering::Relaxed);
    let told = tokio::time::timeout(LONG, join_all(callers)).await;
    let told = told.expect("the callers get no answers");
    let times = stored(&nodes[1]).await;
    let (mut acknowledged, mut refused) = (0, 0);
    for told in told
        .into_iter()
        .flat_map(|told| told.expect("the caller ends"))
    {
        let times = times.get(&told.id).copied().unwrap_or_default();
        match &told.result {
            Ok(()) => {
                acknowledged += 1;
                assert_eq!(times, 1, "{:?} was acknowledged", told.id);
            }
            Err(error) if matches!(error.kind(), ErrorKind::OutcomeUnknown(_)) => {
                assert!(times <= 1, "{:?} was stored {times} times", told.id);
            }
            Err(error) => {
                refused += 1;
                assert_eq!(times, 0, "{:?} was refused: {error}", told.id);
            }
        }
    }
    println!("{acknowledged} acknowledged, {refused} refused");
    assert!(acknowledged > 100, "the callers did something");
}

/// Goal: a change for a log whose owner is gone is stored all the same, and its answer is the right one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_go_on_without_their_owner() {
    let mut cluster = Cluster::new(1, gives_up_after_a_second()).await;
    cluster.agree(&[Some(0)]);
    let append = |cluster: &Cluster, place: usize| {
        let node = Arc::clone(&cluster.nodes[place].node);
        async move {
            let append = Append::to(name("s"), ExpectedRevision::Any, vec![event()]);
            node.append(append).await
        }
    };
    append(&cluster, 1).await.expect("forwarded");
    // The owner ends without anybody's being told; the others still believe in it.
    cluster.nodes[0].node.shutdown().await.expect("shut down");
    let appended = append(&cluster, 1).await.expect("appended directly");
    assert_eq!(appended.streams[0].first_revision.0, 1);
    cluster.agree(&[Some(2)]);
    let appended = append(&cluster, 1)
        .await
        .expect("forwarded to the new owner");
    assert_eq!(appended.streams[0].first_revision.0, 2);
    cluster.agree(&[None]);
    let appended = append(&cluster, 1)
        .await
        .expect("appended without an owner");
    assert_eq!(appended.streams[0].first_revision.0, 3);
}

/// Goal: the owner of a log lives and is cut off from another node, in both directions or in one. The appends that come
/// to that node go on within 2 s, and there is no second pause when the link is given up. What happened: they waited
/// for 3 s without a pong, and for another one without a link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_go_on_while_their_owner_is_cut_off() {
    for replies_are_lost in [false, true] {
        let what = match replies_are_lost {
            true => "appends whose owner's replies are lost, the longest pause",
            false => "appends whose owner is cut off, the longest pause",
        };
        let begun = Instant::now();
        // On a machine that stands still the owner may be silent and unreachable at one moment.
        let pause = loop {
            match longest_pause(replies_are_lost).await {
                (pause, true) => break pause,
                (_, false) => assert!(begun.elapsed() < PATIENCE, "none before it is unreachable"),
            }
        };
        depth::in_time(what, pause, Duration::from_secs(2));
    }
}

/// Cuts the owner of a log off until it is unreachable. Returns the longest time that an append through the other node
/// took, and whether one was done before the owner was unreachable; each must be stored once.
async fn longest_pause(replies_are_lost: bool) -> (Duration, bool) {
    let world = World::new(1);
    let clock = || Arc::new(SystemClock);
    let (seat, network) = Seat::behind_a_network().await;
    let members = [(0, Arc::clone(&seat.address))];
    let owner = seat.with(Times::default());
    let owner = owner.start(0, &world, clock(), GIVE_UP_AFTER);
    let edge = Seat::new().await.with(Times::default());
    let edge = edge.start(1, &world, clock(), GIVE_UP_AFTER);
    for node in [&owner, &edge] {
        node.believes(1, &members, &[Some(0)]);
    }
    let append = |node: &TestNode| {
        let append = Append::to(name("s"), ExpectedRevision::Any, vec![event()]);
        let node = Arc::clone(&node.node);
        async move {
            let start = Instant::now();
            node.append(append).await.expect("appended");
            start.elapsed()
        }
    };
    let mut count = 0;
    let begun = Instant::now();
    // If this machine stands still for a while, the link may break.
    loop {
        assert!(begun.elapsed() < PATIENCE, "no append is forwarded");
        until_linked(&edge).await;
        let before = edge.node.stats().direct;
        append(&edge).await;
        count += 1;
        if edge.node.stats().direct == before {
            break;
        }
    }
    match replies_are_lost {
        true => network.swallow_replies(true),
        false => network.freeze(true),
    }
    let reach = || edge.node.forwarder().nodes()[0].reach;
    let (mut slowest, mut went_on) = (Duration::ZERO, false);
    let cut_off = Instant::now();
    while reach() != Reach::Unreachable {
        assert!(cut_off.elapsed() < PATIENCE, "it is never unreachable");
        slowest = slowest.max(append(&edge).await);
        went_on |= reach() != Reach::Unreachable;
        append(&owner).await;
        count += 2;
    }
    let times = stored(&edge.node).await;
    assert!(times.len() == count && times.values().all(|times| *times == 1));
    (slowest, went_on)
}

/// Goal: a change has one deadline, wherever it is tried. What happened: after it had come back from the links, the
/// store was given the whole time once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_tried_here_as_well_has_one_deadline() {
    let database = Faulty::start(&World::new(1), |backend| backend);
    database.go_away();
    let backend = Arc::clone(&database);
    let mut config = Config::default();
    config.append.give_up_after = Duration::from_secs(3_600);
    let store = Store::open(backend, config, Arc::new(SystemClock)).expect("opened");
    // Much later than the moment at which the change comes back, so that it does come back.
    let give_up_after = Duration::from_secs(15);
    let node = Seat::new().await.with(gives_up_after_a_second());
    // Nobody owns the log, so the change comes back after a second.
    let node = node.start_with(store, give_up_after, Arc::<Arrangement>::default());
    let node = node.expect("started");
    let append = Append::to(name("s"), ExpectedRevision::Any, vec![event()]);
    let appended = tokio::time::timeout(PATIENCE, node.append(append)).await;
    let error = appended.expect("too late").expect_err("no answer");
    assert!(
        matches!(error.kind(), ErrorKind::OutcomeUnknown(_)),
        "{error}"
    );
    assert_eq!(node.stats().direct, 1);
}

#[tokio::test]
async fn a_memory_of_ids_shorter_than_the_attempts_is_refused() {
    for (seconds, is_refused) in [(19, true), (20, false)] {
        let mut config = Config::default();
        config.append.idempotency_time = Duration::from_secs(seconds);
        let backend = MemoryBackend::new(&World::new(1));
        let store = Store::open(backend, config, Arc::new(SystemClock)).expect("opened");
        let node = Seat::new().await;
        let give_up_after = Duration::from_secs(10);
        let node = node.start_with(store, give_up_after, Arc::<Arrangement>::default());
        assert_eq!(node.is_err(), is_refused);
        if let Err(error) = node {
            assert!(error.to_string().contains("at least twice"), "{error}");
        }
    }
}

/// Goal: a node whose membership has failed owns nothing and believes nothing. What happened: its old routes stayed, so
/// it appended at full speed to logs that others own by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_knows_nothing_appends_slowly() {
    let mut cluster = Cluster::new(2, gives_up_after_a_second()).await;
    cluster.agree(&[Some(0), Some(1)]);
    let node = &cluster.nodes[0].node;
    let append = |stream: &str| {
        let append = Append::to(name(stream), ExpectedRevision::Any, vec![event()]);
        node.append(append)
    };
    // Names of both logs.
    let logs = |of: u16| (0..).map(move |n| format!("s-{of}-{n}"));
    let name_in = |of| {
        let mut names = logs(of);
        names.find(|text| node.store().log_of(&name(text)).0 == of)
    };
    let names = [0, 1].map(|of| name_in(of).expect("there are many names"));
    until_linked(&cluster.nodes[0]).await;
    for name in &names {
        append(name).await.expect("appended");
    }
    assert_eq!(node.stats().direct, 0);
    cluster.nodes[0].knows_nothing();
    // Both without an owner, slowly; at once, or a moment later.
    for name in &names {
        let (begun, before) = (Instant::now(), node.stats().direct);
        while node.stats().direct == before {
            assert!(begun.elapsed() < PATIENCE, "at full speed");
            append(name).await.expect("appended");
        }
    }
}

/// Goal: a node appends nothing for others to a log that it does not own: it sends them to the owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_does_not_serve_a_log_that_another_one_owns() {
    let cluster = Cluster::new(1, patient()).await;
    let [edge, wrong, owner] = &cluster.nodes[..] else {
        panic!("three nodes");
    };
    edge.believes(1, &cluster.members, &[Some(1)]);
    for node in [wrong, owner] {
        node.believes(2, &cluster.members, &[Some(2)]);
    }
    let append = Append::to(name("s"), ExpectedRevision::NoStream, vec![event()]);
    let appended = tokio::time::timeout(PATIENCE, edge.node.append(append));
    appended.await.expect("in time").expect("appended");
    let appends = [edge, wrong, owner].map(|node| {
        let stats = node.node.store().pipeline_stats();
        stats[0].appends
    });
    assert_eq!(appends, [0, 0, 1]);
}

/// Answers with what it was asked, and the name of its node.
struct Echo(u32);

impl PeerService for Echo {
    fn call(&self, call: PeerCall) -> BoxFuture<'static, Bytes> {
        let asked = String::from_utf8_lossy(&call.body);
        let text = format!("{} {} {asked}", self.0, call.stream);
        ready(Bytes::from(text)).boxed()
    }
}

/// Answers with this many bytes, and counts the calls.
struct Large(usize, AtomicUsize);

impl PeerService for Large {
    fn call(&self, _: PeerCall) -> BoxFuture<'static, Bytes> {
        self.1.fetch_add(1, Ordering::SeqCst);
        ready(Bytes::from(vec![0; self.0])).boxed()
    }
}

/// What happened: an answer above the limit of links ended the lane of its log, and its call was sent again until its
/// deadline. Now it is refused where it was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_too_large_is_refused_at_once() {
    let mut cluster = Cluster::new(1, patient()).await;
    cluster.agree(&[Some(0)]);
    let (edge, stream) = (&cluster.nodes[1].node, name("s-1"));
    for (bytes, refusal) in [
        (16 << 20, None),
        ((16 << 20) + 1, Some(UnansweredReason::AnswerTooLarge)),
        (65 << 20, Some(UnansweredReason::AnswerTooLarge)),
    ] {
        let large = Arc::new(Large(bytes, AtomicUsize::new(0)));
        cluster.nodes[0]
            .node
            .register("large", Arc::clone(&large) as _);
        let answer = edge.forward("large", &stream, Bytes::new(), GIVE_UP_AFTER);
        let answer = answer.await;
        assert_eq!(answer.as_ref().err().map(|u| u.reason), refusal);
        assert!(answer.is_ok_and(|a| a.body.len() == bytes) || refusal.is_some());
        assert_eq!(large.1.load(Ordering::SeqCst), 1);
    }
}

/// Goal: what lives beside the store reaches its other half on the node that owns the stream, and is told if there is
/// none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_are_called_on_the_owner() {
    let mut cluster = Cluster::new(1, patient()).await;
    cluster.agree(&[Some(0)]);
    cluster.nodes[0].node.register("echo", Arc::new(Echo(0)));
    let (edge, stream) = (&cluster.nodes[1].node, name("s-1"));
    assert!(!edge.is_here(&stream) && cluster.nodes[0].node.is_here(&stream));
    let call = |service| edge.forward(service, &stream, "hi".into(), GIVE_UP_AFTER);
    let answer = call("echo").await.expect("answered");
    assert_eq!(answer.body, "0 s-1 hi");
    let missing = call("other").await.expect_err("there is none");
    assert_eq!(missing.reason, UnansweredReason::NotServed);
    cluster.agree(&[Some(1)]);
    let edge = &cluster.nodes[1].node;
    let mine = edge.forward("echo", &stream, "hi".into(), GIVE_UP_AFTER);
    assert_eq!(mine.await.expect_err("here").reason, UnansweredReason::Here);
}
