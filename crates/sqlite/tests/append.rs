//! Batches: the chain, outcomes, durability of what is acknowledged, and one process per store.

#![expect(clippy::expect_used, reason = "tests stop at the first surprise")]

mod common;

use std::sync::Arc;

use common::{Author, LOG, event, open, read_all, verify};
use gesta_core::backend::{
    Backend, BatchOutcome, EventLookup, EventRef, LoadRequest, LogEnd, Purpose, WriterEpoch,
};
use gesta_core::{Durability, ErrorKind, EventType, Position, RecordedEvent, Revision, Timestamp};
use gesta_sqlite::{SqliteBackend, SqliteConfig};

#[tokio::test]
async fn a_batch_is_stored_and_found_again_by_a_new_process() {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("a/b/gesta.db");
    let backend = open(&path);
    assert!(matches!(backend.info().durability, Durability::Full(_)));
    let mut author = Author::new(&backend).await;
    let mut stored = author
        .store(&[
            event("cart-1", "Added", "{\"a\":1}"),
            event("cart-2", "Added", "{}"),
        ])
        .await;
    stored.extend(
        author
            .store(&[event("cart-1", "Removed", "null").tagged(&["red", "größe 7"])])
            .await,
    );
    assert_eq!(read_all(&backend).await, stored);
    assert_eq!(
        backend.log_end(LOG, Purpose::Read).await.expect("known"),
        author.end
    );
    backend.close().await;
    assert!(backend.log_end(LOG, Purpose::Read).await.is_err());

    let backend = open(&path);
    assert_eq!(read_all(&backend).await, stored);
    assert_eq!(
        backend.log_end(LOG, Purpose::Read).await.expect("known"),
        author.end
    );
    let report = verify(&backend).await;
    assert!(report.is_healthy(), "{:?}", report.findings);
    assert_eq!(report.logs[0].events, 3);
    backend.close().await;
}

#[tokio::test]
async fn a_store_in_memory_does_the_same_and_says_so() {
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    assert_eq!(backend.info().durability, Durability::None);
    let mut author = Author::new(&backend).await;
    let stored = author
        .store(&[event("a", "T", "1").tagged(&["x"]), event("a", "T", "2")])
        .await;
    assert_eq!(read_all(&backend).await, stored);
    assert!(verify(&backend).await.is_healthy());
    backend.close().await;
}

#[tokio::test]
async fn batches_sent_at_once_are_committed_in_order() {
    let home = tempfile::tempdir().expect("dir");
    let backend = open(&home.path().join("gesta.db"));
    let mut author = Author::new(&backend).await;
    let mut sent = Vec::new();
    for number in 0..20 {
        let batch = author.batch(&[event("a", "T", &number.to_string())]);
        sent.push(author.writer.submit(batch));
    }
    // Whatever order they are polled in.
    for outcome in sent.into_iter().rev() {
        let outcome = outcome.await;
        assert!(matches!(outcome, BatchOutcome::Committed), "{outcome:?}");
    }
    let read = read_all(&backend).await;
    assert!(
        read.iter()
            .enumerate()
            .all(|(at, event)| event.data == at.to_string())
    );
    backend.close().await;
}

#[tokio::test]
async fn a_dropped_answer_does_not_stop_the_work() {
    let home = tempfile::tempdir().expect("dir");
    let backend = open(&home.path().join("gesta.db"));
    let mut author = Author::new(&backend).await;
    let batch = author.batch(&[event("a", "T", "1")]);
    drop(author.writer.submit(batch));
    author.store(&[]).await;
    assert_eq!(read_all(&backend).await.len(), 1);
    backend.close().await;
}

/// Goal: of two authors that know the same end only one stores, and everything chained to the other's batch misses.
#[tokio::test]
async fn a_batch_after_another_row_misses_and_so_does_all_that_follows_it() {
    let home = tempfile::tempdir().expect("dir");
    let backend = open(&home.path().join("gesta.db"));
    let mut first = Author::new(&backend).await;
    let mut second = Author::new(&backend).await;
    let lost = second.batch(&[event("b", "T", "1")]);
    let next = second.batch(&[event("b", "T", "2")]);
    first.store(&[event("a", "T", "1")]).await;
    assert!(matches!(second.submit(lost).await, BatchOutcome::Missed));
    // `next` expects position 1 to be the second author's: the number alone would match.
    assert_eq!(next.after.position, Position(1));
    assert!(matches!(second.submit(next).await, BatchOutcome::Missed));
    assert_eq!(read_all(&backend).await.len(), 1);
    assert!(verify(&backend).await.is_healthy());
    backend.close().await;
}

