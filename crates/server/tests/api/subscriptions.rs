//! Tests server-sent events.

use std::sync::Arc;
use std::time::Duration;

use gesta_kit::depth;
use gesta_memory::MemoryStore;
use gesta_server::Config;

use crate::client::{Raw, Server, config, soon};

async fn subscribe(server: &Server, target: &str, header: &str) -> Raw {
    server
        .raw(&format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"
        ))
        .await
}

/// Returns the values of all lines of this field, in order.
fn values<'a>(received: &'a str, field: &str) -> Vec<&'a str> {
    received
        .lines()
        .filter_map(|line| line.strip_prefix(field)?.strip_prefix(": "))
        .collect()
}

#[tokio::test]
async fn what_is_stored_comes_first_and_then_what_happens() {
    let server = Server::start().await;
    server.append("a", &["1", "[\n2]"]).await;
    let mut events = subscribe(&server, "/streams/a/subscribe", "").await;
    events.until("caught_up").await;
    assert!(
        events.received.contains("content-type: text/event-stream"),
        "{}",
        events.received
    );
    server.append("b", &["8"]).await;
    server.append("a", &["3"]).await;
    events.until("\"data\":3").await;
    assert_eq!(
        values(&events.received, "event"),
        ["event", "event", "caught_up", "event"]
    );
    assert!(
        events.received.contains("\"data_base64\":\"WwoyXQ==\""),
        "a line break stays whole"
    );
    assert!(!events.received.contains("\"data\":8"), "another stream's");
}

#[tokio::test]
async fn last_event_id_wins_over_after() {
    let server = Server::start().await;
    server.append("a", &["0", "1", "2"]).await;
    for target in ["/streams/a/subscribe", "/all/subscribe"] {
        let mut events = subscribe(&server, target, "").await;
        events.until("caught_up").await;
        let ids = values(&events.received, "id")
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>();
        let resumed = [
            (format!("{target}?after={}", ids[1]), String::new()),
            (
                format!("{target}?after=start"),
                format!("Last-Event-ID: {}\r\n", ids[1]),
            ),
            (
                format!("{target}?after=end"),
                format!("last-event-id: {}\r\n", ids[1]),
            ),
        ];
        for (target, header) in resumed {
            let mut events = subscribe(&server, &target, &header).await;
            events.until("caught_up").await;
            let found = values(&events.received, "event");
            assert_eq!(found, ["event", "caught_up"], "{target} {header}");
            assert!(events.received.contains("\"data\":2"));
        }
    }
    let mut after = subscribe(&server, "/streams/a/subscribe?after=1", "").await;
    after.until("caught_up").await;
    assert_eq!(values(&after.received, "event"), ["event", "caught_up"]);
}

#[tokio::test]
async fn checkpoints_of_another_store_are_refused_by_status() {
    let (server, other) = (Server::start().await, Server::start().await);
    let checkpoint = other.append("a", &["1"]).await.json()["checkpoint"]
        .as_str()
        .expect("text")
        .to_owned();
    let answer = server
        .get(&format!("/all/subscribe?after={checkpoint}"))
        .await;
    assert_eq!(
        (answer.status, answer.problem().0.as_str()),
        (409, "invalid_checkpoint")
    );
}

#[tokio::test]
async fn a_silent_subscription_is_kept_alive() {
    let quick = Config {
        heartbeat: Duration::from_millis(20),
        ..config()
    };
    let server = Server::with(quick, Arc::new(MemoryStore::new())).await;
    let mut events = subscribe(&server, "/all/subscribe?after=end", "").await;
    events.until(": heartbeat\n\n").await;
    server.append("a", &["1"]).await;
    events.until("\"data\":1").await;
}

#[tokio::test]
async fn a_tombstone_and_a_stop_end_it_with_a_problem() {
    let server = Server::start().await;
    server.append("a", &["1"]).await;
    let mut closed = subscribe(&server, "/streams/a/subscribe", "").await;
    let mut stopped = subscribe(&server, "/all/subscribe", "").await;
    closed.until("caught_up").await;
    stopped.until("caught_up").await;
    server
        .send("DELETE", "/streams/a?tombstone=true", &[], "")
        .await;
    closed
        .until("event: error\ndata: {\"type\":\"urn:gesta:problem:stream_tombstoned\"")
        .await;
    soon(server.handle.shutdown()).await;
    let text = stopped.rest().await;
    assert!(
        text.contains("event: error\ndata: {\"type\":\"urn:gesta:problem:unavailable\""),
        "{text}"
    );
}

/// Goal: every subscriber gets every event once and in order, however many there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_subscribers_get_everything_in_order() {
    let subscribers = depth::count(50, 500);
    let burst: usize = depth::count(1_000, 10_000);
    let server = Server::start().await;
    let mut tasks = Vec::new();
    for _ in 0..subscribers {
        let mut events = subscribe(&server, "/all/subscribe?after=end", "").await;
        events.until("caught_up").await;
        tasks.push(tokio::spawn(async move {
            events.received.clear();
            let mut next = 0;
            while next < burst {
                assert!(events.more().await, "ended at {next}");
                let whole = events.received.rfind('\n').map_or(0, |at| at + 1);
                let rest = events.received.split_off(whole);
                for data in values(&events.received, "data")
                    .into_iter()
                    .filter(|d| d.starts_with("{\"stream\""))
                {
                    assert!(
                        data.starts_with(&format!("{{\"stream\":\"a\",\"revision\":{next},")),
                        "{next}: {data}"
                    );
                    next += 1;
                }
                events.received = rest;
            }
        }));
    }
    let begun = std::time::Instant::now();
    for _ in 0..burst / 100 {
        server
            .append(
                "a",
                &["{\"seat\":\"A-12\",\"by\":\"customer-000001\"}"; 100],
            )
            .await;
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(120), task)
            .await
            .expect("in time")
            .expect("in order");
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{subscribers} subscribers x {burst} events in {seconds:.2} s");
}
