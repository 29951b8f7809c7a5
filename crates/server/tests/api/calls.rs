//! Tests each call and its answer.

use std::sync::Arc;
use std::time::Duration;

use gesta_memory::MemoryStore;
use gesta_server::Config;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::client::{Server, config, soon};
use crate::logged::Logged;

#[tokio::test]
async fn who_asks_for_health_elsewhere_is_told_where_it_is() {
    let server = Server::start().await;
    for (path, is_told) in [("/health", true), ("/healthz", true), ("/nowhere", false)] {
        let answer = server.get(path).await;
        let detail = answer.json()["detail"].to_string();
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(detail.contains("/health/ready"), is_told, "{detail}");
    }
}

/// Goal: a slow request leaves a line that says which one it was, without what its parameters tell.
#[tokio::test]
async fn a_slow_request_is_told() {
    let (logged, _guard) = Logged::begin();
    let config = Config {
        slow_request: Duration::ZERO,
        ..config()
    };
    let server = Server::with(config, Arc::new(MemoryStore::new())).await;
    let headers = [("x-request-id", "of-a-proxy")];
    let target = "/streams/nowhere?from=3";
    let answer = server.send("GET", target, &headers, "").await;
    assert_eq!(answer.status, 404);
    let lines = logged.with("slow request");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in [
        "method=\"GET\"",
        "path=/streams/nowhere ",
        "status=404",
        "from=127.0.0.1",
        "id=of-a-proxy",
    ] {
        assert!(lines[0].contains(part), "{part}: {lines:?}");
    }
}

/// Goal: a terminal that shows an answer goes on in a line of its own.
#[tokio::test]
async fn a_json_answer_ends_with_a_line_break() {
    let server = Server::start().await;
    let appended = server.append("cart-1", &["1"]).await;
    assert!(appended.body.ends_with("}\n"), "{appended:?}");
    for target in [
        "/",
        "/info",
        "/health/ready",
        "/streams",
        "/streams/cart-1",
        "/streams/cart-1?resolve_links=true",
        "/streams/cart-1/0",
        "/all",
        "/openapi.json",
        "/streams/nowhere",
        "/streams/cart-1?from=x",
    ] {
        let answer = server.get(target).await;
        let (document, end) = answer.body.split_at(answer.body.len() - 1);
        assert_eq!(end, "\n", "{target}: {answer:?}");
        assert!(!document.ends_with('\n'), "{target}: {answer:?}");
        answer.json();
    }
}

#[tokio::test]
async fn an_append_tells_where_the_events_are() {
    let server = Server::start().await;
    let body = r#"{"expected":"no_stream","events":[{"type":"A","data":1},{"type":"B","data":2}]}"#;
    let answer = server.json("POST", "/streams/cart-1", body).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (201, "application/json")
    );
    let stored = answer.json();
    assert!(stored["checkpoint"].is_string());
    for (name, value) in [
        ("stream", json!("cart-1")),
        ("first_revision", json!(0)),
        ("last_revision", json!(1)),
        ("log", json!(0)),
        ("position", json!(2)),
    ] {
        assert_eq!(stored[name], value, "{name}");
    }
    let again = server.json("POST", "/streams/cart-1", body).await;
    assert_eq!(again.status, 409);
    let problem = again.json();
    assert_eq!(
        (&problem["expected"], &problem["actual"]),
        (&json!("no_stream"), &json!(1))
    );
}

#[tokio::test]
async fn several_streams_are_appended_to_as_one() {
    let server = Server::start().await;
    let body = r#"{"appends":[{"stream":"a","events":[{"type":"T","data":1}]},{"stream":"b","expected":%,"events":[{"type":"T","data":1}]}]}"#;
    let refused = server
        .json("POST", "/append", &body.replace('%', "7"))
        .await;
    assert_eq!(
        (refused.status, &refused.json()["stream"]),
        (409, &json!("b"))
    );
    assert_eq!(server.get("/streams/a").await.status, 404);
    let stored = server
        .json("POST", "/append", &body.replace('%', "\"no_stream\""))
        .await;
    assert_eq!(stored.status, 201);
    assert_eq!(
        stored.json()["streams"][1],
        json!({"stream":"b","first_revision":0,"last_revision":0,"position":2})
    );
}

