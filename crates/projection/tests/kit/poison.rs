//! Events that cannot be applied: found, tried, and then as the author wants it.

use std::collections::HashSet;
use std::time::Duration;

use gesta_core::{EventStoreExt, Filter, RecordedEvent};
use gesta_projection::testing::{Fate, Faulty, Through};
use gesta_projection::{ApplyError, Config, OnPoison, Order, Phase, State, Target, View, columns};

use super::fixtures::{Balances, journal_of, of_category, seen};
use super::world::{AT_ALL, World, id, parking, quick, until, until_phase, until_so};
use crate::flavour::{EVERY, Journal};

/// What happened: while a table of a projection with SQL of its own was renamed, or a right on it was missing, each
/// event that came was taken for one that cannot be applied, and skipped for good. Now it waits, as the rows of a view
/// do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_missing_is_no_fault_of_an_event() {
    let world = World::new().await;
    let skipping = Config {
        on_poison: OnPoison::Skip,
        ..quick()
    };
    let process = world.process(skipping).projection(Through(Journal)).start();
    let process = process.await.expect("started");
    world.append_many(5).await;
    world.applies_all(&process, "journal").await;
    let journal = id("journal", 1);
    let rename = |from: &str, to: &str| format!("ALTER TABLE {from} RENAME TO {to}");
    let away = rename("journal_v1", "journal_gone");
    world.database.execute(&away).await;
    world.append_many(5).await;
    let failed = until(&process, &journal, |progress| progress.failures >= 10).await;
    assert_eq!(failed.phase, Phase::TargetAway, "{failed:?}");
    let why = failed.error.expect("a reason");
    assert!(why.contains("journal_v1"), "{why}");
    let row = world.row("journal").await;
    assert_eq!((row.state, row.events), (State::Running, 5));
    let back = rename("journal_gone", "journal_v1");
    world.database.execute(&back).await;
    world.applies_all(&process, "journal").await;
    let events = world.store.read_everything().await.expect("read");
    let expected = journal_of(&events, &HashSet::new());
    assert_eq!(seen(&world.database, "journal").await.1, expected);
    assert!(world.parked(&journal).await.is_empty());
    process.shutdown().await;
}

/// Schedule 17: poison at the first, in the middle, at the last event of a batch. By default the projection stops
/// before it, says so, and goes on when the event can be applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_17_it_stops_before_the_event_and_says_why() {
    for at in [0, 15, 29] {
        let world = World::new().await;
        for n in 0..30 {
            let amount = if n == at { "no number" } else { "2" };
            world
                .append(&format!("account-{}", n % 7), "added", amount)
                .await;
        }
        let process = world.started(quick(), Balances).await;
        let balances = id("balances", 1);
        let stopped = until_phase(&process, &balances, Phase::Stopped).await;
        let why = stopped.error.expect("a reason");
        let place = format!(
            "position {} of log 0 could not be applied in 3 attempts",
            at + 1
        );
        assert!(why.contains(&place), "{why}");
        let row = world.row("balances").await;
        assert_eq!(
            (row.state, row.error.as_deref()),
            (State::Stopped, Some(why.as_str()))
        );
        assert_eq!(row.checkpoint, world.checkpoint_at(&row.checkpoint, at));
        assert_eq!(row.events, i64::try_from(at).expect("small"));
        let head = world.head().await;
        let error = process
            .wait_for("balances", &head, AT_ALL)
            .await
            .expect_err("it stopped");
        assert!(
            error.to_string().contains("could not be applied"),
            "{error}"
        );
        // Nothing of a later event was applied; a skip that somebody decides on passes it.
        process.shutdown().await;
        world.control().resume(&balances).await.expect("resumed");
        let config = Config {
            on_poison: OnPoison::Skip,
            ..quick()
        };
        let process = world.started(config, Balances).await;
        world.is_whole(&process, OnPoison::Skip).await;
        process.shutdown().await;
    }
}

