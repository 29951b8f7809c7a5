//! Indexes: events are found by what is in them, without code.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{AllPage, EventStore, EventStoreExt, ReadAll};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::testing::{Fate, Faulty};
use gesta_projection::{Api, Error, Find, Index, OnPoison, Projections, Request};
use serde_json::Value;

use super::world::{Process, World, quick};
use crate::flavour::Target;

fn orders() -> Index {
    let index = Index::new("orders").filter(gesta_projection::category("order"));
    let index = index.path("customer.id").expect("a path");
    let index = index.path("total:number").expect("a path");
    let index = index.path("items:int").expect("a path");
    index.path("paid:bool").expect("a path")
}

fn find(values: &[(&str, &str)]) -> Find {
    let values = values.iter();
    Find {
        values: values
            .map(|(path, value)| ((*path).to_owned(), (*value).to_owned()))
            .collect(),
        after: None,
        limit: 10,
    }
}

async fn started(world: &World, index: Index) -> Process {
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let projections = Projections::on(&world.store, faulty).config(quick());
    let process = projections.index(index).on_poison(OnPoison::Stop).start();
    process.await.expect("started")
}

async fn whole(world: &World, process: &Process) {
    world.applies_all(process, "orders").await;
}

/// The positions of the events that are found.
async fn positions(world: &World, values: &[(&str, &str)]) -> Vec<u64> {
    let found = world.control().find("orders", &find(values)).await;
    let found = found.expect("found").into_iter();
    found.map(|(_, position)| position.0).collect()
}

const EVENTS: [&str; 8] = [
    r#"{"customer": {"id": "7"}, "total": 12.5, "items": 3, "paid": true}"#,
    r#"{"customer": {"id": 7}, "total": 12, "paid": false}"#,
    r#"{"customer": {"id": "8"}, "total": "12", "items": 2.5}"#,
    "no JSON",
    r#"{"customer": "7"}"#,
    r#"{"customer": {"id": "a\u0000b"}}"#,
    r#"{"items": 3, "customer": {"id": "7", "more": [1, {"id": "9"}]}}"#,
    r#"[{"customer": {"id": "7"}}]"#,
];

/// Goal: an event is found by each value at a path, and by several at once; a value of another kind is none; what is no
/// JSON, or holds what a database cannot keep, stops nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_found_by_what_is_in_them() {
    let world = World::new().await;
    let process = started(&world, orders()).await;
    for data in EVENTS {
        world.append("order-1", "placed", data).await;
    }
    world.append("other-1", "placed", EVENTS[0]).await;
    whole(&world, &process).await;
    for (values, expected) in [
        (&[("customer.id", "7")][..], &[1, 2, 7][..]),
        (&[("customer.id", "7"), ("items", "3")], &[1, 7]),
        (&[("total", "12")], &[2]),
        (&[("total", "12.5")], &[1]),
        (&[("items", "3")], &[1, 7]),
        (&[("paid", "false")], &[2]),
        (&[("customer.id", "a\u{fffd}b")], &[6]),
        (&[("customer.id", "'; DROP TABLE orders")], &[]),
    ] {
        assert_eq!(positions(&world, values).await, expected, "{values:?}");
    }
    let (long, late) = ("x".repeat(5_000), "y");
    let data = format!(r#"{{"customer": {{"id": "{long}{late}"}}}}"#);
    world.append("order-1", "placed", &data).await;
    whole(&world, &process).await;
    // As much of it as is kept is looked for.
    assert_eq!(positions(&world, &[("customer.id", &long)]).await, [10]);
    let control = world.control();
    let row = control.active("orders").await.expect("its row");
    assert_eq!((row.events, row.error), (9, None));
    process.shutdown().await;
    for (values, why) in [
        (
            &[("customer", "7")][..],
            "has no path \"customer\", but customer.id, total",
        ),
        (
            &[("total", "much")],
            "the values of total are numbers, found \"much\"",
        ),
        (&[("items", "2.5")], "are whole numbers"),
        (&[("paid", "yes")], "are true or false"),
        (&[], "say which value"),
    ] {
        let refused = control.find("orders", &find(values)).await;
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
    }
    // Other paths are another version, which is built beside.
    let changed = Index::new("orders").path("customer.id").expect("a path");
    let changed = changed.filter(gesta_projection::category("order"));
    let projections = Projections::on(&world.store, world.target.clone());
    let refused = projections.index(changed.clone()).start().await;
    let refused = refused.expect_err("another definition");
    assert!(
        matches!(refused, Error::Changed { version: 1, .. }),
        "{refused}"
    );
    let second = started(&world, changed.version(2)).await;
    let of_second = async || {
        control
            .index("orders")
            .await
            .expect("an index")
            .id()
            .version
            == 2
    };
    super::world::until_so(of_second, "it is switched").await;
    assert_eq!(positions(&world, &[("customer.id", "8")]).await, [3]);
    second.shutdown().await;
}

