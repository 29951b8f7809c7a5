//! Tests what a request must be before any call reads it: its host, and the form of its body.

use std::sync::Arc;

use gesta_memory::MemoryStore;
use gesta_server::Config;

use crate::client::{Server, config};

/// Returns status and field of the answer to these bytes.
async fn answer(server: &Server, request: &str) -> (u16, String) {
    let answer = server.raw(request).await.rest().await;
    let status = answer.get(9..12).unwrap_or("0").parse().expect("a status");
    let field = answer
        .split_once("\"field\":\"")
        .map_or("", |(_, rest)| rest);
    let field = field.split('"').next().unwrap_or("");
    (status, field.to_owned())
}

/// What happened: requests without a host, with two, or with a text that is no host, were answered as if nothing was
/// wrong (RFC 9112, section 3.2).
#[tokio::test]
async fn a_host_is_given_once_and_is_one() {
    for insecure in [false, true] {
        let server = Server::with(
            Config {
                insecure,
                ..config()
            },
            Arc::new(MemoryStore::new()),
        )
        .await;
        for host in [
            "",
            "Host: localhost\r\nHost: localhost\r\n",
            "Host: local host\r\n",
            "Host: localhost:x\r\n",
            "Host: user@localhost\r\n",
            "Host: http://localhost\r\n",
            "Host: [::1\r\n",
            "Host: caf\u{e9}\r\n",
        ] {
            let request = format!("GET /info HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
            let found = answer(&server, &request).await;
            assert_eq!(found, (400, "Host".to_owned()), "{host:?}");
        }
        for request in [
            "GET /info HTTP/1.0\r\n\r\n",
            "GET /info HTTP/1.1\r\nHost: \r\nConnection: close\r\n\r\n",
            "GET /info HTTP/1.1\r\nHost: [::1]:2113\r\nConnection: close\r\n\r\n",
        ] {
            assert_eq!(answer(&server, request).await.0, 200, "{request:?}");
        }
    }
}

/// What happened: after a coding that is not known the connection went on with what came next, which a proxy before it
/// may have taken for the body. Goal: the connection ends.
#[tokio::test]
async fn a_body_in_a_coding_that_is_not_known_ends_the_connection() {
    let server = Server::start().await;
    for coding in ["gzip, chunked", "chunked, chunked", "identity"] {
        let request = format!(
            "POST /streams/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {coding}\r\n\r\n0\r\n\r\nGET /info HTTP/1.1\r\nHost: localhost\r\n\r\n"
        );
        let answers = server.raw(&request).await.rest().await;
        assert_eq!(
            answers.matches("HTTP/1.1 ").count(),
            1,
            "{coding}: {answers}"
        );
    }
}

/// What happened: a compressed body was taken for JSON that cannot be read, or was stored as it was.
#[tokio::test]
async fn codings_of_bodies_that_are_not_known_are_refused_as_such() {
    let server = Server::start().await;
    let body = r#"{"events":[{"type":"T","data":1}]}"#;
    let request = |headers: &str, body: &str| {
        format!(
            "POST /streams/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}\r\n{body}"
        )
    };
    let length = body.len();
    let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    for (headers, body, expected) in [
        (
            "Content-Encoding: gzip\r\n",
            body,
            (415, "Content-Encoding"),
        ),
        (
            "Content-Encoding: identity, br\r\n",
            body,
            (415, "Content-Encoding"),
        ),
        ("Content-Encoding: identity\r\n", body, (201, "")),
        (
            "Transfer-Encoding: gzip, chunked\r\n",
            &chunked,
            (501, "Transfer-Encoding"),
        ),
        ("Transfer-Encoding: chunked\r\n", &chunked, (201, "")),
        // Its end cannot be told (RFC 9112, section 6.3).
        ("Transfer-Encoding: gzip\r\n", body, (400, "")),
    ] {
        let headers = if headers.starts_with("Content") {
            format!("{headers}Content-Length: {length}\r\n")
        } else {
            headers.to_owned()
        };
        let found = answer(&server, &request(&headers, body)).await;
        assert_eq!((found.0, found.1.as_str()), expected, "{headers}");
    }
}

/// Goal: nobody takes part of an answer for the whole. In HTTP/1.0, which proxies ask by, an answer without a length
/// ends when the connection does.
#[tokio::test]
async fn answers_without_a_length_are_refused_over_http_1_0() {
    let server = Server::start().await;
    let length = r#"{"events":[{"type":"T","data":1}]}"#.len();
    let append = format!(
        "POST /streams/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{{\"events\":[{{\"type\":\"T\",\"data\":1}}]}}"
    );
    assert_eq!(answer(&server, &append).await.0, 201);
    for (path, lines) in [
        ("/all", 501),
        ("/streams/a", 501),
        ("/info", 200),
        ("/metrics", 200),
        ("/openapi.json", 200),
    ] {
        let ask = |accept: &str| format!("GET {path} HTTP/1.0\r\nAccept: {accept}\r\n\r\n");
        assert_eq!(
            answer(&server, &ask("application/json")).await.0,
            200,
            "{path}"
        );
        let found = answer(&server, &ask("application/x-ndjson")).await;
        assert_eq!(found.0, lines, "{path}");
    }
    // Each end of these is a break, after which the reader goes on behind the last event.
    let ask = "GET /all/subscribe HTTP/1.0\r\n\r\n";
    let mut connection = server.raw(ask).await;
    connection.until("\"type\":\"T\"").await;
    assert_eq!(connection.status(), 200);
}

/// What happened: a request that expected something unknown was taken for one that waits for leave to send its body, so
/// that its connection was closed with the body unread. Goal: other expectations than `100-continue` are ignored.
#[tokio::test]
async fn an_expectation_that_is_not_known_is_ignored() {
    let server = Server::start().await;
    let post = |target: &str| {
        let event = r#"{"events":[{"type":"T","data":1}]}"#;
        format!(
            "POST {target} HTTP/1.1\r\nHost: localhost\r\nExpect: 200-maybe\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{event}",
            event.len()
        )
    };
    let mut raw = server.raw(&post("/streams/expected")).await;
    raw.until("HTTP/1.1 201").await;
    raw.say(&post("/nothing")).await;
    raw.until("HTTP/1.1 404").await;
    raw.say("GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    raw.until(r#"{"status":"live"}"#).await;
}
