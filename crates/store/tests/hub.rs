//! The tail hub through the store: what reaches subscribers, when, and what it costs.

#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use gesta_append::Pipeline;
use gesta_core::backend::{Batch, CommitObserver, LogEnd, Row, RowId};
use gesta_core::*;
use gesta_kit::faulty::{Answers, Faulty, Read};
use gesta_store::Config;
use gesta_tail::Hub;
use support::*;
use tokio::time::Instant;

fn small_ring(events: usize) -> Config {
    let mut config = Config::default();
    config.tail.ring_events_max = events;
    config
}

fn range(range: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    range.collect()
}

/// Waits until the process has asked for the end of the first log, whose answer the test holds.
async fn until_an_end_is_held(process: &Process) {
    while process.faulty.held(Answers::EndsOfFirstLog) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Goal: what another process has appended in between comes before what this one appended after it, even if no message
/// about it ever arrives.
#[tokio::test]
async fn gaps_between_own_and_foreign_commits_are_filled_first() {
    let world = World::new(1);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    b.faulty.lose_messages();
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    b.append("cart-1", 3).await;
    a.append("cart-2", 1).await;
    b.append_together("cart-1", 2_500).await;
    a.append("cart-2", 2).await;
    assert_eq!(positions(&mut subscription, 2_506).await, range(1..=2_506));
}

/// Goal: nothing is lost, doubled or out of order while two processes append as fast as they can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_busy_processes_are_followed_in_order() {
    let world = World::new(1);
    let a = Arc::new(process(&world, small_ring(64)));
    let b = Arc::new(process(&world, small_ring(64)));
    let mut subscriptions = Vec::new();
    for process in [&a, &b] {
        subscriptions.push(process.subscribe(Filter::ALL, SubscribeFrom::Start).await);
        subscriptions.push(process.subscribe(Filter::ALL, SubscribeFrom::End).await);
    }
    let work = [Arc::clone(&a), Arc::clone(&b)].map(|process| {
        tokio::spawn(async move {
            join_all((0..20).map(|i| {
                let process = &process;
                async move { process.append(&format!("cart-{i}"), 50).await }
            }))
            .await;
        })
    });
    let followed = subscriptions.iter_mut().map(|subscription| async move {
        assert_eq!(positions(subscription, 2_000).await, range(1..=2_000));
    });
    join_all(followed).await;
    for work in work {
        work.await.expect("appended");
    }
}

/// Goal: a lost message costs time, never an event: the poll finds it.
#[tokio::test(start_paused = true)]
async fn lost_messages_are_covered_by_the_poll() {
    let world = World::new(1);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    b.faulty.lose_messages();
    let mut all = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    let mut one = a.subscribe_stream("cart-1", SubscribeFrom::End).await;
    let begun = Instant::now();
    b.append("cart-1", 3).await;
    assert_eq!(positions(&mut all, 3).await, [1, 2, 3]);
    assert_eq!(positions(&mut one, 3).await, [1, 2, 3]);
    assert!(begun.elapsed() <= Config::default().tail.poll_interval + Duration::from_millis(100));
}

/// Goal: when messages may have been lost, the end of the log is looked at without waiting for the poll.
#[tokio::test(start_paused = true)]
async fn an_interruption_is_followed_by_a_look() {
    let world = World::new(1);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    b.faulty.lose_messages();
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    let begun = Instant::now();
    b.append("cart-1", 1).await;
    a.faulty.interrupt();
    assert_eq!(positions(&mut subscription, 1).await, [1]);
    assert!(begun.elapsed() < Duration::from_secs(1));
}

/// Goal: a subscriber that begins while messages are lost misses nothing, though the end at which it begins was read
/// before, and its log has no place yet for which the end could be looked at.
#[tokio::test(start_paused = true)]
async fn an_interruption_is_not_forgotten_by_a_log_without_a_place() {
    let world = World::new(1);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    b.faulty.lose_messages();
    a.faulty.hold(Answers::EndsOfFirstLog);
    let meanwhile = async {
        until_an_end_is_held(&a).await;
        b.append("cart-1", 1).await;
        a.faulty.interrupt();
        // The look that follows is over before the log has a place.
        tokio::time::sleep(Duration::from_millis(100)).await;
        a.faulty.release(Answers::EndsOfFirstLog);
    };
    let subscribed = a.subscribe(Filter::ALL, SubscribeFrom::End);
    let (mut subscription, ()) = tokio::join!(subscribed, meanwhile);
    let begun = Instant::now();
    assert_eq!(positions(&mut subscription, 1).await, [1]);
    assert!(begun.elapsed() < Duration::from_secs(1));
}

