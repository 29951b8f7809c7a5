//! Expected revisions: the table of the contract, one case per column.

use gesta_core::{DeleteKind, EventStoreExt, ExpectedRevision, Revision};

use crate::factory::{StoreFactory, TestStore};
use crate::support::*;

/// How an append with new ids must be answered.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Answer {
    /// The append is stored at this revision.
    Stored(u64),
    /// The append is refused, and the actual revision is this.
    Wrong(Option<u64>),
    /// The append is refused for ever.
    Tombstoned,
}

use Answer::{Stored, Tombstoned, Wrong};

async fn check(store: &TestStore, name: &str, expected: ExpectedRevision, answer: Answer) {
    let before = everything(store.as_ref()).await.len();
    let result = within("append", store.append_to(name, expected, events(1))).await;
    match answer {
        Stored(revision) => {
            let stored = result.unwrap_or_else(|error| panic!("{name}, {expected}: {error}"));
            assert_eq!(
                stored.streams[0].first_revision,
                Revision(revision),
                "{expected}"
            );
            return;
        }
        Wrong(actual) => assert_wrong(result, name, expected, actual),
        Tombstoned => assert_kind!(result, ErrorKind::StreamTombstoned(s) if *s == stream(name)),
    }
    let after = everything(store.as_ref()).await.len();
    assert_eq!(before, after, "{expected}: a refused append stores nothing");
}

/// Goal: appends to a stream that was never written follow the column "never written" of the contract.
pub async fn a_stream_never_written(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    check(&store, "e1", Any, Stored(0)).await;
    check(&store, "e2", NoStream, Stored(0)).await;
    check(&store, "e3", StreamExists, Wrong(None)).await;
    check(&store, "e3", exact(0), Wrong(None)).await;
    check(&store, "e3", Exact(Revision::MAX), Wrong(None)).await;
    check(&store, "e3", NoStream, Stored(0)).await;
}

/// Goal: appends to a stream that exists follow the column "exists at M" of the contract.
pub async fn a_stream_that_exists(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "e", NoStream, events(3)).await;
    check(&store, "e", NoStream, Wrong(Some(2))).await;
    check(&store, "e", exact(0), Wrong(Some(2))).await;
    check(&store, "e", exact(1), Wrong(Some(2))).await;
    check(&store, "e", exact(3), Wrong(Some(2))).await;
    check(&store, "e", Exact(Revision::MAX), Wrong(Some(2))).await;
    check(&store, "e", exact(2), Stored(3)).await;
    check(&store, "e", Any, Stored(4)).await;
    check(&store, "e", StreamExists, Stored(5)).await;
    assert_eq!(revisions(store.as_ref(), "e").await, [0, 1, 2, 3, 4, 5]);
}

/// Goal: appends to a deleted stream follow the column "soft-deleted, last was M" of the contract.
pub async fn a_stream_that_was_deleted(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for name in ["d1", "d2", "d3"] {
        append(store.as_ref(), name, NoStream, events(3)).await;
        let deleted = delete(store.as_ref(), name, exact(2), DeleteKind::Soft).await;
        deleted.expect("deleted");
    }
    check(&store, "d1", StreamExists, Wrong(None)).await;
    check(&store, "d1", exact(1), Wrong(None)).await;
    check(&store, "d1", exact(3), Wrong(None)).await;
    check(&store, "d1", Any, Stored(3)).await;
    check(&store, "d2", NoStream, Stored(3)).await;
    check(&store, "d3", exact(2), Stored(3)).await;
    // A stream that has begun again is a stream that exists.
    check(&store, "d1", NoStream, Wrong(Some(3))).await;
    check(&store, "d2", exact(2), Wrong(Some(3))).await;
    check(&store, "d3", StreamExists, Stored(4)).await;
}

/// Goal: appends to a stream with a tombstone follow the column "tombstone" of the contract.
pub async fn a_stream_with_a_tombstone(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "t", NoStream, events(3)).await;
    let tombstone = delete(store.as_ref(), "t", Any, DeleteKind::Tombstone).await;
    tombstone.expect("tombstoned");
    for expected in [Any, NoStream, StreamExists, exact(2), exact(3)] {
        check(&store, "t", expected, Tombstoned).await;
    }
}

/// Goal: the largest numbers are refused like any wrong number, without a panic.
pub async fn huge_revisions_are_only_wrong(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "e", NoStream, events(1)).await;
    for name in ["e", "never"] {
        let expected = Exact(Revision(u64::MAX));
        let answer = within("append", store.append_to(name, expected, events(1))).await;
        assert_kind!(
            answer,
            ErrorKind::WrongExpectedRevision { .. } | ErrorKind::InvalidArgument { .. }
        );
    }
}
