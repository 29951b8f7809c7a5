//! Three nodes on a store of two databases, each on a server of its own.

use std::time::{Duration, Instant};

use gesta_client::HttpStore;
use gesta_core::{
    Append, EventData, EventId, EventStore, EventType, ExpectedRevision, LogId, StreamId, log_of,
};
use gesta_kit::depth;

use crate::load::Load;
use crate::nodes::{Nodes, WAIT};
use crate::support::PATIENCE;

const LOGS: u16 = 4;

/// A stream of a log.
fn stream_of(log: u16) -> StreamId {
    let name = |n| StreamId::new(format!("probe-{n}")).unwrap();
    let mut names = (0..).map(name);
    names.find(|name| log_of(name, LOGS) == LogId(log)).unwrap()
}

fn append_to(log: u16) -> Append {
    let event = EventData::json(EventType::new("happened").unwrap(), "{}");
    let event = event.with_id(EventId::random());
    Append::to(stream_of(log), ExpectedRevision::Any, vec![event])
}

/// Waits until a node says that a database is away.
async fn away(store: &HttpStore) {
    let begun = Instant::now();
    while store.ready().await.is_ok() {
        assert!(begun.elapsed() < PATIENCE, "still ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The owner of a log, by its address, and the database that says so.
fn owner(nodes: &Nodes, log: u16) -> (String, u64) {
    let status = nodes.command(&["cluster", "status", "--output", "json"]);
    let rows = status.lines();
    let mut rows = rows.map(|row| serde_json::from_str::<serde_json::Value>(row).unwrap());
    let row = rows.find(|row| row["kind"] == "log" && row["log"] == log);
    let row = row.unwrap();
    let address = row["address"].as_str().unwrap_or_default();
    (address.to_owned(), row["database"].as_u64().unwrap())
}

/// A node is killed, and started again when others own its logs.
async fn lose_a_node(nodes: &mut Nodes, load: &Load) {
    let victim = nodes.busiest();
    nodes.all[victim].kill();
    nodes
        .owned("others own all logs", |owned| owned[victim] == 0)
        .await;
    load.goes_on().await;
    nodes.all[victim].launch();
    nodes.all[victim].ready().await;
}

/// A log moves to the first database and back to the second.
async fn move_a_log(nodes: &Nodes, load: &Load) {
    for (database, number) in [(nodes.postgres.url(), 1), (nodes.more[0].url(), 2)] {
        tokio::task::block_in_place(|| {
            nodes.command(&["cluster", "move-log", "1", "--to", &database]);
        });
        load.goes_on().await;
        nodes.owned("the moved log has an owner", |_| true).await;
        assert_eq!(owner(nodes, 1).1, number);
    }
}

/// The second database is killed, and started again after longer than it takes to declare a silent node dead. Meanwhile
/// every node serves the logs of the first one.
async fn lose_a_database(nodes: &mut Nodes, load: &Load) {
    tokio::task::block_in_place(|| nodes.more[0].kill_9().unwrap());
    let stores: Vec<HttpStore> = nodes.all.iter().map(|node| node.store()).collect();
    away(&stores[0]).await;
    let (killed, mut appended, mut longest) = (Instant::now(), 0, Duration::ZERO);
    while killed.elapsed() < Duration::from_secs(8) {
        for store in &stores {
            let begun = Instant::now();
            load.append(store, append_to(0)).await.unwrap();
            longest = longest.max(begun.elapsed());
            appended += 1;
        }
    }
    assert!(nodes.all.iter().all(|node| node.is_alive()));
    tokio::task::block_in_place(|| nodes.more[0].restart().unwrap());
    let restarted = Instant::now();
    load.goes_on().await;
    eprintln!(
        "a database was away: {appended} appends in the other one, the longest {longest:?}; its own logs went on {:?} \
         after its start",
        restarted.elapsed()
    );
    for node in &nodes.all {
        node.ready().await;
    }
    nodes.owned("all logs have owners again", |_| true).await;
}

/// Goal: under load, a node that is killed, a log that moves to the other database and back, and a database that is
/// killed and started again lose, double and reorder nothing; the logs of the other database are served all the while.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_on_two_databases_lose_nothing() {
    let Some(mut nodes) = Nodes::start_on(3, LOGS.into(), 2).await else {
        return;
    };
    assert_eq!([owner(&nodes, 0).1, owner(&nodes, 1).1], [1, 2]);
    let load = Load::start(&nodes);
    for round in 0..depth::count(1, 20) {
        load.goes_on().await;
        lose_a_node(&mut nodes, &load).await;
        move_a_log(&nodes, &load).await;
        lose_a_database(&mut nodes, &load).await;
        eprintln!("round {round} is over");
    }
    load.check(&nodes).await;
}

/// Goal: what people ask of a log or a node is done in the database that it is about.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_people_reach_the_right_database() {
    let Some(nodes) = Nodes::start_on(2, LOGS.into(), 2).await else {
        return;
    };
    let addresses: Vec<String> = nodes
        .all
        .iter()
        .map(|node| node.address.to_string())
        .collect();
    let command = |arguments: &[&str]| tokio::task::block_in_place(|| nodes.command(arguments));
    command(&["cluster", "freeze"]);
    for log in [0, 1] {
        // The last one is the node that is drained, so that it has something to hand over.
        for to in addresses.iter().rev() {
            let log_text = log.to_string();
            command(&["cluster", "move", &log_text, "--to", to, "--wait", WAIT]);
            assert_eq!(owner(&nodes, log).0, *to, "log {log}");
        }
    }
    command(&["cluster", "thaw"]);
    command(&["cluster", "drain", &addresses[0], "--wait", WAIT]);
    assert_eq!(nodes.logs_owned(), [0, 4]);
    command(&["cluster", "drain", &addresses[0], "--undo"]);
    command(&["cluster", "pin", "1", "--to", &addresses[0]]);
    command(&["cluster", "unpin", "1"]);
    let history = command(&["cluster", "history", "--output", "json"]);
    assert!(history.contains("\"drain\"") && history.contains("\"request\""));
}
