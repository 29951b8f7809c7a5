//! The library as programs use it: the same calls on a file, on PostgreSQL, on a server, and on servers with users and
//! TLS.
#![cfg(all(feature = "sqlite", feature = "client"))]
#![expect(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod follows;
mod groups;
mod opens;
mod secured;

use std::sync::Arc;
use std::time::Duration;

use gesta::{EventData, ExpectedRevision::NoStream, Filter, Revision, Store};
use gesta_server::{Handle, Registry};
use serde::{Deserialize, Serialize};

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct ItemAdded {
    item: String,
}

fn added(item: &str) -> EventData {
    let item = item.to_owned();
    EventData::new("item-added", &ItemAdded { item }).expect("valid")
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, what).await;
    done.expect("it happens")
}

async fn serve(store: &Store) -> Handle {
    let config = gesta_server::Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..gesta_server::Config::default()
    };
    let started = gesta_server::start(config, store.event_store(), Registry::default());
    started.await.expect("a free port")
}

/// Runs a case on an empty store of each kind.
async fn everywhere(case: impl AsyncFn(&Store)) {
    let open = gesta::open("sqlite::memory:");
    let store = open.await.expect("opened");
    case(&store).await;
    store.shutdown().await.expect("shut down");

    let store = gesta::open("sqlite::memory:").await.expect("opened");
    let server = serve(&store).await;
    let url = format!("http://{}", server.local_addr());
    let remote = gesta::open(&url).create().await.expect("opened");
    case(&remote).await;
    remote.shutdown().await.expect("shut down");
    server.shutdown().await;
    store.shutdown().await.expect("shut down");

    #[cfg(feature = "postgres")]
    if let Some(server) = gesta_rig::shared() {
        let schema = gesta_rig::fresh_schema();
        let times = "answer_timeout=60&connect_timeout=60";
        let url = format!("{}?schema={schema}&{times}", server.url());
        let store = gesta::open(&url).create().await.expect("opened");
        case(&store).await;
        store.shutdown().await.expect("shut down");
    }

    let secured = secured::Secured::new().await;
    let remote = secured.open(&secured.token).await.expect("opened");
    case(&remote).await;
    remote.shutdown().await.expect("shut down");
    secured.shutdown().await;
}

/// Goal: the program of the README, line by line.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_appended_followed_and_worked_on_in_a_few_lines() {
    everywhere(async |store| {
        let added = added("book");
        let appended = store.append_to("cart-1", NoStream, [added.clone()]).await;
        let appended = appended.expect("stored");

        let carts = store.follow(Filter::category("cart")).from_start().await;
        let mut carts = carts.expect("followed");
        let next = soon(carts.next()).await.expect("an event");
        let (event, checkpoint) = next.expect("an event");
        let found: ItemAdded = event.json().expect("readable");
        assert_eq!(found.item, "book");
        assert_eq!(event.id, added.id.expect("drawn"));
        assert_eq!(checkpoint, appended.checkpoint);

        let mut mails = store.join("cart-1", "mail").await.expect("joined");
        let delivery = soon(mails.next()).await.expect("one").expect("an event");
        assert_eq!(delivery.event, event);
        assert!(mails.ack(&delivery).await.expect("answered"));
    })
    .await;
}

/// Goal: who appends the same values again has stored them once, whatever has become of the first answer. What
/// happened: constructors gave no ids, so a retry of the shortest program stored its events twice.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_values_appended_again_are_a_retry() {
    use gesta::ExpectedRevision::Any;
    everywhere(async |store| {
        let both = [added("book"), added("pen")];
        let first = store.append_to("cart-1", Any, both.clone()).await;
        let again = store.append_to("cart-1", Any, both).await;
        assert_eq!(again.expect("known"), first.expect("stored"));
        // Values that are equal but for their ids are other events.
        let other = store.append_to("cart-1", Any, [added("book")]).await;
        other.expect("stored");
        // And who wants no ids says so.
        let without = [added("lamp").without_id()];
        for _ in 0..2 {
            let stored = store.append_to("cart-1", Any, without.clone()).await;
            stored.expect("stored");
        }
        let events = store.read_whole_stream("cart-1").await.expect("readable");
        let items: Vec<String> = events
            .iter()
            .map(|event| event.json::<ItemAdded>().expect("readable").item)
            .collect();
        assert_eq!(items, ["book", "pen", "book", "lamp", "lamp"]);
    })
    .await;
}

/// Goal: a name that is none, and data of another type, are told with the value and the rule.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_told() {
    use gesta::ExpectedRevision::Any;
    let no_type = EventData::new("", "x").expect_err("no type").to_string();
    assert!(no_type.contains("type must not be empty"), "{no_type}");
    let no_json = std::collections::HashMap::from([((1, 2), 3)]);
    let no_json = EventData::new("odd", &no_json).expect_err("no JSON");
    assert!(no_json.to_string().contains("JSON form"), "{no_json}");
    everywhere(async |store| {
        let error = store.append_to("", Any, [added("book")]).await;
        let error = error.expect_err("no name").to_string();
        assert!(error.contains("stream must not be empty"), "{error}");
        assert!(store.follow("").await.is_err());
        assert!(store.join("", "mail").await.is_err());
        assert!(store.join("cart-1", "").await.is_err());

        let appended = store.append_to("cart-1", Any, [added("book")]).await;
        appended.expect("stored");
        let event = store.read_event("cart-1", Revision(0)).await;
        let event = event.expect("there");
        let error = event.json::<u64>().expect_err("another type").to_string();
        assert!(
            error.contains("event 0 of stream cart-1 (type item-added)"),
            "{error}"
        );
    })
    .await;
}

/// Goal: entities live where the events are decided; a store on a server says that it has none.
#[tokio::test]
async fn a_store_tells_what_only_databases_can_do() {
    let store = gesta::open("sqlite::memory:").await.expect("opened");
    assert!(store.database().is_ok());
    let server = serve(&store).await;
    let remote = gesta::open(&format!("http://{}", server.local_addr())).await;
    let remote = remote.expect("opened");
    let error = remote.database().map(drop).expect_err("on a server");
    assert!(error.to_string().contains("on a server"), "{error}");
    server.shutdown().await;
    let all: Arc<dyn gesta::EventStore> = store.clone().into();
    store.shutdown().await.expect("shut down");
    assert!(all.info().await.is_err(), "it is the same store");
}
