//! Pages of streams and of the log, filters against the plain definition, and damage met while reading.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod common;

use std::sync::Arc;

use common::{Author, LOG, event, open, stream, whole_log};
use gesta_core::backend::{Backend, StreamSlice};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{
    Direction, ErrorKind, EventStore, EventType, Filter, LoadFrom, LoadStream, OwnerStore,
    Position, Query, RecordedEvent, Result, Revision, StreamPage, SystemClock, Tag, Timestamp,
};
use gesta_kit::faulty::Random;
use gesta_sqlite::{SqliteBackend, SqliteConfig};
use gesta_store::Store;

fn slice(author: &Author, name: &str) -> StreamSlice {
    StreamSlice {
        log: LOG,
        stream: stream(name),
        stream_row: author.streams[&stream(name)].0,
        from: Revision(0),
        to: Revision::MAX,
        created_from: None,
        direction: Direction::Forwards,
        limit: 100,
    }
}

fn revisions(events: &[RecordedEvent]) -> Vec<u64> {
    events.iter().map(|event| event.revision.0).collect()
}

/// A store with ten events of each of the streams `a` and `b`, in turns.
async fn filled() -> (SqliteBackend, Author, Vec<RecordedEvent>) {
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    let mut author = Author::new(&backend).await;
    author.tick = 1_000;
    let mut stored = Vec::new();
    for _ in 0..10 {
        let events = [event("a", "T", "1"), event("b", "T", "2")];
        stored.extend(author.store(&events).await);
    }
    (backend, author, stored)
}

#[tokio::test]
async fn parts_of_a_stream_in_both_directions() {
    let (backend, author, _) = filled().await;
    let read = |slice| backend.read_stream(slice);
    let all = read(slice(&author, "a")).await.expect("reads");
    assert_eq!(
        (revisions(&all.events), all.complete),
        ((0..10).collect(), true)
    );
    let part = StreamSlice {
        from: Revision(3),
        to: Revision(6),
        ..slice(&author, "a")
    };
    assert_eq!(
        revisions(&read(part.clone()).await.expect("reads").events),
        [3, 4, 5, 6]
    );
    let back = StreamSlice {
        direction: Direction::Backwards,
        limit: 3,
        ..part.clone()
    };
    let rows = read(back).await.expect("reads");
    assert_eq!(
        (revisions(&rows.events), rows.complete),
        (vec![6, 5, 4], false)
    );
    let exact = read(StreamSlice {
        limit: 4,
        ..part.clone()
    })
    .await
    .expect("reads");
    assert!(exact.complete, "nothing more follows");
    let none = StreamSlice {
        from: Revision(u64::MAX),
        ..part
    };
    assert!(read(none).await.expect("reads").events.is_empty());
}

/// Goal: every bound of time gives what its plain definition says.
#[tokio::test]
async fn parts_of_a_stream_from_a_time_on() {
    let (backend, author, stored) = filled().await;
    let part = StreamSlice {
        from: Revision(3),
        to: Revision(6),
        ..slice(&author, "a")
    };
    let of_a: Vec<_> = stored
        .iter()
        .filter(|event| event.stream == stream("a"))
        .collect();
    for from in of_a
        .iter()
        .flat_map(|event| [event.created.0 - 1, event.created.0, event.created.0 + 1])
    {
        for direction in [Direction::Forwards, Direction::Backwards] {
            let slice = StreamSlice {
                created_from: Some(Timestamp(from)),
                direction,
                ..part.clone()
            };
            let mut found = revisions(&backend.read_stream(slice).await.expect("reads").events);
            found.sort_unstable();
            let expected: Vec<u64> = (3..=6)
                .filter(|r| of_a[usize::try_from(*r).expect("small")].created.0 >= from)
                .collect();
            assert_eq!(found, expected, "{from} {direction:?}");
        }
    }
}

#[tokio::test]
async fn pages_of_the_log_are_bounded_on_both_sides_and_resume() {
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    let mut author = Author::new(&backend).await;
    let events: Vec<_> = (0..50)
        .map(|number| event(&format!("s-{}", number % 7), "T", "1"))
        .collect();
    author.store(&events).await;
    let mut slice = whole_log();
    (slice.after, slice.to, slice.limit) = (Position(10), Position(30), 8);
    let mut seen = Vec::new();
    loop {
        let rows = backend.read_log(slice.clone()).await.expect("reads");
        seen.extend(rows.events.iter().map(|event| event.position.0));
        if rows.complete {
            break;
        }
        slice.after = rows
            .events
            .last()
            .expect("never empty unless complete")
            .position;
    }
    assert_eq!(seen, (11..=30).collect::<Vec<u64>>());
    let mut slice = whole_log();
    (slice.to, slice.direction, slice.limit) = (Position(30), Direction::Backwards, 5);
    let rows = backend.read_log(slice).await.expect("reads");
    assert_eq!(
        rows.events
            .iter()
            .map(|event| event.position.0)
            .collect::<Vec<_>>(),
        [30, 29, 28, 27, 26]
    );
}

