//! Stores of several logs: routing, and what holds for each log.

use std::collections::{BTreeMap, BTreeSet};

use gesta_core::{
    Append, Filter, LogId, Place, Position, ReadAll, StreamId, SubscribeFrom, log_of,
};

use crate::factory::StoreFactory;
use crate::support::*;

const LACKING: &str = "several logs";

/// Returns two streams of different logs.
fn apart(logs: u16) -> (StreamId, StreamId) {
    let first = stream("s-0");
    let other = (1..)
        .map(|i| stream(&format!("s-{i}")))
        .find(|other| log_of(other, logs) != log_of(&first, logs));
    (first, other.expect("streams spread over the logs"))
}

/// Goal: events are in the log that the name says, and each log counts from 1.
pub async fn streams_are_routed_by_name(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for i in 0..30 {
        append(store.as_ref(), &format!("s-{i}"), NoStream, events(2)).await;
    }
    set_metadata(store.as_ref(), "s-0", Any, "{}")
        .await
        .expect("set");
    let mut positions: BTreeMap<LogId, Vec<u64>> = BTreeMap::new();
    for event in everything(store.as_ref()).await {
        assert_eq!(event.log, log_of(&event.stream, factory.logs()));
        positions
            .entry(event.log)
            .or_default()
            .push(event.position.0);
    }
    assert_eq!(
        positions.len(),
        usize::from(factory.logs()),
        "every log is used"
    );
    for (log, positions) in positions {
        assert_eq!(positions[0], 1, "log {log}");
        assert!(
            positions.is_sorted_by(|a, b| a < b),
            "log {log}: {positions:?}"
        );
    }
}

/// Goal: names that share a `{…}` part share a log, and can be appended to together.
pub async fn names_that_share_braces_go_together(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    for key in 0..10 {
        let names = ["cart", "payment", "x-y"].map(|kind| format!("{kind}-{{{key}}}-1"));
        let request = Append {
            streams: names
                .iter()
                .flat_map(|name| Append::to(stream(name), NoStream, events(1)).streams)
                .collect(),
        };
        let answer = within("append", store.append(request))
            .await
            .expect("one log");
        assert_eq!(answer.streams.len(), 3);
    }
}

/// Goal: an append over two logs is refused, and nothing is stored.
pub async fn an_append_over_two_logs_is_refused(factory: &dyn StoreFactory) {
    if factory.logs() == 1 {
        return skip(factory, LACKING);
    }
    let store = factory.create().await;
    let (a, b) = apart(factory.logs());
    let mut request = Append::to(a, NoStream, events(1));
    request
        .streams
        .extend(Append::to(b, NoStream, events(1)).streams);
    let answer = within("append", store.append(request)).await;
    assert_kind!(answer, ErrorKind::InvalidArgument { .. });
    assert!(everything(store.as_ref()).await.is_empty());
}

/// Goal: checkpoints hold a position per log, and move on in each.
pub async fn checkpoints_hold_a_position_per_log(factory: &dyn StoreFactory) {
    if factory.logs() == 1 {
        return skip(factory, LACKING);
    }
    let store = factory.create().await;
    let (a, b) = apart(factory.logs());
    for name in [&a, &b, &a] {
        append(store.as_ref(), name.as_str(), Any, events(2)).await;
    }
    let (_, end) = all_pages(store.as_ref(), ReadAll::forwards()).await;
    let heads = store.info().await.expect("info").heads;
    assert_eq!(end.place, Place::Logs(heads.clone()));
    let at = |name| heads[usize::from(log_of(name, factory.logs()).0)];
    assert_eq!((at(&a), at(&b)), (Position(4), Position(2)));

    // Subscriptions are resumed in the middle of both logs.
    let mut follower = Follower::all(store.as_ref(), SubscribeFrom::Start).await;
    let mut seen = BTreeSet::new();
    for _ in 0..6 {
        let event = follower.event().await;
        assert!(seen.insert((event.log, event.position)));
        let checkpoint = follower.checkpoint.clone().expect("a checkpoint");
        let mut resumed =
            Follower::all(store.as_ref(), SubscribeFrom::Checkpoint(checkpoint)).await;
        let rest = resumed.until_caught_up().await;
        let places = rest.iter().map(|event| (event.log, event.position));
        let all: BTreeSet<_> = places.chain(seen.iter().copied()).collect();
        assert_eq!((rest.len() + seen.len(), all.len()), (6, 6), "each once");
    }
}

/// Goal: a subscription is live in every log.
pub async fn subscriptions_follow_every_log(factory: &dyn StoreFactory) {
    let store = factory.create().await;
    let mut follower = Follower::all(store.as_ref(), SubscribeFrom::End).await;
    let mut filtered =
        Follower::filtered(store.as_ref(), types(&["rare"]), SubscribeFrom::End).await;
    for i in 0..12 {
        let name = format!("s-{i}");
        let event_type = if i % 3 == 0 { "rare" } else { "plain" };
        append(store.as_ref(), &name, NoStream, vec![event(event_type)]).await;
        assert_eq!(follower.event().await.stream, stream(&name));
        if i % 3 == 0 {
            assert_eq!(filtered.event().await.stream, stream(&name));
        }
    }
    let rare = ReadAll::forwards().filter(Filter::query(types(&["rare"])));
    assert_eq!(all_pages(store.as_ref(), rare).await.0.len(), 4);
}
