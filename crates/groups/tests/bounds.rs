//! Tests what a process refuses: groups of other nodes, groups that the store cannot have, and more than it may hold.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[allow(
    dead_code,
    unused,
    reason = "shared with other tests, which use more of it"
)]
mod support;

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{EventStore, ExpectedRevision, Filter, StreamId};
use gesta_groups::{
    Alone, Config, Create, Elsewhere, Error, GroupId, GroupPlacement, Groups, Settings, Source,
};
use gesta_kit::support::within;

use support::{ack, create, join, next, on_stream, patient, try_join};

/// A placement in which another process runs everything.
struct Other;

impl GroupPlacement for Other {
    fn elsewhere(&self, stream: &StreamId) -> Option<Elsewhere> {
        assert_eq!(stream, &on_stream("cart-1").checkpoint_stream());
        Some(Elsewhere {
            log: gesta_core::LogId(0),
            node: 7,
            address: "host:2113".to_owned(),
        })
    }
}

#[tokio::test]
async fn a_group_of_another_node_is_refused_with_its_address() {
    let home = support::memory().await.expect("there is one");
    let store = Arc::clone(&home.store);
    let clock = Arc::new(gesta_core::SystemClock);
    let groups = Groups::start_as(store, Config::default(), Arc::new(Other), clock);
    let error = try_join(&groups, &on_stream("cart-1"), 1)
        .await
        .expect_err("elsewhere");
    assert_eq!(
        error.to_string(),
        "group cart-1::mail is run by node 7, the owner of log 0, which other nodes reach at host:2113: ask that node, or \
         give the URLs of all nodes"
    );
}

#[tokio::test]
async fn a_group_on_all_events_of_several_logs_is_refused() {
    let store: Arc<dyn EventStore> = Arc::new(gesta_memory::MemoryStore::with_config(
        gesta_memory::Config {
            logs: 4,
            ..Default::default()
        },
    ));
    let groups = Groups::start(store, Config::default());
    let create = Create {
        group: GroupId::new(Source::All, "mail").expect("valid"),
        settings: Settings::default(),
        filter: Filter::ALL,
    };
    let error = groups
        .create(create)
        .await
        .expect_err("several logs")
        .to_string();
    assert!(error.contains("this store has 4 logs"), "{error}");
}

#[tokio::test]
async fn groups_and_consumers_beyond_the_maximum_are_refused() {
    let home = support::memory().await.expect("there is one");
    let config = Config {
        running_max: 1,
        idle_max: Duration::ZERO,
        ..Config::default()
    };
    let store = Arc::clone(&home.store);
    let clock = Arc::new(gesta_core::SystemClock);
    let groups = Groups::start_as(store, config, Arc::new(Alone), clock);
    let settings = Settings {
        max_subscriber_count: 1,
        ..Settings::default()
    };
    for stream in ["a", "b"] {
        create(&groups, &on_stream(stream), settings.clone()).await;
    }
    let first = join(&groups, &on_stream("a"), 1).await;
    let error = try_join(&groups, &on_stream("a"), 1)
        .await
        .expect_err("full")
        .to_string();
    assert!(error.contains("the group has 1 consumers"), "{error}");
    let error = try_join(&groups, &on_stream("b"), 1)
        .await
        .expect_err("full");
    assert!(matches!(error, Error::Overloaded(_)), "{error}");
    assert!(try_join(&groups, &on_stream("a"), 0).await.is_err());
    drop(first);
    // The group of nobody ends, and makes room.
    let joined = async {
        while try_join(&groups, &on_stream("b"), 1).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within("the other group runs", joined).await;
    groups.shutdown().await;
}

/// Goal: large events are held by the bytes, not by the number.
#[tokio::test]
async fn a_group_holds_no_more_bytes_than_it_may() {
    let home = support::memory().await.expect("there is one");
    let config = Config {
        group_bytes_max: 200_000,
        ..Config::default()
    };
    let store = Arc::clone(&home.store);
    let clock = Arc::new(gesta_core::SystemClock);
    let groups = Groups::start_as(store, config, Arc::new(Alone), clock);
    let group = on_stream("cart-1");
    create(&groups, &group, patient()).await;
    for _ in 0..20 {
        let event = gesta_kit::support::event("T");
        let event = event.with_metadata(vec![b'x'; 60_000]);
        let any = ExpectedRevision::Any;
        gesta_kit::support::append(&*home.store, "cart-1", any, vec![event]).await;
    }
    let mut consumer = join(&groups, &group, 1_000).await;
    let mut held = Vec::new();
    for expected in 0..20_u64 {
        let delivery = next(&mut consumer).await;
        assert_eq!(delivery.event.revision.0, expected);
        held.push(delivery);
        let running = groups
            .info(&group)
            .await
            .expect("known")
            .running
            .expect("it runs");
        assert!(running.held_bytes < 270_000, "{}", running.held_bytes);
        assert_eq!(groups.load(), (1, running.held_bytes));
        if held.len() == 3 {
            ack(&consumer, &held.remove(0)).await;
        }
    }
    groups.shutdown().await;
    assert_eq!(groups.load(), (0, 0));
}