/// Goal: commits of this process during a look at the ends of all logs end no subscriber, though the look has found the
/// log to end before them.
#[tokio::test(start_paused = true)]
async fn commits_during_a_look_end_no_subscriber() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    a.append("cart-1", 2).await;
    assert_eq!(positions(&mut subscription, 2).await, [1, 2]);
    a.faulty.hold(Answers::EndsOfFirstLog);
    until_an_end_is_held(&a).await;
    a.append("cart-1", 3).await;
    assert_eq!(positions(&mut subscription, 3).await, [3, 4, 5]);
    a.faulty.release(Answers::EndsOfFirstLog);
    // The clock is paused: the answer has been taken when this is over.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(a.faulty.held(Answers::EndsOfFirstLog), 0);
    a.append("cart-1", 1).await;
    assert_eq!(positions(&mut subscription, 1).await, [6]);
}

/// What happened: while one of several databases was away, the look at the ends of all logs failed, and the reader of
/// each log asked for its own, after each look. Goal: only those whose database is away do, and what others append to
/// the other logs is found.
#[tokio::test(start_paused = true)]
async fn a_database_that_is_away_costs_the_logs_of_others_nothing() {
    let world = World::new(4);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    b.faulty.lose_messages();
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    until_caught_up(&mut subscription).await;
    let names = (0..).map(|n| format!("cart-{n}"));
    let is_there = |name: &String| a.store.log_of(&stream(name)) == LogId(2);
    let there = names.into_iter().find(is_there).expect("endless");
    let asked = Arc::new(Mutex::new([0; 4]));
    let counted = Arc::clone(&asked);
    a.faulty.fail_reads(move |read| match read {
        Read::LogEnd(log) => {
            counted.lock().expect("whole")[usize::from(log.0)] += 1;
            (log == LogId(1)).then(|| Error::unavailable("its database is away"))
        }
        _ => None,
    });
    let begun = Instant::now();
    b.append(&there, 1).await;
    assert_eq!(next_event(&mut subscription).await.log, LogId(2));
    let poll = Config::default().tail.poll_interval;
    assert!(begun.elapsed() <= poll + Duration::from_millis(100));
    tokio::time::sleep(9 * poll).await;
    let asked = *asked.lock().expect("whole");
    for log in [0, 2, 3] {
        assert!((8..=11).contains(&asked[log]), "log {log}: {asked:?}");
    }
    assert!(asked[1] > asked[0], "its reader tries again: {asked:?}");
}

/// What happened: the look at the ends of all logs had its answers together, so a database that hung held up by seconds
/// what was to be found in the others, and an interruption waited for the look that was under way.
#[tokio::test(start_paused = true)]
async fn a_database_that_hangs_holds_up_nothing_of_the_others() {
    let world = World::new(4);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    b.faulty.lose_messages();
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    until_caught_up(&mut subscription).await;
    let mut names = (0..).map(|n| format!("cart-{n}"));
    let is_there = |name: &String| a.store.log_of(&stream(name)) == LogId(2);
    let there = names.find(is_there).expect("endless");
    a.faulty.hold(Answers::EndsOfFirstLog);
    until_an_end_is_held(&a).await;
    let begun = Instant::now();
    b.append(&there, 1).await;
    a.faulty.interrupt();
    assert_eq!(next_event(&mut subscription).await.log, LogId(2));
    assert!(begun.elapsed() < Duration::from_millis(100));
    // Without an interruption the poll finds it.
    let begun = Instant::now();
    b.append(&there, 1).await;
    assert_eq!(next_event(&mut subscription).await.log, LogId(2));
    let poll = Config::default().tail.poll_interval;
    assert!(begun.elapsed() <= 2 * poll + Duration::from_millis(100));
}

