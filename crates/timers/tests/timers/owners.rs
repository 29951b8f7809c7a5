//! Who fires: one process of several, what it pays for that, and what it stores for the next one.

use std::collections::HashSet;
use std::time::Duration;

use gesta_core::{
    EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, LogId, ReadStream, StreamId,
};
use gesta_kit::depth;
use gesta_kit::faulty::World;
use gesta_timers::{Config, NewTimer, Phase, RunningTimers};
use tokio::time::{Instant, sleep};

use crate::support::{Fired, MINUTE, Process, after, append_requests, count_of, until};

/// Goal: what dies is replaced after its lease, and what ends in good order at once; what has fired and was stored does
/// not fire again.
#[tokio::test(start_paused = true)]
async fn another_process_takes_over() {
    let (world, fired) = (World::new(1), Fired::default());
    let [one, two, three] = [(); 3].map(|()| Process::new(&world, Config::default()));
    let first = one.run(&fired);
    one.timers
        .set(&NewTimer::new("a", after(&world, MINUTE)))
        .await
        .unwrap();
    let status = first.status();
    until("the first one fires", || {
        status.borrow().phase == Phase::Firing
    })
    .await;
    let second = two.run(&fired);
    let status = second.status();
    until("the second one stands by", || {
        status.borrow().phase == Phase::StandingBy
    })
    .await;
    drop(first);
    until("the second one has fired", || fired.keys() == ["a"]).await;
    let due = after(&world, MINUTE);
    two.timers.set(&NewTimer::new("b", due)).await.unwrap();
    let third = three.run(&fired);
    let status = third.status();
    until("the third one stands by", || {
        status.borrow().phase == Phase::StandingBy
    })
    .await;
    second.shutdown().await;
    let released = Instant::now();
    until("the third one fires", || {
        status.borrow().phase == Phase::Firing
    })
    .await;
    assert!(
        released.elapsed() < Duration::from_secs(1),
        "{:?}",
        released.elapsed()
    );
    until("the third one has fired", || fired.keys() == ["a", "b"]).await;
    third.shutdown().await;
    let last = one.run(&fired);
    sleep(10 * MINUTE).await;
    assert_eq!(fired.keys(), ["a", "b"]);
    assert_eq!(last.status().borrow().phase, Phase::Idle);
}

/// Goal: without timers nobody fires, nothing is stored and nothing is asked of the database. The first timer wakes one
/// of the processes.
#[tokio::test(start_paused = true)]
async fn an_idle_store_pays_nothing() {
    let (world, fired) = (World::new(1), Fired::default());
    let processes = [(); 2].map(|()| Process::new(&world, Config::default()));
    let running = [0, 1].map(|number: usize| processes[number].run(&fired));
    processes[0]
        .timers
        .set(&NewTimer::new("a", after(&world, MINUTE)))
        .await
        .unwrap();
    until("it has fired", || fired.keys() == ["a"]).await;
    let is_idle = |one: &RunningTimers| one.status().borrow().phase == Phase::Idle;
    until("both are idle", || running.iter().all(is_idle)).await;
    let states = count_of(&world, "$timers-{orders}-state").await;
    let calls = || {
        processes
            .iter()
            .map(|one| one.store.calls().read_stream)
            .sum::<u64>()
    };
    let before = calls();
    sleep(120 * MINUTE).await;
    assert_eq!(count_of(&world, "$timers-{orders}-state").await, states);
    assert_eq!(calls(), before);
    processes[1]
        .timers
        .set(&NewTimer::new("b", after(&world, MINUTE)))
        .await
        .unwrap();
    until("it has fired", || fired.keys() == ["a", "b"]).await;
}

