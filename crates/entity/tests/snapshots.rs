//! Snapshots on an embedded store: what lies in their streams, and what is read of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]
#![allow(dead_code, reason = "the account can do more than is asked of it here")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use gesta_core::backend::RunMode;
use gesta_core::{
    DeleteKind, DeleteStream, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision,
    OwnerStore, SetStreamMetadata, StreamId, StreamMetadata,
};
use gesta_entity::{Builder, EntityType, Error, JsonEvents, Request};
use gesta_kit::faulty::{FaultyStore, World};
use support::{Command, account_type, config, start, store};

const SNAPSHOTS: &str = "$snapshot-account-1";

/// Ten commands, so one snapshot; it is written when this returns.
async fn ten_commands(store: &Arc<gesta::DatabaseStore>) {
    let accounts = start(store, config());
    for _ in 0..10 {
        accounts.execute("1", Command::Deposit(1)).await.unwrap();
    }
    accounts.shutdown().await;
}

/// How many snapshots can be read.
async fn readable(store: &Arc<gesta::DatabaseStore>) -> usize {
    store.read_whole_stream(SNAPSHOTS).await.unwrap().len()
}

/// What happened: the metadata that keep one snapshot only were written after the first snapshot, once. A crash between
/// the two writes, or a delete of the stream, left a stream that kept every snapshot for ever.
/// What holds now: the metadata come first, are looked at before each snapshot, and are mended.
#[tokio::test]
async fn a_snapshot_stream_keeps_one_whatever_happened_to_it() {
    let store = store().await;
    ten_commands(&store).await;
    let metadata = format!("$${SNAPSHOTS}");
    let metadata = store.read_whole_stream(&metadata).await.unwrap();
    let first = store.read_whole_stream(SNAPSHOTS).await.unwrap();
    assert!(metadata[0].position < first[0].position);

    let delete = DeleteStream {
        stream: StreamId::new(SNAPSHOTS).unwrap(),
        expected: ExpectedRevision::Any,
        kind: DeleteKind::Soft,
    };
    store.delete_stream(delete).await.unwrap();
    for _ in 0..3 {
        ten_commands(&store).await;
        assert_eq!(readable(&store).await, 1);
    }
}

/// The stream that a crash between the two writes had left is mended too.
#[tokio::test]
async fn a_snapshot_stream_without_metadata_is_mended() {
    let store = store().await;
    let left = || EventData::json(EventType::new("$snapshot").unwrap(), "{}");
    let both = vec![left(), left()];
    let appended = store.append_to(SNAPSHOTS, ExpectedRevision::Any, both);
    appended.await.unwrap();
    ten_commands(&store).await;
    assert_eq!(readable(&store).await, 1);
}