#[tokio::test]
async fn an_empty_batch_confirms_the_end() {
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    let mut author = Author::new(&backend).await;
    let empty = author.batch(&[]);
    assert!(matches!(
        author.submit(empty.clone()).await,
        BatchOutcome::Committed
    ));
    author.store(&[event("a", "T", "1")]).await;
    assert!(matches!(author.submit(empty).await, BatchOutcome::Missed));
    let now = author.batch(&[]);
    assert!(matches!(author.submit(now).await, BatchOutcome::Committed));
    let mut forged = (*author.batch(&[])).clone();
    forged.after = LogEnd {
        writer: WriterEpoch(author.end.writer.0 ^ 1),
        ..author.end
    };
    assert!(matches!(
        author.submit(Arc::new(forged)).await,
        BatchOutcome::Missed
    ));
}

/// Goal: whatever is wrong with one row of a batch, no other row of it is stored.
#[tokio::test]
async fn a_batch_is_stored_whole_or_not_at_all() {
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    let mut author = Author::new(&backend).await;
    author.store(&[event("a", "T", "1").tagged(&["red"])]).await;
    let good = author.batch(&[
        event("a", "T", "2"),
        event("b", "T", "3").tagged(&["red"]),
        event("c", "U", "4"),
    ]);

    let mut taken = (*good).clone();
    taken.rows[2].stream_row = taken.rows[0].stream_row;
    taken.rows[2].revision = taken.rows[0].revision;
    let mut gap = (*good).clone();
    gap.rows[1].position = Position(77);
    let mut huge = (*good).clone();
    huge.rows[2].revision = Revision(u64::MAX);
    let mut other_log = (*good).clone();
    other_log.log = gesta_core::LogId(1);
    let outcome = author.submit(Arc::new(taken)).await;
    assert!(matches!(outcome, BatchOutcome::Missed), "{outcome:?}");
    for bad in [gap, huge, other_log] {
        let outcome = author.submit(Arc::new(bad)).await;
        assert!(matches!(outcome, BatchOutcome::Refused(_)), "{outcome:?}");
    }
    assert_eq!(read_all(&backend).await.len(), 1);
    assert!(verify(&backend).await.is_healthy());
    assert!(matches!(author.submit(good).await, BatchOutcome::Committed));
    assert!(verify(&backend).await.is_healthy());
}

/// A store with ten events in `a` at odd positions, ten in `b`, and metadata of `a`; its author, and the events.
async fn with_two_streams() -> (SqliteBackend, Author, Vec<RecordedEvent>) {
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    let mut author = Author::new(&backend).await;
    author.tick = 1_000_000;
    let mut stored = Vec::new();
    for number in 0..10 {
        stored.extend(
            author
                .store(&[event("a", "T", &number.to_string()), event("b", "U", "x")])
                .await,
        );
    }
    let mut document = event("$$a", "$metadata", "{\"k\":1}");
    document.metadata = bytes::Bytes::from_static(b"{\"deleted_before\":2}");
    author.store(&[document]).await;
    (backend, author, stored)
}

fn positions(found: &[EventRef]) -> Vec<u64> {
    found.iter().map(|event| event.position.0).collect()
}

#[tokio::test]
async fn streams_and_types_are_looked_up() {
    let (backend, author, stored) = with_two_streams().await;
    let request = LoadRequest {
        streams: vec![
            common::stream("b"),
            common::stream("none"),
            common::stream("a"),
        ],
        types: vec![
            EventType::new("U").expect("valid"),
            EventType::new("V").expect("valid"),
        ],
    };
    let loaded = backend
        .load(LOG, request, Purpose::Read)
        .await
        .expect("loads");
    assert_eq!(loaded.end, author.end);
    assert_eq!(
        loaded.types,
        [
            Some(author.types[&EventType::new("U").expect("valid")]),
            None
        ]
    );
    let b = loaded.streams[0].head.expect("exists");
    assert_eq!((b.last, b.position), (Revision(9), Position(20)));
    assert_eq!(b.id, Some(stored[19].id));
    assert_eq!(loaded.streams[1], Default::default());
    let meta = loaded.streams[2].meta.clone().expect("has metadata");
    assert_eq!(
        (meta.data.as_ref(), meta.head.last),
        (&b"{\"k\":1}"[..], Revision(0))
    );
    assert_eq!(meta.metadata.as_ref(), b"{\"deleted_before\":2}");
}

#[tokio::test]
async fn events_are_looked_up() {
    let (backend, author, stored) = with_two_streams().await;
    let row = author.streams[&common::stream("a")].0;
    let find = |lookup| backend.lookup(LOG, lookup, Purpose::Read);
    let found = find(EventLookup::Revisions {
        stream: row,
        first: Revision(7),
        count: 5,
    })
    .await
    .expect("finds");
    assert_eq!(
        found
            .iter()
            .map(|event| event.revision.0)
            .collect::<Vec<_>>(),
        [7, 8, 9]
    );
    assert_eq!(
        (found[0].id, found[0].writer),
        (stored[14].id, author.writer.epoch())
    );
    let found = find(EventLookup::Positions(vec![
        Position(9),
        Position(2),
        Position(99),
    ]))
    .await
    .expect("finds");
    assert_eq!(positions(&found), [2, 9]);
    assert_eq!(found[0].event_type.as_str(), "U");
    let found = find(EventLookup::After {
        position: Position(18),
        limit: 2,
    })
    .await
    .expect("finds");
    assert_eq!(positions(&found), [19, 20]);
}