/// Goal: with messages, other processes' events come at once.
#[tokio::test(start_paused = true)]
async fn messages_of_other_processes_wake_subscribers() {
    let world = World::new(1);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    let begun = Instant::now();
    for position in 1..=5 {
        b.append("cart-1", 1).await;
        assert_eq!(positions(&mut subscription, 1).await, [position]);
    }
    assert!(begun.elapsed() < Duration::from_secs(1));
}

/// Goal: what this process commits reaches its subscribers at once, also while the hub waits for a read that was asked
/// for by a message; a backend may hold such a read back.
#[tokio::test]
async fn own_commits_do_not_wait_for_a_read() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    a.append("cart-1", 2).await;
    assert_eq!(positions(&mut subscription, 2).await, [1, 2]);
    a.faulty.hold(Answers::Logs);
    a.store.heard(LogId(0), Position(99));
    let held = async {
        while a.faulty.held(Answers::Logs) == 0 {
            tokio::task::yield_now().await;
        }
    };
    let held = tokio::time::timeout(Duration::from_secs(60), held).await;
    held.expect("the log is read");
    a.append("cart-1", 3).await;
    assert_eq!(positions(&mut subscription, 3).await, [3, 4, 5]);
    assert_eq!(a.faulty.held(Answers::Logs), 1);
    a.faulty.release(Answers::Logs);
    a.append("cart-1", 1).await;
    assert_eq!(positions(&mut subscription, 1).await, [6]);
}

/// What happened: after a read that had failed the hub waited up to 5 s, and with it what this process committed
/// itself. Goal: own commits do not wait for such a pause either.
#[tokio::test(start_paused = true)]
async fn own_commits_do_not_wait_for_a_pause() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    a.append("cart-1", 2).await;
    assert_eq!(positions(&mut subscription, 2).await, [1, 2]);
    a.faulty
        .fail_reads(|_| Some(Error::unavailable("the database cannot read that")));
    a.store.heard(LogId(0), Position(99));
    for position in 3..=20 {
        tokio::time::sleep(Duration::from_millis(1_700)).await;
        let begun = Instant::now();
        a.append("cart-1", 1).await;
        assert_eq!(positions(&mut subscription, 1).await, [position]);
        assert!(begun.elapsed() < Duration::from_millis(100), "{position}");
    }
}

/// What happened: what a node knew of the end of a log to which others append was as old as its last own change, and
/// changes that came back to it were *outcome unknown* because of deletes long before them. Goal: a process knows what
/// its hub has read, of all logs while anybody is subscribed to any; what it knew of another history it forgets.
#[tokio::test(start_paused = true)]
async fn the_end_that_is_known_is_what_was_read() {
    let world = World::new(2);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    let log = a.store.log_of(&stream("cart-1"));
    let names = (0..).map(|n| format!("other-{n}"));
    let other = names
        .into_iter()
        .find(|name| a.store.log_of(&stream(name)) != log)
        .expect("endless");
    let of_other = a.store.log_of(&stream(&other));
    for process in [&a, &b] {
        process.append("cart-1", 1).await;
        process.append(&other, 1).await;
    }
    let mut subscription = a.subscribe_stream("cart-1", SubscribeFrom::End).await;
    b.append("cart-1", 5).await;
    b.append(&other, 7).await;
    assert_eq!(positions(&mut subscription, 5).await, range(3..=7));
    assert_eq!(a.store.known_end_of(log), b.store.known_end_of(log));
    assert_eq!(a.store.known_end_of(log).position, Position(7));
    tokio::time::sleep(2 * Config::default().tail.poll_interval).await;
    assert_eq!(
        a.store.known_end_of(of_other),
        b.store.known_end_of(of_other)
    );
    assert_eq!(a.store.known_end_of(of_other).position, Position(9));
}

/// Goal: a lane that is far behind the log reads pages as fast as they come: only a few events are read together with
/// those of other logs.
#[tokio::test]
async fn a_lane_that_is_far_behind_reads_larger_pages() {
    let world = World::new(1);
    let (a, b) = (
        process(&world, Config::default()),
        process(&world, Config::default()),
    );
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    until_caught_up(&mut subscription).await;
    let before = a.faulty.calls().read_log;
    b.append_together("cart-1", 2_500).await;
    assert_eq!(positions(&mut subscription, 2_500).await, range(1..=2_500));
    // One of 256 events, and then such of 1,000. Messages that come meanwhile may lead to one more.
    let reads = a.faulty.calls().read_log - before;
    assert!((4..=5).contains(&reads), "{reads} reads");
}