/// Goal: over HTTP the events themselves are given, a page after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn found_events_are_read_over_http() {
    let world = World::of_logs(3).await;
    for n in 0..25 {
        let data = format!(r#"{{"customer": {{"id": "{}"}}, "items": {n}}}"#, n % 2);
        world.append(&format!("order-{n}"), "placed", &data).await;
    }
    let process = started(&world, orders()).await;
    whole(&world, &process).await;
    let store: Arc<dyn EventStore> = Arc::new(Outer(AllLogs(Arc::clone(&world.store))));
    let api: Api<Target> = Api::of(&store, world.target.clone());
    let ask = async |parameters: &[(&str, &str)], status: u16| -> Value {
        let parameters: HashMap<String, String> = parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let request = Request {
            method: "GET",
            path: "/orders/events",
            parameters: &parameters,
            content_type: None,
            caller: None,
        };
        let answer = api.answer(request).await;
        assert_eq!(answer.status, status, "{answer:?}");
        serde_json::from_str(&answer.body).expect("JSON")
    };
    let (mut found, mut next) = (Vec::new(), None::<String>);
    loop {
        let mut parameters = vec![("customer.id", "0"), ("limit", "5")];
        if let Some(next) = &next {
            parameters.push(("after", next));
        }
        let page = ask(&parameters, 200).await;
        for event in page["events"].as_array().expect("events") {
            assert_eq!(event["data"]["customer"]["id"], "0");
            assert_eq!(event["type"], "placed");
            found.push(event["data"]["items"].as_i64().expect("a number"));
        }
        next = page["next"].as_str().map(str::to_owned);
        if next.is_none() {
            break;
        }
    }
    found.sort();
    assert_eq!(found, (0..25).step_by(2).collect::<Vec<i64>>());
    let wrong = ask(&[("customer.id", "0"), ("after", "x")], 400).await;
    let detail = wrong["detail"].as_str().expect("a reason");
    assert!(
        detail.contains("after must be the next of an answer"),
        "{detail}"
    );
    process.shutdown().await;
}

/// Goal: a page is bounded in bytes as well, and the next one goes on where it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_large_events_is_short() {
    let world = World::of_logs(1).await;
    let large = "x".repeat(8 << 20);
    for n in 0..5 {
        let data = format!(r#"{{"customer": {{"id": "7"}}, "n": {n}, "text": "{large}"}}"#);
        world.append("order-1", "placed", &data).await;
    }
    let process = started(&world, orders()).await;
    whole(&world, &process).await;
    let control = process.control();
    let all = control.find("orders", &find(&[("customer.id", "7")])).await;
    let all = all.expect("found");
    assert_eq!(all.len(), 5);
    let sevens = find(&[("customer.id", "7")]);
    let page = control.find_events(&*world.store, "orders", &sevens).await;
    let page = page.expect("read");
    assert_eq!((page.events.len(), page.next), (4, Some(all[3])));
    let api: Api<Target> = Api::of(&world.store, world.target.clone());
    let page = async |after: Option<&str>| -> Value {
        let mut parameters = HashMap::from([("customer.id".to_owned(), "7".to_owned())]);
        parameters.extend(after.map(|after| ("after".to_owned(), after.to_owned())));
        let request = Request {
            method: "GET",
            path: "/orders/events",
            parameters: &parameters,
            content_type: None,
            caller: None,
        };
        serde_json::from_str(&api.answer(request).await.body).expect("JSON")
    };
    let first = page(None).await;
    assert_eq!(first["events"].as_array().expect("events").len(), 4);
    let second = page(first["next"].as_str()).await;
    let rest = second["events"].as_array().expect("events");
    assert_eq!((rest.len(), rest[0]["data"]["n"].as_i64()), (1, Some(4)));
    assert_eq!(second["next"], Value::Null);
    process.shutdown().await;
}

/// What happened: after a restore of the store the index stops, and keeps its rows; the events that had been appended
/// since were found by the values of those that had their places before. Goal: an event is found by what is in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_of_another_customer_is_found_after_a_restore() {
    let mut world = World::new().await;
    let order = |customer: u32| format!(r#"{{"customer": {{"id": "{customer}"}}}}"#);
    for n in 0..20 {
        world.append("order-1", "placed", &order(n)).await;
    }
    let process = started(&world, orders()).await;
    whole(&world, &process).await;
    process.shutdown().await;
    let events = world.store.read_everything().await.expect("read");
    let restored = MemoryStore::restored(MemoryConfig::default(), events.into_iter().take(10));
    world.store = Arc::new(restored.expect("whole"));
    // In the places of the former ones, the last of which is not taken.
    for n in 10..19 {
        let stream = if n == 12 { "invoice-1" } else { "order-1" };
        let customer = if n == 12 { 12 } else { n + 100 };
        world.append(stream, "placed", &order(customer)).await;
    }
    let api: Api<Target> = Api::of(&world.store, world.target.clone());
    let found = async |customer: &str| -> Vec<u64> {
        let find = find(&[("customer.id", customer)]);
        let control = world.control();
        let page = control.find_events(&*world.store, "orders", &find).await;
        let page = page.expect("an answer");
        let parameters = HashMap::from([("customer.id".to_owned(), customer.to_owned())]);
        let request = Request {
            method: "GET",
            path: "/orders/events",
            parameters: &parameters,
            content_type: None,
            caller: None,
        };
        let answer: Value = serde_json::from_str(&api.answer(request).await.body).expect("JSON");
        let events = answer["events"].as_array().expect("events");
        assert_eq!(events.len(), page.events.len());
        page.events.iter().map(|event| event.position.0).collect()
    };
    assert_eq!(found("3").await, [4], "it is still there");
    // Another event, one that the filter does not let pass, and none at all have these places now.
    for customer in ["11", "12", "19"] {
        assert!(found(customer).await.is_empty(), "{customer}");
    }
}

/// A store that reads all logs together, as a server does.
struct AllLogs(Arc<dyn EventStore>);

#[async_trait]
impl Wrapper for AllLogs {
    fn inner(&self) -> &dyn EventStore {
        &*self.0
    }

    async fn read_all(&self, request: ReadAll) -> gesta_core::Result<AllPage> {
        if request.only.is_some() {
            let why = "a server reads all logs, not one of them alone".to_owned();
            return Err(gesta_core::ErrorKind::Unsupported(why).into());
        }
        self.0.read_all(request).await
    }
}
