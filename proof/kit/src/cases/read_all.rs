//! Reads of all events: order, checkpoints, pages.

use std::collections::BTreeMap;

use gesta_core::{
    AllFrom, Checkpoint, Filter, Incarnation, LogId, Place, Position, ReadAll, RecordedEvent,
};

use crate::factory::{StoreFactory, TestStore};
use crate::support::*;

/// Makes a store with 24 events in several streams (and logs, if it has several).
async fn filled(factory: &dyn StoreFactory) -> TestStore {
    let store = factory.create().await;
    for _ in 0..3 {
        for name in ["a-1", "b-2", "c-3", "d-4"] {
            append(store.as_ref(), name, Any, events(2)).await;
        }
    }
    store
}

fn places(events: &[RecordedEvent]) -> Vec<(LogId, Position)> {
    events
        .iter()
        .map(|event| (event.log, event.position))
        .collect()
}

/// Goal: events come in the order of each log, from the start the first log first, whatever the size of the pages.
pub async fn forwards_is_the_order_of_each_log(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let all = everything(store.as_ref()).await;
    assert_eq!(all.len(), 24);
    assert!(
        places(&all).is_sorted_by(|a, b| a < b),
        "{:?}",
        places(&all)
    );
    let mut by_stream: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for event in &all {
        let revisions = by_stream.entry(event.stream.as_str()).or_default();
        revisions.push(event.revision.0);
    }
    assert!(
        by_stream.values().all(|found| *found == [0, 1, 2, 3, 4, 5]),
        "{by_stream:?}"
    );
    for limit in [1, 2, 5, 24, 25] {
        let (found, _) = all_pages(store.as_ref(), ReadAll::forwards().limit(limit)).await;
        assert_eq!(by_log(found), all, "by {limit}");
    }
}

/// Goal: a read backwards returns exactly the reverse of each log.
pub async fn backwards_is_the_reverse(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let all = everything(store.as_ref()).await;
    for limit in [1, 2, 5, 24, 25] {
        let (mut found, _) = all_pages(store.as_ref(), ReadAll::backwards().limit(limit)).await;
        found.reverse();
        assert_eq!(by_log(found), all, "by {limit}");
    }
}

/// Goal: a read forwards from a checkpoint returns the events after it, and a read backwards those up to it.
pub async fn a_checkpoint_divides_the_log(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let all = everything(store.as_ref()).await;
    let mut request = ReadAll::forwards().limit(1);
    let (mut seen, mut rest) = (Vec::new(), all);
    while !rest.is_empty() {
        let page = store.read_all(request.clone()).await.expect("readable");
        let [event] = page.events.as_slice() else {
            panic!("one event, found {page:?}");
        };
        // The next one of its log.
        let next = rest.iter().position(|other| other.log == event.log);
        assert_eq!(rest.remove(next.expect("not seen yet")), *event);
        seen.push(event.clone());
        request.from = AllFrom::Checkpoint(page.next);
        let after = ReadAll::forwards().from(request.from.clone());
        let (after, _) = all_pages(store.as_ref(), after).await;
        assert_eq!(by_log(after), rest);
        let upto = ReadAll::backwards().from(request.from.clone());
        let (mut upto, _) = all_pages(store.as_ref(), upto).await;
        upto.reverse();
        assert_eq!(by_log(upto), by_log(seen.clone()));
    }
}

/// Goal: an empty store, the end forwards and the start backwards give an empty last page.
pub async fn nothing_ahead_is_an_empty_last_page(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for request in [ReadAll::forwards(), ReadAll::backwards()] {
        let page = store.read_all(request).await.expect("readable");
        assert!(page.events.is_empty() && page.end);
    }
    append(store.as_ref(), "a", NoStream, events(2)).await;
    for request in [
        ReadAll::forwards().from(AllFrom::End),
        ReadAll::backwards().from(AllFrom::Start),
    ] {
        let page = store.read_all(request).await.expect("readable");
        assert!(page.events.is_empty() && page.end);
    }
}

