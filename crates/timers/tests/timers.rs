//! Timers on stores whose processes die, whose database fails, and whose clocks are wrong; time is virtual.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::{
    Clock, ErrorKind, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, LogId,
    ReadStream, StreamId, Timestamp,
};
use gesta_testkit::depth;
use gesta_testkit::faulty::{FaultyStore, Random, RandomFaults, World};
use gesta_timers::{Config, NewTimer, Phase, RunningTimers, Timer, Timers};
use tokio::time::{Instant, sleep, timeout};

const MINUTE: Duration = Duration::from_secs(60);

/// A clock that is wrong by as much as a test says.
struct WrongClock {
    right: Arc<dyn Clock>,
    error: AtomicI64,
}

impl Clock for WrongClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.right.now().0 + self.error.load(Ordering::Relaxed))
    }
}

/// What has fired, and when.
#[derive(Clone, Default)]
struct Fired(Arc<Mutex<Vec<(Timer, Timestamp)>>>);

impl Fired {
    fn note(&self, timer: Timer, now: Timestamp) {
        self.0.lock().unwrap().push((timer, now));
    }

    fn all(&self) -> Vec<(Timer, Timestamp)> {
        self.0.lock().unwrap().clone()
    }

    fn keys(&self) -> Vec<String> {
        self.all().into_iter().map(|(timer, _)| timer.key).collect()
    }
}

/// A process: its store, its clock, and its timers.
struct Process {
    store: FaultyStore,
    clock: Arc<WrongClock>,
    timers: Timers,
}

impl Process {
    fn new(world: &Arc<World>, config: Config) -> Self {
        let store = world.store();
        let clock = Arc::new(WrongClock {
            right: world.clock(),
            error: AtomicI64::new(0),
        });
        let shared: Arc<dyn EventStore> = store.share();
        let timers = Timers::on(&shared, "orders").unwrap().config(config);
        Self {
            timers: timers.clock(Arc::clone(&clock) as Arc<dyn Clock>),
            store,
            clock,
        }
    }

    /// Fires, and notes what has fired by the right time.
    fn run(&self, fired: &Fired) -> RunningTimers {
        let (fired, right) = (fired.clone(), self.store.world().clock());
        let noted = move |timer| {
            fired.note(timer, right.now());
            async { Ok(()) }
        };
        self.timers.run(noted).unwrap()
    }
}

fn after(world: &World, time: Duration) -> Timestamp {
    Timestamp(world.clock().now().0 + i64::try_from(time.as_micros()).unwrap())
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waited = async {
        while !is_so() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(60 * MINUTE, waited).await.is_ok(), "{what}");
}

async fn count_of(world: &Arc<World>, stream: &str) -> usize {
    let stream = StreamId::new(stream).unwrap();
    let is_it = |event: &&gesta_testkit::faulty::StoredEvent| event.event.stream == stream;
    world.stored().iter().filter(is_it).count()
}

/// Goal: a timer fires at its time, with what it carries; one that is replaced at its new time; one that is cancelled
/// not at all.
#[tokio::test(start_paused = true)]
async fn timers_fire_at_their_time() {
    let world = World::new(1);
    let (process, fired) = (Process::new(&world, Config::default()), Fired::default());
    let running = process.run(&fired);
    let timers = &process.timers;
    let dues = [10, 20, 30].map(|minutes| after(&world, minutes * MINUTE));
    let paid = NewTimer::new("a", dues[1]).with_data(&("seat", 7)).unwrap();
    timers.set(&paid).await.unwrap();
    timers.set(&NewTimer::new("b", dues[0])).await.unwrap();
    timers.set(&NewTimer::new("c", dues[0])).await.unwrap();
    timers.set(&NewTimer::new("c", dues[2])).await.unwrap();
    timers.set(&NewTimer::new("d", dues[0])).await.unwrap();
    timers.cancel("d").await.unwrap();
    let pending = timers.pending().await.unwrap();
    let keys: Vec<&str> = pending.iter().map(|timer| timer.key.as_str()).collect();
    assert_eq!(keys, ["b", "a", "c"]);
    until("all have fired", || fired.all().len() == 3).await;
    assert_eq!(fired.keys(), ["b", "a", "c"]);
    for ((timer, at), due) in fired.all().into_iter().zip(dues) {
        assert_eq!(timer.due, due);
        assert!(
            at >= due && at <= Timestamp(due.0 + 2_000_000),
            "{due}: {at}"
        );
    }
    let carried: (String, u32) = fired.all()[1].0.json().unwrap();
    assert_eq!(carried, ("seat".to_owned(), 7));
    // One whose time has passed fires at once.
    timers.set(&NewTimer::new("e", Timestamp(0))).await.unwrap();
    until("it has fired", || {
        fired.keys().last().is_some_and(|key| key == "e")
    })
    .await;
    let status = running.status();
    let is_done = || status.borrow().fired == 4 && status.borrow().pending == 0;
    until("nothing is pending", is_done).await;
    assert!(timers.pending().await.unwrap().is_empty());
}

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

