//! Subscriptions to all events: catch up, then live, without a gap or a double.

use futures::future::join_all;
use gesta_core::{
    Checkpoint, DeleteKind, EventData, EventId, EventStore, Filter, Place, Position, ReadAll,
    RecordedEvent, SharedEvent, Subscribe, SubscribeFrom, SubscribeTo, SubscriptionMessage,
};

use super::read_all::unusable;
use crate::factory::StoreFactory;
use crate::support::*;

/// Compares what a subscriber received, log by log, with what is stored.
fn assert_same_logs(got: &[SharedEvent], stored: &[RecordedEvent]) {
    let mut got: Vec<&RecordedEvent> = got.iter().map(AsRef::as_ref).collect();
    // The sort is stable, so it keeps the order within each log.
    got.sort_by_key(|event| event.log);
    assert_eq!(got, stored.iter().collect::<Vec<_>>());
}

/// Goal: a subscription delivers everything stored, then the message that it has caught up, then what is new.
pub async fn catches_up_then_goes_live(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for name in ["a-1", "b-2", "c-3"] {
        append(store.as_ref(), name, NoStream, events(4)).await;
    }
    let mut follower = Follower::all(store.as_ref(), SubscribeFrom::Start).await;
    let mut got = follower.until_caught_up().await;
    assert_eq!(got.len(), 12);
    for name in ["b-2", "d-4"] {
        append(store.as_ref(), name, Any, events(2)).await;
        got.extend(follower.events(2).await);
    }
    assert_same_logs(&got, &everything(store.as_ref()).await);
}

/// Goal: a subscription catches up with an empty store at once, and then delivers its first event.
pub async fn of_an_empty_store_waits_for_the_first_event(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut from_start = Follower::all(store.as_ref(), SubscribeFrom::Start).await;
    let mut from_end = Follower::all(store.as_ref(), SubscribeFrom::End).await;
    assert!(from_start.until_caught_up().await.is_empty());
    assert!(from_end.until_caught_up().await.is_empty());
    let answer = append(store.as_ref(), "a", Any, events(1)).await;
    delete(store.as_ref(), "a", Any, DeleteKind::Soft)
        .await
        .expect("deleted");
    for follower in [&mut from_start, &mut from_end] {
        let event = follower.event().await;
        assert_eq!((event.log, event.position), (answer.log, answer.position));
        assert_eq!(follower.event().await.event_type.as_str(), "$deleted");
    }
}

/// Goal: a subscription from the end delivers only what is stored later.
pub async fn from_the_end_sees_only_what_is_new(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a-{k}", NoStream, events(3)).await;
    let mut follower = Follower::all(store.as_ref(), SubscribeFrom::End).await;
    append(store.as_ref(), "b-{k}", NoStream, vec![event("new")]).await;
    assert_eq!(follower.event().await.event_type.as_str(), "new");
}

/// Goal: every checkpoint, of whatever message, resumes after exactly what came before it.
pub async fn every_checkpoint_resumes_exactly(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for name in ["a-1", "b-2", "a-1"] {
        append(store.as_ref(), name, Any, vec![event("x"), event("y")]).await;
    }
    for (filter, count) in [(Filter::ALL, 6), (Filter::query(types(&["x"])), 3)] {
        let all = SubscribeTo::All(filter);
        let (seen, resumable) = with_checkpoints(store.as_ref(), all.clone()).await;
        assert_eq!(seen.len(), count);
        for (checkpoint, count) in resumable {
            let from = SubscribeFrom::Checkpoint(checkpoint);
            let mut again = Follower::start(store.as_ref(), all.clone(), from).await;
            let rest: Vec<_> = again.until_caught_up().await.iter().map(|e| e.id).collect();
            assert_eq!(rest, seen[count..]);
        }
    }
}

/// Returns the ids that a new subscriber receives, and the checkpoint of each message with the number of ids before it.
async fn with_checkpoints(
    store: &dyn EventStore,
    to: SubscribeTo,
) -> (Vec<EventId>, Vec<(Checkpoint, usize)>) {
    let mut follower = Follower::start(store, to, SubscribeFrom::Start).await;
    let (mut seen, mut resumable) = (Vec::new(), Vec::new());
    loop {
        let message = follower.message().await;
        if let SubscriptionMessage::Event { event, .. } = &message {
            seen.push(event.id);
        }
        resumable.push((
            follower.checkpoint.clone().expect("a checkpoint"),
            seen.len(),
        ));
        if matches!(message, SubscriptionMessage::CaughtUp(_)) {
            return (seen, resumable);
        }
    }
}

