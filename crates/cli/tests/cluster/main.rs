//! The real binary as three nodes of one PostgreSQL database, under load through faults: a node that is killed, one
//! that hangs, restarts one after the other, a database that restarts, wrong configurations.
//!
//! What holds: every acknowledged append is stored exactly once where its answer says, nothing refused is stored,
//! revisions have no gaps, and appends go on through the nodes that live.
//!
//! How long something takes is printed, and checked in the deep form only: tests run beside each other on few
//! processors.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod hints;
mod load;
mod moves;
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod nodes;
mod operators;
mod several;
#[path = "../support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use gesta_client::HttpStore;
use gesta_core::{
    Append, EventData, EventStore, EventType, ExpectedRevision, Filter, LogId, StreamId, Subscribe,
    SubscribeFrom, SubscribeTo, SubscriptionMessage, log_of,
};
use gesta_kit::depth::{self, in_time};
use load::Load;
use nix::sys::signal::Signal;
use nodes::Nodes;
use support::PATIENCE;

const NODES: usize = 3;
const LOGS: usize = 8;
/// A dead node's logs have other owners within this time.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(10);
/// The longest append through a node that lives while another one has died: two seconds, and a margin.
const DEAD_PAUSE_MAX: Duration = Duration::from_secs(6);
/// The same while another node hangs: it is noticed by three seconds without a pong.
const HUNG_PAUSE_MAX: Duration = Duration::from_secs(9);
/// The same while another node hands its logs over and ends.
const HANDED_OVER_PAUSE_MAX: Duration = Duration::from_secs(4);
/// So long a node hangs: longer than it takes to be declared dead.
const HANG: Duration = Duration::from_secs(10);

/// Goal: a node that is killed loses nothing; its logs have owners soon, and it gets logs again when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn logs_of_a_killed_node_are_taken_over_and_come_back() {
    let Some(mut nodes) = Nodes::start(NODES, LOGS).await else {
        return;
    };
    let load = Load::start(&nodes);
    for _ in 0..depth::count(1, 6) {
        let victim = nodes.busiest();
        load.goes_on().await;
        let begun = Instant::now();
        nodes.all[victim].kill();
        let taken = nodes
            .owned("others own all logs", |owned| owned[victim] == 0)
            .await;
        load.goes_on().await;
        let longest = load.longest_elsewhere(begun, victim);
        nodes.all[victim].launch();
        nodes.all[victim].ready().await;
        let back = nodes
            .owned("it has logs again", |owned| owned[victim] > 0)
            .await;
        eprintln!("has logs again {back:?} after it was ready");
        let what = "logs of a killed node are taken over";
        in_time(what, taken, TAKEN_OVER_WITHIN);
        let what = "longest append elsewhere while a node is killed";
        in_time(what, longest, DEAD_PAUSE_MAX);
    }
    load.goes_on().await;
    load.check(&nodes).await;
}

/// Goal: a node that hangs and goes on loses and doubles nothing: what it had in flight misses, and it joins again.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_and_goes_on_doubles_nothing() {
    let Some(nodes) = Nodes::start(NODES, LOGS).await else {
        return;
    };
    let load = Load::start(&nodes);
    for _ in 0..depth::count(1, 6) {
        let victim = nodes.busiest();
        load.goes_on().await;
        let begun = Instant::now();
        nodes.all[victim].signal(Signal::SIGSTOP);
        let taken = nodes
            .owned("others own all logs", |owned| owned[victim] == 0)
            .await;
        tokio::time::sleep(HANG.saturating_sub(begun.elapsed())).await;
        nodes.all[victim].signal(Signal::SIGCONT);
        load.goes_on().await;
        let longest = load.longest_elsewhere(begun, victim);
        let what = "logs of a node that hangs are taken over";
        in_time(what, taken, TAKEN_OVER_WITHIN);
        let what = "longest append elsewhere while a node hangs";
        in_time(what, longest, HUNG_PAUSE_MAX);
    }
    load.check(&nodes).await;
    for node in &nodes.all {
        node.ready().await;
    }
}

/// Goal: a rolling restart is seen by callers as connections that are refused or closed, never as an error of the
/// store.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_answers_no_error() {
    let Some(mut nodes) = Nodes::start(NODES, LOGS).await else {
        return;
    };
    let load = Load::start(&nodes);
    for round in 0..depth::count(NODES, NODES * 6) {
        let node = round % NODES;
        load.goes_on().await;
        let begun = Instant::now();
        nodes.all[node].stop().await;
        eprintln!("restarted: stopped in {:?}", begun.elapsed());
        nodes.all[node].launch();
        nodes.all[node].ready().await;
        load.goes_on().await;
        let longest = load.longest_elsewhere(begun, node);
        let what = "longest append elsewhere while a node is started again";
        in_time(what, longest, HANDED_OVER_PAUSE_MAX);
    }
    let errors = load.errors();
    let of_connections = |error: &str| {
        let words = ["refused", "closed", "reset", "broken pipe"];
        words.iter().any(|word| error.to_lowercase().contains(word))
    };
    let others: Vec<_> = errors
        .iter()
        .filter(|(_, error)| !of_connections(error))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    eprintln!("{} attempts found connections closed", errors.len());
    load.check(&nodes).await;
}