/// Goal: what was cancelled, or set anew, before its time does not fire, although the process that fires was not told
/// of it: it reads before it fires.
#[tokio::test(start_paused = true)]
async fn what_was_cancelled_elsewhere_does_not_fire() {
    let (world, fired) = (World::new(1), Fired::default());
    let [one, two] = [(); 2].map(|()| Process::new(&world, Config::default()));
    let running = one.run(&fired);
    for key in ["a", "b", "c"] {
        one.timers
            .set(&NewTimer::new(key, after(&world, MINUTE)))
            .await
            .unwrap();
    }
    let status = running.status();
    until("three are pending", || status.borrow().pending == 3).await;
    one.store.random_faults_of(RandomFaults {
        messages: 1.0,
        ..RandomFaults::new(1, 0.0)
    });
    sleep(MINUTE - Duration::from_millis(100)).await;
    two.timers.cancel("a").await.unwrap();
    two.timers
        .set(&NewTimer::new("b", after(&world, MINUTE)))
        .await
        .unwrap();
    until("two have fired", || fired.all().len() == 2).await;
    assert_eq!(fired.keys(), ["c", "b"]);
    assert!(fired.all()[1].1 >= fired.all()[1].0.due);
}

/// Goal: a handler that fails or panics is called again, after pauses that grow; the others are not held up. The key of
/// its command is the same each time.
#[tokio::test(start_paused = true)]
async fn a_handler_that_fails_is_called_again() {
    let (world, fired) = (World::new(1), Fired::default());
    let config = Config {
        firing_max: 1,
        ..Config::default()
    };
    let process = Process::new(&world, config);
    let attempts = Arc::new(AtomicU32::new(0));
    let noted = {
        let (fired, attempts) = (fired.clone(), Arc::clone(&attempts));
        let clock = world.clock();
        move |timer: Timer| {
            fired.note(timer.clone(), clock.now());
            let attempts = Arc::clone(&attempts);
            async move {
                if timer.key != "bad" {
                    return Ok(());
                }
                match attempts.fetch_add(1, Ordering::Relaxed) {
                    0 => panic!("on purpose"),
                    1..=7 => Err("not yet".into()),
                    _ => Ok(()),
                }
            }
        }
    };
    let running = process.timers.run(noted).unwrap();
    let due = after(&world, MINUTE);
    process
        .timers
        .set(&NewTimer::new("bad", due))
        .await
        .unwrap();
    for key in ["good-1", "good-2"] {
        let later = Timestamp(due.0 + 500_000);
        process
            .timers
            .set(&NewTimer::new(key, later))
            .await
            .unwrap();
    }
    let status = running.status();
    until("it fails", || status.borrow().failing == 1).await;
    assert!(status.borrow().error.is_some());
    until("the others have fired", || status.borrow().fired == 2).await;
    until("it has fired", || status.borrow().fired == 3).await;
    assert_eq!(status.borrow().failing, 0);
    let all = fired.all();
    let bad: Vec<_> = all.iter().filter(|(timer, _)| timer.key == "bad").collect();
    let keys: Vec<String> = bad.iter().map(|(timer, _)| timer.command_key()).collect();
    assert!(keys.len() == 9 && keys.iter().all(|key| *key == keys[0]));
    let pauses: Vec<i64> = bad
        .windows(2)
        .map(|two| (two[1].1.0 - two[0].1.0) / 1_000_000)
        .collect();
    assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 32, 60]);
}