/// Goal: a subscription can go on where a read ended, and a read where a subscription ended.
pub async fn reads_and_subscriptions_share_checkpoints(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a", NoStream, events(3)).await;
    let (_, end) = all_pages(store.as_ref(), ReadAll::forwards()).await;
    let answer = append(store.as_ref(), "a", Any, events(1)).await;
    let mut follower = Follower::all(store.as_ref(), SubscribeFrom::Checkpoint(end)).await;
    let got = follower.until_caught_up().await;
    assert_eq!(
        got.iter().map(|e| e.position).collect::<Vec<_>>(),
        [answer.position]
    );
    let after = follower.checkpoint.clone().expect("a checkpoint");
    let request = ReadAll::forwards().from(gesta_core::AllFrom::Checkpoint(after));
    assert!(all_pages(store.as_ref(), request).await.0.is_empty());
    let mut live =
        Follower::all(store.as_ref(), SubscribeFrom::Checkpoint(answer.checkpoint)).await;
    assert!(live.until_caught_up().await.is_empty());
}

/// Goal: a filter lets through the same events while catching up and live.
pub async fn filters_hold_in_both_phases(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mixed = || {
        vec![
            tagged("added", &["red", "big"]),
            tagged("removed", &["red"]),
            tagged("added", &["big"]),
        ]
    };
    let queries = [
        types(&["added"]),
        tags(&["red", "big"]),
        prefixes(&["cart-1"]),
        categories(&["order"]),
    ];
    let streams = ["cart-1", "cart-2", "order-1"];
    for name in streams {
        append(store.as_ref(), name, NoStream, mixed()).await;
    }
    let mut followers = Vec::new();
    for query in queries {
        let filter = Filter::query(query.clone());
        let mut follower = Follower::filtered(store.as_ref(), query, SubscribeFrom::Start).await;
        let got = follower.until_caught_up().await;
        followers.push((filter, follower, got));
    }
    for name in streams {
        append(store.as_ref(), name, Any, mixed()).await;
    }
    let stored = everything(store.as_ref()).await;
    for (filter, mut follower, mut got) in followers {
        let expected: Vec<_> = stored
            .iter()
            .filter(|e| filter.matches(e))
            .cloned()
            .collect();
        got.extend(follower.events(expected.len() - got.len()).await);
        assert_same_logs(&got, &expected);
    }
}

/// Goal: a filter that finds nothing gives a checkpoint at least every 1,000 positions, so that it resumes quickly.
pub async fn a_rare_filter_gets_checkpoints(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for _ in 0..3 {
        append(store.as_ref(), "a", Any, events(1_000)).await;
    }
    let mut follower =
        Follower::filtered(store.as_ref(), types(&["rare"]), SubscribeFrom::Start).await;
    let mut looked_at = 0;
    loop {
        let message = follower.message().await;
        let checkpoint = follower.checkpoint.clone().expect("a checkpoint");
        let Place::Logs(positions) = checkpoint.place else {
            panic!("a checkpoint in the logs");
        };
        let now: u64 = positions.iter().map(|position| position.0).sum();
        assert!(
            now - looked_at <= 1_000,
            "{} positions without a message",
            now - looked_at
        );
        looked_at = now;
        match message {
            SubscriptionMessage::CaughtUp(_) => break,
            SubscriptionMessage::Checkpoint(_) | SubscriptionMessage::FellBehind(_) => {}
            SubscriptionMessage::Event { event, .. } => panic!("not rare: {event:?}"),
        }
    }
    assert_eq!(looked_at, 3_000);
    append(store.as_ref(), "a", Any, vec![event("rare")]).await;
    assert_eq!(follower.event().await.position, Position(3_001));
}

/// Goal: subscribers that start, are live and catch up among many writers receive every event once, in order.
pub async fn among_concurrent_writers_nothing_is_missed_or_doubled(factory: &dyn StoreFactory) {
    const WRITERS: usize = 6;
    const APPENDS: usize = 20;
    const TOTAL: usize = WRITERS * APPENDS * 2;
    let store = factory.create().await;
    let mut live = Follower::all(store.as_ref(), SubscribeFrom::Start).await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.share();
            tokio::spawn(async move {
                for _ in 0..APPENDS {
                    let name = format!("w-{writer}");
                    append(store.as_ref(), &name, Any, events(2)).await;
                }
            })
        })
        .collect();
    // These subscribers begin while the writers write.
    let late = join_all((0..4).map(|i| {
        let store = store.share();
        async move {
            let before = live_position(store.as_ref(), i * TOTAL / 8).await;
            let mut follower = Follower::all(store.as_ref(), SubscribeFrom::Start).await;
            (before, follower.events(TOTAL).await)
        }
    }));
    let (got, late) = within("all events", async {
        tokio::join!(live.events(TOTAL), late)
    })
    .await;
    for writer in writers {
        writer.await.expect("no panic");
    }
    let stored = everything(store.as_ref()).await;
    assert_eq!(stored.len(), TOTAL);
    assert_same_logs(&got, &stored);
    for (_, got) in late {
        assert_same_logs(&got, &stored);
    }
}

