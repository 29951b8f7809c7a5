//! What only this store offers: handles that share a store, and restoring from events. The contract
//! itself is tested by the conformance suite (`proof/kit/tests/memory.rs`).

#![allow(clippy::expect_used, reason = "tests")]

use gesta_core::{
    ErrorKind, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, Subscribe,
    SubscribeFrom, SubscribeTo, SubscriptionMessage,
};
use gesta_memory::{Config, MemoryStore};

fn event(data: &'static str) -> EventData {
    EventData::json(EventType::new("added").expect("valid"), data).without_id()
}

#[tokio::test]
async fn a_restored_store_holds_the_same_events_and_goes_on() {
    let config = Config::default();
    let store = MemoryStore::with_config(config.clone());
    for stream in ["a", "b", "a"] {
        store
            .append_to(stream, ExpectedRevision::Any, vec![event("1")])
            .await
            .expect("stored");
    }
    let events = store.read_everything().await.expect("readable");
    let restored = MemoryStore::restored(config, events.clone()).expect("whole");
    assert_eq!(restored.read_everything().await.expect("readable"), events);
    let appended = restored
        .append_to("b", ExpectedRevision::Any, vec![event("2")])
        .await
        .expect("stored");
    assert_eq!(appended.position.0, 4);
}

#[tokio::test]
async fn events_that_do_not_follow_each_other_are_refused() {
    let store = MemoryStore::new();
    for _ in 0..2 {
        store
            .append_to("a", ExpectedRevision::Any, vec![event("1")])
            .await
            .expect("stored");
    }
    let mut events = store.read_everything().await.expect("readable");
    events.remove(0);
    let error = MemoryStore::restored(Config::default(), events).expect_err("a hole");
    assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
}

#[tokio::test]
async fn handles_share_a_store_and_shutdown_ends_subscriptions() {
    let store = MemoryStore::new();
    let other = store.clone();
    let mut subscription = other
        .subscribe(Subscribe {
            to: SubscribeTo::Stream("a".parse().expect("valid")),
            from: SubscribeFrom::Start,
        })
        .await
        .expect("subscribed");
    let first = subscription.next().await.expect("open").expect("message");
    assert!(matches!(first, SubscriptionMessage::CaughtUp(_)));

    let waiting = tokio::spawn(async move {
        let event = subscription.next_event().await;
        (event, subscription)
    });
    store
        .append_to("a", ExpectedRevision::NoStream, vec![event("1")])
        .await
        .expect("stored");
    let (event, mut subscription) = waiting.await.expect("no panic");
    assert_eq!(&event.expect("delivered").data[..], b"1");

    store.shutdown().await.expect("closed");
    let error = subscription.next().await.expect("an error");
    let error = error.expect_err("closed");
    assert!(matches!(error.kind(), ErrorKind::Unavailable(_)), "{error}");
    assert!(subscription.next().await.is_none());
    assert!(subscription.next().await.is_none(), "it stays ended");
    assert!(store.info().await.is_err());
}
