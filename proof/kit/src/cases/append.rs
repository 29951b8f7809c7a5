//! Appends to one stream: what is stored, and what is answered.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use gesta_core::{
    AllFrom, Append, Clock, EventStoreExt, Place, Position, ReadAll, Revision, log_of,
};

use crate::factory::StoreFactory;
use crate::support::*;

/// Goal: an append is answered with the place of its events.
pub async fn the_answer_tells_where_the_events_are(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "cart-1", NoStream, events(2)).await;
    let answer = append(store.as_ref(), "cart-1", exact(1), events(3)).await;

    let log = log_of(&stream("cart-1"), factory.logs());
    assert_eq!(answer.log, log);
    let [part] = answer.streams.as_slice() else {
        panic!("one stream, found {answer:?}");
    };
    assert_eq!(part.stream, stream("cart-1"));
    assert_eq!(
        (part.first_revision, part.last_revision),
        (Revision(2), Revision(4))
    );
    assert_eq!(part.position, answer.position);

    let stored = store.read_whole_stream("cart-1").await.expect("readable");
    assert_eq!(stored[4].position, answer.position);
    let Place::Logs(positions) = &answer.checkpoint.place else {
        panic!("a checkpoint in the logs, found {answer:?}");
    };
    for (at, position) in (0..).zip(positions) {
        let expected = if at == log.0 {
            answer.position
        } else {
            Position::START
        };
        assert_eq!(*position, expected, "log {at}");
    }
    let after = ReadAll::forwards().from(AllFrom::Checkpoint(answer.checkpoint));
    let (later, _) = all_pages(store.as_ref(), after).await;
    assert!(later.is_empty(), "nothing is stored after it: {later:?}");
}

