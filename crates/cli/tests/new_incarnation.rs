//! A new incarnation that an operator begins, with servers of the real binary that run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::collections::HashSet;
use std::time::Duration;

use gesta_client::HttpStore;
use gesta_core::*;
use gesta_kit::depth;
use gesta_rig::{Cluster, Replication, fresh_schema, shared};
use support::{Server, patient, succeed, until};
use tokio::time::Instant;

fn event() -> EventData {
    EventData::json(EventType::new("tested").unwrap(), "{}")
}

/// Goal: `gesta schema new-incarnation` reaches servers that run, a busy and an idle one. They went on with the old
/// incarnation, and handed out checkpoints that were refused after their restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_incarnation_reaches_servers_that_run() {
    let Some(postgres) = shared() else { return };
    let store_url = patient(&format!("{}?schema={}", postgres.url(), fresh_schema()));
    let servers = [Server::start(&store_url), Server::start(&store_url)];
    let stores = servers
        .each_ref()
        .map(|server| HttpStore::connect(&server.url).unwrap());
    let append = async |store: &HttpStore| {
        let events = vec![event()];
        let appended = store.append_to("a", ExpectedRevision::Any, events).await;
        appended.expect("stored").checkpoint
    };
    let old = append(&stores[0]).await;
    succeed(&["--store", &store_url, "schema", "new-incarnation", "--yes"]);
    let begun = Instant::now();
    for store in &stores {
        let knows = async || {
            let info = store.info().await;
            info.is_ok_and(|info| info.incarnation != old.incarnation)
        };
        until("the server knows the new incarnation", knows).await;
    }
    let (took, bound) = (begun.elapsed(), Duration::from_secs(2));
    depth::in_time("servers know a new incarnation", took, bound);
    for store in &stores {
        let read = ReadAll::forwards().from(AllFrom::Checkpoint(old.clone()));
        let error = store.read_all(read).await.expect_err("of the old life");
        assert!(
            matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
            "{error}"
        );
        let new = append(store).await;
        assert_ne!(new.incarnation, old.incarnation);
        let read = ReadAll::forwards().from(AllFrom::Checkpoint(new));
        assert_eq!(store.read_all(read).await.expect("of this life").events, []);
    }
}

/// Goal: after a step back to the primary before, a server that has seen the newer one refuses everything, since it
/// cannot tell that primary from one that was replaced; what the guide says lets the store go on: a new incarnation,
/// and servers that were started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_came_back_is_taken_by_new_servers() {
    let Some(mut cluster) = Cluster::start(1, Replication::Asynchronous).unwrap() else {
        return;
    };
    let store_url = format!("{}?schema={}", cluster.url(), fresh_schema());
    let server = Server::start(&store_url);
    let store = HttpStore::connect(&server.url).unwrap();
    let append = async |store: &HttpStore, stream: &str| {
        let events = vec![event()];
        let request = store.append_to(stream, ExpectedRevision::Any, events);
        request
            .await
            .map(|appended| appended.checkpoint.incarnation)
    };
    let old = append(&store, "before").await.expect("stored");
    cluster.wait_for_standby(1).unwrap();
    cluster.promote(1).unwrap();
    let mut newer = old;
    until("the server goes on at the new primary", async || {
        newer = append(&store, "between").await.unwrap_or(old);
        newer != old
    })
    .await;
    cluster.server_mut(1).kill_9().unwrap();
    cluster.return_to(0).unwrap();
    until("the server tells why it refuses", async || {
        let refused = append(&store, "between").await;
        refused.is_err_and(|error| {
            error
                .to_string()
                .contains("was replaced by one on timeline")
        })
    })
    .await;

    succeed(&["--store", &store_url, "schema", "new-incarnation", "--yes"]);
    server.stop();
    let server = Server::start(&store_url);
    let store = HttpStore::connect(&server.url).unwrap();
    let last = append(&store, "after").await.expect("stored");
    assert!(last != old && last != newer, "{old} {newer} {last}");
    let read = store.read_all(ReadAll::forwards()).await.expect("readable");
    let streams: HashSet<&str> = read
        .events
        .iter()
        .map(|event| event.stream.as_str())
        .collect();
    assert!(streams.contains("before"), "{streams:?}");
    assert!(streams.contains("after"), "{streams:?}");
}