#[tokio::test]
async fn large_payloads_end_a_page_early_but_never_empty_it() {
    let home = tempfile::tempdir().expect("dir");
    let backend = open(&home.path().join("gesta.db"));
    let mut author = Author::new(&backend).await;
    let payload = "x".repeat(12 * 1024 * 1024);
    for _ in 0..3 {
        author
            .store(&[event("a", "T", &payload), event("a", "T", &payload)])
            .await;
    }
    let rows = backend.read_log(whole_log()).await.expect("reads");
    assert_eq!((rows.events.len(), rows.complete), (2, false));
    assert!(
        rows.events
            .iter()
            .map(RecordedEvent::payload_bytes)
            .sum::<usize>()
            <= PAGE_BYTES_MAX
    );
    assert_eq!(common::read_all(&backend).await.len(), 6);
    backend.close().await;
}

/// Tags of events.
const TAGS: [&str; 4] = ["r", "g", "b", "w"];

/// One to three conditions.
fn random_filter(random: &mut Random) -> Filter {
    let mut filter = Filter::ALL;
    for _ in 0..=random.below(3) {
        let mut query = Query::default();
        if random.below(2) == 0 {
            query.tags = (0..=random.below(2))
                .map(|n| Tag::new(TAGS[n + random.below(3)]).expect("valid"))
                .collect();
        }
        if random.below(2) == 0 {
            query.types = vec![EventType::new(["A", "B", "none"][random.below(3)]).expect("valid")];
        }
        match random.below(4) {
            0 => query.categories = vec!["cart".into()],
            1 => query.stream_prefixes = vec![["car", "order", "zzz"][random.below(3)].into()],
            _ => {}
        }
        filter.any_of.push(query);
    }
    filter
}

/// Goal: whatever is left out early, a filtered read gives exactly the events that match.
#[tokio::test]
async fn filters_give_what_their_definition_says() {
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    let mut author = Author::new(&backend).await;
    let mut random = Random::new(7);
    let streams = ["cart-1", "cart-2", "order-1", "x", "$$cart-1"];
    let types = ["A", "B", "C"];
    let mut events = Vec::new();
    for _ in 0..4_000 {
        let chosen: Vec<&str> = TAGS
            .iter()
            .copied()
            .filter(|_| random.below(4) == 0)
            .collect();
        events.push(event(streams[random.below(5)], types[random.below(3)], "{}").tagged(&chosen));
    }
    let stored = author.store(&events).await;
    for round in 0..300 {
        let filter = random_filter(&mut random);
        let mut slice = whole_log();
        slice.filter = filter.clone();
        slice.after = Position(u64::try_from(random.below(4_000)).expect("small"));
        slice.to = Position(u64::try_from(random.below(4_000)).expect("small"));
        slice.limit = 1 + random.below(2_000);
        let backwards = random.below(2) == 0;
        slice.direction = if backwards {
            Direction::Backwards
        } else {
            Direction::Forwards
        };
        let mut expected: Vec<_> = stored
            .iter()
            .filter(|event| {
                event.position > slice.after && event.position <= slice.to && filter.matches(event)
            })
            .cloned()
            .collect();
        if backwards {
            expected.reverse();
        }
        let complete = expected.len() <= slice.limit;
        expected.truncate(slice.limit);
        let rows = backend.read_log(slice.clone()).await.expect("reads");
        assert_eq!(rows.complete, complete, "round {round}: {slice:?}");
        assert!(rows.events == expected, "round {round}: {slice:?}");
    }
}

/// Goal: more candidates than one look at the tag index gives, in both directions.
#[tokio::test]
async fn common_tags_are_read_in_several_steps() {
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    let mut author = Author::new(&backend).await;
    let events: Vec<_> = (0..3_500)
        .map(|number| {
            event("a", if number % 100 == 0 { "Rare" } else { "T" }, "{}")
                .tagged(&["all", if number % 2 == 0 { "even" } else { "odd" }])
        })
        .collect();
    author.store(&events).await;
    let tag = |tag| Tag::new(tag).expect("valid");
    let rare = Query {
        tags: vec![tag("all")],
        types: vec![EventType::new("Rare").expect("valid")],
        ..Query::default()
    };
    let odd = Query {
        tags: vec![tag("odd"), tag("all")],
        ..Query::default()
    };
    for direction in [Direction::Forwards, Direction::Backwards] {
        let mut slice = whole_log();
        slice.direction = direction;
        slice.filter = Filter {
            any_of: vec![rare.clone(), odd.clone()],
        };
        let rows = backend.read_log(slice).await.expect("reads");
        assert_eq!((rows.events.len(), rows.complete), (35 + 1_750, true));
        let positions: Vec<_> = rows.events.iter().map(|event| event.position).collect();
        assert!(
            positions.is_sorted_by(|a, b| if direction == Direction::Forwards {
                a < b
            } else {
                a > b
            })
        );
    }
}