/// Goal: every field of an event comes back as it was given.
pub async fn events_come_back_as_they_were_given(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let given = vec![
        tagged("added", &["sku:7", "größe"]).with_metadata(r#"{"by":"test"}"#),
        gesta_core::EventData::binary("raw".parse().expect("valid"), vec![0, 255, 10]),
        event("empty"),
    ];
    append(store.as_ref(), "cart-1", NoStream, given.clone()).await;
    let stored = store.read_whole_stream("cart-1").await.expect("readable");
    assert_eq!(stored.len(), given.len());
    for (revision, (given, stored)) in (0..).zip(given.iter().zip(&stored)) {
        assert_eq!(stored.stream, stream("cart-1"));
        assert_eq!(stored.revision, Revision(revision));
        assert_eq!(stored.log, log_of(&stored.stream, factory.logs()));
        assert_eq!(given.id.unwrap_or(stored.id), stored.id);
        assert_eq!(stored.event_type, given.event_type);
        assert_eq!(stored.content_type, given.content_type);
        assert_eq!(stored.data, given.data);
        assert_eq!(stored.metadata, given.metadata);
        assert_eq!(stored.tags, given.tags, "in the order given");
        assert!(stored.created.0 > 0);
    }
    assert_eq!(
        everything(store.as_ref()).await,
        stored,
        "all events are the same events"
    );
}

/// Goal: the first event of a log has position 1, and positions grow by stream and by log.
pub async fn positions_begin_at_one_and_grow(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for name in ["a-{k}", "b-{k}", "a-{k}"] {
        append(store.as_ref(), name, Any, events(2)).await;
    }
    let stored = everything(store.as_ref()).await;
    assert_eq!(stored[0].position, Position(1));
    assert!(
        stored
            .windows(2)
            .all(|pair| pair[0].position < pair[1].position)
    );
    let places: Vec<_> = stored
        .iter()
        .map(|event| (event.stream.as_str(), event.revision.0))
        .collect();
    let (a, b) = ("a-{k}", "b-{k}");
    assert_eq!(places, [(a, 0), (a, 1), (b, 0), (b, 1), (a, 2), (a, 3)]);
}

/// Goal: the store gives ids to events that come without, and they all differ.
pub async fn ids_are_made_where_missing(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let without_ids = || -> Vec<_> {
        let without = |event: gesta_core::EventData| gesta_core::EventData { id: None, ..event };
        events(3).into_iter().map(without).collect()
    };
    append(store.as_ref(), "a", Any, without_ids()).await;
    append(store.as_ref(), "a", Any, without_ids()).await;
    let ids: HashSet<_> = everything(store.as_ref())
        .await
        .iter()
        .map(|e| e.id)
        .collect();
    assert_eq!(ids.len(), 6);
}

/// Goal: an id belongs to its stream; other streams may use it, too.
pub async fn the_same_id_may_stand_in_two_streams(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let same = events(1);
    append(store.as_ref(), "a-{k}", NoStream, same.clone()).await;
    append(store.as_ref(), "b-{k}", NoStream, same.clone()).await;
    append(store.as_ref(), "c-{k}", Any, same).await;
    assert_eq!(everything(store.as_ref()).await.len(), 3);
}

/// Goal: empty data and empty metadata are values like any other.
pub async fn empty_payloads_are_stored(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut empty = event("empty");
    empty.data = Bytes::new();
    append(store.as_ref(), "a", NoStream, vec![empty]).await;
    let stored = everything(store.as_ref()).await;
    assert!(stored[0].data.is_empty() && stored[0].metadata.is_empty());
}

/// Goal: the store tells its number of logs and the last position of each.
pub async fn info_tells_the_heads(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let info = store.info().await.expect("info");
    assert_eq!(info.logs, factory.logs());
    assert_eq!(
        info.heads,
        vec![Position::START; usize::from(factory.logs())]
    );
    assert!(info.idempotency.time.as_secs() >= 600 && info.idempotency.positions >= 100_000);

    let answer = append(store.as_ref(), "a", NoStream, events(3)).await;
    let heads = store.info().await.expect("info").heads;
    assert_eq!(heads[usize::from(answer.log.0)], answer.position);
}

/// Goal: `created` is the clock's time, but never earlier than that of an earlier position.
pub async fn created_never_decreases(factory: &dyn StoreFactory) {
    let clock = Arc::new(TestClock::at(100));
    let Some(store) = factory.create_with_clock(Arc::clone(&clock) as _).await else {
        return skip(factory, "a clock that can be set");
    };
    let mut created = Vec::new();
    for second in [100, 200, 50, 150, 300] {
        clock.set(second);
        append(store.as_ref(), "a", Any, events(2)).await;
        let stored = everything(store.as_ref()).await;
        created.push(stored.last().expect("stored").created);
    }
    let at = |second| TestClock::at(second).now();
    assert_eq!(created, [100, 200, 200, 200, 300].map(at));
    let stored = everything(store.as_ref()).await;
    assert!(
        stored
            .windows(2)
            .all(|pair| pair[0].created <= pair[1].created)
    );
}

/// Goal: dropping the future of an append leaves it whole or absent, and a retry with the same ids
/// makes it whole, once.
pub async fn a_dropped_append_is_whole_or_absent(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for round in 0..20 {
        let name = format!("dropped-{round}");
        let request = Append::to(stream(&name), NoStream, events(3));
        // Polled once, then dropped.
        let first = store.append(request.clone()).now_or_never();
        assert!(
            first.is_none_or(|answer| answer.is_ok()),
            "nothing to refuse"
        );
        let found = store.read_whole_stream(&name).await.unwrap_or_default();
        assert!(
            found.is_empty() || found.len() == 3,
            "part of an append: {found:?}"
        );

        let answer = within("retry", store.append(request))
            .await
            .expect("stored");
        assert_eq!(answer.streams[0].last_revision, Revision(2));
        assert_eq!(revisions(store.as_ref(), &name).await, [0, 1, 2]);
    }
}

/// Goal: after the store was shut down every call says that it is unavailable.
pub async fn a_closed_store_is_unavailable(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a", NoStream, events(1)).await;
    within("shutdown", store.shutdown())
        .await
        .expect("shut down");
    let answer = store.append_to("a", Any, events(1)).await;
    assert_kind!(answer, ErrorKind::Unavailable(_));
    assert_kind!(read(store.as_ref(), "a").await, ErrorKind::Unavailable(_));
    assert_kind!(
        store.read_all(ReadAll::forwards()).await,
        ErrorKind::Unavailable(_)
    );
    within("second shutdown", store.shutdown())
        .await
        .expect("no harm");
}
