//! The read model of the guide: what it makes of events, and what it is after its process was killed again and again.
#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

#[path = "../examples/read_model.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "the example has a main of its own"
)]
mod read_model;
#[path = "../examples/revenue.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "the example has a main of its own"
)]
mod revenue;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use gesta::projection::testing::{Given, History, Random};
use gesta::projection::{ApplyError, Config, OnPoison, Order, Projections, View, ViewReader};
use gesta::projection_sqlite::{SqliteTarget, rusqlite};
use gesta::{
    Checkpoint, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, Filter, Place,
    RecordedEvent,
};
use read_model::{Seats, SeatsRow};
use revenue::{Revenue, RevenueRow};

/// Where the process that is killed keeps its files; it is one only if this is set.
const FOLDER: &str = "GESTA_READ_MODEL_FOLDER";
const OVERFLOWS: &str = "GESTA_READ_MODEL_OVERFLOWS";
/// What the process says once it appends.
const BEGUN: &str = "the read model has begun";
const SEED: &str = "GESTA_READ_MODEL_SEED";

/// Given events, then rows: without a store and without a database.
#[test]
fn given_events_then_rows() {
    let history = History::new()
        .json("show-7", "created", r#"{"title":"Metropolis","free":100}"#)
        .json("show-7", "reserved", "{}")
        .json("show-7", "reserved", "{}")
        .json("show-8", "created", r#"{"title":"M","free":50}"#)
        .json("show-7", "cancelled", "{}")
        .json("show-8", "closed", "{}")
        .json("cart-1", "reserved", "{}");
    let rows = Given::events(Seats, history.events())
        .rows()
        .expect("readable");
    let metropolis = SeatsRow {
        title: "Metropolis".to_owned(),
        free: 99,
    };
    assert_eq!(
        rows.into_iter().collect::<Vec<_>>(),
        [("show-7".to_owned(), metropolis)]
    );
}

fn event(event_type: &str, data: &str) -> EventData {
    EventData::json(EventType::new(event_type).expect("valid"), data.to_owned())
}

fn url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("events.db").display())
}

async fn open(folder: &Path) -> Arc<dyn EventStore> {
    let store = gesta::open(&url(folder)).await.expect("the store opens");
    store.event_store()
}

/// The process that is killed: it appends, and runs the read model beside it, until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_that_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let seed = std::env::var(SEED)
        .expect("a seed")
        .parse()
        .expect("a number");
    let mut random = Random::seed(seed);
    let store = open(folder).await;
    let config = Config {
        lease: Duration::from_millis(60),
        look_every: Duration::from_millis(10),
        ..Config::default()
    };
    let projections = Projections::on(&store, SqliteTarget::at(folder.join("read.db")));
    let running = projections.config(config).view(Seats).start().await;
    let _running = running.expect("the read model begins");
    println!("{BEGUN}");
    loop {
        let stream = format!("show-{}", random.below(20));
        let events = (0..1 + random.below(5)).map(|_| match random.below(9) {
            0 => event("closed", "{}"),
            1 | 2 => event("created", r#"{"title":"M","free":100}"#),
            3 => event("cancelled", "{}"),
            _ => event("reserved", "{}"),
        });
        let appended = store
            .append_to(&stream, ExpectedRevision::Any, events)
            .await;
        appended.expect("appended");
    }
}

/// Rows and checkpoint, as a reader sees them in one transaction; `None` before there are any.
fn read(folder: &Path) -> Option<(Checkpoint, Vec<(String, SeatsRow)>)> {
    let mut reader = rusqlite::Connection::open(folder.join("read.db")).expect("opened");
    let reader = reader.transaction().expect("begun");
    let checkpoint = checkpoint_in(&reader)?;
    let sql = "SELECT show, title, free FROM seats ORDER BY show";
    let mut statement = reader.prepare(sql).expect("the view is there");
    let rows = statement.query_map([], |row| {
        let (title, free) = (row.get(1)?, row.get(2)?);
        Ok((row.get(0)?, SeatsRow { title, free }))
    });
    let rows = rows.expect("rows").map(|row| row.expect("a row")).collect();
    Some((checkpoint, rows))
}

fn checkpoint_in(reader: &rusqlite::Connection) -> Option<Checkpoint> {
    let sql = "SELECT checkpoint FROM gesta_projections WHERE name = 'seats'";
    let text: String = reader.query_row(sql, [], |row| row.get(0)).ok()?;
    Some(Checkpoint::from_str(&text).expect("a checkpoint"))
}

/// Waits until the rows have another checkpoint.
async fn until_moved(folder: &Path, before: Option<&Checkpoint>) {
    let has_moved = || {
        let reader = rusqlite::Connection::open(folder.join("read.db")).ok()?;
        checkpoint_in(&reader).filter(|now| Some(now) != before)
    };
    let has_moved = async || has_moved().is_some();
    gesta_kit::support::until("it comes on", Duration::from_secs(60), has_moved).await;
}

