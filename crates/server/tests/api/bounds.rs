//! Tests that everything that waits or is held has a maximum, and that stopping lets running requests finish.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_core::{AllPage, EventStore, ReadAll};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;
use gesta_server::{Config, Registry, StartError};

use crate::client::{Server, config, soon};
use crate::gated::GatedStore;

/// The time after the server is told to stop in which one more request of an idle connection is answered.
const LAST_REQUEST_MAX: Duration = Duration::from_millis(500);

const APPEND: &str = r#"{"events":[{"type":"T","data":1}]}"#;

fn append_with_length(length: usize, body: &str) -> String {
    format!(
        "POST /streams/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn only_loopback_is_served_unless_told_otherwise() {
    let open = Config {
        listen: ([0, 0, 0, 0], 0).into(),
        ..config()
    };
    let store = Arc::new(MemoryStore::new());
    let refused = gesta_server::start(open.clone(), store.clone(), Registry::default()).await;
    assert!(
        matches!(refused, Err(StartError::NotLoopback(_))),
        "{refused:?}"
    );
    let insecure = Config {
        insecure: true,
        ..open
    };
    let server = gesta_server::start(insecure, store.clone(), Registry::default())
        .await
        .expect("allowed");
    let taken = Config {
        listen: ([127, 0, 0, 1], server.local_addr().port()).into(),
        ..config()
    };
    let refused = gesta_server::start(taken, store, Registry::default()).await;
    assert!(
        matches!(refused, Err(StartError::Listen { .. })),
        "{refused:?}"
    );
    soon(server.shutdown()).await;
}

#[tokio::test]
async fn requests_beyond_the_maximum_are_overload() {
    let store = GatedStore::new();
    let server = Server::with(
        Config {
            requests_in_flight_max: 2,
            ..config()
        },
        store.clone(),
    )
    .await;
    let (one, two) = (
        server.raw(&append_with_length(APPEND.len(), APPEND)).await,
        server.raw(&append_with_length(APPEND.len(), APPEND)).await,
    );
    store.appends_have_come(2).await;
    let refused = server.get("/info").await;
    assert_eq!(
        (
            refused.status,
            refused.header("retry-after"),
            refused.problem().0.as_str()
        ),
        (503, "1", "overloaded")
    );
    // Those who look after the server still see it.
    assert_eq!(server.get("/health/live").await.status, 200);
    assert!(
        server
            .get("/metrics")
            .await
            .body
            .contains("gesta_http_requests_in_flight 2\n")
    );
    store.appends.add_permits(2);
    for mut raw in [one, two] {
        raw.until("201 Created").await;
        raw.until("checkpoint").await;
    }
    assert_eq!(server.get("/info").await.status, 200);
}

#[tokio::test]
async fn subscriptions_and_connections_beyond_the_maximum_are_overload() {
    let limited = Config {
        subscriptions_max: 1,
        connections_max: 3,
        ..config()
    };
    let server = Server::with(limited, Arc::new(MemoryStore::new())).await;
    let subscribe = "GET /all/subscribe HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut first = server.raw(subscribe).await;
    first.until("caught_up").await;
    let mut second = server.raw(subscribe).await;
    second.until("overloaded").await;
    let mut third = server
        .raw("GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    third.until("200 OK").await;
    let turned_away = server.raw("").await.rest().await;
    assert!(
        turned_away.starts_with("HTTP/1.1 503") && turned_away.contains("overloaded"),
        "{turned_away}"
    );
    drop(first);
    // Its place is free as soon as the server has seen it go.
    soon(async {
        loop {
            second.received.clear();
            second.say(subscribe).await;
            while !second.received.contains("overloaded") {
                if second.received.contains("caught_up") {
                    return;
                }
                assert!(second.more().await, "{}", second.received);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn bytes_beyond_the_budget_are_overload() {
    let store = GatedStore::new();
    let server = Server::with(
        Config {
            bytes_in_flight_max: 10_000,
            ..config()
        },
        store.clone(),
    )
    .await;
    let large = format!(
        r#"{{"events":[{{"type":"T","data":"{}"}}]}}"#,
        "x".repeat(6_000)
    );
    let mut first = server.raw(&append_with_length(large.len(), &large)).await;
    store.appends_have_come(1).await;
    let refused = server.json("POST", "/streams/a", &large).await;
    assert_eq!(
        (refused.status, refused.problem().0.as_str()),
        (503, "overloaded")
    );
    store.appends.add_permits(3);
    first.until("checkpoint").await;
    assert_eq!(server.json("POST", "/streams/a", &large).await.status, 201);
    let page = server.get("/streams/a").await;
    assert_eq!(
        page.problem().0,
        "overloaded",
        "two events are more than the budget"
    );
    assert_eq!(server.get("/streams/a?limit=1").await.status, 200);
}

/// What happened: the events of a body counted as its bytes, but hold ten times as much if they are small. Goal: they
/// count as what they hold.
#[tokio::test]
async fn many_small_events_count_as_what_they_hold() {
    let tight = Config {
        bytes_in_flight_max: 1_000_000,
        ..config()
    };
    let server = Server::with(tight, Arc::new(MemoryStore::new())).await;
    for (events, status) in [(3_000, 201), (10_000, 503)] {
        let each = vec![r#"{"type":"t","data":1}"#; events];
        let events = each.join(",");
        let several = format!(r#"{{"appends":[{{"stream":"a","events":[{events}]}}]}}"#);
        assert!(several.len() < 300_000);
        let one = format!(r#"{{"events":[{events}]}}"#);
        let answer = server.json("POST", "/streams/a", &one).await;
        assert_eq!(answer.status, status);
        assert_eq!(
            server.json("POST", "/append", &several).await.status,
            status
        );
    }
}

#[tokio::test]
async fn slow_heads_and_bodies_are_not_waited_for() {
    let impatient = Config {
        head_read_max: Duration::from_millis(60),
        body_read_max: Duration::from_millis(60),
        ..config()
    };
    let server = Server::with(impatient, Arc::new(MemoryStore::new())).await;
    let head = server.raw("GET /info HTTP/1.1\r\nHost").await;
    assert_eq!(head.rest().await, "");
    let mut kept = server
        .raw("GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    kept.until("live").await;
    kept.say("GET ").await;
    assert!(
        kept.rest().await.ends_with("{\"status\":\"live\"}\n"),
        "the second head never came"
    );
    let body = server.raw(&append_with_length(100, "{")).await;
    let answer = body.rest().await;
    assert!(
        answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let impatient = Config {
        write_stall_max: Duration::from_millis(200),
        ..config()
    };
    let server = Server::with(impatient, Arc::new(MemoryStore::new())).await;
    let large = format!("\"{}\"", "x".repeat(1_000_000));
    for _ in 0..20 {
        server.append("a", &[&large]).await;
    }
    let mut stalled = server
        .raw("GET /streams/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    soon(async {
        while !server
            .get("/metrics")
            .await
            .body
            .contains("gesta_http_in_flight_bytes 0\n")
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // What was on its way arrives, and no more.
    let mut bytes = 0;
    while stalled.more().await {
        bytes += stalled.received.len();
        stalled.received.clear();
    }
    assert!(bytes < 20_000_000, "{bytes}");
}

/// Returns the value of a metric.
async fn metric(server: &Server, name: &str) -> usize {
    let shown = server.get("/metrics").await.body;
    let value = shown.lines().find_map(|line| line.strip_prefix(name));
    value
        .and_then(|value| value.trim().parse().ok())
        .expect("shown")
}

/// What happened: what a subscription keeps of its filter, up to a hundred kilobytes, counted nothing. Goal: it counts
/// as long as the subscription is there, and one for which there is no room is refused.
#[tokio::test]
async fn filters_of_subscriptions_count() {
    let tight = Config {
        bytes_in_flight_max: 300_000,
        ..config()
    };
    let server = Server::with(tight, Arc::new(MemoryStore::new())).await;
    let subscribe = async |number: usize| {
        let prefixes = (0..50).map(|k| format!("stream_prefix={number}-{k}-{:p>500}", ""));
        let prefixes = prefixes.collect::<Vec<_>>().join("&");
        let head =
            format!("GET /all/subscribe?after=end&{prefixes} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut raw = server.raw(&head).await;
        raw.until("\r\n\r\n").await;
        raw
    };
    let mut held = Vec::new();
    loop {
        let raw = subscribe(held.len()).await;
        if raw.status() == 503 {
            break;
        }
        assert_eq!(raw.status(), 200);
        held.push(raw);
        let bytes = metric(&server, "gesta_http_in_flight_bytes").await;
        assert!(bytes >= held.len() * 25_000, "{bytes}");
        assert!(held.len() < 10, "{bytes}");
    }
    assert!(!held.is_empty());
    held.clear();
    soon(async {
        while metric(&server, "gesta_http_in_flight_bytes").await > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(subscribe(0).await.status(), 200);
}

/// Returns the value of a metric once it has not changed for a hundred answers.
async fn settled(server: &Server, name: &str) -> usize {
    soon(async {
        let mut before = metric(server, name).await;
        loop {
            for _ in 0..100 {
                server.get("/health/live").await;
            }
            let now = metric(server, name).await;
            if now == before {
                return now;
            }
            before = now;
        }
    })
    .await
}

/// Goal: a subscriber of many small events who does not read holds little; many of them hold half of the bytes in
/// flight at most; for whom there is no room is ended with `overloaded`, and resumes where it was.
#[tokio::test]
async fn subscribers_of_small_events_who_do_not_read_are_bounded() {
    const EVENTS: usize = 2_000;
    const BYTES: usize = 1024 * 1024;
    let tight = Config {
        bytes_in_flight_max: BYTES,
        ..config()
    };
    let server = Server::with(tight, Arc::new(MemoryStore::new())).await;
    let data = format!("\"{}\"", "x".repeat(1_000));
    for _ in 0..EVENTS / 500 {
        server.append("a", &[&*data; 500]).await;
    }
    let subscribe = "GET /streams/a/subscribe HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut stalled = vec![server.raw(subscribe).await];
    let sent = settled(&server, "gesta_subscription_events_total").await;
    assert!((1..EVENTS).contains(&sent), "{sent}");
    let held = metric(&server, "gesta_http_in_flight_bytes").await;
    assert!((1..BYTES / 4).contains(&held), "{held}");
    for _ in 0..7 {
        stalled.push(server.raw(subscribe).await);
        settled(&server, "gesta_subscription_events_total").await;
        let held = metric(&server, "gesta_http_in_flight_bytes").await;
        assert!(held <= BYTES / 2, "{held}");
    }
    let (mut ended, mut whole) = (0, 0);
    for mut reader in stalled {
        while !reader.received.contains("event: error") && !reader.received.contains("caught_up") {
            assert!(reader.more().await, "broke off: {}", reader.received);
            // The last two messages are enough.
            let keep = reader.received.len().saturating_sub(4_000);
            reader.received = reader.received.split_off(keep);
        }
        if reader.received.contains("caught_up") {
            whole += 1;
            continue;
        }
        ended += 1;
        reader.until("overloaded").await;
        let id = reader
            .received
            .lines()
            .filter_map(|line| line.strip_prefix("id: "))
            .next_back();
        let resumed = format!(
            "GET /streams/a/subscribe HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {}\r\n\r\n",
            id.expect("it got events")
        );
        server.raw(&resumed).await.until("event: event").await;
    }
    assert!(ended > 0 && whole > 0, "{ended} ended, {whole} not");
}

/// Goal: an answer in lines reads no faster than its client.
#[tokio::test]
async fn lines_wait_for_their_reader() {
    let store = GatedStore::new();
    let server = Server::with(config(), store.clone()).await;
    store.appends.add_permits(100);
    let data = format!("\"{}\"", "x".repeat(1_000));
    for _ in 0..50 {
        server.append("a", &[&*data; 1_000]).await;
    }
    let mut lines = server
        .raw("GET /streams/a HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n")
        .await;
    lines.until("\"revision\":0").await;
    // Other work goes on meanwhile, so the server had its time.
    for _ in 0..200 {
        server.get("/health/live").await;
    }
    let read = store.pages.load(Ordering::SeqCst);
    assert!(
        read < 25,
        "{read} pages read for a client that has taken one"
    );
    let mut bytes = 0;
    while !lines.received.ends_with("\r\n0\r\n\r\n") {
        assert!(lines.more().await, "broke off");
        bytes += lines.received.len();
        let keep = lines.received.len().saturating_sub(16);
        lines.received = lines.received.split_off(keep);
    }
    assert!(bytes > 50_000_000, "{bytes}");
    assert_eq!(store.pages.load(Ordering::SeqCst), 50);
}

#[tokio::test]
async fn stopping_lets_running_requests_finish_and_takes_no_more() {
    let store = GatedStore::new();
    let server = Server::with(config(), store.clone()).await;
    let mut running = server.raw(&append_with_length(APPEND.len(), APPEND)).await;
    let mut idle = server
        .raw("GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    idle.until("live").await;
    store.appends_have_come(1).await;
    let handle = server.handle.clone();
    let stopping = tokio::spawn(async move { handle.shutdown().await });
    assert!(!idle.more().await, "an idle connection is closed");
    assert!(
        tokio::net::TcpStream::connect(server.handle.local_addr())
            .await
            .is_err()
    );
    assert!(!stopping.is_finished(), "one request still runs");
    store.appends.add_permits(1);
    running.until("checkpoint").await;
    assert!(running.rest().await.starts_with("HTTP/1.1 201"));
    soon(stopping).await.expect("stopped");
}

/// What happened: a request that met the closing of its idle connection on the way had no answer, though nothing was
/// wrong with it. Now it is answered, and the answer says that the connection ends.
///
/// It is answered if it comes within half a second. If this machine has stood still for longer, that is tried again.
#[tokio::test]
async fn stopping_answers_one_more_request_of_an_idle_connection() {
    soon(async { while !is_one_more_request_answered().await {} }).await;
}

/// Stops a server, then asks on two of its idle connections. Returns false if they were closed late enough.
async fn is_one_more_request_answered() -> bool {
    let server = Server::with(config(), GatedStore::new()).await;
    let question = "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut idle = server.raw(question).await;
    idle.until("live").await;
    // Accepted by the system, and perhaps not by the server yet.
    let mut fresh = server.raw("").await;
    let (handle, begun) = (server.handle.clone(), Instant::now());
    let stopping = tokio::spawn(async move { handle.shutdown().await });
    while tokio::net::TcpStream::connect(server.handle.local_addr())
        .await
        .is_ok()
    {}
    for connection in [&mut idle, &mut fresh] {
        connection.say(question).await;
    }
    for connection in [idle, fresh] {
        let answer = connection.rest().await;
        let is_answered = answer.trim_end().ends_with('}') && answer.contains("connection: close");
        if !is_answered {
            assert!(begun.elapsed() >= LAST_REQUEST_MAX, "{answer}");
            return false;
        }
    }
    soon(stopping).await.expect("stopped");
    true
}

/// Goal: a supervisor that waits for ten seconds, as most do, sees the server end by itself.
#[test]
fn stopping_takes_eight_seconds_at_most_by_default() {
    let grace = Config::default().shutdown_grace;
    assert_eq!(grace, Duration::from_secs(8));
}

#[tokio::test]
async fn stopping_does_not_wait_for_ever() {
    let store = GatedStore::new();
    let server = Server::with(
        Config {
            shutdown_grace: Duration::from_millis(50),
            ..config()
        },
        store.clone(),
    )
    .await;
    let running = server.raw(&append_with_length(APPEND.len(), APPEND)).await;
    store.appends_have_come(1).await;
    soon(server.handle.shutdown()).await;
    assert_eq!(running.rest().await, "");
}

/// A store that shows the events of one stream alone, as a caller without rights sees it, and counts its reads.
struct Hiding {
    inner: MemoryStore,
    reads: AtomicUsize,
}

#[async_trait]
impl Wrapper for Hiding {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn read_all(&self, request: ReadAll) -> gesta_core::Result<AllPage> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let mut page = self.inner.read_all(request).await?;
        page.events.retain(|event| event.stream.as_str() == "shown");
        Ok(page)
    }
}

/// Lines of a few events asked the store for as few at a time, however many the caller may not see. Goal: what is
/// passed over is read in large pages, and no more is sent than was asked for.
#[tokio::test]
async fn events_that_a_caller_may_not_see_are_passed_over_in_large_pages() {
    let store = Arc::new(Outer(Hiding {
        inner: MemoryStore::new(),
        reads: AtomicUsize::new(0),
    }));
    let server = Server::with(config(), store.clone()).await;
    server.append("other", &["0"; 300]).await;
    server.append("shown", &["1", "2", "3"]).await;
    let before = store.reads.load(Ordering::SeqCst);
    let lines = [("accept", "application/x-ndjson")];
    let answer = server.send("GET", "/all?limit=2", &lines, "").await;
    assert_eq!(answer.body.lines().count(), 2, "{answer:?}");
    assert_eq!(store.reads.load(Ordering::SeqCst) - before, 2);
}