/// What somebody has said about the stream is kept.
#[tokio::test]
async fn metadata_of_others_are_kept() {
    let store = store().await;
    let stream = StreamId::new(SNAPSHOTS).unwrap();
    let set = async |json: &'static str| {
        let request = SetStreamMetadata {
            stream: stream.clone(),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::parse(json).unwrap(),
        };
        store.set_stream_metadata(request).await.unwrap();
    };
    set(r#"{"owner":"me"}"#).await;
    ten_commands(&store).await;
    let found = store.stream_metadata(stream.clone()).await.unwrap();
    assert_eq!(
        &found.metadata.json()[..],
        br#"{"$maxCount":1,"owner":"me"}"#
    );
    set(r#"{"$maxCount":2}"#).await;
    ten_commands(&store).await;
    ten_commands(&store).await;
    assert_eq!(readable(&store).await, 2);
}

/// What happened: metadata hid the first events of an entity's stream, and the entity woke without them: what it had
/// promised was not there, and it could be created again. Now it is not loaded, and the error names the metadata,
/// unless its type says that its streams are truncated on purpose.
#[tokio::test]
async fn an_entity_does_not_wake_with_half_a_history() {
    for (hide, scavenges) in [
        (r#"{"$tb":3}"#, false),
        (r#"{"$maxCount":2}"#, false),
        (r#"{"$tb":1}"#, true),
    ] {
        let store = store().await;
        let accounts = start_type(&store, plain());
        for _ in 0..5 {
            accounts.execute("1", Command::Deposit(1)).await.unwrap();
        }
        accounts.shutdown().await;
        set_metadata(&store, "account-1", hide).await;
        if scavenges {
            store.scavenge(RunMode::Real, |_| {}).await.unwrap();
            set_metadata(&store, "account-1", "{}").await;
        }
        let accounts = start_type(&store, plain());
        let told = accounts.execute("1", Command::Deposit(1)).await;
        let Err(Error::Failed(error)) = told else {
            panic!("{hide}: {told:?}");
        };
        let text = error.to_string();
        for part in [
            "account-1",
            "not readable",
            "$tb",
            "$maxCount",
            "scavenging",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let read = accounts.read("1", |account| account.balance).await;
        assert!(matches!(read, Err(Error::Failed(_))), "{read:?}");

        let on_purpose = start_type(&store, plain().may_be_truncated());
        let balance = on_purpose.read("1", |account| account.balance).await;
        assert!((1..5).contains(&balance.unwrap()), "{hide}");
    }
}

/// Goal: what a snapshot holds may be truncated, up to the event after which it was taken. If more is hidden, or the
/// snapshot cannot be used, the entity is not loaded.
#[tokio::test]
async fn events_behind_a_snapshot_may_be_hidden_and_no_others() {
    let store = store().await;
    ten_commands(&store).await;
    let accounts = start(&store, config());
    accounts.execute("1", Command::Deposit(1)).await.unwrap();
    accounts.execute("1", Command::Deposit(1)).await.unwrap();
    accounts.shutdown().await;
    set_metadata(&store, "account-1", r#"{"$tb":9}"#).await;
    store.scavenge(RunMode::Real, |_| {}).await.unwrap();
    let balance = |accounts: &gesta_entity::Entities<support::Account>| {
        let accounts = accounts.clone();
        async move { accounts.read("1", |account| account.balance).await }
    };
    assert_eq!(balance(&start(&store, config())).await.unwrap(), 12);
    let without = balance(&start_type(&store, plain())).await;
    assert!(matches!(without, Err(Error::Failed(_))), "{without:?}");
    set_metadata(&store, "account-1", r#"{"$tb":11}"#).await;
    let gap = balance(&start(&store, config())).await;
    assert!(matches!(gap, Err(Error::Failed(_))), "{gap:?}");
}

/// Goal: an entity whose stream was deleted begins again, whatever it was before, and so does one that is loaded then.
#[tokio::test]
async fn an_entity_begins_again_after_a_delete() {
    let store = store().await;
    ten_commands(&store).await;
    let delete = DeleteStream {
        stream: StreamId::new("account-1").unwrap(),
        expected: ExpectedRevision::Any,
        kind: DeleteKind::Soft,
    };
    store.delete_stream(delete).await.unwrap();
    let accounts = start(&store, config());
    assert_eq!(accounts.execute("1", Command::Deposit(7)).await.unwrap(), 7);
    assert_eq!(accounts.execute("1", Command::Deposit(1)).await.unwrap(), 8);
    accounts.shutdown().await;
    let accounts = start(&store, config());
    let balance = accounts.read("1", |account| account.balance).await;
    assert_eq!(balance.unwrap(), 8);
}

fn plain() -> EntityType<support::Account> {
    let events = JsonEvents::<support::Event>::new();
    EntityType::new("account", events).expect("valid")
}

fn start_type(
    store: &Arc<gesta::DatabaseStore>,
    accounts: EntityType<support::Account>,
) -> gesta_entity::Entities<support::Account> {
    let store = Arc::clone(store) as Arc<dyn OwnerStore>;
    Builder::new().config(config()).start(store, accounts)
}

async fn set_metadata(store: &Arc<gesta::DatabaseStore>, stream: &str, json: &'static str) {
    let request = SetStreamMetadata {
        stream: StreamId::new(stream).unwrap(),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(json).unwrap(),
    };
    store.set_stream_metadata(request).await.unwrap();
}

/// What happened: a second `shutdown()` returned as soon as all was answered, while the first still waited for the
/// snapshots; who then ended the process lost them.
#[tokio::test(start_paused = true)]
async fn a_second_shutdown_waits_for_the_end_too() {
    let world = World::new(1);
    let store = FaultyStore::on(&world, gesta_store::Config::default());
    let kind = account_type().snapshots(gesta_entity::Snapshots::json(1).every(1));
    let shared = store.share() as Arc<dyn OwnerStore>;
    let accounts = Builder::new().config(config()).start(shared, kind);
    store.set_round_trip(Duration::from_millis(5));
    let pending: Vec<_> = (0..10)
        .map(|_| accounts.submit("1", Request::new(Command::Deposit(1))))
        .collect();
    let shut_down = || async {
        accounts.shutdown().await;
        accounts.stats().snapshots_written
    };
    let written = tokio::join!(shut_down(), shut_down());
    assert_eq!(written, (10, 10));
    for pending in pending {
        pending.await.unwrap();
    }
}
