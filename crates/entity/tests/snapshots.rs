//! Snapshots on an embedded store: what lies in their streams, and what is read of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]
#![allow(dead_code, reason = "the account can do more than is asked of it here")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    DeleteKind, DeleteStream, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision,
    OwnerStore, SetStreamMetadata, StreamId, StreamMetadata,
};
use gesta_entity::{Builder, Request};
use gesta_testkit::faulty::{FaultyStore, World};
use support::{Command, account_type, config, start, store};

const SNAPSHOTS: &str = "$snapshot-account-1";

/// Ten commands, so one snapshot; it is written when this returns.
async fn ten_commands(store: &Arc<gesta::Store>) {
    let accounts = start(store, config());
    for _ in 0..10 {
        accounts.execute("1", Command::Deposit(1)).await.unwrap();
    }
    accounts.shutdown().await;
}

/// How many snapshots can be read.
async fn readable(store: &Arc<gesta::Store>) -> usize {
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
