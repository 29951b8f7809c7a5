//! What subscriptions deliver: resuming, checkpoints, visibility, the life of a stream.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use gesta_core::*;
use gesta_store::Config;
use support::*;

const SOON: std::time::Duration = std::time::Duration::from_millis(100);

fn to_all(filter: Filter, from: SubscribeFrom) -> Subscribe {
    Subscribe {
        to: SubscribeTo::All(filter),
        from,
    }
}

/// Every message until caught up, with the checkpoint of each.
async fn collect(subscription: &mut Subscription) -> Vec<(Option<EventId>, Checkpoint)> {
    let mut messages = Vec::new();
    loop {
        match next(subscription).await.expect("going on") {
            SubscriptionMessage::Event { event, checkpoint } => {
                messages.push((Some(event.id), checkpoint));
            }
            SubscriptionMessage::Checkpoint(checkpoint)
            | SubscriptionMessage::FellBehind(checkpoint) => messages.push((None, checkpoint)),
            SubscriptionMessage::CaughtUp(checkpoint) => {
                messages.push((None, checkpoint));
                return messages;
            }
        }
    }
}

fn events(messages: &[(Option<EventId>, Checkpoint)]) -> Vec<EventId> {
    messages.iter().filter_map(|(id, _)| *id).collect()
}

/// Goal: whoever resumes from any checkpoint it was given gets exactly what it had not yet been given.
#[tokio::test]
async fn every_checkpoint_resumes_exactly() {
    for logs in [1, 3] {
        let world = World::new(logs);
        let a = process(&world, Config::default());
        for i in 0..60 {
            a.append_together(&format!("cart-{}", i % 7), 3).await;
            a.append_together(&format!("show-{}", i % 5), 60).await;
        }
        let targets = [
            SubscribeTo::All(category("cart")),
            SubscribeTo::All(category("nothing")),
            SubscribeTo::Stream(stream("cart-3")),
        ];
        for to in targets {
            let from = SubscribeFrom::Start;
            let subscribed = a
                .store
                .subscribe(Subscribe {
                    to: to.clone(),
                    from,
                })
                .await;
            let all = collect(&mut subscribed.expect("subscribed")).await;
            for (place, (_, checkpoint)) in all.iter().enumerate() {
                // Also through its text form, as clients keep it.
                let checkpoint: Checkpoint = checkpoint.to_string().parse().expect("valid");
                let from = SubscribeFrom::Checkpoint(checkpoint);
                let resumed = a
                    .store
                    .subscribe(Subscribe {
                        to: to.clone(),
                        from,
                    })
                    .await;
                let rest = collect(&mut resumed.expect("resumed")).await;
                // Across logs the order may differ after a resume; what comes may not.
                let (mut rest, mut expected) = (events(&rest), events(&all[place + 1..]));
                if logs > 1 {
                    rest.sort();
                    expected.sort();
                }
                assert_eq!(rest, expected, "{to:?} from message {place}");
            }
        }
    }
}

/// Goal: a checkpoint that this store cannot have given is refused by reads and subscriptions.
#[tokio::test]
async fn foreign_and_future_checkpoints_are_refused() {
    let world = World::new(2);
    let a = process(&world, Config::default());
    a.append_together("cart-1", 3).await;
    let log = log_of(&stream("cart-1"), 2);
    let other = LogId(1 - log.0);
    let good = Checkpoint::in_log(world.incarnation(), 2, log, Position(3));
    let bad = [
        Checkpoint::in_log(world.incarnation(), 2, log, Position(4)),
        Checkpoint::in_log(world.incarnation(), 2, other, Position(1)),
        Checkpoint::in_log(Incarnation::random(), 2, log, Position(1)),
        Checkpoint::in_log(world.incarnation(), 1, LogId(0), Position(1)),
        Checkpoint::stream(world.incarnation(), &stream("cart-1"), None),
    ];
    let subscribe = |checkpoint: &Checkpoint| {
        let from = SubscribeFrom::Checkpoint(checkpoint.clone());
        a.store.subscribe(to_all(Filter::ALL, from))
    };
    let read = |checkpoint: &Checkpoint, request: ReadAll| {
        a.store
            .read_all(request.from(AllFrom::Checkpoint(checkpoint.clone())))
    };
    subscribe(&good).await.expect("its own");
    let page = read(&good, ReadAll::forwards()).await.expect("its own");
    assert!(page.end && page.events.is_empty());
    for checkpoint in &bad {
        let refused = |error: Error| matches!(error.kind(), ErrorKind::InvalidCheckpoint(_));
        assert!(subscribe(checkpoint).await.is_err_and(refused));
        for request in [
            ReadAll::forwards(),
            ReadAll::backwards(),
            ReadAll::forwards().filter(category("cart")),
        ] {
            assert!(read(checkpoint, request).await.is_err_and(refused));
        }
    }
    let above = Subscribe {
        to: SubscribeTo::Stream(stream("cart-1")),
        from: SubscribeFrom::Revision(Revision(3)),
    };
    let error = a.store.subscribe(above).await.expect_err("above the last");
    assert!(matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)));
}