/// What happened: who did not keep up was told a second time that it has caught up, and never that it fell behind.
/// Goal: it is told both, each once and in this order, and loses nothing.
#[tokio::test]
async fn a_slow_consumer_falls_back_to_reading_and_loses_nothing() {
    let world = World::new(1);
    let a = process(&world, small_ring(100));
    let mut all = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    let mut some = a.subscribe(category("cart"), SubscribeFrom::End).await;
    let mut one = a.subscribe_stream("cart-1", SubscribeFrom::End).await;
    for subscription in [&mut all, &mut some, &mut one] {
        assert!(until_caught_up(subscription).await.0.is_empty());
    }
    for _ in 0..10 {
        a.append_together("cart-1", 250).await;
        a.append_together("show-1", 250).await;
    }
    let expected: Vec<u64> = (1..=5_000).filter(|p| (p - 1) / 250 % 2 == 0).collect();
    for (subscription, expected) in [
        (&mut all, range(1..=5_000)),
        (&mut some, expected.clone()),
        (&mut one, expected),
    ] {
        let first = next(subscription).await.expect("going on");
        assert!(
            matches!(first, SubscriptionMessage::FellBehind(_)),
            "{first:?}"
        );
        let mut positions = Vec::new();
        loop {
            match next(subscription).await.expect("going on") {
                SubscriptionMessage::Event { event, .. } => positions.push(event.position.0),
                SubscriptionMessage::Checkpoint(_) => {}
                SubscriptionMessage::CaughtUp(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(positions, expected);
    }
    a.append("cart-1", 1).await;
    for subscription in [&mut all, &mut some, &mut one] {
        let message = next(subscription).await.expect("going on");
        let SubscriptionMessage::Event { event, .. } = message else {
            panic!("{message:?}");
        };
        assert_eq!(event.position.0, 5_001);
    }
}

/// Goal: silence costs the same with one subscriber as with a thousand: one look per log and poll.
#[tokio::test(start_paused = true)]
async fn a_thousand_idle_subscribers_cost_only_the_poll() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    a.append("cart-1", 10).await;
    let mut subscriptions = Vec::new();
    for i in 0..1_000 {
        let mut subscription = match i % 2 {
            0 => a.subscribe(category("cart"), SubscribeFrom::End).await,
            _ => a.subscribe_stream("cart-1", SubscribeFrom::End).await,
        };
        until_caught_up(&mut subscription).await;
        subscriptions.push(tokio::spawn(async move { subscription.next().await }));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = a.faulty.calls().total();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let cost = a.faulty.calls().total() - before;
    assert!((11..=13).contains(&cost), "{cost} calls in a minute");
    for subscription in &subscriptions {
        subscription.abort();
    }
    for subscription in subscriptions {
        let _ = subscription.await;
    }
    assert_eq!(a.store.subscribers(), 0);
    let before = a.faulty.calls().total();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(a.faulty.calls().total(), before, "nobody is subscribed");
}

/// Goal: a burst reaches every subscriber, whole and in order, and is read from the database by none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_reaches_a_thousand_subscribers_without_reads() {
    let events = if cfg!(debug_assertions) {
        1_000
    } else {
        10_000
    };
    let mut reads = Vec::new();
    for subscribers in [10, 1_000] {
        let world = World::new(1);
        let mut config = Config::default();
        // A look at the end of the log while events are on their way may lead to a read.
        config.tail.poll_interval = Duration::from_secs(3_600);
        let a = Arc::new(process(&world, config));
        // The hub has found its place when it has sent some events. It goes on while anybody is subscribed.
        let mut first = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
        for position in 1..=3 {
            a.append("cart-1", 1).await;
            assert_eq!(positions(&mut first, 1).await, [position]);
        }
        let before = a.faulty.calls().read_log;
        let mut tasks = Vec::new();
        for _ in 0..subscribers {
            let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
            tasks.push(tokio::spawn(async move {
                for position in (1..=events).map(|number| 3 + number) {
                    assert_eq!(next_event(&mut subscription).await.position.0, position);
                }
            }));
        }
        let begun = Instant::now();
        for _ in 0..events / 100 {
            a.append_together("cart-1", 100).await;
        }
        for task in tasks {
            task.await.expect("received everything");
        }
        eprintln!(
            "{subscribers} subscribers x {events} events: {:?}",
            begun.elapsed()
        );
        reads.push(a.faulty.calls().read_log - before);
    }
    assert_eq!(reads, [0, 0]);
}

/// Goal: subscribers that come back from about the same place share their reads.
#[tokio::test]
async fn many_subscribers_from_the_same_place_share_pages() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    a.append_together("cart-1", 10_000).await;
    let mut subscriptions = Vec::new();
    for _ in 0..100 {
        subscriptions.push(a.subscribe(Filter::ALL, SubscribeFrom::Start).await);
    }
    let before = a.faulty.calls().read_log;
    join_all(subscriptions.iter_mut().map(|subscription| async move {
        assert_eq!(until_caught_up(subscription).await.0.len(), 10_000);
    }))
    .await;
    let reads = a.faulty.calls().read_log - before;
    assert!(reads < 300, "{reads} reads for 100 subscribers");
}

/// What happened: a subscriber that catches up asked for a page only when it had sent the one before. Goal: the next
/// page is read meanwhile, and no more.
#[tokio::test]
async fn the_next_page_is_read_while_one_is_used() {
    let world = World::new(1);
    let a = process(&world, small_ring(100));
    a.append_together("cart-1", 10_000).await;
    let before = a.faulty.calls().read_log;
    let reads = || a.faulty.calls().read_log - before;
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::Start).await;
    assert_eq!(positions(&mut subscription, 1).await, [1]);
    let two = async {
        while reads() < 2 {
            tokio::task::yield_now().await;
        }
    };
    let two = tokio::time::timeout(Duration::from_secs(60), two).await;
    two.expect("the second page is read");
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(reads(), 2);
    assert_eq!(positions(&mut subscription, 9_999).await, range(2..=10_000));
    // 1,024 events are the largest page.
    assert!(reads() <= 11, "{} reads", reads());
}

