//! What is lost, hidden or late: commits that a fail-over has lost, states that metadata hide, and requests because of
//! events that are out of date.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    Append, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, LogId, ReadStream,
    RecordedEvent, SetStreamMetadata, StreamId, StreamMetadata,
};
use gesta_kit::faulty::{Fault, World};
use gesta_timers::{Config, NewTimer, Phase};
use tokio::time::sleep;

use crate::support::{Fired, MINUTE, Process, after, append_requests, count_of, until};

pub(crate) const REQUESTS: &str = "$timers-{orders}";
pub(crate) const STATES: &str = "$timers-{orders}-state";

/// How the state reaches the database by which the owner stores all timers, while commits are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// After the requests were lost of which it tells.
    Later,
    /// Before, and it is lost with them; the owner is told that it is stored.
    Lost,
}

/// Goal: an owner that stores all timers while requests are lost of which they tell cuts nothing that is set later, and
/// loses no timer that the store has. It happened: the streams were cut at a request that was there no more, so what
/// was set afterwards was acknowledged and hidden.
#[tokio::test(start_paused = true)]
async fn what_is_set_after_a_loss_is_not_cut() {
    for kept in [Kept::Later, Kept::Lost] {
        let (world, fired) = (World::new(1), Fired::default());
        let config = Config {
            kept_every: 1,
            ..Config::default()
        };
        let [owner, other] = [(); 2].map(|()| Process::new(&world, config.clone()));
        let due = after(&world, 10 * MINUTE);
        for number in 0..20 {
            let timer = NewTimer::new(format!("k{}", number % 4), due);
            owner.timers.set(&timer).await.unwrap();
        }
        let running = owner.run(&fired);
        let status = running.status();
        until("all are pending", || status.borrow().pending == 4).await;
        sleep(Duration::from_secs(2)).await;
        let slow = Duration::from_secs(3);
        owner.store.fail_next_commit(match kept {
            Kept::Later => Fault::SlowRequest(slow),
            Kept::Lost => Fault::SlowReply(slow),
        });
        let set = |number: u32| format!(r#"{{"key":"lost-{}","due":"{due}"}}"#, number % 3);
        append_requests(&other, (0..6).map(set)).await;
        until("it stores them", || owner.store.commits_under_way() > 0).await;
        sleep(Duration::from_millis(10)).await;
        let lost = if kept == Kept::Lost { 7 } else { 6 };
        world.lose_newest(LogId(0), lost);
        if kept == Kept::Lost {
            sleep(slow).await;
        }
        for process in [&owner, &other] {
            process.store.begin_history();
        }
        sleep(Duration::from_secs(20)).await;
        assert_eq!(count_of(&world, REQUESTS).await, 20);
        for number in 0..6 {
            let timer = NewTimer::new(format!("new-{number}"), after(&world, MINUTE));
            other.timers.set(&timer).await.unwrap();
        }
        let keys = |of: &str| {
            let keys = fired.keys().into_iter();
            keys.filter(|key| key.starts_with(of)).count()
        };
        until("what is new has fired", || keys("new-") == 6).await;
        until("what was there has fired", || keys("k") == 4).await;
        assert_eq!(keys("lost"), 0, "{kept:?}");
    }
}

/// Goal: a cut that an owner sends after others have taken over, and after commits were lost, hides nothing: though the
/// last state has the number that the cut was meant for. It happened that all that was set before was hidden.
#[tokio::test(start_paused = true)]
async fn a_late_cut_of_another_history_hides_nothing() {
    let (world, fired) = (World::new(1), Fired::default());
    let config = |kept_every| Config {
        lease: Duration::from_secs(6),
        kept_every,
        ..Config::default()
    };
    let [late, other, third] = [6, 10_000, 10_000].map(|every| Process::new(&world, config(every)));
    let due = after(&world, 10 * MINUTE);
    let set = async |number: u32| {
        let timer = NewTimer::new(format!("k{number}"), due);
        other.timers.set(&timer).await.unwrap();
    };
    for number in 0..4 {
        set(number).await;
    }
    let is_cut = |append: &Append| append.streams[0].stream.as_str().starts_with("$$");
    late.gate.hold(is_cut);
    let running = late.run(&fired);
    let status = running.status();
    until("four are pending", || status.borrow().pending == 4).await;
    for number in 4..6 {
        set(number).await;
    }
    until("it is about to cut", || late.gate.held() == 1).await;
    let states = || states_of(&world);
    let last: Vec<String> = states()
        .iter()
        .map(|state| state["does"].to_string())
        .collect();
    assert!(last.len() == 2 && last[1].contains("kept"), "{last:?}");
    // The state that makes the cut right is lost, and the last request.
    world.lose_newest(LogId(0), 2);
    for process in [&late, &other, &third] {
        process.store.begin_history();
    }
    let others = other.run(&fired);
    let status = others.status();
    until("the other one fires", || status.borrow().pending == 5).await;
    assert_eq!(
        states().len(),
        2,
        "the last state has the number of the lost one"
    );
    late.gate.release();
    sleep(Duration::from_secs(1)).await;
    drop((running, others));
    assert_eq!(third.timers.pending().await.unwrap().len(), 5);
    let set_before = |key: String| key.starts_with('k');
    let _running = third.run(&fired);
    until("all have fired", || {
        fired
            .keys()
            .into_iter()
            .filter(|key| set_before(key.clone()))
            .count()
            == 5
    })
    .await;
}

/// Returns what the stream of states holds.
fn states_of(world: &World) -> Vec<serde_json::Value> {
    let stored = world.stored();
    let states = stored
        .iter()
        .filter(|one| one.event.stream.as_str() == STATES);
    states.map(|one| one.event.json().unwrap()).collect()
}

/// What a fail-over loses while the owner is about to store that a timer has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loses {
    /// The request by which the timer was set, and what its handler has stored. Both are made again.
    Request,
    /// Only what the handler has stored.
    Command,
}

