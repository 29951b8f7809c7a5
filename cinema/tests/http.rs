//! The HTTP API, end to end on an embedded store.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use gesta_cinema::application::Application;
use gesta_cinema::config::Config;
use support::{Client, DEADLINE};

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
const OTHER: &str = "01890a5d-ac96-774b-bcce-b302099a8058";

fn config(store: &str) -> Config {
    Config {
        store: store.into(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        commands_max: 1_000,
        active_max: 1_000,
        idle_after: Duration::from_secs(600),
        snapshot_every: 3,
        ..Config::parse_from(["cinema"])
    }
}

async fn start(config: Config) -> (Application, Client) {
    let application = Application::start(config).await.expect("started");
    let client = Client::connect(application.server().local_addr()).await;
    (application, client)
}

#[tokio::test]
async fn shows_are_created_reserved_and_shown() {
    let (application, mut client) = start(config("sqlite::memory:")).await;
    let created = client.create(ID, 2).await;
    assert_eq!((created.status, &*created.body), (201, "Show created"));
    let again = client.create(ID, 2).await;
    assert_eq!((again.status, &*again.body), (409, "SHOW_ALREADY_EXISTS"));

    assert_eq!(client.reserve(ID, 1).await.status, 202);
    let shown = client.get(&format!("/shows/{ID}")).await;
    assert_eq!(shown.status, 200);
    assert!(
        shown.head.contains("content-type: application/json"),
        "{}",
        shown.head
    );
    let expected = format!(
        r#"{{"id":"{ID}","title":"Ran \"乱\"","seats":[{{"number":0,"status":"AVAILABLE","price":100.00}},{{"number":1,"status":"RESERVED","price":100.00}}]}}"#
    );
    assert_eq!(shown.body, expected);
    // Names are the same in upper case.
    let upper = client.get(&format!("/shows/{}", ID.to_uppercase())).await;
    assert_eq!(upper.body, expected);

    for (seat, action, status, reason) in [
        (1, "RESERVE", 400, "SEAT_NOT_AVAILABLE"),
        (0, "CANCEL_RESERVATION", 400, "SEAT_NOT_RESERVED"),
        (2, "RESERVE", 400, "SEAT_NOT_EXISTS"),
        (1, "CANCEL_RESERVATION", 202, "Reservation cancelled"),
        (1, "RESERVE", 202, "Seat reserved"),
    ] {
        let answer = client.change(ID, seat, action).await;
        assert_eq!((answer.status, &*answer.body), (status, reason));
    }
    let unknown = client.reserve(OTHER, 1).await;
    assert_eq!((unknown.status, &*unknown.body), (400, "SHOW_NOT_EXISTS"));
    let unknown = client.get(&format!("/shows/{OTHER}")).await;
    assert_eq!((unknown.status, &*unknown.body), (404, "SHOW_NOT_EXISTS"));
    application.shutdown().await.expect("stopped");
}

/// A method, a path, a body, the status that it is refused with, and how the reason begins.
type Refused<'a> = (&'a str, &'a str, &'a str, u16, &'a str);

/// Sends these to an application that has one show.
async fn assert_refused(cases: &[Refused<'_>]) {
    let (application, mut client) = start(config("sqlite::memory:")).await;
    client.create(ID, 2).await;
    for (method, path, body, status, reason) in cases {
        let mut client = Client::connect(application.server().local_addr()).await;
        let answer = client.request(method, path, "", body).await;
        assert_eq!(answer.status, *status, "{method} {path}: {answer:?}");
        assert!(
            answer.body.starts_with(reason),
            "{method} {path}: {answer:?}"
        );
        assert!(
            answer.head.contains("content-type: text/plain"),
            "{answer:?}"
        );
        // Whoever sends JSON need not know Rust.
        let rust = ["struct", "u64", "enum"];
        assert!(
            !rust.iter().any(|word| answer.body.contains(word)),
            "{answer:?}"
        );
    }
    application.shutdown().await.expect("stopped");
}

#[tokio::test]
async fn bad_shows_are_refused_with_a_reason() {
    let show = |seats: &str| format!(r#"{{"showId":"{OTHER}","title":"x","maxSeats":{seats}}}"#);
    let titled = |title: &str| show("1").replace("\"x\"", &format!("{title:?}"));
    let array = format!(r#"["{OTHER}","x",5]"#);
    let unnamed = r#"{"showId":"x","title":"x","maxSeats":1}"#;
    let like = "INVALID_BODY: must be a JSON object such as {\"showId\"";
    let large = " ".repeat(70_000);
    let cases: &[(&str, u16, &str)] = &[
        (&show("101"), 400, "TOO_MANY_SEATS"),
        (&show("18446744073709551615"), 400, "TOO_MANY_SEATS"),
        (&show("0"), 400, "TOO_FEW_SEATS"),
        (&show("-1"), 400, "INVALID_BODY"),
        (&show("1.5"), 400, "INVALID_BODY"),
        (&show("\"5\""), 400, "INVALID_BODY"),
        ("", 400, "INVALID_BODY"),
        ("{", 400, "INVALID_BODY"),
        ("[]", 400, "INVALID_BODY"),
        ("null", 400, "INVALID_BODY"),
        (&array, 400, like),
        (unnamed, 400, "INVALID_SHOW_ID"),
        (&titled(" "), 400, "TITLE_EMPTY"),
        (&titled(&"x".repeat(201)), 400, "TITLE_TOO_LONG"),
        (&large, 413, "BODY_TOO_LARGE"),
    ];
    let cases = cases
        .iter()
        .map(|(body, status, reason)| ("POST", "/shows", *body, *status, *reason));
    assert_refused(&cases.collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn bad_reservations_are_refused_with_a_reason() {
    let seat = |number: &str| format!("/shows/{ID}/seats/{number}");
    let reserve = r#"{"action":"RESERVE"}"#;
    let like = "INVALID_BODY: must be a JSON object such as {\"action\"";
    let cases: &[(&str, &str, &str)] = &[
        ("/shows/7/seats/1", reserve, "INVALID_SHOW_ID"),
        (&seat("one"), reserve, "INVALID_SEAT_NUMBER"),
        (&seat("-1"), reserve, "INVALID_SEAT_NUMBER"),
        (&seat(""), reserve, "INVALID_SEAT_NUMBER"),
        (&seat("4294967297"), reserve, "SEAT_NOT_EXISTS"),
        (&seat("1"), r#"{"action":"SELL"}"#, "INVALID_BODY"),
        (&seat("1"), r#"{}"#, "INVALID_BODY"),
        (&seat("1"), r#"["RESERVE"]"#, like),
    ];
    let cases = cases
        .iter()
        .map(|(path, body, reason)| ("PATCH", *path, *body, 400, *reason));
    assert_refused(&cases.collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn bad_addresses_methods_and_parameters_are_refused_with_a_reason() {
    let seat = format!("/shows/{ID}/seats/1");
    let without_hyphens = "/shows/01890a5dac96774bbcceb302099a8057";
    let cases: &[(&str, &str, u16, &str)] = &[
        ("GET", "/shows", 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", &seat, 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/shows/7", 400, "INVALID_SHOW_ID"),
        ("GET", without_hyphens, 400, "INVALID_SHOW_ID"),
        ("GET", "/", 404, "NOT_FOUND"),
        ("GET", "/shows/x/y", 404, "NOT_FOUND"),
        ("GET", "/available-seats?limit=0", 400, "INVALID_PARAMETER"),
        (
            "GET",
            "/available-seats?limit=1001",
            400,
            "INVALID_PARAMETER",
        ),
        ("GET", "/available-seats?after=1", 400, "INVALID_SHOW_ID"),
        ("GET", "/available-seats?page=1", 400, "INVALID_PARAMETER"),
    ];
    let cases = cases
        .iter()
        .map(|(method, path, status, reason)| (*method, *path, "", *status, *reason));
    assert_refused(&cases.collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn a_method_that_is_not_allowed_is_answered_with_those_that_are() {
    let (application, mut client) = start(config("sqlite::memory:")).await;
    let allowed = client.get("/shows").await;
    assert!(allowed.head.contains("allow: post"), "{}", allowed.head);
    application.shutdown().await.expect("stopped");
}

#[tokio::test]
async fn what_is_not_http_or_endless_is_turned_away() {
    let (application, _) = start(config("sqlite::memory:")).await;
    let address = application.server().local_addr();
    let mut client = Client::connect(address).await;
    client.send(b"\x16\x03\x01 this is not HTTP\r\n\r\n").await;
    assert!(
        client
            .answer()
            .await
            .is_none_or(|answer| answer.status == 400)
    );

    let mut client = Client::connect(address).await;
    client
        .send(b"POST /shows HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    let chunk = [&b"4000\r\n"[..], &[b' '; 0x4000], b"\r\n"].concat();
    for _ in 0..5 {
        client.send(&chunk).await;
    }
    client.send(b"0\r\n\r\n").await;
    let answer = client.answer().await.expect("an answer");
    assert_eq!(answer.status, 413, "{answer:?}");

    // A body in pieces is put together.
    let mut client = Client::connect(address).await;
    let body = format!(r#"{{"showId":"{ID}","title":"x","maxSeats":1}}"#);
    let (first, second) = body.split_at(20);
    let head = format!(
        "POST /shows HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.send(format!("{head}{first}").as_bytes()).await;
    tokio::task::yield_now().await;
    client.send(second.as_bytes()).await;
    assert_eq!(client.answer().await.expect("an answer").status, 201);
    application.shutdown().await.expect("stopped");
}

#[tokio::test]
async fn a_connection_without_requests_is_closed() {
    let mut config = config("sqlite::memory:");
    config.connection_idle_max = Duration::from_millis(100);
    let (application, mut client) = start(config).await;
    // The head of a request that never ends, and silence: both are given up.
    client.send(b"GET /health HTTP/1.1\r\nhost: ").await;
    assert_eq!(client.answer().await, None);
    let mut silent = Client::connect(application.server().local_addr()).await;
    assert_eq!(silent.answer().await, None);
    application.shutdown().await.expect("stopped");
}

#[tokio::test]
async fn a_retry_with_the_same_key_gets_the_same_answer() {
    let (application, mut client) = start(config("sqlite::memory:")).await;
    let body = format!(r#"{{"showId":"{ID}","title":"x","maxSeats":1}}"#);
    for _ in 0..2 {
        let answer = client
            .request("POST", "/shows", "idempotency-key: a\r\n", &body)
            .await;
        assert_eq!(answer.status, 201);
    }
    let (path, body) = (format!("/shows/{ID}/seats/0"), r#"{"action":"RESERVE"}"#);
    for (key, status) in [("b", 202), ("b", 202), ("c", 400)] {
        let key = format!("idempotency-key: {key}\r\n");
        let answer = client.request("PATCH", &path, &key, body).await;
        assert_eq!(answer.status, status, "{key}");
    }
    // Another request with a known key gets no answer of the first one.
    for (key, seat, action) in [
        ("b", 0, "CANCEL_RESERVATION"),
        ("b", 1, "RESERVE"),
        ("a", 0, "RESERVE"),
    ] {
        let path = format!("/shows/{ID}/seats/{seat}");
        let body = format!(r#"{{"action":"{action}"}}"#);
        let key = format!("idempotency-key: {key}\r\n");
        let answer = client.request("PATCH", &path, &key, &body).await;
        assert_eq!(answer.status, 422, "{answer:?}");
        assert!(
            answer.body.starts_with("IDEMPOTENCY_KEY_REUSED"),
            "{answer:?}"
        );
    }
    for wrong in ["", "ä", &"x".repeat(256)] {
        let key = format!("idempotency-key: {wrong}\r\n");
        let answer = client.request("PATCH", &path, &key, body).await;
        assert!(
            answer.body.starts_with("INVALID_IDEMPOTENCY_KEY"),
            "{answer:?}"
        );
    }
    application.shutdown().await.expect("stopped");
}

#[tokio::test]
async fn available_seats_follow_the_shows() {
    let (application, mut client) = start(config("sqlite::memory:")).await;
    assert_eq!(client.get("/available-seats").await.body, "[]");
    client.create(ID, 2).await;
    client.create(OTHER, 5).await;
    client.reserve(ID, 1).await;
    let row = |id: &str, seats: u32| format!(r#"{{"showId":"{id}","availableSeats":{seats}}}"#);
    let both = format!("[{},{}]", row(ID, 1), row(OTHER, 5));
    client.get_until("/available-seats", &both).await;
    let first = client.get("/available-seats?limit=1").await;
    assert_eq!(first.body, format!("[{}]", row(ID, 1)));
    let next = client
        .get(&format!("/available-seats?after={ID}&limit=1"))
        .await;
    assert_eq!(next.body, format!("[{}]", row(OTHER, 5)));
    client.change(ID, 1, "CANCEL_RESERVATION").await;
    let both = format!("[{},{}]", row(ID, 2), row(OTHER, 5));
    client.get_until("/available-seats", &both).await;
    application.shutdown().await.expect("stopped");
}

#[tokio::test]
async fn health_and_metrics_are_shown() {
    let (application, mut client) = start(config("sqlite::memory:")).await;
    // The store has 2 s for its answer, so one that comes late counts as unhealthy.
    let health = client.get_until("/health", "OK").await;
    assert_eq!(health.status, 200);
    client.create(ID, 1).await;
    client.reserve(ID, 9).await;
    let metrics = client.get("/metrics").await.body;
    for line in [
        r#"cinema_http_requests_total{route="/shows",status="201"} 1"#,
        r#"cinema_http_requests_total{route="/shows/{showId}/seats/{seatNum}",status="400"} 1"#,
        r#"cinema_http_request_duration_seconds_count{route="/shows"} 1"#,
        "cinema_entity_commands_total 1",
        "cinema_entity_rejected_total 1",
        "cinema_entity_active 1",
        r#"gesta_pipeline_batched_events_total{log="0"} 1"#,
        "cinema_available_seats_failures_total 0",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} in\n{metrics}"
        );
    }
    application.shutdown().await.expect("stopped");
}

#[tokio::test]
async fn a_restart_keeps_shows_and_counts() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let store = format!("sqlite:{}/cinema.db", folder.path().display());
    let (application, mut client) = start(config(&store)).await;
    client.create(ID, 10).await;
    // With a snapshot every three events, and some after the last.
    for seat in 1..=8 {
        assert_eq!(client.reserve(ID, seat).await.status, 202);
    }
    let shown = client.get(&format!("/shows/{ID}")).await;
    application.shutdown().await.expect("stopped");

    let (application, mut client) = start(config(&store)).await;
    assert_eq!(client.get(&format!("/shows/{ID}")).await.body, shown.body);
    assert_eq!(client.reserve(ID, 8).await.body, "SEAT_NOT_AVAILABLE");
    assert_eq!(client.reserve(ID, 9).await.status, 202);
    let counted = format!(r#"[{{"showId":"{ID}","availableSeats":1}}]"#);
    client.get_until("/available-seats", &counted).await;
    assert!(folder.path().join("cinema.views.db").exists());
    application.shutdown().await.expect("stopped");
}

#[tokio::test]
async fn requests_that_run_are_answered_before_the_end() {
    let (application, mut client) = start(config("sqlite::memory:")).await;
    client.create(ID, 100).await;
    // Many at once on one connection, then the end: what was answered with success was carried out.
    let body = r#"{"action":"RESERVE"}"#;
    let mut requests = Vec::new();
    for seat in 0..100 {
        let request = format!(
            "PATCH /shows/{ID}/seats/{seat} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        requests.extend_from_slice(request.as_bytes());
    }
    client.send(&requests).await;
    assert_eq!(client.answer().await.expect("an answer").status, 202);
    let stopping = application.shutdown();
    let reading = async {
        let mut answered = 1;
        while let Some(answer) = client.answer().await {
            assert_eq!(answer.status, 202);
            answered += 1;
        }
        answered
    };
    let (stopped, answered) =
        tokio::time::timeout(DEADLINE, async { tokio::join!(stopping, reading) })
            .await
            .expect("an end");
    stopped.expect("stopped");
    assert!((1..=100).contains(&answered), "{answered}");
}

/// While the database keeps everybody waiting, commands beyond the limit are refused at once, and reads from memory go
/// on.
#[tokio::test]
async fn too_many_commands_are_refused_while_reads_go_on() {
    let Some(server) = gesta_rig::shared() else {
        return;
    };
    let proxy = gesta_rig::FaultProxy::start(server.addr()).expect("a proxy");
    // Longer than a busy machine stands still while the database keeps everybody waiting.
    let url = format!(
        "{}?schema={}&answer_timeout=60",
        proxy.url(&server.url()),
        gesta_rig::fresh_schema()
    );
    let mut config = config(&url);
    config.commands_max = 5;
    config.stale_reads = true;
    let (application, mut client) = start(config).await;
    assert_eq!(client.create(ID, 100).await.status, 201);
    assert_eq!(client.create(OTHER, 1).await.status, 201);
    proxy.hold_requests(true);
    let address = application.server().local_addr();
    let (answers, mut arriving) = tokio::sync::mpsc::unbounded_channel();
    for seat in 0..20 {
        let answers = answers.clone();
        tokio::spawn(async move {
            let answer = Client::connect(address).await.reserve(ID, seat).await;
            answers.send(answer)
        });
    }
    // If a client panics, no answer is left to wait for.
    drop(answers);
    for _ in 0..15 {
        let refused = arriving.recv().await.expect("an answer");
        assert_eq!(refused.status, 503, "{refused:?}");
        assert!(refused.body.starts_with("OVERLOADED"), "{refused:?}");
        assert!(refused.head.contains("retry-after: 1"), "{refused:?}");
    }
    // One whose own changes are not being stored: nothing is shown before it is.
    assert_eq!(client.get(&format!("/shows/{OTHER}")).await.status, 200);
    proxy.hold_requests(false);
    for _ in 0..5 {
        assert_eq!(arriving.recv().await.expect("an answer").status, 202);
    }
    assert_eq!(client.reserve(ID, 99).await.status, 202);
    application.shutdown().await.expect("stopped");
}

#[tokio::test]
async fn other_machines_are_kept_out() {
    let mut config = config("sqlite::memory:");
    config.listen = SocketAddr::from(([0, 0, 0, 0], 0));
    let error = Application::start(config).await.expect_err("refused");
    assert!(error.to_string().contains("--insecure"), "{error}");
}
