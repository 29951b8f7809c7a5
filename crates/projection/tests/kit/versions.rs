//! Versions: built beside the active one, switched, switched back, retired; and what stops a projection.

use std::time::Duration;

use gesta_core::{EventStoreExt, Filter, RecordedEvent};
use gesta_projection::testing::{Fate, Faulty};
use gesta_projection::{
    ApplyError, BeginAt, Config, Error, Life, OnPoison, Order, Phase, Target as _, View, columns,
};

use super::fixtures::{Balance, Balances, of_category};
use super::world::{AT_ALL, World, id, quick, until_phase, until_so};
use crate::flavour::EVERY;

columns! {
    /// The second version has another column.
    pub(super) struct Count {
        doubled: i64,
    }
}

/// The second version of [`Balances`]: other columns.
#[derive(Clone, Copy)]
pub(super) struct BalancesV2;

impl View for BalancesV2 {
    const NAME: &'static str = "balances";
    const VERSION: u32 = 2;
    type Key = String;
    type Row = Count;

    fn filter(&self) -> Filter {
        of_category("account")
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Balances.key(event)
    }

    fn evolve(&self, row: &mut Option<Count>, event: &RecordedEvent) -> Result<(), ApplyError> {
        let mut balance = row.take().map(|row| Balance {
            total: row.doubled / 2,
            events: 0,
            note: None,
        });
        Balances.evolve(&mut balance, event)?;
        *row = balance.map(|balance| Count {
            doubled: balance.total * 2,
        });
        Ok(())
    }
}

fn small() -> Config {
    Config {
        batch_events_max: 8,
        ..quick()
    }
}

async fn active(world: &World) -> u32 {
    let active = world.control().active("balances").await;
    active.expect("a version is active").id.version
}

async fn until_active(world: &World, version: u32) {
    until_so(async || active(world).await == version, "it is active").await;
}

async fn totals(world: &World, column: &str) -> Vec<String> {
    let sql = format!("SELECT id, {column} FROM balances ORDER BY id");
    world.database.lines(&sql).await
}