/// Goal: a database that restarts moves no log, and everything goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_restarts_moves_nothing() {
    let Some(mut nodes) = Nodes::start(NODES, LOGS).await else {
        return;
    };
    nodes.freeze();
    let load = Load::start(&nodes);
    for _ in 0..depth::count(2, 10) {
        load.goes_on().await;
        let moves = nodes.moves();
        let begun = Instant::now();
        tokio::task::block_in_place(|| nodes.postgres.restart().unwrap());
        load.goes_on().await;
        let longest = load.longest_elsewhere(begun, NODES);
        eprintln!("database restarted: longest append {longest:?}");
        assert_eq!(nodes.moves(), moves, "logs moved without need");
    }
    load.check(&nodes).await;
}

/// What happened: a node with another secret joined, took logs that nobody else could reach, and everybody only warned.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_another_secret_is_refused_and_disturbs_nobody() {
    let Some(mut nodes) = Nodes::start(NODES, LOGS).await else {
        return;
    };
    let load = Load::start(&nodes);
    load.goes_on().await;
    let begun = Instant::now();
    let address = gesta_rig::free_address().unwrap();
    let stranger = nodes.add(&address.to_string(), "what nobody else knows");
    nodes.all[stranger].ended().await;
    let (said, here) = (nodes.all[stranger].log(), address.to_string());
    let rule = "the secret of the cluster must be the same in all nodes of a store";
    assert!(said.contains(rule) && said.contains(&here), "{said}");
    let others: Vec<String> = nodes.all[..NODES]
        .iter()
        .map(|node| node.address.to_string())
        .collect();
    assert!(others.iter().any(|other| said.contains(other)), "{said}");
    let joined = format!("SELECT count(*)::text FROM gesta.nodes WHERE address = '{here}'");
    assert_eq!(nodes.ask(&joined), "0", "it has written nothing");
    support::wait_until("the others say why they refuse it", || {
        let sentence = "it does not know the secret of the cluster";
        nodes.all[0].log().contains(sentence)
    });
    load.goes_on().await;
    let longest = load.longest_elsewhere(begun, NODES);
    let what = "longest append while a stranger is there";
    in_time(what, longest, DEAD_PAUSE_MAX);
    load.check(&nodes).await;
}

/// Goal: of two processes with one address the replaced one stops with a sentence, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_with_one_address_the_replaced_one_stops() {
    let Some(mut nodes) = Nodes::start(NODES, LOGS).await else {
        return;
    };
    let load = Load::start(&nodes);
    load.goes_on().await;
    let address = nodes.all[0].address.to_string();
    // One that beats would be in the way of the second.
    nodes.all[0].signal(Signal::SIGSTOP);
    let second = nodes.add(&address, "what all nodes of the test share");
    nodes.all[second].ready().await;
    nodes.all[0].signal(Signal::SIGCONT);
    nodes.all[0].ended().await;
    let said = nodes.all[0].log();
    assert!(
        said.contains("another process") && said.contains(&address),
        "{said}"
    );
    load.goes_on().await;
    load.check(&nodes).await;
}

/// How long after its acknowledgement an append that goes through one node reaches a subscription at another.
async fn ways(through: &HttpStore, subscribed: &HttpStore) -> Vec<Duration> {
    let request = Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::End,
    };
    let mut subscription = subscribed.subscribe(request).await.unwrap();
    let mut ways = Vec::new();
    let logs = u16::try_from(LOGS).unwrap();
    let streams = (0..).map(|number| StreamId::new(format!("stream-{number}")).unwrap());
    let of_first = streams.filter(|stream| log_of(stream, logs) == LogId(0));
    for stream in of_first.take(depth::count(100, 1_000)) {
        let event = EventData::json(EventType::new("happened").unwrap(), "{}");
        let append = Append::to(stream, ExpectedRevision::Any, vec![event]);
        let position = through.append(append).await.unwrap().position;
        let acknowledged = Instant::now();
        let arrives = async {
            loop {
                let message = subscription.next().await.unwrap().unwrap();
                let SubscriptionMessage::Event { event, .. } = message else {
                    continue;
                };
                if event.position == position {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, arrives).await.unwrap();
        ways.push(acknowledged.elapsed());
    }
    ways.sort();
    ways
}

/// Goal: a subscription at the node that forwarded an append gets its event soon, whoever owns the log: the answer of
/// the owner lets the node read the log, which does not wait for the owner's message by way of the database.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_gets_what_its_node_has_forwarded() {
    let Some(nodes) = Nodes::start(NODES, LOGS).await else {
        return;
    };
    let owner = nodes.owner(0);
    let [owner, forwarder, third] =
        [owner, owner + 1, owner + 2].map(|node| nodes.all[node % NODES].store());
    let cases = [
        ("the owner", &owner, &owner),
        ("the forwarding node", &forwarder, &forwarder),
        ("a third node", &forwarder, &third),
    ];
    for (name, through, subscribed) in cases {
        let ways = ways(through, subscribed).await;
        let at = |percent: usize| ways[(ways.len() - 1) * percent / 100];
        let (half, most, longest) = (at(50), at(90), at(100));
        eprintln!("to a subscription at {name}: p50 {half:?}, p90 {most:?}");
        let what = format!("longest way to a subscription at {name}");
        in_time(&what, longest, Duration::from_secs(1));
    }
}