/// Goal: what an effect does again after a crash, or a process that stood still does late, undoes nothing that was done
/// because of later events.
#[tokio::test(start_paused = true)]
async fn what_is_done_again_undoes_nothing() {
    let (world, fired) = (World::new(1), Fired::default());
    let process = Process::new(&world, Config::default());
    let timers = &process.timers;
    let shared: Arc<dyn EventStore> = process.store.share();
    let of_type = EventType::new("seat").unwrap();
    for _ in 0..4 {
        let event = EventData::json(of_type.clone(), "1");
        let appended = shared.append_to("seats", ExpectedRevision::Any, vec![event]);
        appended.await.unwrap();
    }
    let seats = ReadStream::forwards(StreamId::new("seats").unwrap());
    let events = shared.read_stream(seats).await.unwrap().events;
    // Reserved, given back, reserved anew.
    let times = [10, 0, 20].map(|minutes| after(&world, minutes * MINUTE));
    let perform = async |number: usize| match number {
        1 => timers.cancel_because_of(&events[1], "a").await.unwrap(),
        _ => {
            let timer = NewTimer::because_of(&events[number], "a", times[number]);
            timers.set(&timer).await.unwrap();
        }
    };
    for _ in 0..2 {
        for number in 0..3 {
            perform(number).await;
        }
        let pending = timers.pending().await.unwrap();
        let dues: Vec<Timestamp> = pending.iter().map(|timer| timer.due).collect();
        assert_eq!(dues, [times[2]]);
        assert_eq!(count_of(&world, "$timers-{orders}").await, 3);
    }
    // Of other events of the key, which nobody has handled until now, the later one counts.
    timers.cancel_because_of(&events[0], "a").await.unwrap();
    let late = NewTimer::because_of(&events[1], "a", times[0]);
    timers.set(&late).await.unwrap();
    assert_eq!(timers.pending().await.unwrap()[0].due, times[2]);
    // So it is for an owner that starts from timers that were stored together.
    let config = Config {
        kept_every: 1,
        ..Config::default()
    };
    let running = timers.clone().config(config).run({
        let (fired, clock) = (fired.clone(), world.clock());
        move |timer| {
            fired.note(timer, clock.now());
            async { Ok(()) }
        }
    });
    let running = running.unwrap();
    sleep(5 * MINUTE).await;
    running.shutdown().await;
    let running = process.run(&fired);
    let late = NewTimer::because_of(&events[1], "a", times[0])
        .with_data(&1)
        .unwrap();
    timers.set(&late).await.unwrap();
    timers.cancel_because_of(&events[0], "a").await.unwrap();
    until("it has fired", || !fired.all().is_empty()).await;
    assert_eq!(fired.all()[0].0.due, times[2]);
    // A later event does cancel, also what was set because of none.
    let later = after(&world, MINUTE);
    timers.set(&NewTimer::new("a", later)).await.unwrap();
    timers
        .set(&NewTimer::because_of(&events[2], "b", later))
        .await
        .unwrap();
    for key in ["a", "b"] {
        timers.cancel_because_of(&events[3], key).await.unwrap();
    }
    sleep(10 * MINUTE).await;
    assert_eq!(fired.all().len(), 1);
    drop(running);
}

/// Goal: timers of two names that are set because of one event, under one key, give commands of two keys.
#[tokio::test(start_paused = true)]
async fn commands_of_two_names_have_two_keys() {
    let world = World::new(1);
    let process = Process::new(&world, Config::default());
    let shared: Arc<dyn EventStore> = process.store.share();
    let names = [
        Timers::on(&shared, "orders").unwrap(),
        Timers::on(&shared, "bills").unwrap(),
        Timers::on(&shared, "orders")
            .unwrap()
            .keep_in("own-")
            .unwrap(),
    ];
    let event = EventData::json(EventType::new("placed").unwrap(), "1");
    let appended = shared.append_to("order-7", ExpectedRevision::Any, vec![event]);
    appended.await.unwrap();
    let order = ReadStream::forwards(StreamId::new("order-7").unwrap());
    let cause = shared.read_stream(order).await.unwrap().events.remove(0);
    let timer = NewTimer::because_of(&cause, "7", after(&world, MINUTE));
    let mut keys = Vec::new();
    for timers in &names {
        timers.set(&timer).await.unwrap();
        timers.set(&timer).await.unwrap();
        let pending = timers.pending().await.unwrap();
        assert_eq!(pending.len(), 1);
        keys.push(pending[0].command_key());
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), names.len());
}

