//! Tests what consumers of groups are shown: the events to which links lead, and never what their callers may not read.

use gesta_access::Scope;
use gesta_core::{EventData, EventStoreExt, EventType, ExpectedRevision};
use gesta_groups::{GroupId, Settings, Source};
use serde_json::{Value, json};

use crate::access::world::{World, access_config, basic};
use crate::client::{Raw, Server, soon};
use crate::groups::{consume, data, deliveries};

const LARGE_BYTES: usize = 20_000;

async fn link(world: &World, stream: &str, to: &str) {
    let link = EventData::binary(EventType::new("$>").expect("valid"), to.to_owned());
    let stored = world
        .store
        .append_to(stream, ExpectedRevision::Any, vec![link]);
    stored.await.expect("stored");
}

fn group(source: &str) -> GroupId {
    let stream = gesta_core::StreamId::new(source).expect("valid");
    GroupId::new(Source::Stream(stream), "g").expect("valid")
}

fn following() -> Settings {
    Settings {
        resolve_links: true,
        checkpoint_after_ms: 0,
        min_checkpoint_count: 1,
        max_checkpoint_count: 1,
        ..Settings::default()
    }
}

async fn group_of(world: &World, source: &str, settings: Settings) {
    let create = gesta_groups::Create {
        group: group(source),
        settings,
        filter: gesta_core::Filter::ALL,
    };
    let groups = world.server.handle.groups();
    groups.create(create).await.expect("made");
}

/// Joins a group as this caller. Returns the consumer and its number.
async fn join(world: &World, source: &str, authorization: &str) -> (Raw, String) {
    let target = format!("/streams/{source}/groups/g/consume");
    let mut raw = world.say("GET", &target, authorization, "").await;
    raw.until("\"}\n\n").await;
    let number = data(&raw, "joined")[0]["consumer"].clone();
    (raw, number.as_str().expect("a number").to_owned())
}