/// Schedule 22: the new version is built beside the old one and takes its place once it has come as far; the old one is
/// fed on, and can take its place again; then it is retired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_22_a_version_is_built_beside_and_switched() {
    let world = World::new().await;
    world.append_many(50).await;
    let old = world.started(quick(), Balances).await;
    world.is_whole(&old, OnPoison::Stop).await;
    let before = totals(&world, "total * 2").await;
    let new = world.started(small(), BalancesV2).await;
    until_active(&world, 2).await;
    assert_eq!(totals(&world, "doubled").await, before);
    let written = world.append("account-1", "added", "1000").await;
    let done = new.wait_for("balances", &written.checkpoint, AT_ALL).await;
    done.expect("its own write");
    let reached = async {
        // The old version is still fed: switching back is refused only until it has come as far.
        while world.control().switch(&id("balances", 1)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(AT_ALL, reached)
        .await
        .expect("switched back");
    world.is_whole(&old, OnPoison::Stop).await;
    let error = world
        .control()
        .retire(&id("balances", 1))
        .await
        .expect_err("it is active");
    assert!(
        error.to_string().contains("it is the active version"),
        "{error}"
    );
    world
        .control()
        .switch(&id("balances", 2))
        .await
        .expect("switched");
    world
        .control()
        .retire(&id("balances", 1))
        .await
        .expect("retired");
    until_phase(&old, &id("balances", 1), Phase::Retired).await;
    let (first, second) = ("balances_v1", "balances_v2");
    assert!(!world.database.has(first).await && world.database.has(second).await);
    let rows = world.control().list().await.expect("a list");
    assert_eq!((rows[0].life, rows[1].life), (Life::Retired, Life::Active));
    old.shutdown().await;
    new.shutdown().await;
}

/// Schedule 21: the process that builds the new version dies at each of its calls in turn; another one ends the work,
/// and readers see the old version until then, whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_21_a_build_that_dies_goes_on() {
    for at in (0..22).step_by(EVERY) {
        for fate in [Fate::DieBefore, Fate::DieAfter] {
            let world = World::new().await;
            world.append_many(30).await;
            world.comes_right(OnPoison::Stop).await;
            let before = totals(&world, "total").await;
            let faulty = Faulty::new(world.target.clone(), at, fate);
            let building = world
                .faulty(small(), &faulty)
                .view(BalancesV2)
                .start()
                .await;
            let ended = async {
                while !faulty.is_dead() && faulty.looks() < 60 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            if building.is_ok() {
                tokio::time::timeout(AT_ALL, ended)
                    .await
                    .expect("it comes so far");
            }
            faulty.kill();
            drop(building);
            let active = world.control().active("balances").await.expect("one is");
            let column = if active.id.version == 1 {
                "total"
            } else {
                "doubled / 2"
            };
            assert_eq!(totals(&world, column).await, before, "call {at}, {fate:?}");
            let process = world.started(small(), BalancesV2).await;
            until_active(&world, 2).await;
            assert_eq!(totals(&world, "doubled / 2").await, before);
            process.shutdown().await;
        }
    }
}

/// A changed filter or other columns under the same version are refused: the rows were made with the former.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_definition_needs_a_new_version() {
    struct Changed;
    impl View for Changed {
        const NAME: &'static str = "balances";
        const VERSION: u32 = 1;
        type Key = String;
        type Row = Balance;

        fn filter(&self) -> Filter {
            of_category("other")
        }

        fn key(&self, event: &RecordedEvent) -> Option<String> {
            Balances.key(event)
        }

        fn evolve(
            &self,
            row: &mut Option<Balance>,
            event: &RecordedEvent,
        ) -> Result<(), ApplyError> {
            Balances.evolve(row, event)
        }
    }
    let world = World::new().await;
    world.comes_right(OnPoison::Stop).await;
    let error = world
        .process(quick())
        .view(Changed)
        .start()
        .await
        .expect_err("refused");
    assert!(
        matches!(error, Error::Changed { version: 1, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("raise its version"), "{error}");
    let twice = world
        .process(quick())
        .view(Balances)
        .view(Balances)
        .start()
        .await;
    assert!(
        twice
            .expect_err("refused")
            .to_string()
            .contains("balances v1 was added twice")
    );
}

/// A projection may begin at a time or a place. That is kept: a reset begins there again, and so does a later version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_floor_is_kept() {
    let world = World::new().await;
    world.append_many(10).await;
    let from = world.head().await;
    for n in 0..3 {
        world.append("account-9", "added", &n.to_string()).await;
    }
    let begin = BeginAt::Checkpoint(from.clone());
    let process = world
        .process(quick())
        .view(Balances)
        .begin_at("balances", begin);
    let process = process.start().await.expect("started");
    let head = world.head().await;
    process
        .wait_for("balances", &head, AT_ALL)
        .await
        .expect("whole");
    assert_eq!(totals(&world, "events").await.len(), 1);
    let answer = world
        .control()
        .order(&id("balances", 1), &Order::Reset, AT_ALL)
        .await;
    assert_eq!(answer.expect("an answer"), "it was reset");
    world.applies_all(&process, "balances").await;
    assert_eq!(totals(&world, "events").await.len(), 1);
    let row = world.row("balances").await;
    assert_eq!((row.resets, row.floor), (1, from.clone()));
    let second = world.started(quick(), BalancesV2).await;
    until_active(&world, 2).await;
    assert_eq!(totals(&world, "doubled").await.len(), 1);
    assert_eq!(world.row("balances").await.floor, from);
    process.shutdown().await;
    second.shutdown().await;
    let unknown = world
        .process(quick())
        .begin_at("nothing", BeginAt::Start)
        .start()
        .await;
    assert!(matches!(unknown, Err(Error::NotFound(_))));
}

/// A floor may be a time: the place before the first event of each log that was stored then or later is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_floor_may_be_a_time() {
    let world = World::of_logs(3).await;
    world.append_many(30).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    let before = world.head().await;
    let first = world.append("account-50", "added", "1").await;
    let events = world.store.read_everything().await.expect("read");
    let time = events
        .iter()
        .find(|event| event.stream.as_str() == "account-50");
    let time = BeginAt::Time(time.expect("it was appended").created);
    world.append_many(10).await;
    let process = world
        .process(quick())
        .view(Balances)
        .begin_at("balances", time);
    let process = process.start().await.expect("started");
    world.applies_all(&process, "balances").await;
    let row = world.row("balances").await;
    assert_eq!(row.floor, before);
    assert_eq!(row.events, 11);
    process
        .wait_for("balances", &first.checkpoint, AT_ALL)
        .await
        .expect("applied");
    process.shutdown().await;
}