/// Goal: a database that is away for a while ends no subscription, whether it is live or catching up.
#[tokio::test(start_paused = true)]
async fn subscriptions_outlive_a_database_that_is_away() {
    let world = World::new(1);
    let (a, b) = (
        process(&world, small_ring(100)),
        process(&world, Config::default()),
    );
    a.append_together("cart-1", 500).await;
    let mut live = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    let mut catching_up = a.subscribe(category("cart"), SubscribeFrom::Start).await;
    let mut one = a.subscribe_stream("cart-1", SubscribeFrom::Start).await;
    a.faulty
        .fail_reads(|_| Some(Error::unavailable("the database is away")));
    b.append_together("cart-1", 500).await;
    let refused = a.store.subscribe(Subscribe {
        to: SubscribeTo::Stream(stream("cart-1")),
        from: SubscribeFrom::Start,
    });
    assert!(is_unavailable(Some(refused.await.map(|_| ()))));
    let back = a.faulty.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(40)).await;
        back.let_reads_succeed();
    });
    assert_eq!(positions(&mut live, 500).await, range(501..=1_000));
    assert_eq!(positions(&mut catching_up, 1_000).await, range(1..=1_000));
    assert_eq!(positions(&mut one, 1_000).await, range(1..=1_000));
}

/// Goal: dropping a subscription frees what it held; others go on.
#[tokio::test]
async fn dropped_subscriptions_are_forgotten() {
    let world = World::new(2);
    let a = process(&world, Config::default());
    let one = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    let mut other = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    let third = a.subscribe_stream("cart-1", SubscribeFrom::End).await;
    assert_eq!(a.store.subscribers(), 3);
    drop((one, third));
    assert_eq!(a.store.subscribers(), 1);
    a.append("cart-1", 2).await;
    assert_eq!(positions(&mut other, 2).await, [1, 2]);
}