/// Goal: a clock that is set back does not delay the next attempt of a handler that has failed.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_delays_no_attempt() {
    let (world, fired) = (World::new(1), Fired::default());
    let process = Process::new(&world, Config::default());
    let attempts = Arc::new(AtomicU32::new(0));
    let noted = {
        let (fired, attempts, clock) = (fired.clone(), Arc::clone(&attempts), world.clock());
        let wrong = Arc::clone(&process.clock);
        move |timer| {
            fired.note(timer, clock.now());
            wrong.error.store(-1_000_000_000_000, Ordering::Relaxed);
            let is_first = attempts.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                match is_first {
                    true => Err("not yet".into()),
                    false => Ok(()),
                }
            }
        }
    };
    let _running = process.timers.run(noted).unwrap();
    let timer = NewTimer::new("a", after(&world, MINUTE));
    process.timers.set(&timer).await.unwrap();
    until("it has fired again", || fired.all().len() == 2).await;
    let pause = fired.all()[1].1.0 - fired.all()[0].1.0;
    assert!((1_000_000..2_000_000).contains(&pause), "{pause}");
}

/// Appends requests that are made by hand.
async fn append_requests(process: &Process, requests: impl IntoIterator<Item = String>) {
    let of_type = EventType::new("timer-set").unwrap();
    let event = |data| EventData::json(of_type.clone(), data);
    let events: Vec<EventData> = requests.into_iter().map(event).collect();
    let stream = "$timers-{orders}";
    let appended = process
        .store
        .append_to(stream, ExpectedRevision::Any, events);
    appended.await.unwrap();
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

/// Goal: requests that cannot be read or break a bound are skipped and told of, and hold up no other timer.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_holds_up_nothing() {
    let (world, fired) = (World::new(1), Fired::default());
    let process = Process::new(&world, Config::default());
    let due = after(&world, MINUTE);
    let set = |key: &str, data: &str| format!(r#"{{"key":"{key}","due":"{due}","data":"{data}"}}"#);
    let requests = [
        "1".to_owned(),
        set("a", ""),
        r#"{"key":"b","due":"tomorrow"}"#.to_owned(),
        set("c", &"x".repeat(1_000_000)),
        set(&"d".repeat(300), ""),
    ];
    append_requests(&process, requests.clone()).await;
    let running = process.run(&fired);
    let status = running.status();
    until("four are skipped", || status.borrow().skipped == 4).await;
    let error = status.borrow().error.clone().unwrap();
    assert!(
        error.contains("revision 4 ") && error.contains("key"),
        "{error}"
    );
    append_requests(&process, requests[..3].to_vec()).await;
    until("it has heard of more", || status.borrow().skipped == 6).await;
    let error = status.borrow().error.clone().unwrap();
    assert!(error.contains("revision 7 "), "{error}");
    assert_eq!(process.timers.pending().await.unwrap().len(), 1);
    until("it has fired", || fired.keys() == ["a"]).await;
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

/// Goal: wrong input is refused, with what is wrong; a timer that is set twice, as after a lost answer, is one.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_set_is_refused() {
    let world = World::new(1);
    let process = Process::new(&world, Config::default());
    let shared: Arc<dyn EventStore> = process.store.share();
    for name in ["", "A", "1a", "a-b", "a/b", &"a".repeat(41)] {
        assert!(Timers::on(&shared, name).is_err(), "{name}");
    }
    let timers = &process.timers;
    let now = world.clock().now();
    let long = NewTimer::new("a", now)
        .with_data(&"x".repeat(4_095))
        .unwrap();
    for (timer, field) in [
        (NewTimer::new("", now), "key"),
        (NewTimer::new("a\n", now), "key"),
        (NewTimer::new("k".repeat(257), now), "key"),
        (NewTimer::new("a", Timestamp(-1)), "due"),
        (NewTimer::new("a", Timestamp(i64::MAX)), "due"),
        (long, "data"),
    ] {
        let error = timers.set(&timer).await.unwrap_err();
        let ErrorKind::InvalidArgument { field: of, .. } = error.kind() else {
            panic!("{error}");
        };
        assert_eq!(of, field);
    }
    assert!(timers.cancel("").await.is_err());
    let config = Config {
        firing_max: 0,
        ..Config::default()
    };
    let nothing = timers.clone().config(config);
    assert!(nothing.run(|_| async { Ok(()) }).is_err());
    assert!(world.stored().is_empty());
    let once = NewTimer::new("a", after(&world, MINUTE));
    timers.set(&once).await.unwrap();
    timers.set(&once).await.unwrap();
    assert_eq!(timers.pending().await.unwrap().len(), 1);
    // The same cause and the same key are the same timer, whoever handles the event.
    let page = shared.read_stream(ReadStream::forwards(
        StreamId::new("$timers-{orders}").unwrap(),
    ));
    let cause = page.await.unwrap().events.remove(0);
    for _ in 0..2 {
        let timer = NewTimer::because_of(&cause, "b", after(&world, MINUTE));
        timers.set(&timer).await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    timers
        .set(&NewTimer::because_of(&cause, "c", now))
        .await
        .unwrap();
    assert_eq!(count_of(&world, "$timers-{orders}").await, 3);
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

/// What the caller of a random history knows of a key.
#[derive(Default)]
struct Known {
    /// The number of the timer that was set last.
    last: Option<u64>,
    /// Whether the outcome of a request is unknown: it may yet be stored, and replace or cancel the last one.
    is_doubtful: bool,
}

/// Goal: whatever dies, fails and is wrong, each timer that is set fires at least once, never before its time by more
/// than the error of the clocks, and none that was cancelled or replaced in time. Its commands have one key.
#[tokio::test(start_paused = true)]
async fn random_histories_lose_no_timer() {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut random = Random::new(seed);
    for round in 0..depth::count(8, 200) {
        let share = *random.pick(&[0.0, 0.05, 0.2]);
        play(random.fork(), share).await.unwrap_or_else(|why| {
            panic!("GESTA_SEED={seed}, round {round}: {why}");
        });
    }
}

async fn play(mut random: Random, share: f64) -> Result<(), String> {
    const ERROR: i64 = 3_000_000;
    let (world, fired) = (World::new(1), Fired::default());
    let config = Config {
        lease: Duration::from_secs(6),
        firing_max: 1 + random.below(4),
        kept_every: *random.pick(&[1, 10, 10_000]),
        pending_max: *random.pick(&[3, 1_000_000]),
        back_off: (Duration::from_millis(100), Duration::from_secs(1)),
    };
    let start = |random: &mut Random| {
        let process = Process::new(&world, config.clone());
        process.store.random_faults_of(RandomFaults {
            slow_max: Duration::from_millis(300),
            away_max: Duration::from_secs(2),
            ..RandomFaults::new(random.number(), share)
        });
        let (noted, clock) = (fired.clone(), world.clock());
        let dice = Mutex::new(random.fork());
        let running = process.timers.run(move |timer| {
            noted.note(timer, clock.now());
            let (fails, slow) = {
                let mut dice = dice.lock().unwrap();
                (dice.chance(0.1), dice.duration(Duration::from_millis(500)))
            };
            async move {
                sleep(slow).await;
                if fails {
                    Err("on purpose".into())
                } else {
                    Ok(())
                }
            }
        });
        (process, Some(running.unwrap()))
    };
    let mut nodes: Vec<_> = (0..2 + random.below(2))
        .map(|_| start(&mut random))
        .collect();
    let mut known: HashMap<String, Known> = HashMap::new();
    // By number: the key, and the right time from which on it must not fire any more.
    let mut ended: HashMap<u64, Timestamp> = HashMap::new();
    let mut numbers = 0;
    for _ in 0..40 {
        let which = random.below(nodes.len());
        let key = format!("k{}", random.below(6));
        match random.below(10) {
            0..=4 => {
                numbers += 1;
                let due = after(&world, random.duration(Duration::from_secs(30)));
                let timer = NewTimer::new(key.clone(), due).with_data(&numbers).unwrap();
                let set = nodes[which].0.timers.set(&timer).await;
                let of = known.entry(key).or_default();
                match set.map_err(|error| error.kind().clone()) {
                    Ok(()) => {
                        let now = world.clock().now();
                        let former = of.last.replace(numbers);
                        ended.extend(former.map(|number| (number, now)));
                    }
                    Err(ErrorKind::OutcomeUnknown(_)) => of.is_doubtful = true,
                    Err(_) => {}
                }
            }
            5..=6 => {
                let cancelled = nodes[which].0.timers.cancel(&key).await;
                let of = known.entry(key).or_default();
                match cancelled.map_err(|error| error.kind().clone()) {
                    Ok(()) => {
                        let now = world.clock().now();
                        ended.extend(of.last.take().map(|number| (number, now)));
                    }
                    Err(ErrorKind::OutcomeUnknown(_)) => of.is_doubtful = true,
                    Err(_) => {}
                }
            }
            7 => {
                // A process dies, or ends in good order, and another one takes its place.
                let (_, running) = &mut nodes[which];
                if let Some(running) = running.take()
                    && random.chance(0.3)
                {
                    let _ = timeout(MINUTE, running.shutdown()).await;
                }
                nodes[which] = start(&mut random);
            }
            8 => {
                let error = i64::try_from(random.below(6_000_000)).unwrap() - ERROR;
                nodes[which].0.clock.error.store(error, Ordering::Relaxed);
            }
            _ => sleep(random.duration(Duration::from_secs(10))).await,
        }
    }
    for (process, _) in &nodes {
        process.store.heal();
    }
    let must: Vec<u64> = known
        .values()
        .filter(|of| !of.is_doubtful)
        .filter_map(|of| of.last)
        .collect();
    let number_of = |timer: &Timer| timer.data.as_u64().unwrap();
    let waited = timeout(10 * MINUTE, async {
        loop {
            let numbers: Vec<u64> = fired
                .all()
                .iter()
                .map(|(timer, _)| number_of(timer))
                .collect();
            if must.iter().all(|number| numbers.contains(number)) {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
    });
    if waited.await.is_err() {
        return Err(format!("of {must:?} have fired {:?}", fired.keys()));
    }
    let mut commands: HashMap<u64, String> = HashMap::new();
    for (timer, at) in fired.all() {
        let number = number_of(&timer);
        if at.0 < timer.due.0 - ERROR {
            return Err(format!("{timer:?} has fired at {at}"));
        }
        // With too little memory a request may not be read when the timer fires.
        if let Some(ended) = ended.get(&number)
            && ended.0 < timer.due.0 - ERROR
            && config.pending_max > 3
        {
            return Err(format!(
                "{timer:?} has fired at {at}, but was no more at {ended}"
            ));
        }
        let command = commands
            .entry(number)
            .or_insert_with(|| timer.command_key());
        if *command != timer.command_key() {
            return Err(format!("{timer:?} had the command {command}"));
        }
    }
    for (_, running) in nodes {
        drop(running);
    }
    Ok(())
}

/// Goal: timers of several names, and in streams of other names, do not meet.
#[tokio::test(start_paused = true)]
async fn names_are_apart() {
    let (world, fired) = (World::new(1), Fired::default());
    let process = Process::new(&world, Config::default());
    let shared: Arc<dyn EventStore> = process.store.share();
    let others = Timers::on(&shared, "others")
        .unwrap()
        .keep_in("timers-")
        .unwrap();
    let others = others.clock(world.clock());
    let due = after(&world, MINUTE);
    process.timers.set(&NewTimer::new("a", due)).await.unwrap();
    others.set(&NewTimer::new("b", due)).await.unwrap();
    let _running = process.run(&fired);
    sleep(10 * MINUTE).await;
    assert_eq!(fired.keys(), ["a"]);
    assert_eq!(others.pending().await.unwrap().len(), 1);
    assert_eq!(count_of(&world, "timers-{others}").await, 1);
    let noted = fired.clone();
    let clock = world.clock();
    let _others = others.run(move |timer| {
        noted.note(timer, clock.now());
        async { Ok(()) }
    });
    until("it has fired", || fired.keys() == ["a", "b"]).await;
}