/// Schedule 24: paused, reset and resumed at random moments, from two terminals, while events come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_24_paused_and_reset_at_any_moment() {
    let world = World::new().await;
    let process = world.started(small(), Balances).await;
    let balances = id("balances", 1);
    let (control, other) = (world.control(), world.control());
    let first = async {
        for _ in 0..20 {
            control.pause(&balances).await.expect("paused");
            // Nothing is applied while it is paused.
            let at = control
                .active("balances")
                .await
                .expect("its row")
                .checkpoint;
            tokio::time::sleep(Duration::from_millis(5)).await;
            let then = control.active("balances").await.expect("its row");
            assert!(then.checkpoint == at || then.resets > 0);
            control.resume(&balances).await.expect("resumed");
            process.look_now();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let second = async {
        for _ in 0..8 {
            let wait = Duration::from_millis(30);
            let _ = other.order(&balances, &Order::Reset, wait).await;
        }
    };
    let appending = world.append_many(200);
    tokio::join!(first, second, appending);
    // The number of one more tells how many were stored: one that waits, and is asked for again, is stored once.
    let stored = world.target.command(&balances, &Order::Reset).await;
    let stored = stored.expect("stored");
    assert!((2..=9).contains(&stored), "{stored}");
    // All resets that nobody has waited for are done before the end is compared.
    let done = async {
        while !world.target.commands().await.expect("commands").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(AT_ALL, done).await.expect("done");
    world.is_whole(&process, OnPoison::Stop).await;
    assert_eq!(world.row("balances").await.resets, stored);
    process.shutdown().await;
}

/// Schedule 16: nothing matches for many events; the place is stored when the process stops, so that nothing is read
/// again from the beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_16_a_place_without_events_is_stored() {
    let world = World::new().await;
    for _ in 0..50 {
        world.append("other-1", "added", "1").await;
    }
    let process = world.started(quick(), Balances).await;
    until_phase(&process, &id("balances", 1), Phase::Live).await;
    process.shutdown().await;
    let row = world.row("balances").await;
    assert_eq!(
        (row.checkpoint, row.events, row.owner),
        (world.head().await, 0, None)
    );
}

/// What happened: a process with old code began after the later version had the readers; its version was built beside,
/// and took the readers when it had come as far. Now a version takes them by itself from an earlier one only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_code_does_not_take_the_readers() {
    let world = World::new().await;
    world.append_many(20).await;
    let new = world.started(quick(), BalancesV2).await;
    until_phase(&new, &id("balances", 2), Phase::Live).await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let old = world.faulty(quick(), &faulty).view(Balances).start().await;
    let old = old.expect("started");
    until_phase(&old, &id("balances", 1), Phase::Live).await;
    // It tries when it is live, and at each look from the third on.
    let looks = faulty.looks() + 20;
    until_so(async || faulty.looks() >= looks, "it looks").await;
    assert_eq!(active(&world).await, 2);
    // Somebody may ask for it.
    let control = world.control();
    let switched = control.switch(&id("balances", 1)).await;
    switched.expect("switched back");
    assert_eq!(active(&world).await, 1);
    old.shutdown().await;
    new.shutdown().await;
}
