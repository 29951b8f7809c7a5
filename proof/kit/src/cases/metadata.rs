//! Metadata of streams, and the streams `$$name` that hold them.

use std::sync::Arc;

use gesta_core::{
    Append, DeleteKind, Direction, EventData, EventStoreExt, ReadStream, Revision, StreamFrom,
    StreamMetadata,
};

use crate::factory::StoreFactory;
use crate::support::*;

async fn metadata(store: &dyn gesta_core::EventStore, name: &str) -> (String, Option<u64>) {
    let record = within("metadata", store.stream_metadata(stream(name))).await;
    let record = record.expect("readable");
    let json = String::from_utf8(record.metadata.json().to_vec()).expect("text");
    (json, record.revision.map(|revision| revision.0))
}

fn document(json: &'static str) -> EventData {
    EventData {
        data: json.into(),
        ..event("$metadata")
    }
}

/// Goal: metadata comes back byte for byte, with the revision that a change expects.
pub async fn come_back_as_they_were_set(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let store = store.as_ref();
    assert_eq!(metadata(store, "s").await, ("{}".into(), None));
    let first = "{ \"owner\" : \"größe\",  \"$maxCount\": 7 }";
    set_metadata(store, "s", NoStream, first)
        .await
        .expect("set");
    assert_eq!(metadata(store, "s").await, (first.into(), Some(0)));
    let wrong = set_metadata(store, "s", NoStream, "{}").await;
    assert_wrong(wrong, "$$s", NoStream, Some(0));
    let wrong = set_metadata(store, "s", exact(3), "{}").await;
    assert_wrong(wrong, "$$s", exact(3), Some(0));
    let set = set_metadata(store, "s", exact(0), r#"{"a":1}"#)
        .await
        .expect("set");
    assert_eq!(metadata(store, "s").await, (r#"{"a":1}"#.into(), Some(1)));
    let stored = store.read_whole_stream("$$s").await.expect("readable");
    assert_eq!(stored[1].position, set.position);
    // Metadata alone does not make a stream.
    assert_kind!(read(store, "s").await, ErrorKind::StreamNotFound(_));
    append(store, "s", NoStream, events(1)).await;
}

/// What happened: the `$tb` by which clients of EventStoreDB say that a stream is deleted was refused. Goal: as an
/// event of `$$name` it is a soft delete that keeps the rest of the document and that the next append undoes, with the
/// numbers going on; set as metadata it is refused with what to do instead. The claim is about `$$name`.
pub async fn the_mark_of_a_deleted_stream_deletes(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let store = store.as_ref();
    let mark = r#"{"$tb":9223372036854775807,"owner":"x"}"#;
    append(store, "s", NoStream, events(3)).await;
    assert!(StreamMetadata::parse(mark).is_err());
    let deleted = Append::to(stream("$$s"), exact(0), vec![document(mark)]);
    assert_wrong(store.append(deleted).await, "$$s", exact(0), None);
    for (revision, first) in [(0, 3), (1, 4)] {
        let claim = [NoStream, exact(0)][revision];
        append(store, "$$s", claim, vec![document(mark)]).await;
        assert_kind!(read(store, "s").await, ErrorKind::StreamNotFound(_));
        let left = r#"{"owner":"x"}"#.to_owned();
        assert_eq!(metadata(store, "s").await, (left, Some(revision as u64)));
        let stored = store.read_whole_stream("$$s").await.expect("readable");
        assert_eq!(stored[revision].event_type.as_str(), "$deleted");
        append(store, "s", NoStream, events(1)).await;
        assert_eq!(revisions(store, "s").await, [first]);
    }
    // A stream that never had an event has nothing to hide.
    append(store, "$$t", NoStream, vec![document(mark)]).await;
    append(store, "t", NoStream, events(1)).await;
    assert_eq!(revisions(store, "t").await, [0]);
}

/// Goal: `$$name` is a stream like any other to readers.
pub async fn are_readable_as_a_stream(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let store = store.as_ref();
    assert_kind!(read(store, "$$s").await, ErrorKind::StreamNotFound(_));
    for json in ["{}", r#"{"a":1}"#, r#"{"a":2}"#] {
        set_metadata(store, "s", Any, json).await.expect("set");
    }
    let stored = store.read_whole_stream("$$s").await.expect("readable");
    let found: Vec<_> = stored
        .iter()
        .map(|event| (event.revision.0, event.event_type.as_str(), &event.data[..]))
        .collect();
    let expected: [(u64, &str, &[u8]); 3] = [
        (0, "$metadata", b"{}"),
        (1, "$metadata", br#"{"a":1}"#),
        (2, "$metadata", br#"{"a":2}"#),
    ];
    assert_eq!(found, expected);
    let last = store
        .read_stream(ReadStream::backwards(stream("$$s")).limit(1))
        .await;
    assert_eq!(last.expect("readable").events[0], stored[2]);
    assert_eq!(names(&list(store, "$$", 10).await), ["$$s"]);
    assert!(list(store, "", 10).await.is_empty());
}

/// Goal: an append to `$$name` is a change of the metadata, with its retries.
pub async fn can_be_appended(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let request = Append::to(
        stream("$$s"),
        NoStream,
        vec![document(r#"{"$maxCount":1}"#)],
    );
    let first = store.append(request.clone()).await.expect("set");
    append(store.as_ref(), "s", NoStream, events(3)).await;
    assert_eq!(revisions(store.as_ref(), "s").await, [2]);
    append(store.as_ref(), "$$s", exact(0), vec![document("{}")]).await;
    assert_eq!(revisions(store.as_ref(), "s").await, [0, 1, 2]);
    let again = store.append(request).await.expect("a retry");
    assert_eq!(again, first);
    assert_eq!(metadata(store.as_ref(), "s").await, ("{}".into(), Some(1)));
}

/// Goal: `$$name` refuses events that are no change of metadata.
pub async fn refuse_anything_else(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let store = store.as_ref();
    let cases: Vec<(&str, Vec<EventData>)> = vec![
        ("$$s", vec![event("other")]),
        ("$$s", vec![document("{}"), document("{}")]),
        ("$$s", vec![document("[]")]),
        ("$$s", vec![document(r#"{"$maxCount":"many"}"#)]),
        ("$$s", vec![document(r#"{"$maxAge":0}"#)]),
        (
            "$$s",
            vec![document("{}").with_metadata(r#"{"tombstone":true}"#)],
        ),
        (
            "$$s",
            vec![document("{}").with_tags(tagged("x", &["t"]).tags)],
        ),
        ("$$s", vec![event("$deleted")]),
        ("$$", vec![document("{}")]),
        ("$$$$s", vec![document("{}")]),
    ];
    for (name, events) in cases {
        let answer = store.append_to(name, Any, events.clone()).await;
        let error = answer.expect_err("refused");
        let invalid = matches!(error.kind(), gesta_core::ErrorKind::InvalidArgument { .. });
        assert!(invalid, "{name} {events:?}: {error:?}");
    }
    let answer = set_metadata(store, "$$s", Any, "{}").await;
    assert_kind!(answer, ErrorKind::InvalidArgument { .. });
    set_metadata(store, "s", Any, "{}").await.expect("set");
    for kind in [DeleteKind::Soft, DeleteKind::Tombstone] {
        let answer = delete(store, "$$s", Any, kind).await;
        assert_kind!(answer, ErrorKind::InvalidArgument { .. });
    }
    assert_eq!(everything(store).await.len(), 1);
}

/// Goal: `$maxCount` and `$tb` hide events from the front, in both directions, and never change the last revision.
pub async fn hide_events_from_the_front(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let store = store.as_ref();
    append(store, "s", NoStream, events(10)).await;
    for (json, first) in [
        (r#"{"$maxCount":3}"#, 7),
        (r#"{"$maxCount":1}"#, 9),
        (r#"{"$maxCount":100}"#, 0),
        (r#"{"$tb":4}"#, 4),
        (r#"{"$tb":4,"$maxCount":3}"#, 7),
        (r#"{"$tb":8,"$maxCount":3}"#, 8),
        ("{}", 0),
    ] {
        set_metadata(store, "s", Any, json).await.expect("set");
        let visible: Vec<u64> = (first..10).collect();
        assert_eq!(revisions(store, "s").await, visible, "{json}");
        let page = store.read_stream(ReadStream::backwards(stream("s"))).await;
        let page = page.expect("readable");
        let mut backwards: Vec<_> = page.events.iter().map(|e| e.revision.0).collect();
        backwards.reverse();
        assert_eq!(backwards, visible, "{json}");
        assert_eq!((page.next, page.end), (None, true), "{json}");
        assert_eq!(page.last_revision, Revision(9));

        let from_start = ReadStream::backwards(stream("s")).from(StreamFrom::Start);
        let page = store.read_stream(from_start).await.expect("readable");
        let found: Vec<_> = page.events.iter().map(|e| e.revision.0).collect();
        assert_eq!(found, [first], "the first readable event only");
        assert!(page.end);

        let below = ReadStream::forwards(stream("s")).from(StreamFrom::Revision(Revision(1)));
        let page = store.read_stream(below.limit(1)).await.expect("readable");
        assert_eq!(page.events[0].revision.0, first.max(1), "{json}");
    }
    assert_kind!(
        {
            set_metadata(store, "s", Any, r#"{"$tb":5}"#)
                .await
                .expect("set");
            store.read_event(stream("s"), Revision(4)).await
        },
        ErrorKind::EventNotFound { .. }
    );
    append(store, "s", exact(9), events(1)).await;
    let all = everything(store).await;
    assert_eq!(all.iter().filter(|e| e.stream == stream("s")).count(), 11);
}

/// Goal: a stream all of whose events are hidden exists: reads give an empty page, appends go on.
pub async fn may_hide_every_event(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let store = store.as_ref();
    append(store, "s", NoStream, events(3)).await;
    set_metadata(store, "s", Any, r#"{"$tb":3}"#)
        .await
        .expect("set");
    for direction in [Direction::Forwards, Direction::Backwards] {
        for from in [
            StreamFrom::Start,
            StreamFrom::End,
            StreamFrom::Revision(Revision(1)),
        ] {
            let request = ReadStream {
                stream: stream("s"),
                from,
                direction,
                limit: 10,
            };
            let page = store.read_stream(request).await.expect("it exists");
            assert!(
                page.events.is_empty() && page.end,
                "{direction:?} from {from:?}"
            );
            let next = (direction == Direction::Forwards).then_some(Revision(3));
            assert_eq!(page.next, next, "{direction:?} from {from:?}");
            assert_eq!(page.last_revision, Revision(2));
        }
    }
    assert_eq!(names(&list(store, "", 10).await), ["s"]);
    append(store, "s", exact(2), events(1)).await;
    assert_eq!(revisions(store, "s").await, [3]);
}

/// Goal: `$maxAge` hides events that are older.
pub async fn hide_old_events(factory: &dyn StoreFactory) {
    let clock = Arc::new(TestClock::at(0));
    let Some(store) = factory.create_with_clock(Arc::clone(&clock) as _).await else {
        return skip(factory, "a clock that can be set");
    };
    let store = store.as_ref();
    for second in [0, 10, 20] {
        clock.set(second);
        append(store, "s", Any, events(1)).await;
    }
    set_metadata(store, "s", Any, r#"{"$maxAge":15}"#)
        .await
        .expect("set");
    for (second, visible) in [
        (20, vec![1, 2]),
        (25, vec![1, 2]),
        (26, vec![2]),
        (36, vec![]),
    ] {
        clock.set(second);
        assert_eq!(revisions(store, "s").await, visible, "at {second}");
    }
    append(store, "s", exact(2), events(1)).await;
    assert_eq!(revisions(store, "s").await, [3]);
}

/// Goal: a delete resets the metadata, and setting it again does not bring the stream back.
pub async fn are_reset_by_a_delete(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let store = store.as_ref();
    append(store, "s", NoStream, events(5)).await;
    set_metadata(store, "s", Any, r#"{"$maxCount":1}"#)
        .await
        .expect("set");
    delete(store, "s", Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    assert_eq!(metadata(store, "s").await, ("{}".into(), Some(1)));

    set_metadata(store, "s", exact(1), r#"{"$maxCount":2}"#)
        .await
        .expect("set");
    assert_kind!(read(store, "s").await, ErrorKind::StreamNotFound(_));
    assert_wrong(
        store.append_to("s", StreamExists, events(1)).await,
        "s",
        StreamExists,
        None,
    );
    append(store, "s", NoStream, events(1)).await;
    assert_eq!(
        revisions(store, "s").await,
        [5],
        "events from before stay deleted"
    );
    append(store, "s", Any, events(2)).await;
    assert_eq!(revisions(store, "s").await, [6, 7]);
}
