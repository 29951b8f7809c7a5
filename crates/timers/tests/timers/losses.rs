//! What is lost, hidden or late: commits that a fail-over has lost, states that metadata hide, and requests because of
//! events that are out of date.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, LogId, ReadStream,
    RecordedEvent, SetStreamMetadata, StreamId, StreamMetadata,
};
use gesta_testkit::faulty::{Fault, World};
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

/// Goal: what an owner stores of requests that are lost changes nothing of what the store has: what was kept before
/// counts, with all that has fired since.
#[tokio::test(start_paused = true)]
async fn what_was_kept_of_lost_requests_does_not_count() {
    let (world, fired) = (World::new(1), Fired::default());
    let process = Process::new(&world, Config::default());
    let due = after(&world, 10 * MINUTE);
    for key in ["a", "b"] {
        process.timers.set(&NewTimer::new(key, due)).await.unwrap();
    }
    let a = world.stored()[0].event.id.0;
    let lost = "00000000-0000-0000-0000-000000000001";
    let through = format!(r#"{{"revision":1,"id":"{lost}"}}"#);
    let owner = r#""owner":null"#;
    let states = [
        format!(r#"{{{owner},"does":{{"fired":{{"ids":["{a}"]}}}}}}"#),
        format!(
            r#"{{{owner},"does":{{"kept":{{"part":0,"of":1,"through":{through},"timers":[]}}}}}}"#
        ),
        format!(r#"{{{owner},"does":{{"idle":{{"through":{through}}}}}}}"#),
    ];
    let of_type = EventType::new("timers-state").unwrap();
    for (number, state) in states.into_iter().enumerate() {
        let event = EventData::json(of_type.clone(), state);
        let appended = process
            .store
            .append_to(STATES, ExpectedRevision::Any, vec![event]);
        appended.await.unwrap();
        let pending = process.timers.pending().await.unwrap();
        let keys: Vec<&str> = pending.iter().map(|timer| timer.key.as_str()).collect();
        assert_eq!(keys, ["b"], "{number}");
    }
    let _running = process.run(&fired);
    until("it has fired", || !fired.all().is_empty()).await;
    sleep(10 * MINUTE).await;
    assert_eq!(fired.keys(), ["b"]);
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