/// Goal: that a timer has fired does not count in a history of the store that has lost what its handler has done. It
/// happened that it was stored there, because the last state had the same number, and the timer never fired again.
#[tokio::test(start_paused = true)]
async fn what_has_fired_in_a_lost_history_fires_again() {
    for loses in [Loses::Request, Loses::Command] {
        let world = World::new(1);
        let [owner, caller] = [(); 2].map(|()| Process::new(&world, Config::default()));
        let due = after(&world, 60 * MINUTE);
        let waits = NewTimer::new("waits", due);
        caller.timers.set(&waits).await.unwrap();
        let cause = events(&caller, 1).await.remove(0);
        owner.gate.hold(|append| {
            let event = &append.streams[0].events[0];
            std::str::from_utf8(&event.data).is_ok_and(|data| data.contains("fired"))
        });
        let store = owner.store.share();
        let running = owner.timers.run(move |_| {
            let store = Arc::clone(&store);
            async move {
                let done = EventData::json(EventType::new("done")?, "1");
                store
                    .append_to("done", ExpectedRevision::Any, [done])
                    .await?;
                Ok(())
            }
        });
        let status = running.as_ref().unwrap().status();
        until("it owns the timers", || status.borrow().pending == 1).await;
        let timer = NewTimer::because_of(&cause, "fires", after(&world, Duration::ZERO));
        caller.timers.set(&timer).await.unwrap();
        until("it has fired", || owner.gate.held() == 1).await;
        let newest: Vec<String> = world
            .stored()
            .iter()
            .rev()
            .take(2)
            .map(|one| one.event.stream.to_string())
            .collect();
        assert_eq!(newest, ["done", REQUESTS]);
        world.lose_newest(LogId(0), if loses == Loses::Request { 2 } else { 1 });
        for process in [&owner, &caller] {
            process.store.begin_history();
        }
        if loses == Loses::Request {
            caller.timers.set(&timer).await.unwrap();
        }
        assert_eq!(count_of(&world, REQUESTS).await, 2);
        owner.gate.release();
        sleep(MINUTE).await;
        assert_eq!(count_of(&world, "done").await, 1, "{loses:?}");
        let pending = caller.timers.pending().await.unwrap();
        let keys: Vec<&str> = pending.iter().map(|timer| timer.key.as_str()).collect();
        assert_eq!(keys, ["waits"], "{loses:?}");
    }
}