fn fold(events: &[RecordedEvent]) -> Vec<(String, SeatsRow)> {
    let rows = Given::events(Seats, events).rows().expect("readable");
    rows.into_iter().collect()
}

/// The process is killed at any moment, again and again; each time the rows are those of a clean fold of the events up
/// to the checkpoint, and at the end of all. `GESTA_READ_MODEL_KILLS=1000` kills more often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_survives_kill_9_at_any_moment() {
    let kills = std::env::var("GESTA_READ_MODEL_KILLS").ok();
    let kills: u64 = kills.map_or(25, |kills| kills.parse().expect("a number"));
    let folder = tempfile::tempdir().expect("a folder");
    gesta::schema::create(&url(folder.path()), 1)
        .await
        .expect("made");
    let mut random = Random::seed(kills);
    let (mut moved, mut before) = (0, None::<Checkpoint>);
    for kill in 0..kills {
        let mut process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "the_process_that_is_killed", "--nocapture"])
            .env(FOLDER, folder.path())
            .env(SEED, kill.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it begins");
        // Some die while they begin, some soon after that, the others while they are at it.
        let is_begun = !random.one_in(4);
        if is_begun {
            let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
            let begun = lines.map_while(Result::ok).any(|line| line.contains(BEGUN));
            assert!(begun, "it ended by itself");
        }
        if is_begun && !random.one_in(4) {
            until_moved(folder.path(), before.as_ref()).await;
        }
        tokio::time::sleep(Duration::from_millis(random.below(200))).await;
        assert!(
            process.try_wait().expect("known").is_none(),
            "it ended by itself"
        );
        process.kill().expect("killed");
        process.wait().expect("gone");
        let Some((checkpoint, rows)) = read(folder.path()) else {
            continue;
        };
        let store = open(folder.path()).await;
        let events = store.read_everything().await.expect("read");
        store.shutdown().await.expect("closed");
        let Place::Logs(places) = &checkpoint.place else {
            panic!("a checkpoint of all events")
        };
        let applied = events
            .iter()
            .take_while(|event| event.position <= places[0]);
        let applied: Vec<RecordedEvent> = applied.cloned().collect();
        assert_eq!(rows, fold(&applied), "after kill {kill}, at {places:?}");
        moved += u64::from(before.replace(checkpoint.clone()) != Some(checkpoint));
    }
    println!("it came on {moved} times in {kills} lives");
    assert!(
        moved * 3 > kills,
        "it came on only {moved} times in {kills} lives"
    );
    let store = open(folder.path()).await;
    let target = SqliteTarget::at(folder.path().join("read.db"));
    let running = Projections::on(&store, target)
        .view(Seats)
        .start()
        .await
        .expect("begins");
    let info = store.info().await.expect("info");
    let head = Checkpoint::logs(info.incarnation, info.heads);
    let whole = running
        .wait_for("seats", &head, Duration::from_secs(60))
        .await;
    whole.expect("it comes to the end");
    let events = store.read_everything().await.expect("read");
    let (_, rows) = read(folder.path()).expect("rows");
    assert_eq!(rows, fold(&events));
    running.shutdown().await;
}

/// The guide shows the examples as they are, and they are short.
#[test]
fn the_guide_shows_the_examples() {
    for (example, lines_max) in [
        (include_str!("../examples/read_model.rs"), 46),
        (include_str!("../examples/revenue.rs"), 65),
    ] {
        assert!(include_str!("../../../docs/guides/read-models.md").contains(example));
        let lines = example.lines().count();
        assert!(lines <= lines_max, "{lines}");
    }
}