/// Goal: an append is stored only if streams to which it does not append are as it requires.
#[tokio::test]
async fn an_append_may_have_conditions() {
    let server = Server::start().await;
    server.append("a", &["1"]).await;
    let body = r#"{"appends":[{"stream":"b","events":[{"type":"T","data":1}]}],"conditions":[{"stream":"c","expected":"no_stream"},{"stream":"a","expected":%}]}"#;
    for (expected, status) in [("0", 201), ("\"stream_exists\"", 201), ("1", 409)] {
        let answer = server
            .json("POST", "/append", &body.replace('%', expected))
            .await;
        assert_eq!(answer.status, status, "{answer:?}");
        if status == 409 {
            assert_eq!(answer.json()["stream"], json!("a"));
        }
    }
    let stored = server.get("/streams/b").await.json();
    assert_eq!(stored["last_revision"], json!(1));
    for (wrong, field) in [
        (r#"{"stream":"","expected":0}"#, "conditions[0].stream"),
        (r#"{"stream":"b","expected":0}"#, "conditions[0].stream"),
        (r#"{"stream":"a"}"#, "conditions[0].expected"),
        (
            r#"{"stream":"a","expected":0,"more":1}"#,
            "conditions[0].more",
        ),
        (r#"{"expected":0}"#, "conditions[0].stream"),
        (r#"{"after":"x"}"#, "conditions[0].no_match"),
        (r#"{}"#, "conditions[0]"),
        (
            r#"{"stream":"a","expected":0,"no_match":[{"tags":["x"]}]}"#,
            "conditions[0]",
        ),
        (r#"{"no_match":[]}"#, "conditions[0].no_match"),
        (r#"{"no_match":[{}]}"#, "conditions[0].no_match"),
        (
            r#"{"no_match":[{"tags":[""]}]}"#,
            "conditions[0].no_match[0].tags",
        ),
        (
            r#"{"no_match":[{"tags":["x"]}],"after":"x"}"#,
            "conditions[0].after",
        ),
    ] {
        let body =
            r#"{"appends":[{"stream":"b","events":[{"type":"T","data":1}]}],"conditions":[%]}"#;
        let answer = server
            .json("POST", "/append", &body.replace('%', wrong))
            .await;
        assert_eq!(answer.status, 400, "{wrong}: {answer:?}");
        assert_eq!(answer.json()["field"], json!(field), "{wrong}: {answer:?}");
    }
}

#[tokio::test]
async fn an_append_may_require_that_no_event_matches() {
    let server = Server::start().await;
    let append = |stream: &str, after: &str| {
        let body = r#"{"appends":[{"stream":"%","events":[{"type":"T","data":1,"tags":["x"]}]}],"conditions":[{"no_match":[{"tags":["x"],"types":["T"]}]&}]}"#;
        body.replace('%', stream).replace('&', after)
    };
    let first = server.json("POST", "/append", &append("a", "")).await;
    assert_eq!(first.status, 201, "{first:?}");
    let refused = server.json("POST", "/append", &append("b", "")).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    let problem = refused.json();
    assert_eq!(
        (&problem["type"], &problem["log"], &problem["position"]),
        (
            &json!("urn:gesta:problem:condition_failed"),
            &json!(0),
            &first.json()["position"]
        )
    );
    let page = server.get("/all?tag=x").await.json();
    let after = format!(r#","after":{}"#, page["next"]);
    for (status, stream) in [(201, "b"), (409, "c")] {
        let answer = server
            .json("POST", "/append", &append(stream, &after))
            .await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

#[tokio::test]
async fn a_stream_reads_in_pages_and_in_lines() {
    let server = Server::start().await;
    server
        .append("a%2Fb", &["0", "{ \"n\": 1.0 }", "[\n2]"])
        .await;
    let page = server.get("/streams/a%2Fb?limit=2").await;
    assert!(page.body.contains("\"data\":{ \"n\": 1.0 },"), "{page:?}");
    let page = page.json();
    assert_eq!(
        (&page["end"], &page["next"], &page["last_revision"]),
        (&json!(false), &json!(2), &json!(2))
    );
    let back = server
        .get("/streams/a%2Fb?direction=backwards&from=1")
        .await
        .json();
    assert_eq!(
        (&back["events"][0]["revision"], &back["end"], &back["next"]),
        (&json!(1), &json!(true), &Value::Null)
    );
    let lines = server
        .send(
            "GET",
            "/streams/a%2Fb",
            &[("accept", "text/html, Application/X-NDJSON;q=0.5")],
            "",
        )
        .await;
    assert_eq!(lines.header("content-type"), "application/x-ndjson");
    let events: Vec<Value> = lines
        .body
        .lines()
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect();
    assert_eq!(events.len(), 3);
    assert_eq!(events[2]["data_base64"], "WwoyXQ==");
    let one = server.get("/streams/a%2Fb/1").await.json();
    assert_eq!(one, events[1]);
    let none = server.get("/streams/a%2Fb/3").await;
    assert_eq!((none.status, &none.json()["revision"]), (404, &json!(3)));
}

/// Goal: lines go on over many pages, to the end of the stream or to the limit.
#[tokio::test]
async fn lines_go_on_over_pages() {
    let server = Server::start().await;
    for _ in 0..5 {
        server.append("a", &["1"; 700]).await;
    }
    let ndjson = [("accept", "application/x-ndjson")];
    for (target, lines) in [
        ("/streams/a", 3_500),
        ("/streams/a?limit=2500", 2_500),
        ("/streams/a?direction=backwards", 3_500),
        ("/all", 3_500),
        ("/all?type=X", 0),
        ("/all?limit=1001", 1_001),
    ] {
        let answer = server.send("GET", target, &ndjson, "").await;
        assert_eq!(
            (answer.status, answer.body.lines().count()),
            (200, lines),
            "{target}"
        );
    }
}

#[tokio::test]
async fn all_events_are_filtered_and_continued() {
    let server = Server::start().await;
    let tagged = r#"{"events":[{"type":"X","data":1,"tags":["t:1","u"]},{"type":"Y","data":1,"tags":["t:1"]}]}"#;
    server.json("POST", "/streams/cart-1", tagged).await;
    server.append("order-1", &["1"]).await;
    let count = async |query: &str| {
        let page = server.get(&format!("/all?{query}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        page.json()["events"].as_array().expect("a list").len()
    };
    assert_eq!(count("").await, 3);
    assert_eq!(count("type=X&type=T").await, 2);
    assert_eq!(count("tag=t%3A1").await, 2);
    assert_eq!(count("tag=t:1&tag=u").await, 1);
    assert_eq!(count("category=cart&stream_prefix=ca").await, 2);
    assert_eq!(
        count(
            "filter=%5B%7B%22types%22:%5B%22X%22%5D%7D,%7B%22categories%22:%5B%22order%22%5D%7D%5D"
        )
        .await,
        2
    );
    let first = server.get("/all?limit=1").await.json();
    let next = first["next"].as_str().expect("a checkpoint");
    assert_eq!(count(&format!("from={next}")).await, 2);
    assert_eq!(count(&format!("from={next}&direction=backwards")).await, 1);
}

#[tokio::test]
async fn metadata_are_the_document_itself() {
    let server = Server::start().await;
    let none = server.get("/streams/a/metadata").await;
    assert_eq!((none.body.as_str(), none.header("etag")), ("{}", ""));
    let document = "{ \"$maxCount\": 2,\n\"x\":1.0}";
    let set = server
        .json("PUT", "/streams/a/metadata?expected=no_stream", document)
        .await;
    assert_eq!(set.status, 200, "{set:?}");
    let found = server.get("/streams/a/metadata").await;
    assert_eq!(
        (found.body.as_str(), found.header("etag")),
        (document, "\"0\"")
    );
    assert_eq!(
        server
            .json("PUT", "/streams/a/metadata?expected=7", "{}")
            .await
            .status,
        409
    );
}

#[tokio::test]
async fn streams_are_deleted_and_listed() {
    let server = Server::start().await;
    for stream in ["a", "b", "c"] {
        server.append(stream, &["1"]).await;
    }
    assert_eq!(
        server
            .send("DELETE", "/streams/a?expected=0", &[], "")
            .await
            .status,
        200
    );
    assert_eq!(
        server
            .send("DELETE", "/streams/b?tombstone=true", &[], "")
            .await
            .status,
        200
    );
    assert_eq!(
        server.get("/streams/a").await.problem().0,
        "stream_not_found"
    );
    assert_eq!(
        server.get("/streams/b").await.problem().0,
        "stream_tombstoned"
    );
    let listed = server.get("/streams?limit=10").await.json();
    assert_eq!(
        listed,
        json!({"streams":[{"stream":"c","last_revision":0}],"next":null})
    );
}

#[tokio::test]
async fn the_server_tells_about_itself() {
    let server = Server::start().await;
    server.append("a", &["1"]).await;
    let info = server.get("/info").await.json();
    assert_eq!(
        (&info["backend"], &info["heads"]),
        (&json!("memory"), &json!([1]))
    );
    assert_eq!(info["limits"]["append_events_max"], 10_000);
    assert_eq!(
        server.get("/health/live").await.json(),
        json!({"status":"live"})
    );
    assert_eq!(
        server.get("/health/ready").await.json(),
        json!({"status":"ready"})
    );
    assert_eq!(server.get("/openapi.json").await.json()["openapi"], "3.1.0");
    assert_eq!(server.get("/").await.json()["openapi"], "/openapi.json");
    let metrics = server.get("/metrics").await;
    for line in [
        "gesta_appends_total{outcome=\"stored\"} 1",
        "gesta_append_events_total 1",
        "gesta_log_head_position{log=\"0\"} 1",
        "gesta_http_requests_total{method=\"GET\",route=\"/info\",status=\"200\"} 1",
    ] {
        assert!(metrics.body.contains(line), "{line}: {}", metrics.body);
    }
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let server = Server::start().await;
    let head = server.send("HEAD", "/health/live", &[], "").await;
    assert_eq!(
        (
            head.status,
            head.header("content-length"),
            head.body.as_str()
        ),
        (200, "18", "")
    );
}

/// Goal: other protocols that need HTTP/2 can come to the same port.
#[tokio::test]
async fn http_2_is_spoken_on_the_same_port() {
    let server = Server::start().await;
    let client: Client<HttpConnector, Empty<Bytes>> = Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let uri = format!("http://{}/health/ready", server.handle.local_addr());
    let answer = soon(client.get(uri.parse().expect("valid")))
        .await
        .expect("an answer");
    assert_eq!(
        (answer.status().as_u16(), answer.version()),
        (200, hyper::Version::HTTP_2)
    );
    let body = soon(answer.into_body().collect()).await;
    let body = body.expect("a body").to_bytes();
    assert_eq!(body, "{\"status\":\"ready\"}\n");
}
