//! A node that takes a log over knows what the owner before has appended to it.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use gesta_core::{
    Append, EventData, EventStore, EventType, ExpectedRevision, LogId, StreamId, SystemClock,
};
use gesta_link::Address;
use support::database::World;
use support::{GIVE_UP_AFTER, PATIENCE, Seat, TestNode};

const LOG: LogId = LogId(0);
/// The number of the question that asks a node to prepare.
const PREPARE: u8 = 3;

/// Two nodes that can reach each other. The first one owns the log and has appended to it.
async fn nodes() -> [TestNode; 2] {
    let world = World::new(1);
    // With several batches in flight a pipeline tries with empty ones whether it gains by them. If such a batch were
    // under way when the first node appends, it would miss, and the pipeline would have read.
    world.set_batches_in_flight_max(1);
    let (first, second) = (Seat::new().await, Seat::new().await);
    let start =
        |seat: Seat, number| seat.start(number, &world, Arc::new(SystemClock), GIVE_UP_AFTER);
    let nodes = [start(first, 1), start(second, 2)];
    let second = nodes[1].node.store();
    // Its pipeline is at the end of the log before anything is in it.
    second.ready().await.expect("ready");
    second.prepare(LOG).await;
    owned_by(&nodes, 0);
    append(&nodes[0]).await;
    append(&nodes[0]).await;
    nodes
}

fn owned_by(nodes: &[TestNode; 2], owner: usize) {
    let members = [1, 2].map(|number| (number, Arc::clone(&nodes[number as usize - 1].address)));
    let epoch = 1 + owner as u64;
    nodes[0].believes(epoch, &members, &[Some(owner)]);
    nodes[1].believes(epoch, &members, &[Some(owner)]);
}

async fn append(node: &TestNode) {
    let stream = StreamId::new("s").expect("valid");
    let event = EventData::json(EventType::new("e").expect("valid"), "{}");
    let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
    node.node.append(append).await.expect("appended");
}

/// Returns how often the second node has looked streams up, and how many of its batches have missed.
fn counts(nodes: &[TestNode; 2]) -> (u64, u64) {
    let stats = nodes[1].node.store().stats_of(LOG).expect("a log");
    (stats.loads, stats.misses)
}

async fn ask(nodes: &[TestNode; 2], body: &'static [u8]) -> Bytes {
    let (to, within) = (Address::new(Arc::clone(&nodes[1].address)), PATIENCE);
    let deadline = tokio::time::Instant::now() + within;
    let forwarder = nodes[0].node.forwarder();
    let body = Bytes::from_static(body);
    let answer = forwarder.ask(&to, PREPARE, body, deadline).await;
    answer.expect("an answer")
}

/// Goal: a node reads a log when it takes it over. Its first append does not miss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_taken_over_is_read_first() {
    let nodes = nodes().await;
    assert_eq!(counts(&nodes), (0, 0));
    owned_by(&nodes, 1);
    let has_read = async {
        while counts(&nodes).0 == 0 {
            tokio::task::yield_now().await;
        }
    };
    let has_read = tokio::time::timeout(PATIENCE, has_read).await;
    has_read.expect("looks up the stream of the last events");
    append(&nodes[1]).await;
    assert_eq!(counts(&nodes), (1, 0));
}

/// Goal: a node that is asked to prepare has done so when it answers. What is no log is answered, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_prepares_when_it_is_asked_to() {
    let nodes = nodes().await;
    for unreadable in [&b""[..], b"\0", b"\0\0\0", b"\xff\xff"] {
        assert!(ask(&nodes, unreadable).await.is_empty());
    }
    assert_eq!(counts(&nodes), (0, 0));
    assert!(ask(&nodes, b"\0\0").await.is_empty());
    assert_eq!(counts(&nodes), (1, 0));
}