/// Goal: a read model that is added later is built of all that happened before, beside the one that is there, and again
/// when it is reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_read_model_is_added_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let created = gesta::schema::create(&url(folder.path()), 1).await;
    created.expect("created");
    let store = open(folder.path()).await;
    let path = folder.path().join("read.db");
    let shows = |of: &str, titles: &[(&str, i64)]| {
        let mut events = vec![(format!("show-{of}"), "reserved", "{}".to_owned())];
        for (title, cents) in titles {
            let data = format!(r#"{{"title":"{title}","cents":{cents}}}"#);
            events.push((format!("show-{of}"), "paid", data));
        }
        events
    };
    let events = [
        shows("7", &[("Ran", 1_000), ("Ran", 1_250)]),
        shows("8", &[("Metropolis", 900), ("Ran", 50)]),
    ];
    for (stream, event_type, data) in events.into_iter().flatten() {
        let event = EventData::json(EventType::new(event_type).expect("valid"), data);
        let appended = store.append_to(&stream, ExpectedRevision::Any, vec![event]);
        appended.await.expect("appended");
    }
    let info = store.info().await.expect("info");
    let head = Checkpoint::logs(info.incarnation, info.heads);
    let within = Duration::from_secs(60);
    let first = Projections::on(&store, SqliteTarget::at(&path)).view(Seats);
    let first = first.start().await.expect("begins");
    first.wait_for("seats", &head, within).await.expect("whole");
    first.shutdown().await;

    let both = Projections::on(&store, SqliteTarget::at(&path));
    let both = both
        .view(Seats)
        .view(Revenue)
        .start()
        .await
        .expect("begins");
    both.wait_for("revenue", &head, within)
        .await
        .expect("whole");
    let events = store.read_everything().await.expect("read");
    let expected = Given::events(Revenue, &events).rows().expect("readable");
    let expected: Vec<((String, String), RevenueRow)> = expected.into_iter().collect();
    let sum = |of: fn(&RevenueRow) -> i64| expected.iter().map(|(_, row)| of(row)).sum::<i64>();
    assert_eq!((sum(|row| row.seats), sum(|row| row.cents)), (4, 3_200));
    let reader = ViewReader::<Revenue>::of(SqliteTarget::at(&path)).expect("plain names");
    assert_eq!(reader.page(None, 10).await.expect("a page"), expected);
    let id = both.ids().into_iter().find(|id| id.name == "revenue");
    let order = both.control();
    let order = order.order(id.as_ref().expect("it runs"), &Order::Reset, within);
    order.await.expect("reset");
    both.wait_for("revenue", &head, within)
        .await
        .expect("whole");
    assert_eq!(reader.page(None, 10).await.expect("a page"), expected);
    both.shutdown().await;
}

/// Its code overflows the stack at an event of type `deep`, which ends the process.
struct Deep;

fn descend(depth: u64) -> u64 {
    let room = std::hint::black_box([depth; 512]);
    if depth == u64::MAX {
        0
    } else {
        descend(depth + 1).wrapping_add(room[7])
    }
}

impl View for Deep {
    const NAME: &'static str = "deep";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = SeatsRow;

    fn filter(&self) -> Filter {
        Filter::ALL
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Seats.key(event)
    }

    fn evolve(&self, row: &mut Option<SeatsRow>, event: &RecordedEvent) -> Result<(), ApplyError> {
        let free = match event.event_type.as_str() {
            "deep" => i64::try_from(descend(0))?,
            _ => row.as_ref().map_or(1, |row| row.free + 1),
        };
        *row = Some(SeatsRow {
            title: "M".to_owned(),
            free,
        });
        Ok(())
    }
}

/// The process that the event kills; it ends well once everything is applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_that_overflows() {
    let Ok(folder) = std::env::var(OVERFLOWS) else {
        return;
    };
    let folder = Path::new(&folder);
    let store = open(folder).await;
    let config = Config {
        on_poison: OnPoison::Park,
        lease: Duration::from_millis(60),
        look_every: Duration::from_millis(10),
        ..Config::default()
    };
    let projections = Projections::on(&store, SqliteTarget::at(folder.join("read.db")));
    let running = projections
        .config(config)
        .view(Deep)
        .start()
        .await
        .expect("begins");
    let info = store.info().await.expect("info");
    let head = Checkpoint::logs(info.incarnation, info.heads);
    running
        .wait_for("deep", &head, Duration::from_secs(60))
        .await
        .expect("whole");
    running.shutdown().await;
}

/// Schedule 20, with a process: the event after which it ends is found by deaths alone: one in a batch of any size, one
/// in a batch that was announced, three of the event alone. Then it is parked, with the later one of its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_20_an_event_that_overflows_the_stack_is_parked() {
    let folder = tempfile::tempdir().expect("a folder");
    gesta::schema::create(&url(folder.path()), 1)
        .await
        .expect("made");
    let store = open(folder.path()).await;
    for n in 0..10 {
        let event = event(if n == 5 { "deep" } else { "noted" }, "{}");
        let stream = format!("show-{}", n % 4);
        let appended = store
            .append_to(&stream, ExpectedRevision::Any, vec![event])
            .await;
        appended.expect("appended");
    }
    store.shutdown().await.expect("closed");
    let mut deaths = 0;
    loop {
        let ended = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "the_process_that_overflows", "--nocapture"])
            .env(OVERFLOWS, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("it runs");
        if ended.success() {
            break;
        }
        deaths += 1;
        assert!(deaths < 10, "it dies for ever");
    }
    assert_eq!(deaths, 5);
    let reader = rusqlite::Connection::open(folder.path().join("read.db")).expect("opened");
    let rows = |sql: &str| -> Vec<(String, i64)> {
        let mut statement = reader.prepare(sql).expect("prepared");
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.expect("rows").map(|row| row.expect("a row")).collect()
    };
    let show = |n: u32, free: i64| (format!("show-{n}"), free);
    let expected = [show(0, 3), show(1, 1), show(2, 2), show(3, 2)];
    assert_eq!(rows("SELECT id, free FROM deep ORDER BY id"), expected);
    let parked = rows("SELECT key, position FROM gesta_projections_parked ORDER BY number");
    assert_eq!(parked, [show(1, 6), show(1, 10)]);
}
