//! Reads of one stream: in both directions, from every place, in pages.

use gesta_core::{Direction, EventStoreExt, ReadStream, Revision, StreamFrom, StreamPage};

use crate::factory::{StoreFactory, TestStore};
use crate::support::*;

async fn page(
    store: &TestStore,
    direction: Direction,
    from: StreamFrom,
    limit: usize,
) -> StreamPage {
    let request = ReadStream {
        stream: stream("r"),
        from,
        direction,
        limit,
    };
    let page = within("read stream", store.read_stream(request)).await;
    page.unwrap_or_else(|error| panic!("{direction:?} from {from:?}: {error}"))
}

/// Returns the revisions, the next revision and the end of a page.
fn seen(page: &StreamPage) -> (Vec<u64>, Option<u64>, bool) {
    let revisions = page.events.iter().map(|event| event.revision.0).collect();
    (revisions, page.next.map(|next| next.0), page.end)
}

/// Goal: a read begins where the contract says, and `next` and `end` are as the contract says.
pub async fn begins_where_it_is_told(factory: &dyn StoreFactory) {
    use Direction::{Backwards, Forwards};
    use StreamFrom::{End, Start};
    let at = |revision| StreamFrom::Revision(Revision(revision));
    let store = factory.create().await;
    append(store.as_ref(), "other", NoStream, events(1)).await;
    append(store.as_ref(), "r", NoStream, events(5)).await;
    append(store.as_ref(), "other", Any, events(1)).await;
    for (direction, from, limit, expected) in [
        (Forwards, Start, 10, (vec![0, 1, 2, 3, 4], Some(5), true)),
        (Forwards, Start, 2, (vec![0, 1], Some(2), false)),
        (Forwards, at(2), 2, (vec![2, 3], Some(4), false)),
        (Forwards, at(3), 2, (vec![3, 4], Some(5), true)),
        (Forwards, at(4), 1, (vec![4], Some(5), true)),
        (Forwards, at(5), 2, (vec![], Some(5), true)),
        (Forwards, at(9), 2, (vec![], Some(9), true)),
        (Forwards, End, 2, (vec![], Some(5), true)),
        (Backwards, End, 10, (vec![4, 3, 2, 1, 0], None, true)),
        (Backwards, End, 2, (vec![4, 3], Some(2), false)),
        (Backwards, at(2), 2, (vec![2, 1], Some(0), false)),
        (Backwards, at(1), 2, (vec![1, 0], None, true)),
        (Backwards, at(0), 1, (vec![0], None, true)),
        (Backwards, at(99), 1, (vec![4], Some(3), false)),
        (Backwards, Start, 10, (vec![0], None, true)),
    ] {
        let found = page(&store, direction, from, limit).await;
        assert_eq!(seen(&found), expected, "{direction:?} from {from:?}");
        assert_eq!(found.last_revision, Revision(4));
        assert!(found.events.iter().all(|event| event.stream == stream("r")));
    }
}

/// Goal: pages, one after the other, return every event once, in either direction.
pub async fn pages_join_without_gap_or_double(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for _ in 0..4 {
        append(store.as_ref(), "r", Any, events(5)).await;
        append(store.as_ref(), "other", Any, events(1)).await;
    }
    for limit in [1, 3, 5, 7, 20] {
        for direction in [Direction::Forwards, Direction::Backwards] {
            let mut from = match direction {
                Direction::Forwards => StreamFrom::Start,
                Direction::Backwards => StreamFrom::End,
            };
            let mut found = Vec::new();
            loop {
                let page = page(&store, direction, from, limit).await;
                assert!(page.events.len() <= limit);
                found.extend(page.events.iter().map(|event| event.revision.0));
                match page.next {
                    Some(next) if !page.end => from = StreamFrom::Revision(next),
                    _ => break,
                }
            }
            if direction == Direction::Backwards {
                found.reverse();
            }
            assert_eq!(
                found,
                (0..20).collect::<Vec<_>>(),
                "{direction:?} by {limit}"
            );
        }
    }
}

/// Goal: a stream that was never written is not found.
pub async fn of_a_missing_stream_is_an_error(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    assert_kind!(read(store.as_ref(), "r").await, ErrorKind::StreamNotFound(name) if *name == stream("r"));
    let backwards = store.read_stream(ReadStream::backwards(stream("r"))).await;
    assert_kind!(backwards, ErrorKind::StreamNotFound(_));
    append(store.as_ref(), "rr", NoStream, events(1)).await;
    assert_kind!(
        read(store.as_ref(), "r").await,
        ErrorKind::StreamNotFound(_)
    );
}

/// Goal: one event can be read by its revision; a missing revision is an error.
pub async fn of_one_event(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "r", NoStream, events(3)).await;
    let found = store
        .read_event(stream("r"), Revision(1))
        .await
        .expect("found");
    assert_eq!(found.revision, Revision(1));
    for missing in [Revision(3), Revision::MAX] {
        let answer = store.read_event(stream("r"), missing).await;
        assert_kind!(answer, ErrorKind::EventNotFound { revision, .. } if *revision == missing);
    }
}

/// Goal: what was acknowledged can be read at once.
pub async fn sees_what_was_acknowledged(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for revision in 0..20 {
        append(store.as_ref(), "r", Any, events(1)).await;
        let request = ReadStream::backwards(stream("r")).limit(1);
        let page = store.read_stream(request).await.expect("readable");
        assert_eq!(page.events[0].revision, Revision(revision));
        let all = everything(store.as_ref()).await;
        assert_eq!(
            all.last().map(|event| event.revision),
            Some(Revision(revision))
        );
    }
}