/// Goal: the one place where a page does not ask for the end of the log tells a checkpoint above it all the same.
#[tokio::test]
async fn a_checkpoint_above_the_end_of_a_single_log_is_refused() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    a.append_together("cart-1", 3).await;
    let max = Position::MAX.0;
    for (position, ok) in [
        (2, true),
        (3, true),
        (4, false),
        (max - 1, false),
        (max, false),
    ] {
        let checkpoint = Checkpoint::in_log(world.incarnation(), 1, LogId(0), Position(position));
        let request = ReadAll::forwards().from(AllFrom::Checkpoint(checkpoint));
        assert_eq!(a.store.read_all(request).await.is_ok(), ok, "{position}");
    }
}

async fn delete(a: &Process, name: &str, kind: DeleteKind) {
    let request = DeleteStream {
        stream: stream(name),
        expected: ExpectedRevision::Any,
        kind,
    };
    a.store.delete_stream(request).await.expect("deleted");
}

async fn set_metadata(a: &Process, name: &str, json: &'static str) {
    let request = SetStreamMetadata {
        stream: stream(name),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(json).expect("valid"),
    };
    a.store.set_stream_metadata(request).await.expect("set");
}

async fn revisions(subscription: &mut Subscription, count: usize) -> Vec<u64> {
    let mut revisions = Vec::new();
    while revisions.len() < count {
        revisions.push(next_event(subscription).await.revision.0);
    }
    revisions
}

/// Goal: a subscription follows a stream through its life, from before it exists to its tombstone.
#[tokio::test]
async fn a_stream_is_followed_through_its_life() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    let mut followed = a.subscribe_stream("cart-1", SubscribeFrom::Start).await;
    let (before, checkpoint) = until_caught_up(&mut followed).await;
    assert!(before.is_empty());
    let nothing = Checkpoint::stream(world.incarnation(), &stream("cart-1"), None);
    assert_eq!(checkpoint, nothing);
    a.append("cart-1", 2).await;
    a.append("cart-10", 1).await;
    assert_eq!(revisions(&mut followed, 2).await, [0, 1]);
    delete(&a, "cart-1", DeleteKind::Soft).await;
    a.append("cart-1", 2).await;
    assert_eq!(revisions(&mut followed, 2).await, [2, 3]);
    // Late comers see what a read shows.
    let mut late = a.subscribe_stream("cart-1", SubscribeFrom::Start).await;
    assert_eq!(revisions(&mut late, 2).await, [2, 3]);
    let after = SubscribeFrom::Revision(Revision(2));
    assert_eq!(
        revisions(&mut a.subscribe_stream("cart-1", after).await, 1).await,
        [3]
    );
    // Truncated beyond the end: live events are hidden until then.
    set_metadata(&a, "cart-1", r#"{"$tb":6}"#).await;
    a.append("cart-1", 3).await;
    assert_eq!(revisions(&mut followed, 1).await, [6]);
    let mut metadata = a.subscribe_stream("$$cart-1", SubscribeFrom::Start).await;
    delete(&a, "cart-1", DeleteKind::Tombstone).await;
    for subscription in [&mut followed, &mut late] {
        let ended = loop {
            match next(subscription).await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(ended.kind(), ErrorKind::StreamTombstoned(_)));
        assert!(subscription.next().await.is_none());
    }
    assert_eq!(revisions(&mut metadata, 3).await, [0, 1, 2]);
    let again = Subscribe {
        to: SubscribeTo::Stream(stream("cart-1")),
        from: SubscribeFrom::End,
    };
    let error = a.store.subscribe(again).await.expect_err("closed for ever");
    assert!(matches!(error.kind(), ErrorKind::StreamTombstoned(_)));
}