/// Goal: what an owner stores of requests that are lost changes nothing of what the store has: what was kept before
/// counts, with all that has fired since. A request is lost as well if one with its id stands in its place, which was
/// stored later. States of earlier versions, which do not say up to which request timers have fired, are read.
#[tokio::test(start_paused = true)]
async fn what_was_stored_of_lost_requests_does_not_count() {
    let (world, fired) = (World::new(1), Fired::default());
    let process = Process::new(&world, Config::default());
    let due = after(&world, 10 * MINUTE);
    for key in ["a", "b", "c"] {
        process.timers.set(&NewTimer::new(key, due)).await.unwrap();
    }
    let set: Vec<RecordedEvent> = world.stored().into_iter().map(|one| one.event).collect();
    let [a, b, c] = [0, 1, 2].map(|number: usize| set[number].id.0);
    let last = &set[2];
    let through =
        |id: &str, created: i64| format!(r#"{{"revision":2,"id":"{id}","created":{created}}}"#);
    let there = through(&c.to_string(), last.created.0);
    let early = format!(r#"{{"revision":2,"id":"{c}"}}"#);
    let lost = [
        through("00000000-0000-0000-0000-000000000001", last.created.0),
        // It was set again because of the same event, so it has the same id.
        through(&c.to_string(), last.created.0 - 1),
    ];
    let has_fired = |id: uuid::Uuid, through: &str| {
        format!(r#"{{"fired":{{"ids":["{id}"],"through":{through}}}}}"#)
    };
    let kept = |through: &str, timers: &str| {
        format!(r#"{{"kept":{{"part":0,"of":1,"through":{through},"timers":[{timers}]}}}}"#)
    };
    let timer =
        |id: uuid::Uuid, key: &str| format!(r#"{{"id":"{id}","key":"{key}","due":"{due}"}}"#);
    let mut states = vec![
        (format!(r#"{{"fired":{{"ids":["{a}"]}}}}"#), &["b", "c"][..]),
        (has_fired(b, &there), &["c"]),
    ];
    for lost in &lost {
        states.extend([
            (has_fired(c, lost), &["c"][..]),
            (kept(lost, ""), &["c"]),
            (format!(r#"{{"idle":{{"through":{lost}}}}}"#), &["c"]),
        ]);
    }
    let of_two = format!("{},{}", timer(b, "b"), timer(c, "c"));
    states.push((kept(&early, &of_two), &["b", "c"]));
    states.push((has_fired(b, &there), &["c"]));
    let of_type = EventType::new("timers-state").unwrap();
    for (number, (does, expected)) in states.into_iter().enumerate() {
        let state = format!(r#"{{"owner":null,"does":{does}}}"#);
        let event = EventData::json(of_type.clone(), state);
        let appended = process
            .store
            .append_to(STATES, ExpectedRevision::Any, vec![event]);
        appended.await.unwrap();
        let pending = process.timers.pending().await.unwrap();
        let keys: Vec<&str> = pending.iter().map(|timer| timer.key.as_str()).collect();
        assert_eq!(keys, expected, "{number}: {does}");
    }
    let _running = process.run(&fired);
    until("it has fired", || !fired.all().is_empty()).await;
    sleep(10 * MINUTE).await;
    assert_eq!(fired.keys(), ["c"]);
}

/// Sets the metadata of a stream as an operator does.
pub(crate) async fn set_metadata(
    process: &Process,
    stream: &str,
    metadata: &str,
) -> gesta_core::Result<()> {
    let request = SetStreamMetadata {
        stream: StreamId::new(stream).unwrap(),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(metadata.to_owned()).unwrap(),
    };
    process.store.set_stream_metadata(request).await.map(drop)
}

/// Goal: states that an operator has hidden are told of, and stop nothing: what is set fires, at the price of a few
/// calls for each lease. It happened that each process claimed the timers in a loop, and none ever fired.
#[tokio::test(start_paused = true)]
async fn hidden_states_stop_no_timer() {
    for metadata in [r#"{"$maxAge":600}"#, r#"{"$tb":100000}"#] {
        let (world, fired) = (World::new(1), Fired::default());
        let processes = [(); 2].map(|()| Process::new(&world, Config::default()));
        let running = processes[0].run(&fired);
        let first = NewTimer::new("first", after(&world, MINUTE));
        processes[0].timers.set(&first).await.unwrap();
        let status = running.status();
        until("it has fired", || fired.keys() == ["first"]).await;
        until("it is idle", || status.borrow().phase == Phase::Idle).await;
        running.shutdown().await;
        set_metadata(&processes[1], STATES, metadata).await.unwrap();
        sleep(60 * MINUTE).await;
        let running = [0, 1].map(|number: usize| processes[number].run(&fired));
        let is_told = || {
            running.iter().any(|one| {
                let status = one.status();
                let error = status.borrow().error.clone();
                error.is_some_and(|error| error.contains(STATES))
            })
        };
        until("it is told", is_told).await;
        for key in ["a", "b"] {
            let timer = NewTimer::new(key, after(&world, MINUTE));
            processes[1].timers.set(&timer).await.unwrap();
            until("it has fired", || fired.keys().contains(&key.to_owned())).await;
            let calls = || -> u64 {
                let all = processes.iter();
                all.map(|one| one.store.calls().read_stream).sum()
            };
            let before = calls();
            let leases = 40;
            sleep(leases * Config::default().lease).await;
            let made = calls() - before;
            assert!(made < u64::from(20 * leases), "{metadata}: {made}");
        }
    }
}

/// Appends events to a stream, and returns them.
pub(crate) async fn events(process: &Process, count: usize) -> Vec<RecordedEvent> {
    let shared: Arc<dyn EventStore> = process.store.share();
    let of_type = EventType::new("seat").unwrap();
    for _ in 0..count {
        let event = EventData::json(of_type.clone(), "1");
        let appended = shared.append_to("seats", ExpectedRevision::Any, vec![event]);
        appended.await.unwrap();
    }
    let seats = ReadStream::forwards(StreamId::new("seats").unwrap());
    shared.read_stream(seats).await.unwrap().events
}

/// When another process takes over from the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restart {
    Never,
    Killed,
    Idle,
}

/// Goal: a request because of an event that is out of date changes nothing, also if what it is late for has fired or
/// was a cancellation, and whoever owns the timers by then. It happened that a timer pended after a restart, and fired,
/// that had been refused before.
#[tokio::test(start_paused = true)]
async fn what_is_out_of_date_never_fires() {
    for restart in [Restart::Never, Restart::Killed, Restart::Idle] {
        let (world, fired) = (World::new(1), Fired::default());
        let process = Process::new(&world, Config::default());
        let timers = &process.timers;
        let events = events(&process, 6).await;
        let mut running = process.run(&fired);
        let status = running.status();
        let due = after(&world, MINUTE);
        let cause = |number: usize, key: &str| NewTimer::because_of(&events[number], key, due);
        timers.set(&cause(5, "fires")).await.unwrap();
        timers
            .cancel_because_of(&events[4], "cancelled")
            .await
            .unwrap();
        timers.set(&cause(3, "fires")).await.unwrap();
        until("the first one has fired", || fired.keys() == ["fires"]).await;
        sleep(Duration::from_secs(1)).await;
        match restart {
            Restart::Never => {}
            Restart::Killed => {
                drop(running);
                running = process.run(&fired);
            }
            Restart::Idle => {
                until("it is idle", || status.borrow().phase == Phase::Idle).await;
            }
        }
        for key in ["fires", "cancelled"] {
            timers.set(&cause(3, key)).await.unwrap();
            timers.set(&cause(2, key)).await.unwrap();
            timers.cancel_because_of(&events[1], key).await.unwrap();
        }
        sleep(5 * MINUTE).await;
        assert_eq!(fired.keys(), ["fires"], "{restart:?}");
        assert!(timers.pending().await.unwrap().is_empty(), "{restart:?}");
        // What is set because of a later event does fire, and so does what is set because of none.
        timers.set(&cause(5, "cancelled")).await.unwrap();
        timers.set(&NewTimer::new("fires", due)).await.unwrap();
        until("both have fired", || fired.all().len() == 3).await;
        drop(running);
    }
}

/// Goal: of a timer that was stored together with the others it stays known because of which event it was set, when it
/// has fired and its owner has nothing to do any more. It happened that this was forgotten with the timer, and a
/// request that was out of date fired after a restart.
#[tokio::test(start_paused = true)]
async fn what_has_fired_after_it_was_kept_says_what_is_out_of_date() {
    let (world, fired) = (World::new(1), Fired::default());
    let config = Config {
        kept_every: 5,
        ..Config::default()
    };
    let process = Process::new(&world, config);
    let events = events(&process, 6).await;
    let running = process.run(&fired);
    let status = running.status();
    let due = after(&world, MINUTE);
    let cause = |number: usize| NewTimer::because_of(&events[number], "a", due);
    process.timers.set(&cause(5)).await.unwrap();
    until("it has fired", || fired.keys() == ["a"]).await;
    until("it is idle", || status.borrow().phase == Phase::Idle).await;
    let does: Vec<serde_json::Value> = states_of(&world)
        .into_iter()
        .map(|state| state["does"].clone())
        .collect();
    let kept: Vec<&serde_json::Value> = does
        .iter()
        .filter(|does| does.get("kept").is_some())
        .collect();
    assert!(
        kept.len() == 1 && kept[0]["kept"]["timers"][0]["key"] == "a",
        "{does:?}"
    );
    assert!(does.last().unwrap().get("idle").is_some(), "{does:?}");
    process.timers.set(&cause(4)).await.unwrap();
    assert!(process.timers.pending().await.unwrap().is_empty());
    sleep(5 * MINUTE).await;
    assert_eq!(fired.keys(), ["a"]);
    process.timers.set(&NewTimer::new("a", due)).await.unwrap();
    until("what is set because of none fires", || {
        fired.all().len() == 2
    })
    .await;
}

/// Goal: a request says in which life of the store its event is there, unless another life has begun since the process
/// has named the first one: then it may have read the event before.
#[tokio::test(start_paused = true)]
async fn a_request_names_the_life_of_its_event() {
    let world = World::new(1);
    let process = Process::new(&world, Config::default());
    let events = events(&process, 1).await;
    let due = after(&world, MINUTE);
    let set = async |key: &str| {
        let timer = NewTimer::because_of(&events[0], key, due);
        process.timers.set(&timer).await.unwrap();
        let stored = world.stored();
        let last = stored.last().unwrap();
        let json = last.event.json::<serde_json::Value>().unwrap();
        json["because"]["incarnation"].as_str().map(str::to_owned)
    };
    let life = world.incarnation().0.to_string();
    assert_eq!(set("a").await, Some(life));
    process.store.begin_history();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(set("b").await, None);
}
