//! Tests virtual streams and links over HTTP.

use serde_json::{Value, json};

use crate::client::Server;

/// Returns for each event of a page the stream and revision of its link, or null, and those of the event itself.
fn places(events: &Value) -> Vec<Value> {
    let events = events.as_array().expect("a list").iter();
    let place = |event: &Value| {
        let link = match &event["link"] {
            Value::Null => Value::Null,
            link => json!([link["stream"], link["revision"]]),
        };
        json!([link, event["stream"], event["revision"]])
    };
    events.map(place).collect()
}

/// Returns the body of an answer that comes in chunks, as far as it has come.
fn body_of(received: &str) -> String {
    let (_, mut rest) = received.split_once("\r\n\r\n").expect("a head");
    let mut body = String::new();
    while let Some((size, chunk)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        body.push_str(chunk.get(..size).unwrap_or(chunk));
        rest = chunk.get(size + 2..).unwrap_or_default();
    }
    body
}

async fn carts() -> Server {
    let server = Server::start().await;
    server.append("cart-1", &["0", "1"]).await;
    server.append("show-1", &["2"]).await;
    server.append("cart-2", &["3"]).await;
    server
}

#[tokio::test]
async fn links_are_shown_as_they_are_or_followed() {
    let server = carts().await;
    let page = server.get("/streams/$ce-cart").await.json();
    let expected = [
        json!([null, "$ce-cart", 0]),
        json!([null, "$ce-cart", 1]),
        json!([null, "$ce-cart", 2]),
    ];
    assert_eq!(places(&page["events"]), expected);
    let first = &page["events"][0];
    // `0@cart-1`
    assert_eq!(
        (&first["type"], &first["data_base64"]),
        (&json!("$>"), &json!("MEBjYXJ0LTE="))
    );

    let page = server
        .get("/streams/$ce-cart?resolve_links=true&limit=2")
        .await;
    let page = page.json();
    let expected = [
        json!([["$ce-cart", 0], "cart-1", 0]),
        json!([["$ce-cart", 1], "cart-1", 1]),
    ];
    assert_eq!(places(&page["events"]), expected);
    assert_eq!(
        (&page["next"], &page["end"], &page["last_revision"]),
        (&json!(2), &json!(false), &json!(2))
    );
    assert_eq!(page["events"][0]["link"]["id"], first["id"]);
    assert_eq!(page["events"][1]["data"], 1);

    let one = server.get("/streams/%24ce-cart/2?resolve_links=true").await;
    assert_eq!(
        places(&json!([one.json()])),
        [json!([["$ce-cart", 2], "cart-2", 0])]
    );
    let one = server.get("/streams/%24ce-cart/2").await.json();
    assert_eq!(places(&json!([one])), [json!([null, "$ce-cart", 2])]);
    let ordinary = server.get("/streams/cart-1?resolve_links=true").await;
    let as_it_is = server.get("/streams/cart-1?resolve_links=false").await;
    assert_eq!(ordinary.body, as_it_is.body);
}

#[tokio::test]
async fn links_are_followed_in_lines() {
    let server = carts().await;
    for (limit, count) in [("", 4), ("&limit=2", 2)] {
        let target = format!("/streams/$streams?resolve_links=true{limit}");
        let accept = [("accept", "application/x-ndjson")];
        let answer = server.send("GET", &target, &accept, "").await;
        let lines: Vec<Value> = answer
            .body
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(lines.len(), count.min(3), "{answer:?}");
        assert_eq!(
            places(&json!(lines))[1],
            json!([["$streams", 1], "show-1", 0])
        );
    }
}

#[tokio::test]
async fn links_are_followed_in_subscriptions() {
    let server = carts().await;
    // Larger than what is copied for each subscriber.
    let large = format!("\"{}\"", "x".repeat(20_000));
    server.append("cart-3", &[&large]).await;
    server.json("DELETE", "/streams/cart-2", "").await;
    let target = "/streams/$ce-cart/subscribe?resolve_links=true";
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut events = server.raw(&request).await;
    events.until("caught_up").await;
    server.append("cart-1", &["9"]).await;
    events.until("\"data\":9").await;
    events.until("}}\n\n").await;
    let body = body_of(&events.received);
    let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let found: Vec<Value> = data
        .map(|text| serde_json::from_str(text).expect("JSON"))
        .collect();
    let found: Vec<&Value> = found
        .iter()
        .filter(|found| found["id"].is_string())
        .collect();
    let expected = [
        json!([["$ce-cart", 0], "cart-1", 0]),
        json!([["$ce-cart", 1], "cart-1", 1]),
        // A read of its stream does not show it any more.
        json!([null, "$ce-cart", 2]),
        json!([["$ce-cart", 3], "cart-3", 0]),
        json!([["$ce-cart", 4], "cart-1", 2]),
    ];
    assert_eq!(places(&json!(found)), expected);
    assert_eq!(found[3]["data"].as_str().map(str::len), Some(20_000));
}

#[tokio::test]
async fn what_is_wrong_is_refused() {
    let server = carts().await;
    for (target, status) in [
        ("/streams/$ce-cart?resolve_links=maybe", 400),
        (
            "/streams/$ce-cart?resolve_links=true&resolve_links=true",
            400,
        ),
        ("/streams/$ce-none?resolve_links=true", 404),
        ("/streams/$et-none", 404),
        ("/streams/$ce-cart/3?resolve_links=true", 404),
        ("/all?resolve_links=true", 400),
    ] {
        assert_eq!(server.get(target).await.status, status, "{target}");
    }
    let body = r#"{"events":[{"type":"A","data":1}]}"#;
    for name in ["$ce-cart", "$et-A", "$streams"] {
        let target = format!("/streams/{name}");
        let answer = server.json("POST", &target, body).await;
        assert_eq!(
            (answer.status, &answer.json()["field"]),
            (400, &json!("stream"))
        );
        assert!(answer.body.contains("virtual"), "{answer:?}");
        assert_eq!(server.json("DELETE", &target, "").await.status, 400);
        let metadata = server
            .json("PUT", &format!("{target}/metadata"), "{}")
            .await;
        assert_eq!(metadata.status, 400);
    }
}

/// What happened: a filter over all events by the names of virtual streams found nothing, without a word, for their
/// links are not among all events. Goal: it is refused with what to do, unless something else may pass.
#[tokio::test]
async fn a_filter_that_only_virtual_streams_pass_is_refused() {
    let server = Server::start().await;
    for (parameters, status) in [
        ("stream_prefix=%24ce-", 400),
        ("stream_prefix=%24ce-&stream_prefix=%24et-a&type=T", 400),
        ("stream_prefix=%24ce-&stream_prefix=cart-", 200),
        ("stream_prefix=%24ce", 200),
    ] {
        let answer = server.get(&format!("/all?{parameters}")).await;
        assert_eq!(answer.status, status, "{answer:?}");
        if status == 400 {
            assert!(answer.body.contains("such a stream itself"), "{answer:?}");
            let answer = server.get(&format!("/all/subscribe?{parameters}")).await;
            assert_eq!(answer.status, status, "{answer:?}");
        }
    }
    let group = r#"{"filter":[{"stream_prefixes":["$et-"]}]}"#;
    let answer = server.json("PUT", "/all/groups/g", group).await;
    assert_eq!(answer.status, 400, "{answer:?}");
}
