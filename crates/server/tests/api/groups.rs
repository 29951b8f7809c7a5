//! Tests consumer groups.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gesta_access::Accounts;
use gesta_core::EventStore;
use gesta_memory::MemoryStore;
use gesta_server::Config;
use serde_json::{Value, json};

use crate::access::world::{World, access_config, add, basic};
use crate::client::{Answer, Raw, Server, config, soon};
use crate::gated::GatedStore;
use crate::logged::Logged;

const GROUP: &str = "/streams/cart-1/groups/mail";

async fn call(server: &Server, method: &str, target: &str, body: Value) -> Answer {
    server.json(method, target, &body.to_string()).await
}

/// Makes a consumer, and returns it with its number.
pub(crate) async fn consume(server: &Server, target: &str) -> (Raw, String) {
    let mut raw = server
        .raw(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        .await;
    raw.until("\"}\n\n").await;
    let joined = data(&raw, "joined").remove(0);
    let number = joined["consumer"].as_str().expect("a number").to_owned();
    (raw, number)
}

/// Returns the body so far, without the marks of its chunks.
fn without_chunks(received: &str) -> String {
    let mut rest = received.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let mut body = String::new();
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
        let Some(chunk) = more.get(..size) else { break };
        body.push_str(chunk);
        rest = more.get(size + 2..).unwrap_or("");
    }
    body
}

/// Returns the data of all messages of this name.
pub(crate) fn data(raw: &Raw, name: &str) -> Vec<Value> {
    let event = format!("event: {name}");
    let messages = without_chunks(&raw.received);
    let mut lines = messages.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if line == event
            && let Some(data) = lines.next().and_then(|line| line.strip_prefix("data: "))
        {
            found.extend(serde_json::from_str::<Value>(data).ok());
        }
    }
    found
}

/// Waits for `count` deliveries, and returns them.
pub(crate) async fn deliveries(raw: &mut Raw, count: usize) -> Vec<Value> {
    soon(async {
        while data(raw, "event").len() < count {
            assert!(raw.more().await, "{}", raw.received);
        }
    })
    .await;
    data(raw, "event")
}

#[tokio::test]
async fn a_group_is_created_read_and_changed() {
    let server = Server::start().await;
    // Whole numbers may be written as fractions, here as everywhere.
    let settings = json!({"settings": {"max_retry_count": 3.0, "start": {"at": 2.0}}});
    let created = call(&server, "PUT", GROUP, settings.clone()).await;
    assert_eq!(created.status, 201, "{}", created.body);
    assert_eq!(server.get(GROUP).await.json(), created.json());
    let group = created.json();
    assert_eq!(
        (&group["source"], &group["group"]),
        (&json!("cart-1"), &json!("mail"))
    );
    assert_eq!(
        (&group["status"], &group["checkpoint"]),
        (&json!("idle"), &Value::Null)
    );
    assert_eq!(group["settings"]["max_retry_count"], 3);
    assert_eq!(group["settings"]["start"], json!({"at": 2}));
    let again = call(&server, "PUT", GROUP, settings).await;
    assert_eq!(
        (again.status, again.problem().0.as_str()),
        (409, "group_exists")
    );

    let changed = json!({"settings": {"strategy": "pinned"}});
    let changed = call(&server, "POST", GROUP, changed).await;
    assert_eq!(
        (changed.status, &changed.json()["settings"]["strategy"]),
        (200, &json!("pinned"))
    );
}

#[tokio::test]
async fn groups_are_listed_by_their_names() {
    let server = Server::start().await;
    call(&server, "PUT", GROUP, json!({})).await;
    let filter = json!({"filter": [{"categories": ["cart"]}]});
    let all = call(&server, "PUT", "/all/groups/m%C3%A4il", filter).await;
    assert_eq!(all.status, 201, "{}", all.body);
    assert_eq!(all.json()["filter"][0]["categories"], json!(["cart"]));

    let names = |answer: Answer| -> Vec<String> {
        let groups = answer.json()["groups"].as_array().expect("a list").clone();
        groups
            .iter()
            .map(|group| format!("{}::{}", group["source"], group["group"]))
            .collect()
    };
    let (mail, on_all) = ("\"cart-1\"::\"mail\"", "\"$all\"::\"mäil\"");
    assert_eq!(names(server.get("/groups").await), [on_all, mail]);
    assert_eq!(names(server.get("/groups?limit=1").await), [on_all]);
    assert_eq!(
        names(server.get("/groups?after=$all::m%C3%A4il").await),
        [mail]
    );
    assert_eq!(names(server.get("/streams/cart-1/groups").await), [mail]);
    assert_eq!(
        names(server.get("/streams/cart-1/groups?after=mail").await),
        [""; 0]
    );
    assert_eq!(names(server.get("/all/groups").await), [on_all]);
}