/// Goal: a process whose start takes many leases keeps the timers, and no two take them from each other for ever.
#[tokio::test(start_paused = true)]
async fn a_long_start_loses_no_timers() {
    let (world, fired) = (World::new(1), Fired::default());
    let config = Config {
        lease: Duration::from_secs(6),
        ..Config::default()
    };
    let [one, two] = [(); 2].map(|()| Process::new(&world, config.clone()));
    let due = after(&world, 60 * MINUTE);
    let request = |number: u32| format!(r#"{{"key":"{number}","due":"{due}"}}"#);
    append_requests(&one, (0..100).map(request)).await;
    for process in [&one, &two] {
        process.store.set_round_trip(Duration::from_secs(1));
        process.store.set_page_bytes_max(1);
    }
    let begun = Instant::now();
    let running = [&one, &two].map(|process| process.run(&fired));
    let is_firing = |one: &RunningTimers| one.status().borrow().pending == 100;
    until("one has read them all", || running.iter().any(is_firing)).await;
    assert!(begun.elapsed() > 5 * config.lease, "{:?}", begun.elapsed());
    let states = StreamId::new("$timers-{orders}-state").unwrap();
    let owners: HashSet<String> = world
        .stored()
        .into_iter()
        .filter(|one| one.event.stream == states)
        .map(|one| one.event.json::<serde_json::Value>().unwrap()["owner"].to_string())
        .collect();
    assert_eq!(owners.len(), 1, "{owners:?}");
}

/// Goal: the timers that are stored together are as many events as keep each of them small, and none is lost.
#[tokio::test(start_paused = true)]
async fn large_timers_are_stored_in_small_parts() {
    let (world, fired) = (World::new(1), Fired::default());
    let config = Config {
        kept_every: 1,
        ..Config::default()
    };
    let process = Process::new(&world, config);
    let due = after(&world, 60 * MINUTE);
    let data = "x".repeat(4_000);
    let request = |number: u32| format!(r#"{{"key":"{number}","due":"{due}","data":"{data}"}}"#);
    append_requests(&process, (0..900).map(request)).await;
    let running = process.run(&fired);
    let status = running.status();
    until("all are pending", || status.borrow().pending == 900).await;
    running.shutdown().await;
    let states = StreamId::new("$timers-{orders}-state").unwrap();
    let stored = world.stored();
    let of = stored.iter().filter(|one| one.event.stream == states);
    let bytes: Vec<usize> = of.map(|one| one.event.data.len()).collect();
    assert!(bytes.iter().all(|bytes| *bytes < 1_100_000), "{bytes:?}");
    assert!(bytes.iter().sum::<usize>() > 900 * 4_000, "{bytes:?}");
    assert_eq!(process.timers.pending().await.unwrap().len(), 900);
}

/// Goal: many timers start soon, and cost next to nothing while they wait.
#[tokio::test(start_paused = true)]
async fn many_timers_start_soon_and_cost_little() {
    let (world, fired) = (World::new(1), Fired::default());
    let process = Process::new(&world, Config::default());
    let due = after(&world, 600 * MINUTE);
    let of_type = EventType::new("timer-set").unwrap();
    for thousand in 0..100 {
        let timer = |number: u32| {
            let key = format!("order-{}", thousand * 1_000 + number);
            let data = format!(r#"{{"key":"{key}","due":"{due}"}}"#);
            EventData::json(of_type.clone(), data)
        };
        let events: Vec<EventData> = (0..1_000).map(timer).collect();
        let appended = process
            .store
            .append_to("$timers-{orders}", ExpectedRevision::Any, events);
        appended.await.unwrap();
    }
    // The first start reads all requests, and stores the timers together.
    let running = process.run(&fired);
    let status = running.status();
    until("all are pending", || status.borrow().pending == 100_000).await;
    running.shutdown().await;
    let another = Process::new(&world, Config::default());
    let begun = std::time::Instant::now();
    let running = another.run(&fired);
    let status = running.status();
    until("all are pending", || status.borrow().pending == 100_000).await;
    depth::in_time(
        "100,000 timers start",
        begun.elapsed(),
        Duration::from_secs(1),
    );
    let calls = another.store.calls();
    let states = count_of(&world, "$timers-{orders}-state").await;
    let while_waiting = 10 * MINUTE;
    sleep(while_waiting).await;
    let queries = another.store.calls().read_stream - calls.read_stream;
    let appends = count_of(&world, "$timers-{orders}-state").await - states;
    assert_eq!(queries, 0);
    let per_lease = while_waiting.as_secs() / Config::default().lease.as_secs();
    assert!(appends as u64 <= 3 * per_lease + 3, "{appends}");
    assert!(fired.all().is_empty());
}

/// Goal: with little memory, and with streams that are cut all the time, every timer fires once.
#[tokio::test(start_paused = true)]
async fn streams_are_cut_and_memory_is_bounded() {
    let (world, fired) = (World::new(1), Fired::default());
    let config = Config {
        pending_max: 7,
        kept_every: 5,
        firing_max: 2,
        ..Config::default()
    };
    let process = Process::new(&world, config);
    let mut running = process.run(&fired);
    for number in 0..200_u32 {
        let due = after(&world, Duration::from_millis(u64::from(number % 37) * 100));
        let timer = NewTimer::new(format!("t{number}"), due);
        process.timers.set(&timer).await.unwrap();
        assert!(running.status().borrow().pending <= 7);
        if number % 41 == 40 {
            running.shutdown().await;
            running = process.run(&fired);
        }
        sleep(Duration::from_millis(20)).await;
    }
    until("all have fired", || fired.all().len() >= 200).await;
    let mut keys = fired.keys();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 200);
    assert_eq!(
        fired.all().len(),
        200,
        "nothing was killed, so each fires once"
    );
    let readable = process.timers.pending().await.unwrap();
    assert!(readable.is_empty());
    for stream in ["$timers-{orders}", "$timers-{orders}-state"] {
        let stream = StreamId::new(stream).unwrap();
        let page = process
            .store
            .read_stream(ReadStream::forwards(stream))
            .await
            .unwrap();
        assert!(page.events.len() < 30, "{}", page.events.len());
    }
}

/// Goal: after commits were lost the timers are those that the store holds; what is set then fires, though an owner and
/// others that stand by know of requests that are gone.
#[tokio::test(start_paused = true)]
async fn after_a_loss_the_timers_are_those_of_the_store() {
    for is_idle in [false, true] {
        let (world, fired) = (World::new(1), Fired::default());
        let process = Process::new(&world, Config::default());
        let due = after(&world, MINUTE);
        process
            .timers
            .set(&NewTimer::new("kept", due))
            .await
            .unwrap();
        let end = world.end(LogId(0)).position;
        let running = process.run(&fired);
        let status = running.status();
        until("it fires", || status.borrow().phase == Phase::Firing).await;
        for number in 0..20 {
            let timer = NewTimer::new(format!("lost-{number}"), due);
            process.timers.set(&timer).await.unwrap();
        }
        if is_idle {
            until("all have fired", || status.borrow().phase == Phase::Idle).await;
        }
        let lost = world.end(LogId(0)).position.0 - end.0;
        world.lose_newest(LogId(0), usize::try_from(lost).unwrap());
        process.store.begin_history();
        let before = fired.all().len();
        sleep(Duration::from_secs(1)).await;
        let new = NewTimer::new("new", after(&world, MINUTE));
        process.timers.set(&new).await.unwrap();
        until("what is there has fired", || {
            let keys = fired.keys();
            let there = keys[before..].to_vec();
            there.contains(&"new".to_owned()) && there.contains(&"kept".to_owned())
        })
        .await;
        assert_eq!(fired.all().len() - before, 2, "{:?}", fired.keys());
    }
}
