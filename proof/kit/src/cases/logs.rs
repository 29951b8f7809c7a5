//! Stores of several logs: routing, and what holds for each log.

use std::collections::{BTreeMap, BTreeSet};

use gesta_core::{
    AllFrom, Append, Direction, Filter, LogId, Place, Position, ReadAll, StreamId, SubscribeFrom,
    log_of,
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
            conditions: Vec::new(),
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

/// What happened: every page of all events began with log 0, so while that one was busy a reader saw nothing of the
/// others. What holds now: however much more one log has than the others, pages come to all of them soon, in either
/// direction, the same page for the same request, and all pages together show each event once, in the order of its log.
pub async fn a_busy_log_leaves_room_to_the_others(factory: &dyn StoreFactory) {
    if factory.logs() == 1 {
        return skip(factory, LACKING);
    }
    let (busy, _) = apart(factory.logs());
    let busy_log = log_of(&busy, factory.logs());
    let store = factory.create().await;
    append(store.as_ref(), busy.as_str(), NoStream, events(BUSY_EVENTS)).await;
    let mut others = BTreeSet::new();
    for i in 0..40 {
        let name = format!("s-{i}");
        let log = log_of(&stream(&name), factory.logs());
        if log != busy_log {
            append(store.as_ref(), &name, Any, events(1)).await;
            others.insert(log);
        }
    }
    assert_eq!(others.len(), usize::from(factory.logs()) - 1);
    for request in [ReadAll::forwards(), ReadAll::backwards()] {
        let request = request.limit(10);
        let (mut from, mut pages, mut seen) = (request.from.clone(), 0, Vec::new());
        let mut unseen = others.clone();
        loop {
            let request = request.clone().from(from);
            let page = within("read all", store.read_all(request.clone())).await;
            let page = page.expect("readable");
            let again = within("read all", store.read_all(request)).await;
            assert_eq!(again.expect("readable"), page, "the same request");
            pages += 1;
            for event in &page.events {
                unseen.remove(&event.log);
                seen.push((event.log, event.position));
            }
            // Alone, the busy log fills a hundred pages.
            assert!(
                unseen.is_empty() || pages < 60,
                "{pages} pages without {unseen:?}"
            );
            if page.end {
                break;
            }
            from = AllFrom::Checkpoint(page.next);
        }
        check_each_once(
            &seen,
            request.direction,
            &store.info().await.expect("info").heads,
        );
    }
}

/// Events of the busy log.
const BUSY_EVENTS: usize = 1_000;

/// Every position of every log is there once, in the order of its log.
fn check_each_once(seen: &[(LogId, Position)], direction: Direction, heads: &[Position]) {
    for (log, head) in (0..).map(LogId).zip(heads) {
        let of_log = seen.iter().filter(|(of, _)| *of == log);
        let mut positions: Vec<u64> = of_log.map(|(_, position)| position.0).collect();
        if direction == Direction::Backwards {
            positions.reverse();
        }
        let expected: Vec<u64> = (1..=head.0).collect();
        assert_eq!(positions, expected, "log {log}, {direction:?}");
    }
}

/// Goal: who resumes from the answer to an append misses nothing: neither what is stored after it in its log, nor
/// anything of another log, stored before it or after it, which the reader may not have seen.
pub async fn the_checkpoint_of_an_append_skips_no_other_log(factory: &dyn StoreFactory) {
    if factory.logs() == 1 {
        return skip(factory, LACKING);
    }
    let store = factory.create().await;
    let (a, b) = apart(factory.logs());
    append(store.as_ref(), a.as_str(), NoStream, events(1)).await;
    append(store.as_ref(), b.as_str(), NoStream, events(2)).await;
    let answer = append(store.as_ref(), a.as_str(), Any, events(1)).await;
    append(store.as_ref(), b.as_str(), Any, events(1)).await;
    append(store.as_ref(), a.as_str(), Any, events(1)).await;
    let from = SubscribeFrom::Checkpoint(answer.checkpoint.clone());
    let mut follower = Follower::all(store.as_ref(), from).await;
    let subscribed = follower.until_caught_up().await;
    let request = ReadAll::forwards().from(AllFrom::Checkpoint(answer.checkpoint));
    let (read, _) = all_pages(store.as_ref(), request).await;
    let subscribed = subscribed
        .iter()
        .map(|event| (&event.stream, event.revision.0));
    let read = read.iter().map(|event| (&event.stream, event.revision.0));
    let mut seen = [subscribed.collect::<Vec<_>>(), read.collect()];
    for seen in &mut seen {
        seen.sort_unstable();
        let mut expected = vec![(&a, 2), (&b, 0), (&b, 1), (&b, 2)];
        expected.sort_unstable();
        assert_eq!(*seen, expected);
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