#[tokio::test]
async fn a_deleted_group_is_gone() {
    let server = Server::start().await;
    call(&server, "PUT", GROUP, json!({})).await;
    assert_eq!(
        call(&server, "POST", "/groups/restart", json!({}))
            .await
            .status,
        200
    );
    let deleted = server.send("DELETE", GROUP, &[], "").await;
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    for (method, target) in [
        ("GET", GROUP.to_owned()),
        ("DELETE", GROUP.to_owned()),
        ("GET", format!("{GROUP}/consume")),
    ] {
        let gone = server.send(method, &target, &[], "").await;
        assert_eq!(
            (gone.status, gone.problem().0.as_str()),
            (404, "group_not_found"),
            "{target}"
        );
    }
}

/// Returns the revisions of the events that were delivered.
fn revisions(deliveries: &[Value]) -> Vec<u64> {
    let revisions = deliveries.iter().map(|one| &one["event"]["revision"]);
    revisions.filter_map(Value::as_u64).collect()
}

/// Starts a server with a group that moves its checkpoint with every event.
async fn server_with_exact_group() -> Server {
    let server = Server::start().await;
    let settings = json!({"settings": {
        "checkpoint_after_ms": 0, "min_checkpoint_count": 1, "max_checkpoint_count": 1,
        "extra_statistics": true, "message_timeout_ms": 600_000,
    }});
    call(&server, "PUT", GROUP, settings).await;
    server
}

#[tokio::test]
async fn consumers_share_events_and_are_shown() {
    let server = server_with_exact_group().await;
    let (mut first, _) = consume(&server, &format!("{GROUP}/consume?buffer=2&name=first")).await;
    let (mut second, two) = consume(&server, &format!("{GROUP}/consume?buffer=2")).await;
    let large = format!("\"{}\"", "x".repeat(20_000));
    server.append("cart-1", &["0", &large, "2", "3", "4"]).await;
    let of_first = deliveries(&mut first, 2).await;
    let of_second = deliveries(&mut second, 2).await;
    assert_eq!(
        (revisions(&of_first), revisions(&of_second)),
        (vec![0, 2], vec![1, 3])
    );
    assert_eq!(
        of_second[0]["event"]["data"].as_str().map(str::len),
        Some(20_000)
    );

    // The group reads the fifth event on its own.
    let info = soon(async {
        loop {
            let info = server.get(GROUP).await.json();
            if info["running"]["waiting"] == 1 {
                return info;
            }
        }
    })
    .await;
    let running = &info["running"];
    assert_eq!(
        (&running["in_flight"], &running["waiting"]),
        (&json!(4), &json!(1))
    );
    assert_eq!(running["consumers"][0]["name"], "first");
    assert_eq!(running["consumers"][1]["consumer"], json!(two));

    // A server that stops tells its consumers.
    soon(server.handle.shutdown()).await;
    assert!(first.rest().await.contains("event: error"));
}