/// Schedule 18: poison twice for one key, then a replay while new events of the key arrive; they keep their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_18_a_replay_keeps_the_order_of_a_key() {
    let world = World::new().await;
    let fixed = Fixable::default();
    let process = world.started(parking(), fixed.clone()).await;
    for n in 0..10 {
        world
            .append(
                "account-1",
                "added",
                &format!("{}{n}", if n % 4 == 1 { "bad " } else { "" }),
            )
            .await;
        world.append("account-2", "added", "1").await;
    }
    world.applies_all(&process, "fixable").await;
    let fixable = id("fixable", 1);
    let control = world.control();
    let parked = control
        .parked(&fixable, Some("account-1"), 100)
        .await
        .expect("parked");
    assert_eq!(parked.len(), 9, "all from the first bad one on");
    assert!(
        parked[0].error.contains("bad") && parked[0].attempts == 3,
        "{parked:?}"
    );
    assert!(parked[1..].iter().all(|parked| parked.error.is_empty()));
    // A replay before anything is put right stops where it stopped, and loses nothing.
    let order = Order::Replay { key: None };
    let answer = control
        .order(&fixable, &order, AT_ALL)
        .await
        .expect("an answer");
    assert!(
        answer.contains("0 events were applied; 1 keys stay parked: account-1: bad"),
        "{answer}"
    );
    fixed.fix();
    let appending = async {
        for n in 10..30 {
            world.append("account-1", "added", &n.to_string()).await;
        }
    };
    let (answer, ()) = tokio::join!(control.order(&fixable, &order, AT_ALL), appending);
    answer.expect("an answer");
    // What came behind the others while they were replayed is replayed as well.
    control
        .order(&fixable, &order, AT_ALL)
        .await
        .expect("an answer");
    world.applies_all(&process, "fixable").await;
    let row = world
        .database
        .lines("SELECT id, text FROM fixable ORDER BY id")
        .await;
    let expected: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    assert!(row[0].contains(&expected.join(",")), "{row:?}");
    assert!(world.parked(&fixable).await.is_empty());
    process.shutdown().await;
}

/// Schedule 19: a replay that dies half-way, at each of its calls, is done again and applies nothing twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_19_a_replay_that_dies_is_done_again() {
    for at in (0..14).step_by(EVERY) {
        let world = World::new().await;
        let fixed = Fixable::default();
        let process = world.started(parking(), fixed.clone()).await;
        for n in 0..6 {
            world
                .append(
                    "account-1",
                    "added",
                    &format!("{}{n}", if n == 1 { "bad " } else { "" }),
                )
                .await;
        }
        world.applies_all(&process, "fixable").await;
        process.shutdown().await;
        fixed.fix();
        let fixable = id("fixable", 1);
        let order = Order::Replay {
            key: Some("account-1".to_owned()),
        };
        gesta_projection::Target::command(&world.target, &fixable, &order)
            .await
            .expect("asked");
        let fate = if at % 2 == 0 {
            Fate::DieAfter
        } else {
            Fate::DieBefore
        };
        let faulty = Faulty::new(world.target.clone(), at / 2, fate);
        let first = world
            .faulty(parking(), &faulty)
            .view(fixed.clone())
            .start()
            .await;
        let dead = async {
            while !faulty.is_dead() && faulty.looks() < 30 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(AT_ALL, dead)
            .await
            .expect("it comes so far");
        faulty.kill();
        drop(first);
        let process = world.started(parking(), fixed).await;
        let control = world.control();
        control.order(&fixable, &order, AT_ALL).await.expect("done");
        let row = world.database.lines("SELECT id, text FROM fixable").await;
        assert!(row[0].contains("0,1,2,3,4,5"), "at {at}: {row:?}");
        process.shutdown().await;
    }
}

/// What happened: the target lost a replay, whose commits leave the checkpoint where it is, and the next event of the
/// key was applied before a look noticed the loss; the events that were parked came after it. Now nothing is written on
/// rows that are not what they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_applied_after_a_replay_that_was_lost() {
    let world = World::new().await;
    let (fixed, fixable) = (Fixable::default(), id("fixable", 1));
    let config = Config {
        // No look comes between the loss and the next event.
        look_every: Duration::from_secs(3_600),
        lease: Duration::from_secs(7_200),
        ..parking()
    };
    let process = world.started(config, fixed.clone()).await;
    for text in ["0", "bad 1", "2"] {
        world.append("account-1", "added", text).await;
    }
    world.applies_all(&process, "fixable").await;
    assert_eq!(world.parked(&fixable).await.len(), 2);
    fixed.fix();
    let order = Order::Replay { key: None };
    let asked = world.target.command(&fixable, &order).await.expect("asked");
    world.database.back_up().await;
    process.look_now();
    let answer = async || world.target.answer(asked).await.expect("an answer");
    until_so(async || answer().await.is_some(), "it is replayed").await;
    // The keys that are parked are read once more after a replay.
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.database.put_back().await;
    let written = world.append("account-1", "added", "3").await.checkpoint;
    until(&process, &fixable, |progress| {
        progress.phase == Phase::StandingBy || progress.checkpoint.as_ref() == Some(&written)
    })
    .await;
    let again = async || {
        process.look_now();
        answer().await.is_some()
    };
    until_so(again, "it is replayed again").await;
    world.applies_all(&process, "fixable").await;
    let rows = world.database.lines("SELECT text FROM fixable").await;
    assert_eq!(rows, ["0,1,2,3"]);
    process.shutdown().await;
}