/// Goal: shutting down ends every subscription, idle or not, with an error that says so.
#[tokio::test]
async fn shutdown_ends_subscriptions() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    let mut idle = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    let mut one = a.subscribe_stream("cart-1", SubscribeFrom::End).await;
    let mut unread = a.subscribe(Filter::ALL, SubscribeFrom::Start).await;
    until_caught_up(&mut idle).await;
    until_caught_up(&mut one).await;
    let waiting = tokio::spawn(async move { (idle.next().await, idle.next().await) });
    a.append("cart-2", 1).await;
    a.store.shutdown().await.expect("shut down");
    let (first, second) = waiting.await.expect("ended");
    let mut last = first;
    if let Some(Ok(SubscriptionMessage::Event { .. })) = last {
        last = second;
    }
    assert!(is_unavailable(last), "the idle one");
    assert!(is_unavailable(one.next().await));
    assert!(one.next().await.is_none());
    assert!(is_unavailable(unread.next().await));
    let refused = a.store.subscribe(Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::End,
    });
    assert!(is_unavailable(Some(refused.await.map(|_| ()))));
}

/// What happened: a second shutdown of the hub during the first, or after one that was given up, returned at once,
/// while the other processes were not told of the last commits yet; who then closed the database broke that off.
#[tokio::test(start_paused = true)]
async fn every_shutdown_returns_when_the_others_were_told() {
    let faulty = Faulty::start(&World::new(1), |backend| {
        let clock = Arc::new(SystemClock);
        let hub = Hub::start(Arc::clone(&backend), Config::default().tail, clock.clone());
        let config = gesta_append::Config::default();
        let pipeline = Pipeline::start(backend, LogId(0), config, clock, hub.clone());
        (hub, pipeline)
    });
    faulty.set_round_trip(Duration::from_millis(40));
    let (hub, pipeline) = &*faulty;
    let event = EventData::json(EventType::new("tested").expect("valid"), "{}");
    let append = Append::to(stream("cart-1"), ExpectedRevision::Any, vec![event]);
    pipeline.append(append).await.expect("appended");
    let shut_down = || async {
        hub.shutdown().await;
        faulty.messages()
    };
    let given_up = tokio::time::timeout(Duration::from_millis(1), shut_down());
    assert!(given_up.await.is_err(), "a message is under way");
    assert_eq!(tokio::join!(shut_down(), shut_down()), (1, 1));
    pipeline.shutdown().await.expect("shut down");
}

/// Starts a hub alone, which is told of the commits of a test.
fn hub_alone() -> Faulty<Arc<Hub>> {
    Faulty::start(&World::new(1), |backend| {
        Hub::start(backend, Config::default().tail, Arc::new(SystemClock))
    })
}

/// A committed batch with one event, at this position.
fn committed_at(position: u64) -> Arc<Batch> {
    let row = Row {
        position: Position(position),
        stream: stream("cart-1"),
        stream_row: RowId(1),
        revision: Revision(position - 1),
        id: EventId::random(),
        event_type: EventType::new("tested").expect("valid"),
        type_row: RowId(1),
        created: Timestamp(1),
        content_type: ContentType::Json,
        data: "{}".into(),
        packed: None,
        metadata: "".into(),
        tags: Tags::NONE,
    };
    let after = LogEnd {
        position: Position(position - 1),
        ..LogEnd::default()
    };
    Arc::new(Batch {
        log: LogId(0),
        after,
        rows: vec![row],
        new_streams: Vec::new(),
        new_types: Vec::new(),
    })
}

/// What happened: a commit before the task ran that tells the others of commits was told to nobody, until the next one.
#[tokio::test]
async fn a_commit_right_after_the_start_is_told() {
    let faulty = hub_alone();
    faulty.committed(&committed_at(1));
    faulty.shutdown().await;
    assert_eq!(faulty.messages(), 1);
}

/// Goal: after a fail-over that lost commits the others are told of new ones at once, and not only when the log has
/// become longer than it was.
#[tokio::test(start_paused = true)]
async fn commits_at_earlier_positions_than_before_are_told() {
    let faulty = hub_alone();
    faulty.committed(&committed_at(5));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(faulty.messages(), 1);
    faulty.begin_history();
    faulty.committed(&committed_at(3));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(faulty.messages(), 2);
    faulty.shutdown().await;
    assert_eq!(faulty.messages(), 2);
}