#[tokio::test]
async fn consumers_answer_for_events_or_leave_them_to_others() {
    let server = server_with_exact_group().await;
    let (mut first, one) = consume(&server, &format!("{GROUP}/consume?buffer=2")).await;
    let (mut second, two) = consume(&server, &format!("{GROUP}/consume?buffer=2")).await;
    server.append("cart-1", &["0", "1", "2", "3", "4"]).await;
    let of_first = deliveries(&mut first, 2).await;
    let of_second = deliveries(&mut second, 2).await;

    let ack = json!({"consumer": one, "deliveries": [of_first[0]["delivery"], 77]});
    let acked = call(&server, "POST", &format!("{GROUP}/ack"), ack).await;
    assert_eq!(acked.json(), json!({"answered": 1, "unknown": 1}));
    // What is finished is told before a checkpoint holds it.
    let running = &server.get(GROUP).await.json()["running"];
    assert_eq!(running["finished_to"], json!(0));
    assert_eq!(revisions(&deliveries(&mut first, 3).await), [0, 2, 4]);
    let nack = json!({"consumer": two, "ids": [of_second[0]["event"]["id"]], "action": "park", "reason": "odd"});
    let nacked = call(&server, "POST", &format!("{GROUP}/nack"), nack).await;
    assert_eq!(nacked.json(), json!({"answered": 1, "unknown": 0}));
    soon(async { while server.get(GROUP).await.json()["parked"] != 1 {} }).await;

    // What the second holds goes to the first when it leaves: its room is full until it answers.
    drop(second);
    let held = json!({"consumer": one, "deliveries": [of_first[1]["delivery"]]});
    call(&server, "POST", &format!("{GROUP}/ack"), held).await;
    let all = deliveries(&mut first, 4).await;
    assert_eq!(
        (&all[3]["event"]["revision"], &all[3]["retries"]),
        (&json!(3), &json!(1))
    );
    let gone = json!({"consumer": two, "deliveries": [1]});
    let gone = call(&server, "POST", &format!("{GROUP}/ack"), gone).await;
    assert_eq!(
        (gone.status, gone.problem().0.as_str()),
        (404, "consumer_not_found")
    );

    let replayed = call(
        &server,
        "POST",
        &format!("{GROUP}/replay-parked"),
        json!({}),
    )
    .await;
    assert_eq!(replayed.status, 200, "{}", replayed.body);
    let metrics = server.get("/metrics").await.body;
    assert!(
        metrics.contains("gesta_group_redeliveries_total 1"),
        "{metrics}"
    );
    assert!(metrics.contains("gesta_groups_running 1"), "{metrics}");
    assert!(
        metrics.contains(r#"gesta_group_outcomes_total{outcome="parked"} 1"#),
        "{metrics}"
    );
}

/// Goal: a group goes on where an administrator says, and its consumers are told to join again.
#[tokio::test]
async fn a_group_is_moved() {
    let server = Server::start().await;
    call(&server, "PUT", GROUP, json!({})).await;
    server.append("cart-1", &["0", "1", "2", "3", "4"]).await;
    let (mut raw, number) = consume(&server, &format!("{GROUP}/consume?buffer=10")).await;
    let held = deliveries(&mut raw, 5).await;
    let all: Vec<&Value> = held.iter().map(|delivery| &delivery["delivery"]).collect();
    let ack = json!({"consumer": number, "deliveries": all});
    call(&server, "POST", &format!("{GROUP}/ack"), ack).await;
    for (to, checkpoint, first) in [
        (json!({"at": 3}), json!(2), json!(3)),
        (json!("start"), json!(null), json!(0)),
        (json!("surviving"), json!(null), json!(0)),
    ] {
        let moved = call(
            &server,
            "POST",
            &format!("{GROUP}/reset"),
            json!({ "to": to }),
        )
        .await;
        assert_eq!(moved.status, 200, "{}", moved.body);
        assert_eq!(moved.json()["checkpoint"], checkpoint, "{to}");
        soon(async { while data(&raw, "error").is_empty() && raw.more().await {} }).await;
        let told = &data(&raw, "error")[0]["type"];
        assert_eq!(told, "urn:gesta:problem:group_dropped");
        let joined = consume(&server, &format!("{GROUP}/consume?buffer=10")).await;
        raw = joined.0;
        assert_eq!(
            deliveries(&mut raw, 1).await[0]["event"]["revision"],
            first,
            "{to}"
        );
    }
    let moved = call(
        &server,
        "POST",
        &format!("{GROUP}/reset"),
        json!({"to": "end"}),
    )
    .await;
    assert_eq!(moved.json()["checkpoint"], 4, "{}", moved.body);
}

/// What happened: over server-sent events a consumer that had vanished kept its place for ever, because what is written
/// to it stays in the buffers of the system. Goal: it is told, and leaves.
#[tokio::test]
async fn a_consumer_that_answers_nothing_leaves_with_a_problem() {
    let server = Server::start().await;
    let settings = json!({"settings": {"message_timeout_ms": 50, "max_retry_count": 1}});
    call(&server, "PUT", GROUP, settings).await;
    server.append("cart-1", &["0", "1", "2"]).await;
    let (mut raw, _) = consume(&server, &format!("{GROUP}/consume?buffer=2")).await;
    soon(async { while data(&raw, "error").is_empty() && raw.more().await {} }).await;
    let told = data(&raw, "error").remove(0);
    assert_eq!(told["type"], "urn:gesta:problem:consumer_silent", "{told}");
    let info = server.get(GROUP).await.json();
    assert_eq!(
        (&info["parked"], &info["running"]["counts"]["silent"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(info["running"]["consumers"], json!([]));
    let metrics = server.get("/metrics").await.body;
    assert!(
        metrics.contains("gesta_group_silent_consumers_total 1"),
        "{metrics}"
    );
    assert!(metrics.contains("gesta_groups_halted 0"), "{metrics}");
}

/// Makes calls with a method, a target and a body, and checks that the problem names the field that is wrong.
async fn assert_field_is_named(server: &Server, cases: &[(&str, &str, Value, &str)]) {
    for (method, target, body, field) in cases {
        let answer = call(server, method, target, body.clone()).await;
        assert_eq!(answer.status, 400, "{target} {body}: {}", answer.body);
        let named = answer.problem().1;
        assert_eq!(named, *field, "{target} {body}: {}", answer.body);
        let has_type = ["u32", "u64"].iter().any(|kind| answer.body.contains(kind));
        assert!(!has_type, "a type of Rust: {}", answer.body);
    }
}

/// Goal: whatever is wrong with a group to be made or changed is named, and there is none afterwards.
#[tokio::test]
async fn wrong_groups_are_refused_with_the_field() {
    let server = Server::start().await;
    let (group, of_all) = ("/streams/a/groups/a", "/all/groups/a");
    let set = |name: &str, value: Value| json!({"settings": {name: value}});
    let filter = |kind: &str| json!({"filter": [{"types": [kind]}]});
    let cases = [
        ("PUT", "/streams/cart-1/groups/a::b", json!({}), "group"),
        ("PUT", "/streams/cart-1/groups/", json!({}), "group"),
        ("PUT", "/streams/$all/groups/a", json!({}), "stream"),
        ("PUT", group, json!([]), "body"),
        ("PUT", group, json!({"setting": {}}), "setting"),
        ("PUT", group, json!({"settings": []}), "settings"),
        ("PUT", group, set("x", json!(1)), "settings.x"),
        (
            "PUT",
            group,
            set("max_retry_count", json!(-1)),
            "settings.max_retry_count",
        ),
        (
            "PUT",
            group,
            set("max_retry_count", json!(1.5)),
            "settings.max_retry_count",
        ),
        (
            "PUT",
            group,
            set("max_retry_count", json!(5_000_000_000_u64)),
            "settings.max_retry_count",
        ),
        (
            "PUT",
            group,
            set("live_buffer_size", json!(0)),
            "settings.live_buffer_size",
        ),
        ("PUT", group, filter("x"), "filter"),
        ("PUT", of_all, filter(""), "filter[0].types"),
        (
            "PUT",
            of_all,
            set("start", json!({"at": 999})),
            "settings.start.at",
        ),
    ];
    assert_field_is_named(&server, &cases).await;
    let form = [("content-type", "text/plain")];
    let sent = server.send("PUT", group, &form, "{}").await;
    assert_eq!(sent.status, 415);
    let groups = server.get("/groups").await.json();
    assert_eq!(groups["groups"].as_array().map(Vec::len), Some(0));
}

/// Goal: whatever is wrong with a call to a group is named, and the group stays.
#[tokio::test]
async fn wrong_calls_of_a_group_are_refused_with_the_field() {
    let server = Server::start().await;
    call(&server, "PUT", GROUP, json!({})).await;
    let (_raw, number) = consume(&server, &format!("{GROUP}/consume")).await;
    let ack = "/streams/cart-1/groups/mail/ack";
    let nack = "/streams/cart-1/groups/mail/nack";
    let replay = "/streams/cart-1/groups/mail/replay-parked";
    let reset = "/streams/cart-1/groups/mail/reset";
    let unknown = json!({"consumer": number, "deliveries": [1], "action": "Retry"});
    let long = json!({"consumer": number, "deliveries": [1], "action": "park", "reason": "x".repeat(1_001)});
    let cases = [
        ("POST", GROUP, json!({}), "settings"),
        ("POST", ack, json!({"deliveries": [1]}), "consumer"),
        (
            "POST",
            ack,
            json!({"consumer": "7", "deliveries": [1]}),
            "consumer",
        ),
        ("POST", ack, json!({"consumer": number}), "deliveries"),
        (
            "POST",
            ack,
            json!({"consumer": number, "ids": ["x"]}),
            "ids[0]",
        ),
        ("POST", nack, unknown, "action"),
        ("POST", nack, long, "reason"),
        ("POST", replay, json!({"stop_at": -1}), "stop_at"),
        ("POST", replay, json!({"stop_at": 0.5}), "stop_at"),
        ("POST", reset, json!({}), "to"),
        ("POST", reset, json!({"to": "middle"}), "to"),
        ("POST", reset, json!({"to": {"at": -1}}), "to.at"),
        ("POST", reset, json!({"to": {"at": 1}}), "to.at"),
    ];
    assert_field_is_named(&server, &cases).await;
    for target in [
        "/consume?buffer=0",
        "/consume?buffer=10001",
        "/consume?buffer=x",
        "?x=1",
    ] {
        let answer = server.get(&format!("{GROUP}{target}")).await;
        assert_eq!(answer.status, 400, "{target}");
    }
    let groups = server.get("/groups").await.json();
    assert_eq!(groups["groups"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn consumers_count_as_subscriptions_and_a_full_group_says_so() {
    let bounded = Config {
        subscriptions_max: 2,
        ..config()
    };
    let server = Server::with(bounded, Arc::new(MemoryStore::new())).await;
    let one = json!({"settings": {"max_subscriber_count": 1}});
    call(&server, "PUT", GROUP, one).await;
    call(&server, "PUT", "/streams/b/groups/mail", json!({})).await;
    let (_first, _) = consume(&server, &format!("{GROUP}/consume")).await;
    let full = server.get(&format!("{GROUP}/consume")).await;
    assert_eq!(
        (full.status, full.problem().0.as_str()),
        (409, "group_full")
    );
    let (_second, _) = consume(&server, "/streams/b/groups/mail/consume").await;
    let full = server.get("/streams/b/groups/mail/consume").await;
    assert_eq!(
        (full.status, full.problem().0.as_str()),
        (503, "overloaded")
    );
}

/// What happened: an administrator who deleted groups and closed each connection at once left no line of some of them
/// in the audit log. Goal: a change of a group that was begun is told, also if its caller leaves.
#[tokio::test]
async fn a_change_whose_caller_leaves_is_in_the_audit_log() {
    let (logged, _guard) = Logged::begin();
    let gated = GatedStore::new();
    let store: Arc<dyn EventStore> = gated.clone();
    let accounts = Accounts::of(Arc::clone(&store));
    gated.appends.add_permits(100);
    add(&accounts, "root", &["$admins"]).await;
    let world = World::over(store, accounts, config(), access_config()).await;
    gated.appends.forget_permits(100);
    let before = gated.waiting.load(Ordering::SeqCst);
    let head = format!(
        "PUT /streams/a/groups/g HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\n\
         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}",
        basic("root")
    );
    let raw = world.server.raw(&head).await;
    gated.appends_have_come(before + 1).await;
    drop(raw);
    soon(async {
        while logged.with("the caller left").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let lines = logged.with("the caller left");
    assert_eq!(lines.len(), 1, "{lines:#?}");
    for part in [r#"who="root""#, "a::g", "administrative"] {
        assert!(lines[0].contains(part), "{part}: {lines:#?}");
    }
}
