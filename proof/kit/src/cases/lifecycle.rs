//! Soft deletes and tombstones.

use gesta_core::{
    DeleteKind, EventStoreExt, ReadStream, Revision, Subscribe, SubscribeFrom, SubscribeTo,
};

use crate::factory::{StoreFactory, TestStore};
use crate::support::*;

async fn soft_delete(store: &TestStore, name: &str) {
    let deleted = delete(store.as_ref(), name, Any, DeleteKind::Soft).await;
    deleted.expect("deleted");
}

/// Goal: readers see no deleted stream; begun again, its numbers go on and only new events show.
pub async fn a_deleted_stream_begins_again(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "s", NoStream, events(3)).await;
    for last in [2, 5] {
        soft_delete(&store, "s").await;
        assert_kind!(
            read(store.as_ref(), "s").await,
            ErrorKind::StreamNotFound(_)
        );
        let backwards = store.read_stream(ReadStream::backwards(stream("s"))).await;
        assert_kind!(backwards, ErrorKind::StreamNotFound(_));
        assert!(list(store.as_ref(), "", 10).await.is_empty());

        let answer = append(store.as_ref(), "s", NoStream, events(3)).await;
        assert_eq!(answer.streams[0].first_revision, Revision(last + 1));
        let new: Vec<u64> = (last + 1..=last + 3).collect();
        assert_eq!(revisions(store.as_ref(), "s").await, new);
        let page = store
            .read_stream(ReadStream::backwards(stream("s")).limit(2))
            .await;
        let page = page.expect("readable");
        assert_eq!(page.next, Some(Revision(last + 1)));
        assert_eq!(names(&list(store.as_ref(), "", 10).await), ["s"]);
    }
}

/// Goal: events of a deleted stream stay readable among all events.
pub async fn deleted_events_stay_among_all(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "s", NoStream, events(2)).await;
    soft_delete(&store, "s").await;
    append(store.as_ref(), "s", Any, events(1)).await;
    let all = everything(store.as_ref()).await;
    let found: Vec<_> = all
        .iter()
        .map(|event| (event.stream.as_str(), event.revision.0))
        .collect();
    assert_eq!(found, [("s", 0), ("s", 1), ("$$s", 0), ("s", 2)]);
}

/// Goal: a delete is an event of `$$name`, at the position of the answer.
pub async fn a_delete_is_an_event(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "s", NoStream, events(1)).await;
    for (kind, event_type) in [
        (DeleteKind::Soft, "$deleted"),
        (DeleteKind::Tombstone, "$tombstone"),
    ] {
        let deleted = delete(store.as_ref(), "s", Any, kind)
            .await
            .expect("deleted");
        let meta = store.read_whole_stream("$$s").await.expect("readable");
        let last = meta.last().expect("an event");
        assert_eq!(last.event_type.as_str(), event_type);
        assert_eq!((last.log, last.position), (deleted.log, deleted.position));
        let heads = store.info().await.expect("info").heads;
        assert_eq!(heads[usize::from(deleted.log.0)], deleted.position);
    }
}

/// Goal: a delete whose expectation does not hold is a conflict. If the expectation holds but the stream does not
/// exist, the stream is not found.
pub async fn deletes_check_their_expectation(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let soft = DeleteKind::Soft;
    for expected in [Any, NoStream] {
        let answer = delete(store.as_ref(), "s", expected, soft).await;
        assert_kind!(answer, ErrorKind::StreamNotFound(_));
    }
    for expected in [StreamExists, exact(0)] {
        let answer = delete(store.as_ref(), "s", expected, soft).await;
        assert_wrong(answer, "s", expected, None);
    }
    append(store.as_ref(), "s", NoStream, events(3)).await;
    for kind in [soft, DeleteKind::Tombstone] {
        for expected in [NoStream, exact(1), exact(3)] {
            let answer = delete(store.as_ref(), "s", expected, kind).await;
            assert_wrong(answer, "s", expected, Some(2));
        }
    }
    assert_eq!(revisions(store.as_ref(), "s").await, [0, 1, 2]);
    delete(store.as_ref(), "s", exact(2), soft)
        .await
        .expect("deleted");
    for expected in [Any, NoStream, exact(2)] {
        let answer = delete(store.as_ref(), "s", expected, soft).await;
        assert_kind!(answer, ErrorKind::StreamNotFound(_));
    }
    for expected in [StreamExists, exact(1)] {
        let answer = delete(store.as_ref(), "s", expected, soft).await;
        assert_wrong(answer, "s", expected, None);
    }
    append(store.as_ref(), "s", Any, events(1)).await;
    delete(store.as_ref(), "s", StreamExists, soft)
        .await
        .expect("deleted");
}

