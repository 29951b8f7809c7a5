//! Checks of the virtual streams of a backend, below the store: who may write entries, and what happens to them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::backend::{
    Backend, Entries, EntrySlice, EventLookup, EventRef, IndexPage, IndexState, IndexWrite,
    Purpose, RunMode, VirtualIndex, WriterEpoch,
};
use gesta_core::{
    Direction, EventStore, EventStoreExt, LogId, Position, ReadStream, Revision, StreamFrom,
    StreamPage, SubscribeFrom, SystemClock, virtual_streams_of,
};
use gesta_store::Store;

use crate::support::*;

/// Names whose order by bytes is not that of people, and which SQL might take for patterns.
const NAMES: [&str; 8] = ["a", "Z", "ä", "_", "%", "aa", "z", "a b"];

async fn events_after(backend: &dyn Backend, position: Position) -> Vec<EventRef> {
    let after = EventLookup::After {
        position,
        limit: 1_000,
    };
    let found = backend.lookup(LogId(0), after, Purpose::Read).await;
    found.expect("readable")
}

async fn whole(index: &dyn VirtualIndex, name: &str) -> Entries {
    let slice = EntrySlice {
        stream: stream(name),
        from: Revision(0),
        to: Revision::MAX,
        direction: Direction::Forwards,
        limit: 100_000,
    };
    index.read(slice).await.expect("readable")
}

fn at(on: bool, position: Position) -> IndexState {
    IndexState { on, position }
}

/// Fails unless a backend keeps the entries of virtual streams as it must. The backend must have no events, and virtual
/// streams must be off. It is closed in the end.
///
/// # Panics
/// If the backend breaks a promise.
pub async fn check_virtual_index(backend: Arc<dyn Backend>) {
    // The store writes entries by itself only after an hour, so none during the check. A reader waits for as long as a
    // busy machine may need.
    let mut config = gesta_store::Config::default();
    config.virtual_streams.linger = Duration::from_secs(3_600);
    config.virtual_streams.wait_max = Duration::from_secs(600);
    let store = Store::open(Arc::clone(&backend), config, Arc::new(SystemClock)).expect("opens");
    check_index(store.as_ref(), backend.as_ref()).await;
    store.shutdown().await.expect("shuts down");
}

async fn check_index(store: &dyn EventStore, backend: &dyn Backend) {
    let index = backend.virtual_index().expect("it keeps virtual streams");
    let index = index.as_ref();
    for round in 0..3 {
        for name in NAMES {
            append(store, &format!("{name}-{round}"), Any, events(2)).await;
        }
    }
    let events = events_after(backend, Position::START).await;
    let (first, second) = events.split_at(20);
    let page = IndexPage::of(Position::START, first).expect("events");
    let (middle, end) = (page.through, events[events.len() - 1].position);

    // While virtual streams are off, nothing is written.
    assert_eq!(
        index.state().await.expect("known"),
        at(false, Position::START)
    );
    assert_eq!(write(index, &page).await, IndexWrite::Missed);
    assert_eq!(
        index.switch(true).await.expect("switched"),
        at(true, Position::START)
    );

    check_pages_that_miss(index, &page, end).await;
    check_racing_writers(index, &page).await;
    assert_eq!(index.state().await.expect("known"), at(true, middle));
    assert_eq!(write(index, &page).await, IndexWrite::Missed);

    let page = IndexPage::of(middle, second).expect("events");
    assert_eq!(write(index, &page).await, IndexWrite::Written);
    check_entries(index, &events).await;

    // What was written stays when they are switched off and on.
    assert_eq!(index.switch(false).await.expect("switched"), at(false, end));
    let read = whole(index, "$ce-a").await;
    assert_eq!((read.state, read.entries.len()), (at(false, end), 6));
    assert_eq!(index.switch(true).await.expect("switched"), at(true, end));
    check_entries(index, &events).await;
}

/// Goal: a page about another history, or about an event that is not there, is not written.
async fn check_pages_that_miss(index: &dyn VirtualIndex, page: &IndexPage, end: Position) {
    for other in [
        IndexPage {
            writer: WriterEpoch(page.writer.0.wrapping_add(1)),
            ..page.clone()
        },
        IndexPage {
            through: end.next(),
            ..page.clone()
        },
        IndexPage {
            after: Position(1),
            ..page.clone()
        },
    ] {
        assert_eq!(write(index, &other).await, IndexWrite::Missed, "{other:?}");
    }
    assert_eq!(
        index.state().await.expect("known"),
        at(true, Position::START)
    );
    assert_eq!(whole(index, "$et-happened").await.last, None);
}