#[tokio::test]
async fn events_are_looked_up_by_their_ids() {
    let (backend, author, stored) = with_two_streams().await;
    let row = author.streams[&common::stream("a")].0;
    // The two bounds are joined by *or*.
    let ids: Vec<_> = stored.iter().map(|event| (row, event.id)).collect();
    let end = Position(u64::MAX);
    for (after, created_from, until, expected) in [
        (Position(15), Timestamp(i64::MAX), end, vec![17, 19]),
        (Position(99), stored[14].created, end, vec![15, 17, 19]),
        (Position(17), stored[14].created, end, vec![15, 17, 19]),
        (Position(17), stored[14].created, Position(17), vec![15, 17]),
        (Position(99), Timestamp(i64::MAX), end, vec![]),
    ] {
        let lookup = EventLookup::Ids {
            events: ids.clone(),
            after,
            created_from,
            until,
        };
        let found = backend
            .lookup(LOG, lookup, Purpose::Read)
            .await
            .expect("finds");
        assert_eq!(positions(&found), expected);
    }
    let few = backend
        .read_ids(LOG, Position(3), Position(6))
        .await
        .expect("reads");
    let expected = stored[3..6].iter().map(|event| (event.id, event.position));
    assert!(few.iter().map(|e| (e.id, e.position)).eq(expected));
    assert_eq!((few[1].stream, few[1].created), (row, stored[4].created));
}

#[tokio::test]
async fn a_second_process_is_refused_until_the_first_has_closed() {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    let backend = open(&path);
    std::os::unix::fs::symlink(&path, home.path().join("alias.db")).expect("links");
    for name in ["gesta.db", "alias.db"] {
        let error =
            SqliteBackend::open(SqliteConfig::file(home.path().join(name))).expect_err("held");
        assert!(matches!(error.kind(), ErrorKind::Unavailable(_)));
        assert!(
            error.to_string().contains("one process at a time"),
            "{error}"
        );
    }
    assert!(SqliteBackend::migrate(&SqliteConfig::file(&path)).is_err());
    backend.close().await;
    backend.close().await;
    open(&path).close().await;
}

#[tokio::test]
async fn stores_that_are_missing_or_foreign_are_refused() {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("none.db");
    let error = SqliteBackend::open(SqliteConfig::file(&path).must_exist()).expect_err("missing");
    assert!(error.to_string().contains("no store at"), "{error}");
    assert!(!path.exists());
    std::fs::write(
        &path,
        "this is not a database, but long enough to be looked at by the library",
    )
    .expect("writes");
    let error = SqliteBackend::open(SqliteConfig::file(&path)).expect_err("foreign");
    assert!(matches!(error.kind(), ErrorKind::Schema(_)), "{error}");
    let left = std::fs::read_dir(home.path()).expect("reads").count();
    assert_eq!(left, 1, "no lock stays beside a file that is no store");
    assert!(SqliteBackend::open(SqliteConfig::file("/")).is_err());
    assert!(SqliteBackend::open(SqliteConfig::file("/proc/none/gesta.db")).is_err());
}

/// Goal: the write-ahead log stays bounded under appends that never pause, with readers at work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wal_is_bounded_while_appends_and_reads_go_on() {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    let backend = Arc::new(
        SqliteBackend::open(
            SqliteConfig::parse(&format!("sqlite:{}?synchronous=off", path.display()))
                .expect("valid"),
        )
        .expect("opens"),
    );
    assert!(matches!(backend.info().durability, Durability::Weakened(_)));
    let mut author = Author::new(&backend).await;
    let payload = "x".repeat(20_000);
    let events: Vec<_> = (0..100).map(|_| event("a", "T", &payload)).collect();
    let wal = home.path().join("gesta.db-wal");
    let mut largest = 0;
    // 200 MB of payload against a bound of 32 MiB, with a margin for what a reader delays.
    for _ in 0..100 {
        author.store(&events).await;
        let mut slice = common::whole_log();
        slice.after = Position(author.end.position.0 - 100);
        assert_eq!(
            backend.read_log(slice).await.expect("reads").events.len(),
            100
        );
        largest = largest.max(std::fs::metadata(&wal).expect("is there").len());
    }
    assert!(largest < 80 * 1024 * 1024, "{largest}");
    assert!(verify(&backend).await.is_healthy());
    backend.close().await;
    assert!(!wal.exists(), "closing empties and removes the WAL");
}