/// What happened: a replay that took longer than the target lets it was tried again at the same size, for ever: the
/// version did nothing else, and no order could be taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_that_takes_too_long_is_made_smaller() {
    let world = World::new().await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let fixed = Fixable::default();
    let process = world.faulty(parking(), &faulty).view(fixed.clone());
    let process = process.start().await.expect("started");
    let numbers: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    for n in &numbers {
        world
            .append("account-1", "added", &format!("bad {n}"))
            .await;
    }
    world.applies_all(&process, "fixable").await;
    fixed.fix();
    faulty.set_events_max(3);
    let order = Order::Replay { key: None };
    let (control, fixable) = (world.control(), id("fixable", 1));
    let answer = control.order(&fixable, &order, AT_ALL).await;
    assert_eq!(answer.expect("an answer"), "10 events were applied");
    assert!(world.parked(&fixable).await.is_empty());
    let rows = world.database.lines("SELECT text FROM fixable").await;
    assert_eq!(rows, [numbers.join(",")]);
    process.shutdown().await;
}

/// A projection with SQL of its own: the event is found by smaller batches, each committed, and skipped or stopped at.
/// A panic of the author ends one batch and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_event_is_found_in_a_batch_of_ones_own_sql() {
    for bad in ["no number", "panic"] {
        let world = World::new().await;
        for n in 0..40 {
            match (n, bad) {
                (17, "panic") => world.append("account-1", "panic", "").await,
                (17, bad) => world.append("account-1", "added", bad).await,
                _ => world.append("account-1", "added", &n.to_string()).await,
            };
        }
        let process = world
            .process(quick())
            .projection(Through(Journal))
            .start()
            .await;
        let process = process.expect("started");
        let journal = id("journal", 1);
        let stopped = until_phase(&process, &journal, Phase::Stopped).await;
        let why = stopped.error.expect("a reason");
        assert!(why.contains("position 18 of log 0"), "{why}");
        assert_eq!(
            world.database.lines("SELECT * FROM journal").await.len(),
            17
        );
        process.shutdown().await;
        world.control().resume(&journal).await.expect("resumed");
        let config = Config {
            on_poison: OnPoison::Skip,
            ..quick()
        };
        let process = world
            .process(config)
            .projection(Through(Journal))
            .start()
            .await;
        let process = process.expect("started");
        world.applies_all(&process, "journal").await;
        assert_eq!(
            world.database.lines("SELECT * FROM journal").await.len(),
            39
        );
        let skipped = world.parked(&journal).await;
        assert_eq!((skipped.len(), skipped[0].key.as_deref()), (1, None));
        let answer = world
            .control()
            .order(&journal, &Order::Drop { key: None }, AT_ALL)
            .await;
        assert_eq!(answer.expect("an answer"), "1 events were dropped");
        process.shutdown().await;
    }
}

/// At most so many keys may have parked events; then the projection stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_so_many_keys_are_parked() {
    let world = World::new().await;
    for n in 0..5 {
        world
            .append(&format!("account-{n}"), "added", "no number")
            .await;
    }
    let config = Config {
        parked_keys_max: 3,
        ..parking()
    };
    let process = world.started(config, Balances).await;
    let balances = id("balances", 1);
    let stopped = until_phase(&process, &balances, Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(
        why.contains("events of 3 keys are parked, which is the maximum"),
        "{why}"
    );
    assert_eq!(world.parked(&balances).await.len(), 3);
    assert_eq!(world.store.read_everything().await.expect("read").len(), 5);
    process.shutdown().await;
}

columns! {
    /// A text.
    struct Text {
        text: String,
    }
}

/// A view whose code cannot read some events until it is put right.
#[derive(Clone, Debug, Default)]
struct Fixable(std::sync::Arc<std::sync::atomic::AtomicBool>);

impl Fixable {
    fn fix(&self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

impl View for Fixable {
    const NAME: &'static str = "fixable";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Text;

    fn filter(&self) -> Filter {
        of_category("account")
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Some(event.stream.as_str().to_owned())
    }

    fn evolve(&self, row: &mut Option<Text>, event: &RecordedEvent) -> Result<(), ApplyError> {
        let mut text = std::str::from_utf8(&event.data)?;
        if let Some(rest) = text.strip_prefix("bad ") {
            if !self.0.load(std::sync::atomic::Ordering::SeqCst) {
                return Err(ApplyError::text("bad"));
            }
            text = rest;
        }
        match row {
            Some(row) => row.text = format!("{},{text}", row.text),
            None => {
                *row = Some(Text {
                    text: text.to_owned(),
                })
            }
        }
        Ok(())
    }
}