/// Waits until the store holds this many events.
async fn live_position(store: &dyn EventStore, count: usize) -> usize {
    let mut follower = Follower::all(store, SubscribeFrom::Start).await;
    follower.events(count).await.len()
}

/// Goal: a subscriber that reads nothing while much is stored loses nothing and delays nobody.
pub async fn a_slow_consumer_loses_nothing(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a", NoStream, events(1)).await;
    let mut slow = Follower::all(store.as_ref(), SubscribeFrom::Start).await;
    slow.until_caught_up().await;
    let mut fast = Follower::all(store.as_ref(), SubscribeFrom::End).await;
    for _ in 0..12 {
        append(store.as_ref(), "a", Any, events(1_000)).await;
        fast.events(1_000).await;
    }
    let got = slow.events(12_000).await;
    let found = got.iter().map(|event| event.revision.0);
    assert!(found.eq(1..=12_000), "each once, in order");
    append(store.as_ref(), "a", Any, events(1)).await;
    assert_eq!(slow.event().await.revision.0, 12_001);
}

/// Goal: each of many subscribers, with many filters, receives its events.
pub async fn many_subscribers_are_served(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut followers = Vec::new();
    for i in 0..60 {
        let to = match i % 3 {
            0 => SubscribeTo::All(Filter::ALL),
            1 => SubscribeTo::All(Filter::query(types(&[if i % 2 == 0 {
                "even"
            } else {
                "odd"
            }]))),
            _ => SubscribeTo::Stream(stream("s-1")),
        };
        let follower = Follower::start(store.as_ref(), to.clone(), SubscribeFrom::Start).await;
        followers.push((to, follower));
    }
    for i in 0..20 {
        let name = format!("s-{}", i % 2);
        let event_type = if i % 4 < 2 { "even" } else { "odd" };
        append(
            store.as_ref(),
            &name,
            Any,
            vec![event(event_type), event("odd")],
        )
        .await;
    }
    let stored = everything(store.as_ref()).await;
    let served = followers.into_iter().map(|(to, mut follower)| {
        let expected: Vec<_> = stored
            .iter()
            .filter(|event| match &to {
                SubscribeTo::All(filter) => filter.matches(event),
                SubscribeTo::Stream(name) => event.stream == *name,
            })
            .cloned()
            .collect();
        async move { assert_same_logs(&follower.events(expected.len()).await, &expected) }
    });
    within("all subscribers", join_all(served)).await;
}

/// Goal: an unusable checkpoint is an error at once, not a subscription that waits for ever.
pub async fn from_unusable_checkpoints_is_refused(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a", NoStream, events(3)).await;
    let (_, end) = all_pages(store.as_ref(), ReadAll::forwards()).await;
    for (what, checkpoint) in unusable(&end, factory.logs()) {
        let request = Subscribe {
            to: SubscribeTo::All(Filter::ALL),
            from: SubscribeFrom::Checkpoint(checkpoint),
        };
        let error = within("subscribe", store.subscribe(request))
            .await
            .expect_err(what);
        let refused = matches!(error.kind(), gesta_core::ErrorKind::InvalidCheckpoint(_));
        assert!(refused, "{what}: {error:?}");
    }
    let request = Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::Revision(gesta_core::Revision(0)),
    };
    assert_kind!(
        store.subscribe(request).await,
        ErrorKind::InvalidArgument { .. }
    );
}

/// Goal: subscriptions end with an error when the store closes, and stay ended.
pub async fn ends_when_the_store_closes(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    append(store.as_ref(), "a", NoStream, events(1)).await;
    let mut all = Follower::all(store.as_ref(), SubscribeFrom::Start).await;
    let mut one = Follower::stream(store.as_ref(), "a", SubscribeFrom::Start).await;
    all.until_caught_up().await;
    one.until_caught_up().await;
    within("shutdown", store.shutdown())
        .await
        .expect("shut down");
    for follower in [&mut all, &mut one] {
        let error = follower.error().await;
        assert!(
            matches!(error.kind(), gesta_core::ErrorKind::Unavailable(_)),
            "{error:?}"
        );
        assert!(follower.next().await.is_none(), "ended");
        assert!(follower.next().await.is_none(), "it stays ended");
    }
}

/// Goal: large events do not stop a subscription.
pub async fn delivers_large_events(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut live = Follower::all(store.as_ref(), SubscribeFrom::Start).await;
    let large: Vec<EventData> = (0..6)
        .map(|i| EventData {
            data: vec![i; 1 << 20].into(),
            ..event("large")
        })
        .collect();
    append(store.as_ref(), "a", NoStream, large).await;
    let mut late = Follower::all(store.as_ref(), SubscribeFrom::Start).await;
    for follower in [&mut live, &mut late] {
        for i in 0..6 {
            let event = follower.event().await;
            assert!(event.data.len() == 1 << 20 && event.data.iter().all(|byte| *byte == i));
        }
    }
}