fn is_unavailable<T>(message: Option<Result<T>>) -> bool {
    message.is_some_and(|message| {
        message.is_err_and(|error| matches!(error.kind(), ErrorKind::Unavailable(_)))
    })
}

/// Goal: when a fail-over has lost commits, subscribers that have seen them are told, instead of
/// silently missing what now stands at the same positions.
#[tokio::test(start_paused = true)]
async fn a_log_that_moved_back_ends_its_subscribers() {
    let world = World::new(1);
    let a = process(&world, Config::default());
    let mut subscription = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    a.append("cart-1", 5).await;
    assert_eq!(positions(&mut subscription, 5).await, range(1..=5));
    world.lose_newest(LogId(0), 2);
    let error = next(&mut subscription).await.expect_err("ended");
    assert!(
        matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
        "{error}"
    );
    let mut again = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    let b = process(&world, Config::default());
    b.append("cart-1", 1).await;
    assert_eq!(positions(&mut again, 1).await, [4]);
}

/// Neither subscriptions nor reads begin at these checkpoints, of all events and of the stream `cart-1`.
async fn assert_refused(process: &Process, of_all: &Checkpoint, of_stream: &Checkpoint) {
    let from = SubscribeFrom::Checkpoint(of_all.clone());
    let all = process
        .store
        .subscribe(Subscribe {
            to: SubscribeTo::All(Filter::ALL),
            from,
        })
        .await;
    let from = SubscribeFrom::Checkpoint(of_stream.clone());
    let to = SubscribeTo::Stream(support::stream("cart-1"));
    let in_stream = Subscribe { to, from };
    let in_stream = process.store.subscribe(in_stream).await;
    let read = ReadAll::forwards().from(AllFrom::Checkpoint(of_all.clone()));
    let read = process.store.read_all(read).await.map(drop);
    for outcome in [all.map(drop), in_stream.map(drop), read] {
        let error = outcome.expect_err("refused");
        assert!(
            matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
            "{error}"
        );
    }
}

/// Goal: after lost commits nothing that the hub has kept is used, and the old checkpoints stay refused.
///
/// Others had filled the log up again beyond what was seen before anybody looked. Positions alone then looked right:
/// live subscribers went on after a gap, pages kept for those who catch up hid events of the new history, and a
/// checkpoint that was refused once was accepted as soon as the log had grown past it. Now the hub compares the number
/// of the history, and begins anew.
#[tokio::test(start_paused = true)]
async fn in_another_history_the_hub_begins_anew_and_old_checkpoints_are_refused_for_good() {
    let world = World::new(1);
    let (a, b) = (
        process(&world, small_ring(2)),
        process(&world, small_ring(2)),
    );
    a.faulty.lose_messages();
    a.append("cart-1", 40).await;
    // Pages are kept as long as anybody is subscribed.
    let mut live = a.subscribe(Filter::ALL, SubscribeFrom::End).await;
    let (_, old) = until_caught_up(&mut live).await;
    let mut stream = a.subscribe_stream("cart-1", SubscribeFrom::Start).await;
    let (events, old_in_stream) = until_caught_up(&mut stream).await;
    assert_eq!(events.len(), 40);
    let mut catching_up = a.subscribe(Filter::ALL, SubscribeFrom::Start).await;
    assert_eq!(positions(&mut catching_up, 10).await, range(1..=10));

    world.lose_newest(LogId(0), 35);
    b.append("other-1", 60).await;
    let other = world.end(LogId(0));
    assert!(other.position > Position(40));
    a.faulty.begin_history();
    for subscription in [&mut live, &mut stream, &mut catching_up] {
        let error = loop {
            // What was at hand already is of the old history, as its checkpoints are.
            match next(subscription).await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
            "{error}"
        );
    }
    for _ in 0..2 {
        assert_refused(&a, &old, &old_in_stream).await;
        b.append("other-1", 100).await;
    }
    let mut again = a.subscribe(Filter::ALL, SubscribeFrom::Start).await;
    let (events, _) = until_caught_up(&mut again).await;
    let names: Vec<&str> = events.iter().map(|event| event.stream.as_str()).collect();
    assert_eq!(names[..5], ["cart-1"; 5]);
    assert_eq!(names[5..], ["other-1"; 260]);
}