/// Goal: a later read that begins where a read ended returns exactly what is new.
pub async fn the_end_can_be_resumed(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let filter = Filter::query(types(&["rare"]));
    let (_, mut plain) = all_pages(store.as_ref(), ReadAll::forwards()).await;
    let (none, mut filtered) =
        all_pages(store.as_ref(), ReadAll::forwards().filter(filter.clone())).await;
    assert!(none.is_empty());
    let end = ReadAll::forwards().from(AllFrom::End);
    let (_, mut from_end) = all_pages(store.as_ref(), end).await;
    for name in ["a-1", "c-3", "e-5"] {
        let answer = append(store.as_ref(), name, Any, vec![event("rare"), event("x")]).await;
        for (at, filter, count) in [
            (&mut plain, Filter::ALL, 2),
            (&mut from_end, Filter::ALL, 2),
            (&mut filtered, filter.clone(), 1),
        ] {
            let request = ReadAll::forwards()
                .from(AllFrom::Checkpoint(at.clone()))
                .filter(filter);
            let (found, next) = all_pages(store.as_ref(), request).await;
            assert_eq!(found.len(), count);
            assert!(found.iter().all(|event| event.log == answer.log));
            *at = next;
        }
    }
}

/// Goal: a checkpoint survives its text form.
pub async fn checkpoints_travel_as_text(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let page = store
        .read_all(ReadAll::forwards().limit(5))
        .await
        .expect("readable");
    let text = page.next.to_string();
    let parsed: Checkpoint = text.parse().expect("its own text");
    assert_eq!(parsed, page.next);
    let rest = ReadAll::forwards().from(AllFrom::Checkpoint(parsed));
    assert_eq!(all_pages(store.as_ref(), rest).await.0.len(), 19);
}

/// Returns checkpoints that a store which ends at `end` must refuse.
pub(super) fn unusable(end: &Checkpoint, logs: u16) -> Vec<(&'static str, Checkpoint)> {
    let Place::Logs(positions) = &end.place else {
        panic!("a checkpoint in the logs, found {end:?}");
    };
    let above = |log: usize| {
        let mut positions = positions.clone();
        positions[log] = positions[log].next();
        Checkpoint::logs(end.incarnation, positions)
    };
    let mut more_logs = positions.clone();
    more_logs.push(Position::START);
    vec![
        (
            "another incarnation",
            Checkpoint::logs(Incarnation::random(), positions.clone()),
        ),
        ("above the head", above(0)),
        (
            "above the head of the last log",
            above(usize::from(logs) - 1),
        ),
        ("far above the head", {
            Checkpoint::logs(end.incarnation, vec![Position::MAX; usize::from(logs)])
        }),
        (
            "another number of logs",
            Checkpoint::logs(end.incarnation, more_logs),
        ),
        (
            "of a stream",
            Checkpoint::stream(end.incarnation, &stream("s"), None),
        ),
    ]
}

/// Goal: a checkpoint of another incarnation, above the head or of another kind gives an error, and the read does not
/// wait.
pub async fn unusable_checkpoints_are_refused(factory: &dyn StoreFactory) {
    let store = filled(factory).await;
    let (_, end) = all_pages(store.as_ref(), ReadAll::forwards()).await;
    for (what, checkpoint) in unusable(&end, factory.logs()) {
        for request in [ReadAll::forwards(), ReadAll::backwards()] {
            let from = AllFrom::Checkpoint(checkpoint.clone());
            let answer = within("read all", store.read_all(request.from(from))).await;
            let error = answer.expect_err(what);
            let refused = matches!(error.kind(), gesta_core::ErrorKind::InvalidCheckpoint(_));
            assert!(refused, "{what}: {error:?}");
        }
    }
}

/// Goal: a rare event is found after more positions than one page looks at.
pub async fn a_rare_event_is_found_after_many_others(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let plain = || {
        let plain = |_| gesta_core::EventData {
            id: None,
            data: "1".into(),
            ..event("plain")
        };
        (0..10_000).map(plain).collect::<Vec<_>>()
    };
    append(store.as_ref(), "a-{k}", Any, vec![event("rare")]).await;
    for _ in 0..5 {
        append(store.as_ref(), "a-{k}", Any, plain()).await;
    }
    append(store.as_ref(), "b-{k}", Any, vec![event("rare")]).await;
    let filter = Filter::query(types(&["rare"]));
    for request in [ReadAll::forwards(), ReadAll::backwards()] {
        let (found, _) = all_pages(store.as_ref(), request.filter(filter.clone())).await;
        assert_eq!(found.len(), 2);
    }
}