/// Goal: changes of a stream's metadata made by another process hold for live subscribers here.
#[tokio::test]
async fn metadata_of_another_process_hold_at_once() {
    let world = World::new(1);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    let mut followed = a.subscribe_stream("cart-1", SubscribeFrom::End).await;
    b.append("cart-1", 1).await;
    set_metadata(&b, "cart-1", r#"{"$tb":3}"#).await;
    b.append("cart-1", 3).await;
    assert_eq!(revisions(&mut followed, 2).await, [0, 3]);
    delete(&b, "cart-1", DeleteKind::Tombstone).await;
    let error = next(&mut followed).await.expect_err("ended");
    assert!(matches!(error.kind(), ErrorKind::StreamTombstoned(_)));
}

/// Goal: from the end, nothing stored before comes, and everything after does, on each log.
#[tokio::test]
async fn from_the_end_begins_exactly_there() {
    let world = World::new(4);
    let a = process(&world, Config::default());
    for i in 0..20 {
        a.append(&format!("cart-{i}"), 2).await;
    }
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    for i in 0..20 {
        a.append(&format!("cart-{i}"), 1).await;
    }
    let mut seen = Vec::new();
    while seen.len() < 20 {
        let event = next_event(&mut subscription).await;
        assert_eq!(event.revision, Revision(2));
        seen.push(event.stream.clone());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 20);
    let more = tokio::time::timeout(SOON, subscription.next_event()).await;
    assert!(more.is_err(), "nothing else");
}

/// Goal: rare filters resume quickly: checkpoints come at every 1,000th position while catching up and at every
/// 10,000th while live.
#[tokio::test]
async fn checkpoints_come_while_a_filter_skips() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    a.append("cart-1", 1).await;
    for _ in 0..7 {
        a.append_together("show-1", 1_000).await;
    }
    let mut subscription = a.subscribe(category("cart"), SubscribeFrom::Start).await;
    let messages = collect(&mut subscription).await;
    let position = |checkpoint: &Checkpoint| match &checkpoint.place {
        Place::Logs(positions) => positions[0].0,
        Place::Stream { .. } => panic!("not of all events"),
    };
    let told: Vec<u64> = messages.iter().map(|(_, c)| position(c)).collect();
    let expected = [1, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 7_001];
    assert_eq!(told, expected);
    for _ in 0..25 {
        a.append_together("show-1", 1_000).await;
    }
    for expected in [10_000, 20_000, 30_000] {
        match next(&mut subscription).await.expect("going on") {
            SubscriptionMessage::Checkpoint(checkpoint) => {
                assert_eq!(position(&checkpoint), expected);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the places that a subscriber from the start to both logs is told of, as log and position, in their order, if
/// it may see the category `cart` alone. Like the guard of a server, this function takes no notice of what else comes.
async fn places_for_carts(subscription: &mut Subscription) -> Vec<(usize, u64)> {
    let (mut places, mut before) = (Vec::new(), vec![Position::START; 2]);
    loop {
        let (shown, checkpoint) = match next(subscription).await.expect("going on") {
            SubscriptionMessage::Event { event, checkpoint } => {
                let is_shown = event.stream.category() == "cart";
                (is_shown.then(|| usize::from(event.log.0)), checkpoint)
            }
            SubscriptionMessage::Checkpoint(checkpoint) => (None, checkpoint),
            SubscriptionMessage::CaughtUp(_) => return places,
            other => panic!("{other:?}"),
        };
        let Place::Logs(now) = checkpoint.place else {
            panic!("not of all events");
        };
        for (log, (before, now)) in before.iter().zip(&now).enumerate() {
            let is_told = now.0.is_multiple_of(1_000) || shown == Some(log);
            if now > before && is_told {
                places.push((log, now.0));
            }
        }
        before = now;
    }
}

/// What happened: the turn of a log ended with a page or a chunk. So the order in which several logs came depended on
/// how many events matched and how large they were, which servers also told those who may not see these events.
/// Goal: it depends on positions alone, whether the events are read or come from the ring.
#[tokio::test]
async fn turns_of_logs_do_not_depend_on_what_stands_at_positions() {
    const TOLD_OF: [u64; 10] = [
        431, 862, 1_000, 1_293, 1_724, 2_000, 2_155, 2_586, 3_000, 3_017,
    ];
    let carts_or_wanted = Filter::any_of([
        Query {
            categories: vec!["cart".into()],
            ..Query::default()
        },
        Query {
            types: vec![EventType::new("wanted").expect("valid")],
            ..Query::default()
        },
    ]);
    for (event_type, bytes) in [("other", 2), ("wanted", 4_096)] {
        for is_in_ring in [false, true] {
            let world = World::new(2);
            let a = process(&world, Config::default());
            let mut live = None;
            if is_in_ring {
                live = Some(a.subscribe(Filter::ALL, SubscribeFrom::End).await);
            }
            for log in [LogId(0), LogId(1)] {
                let name = |category: &str| {
                    let mut names = (0..).map(|n| format!("{category}-{n}"));
                    let name = names.find(|name| log_of(&stream(name), 2) == log);
                    name.expect("endless")
                };
                for _ in 0..7 {
                    let show = EventData {
                        data: vec![b' '; bytes].into(),
                        content_type: ContentType::Binary,
                        ..event(event_type)
                    };
                    let shows = vec![show; 430];
                    let shows = Append::to(stream(&name("show")), ExpectedRevision::Any, shows);
                    a.store.append(shows).await.expect("appended");
                    a.append(&name("cart"), 1).await;
                }
            }
            if let Some(live) = &mut live {
                positions(live, 2 * 3_017).await;
            }
            // 1,024 is the largest page without a filter, 50,000 what one read with a filter looks at.
            for (filter, turn) in [(Filter::ALL, 1_024), (carts_or_wanted.clone(), 50_000)] {
                let mut expected: Vec<(u64, usize, u64)> = [0, 1]
                    .into_iter()
                    .flat_map(|log| TOLD_OF.map(|at| ((at - 1) / turn, log, at)))
                    .collect();
                expected.sort_unstable();
                let expected: Vec<_> = expected.iter().map(|(_, log, at)| (*log, *at)).collect();
                let mut subscription = a.subscribe(filter, SubscribeFrom::Start).await;
                let found = places_for_carts(&mut subscription).await;
                assert_eq!(found, expected, "{event_type}, in ring: {is_in_ring}");
            }
        }
    }
}