/// What happened: metadata of a stream that never had an event could not be deleted. Goal: a soft delete that expects
/// no stream deletes them; one that expects anything does not find the stream.
pub async fn metadata_alone_are_deleted_by_who_expects_no_stream(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let store = store.as_ref();
    set_metadata(store, "s", NoStream, r#"{"$maxCount":1}"#)
        .await
        .expect("set");
    let answer = delete(store, "s", Any, DeleteKind::Soft).await;
    assert_kind!(answer, ErrorKind::StreamNotFound(_));
    delete(store, "s", NoStream, DeleteKind::Soft)
        .await
        .expect("deleted");
    let left = store.stream_metadata(stream("s")).await.expect("readable");
    assert_eq!(left.metadata.json(), "{}");
    append(store, "s", NoStream, events(2)).await;
    assert_eq!(revisions(store, "s").await, [0, 1]);
}

/// Goal: after a tombstone nothing about the stream works any more, and nothing is stored.
pub async fn a_tombstone_is_final(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "s", NoStream, events(2)).await;
    let tombstone = delete(store.as_ref(), "s", exact(1), DeleteKind::Tombstone).await;
    tombstone.expect("tombstoned");
    let before = everything(store.as_ref()).await.len();

    assert_kind!(read(store.as_ref(), "s").await, ErrorKind::StreamTombstoned(name) if *name == stream("s"));
    let answer = store.append_to("s", Any, events(1)).await;
    assert_kind!(answer, ErrorKind::StreamTombstoned(_));
    for kind in [DeleteKind::Soft, DeleteKind::Tombstone] {
        for expected in [Any, StreamExists, exact(1)] {
            let answer = delete(store.as_ref(), "s", expected, kind).await;
            assert_kind!(answer, ErrorKind::StreamTombstoned(_));
        }
    }
    assert_kind!(
        store.stream_metadata(stream("s")).await,
        ErrorKind::StreamTombstoned(_)
    );
    let answer = set_metadata(store.as_ref(), "s", Any, "{}").await;
    assert_kind!(answer, ErrorKind::StreamTombstoned(_));
    let mut metadata = event("$metadata");
    metadata.data = "{}".into();
    let answer = store.append_to("$$s", Any, vec![metadata]).await;
    assert_kind!(answer, ErrorKind::StreamTombstoned(_));
    let request = Subscribe {
        to: SubscribeTo::Stream(stream("s")),
        from: SubscribeFrom::Start,
    };
    assert_kind!(
        store.subscribe(request).await,
        ErrorKind::StreamTombstoned(_)
    );
    assert!(list(store.as_ref(), "", 10).await.is_empty());

    let all = everything(store.as_ref()).await;
    assert_eq!(all.len(), before);
    assert_eq!(
        all.iter()
            .filter(|event| event.stream == stream("s"))
            .count(),
        2
    );
}

/// Goal: a tombstone may be set on a stream that does not exist, if no stream or any state was expected.
pub async fn a_tombstone_needs_no_stream(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for expected in [StreamExists, exact(0)] {
        let answer = delete(store.as_ref(), "s", expected, DeleteKind::Tombstone).await;
        assert_wrong(answer, "s", expected, None);
    }
    for (name, expected) in [("s", Any), ("t", NoStream)] {
        let answer = delete(store.as_ref(), name, expected, DeleteKind::Tombstone).await;
        answer.expect("tombstoned");
        let answer = store.append_to(name, NoStream, events(1)).await;
        assert_kind!(answer, ErrorKind::StreamTombstoned(_));
    }
    append(store.as_ref(), "u", NoStream, events(2)).await;
    soft_delete(&store, "u").await;
    let answer = delete(store.as_ref(), "u", NoStream, DeleteKind::Tombstone).await;
    answer.expect("tombstoned");
    assert_kind!(
        read(store.as_ref(), "u").await,
        ErrorKind::StreamTombstoned(_)
    );
}

/// Goal: a delete touches only its own stream.
pub async fn other_streams_are_left_alone(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for name in ["s", "s-1", "S", "ss"] {
        append(store.as_ref(), name, NoStream, events(1)).await;
    }
    soft_delete(&store, "s").await;
    delete(store.as_ref(), "S", Any, DeleteKind::Tombstone)
        .await
        .expect("tombstoned");
    assert_eq!(names(&list(store.as_ref(), "", 10).await), ["s-1", "ss"]);
    assert_eq!(revisions(store.as_ref(), "s-1").await, [0]);
}
