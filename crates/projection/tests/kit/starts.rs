//! Processes that start while the store or the target is away, and batches that keep their distance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{EventStore, Filter, RecordedEvent, Result, StoreInfo};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;
use gesta_projection::testing::{Fate, Faulty};
use gesta_projection::{ApplyError, BeginAt, Config, Error, OnPoison, Phase, View};

use super::fixtures::{Balance, Balances, seen};
use super::world::{AT_ALL, World, id, quick, until, until_phase, until_so};

fn waiting() -> Config {
    Config {
        start_waits: true,
        ..quick()
    }
}

/// A start that may wait does so for a target that is away: the projection begins once it is back, as if it had been
/// there. One that may not wait ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_waits_for_the_target() {
    let world = World::new().await;
    world.append_many(20).await;
    let faulty = Faulty::new(world.target.clone(), u64::MAX, Fate::None);
    faulty.set_away(true);
    let refused = world.faulty(quick(), &faulty).view(Balances).start().await;
    assert!(matches!(refused, Err(Error::Target(_))), "{refused:?}");
    let process = world
        .faulty(waiting(), &faulty)
        .view(Balances)
        .start()
        .await;
    let process = process.expect("it waits");
    let balances = id("balances", 1);
    assert_eq!(process.ids(), std::slice::from_ref(&balances));
    let away = until(&process, &balances, |progress| progress.failures > 2).await;
    assert_eq!(away.phase, Phase::TargetAway);
    assert!(away.error.is_some());
    let head = world.head().await;
    let waited = process.wait_for("balances", &head, AT_ALL).await;
    assert!(matches!(waited, Err(Error::Target(_))), "{waited:?}");
    faulty.set_away(false);
    world.append_many(5).await;
    until_phase(&process, &balances, Phase::Live).await;
    world.is_whole(&process, OnPoison::Stop).await;
    process.shutdown().await;
    world.comes_right(OnPoison::Stop).await;
}

/// What happened: a target that was put back to before a version was registered did not know it, and neither did the
/// process that ran it, until somebody started it again. Now it registers the version once more, where it had begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_the_target_has_lost_is_registered_again() {
    let world = World::new().await;
    world.append_many(10).await;
    let process = world.process(quick()).view(Balances);
    let process = process.begin_at("balances", BeginAt::End).start().await;
    let process = process.expect("started");
    let begun = world.head().await;
    world.append_many(10).await;
    world.applies_all(&process, "balances").await;
    let rows = seen(&world.database, "balances").await;
    let lose = "DELETE FROM gesta_projections; DROP VIEW balances; DROP TABLE balances_v1";
    world.database.execute(lose).await;
    until_so(
        async || world.control().active("balances").await.is_ok(),
        "it is registered",
    )
    .await;
    world.applies_all(&process, "balances").await;
    assert_eq!(seen(&world.database, "balances").await, rows);
    let row = world.row("balances").await;
    assert_eq!((row.floor, row.events), (begun, 10));
    process.shutdown().await;
}

/// A process that is shut down before it could register anything ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_waits_can_be_ended() {
    let world = World::new().await;
    let faulty = Faulty::new(world.target.clone(), u64::MAX, Fate::None);
    faulty.set_away(true);
    let process = world
        .faulty(waiting(), &faulty)
        .view(Balances)
        .start()
        .await;
    let process = process.expect("it waits");
    let progress = process.progress(&id("balances", 1)).expect("known");
    let ended = tokio::time::timeout(AT_ALL, process.shutdown()).await;
    ended.expect("it ends");
    assert_eq!(progress.borrow().phase, Phase::Ended);
    assert!(!world.database.has("gesta_projections").await);
}

/// [`Balances`] with another filter under the same version.
struct Changed;

impl View for Changed {
    const NAME: &'static str = "balances";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Balance;

    fn filter(&self) -> Filter {
        Filter::ALL
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Balances.key(event)
    }

    fn evolve(
        &self,
        row: &mut Option<Balance>,
        event: &RecordedEvent,
    ) -> std::result::Result<(), ApplyError> {
        Balances.evolve(row, event)
    }
}

/// Waiting does not hide what is wrong: a definition that is refused once the target is back is told, and does not run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_later_is_told() {
    let world = World::new().await;
    world.comes_right(OnPoison::Stop).await;
    let now = world.process(waiting()).view(Changed).start().await;
    assert!(matches!(now, Err(Error::Changed { .. })), "{now:?}");
    let faulty = Faulty::new(world.target.clone(), u64::MAX, Fate::None);
    faulty.set_away(true);
    let later = world.faulty(waiting(), &faulty).view(Changed);
    let later = later.start().await.expect("it waits");
    faulty.set_away(false);
    let told = until_phase(&later, &id("balances", 1), Phase::Stopped).await;
    let why = told.error.expect("a reason");
    assert!(why.contains("raise its version"), "{why}");
    later.shutdown().await;
    world.comes_right(OnPoison::Stop).await;
}

/// A store that gives no information while it is away.
struct Absent(MemoryStore, AtomicBool);

#[async_trait]
impl Wrapper for Absent {
    fn inner(&self) -> &dyn EventStore {
        &self.0
    }

    async fn info(&self) -> Result<StoreInfo> {
        match self.1.load(Ordering::SeqCst) {
            true => Err(gesta_core::Error::unavailable("the store is away")),
            false => self.0.info().await,
        }
    }
}

/// The same for a store that is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_waits_for_the_store() {
    let absent = Arc::new(Outer(Absent(MemoryStore::new(), AtomicBool::new(false))));
    let world = World::with(Arc::clone(&absent) as _).await;
    world.append_many(20).await;
    absent.1.store(true, Ordering::SeqCst);
    let refused = world.process(quick()).view(Balances).start().await;
    assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}");
    let process = world.started(waiting(), Balances).await;
    let balances = id("balances", 1);
    let away = until(&process, &balances, |progress| progress.failures > 2).await;
    assert_eq!(away.phase, Phase::StoreAway);
    absent.1.store(false, Ordering::SeqCst);
    until_phase(&process, &balances, Phase::Live).await;
    world.is_whole(&process, OnPoison::Stop).await;
    process.shutdown().await;
}

/// With a distance between live batches the first event after a silence is applied at once; those after it wait, unless
/// they are as many as a batch may have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_batches_keep_their_distance() {
    let world = World::new().await;
    let config = Config {
        live_every: Duration::from_secs(3_600),
        live_events_max: 5,
        ..quick()
    };
    let process = world.started(config, Balances).await;
    let balances = id("balances", 1);
    until_phase(&process, &balances, Phase::Live).await;
    world.append_many(1).await;
    world.applies_all(&process, "balances").await;
    let waits = world.append("account-1", "added", "1").await.checkpoint;
    let soon = Duration::from_millis(50);
    let waited = process.wait_for("balances", &waits, soon).await;
    assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    world.append_many(4).await;
    world.is_whole(&process, OnPoison::Stop).await;
    let applied = until(&process, &balances, |progress| progress.events == 6).await;
    assert_eq!(applied.batches, 2);
    // What waits is applied by whoever comes next.
    world.append_many(3).await;
    process.shutdown().await;
    world.comes_right(OnPoison::Stop).await;
}
