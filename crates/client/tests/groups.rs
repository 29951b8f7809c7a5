//! Consumer groups on a server, through the client: what it says is what the server's own groups say.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code: a panic is how a test fails"
)]

use std::sync::Arc;

use gesta_client::HttpStore;
use gesta_core::{EventStoreExt, ExpectedRevision, Filter, StreamId};
use gesta_groups::{
    Action, ConsumerGroups, Create, Error, GroupId, Refused, Settings, Source, Start, Strategy,
    Token, Which,
};
use gesta_kit::support::{categories, event, within};
use gesta_memory::MemoryStore;
use gesta_server::{Config, Handle, Registry};

async fn serve() -> (Handle, HttpStore) {
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        ..Config::default()
    };
    let store = Arc::new(MemoryStore::new());
    let server = gesta_server::start(config, store, Registry::default());
    let server = server.await.expect("a free port");
    let client = HttpStore::connect(&format!("http://{}", server.local_addr())).expect("valid");
    (server, client)
}

fn on_stream(stream: &str, name: &str) -> GroupId {
    let stream = StreamId::new(stream).expect("valid");
    GroupId::new(Source::Stream(stream), name).expect("valid")
}

fn create(group: &GroupId, settings: Settings) -> Create {
    Create {
        group: group.clone(),
        settings,
        filter: Filter::ALL,
    }
}

#[tokio::test]
async fn groups_are_created_and_listed_through_the_client() {
    let (server, store) = serve().await;
    let groups = store.groups();
    let group = on_stream("a/b?", "mail #1/2");
    let settings = Settings {
        start: Start::At(7),
        strategy: Strategy::Pinned,
        max_subscriber_count: 1,
        ..Settings::default()
    };
    let create = create(&group, settings);
    let created = groups.create(&create).await.expect("created");
    assert_eq!(created.settings, create.settings);
    assert!(matches!(groups.create(&create).await, Err(Error::Exists(found)) if found == group));
    let all = GroupId::new(Source::All, "mail").expect("valid");
    let on_all = Create {
        group: all.clone(),
        settings: Settings::default(),
        filter: Filter::query(categories(&["cart"])),
    };
    let created = groups.create(&on_all).await.expect("created");
    assert_eq!(created.filter[0].categories, ["cart"]);
    let names = |names: Vec<GroupId>| -> Vec<String> {
        names.iter().map(|group| group.name().to_owned()).collect()
    };
    assert_eq!(
        names(groups.list(None, None, 10).await.expect("listed")),
        ["mail", "mail #1/2"]
    );
    let after = groups.list(None, Some(&all), 10).await.expect("listed");
    assert_eq!(names(after), ["mail #1/2"]);
    let of_stream = groups.list(Some(group.source()), Some(&group), 10).await;
    assert_eq!(names(of_stream.expect("listed")), [""; 0]);
    server.shutdown().await;
}

#[tokio::test]
async fn a_consumer_learns_what_happens_to_its_group() {
    let (server, store) = serve().await;
    let groups = store.groups();
    let group = on_stream("a/b?", "mail #1/2");
    let settings = Settings {
        max_subscriber_count: 1,
        ..Settings::default()
    };
    groups
        .create(&create(&group, settings))
        .await
        .expect("created");
    let mut consumer = groups.join(&group, 5, "one").await.expect("joined");
    let full = groups.join(&group, 5, "two").await.expect_err("full");
    let max = Refused::Full { max: 1 };
    assert!(
        matches!(full, Error::Refused { refused, .. } if refused == max),
        "{full}"
    );
    let changed = groups
        .update(&group, &Settings::default())
        .await
        .expect("changed");
    assert_eq!(changed.settings, Settings::default());
    let told = within("the consumer is told", consumer.next()).await;
    let told = told.expect("why").expect_err("dropped");
    assert!(matches!(told, Error::Dropped(_)), "{told}");
    assert!(consumer.next().await.is_none());
    let which = [Which::Delivery(Token(0))];
    let late = groups.ack(&group, consumer.id(), &which).await;
    let late = late.expect_err("it has left");
    assert!(matches!(late, Error::NoConsumer { .. }), "{late}");
    groups.delete(&group).await.expect("deleted");
    for gone in [
        groups.info(&group).await.err(),
        groups.delete(&group).await.err(),
    ] {
        assert!(matches!(gone, Some(Error::NotFound(_))), "{gone:?}");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn events_are_delivered_and_answered_through_the_client() {
    let (server, store) = serve().await;
    let groups = store.groups();
    let group = on_stream("cart-1", "mail");
    let settings = Settings {
        checkpoint_after_ms: 0,
        min_checkpoint_count: 1,
        max_checkpoint_count: 1,
        ..Settings::default()
    };
    let created = groups.create(&create(&group, settings)).await;
    created.expect("created");
    let events: Vec<_> = (0..3).map(|_| event("T")).collect();
    let appended = store.append_to("cart-1", ExpectedRevision::Any, events);
    appended.await.expect("appended");
    let mut consumer = groups.join(&group, 5, "").await.expect("joined");
    let stored = store.read_whole_stream("cart-1").await.expect("read");
    for (revision, event) in stored.iter().enumerate() {
        let delivery = within("delivered", consumer.next()).await;
        let delivery = delivery.expect("one").expect("an event");
        assert_eq!(*delivery.event, *event);
        let answered = match revision {
            0 => consumer.ack(&delivery).await,
            1 => consumer.nack(&delivery, Action::Park, "odd").await,
            _ => {
                let which = [Which::Event(delivery.event.id)];
                let answered = groups.nack(&group, consumer.id(), &which, Action::Retry, "");
                answered.await.map(|count| count == 1)
            }
        };
        assert!(answered.expect("answered"));
    }
    let again = within("delivered", consumer.next()).await;
    let again = again.expect("one").expect("an event");
    assert_eq!((again.event.revision.0, again.retries), (2, 1));
    let settled = async {
        while groups.info(&group).await.expect("known").parked != 1 {}
        groups.replay_parked(&group, None).await.expect("begun");
        let again = groups.replay_parked(&group, None).await;
        assert!(matches!(again, Err(Error::ReplayRunning(_))));
        let parked = consumer.next().await.expect("one");
        parked.expect("the parked event").event.revision
    };
    assert_eq!(within("replayed", settled).await.0, 1);
    server.shutdown().await;
    let told = within("the consumer is told", consumer.next()).await;
    let told = told.expect("why").expect_err("stopped");
    assert!(matches!(told, Error::Store(_)), "{told}");
}
