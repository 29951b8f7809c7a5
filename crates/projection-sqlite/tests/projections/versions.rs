//! Versions: built beside the active one, switched, switched back, retired; and what stops a projection.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use gesta_core::{EventStoreExt, Filter, RecordedEvent};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::testing::{Fate, Faulty, Through};
use gesta_projection::{
    ApplyError, Batch, BeginAt, Config, Error, Life, OnPoison, Order, Phase, Projection, State,
    Target, View, columns,
};
use gesta_projection_sqlite::{SqliteTarget, rusqlite};

use crate::fixtures::{Balance, Balances, lines, of_category};
use crate::world::{AT_ALL, Process, World, id, quick, until_phase};

columns! {
    /// The second version has another column.
    struct Count {
        doubled: i64,
    }
}

/// The second version of [`Balances`]: other columns.
#[derive(Clone, Copy)]
struct BalancesV2;

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

async fn until_active(world: &World, version: u32) {
    let active = async {
        loop {
            let row = world
                .control()
                .active("balances")
                .await
                .expect("a version is active");
            if row.id.version == version {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(AT_ALL, active)
        .await
        .expect("it becomes active");
}

fn totals(world: &World, column: &str) -> Vec<String> {
    lines(
        &world.files.open(),
        &format!("SELECT id, {column} FROM balances ORDER BY id"),
    )
}

/// Schedule 22: the new version is built beside the old one and takes its place once it has come as far; the old one is
/// fed on, and can take its place again; then it is retired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_22_a_version_is_built_beside_and_switched() {
    let world = World::new();
    world.append_many(50).await;
    let old = world
        .process(quick())
        .view(Balances)
        .start()
        .await
        .expect("started");
    world.is_whole(&old, OnPoison::Stop).await;
    let before = totals(&world, "total * 2");
    let new = world
        .process(small())
        .view(BalancesV2)
        .start()
        .await
        .expect("started");
    until_active(&world, 2).await;
    assert_eq!(totals(&world, "doubled"), before);
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
    let stored = lines(
        &world.files.open(),
        "SELECT name FROM sqlite_schema WHERE name LIKE 'balances_v%'",
    );
    assert_eq!(stored.len(), 1, "{stored:?}");
    let rows = world.control().list().await.expect("a list");
    assert_eq!((rows[0].life, rows[1].life), (Life::Retired, Life::Active));
    old.shutdown().await;
    new.shutdown().await;
}

/// Schedule 21: the process that builds the new version dies at each of its calls in turn; another one ends the work,
/// and readers see the old version until then, whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_21_a_build_that_dies_goes_on() {
    for at in 0..22 {
        for fate in [Fate::DieBefore, Fate::DieAfter] {
            let world = World::new();
            world.append_many(30).await;
            world.comes_right(OnPoison::Stop).await;
            let before = totals(&world, "total");
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
            assert_eq!(totals(&world, column), before, "call {at}, {fate:?}");
            let process = world
                .process(small())
                .view(BalancesV2)
                .start()
                .await
                .expect("started");
            until_active(&world, 2).await;
            assert_eq!(totals(&world, "doubled / 2"), before);
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
    let world = World::new();
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
    assert!(error.to_string().contains("raise VERSION"), "{error}");
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
    let world = World::new();
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
    assert_eq!(totals(&world, "events").len(), 1);
    let answer = world
        .control()
        .order(&id("balances", 1), &Order::Reset, AT_ALL)
        .await;
    assert_eq!(answer.expect("an answer"), "it was reset");
    process
        .wait_for("balances", &head, AT_ALL)
        .await
        .expect("whole again");
    assert_eq!(totals(&world, "events").len(), 1);
    let row = world.control().active("balances").await.expect("its row");
    assert_eq!((row.resets, row.floor), (1, from.clone()));
    let second = world
        .process(quick())
        .view(BalancesV2)
        .start()
        .await
        .expect("started");
    until_active(&world, 2).await;
    assert_eq!(totals(&world, "doubled").len(), 1);
    assert_eq!(
        world
            .control()
            .active("balances")
            .await
            .expect("its row")
            .floor,
        from
    );
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
    let world = World::with(Arc::new(MemoryStore::with_config(MemoryConfig {
        logs: 3,
        ..MemoryConfig::default()
    })));
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
    process
        .wait_for("balances", &world.head().await, AT_ALL)
        .await
        .expect("whole");
    let row = world.control().active("balances").await.expect("its row");
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
    let world = World::new();
    let process = world
        .process(small())
        .view(Balances)
        .start()
        .await
        .expect("started");
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
    // All resets that nobody has waited for are done before the end is compared.
    let done = async {
        while !world.target.commands().await.expect("commands").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(AT_ALL, done).await.expect("done");
    world.is_whole(&process, OnPoison::Stop).await;
    assert_eq!(
        world
            .control()
            .active("balances")
            .await
            .expect("its row")
            .resets,
        8
    );
    process.shutdown().await;
}

/// A projection that was paused says so to whoever waits; one that is behind says by how much; a checkpoint of another
/// store is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_ends_with_a_reason() {
    let world = World::new();
    let process = world
        .process(quick())
        .view(Balances)
        .start()
        .await
        .expect("started");
    let balances = id("balances", 1);
    until_phase(&process, &balances, Phase::Live).await;
    // No event of another category changes the view: nobody waits for one.
    let other = world.append("other-1", "added", "1").await;
    let none = process
        .wait_for("balances", &other.checkpoint, Duration::ZERO)
        .await;
    none.expect("it shows everything that there is");
    world.control().pause(&balances).await.expect("paused");
    process.look_now();
    until_phase(&process, &balances, Phase::Paused).await;
    let written = world.append("account-1", "added", "1").await;
    let error = process
        .wait_for("balances", &written.checkpoint, AT_ALL)
        .await;
    let error = error.expect_err("paused");
    assert!(
        matches!(
            error,
            Error::NotRunning {
                state: State::Paused,
                ..
            }
        ),
        "{error}"
    );
    let lag = process.lag("balances").await.expect("its lag");
    assert!(lag.positions >= 1 && lag.age > Duration::ZERO, "{lag:?}");
    world.control().resume(&balances).await.expect("resumed");
    process.look_now();
    process
        .wait_for("balances", &written.checkpoint, AT_ALL)
        .await
        .expect("applied");
    assert_eq!(
        process.lag("balances").await.expect("its lag").age,
        Duration::ZERO
    );
    let strange = World::new().head().await;
    let error = process
        .wait_for("balances", &strange, AT_ALL)
        .await
        .expect_err("refused");
    assert!(
        error
            .to_string()
            .contains("is not of the events of this store"),
        "{error}"
    );
    assert!(matches!(
        process.wait_for("unknown", &strange, AT_ALL).await,
        Err(Error::NotFound(_))
    ));
    process.shutdown().await;
}

/// Schedule 16: nothing matches for many events; the place is stored when the process stops, so that nothing is read
/// again from the beginning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_16_a_place_without_events_is_stored() {
    let world = World::new();
    for _ in 0..50 {
        world.append("other-1", "added", "1").await;
    }
    let process = world
        .process(quick())
        .view(Balances)
        .start()
        .await
        .expect("started");
    until_phase(&process, &id("balances", 1), Phase::Live).await;
    process.shutdown().await;
    let row = world.control().active("balances").await.expect("its row");
    assert_eq!(
        (row.checkpoint, row.events, row.owner),
        (world.head().await, 0, None)
    );
}

/// Waits within `apply` for its own projection, which would be for ever.
#[derive(Clone, Default)]
struct WaitsForItself {
    process: Arc<OnceLock<Arc<Process>>>,
    answer: Arc<Mutex<Option<String>>>,
}

impl Projection<SqliteTarget> for WaitsForItself {
    const NAME: &'static str = "waits";
    const VERSION: u32 = 1;

    fn filter(&self) -> Filter {
        of_category("account")
    }

    async fn create(&self, _: &mut rusqlite::Connection) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn clear(&self, _: &mut rusqlite::Connection) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn apply(&self, _: &mut rusqlite::Connection, batch: &Batch) -> Result<(), ApplyError> {
        if let Some(process) = self.process.get() {
            let waited = process.wait_for("waits", batch.to(), AT_ALL).await;
            let answer = waited.expect_err("refused").to_string();
            *self.answer.lock().expect("not poisoned") = Some(answer);
        }
        Ok(())
    }
}

/// What happened in another system: a handler that waited for its own projection stood still for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_wait_within_apply_is_refused() {
    let world = World::new();
    let waits = WaitsForItself::default();
    let process = world
        .process(quick())
        .projection(Through(waits.clone()))
        .start()
        .await;
    let process = Arc::new(process.expect("started"));
    let _ = waits.process.set(Arc::clone(&process));
    let written = world.append("account-1", "added", "1").await;
    process
        .wait_for("waits", &written.checkpoint, AT_ALL)
        .await
        .expect("applied");
    let answer = waits.answer.lock().expect("not poisoned").clone();
    assert_eq!(
        answer.as_deref(),
        Some("wait_for must not be called while events are applied")
    );
}
