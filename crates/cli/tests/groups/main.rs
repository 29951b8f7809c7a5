//! Consumer groups on the real binary: consumers that acknowledge, refuse, are silent and vanish, while the server is
//! killed twice.
//!
//! What holds: every event is finished by a consumer or parked, none is lost; whatever is delivered again is counted.
//! The deep form delivers 100,000 events, the quick one 3,000.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod commands;
#[allow(dead_code, reason = "shared with other tests, which use more of it")]
#[path = "../cluster/nodes.rs"]
mod nodes;
#[path = "../support/mod.rs"]
mod support;
mod work;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gesta_client::{HttpGroups, HttpStore};
use gesta_groups::ConsumerGroups;
use gesta_kit::depth;
use nodes::Nodes;
use support::{Server, patient, url_of};
use work::{Seen, append, group, judged, until};

/// Done-when: ten consumers, random refusals, time-outs and disconnects, two kills of the server.
async fn every_event_is_finished_or_parked(store: &str) {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let events: usize = depth::count(1_500, 100_000);
    let address = gesta_rig::free_address().unwrap().to_string();
    let start = || Server::start_with(store, &["--listen", &address]);
    let mut server = start();
    let client = HttpStore::connect(&server.url).unwrap();
    let groups = client.groups();
    work::create(&groups).await;

    let seen = Arc::new(Seen::default());
    let consumers = work::start(&[server.url.clone()], &seen, seed);
    // A part before each kill, and the last one while nothing is killed any more.
    let parts = [0, events / 3, events * 2 / 3, events];
    for part in parts.windows(2) {
        append(&client, part[0]..part[1]).await;
        let half = part[0] + (part[1] - part[0]) / 2;
        until("half of the part is finished", async || {
            seen.finished() >= half * 9 / 10
        })
        .await;
        if part[1] < events {
            server.kill();
            server = start();
        }
    }
    let last = u64::try_from(events).unwrap() - 1;
    let is_settled = async || {
        let info = groups.info(&group()).await;
        info.is_ok_and(|info| info.checkpoint == Some(last))
    };
    until("all is settled", is_settled).await;
    check_counts(&groups, &server, &seen).await;
    seen.stop.store(true, Ordering::SeqCst);
    for consumer in consumers {
        consumer.await.unwrap();
    }
    judged(&client, &seen, events).await.assert_clean();
    server.stop();
}

/// What the server tells of the time since it was started last.
async fn check_counts(groups: &HttpGroups, server: &Server, seen: &Seen) {
    let info = groups.info(&group()).await.unwrap();
    let counts = info.running.expect("consumers are there").counts;
    assert!(
        counts.redelivered > 0 && counts.redelivered < counts.delivered,
        "{counts:?}"
    );
    assert!(
        counts.parked > 0 && counts.timed_out > 0 && counts.refused > 0,
        "{counts:?}"
    );
    // What was told to consumers was counted, though not all that was counted had to reach them.
    assert!(seen.history.counts().0 > 0);
    let metrics = support::get(server.address(), "/metrics");
    let total = metrics
        .lines()
        .find_map(|line| line.strip_prefix("gesta_group_redeliveries_total "))
        .expect("a metric");
    assert!(
        total.parse::<u64>().unwrap() >= counts.redelivered,
        "{total} {counts:?}"
    );
}

/// The node that runs the group: the others refuse.
async fn runs_the_group(nodes: &Nodes) -> Option<usize> {
    for (number, node) in nodes.all.iter().enumerate() {
        if node.is_alive() && node.store().groups().info(&group()).await.is_ok() {
            return Some(number);
        }
    }
    None
}

/// Goal: consumers of a cluster go on at the node that takes the group over, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_a_cluster_loses_nothing_when_its_node_is_killed() {
    let Some(mut nodes) = Nodes::start(3, 8).await else {
        return;
    };
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let events: usize = depth::count(1_500, 100_000);
    let owner = runs_the_group_once_created(&nodes).await;
    append(&nodes.all[owner].store(), 0..events).await;
    let seen = Arc::new(Seen::default());
    let urls: Vec<String> = nodes.all.iter().map(nodes::Node::url).collect();
    let consumers = work::start(&urls, &seen, seed);
    for part in 1..=2 {
        let so_many = events * part / 3;
        until("a part is finished", async || seen.finished() >= so_many).await;
        let mut victim = None;
        until("a node runs the group", async || {
            victim = runs_the_group(&nodes).await;
            victim.is_some()
        })
        .await;
        let victim = victim.unwrap();
        nodes.all[victim].kill();
        let taken = |owned: &[usize]| owned[victim] == 0;
        nodes.owned("others own all logs", taken).await;
        nodes.all[victim].launch();
        nodes.all[victim].ready().await;
    }
    let last = u64::try_from(events).unwrap() - 1;
    until("all is settled", async || {
        let Some(owner) = runs_the_group(&nodes).await else {
            return false;
        };
        let info = nodes.all[owner].store().groups().info(&group()).await;
        info.is_ok_and(|info| info.checkpoint == Some(last))
    })
    .await;
    seen.stop.store(true, Ordering::SeqCst);
    for consumer in consumers {
        consumer.await.unwrap();
    }
    let verdict = judged(&nodes.all[0].store(), &seen, events).await;
    verdict.assert_clean();
}

/// Creates the group at the node that takes it.
async fn runs_the_group_once_created(nodes: &Nodes) -> usize {
    let (mut taker, mut is_in_doubt) = (None, false);
    until("a node takes the group", async || {
        for (number, node) in nodes.all.iter().enumerate() {
            if work::try_create(&node.store().groups(), &mut is_in_doubt).await {
                taker = Some(number);
                return true;
            }
        }
        false
    })
    .await;
    taker.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_loses_nothing_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let store = url_of(&directory.path().join("gesta.db"));
    every_event_is_finished_or_parked(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_loses_nothing_on_postgresql() {
    let Some(server) = gesta_rig::shared() else {
        return;
    };
    let schema = gesta_rig::fresh_schema();
    let store = patient(&format!("{}?schema={schema}", server.url()));
    every_event_is_finished_or_parked(&store).await;
}
