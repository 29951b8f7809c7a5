//! The real binary and requests that it refuses, and a disk that takes no more.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod running;
mod support;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use gesta_kit::depth;
use running::Running;
use support::wait_until;

/// An answer that waits for nothing comes within this time, even if the machine stands still meanwhile.
const AT_ONCE: Duration = Duration::from_secs(60);

/// Status and body of the answer to these bytes.
fn answer(server: &Running, request: &str) -> (u16, String) {
    let mut socket = server.connect();
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    (status(&answer), answer)
}

fn status(answer: &str) -> u16 {
    answer[9..12].parse().unwrap()
}

/// A list of an object's values was taken for the object, JSON was stored that no client could read again, and texts of
/// errors named types of the program.
#[test]
fn bodies_that_are_not_what_the_api_says_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = Running::start(directory.path(), &[]);
    let deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
    let deep = format!(r#"{{"events":[{{"type":"t","data":{deep}}}]}}"#);
    for (body, part) in [
        (r#"["any",[{"type":"t","data":1}]]"#, "expected an object"),
        (r#"{"events":[[null,"t",null,1]]}"#, "events[0]"),
        (&deep, "send it as data_base64"),
    ] {
        let answer = server.post("/streams/a", body);
        assert_eq!(status(&answer), 400, "{body}: {answer}");
        assert!(answer.contains(part), "{answer}");
        assert!(
            !answer.contains("struct "),
            "a type of the program: {answer}"
        );
    }
    let fraction = r#"{"expected":0.0,"events":[{"type":"t","data":1}]}"#;
    assert_eq!(status(&server.post("/streams/a", fraction)), 409);
    assert_eq!(status(&server.get("/streams/a")), 404, "nothing was stored");
}

/// A checkpoint of one stream was taken by another one, which then silently began at the wrong event.
#[test]
fn a_checkpoint_of_another_stream_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = Running::start(directory.path(), &[]);
    let events = r#"{"events":[{"type":"t","data":1},{"type":"t","data":2}]}"#;
    for stream in ["/streams/a", "/streams/b"] {
        assert_eq!(status(&server.post(stream, events)), 201);
    }
    let mut socket = server.connect();
    server.say(&mut socket, "GET /streams/a/subscribe HTTP/1.1\r\n");
    let text = server.read_until(&mut socket, "caught_up");
    let id = |line: &str| line.strip_prefix("id: ").map(|id| id.trim().to_owned());
    let checkpoint = text.lines().find_map(id).expect("a checkpoint");
    let mut other = server.connect();
    let line = format!("GET /streams/b/subscribe?after={checkpoint} HTTP/1.1\r\n");
    server.say(&mut other, &line);
    let refused = server.read_until(&mut other, "\r\n\r\n");
    assert_eq!(status(&refused), 409, "{refused}");
}

/// Requests without a host or with two, and bodies in codings that nobody undoes, were answered as if nothing was
/// wrong.
#[test]
fn hosts_and_codings_are_checked() {
    let directory = tempfile::tempdir().unwrap();
    let server = Running::start(directory.path(), &[]);
    for (host, expected) in [
        ("", 400),
        ("Host: localhost\r\nHost: localhost\r\n", 400),
        ("Host: a b\r\n", 400),
        ("Host: localhost\r\n", 200),
    ] {
        let request = format!("GET /info HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        assert_eq!(answer(&server, &request).0, expected, "{host:?}");
    }
    let body = r#"{"events":[{"type":"t","data":1}]}"#;
    let length = body.len();
    for (header, expected) in [
        (
            format!("Content-Length: {length}\r\nContent-Encoding: gzip\r\n"),
            415,
        ),
        ("Transfer-Encoding: gzip, chunked\r\n".to_owned(), 501),
        (format!("Content-Length: {length}\r\n"), 201),
    ] {
        let body = match header.starts_with("Transfer") {
            true => format!("{length:x}\r\n{body}\r\n0\r\n\r\n"),
            false => body.to_owned(),
        };
        let request = format!(
            "POST /streams/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n{header}\r\n{body}"
        );
        assert_eq!(answer(&server, &request).0, expected, "{header}");
    }
}

/// The document that tells clients what they may send is what the server takes.
#[test]
fn the_openapi_document_says_what_names_may_be() {
    let directory = tempfile::tempdir().unwrap();
    let server = Running::start(directory.path(), &[]);
    let document = server.get("/openapi.json");
    let (_, document) = document.split_once("\r\n\r\n").unwrap();
    let document: serde_json::Value = serde_json::from_str(document).unwrap();
    let name = &document["components"]["schemas"]["StreamName"];
    assert_eq!(
        (&name["minLength"], &name["maxLength"]),
        (&1.into(), &1_024.into())
    );
    assert_eq!(name["pattern"], r"^[^\u0000-\u001f\u007f-\u009f]+$");
    let body = r#"{"events":[{"type":"t","data":1}]}"#;
    for (stream, expected) in [
        ("a%7F", 400),
        ("a%C2%85", 400),
        (&*"x".repeat(1_024), 201),
        (&*"x".repeat(1_025), 400),
    ] {
        assert_eq!(
            status(&server.post(&format!("/streams/{stream}"), body)),
            expected,
            "{stream}"
        );
    }
}

/// A store whose files take no more said that it was ready, and each append waited 30 s for what could not come.
#[test]
fn a_store_that_takes_no_more_is_not_ready_and_says_so_at_once() {
    let directory = tempfile::tempdir().unwrap();
    // An append that waits for what cannot come waits for so long.
    let variables = [("GESTA_APPEND_GIVE_UP_AFTER", "1h")];
    let server = Running::with_small_files(directory.path(), 4 * 1024 * 1024, &variables);
    // A server that is asked while the machine stands still may say that it is not ready.
    wait_until("the server is ready", || {
        status(&server.get("/health/ready")) == 200
    });
    let times_told = || server.log().matches("not ready").count();
    let told_before = times_told();
    let data = "x".repeat(256 * 1024);
    let body = format!(r#"{{"events":[{{"type":"t","data":"{data}"}}]}}"#);
    let mut answers = (0..100).map(|_| status(&server.post("/streams/a", &body)));
    let refused = answers.find(|status| *status != 201);
    // The one that met the limit may be in doubt; those after it are not.
    assert!(matches!(refused, Some(503 | 504)), "{refused:?}");
    let begun = Instant::now();
    let answer = server.post("/streams/a", &body);
    let took = begun.elapsed();
    assert!(took < AT_ONCE, "{took:?}: {answer}");
    assert_eq!(status(&answer), 503);
    depth::in_time("a full store says so", took, Duration::from_secs(5));
    let ready = server.get("/health/ready");
    assert_eq!(status(&ready), 503, "{ready}");
    assert_eq!(status(&server.get("/health/live")), 200);
    for _ in 0..20 {
        server.get("/health/ready");
    }
    wait_until("it is told", || times_told() > told_before);
    assert_eq!(times_told(), told_before + 1, "{}", server.log());
}
