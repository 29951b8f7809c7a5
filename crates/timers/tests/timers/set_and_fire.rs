//! What is set, replaced and cancelled, what a handler is called with and when, and what is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gesta_core::{
    Append, ErrorKind, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision,
    ReadStream, StreamId, Timestamp,
};
use gesta_kit::faulty::{RandomFaults, World};
use gesta_timers::{Config, NewTimer, Phase, Timer, Timers};
use tokio::time::sleep;

use crate::support::{Fired, MINUTE, Process, after, append_requests, count_of, until};

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
        let wrong = process.clock.clone();
        move |timer| {
            fired.note(timer, clock.now());
            wrong.set(-1_000_000_000_000);
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
        format!(
            r#"{{"key":"e","due":"{due}","data":{}0{}}}"#,
            "[".repeat(65),
            "]".repeat(65)
        ),
    ];
    append_requests(&process, requests.clone()).await;
    let running = process.run(&fired);
    let status = running.status();
    until("five are skipped", || status.borrow().skipped == 5).await;
    let error = status.borrow().error.clone().unwrap();
    assert!(
        error.contains("revision 5 ") && error.contains("64 levels deep"),
        "{error}"
    );
    assert!(error.len() < 500, "{error}");
    append_requests(&process, requests[..3].to_vec()).await;
    until("it has heard of more", || status.borrow().skipped == 7).await;
    let error = status.borrow().error.clone().unwrap();
    assert!(error.contains("revision 8 "), "{error}");
    // What happened: a cancellation had no bound, so its key stayed in memory however long it was.
    let cancelled = EventType::new("timer-cancelled").unwrap();
    let long = EventData::json(cancelled, format!(r#"{{"key":"{}"}}"#, "k".repeat(257)));
    let appended = process
        .store
        .append_to("$timers-{orders}", ExpectedRevision::Any, vec![long]);
    appended.await.unwrap();
    until("it is skipped too", || status.borrow().skipped == 8).await;
    assert_eq!(process.timers.pending().await.unwrap().len(), 1);
    until("it has fired", || fired.keys() == ["a"]).await;
}

/// Goal: what a timer carries fires as the text that was set, the order of keys and the digits of numbers included,
/// also after all timers were stored together. What no Rust type holds is not lost, and holds up no other timer.
#[tokio::test(start_paused = true)]
async fn what_a_timer_carries_stays_as_it_was_written() {
    let (world, fired) = (World::new(1), Fired::default());
    let config = Config {
        kept_every: 1,
        ..Config::default()
    };
    let process = Process::new(&world, config);
    let texts = [
        r#"{"b":0.10,  "a":1e400,"b":"\ud800"}"#,
        "123456789012345678901234567890",
        r#"[ ]"#,
    ];
    let due = after(&world, 10 * MINUTE);
    let set =
        |(key, text): (usize, &str)| format!(r#"{{"key":"{key}","data":{text},"due":"{due}"}}"#);
    append_requests(&process, texts.into_iter().enumerate().map(set)).await;
    let own = serde_json::value::RawValue::from_string("1.50".to_owned()).unwrap();
    let own = NewTimer::new("own", due).with_data(&own).unwrap();
    process.timers.set(&own).await.unwrap();
    process
        .timers
        .set(&NewTimer::new("without", due))
        .await
        .unwrap();
    let running = process.run(&fired);
    until("they are stored together", || {
        running.status().borrow().phase == Phase::Firing
    })
    .await;
    sleep(5 * MINUTE).await;
    running.shutdown().await;
    let _running = process.run(&fired);
    let expected = [texts[0], texts[1], texts[2], "1.50", "null"];
    let pending = process.timers.pending().await.unwrap();
    let carried: Vec<&str> = pending.iter().map(|timer| timer.data().get()).collect();
    assert_eq!(carried, expected);
    until("all have fired", || fired.all().len() == 5).await;
    let mut all = fired.all();
    all.sort_by(|a, b| a.0.key.cmp(&b.0.key));
    let carried: Vec<&str> = all.iter().map(|(timer, _)| timer.data().get()).collect();
    assert_eq!(carried, expected);
    assert!(all[0].0.json::<serde_json::Value>().is_err());
    assert_eq!(all[3].0.json::<f64>().unwrap(), 1.5);
    all[4].0.json::<()>().unwrap();
}

/// What happened: the pending timers were bounded in number alone, and anybody who may append to the stream decides how
/// much each carries. Goal: what they take together is bounded; what is beyond is read once some have fired, `status()`
/// names the bound meanwhile, and every timer fires once.
#[tokio::test(start_paused = true)]
async fn pending_timers_are_bounded_in_bytes() {
    let (world, fired) = (World::new(1), Fired::default());
    let config = Config {
        pending_bytes_max: 16_384,
        ..Config::default()
    };
    let process = Process::new(&world, config);
    let data = format!("[{}0]", "0,".repeat(2_000));
    let set = |number: u32| {
        let due = after(&world, (number + 1) * MINUTE);
        format!(r#"{{"key":"t{number:02}","due":"{due}","data":{data}}}"#)
    };
    append_requests(&process, (0..20).map(set)).await;
    let running = process.run(&fired);
    let status = running.status();
    until("there is no more room", || status.borrow().error.is_some()).await;
    let now = status.borrow().clone();
    assert!((2..4).contains(&now.pending), "{now:?}");
    let told = now.error.unwrap();
    let rule = format!(
        "{} timers are pending with {} bytes, and with one more they must have at most 16384 (pending_bytes_max)",
        now.pending, now.pending_bytes
    );
    assert!(told.starts_with(&rule), "{told}");
    assert_eq!(process.timers.pending().await.unwrap().len(), now.pending);
    let all_have_fired = || {
        assert!(status.borrow().pending_bytes <= 16_384);
        status.borrow().fired == 20
    };
    until("all have fired", all_have_fired).await;
    let keys: Vec<String> = (0..20).map(|number| format!("t{number:02}")).collect();
    assert_eq!(fired.keys(), keys);
    until("none is pending", || status.borrow().pending_bytes == 0).await;
    assert_eq!(status.borrow().error, None);
}

/// Goal: what somebody else has written among the states stops no timer, and as deep data as may be are kept and read
/// again.
#[tokio::test(start_paused = true)]
async fn states_that_cannot_be_read_stop_nothing() {
    let (world, fired) = (World::new(1), Fired::default());
    let process = Process::new(&world, Config::default());
    let mut data = serde_json::Value::Null;
    for _ in 0..64 {
        data = serde_json::json!([data]);
    }
    let timer = NewTimer::new("deep", after(&world, MINUTE));
    let timer = timer.with_data(&data).unwrap();
    process.timers.set(&timer).await.unwrap();
    let states = StreamId::new("$timers-{orders}-state").unwrap();
    let of_type = EventType::new("timers-state").unwrap();
    let timer = r#"{"id":"00000000-0000-0000-0000-000000000001","key":"k","due":"never"}"#;
    for stranger in [
        r#"{"owner":1}"#.to_owned(),
        // It happened that a time that cannot be read stopped all owners.
        format!(
            r#"{{"owner":null,"does":{{"kept":{{"part":0,"of":1,"through":null,"timers":[{timer}]}}}}}}"#
        ),
    ] {
        let event = EventData::json(of_type.clone(), stranger);
        let append = Append::to(states.clone(), ExpectedRevision::Any, vec![event]);
        process.store.append(append).await.unwrap();
        assert_eq!(process.timers.pending().await.unwrap().len(), 1);
        let running = process.run(&fired);
        until("it has claimed", || {
            running.status().borrow().phase == Phase::Firing
        })
        .await;
        running.shutdown().await;
    }
    let _running = process.run(&fired);
    until("it has fired", || fired.keys() == ["deep"]).await;
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
    let nothing = Config {
        firing_max: 0,
        ..Config::default()
    };
    let narrow = Config {
        pending_bytes_max: 16_383,
        ..Config::default()
    };
    for (config, field) in [(nothing, "firing_max"), (narrow, "pending_bytes_max")] {
        let error = timers.clone().config(config).run(|_| async { Ok(()) });
        assert!(error.unwrap_err().to_string().contains(field));
    }
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