/// Goal: of several writers that write the same page at once, one succeeds, and nothing is doubled.
async fn check_racing_writers(index: &dyn VirtualIndex, page: &IndexPage) {
    let writes = (0..8).map(|_| write(index, page));
    let writes = futures::future::join_all(writes).await;
    let written = writes.iter().filter(|one| **one == IndexWrite::Written);
    assert_eq!(written.count(), 1);
    assert_eq!(whole(index, "$et-happened").await.entries.len(), 20);
}

async fn write(index: &dyn VirtualIndex, page: &IndexPage) -> IndexWrite {
    let written = index.write(page.clone()).await;
    written.expect("no failure")
}

/// Compares every virtual stream with its events, in both directions and in parts.
async fn check_entries(index: &dyn VirtualIndex, events: &[EventRef]) {
    let streams_of = |event: &EventRef| {
        let found = virtual_streams_of(&event.stream, event.revision, &event.event_type);
        found.into_iter().map(|(_, name)| name)
    };
    let names: BTreeSet<_> = events.iter().flat_map(streams_of).collect();
    assert_eq!(names.len(), NAMES.len() + 2);
    for name in names {
        let expected: Vec<(Revision, Position)> = events
            .iter()
            .filter(|event| streams_of(event).any(|found| found == name))
            .zip(0..)
            .map(|(event, revision)| (Revision(revision), event.position))
            .collect();
        let found = whole(index, name.as_str()).await;
        let pairs = |entries: Entries| {
            let entries = entries.entries.into_iter();
            entries
                .map(|entry| (entry.revision, entry.position))
                .collect::<Vec<_>>()
        };
        assert_eq!(found.last, expected.last().map(|(revision, _)| *revision));
        assert_eq!(pairs(found), expected, "{name}");
        let part = EntrySlice {
            stream: name.clone(),
            from: Revision(1),
            to: Revision(4),
            direction: Direction::Backwards,
            limit: 3,
        };
        let found = pairs(index.read(part).await.expect("readable"));
        let inside = expected
            .iter()
            .rev()
            .filter(|(revision, _)| (1..=4).contains(&revision.0));
        assert_eq!(found, inside.take(3).copied().collect::<Vec<_>>(), "{name}");
    }
}

/// Fails unless the entries of a virtual stream keep their places when some of its events are scavenged. `store` is a
/// new store whose virtual streams are on.
///
/// # Panics
/// If the store breaks a promise.
pub async fn check_scavenged_places(store: &Store) {
    for _ in 0..20 {
        append(store, "cart-1", Any, events(1)).await;
    }
    for _ in 0..5 {
        append(store, "cart-2", Any, events(1)).await;
    }
    assert_eq!(
        revisions(store, "$ce-cart").await,
        (0..25).collect::<Vec<_>>()
    );
    set_metadata(store, "cart-1", Any, r#"{"$maxCount":2}"#)
        .await
        .expect("set");
    let report = store
        .scavenge(RunMode::Real, |_| {})
        .await
        .expect("scavenged");
    assert_eq!(report.removed.events, 18);
    let left: Vec<u64> = (18..25).collect();
    assert_eq!(revisions(store, "$ce-cart").await, left);

    // A page that would lie in the gap only goes on to what is left.
    let request = ReadStream::forwards(stream("$ce-cart")).limit(3);
    let page = store.read_stream(request.clone()).await.expect("readable");
    assert_eq!(places(&page), [18, 19, 20]);
    let backwards = ReadStream {
        direction: Direction::Backwards,
        ..request.clone().from(StreamFrom::Revision(Revision(19)))
    };
    let page = store
        .read_stream(backwards.clone())
        .await
        .expect("readable");
    assert_eq!(
        (places(&page), page.next),
        (vec![19, 18], Some(Revision(16)))
    );
    let rest = backwards.clone().from(StreamFrom::Revision(Revision(16)));
    let page = store.read_stream(rest).await.expect("readable");
    assert_eq!((places(&page), page.next, page.end), (vec![], None, true));
    let first = backwards.from(StreamFrom::Start);
    let page = store.read_stream(first).await.expect("readable");
    assert_eq!(places(&page), [18]);
    let gone = store.read_event(stream("$ce-cart"), Revision(3)).await;
    assert_kind!(gone, ErrorKind::EventNotFound { .. });

    let resolved = store.read_stream_resolved(request).await.expect("readable");
    let found: Vec<u64> = resolved
        .events
        .iter()
        .map(|found| found.event.revision.0)
        .collect();
    assert_eq!(found, [18, 19, 0]);
    let mut follower = Follower::stream(store, "$ce-cart", SubscribeFrom::Start).await;
    assert_eq!(follower.until_caught_up().await.len(), 7);
    append(store, "cart-1", Any, events(1)).await;
    assert_eq!(follower.event().await.revision, Revision(25));
}

fn places(page: &StreamPage) -> Vec<u64> {
    page.events.iter().map(|event| event.revision.0).collect()
}