/// Goal: a group that follows links delivers what they lead to, large or small, and finishes those that lead nowhere.
#[tokio::test]
async fn a_group_delivers_what_links_lead_to() {
    let server = Server::start().await;
    let large = format!("\"{}\"", "x".repeat(LARGE_BYTES));
    server.append("cart-1", &["7", &large]).await;
    let links = ["9@cart-1", "0@cart-1", "1@cart-1"];
    let links = links.map(|to| json!({"type": "$>", "data_base64": base64_of(to)}));
    let of_links = json!({ "events": links }).to_string();
    let stored = server.json("POST", "/streams/links", &of_links).await;
    assert_eq!(stored.status, 201, "{}", stored.body);
    for (name, settings) in [
        ("plain", json!({})),
        ("follow", serde_json::to_value(following()).expect("JSON")),
    ] {
        let target = format!("/streams/links/groups/{name}");
        let body = json!({ "settings": settings }).to_string();
        assert_eq!(server.json("PUT", &target, &body).await.status, 201);
    }
    let (mut raw, _) = consume(&server, "/streams/links/groups/plain/consume").await;
    for delivery in deliveries(&mut raw, 3).await {
        assert_eq!(delivery["event"]["type"], "$>");
        assert_eq!(delivery["event"]["link"], Value::Null);
    }
    let (mut raw, number) = consume(&server, "/streams/links/groups/follow/consume").await;
    let found = deliveries(&mut raw, 2).await;
    let seen: Vec<_> = found
        .iter()
        .map(|one| {
            let (event, link) = (&one["event"], &one["event"]["link"]);
            assert_eq!(link["stream"], "links");
            (
                event["stream"].clone(),
                event["revision"].clone(),
                link["revision"].clone(),
            )
        })
        .collect();
    let expected = [(0, 1), (1, 2)].map(|(to, at)| (json!("cart-1"), json!(to), json!(at)));
    assert_eq!(seen, expected);
    assert_eq!(found[0]["event"]["data"], 7);
    let data = found[1]["event"]["data"].as_str().expect("a text");
    assert_eq!(data.len(), LARGE_BYTES);
    let ack =
        json!({"consumer": number, "deliveries": [found[0]["delivery"], found[1]["delivery"]]});
    let target = "/streams/links/groups/follow/ack";
    let acked = server.json("POST", target, &ack.to_string()).await;
    assert_eq!(acked.json()["answered"], 2, "{}", acked.body);
    soon(async {
        while server.get("/streams/links/groups/follow").await.json()["checkpoint"] != 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn base64_of(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// What went wrong before: a consumer that may not read the event to which a link leads made its group take the link as
/// finished, so that consumers who may read the event never got it.
#[tokio::test]
async fn who_may_not_read_what_a_link_leads_to_takes_it_from_nobody() {
    let world = World::new().await;
    world.seed("secret").await;
    let acl = r#"{"$acl":{"$r":"team","$mr":"team","$mw":"team"}}"#;
    world.set_metadata("secret", acl).await;
    link(&world, "links", "0@secret").await;
    group_of(&world, "links", following()).await;
    world.until("/streams/secret", &basic("user"), 403).await;
    let (raw, _) = join(&world, "links", &basic("user")).await;
    let text = soon(raw.rest()).await;
    assert!(text.contains("urn:gesta:problem:forbidden"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    let (mut raw, _) = join(&world, "links", &basic("mate")).await;
    let delivered = deliveries(&mut raw, 1).await.remove(0);
    assert_eq!(delivered["event"]["stream"], "secret");
}

/// Goal: a group on a virtual stream tells nobody of streams that they may not read.
#[tokio::test]
async fn a_group_on_a_virtual_stream_names_no_hidden_stream() {
    let world = World::new().await;
    let settings = r#"{"events":[{"type":"T","data":{"$systemStreamAcl":{"$r":"$all"}}}]}"#;
    let set = world
        .status("POST", "/streams/%24settings", &basic("root"), settings)
        .await;
    assert_eq!(set, 201);
    world.seed("plan-secret").await;
    let acl = r#"{"$acl":{"$r":"team","$mr":"team","$mw":"team"}}"#;
    world.set_metadata("plan-secret", acl).await;
    group_of(&world, "$ce-plan", Settings::default()).await;
    let user = basic("user");
    // They see none of its links, so to them it is not there.
    world.until("/streams/$ce-plan", &user, 404).await;
    world.until("/streams/plan-secret", &user, 403).await;
    let (raw, _) = join(&world, "$ce-plan", &user).await;
    let text = soon(raw.rest()).await;
    assert!(text.contains("urn:gesta:problem:forbidden"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    let (mut raw, _) = join(&world, "$ce-plan", &basic("mate")).await;
    let delivered = deliveries(&mut raw, 1).await.remove(0);
    assert_eq!(delivered["event"]["stream"], "$ce-plan");
}

/// Goal: what a consumer is delivered counts against the bytes a second of its user.
#[tokio::test]
async fn deliveries_count_for_the_user() {
    let of = gesta_access::Config {
        user_bytes_per_second: 100,
        ..access_config()
    };
    let world = World::new_with(of).await;
    let event = EventData::json(
        EventType::new("T").expect("valid"),
        format!("\"{}\"", "x".repeat(600)),
    );
    let stored = world
        .store
        .append_to("cart-1", ExpectedRevision::Any, vec![event]);
    stored.await.expect("stored");
    group_of(&world, "cart-1", Settings::default()).await;
    let scopes = [Scope::Read, Scope::Consume];
    let token = world.token("user", &scopes, &[]).await;
    let (mut raw, _) = join(&world, "cart-1", &token).await;
    deliveries(&mut raw, 1).await;
    // Five seconds' worth more than it may owe.
    let status = world.status("GET", "/streams/cart-1", &token, "").await;
    assert_eq!(status, 503);
}

/// Goal: a page of another site, whose requests a browser sends with the password of whoever is logged in, takes no
/// events from a group.
#[tokio::test]
async fn pages_of_other_sites_join_no_group() {
    let server = Server::start().await;
    let target = "/streams/cart-1/groups/g";
    assert_eq!(server.json("PUT", target, "{}").await.status, 201);
    let target = format!("{target}/consume");
    for site in ["cross-site", "same-site", "whatever"] {
        let headers = [("sec-fetch-site", site)];
        let answer = server.send("GET", &target, &headers, "").await;
        assert_eq!(
            (answer.status, answer.problem().0.as_str()),
            (403, "forbidden"),
            "{site}"
        );
    }
    // A browser that reaches a server by plain HTTP under an address of the network says its origin alone.
    for origin in ["http://evil.example", "null", "http://localhost:81"] {
        let answer = server.send("GET", &target, &[("origin", origin)], "").await;
        assert_eq!(answer.status, 403, "{origin}");
    }
    for origin in ["http://localhost", "https://localhost"] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\r\n");
        let mut raw = server.raw(&head).await;
        raw.until("event: joined").await;
    }
    for site in ["same-origin", "none"] {
        let head =
            format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: {site}\r\n\r\n");
        let mut raw = server.raw(&head).await;
        raw.until("event: joined").await;
    }
    let named = gesta_server::Config {
        cors_origins: "https://app.example.org".into(),
        ..crate::client::config()
    };
    let server = Server::with(named, std::sync::Arc::new(gesta_memory::MemoryStore::new())).await;
    assert_eq!(
        server
            .json("PUT", "/streams/cart-1/groups/g", "{}")
            .await
            .status,
        201
    );
    let head = format!(
        "GET {target} HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nOrigin: https://app.example.org\r\n\r\n"
    );
    let mut raw = server.raw(&head).await;
    raw.until("event: joined").await;
}