#[tokio::test]
async fn streams_are_listed_in_binary_order_without_the_systems() {
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    let mut author = Author::new(&backend).await;
    let names = [
        "b-2", "B-1", "$$b-1", "$x", "b-1", "größe", "!first", "c", "b-10",
    ];
    author.store(&names.map(|name| event(name, "T", "1"))).await;
    let list = async |prefix: &str, after: Option<&str>, limit| {
        let after = after.map(stream);
        let found = backend
            .list_streams(prefix, after.as_ref(), limit)
            .await
            .expect("lists");
        found
            .iter()
            .map(|name| name.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        list("", None, 100).await,
        ["!first", "B-1", "b-1", "b-10", "b-2", "c", "größe"]
    );
    assert_eq!(list("b-", None, 100).await, ["b-1", "b-10", "b-2"]);
    assert_eq!(list("b-", Some("b-1"), 1).await, ["b-10"]);
    assert_eq!(list("b-", Some("a"), 1).await, ["b-1"]);
    assert_eq!(list("b-", Some("c"), 9).await, [""; 0]);
    assert_eq!(list("$", None, 100).await, ["$$b-1", "$x"]);
    assert_eq!(list("", Some("$$b-1"), 1).await, ["B-1"]);
    assert_eq!(list("zz", None, 100).await, [""; 0]);
}

/// Goal: an answer about many streams is bounded in rows, too, and tells what it did not reach.
#[tokio::test]
async fn parts_of_streams_end_by_rows() {
    let backend = SqliteBackend::open(SqliteConfig::memory()).expect("opens");
    let mut author = Author::new(&backend).await;
    author.store(&vec![event("s", "T", "1"); 10_000]).await;
    let slice = StreamSlice {
        limit: 10_000,
        ..slice(&author, "s")
    };
    let slices = vec![slice.clone(); 8];
    let parts = backend.read_streams(LOG, slices).await.expect("reads");
    let found: Vec<(usize, bool)> = parts
        .iter()
        .map(|part| (part.events.len(), part.complete))
        .collect();
    let mut wanted = vec![(10_000, true); 6];
    wanted.extend([(5_536, false), (0, false)]);
    assert_eq!(found, wanted);
    let alone = backend.read_stream(slice).await.expect("reads");
    assert!(parts[..6].iter().all(|part| *part == alone));
    assert_eq!(parts[6].events, alone.events[..5_536]);
}

/// Goal: a changed row spoils only the answer about its own stream when many are loaded.
#[tokio::test]
async fn a_changed_row_does_not_keep_other_streams_from_loading() {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    let backend = open(&path);
    let mut author = Author::new(&backend).await;
    for name in ["a", "b", "c"] {
        author.store(&vec![event(name, "T", "1"); 3]).await;
    }
    backend.close().await;
    rusqlite::Connection::open(&path)
        .expect("opens")
        .execute_batch(
            "DROP TRIGGER events_are_not_updated; UPDATE events SET data = x'39' WHERE position = 5",
        )
        .expect("damages");
    let store = Store::open(
        Arc::new(open(&path)),
        gesta_store::Config::default(),
        Arc::new(SystemClock),
    )
    .expect("starts");
    let loads = ["a", "b", "never", "c"].map(|name| LoadStream {
        stream: stream(name),
        from: LoadFrom::Start,
        limit: 10,
    });
    let pages = store.read_streams(loads.into()).await.expect("answers");
    let pages: Vec<_> = pages.into_iter().map(|loaded| loaded.page).collect();
    let count = |page: &Result<StreamPage>| page.as_ref().map(|page| page.events.len()).ok();
    let counts: Vec<Option<usize>> = pages.iter().map(count).collect();
    assert_eq!(counts, [Some(3), None, None, Some(3)]);
    let error = pages[1].as_ref().expect_err("noticed");
    assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
    assert!(error.to_string().contains("position 5"), "{error}");
    store.shutdown().await.expect("closed");
}

/// Goal: a changed row is reported by its place, not handed on; its neighbours stay readable.
#[tokio::test]
async fn a_changed_row_is_reported_as_corrupt_with_its_place() {
    let home = tempfile::tempdir().expect("dir");
    let path = home.path().join("gesta.db");
    let backend = open(&path);
    let mut author = Author::new(&backend).await;
    author
        .store(&[
            event("a", "T", "1"),
            event("a", "T", "2"),
            event("b", "T", "3"),
        ])
        .await;
    backend.close().await;
    rusqlite::Connection::open(&path)
        .expect("opens")
        .execute_batch(
            "DROP TRIGGER events_are_not_updated; DROP TRIGGER streams_are_not_updated;
             UPDATE events SET data = x'39' WHERE position = 2; UPDATE streams SET name = 'c' WHERE name = 'b'",
        )
        .expect("damages");
    let backend = open(&path);
    let error = backend.read_log(whole_log()).await.expect_err("noticed");
    assert!(matches!(error.kind(), ErrorKind::Corrupt(_)));
    for part in ["log 0", "position 2", "stream a", "revision 1"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let mut slice = whole_log();
    slice.to = Position(1);
    assert_eq!(
        backend
            .read_log(slice.clone())
            .await
            .expect("healthy")
            .events
            .len(),
        1
    );
    (slice.after, slice.to) = (Position(2), Position(3));
    let error = backend.read_log(slice).await.expect_err("noticed");
    assert!(
        error.to_string().contains("stream row 3 (\"c\")"),
        "{error}"
    );
    backend.close().await;
}
