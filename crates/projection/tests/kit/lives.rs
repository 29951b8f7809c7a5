//! Versions and events of different lives of the store, while the store is restored under running processes, and while
//! operators reset and switch versions at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    AllPage, EventStore, EventStoreExt, Filter, ReadAll, RecordedEvent, Result, StoreInfo,
};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::testing::{Fate, Faulty, Random, Restorable};
use gesta_projection::{
    ApplyError, Config, Control, Error, OnPoison, Order, Phase, Projections, View,
};

use super::fixtures::{Balance, Balances};
use super::versions::BalancesV2;
use super::world::{AT_ALL, Process, World, id, quick, until, until_phase, until_so};
use crate::flavour::{HISTORIES, Target};

/// Returns the store that a restore of its first events gives, in another life.
async fn first_of(store: &Arc<dyn EventStore>, events: usize) -> Arc<dyn EventStore> {
    let all = store.read_everything().await.expect("read");
    let first = all.into_iter().take(events);
    let restored = MemoryStore::restored(MemoryConfig::default(), first);
    Arc::new(restored.expect("whole"))
}

/// A world whose store was restored after version 1 had come to its end.
async fn restored() -> World {
    let mut world = World::new().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    world.store = first_of(&world.store, 10).await;
    world
}

/// A lease that lasts however slow the machine is. All processes of a test have it: one that is much longer than that
/// of another process is shortened.
const LONG: Duration = Duration::from_secs(3_600);

fn by_hand() -> Config {
    Config {
        switch_when_caught_up: false,
        ..quick()
    }
}

async fn active(world: &World) -> u32 {
    world.row("balances").await.id.version
}

/// A store whose events can be kept from a process: then reads of all events wait.
struct Gated {
    store: Arc<dyn EventStore>,
    is_closed: AtomicBool,
}

#[async_trait]
impl Wrapper for Gated {
    fn inner(&self) -> &dyn EventStore {
        &*self.store
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        while self.is_closed.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.store.read_all(request).await
    }
}

/// Starts a process that runs version 2, whose reads can be made to wait.
async fn gated(world: &World, config: Config) -> (Process, Arc<Outer<Gated>>) {
    let gate = Arc::new(Outer(Gated {
        store: Arc::clone(&world.store),
        is_closed: AtomicBool::new(false),
    }));
    let store: Arc<dyn EventStore> = gate.clone();
    let target = Faulty::new(world.target.clone(), 0, Fate::None);
    let process = Projections::on(&store, target).config(config);
    let process = process.view(BalancesV2).start().await.expect("started");
    (process, gate)
}

async fn reset(control: &Control<Target>, version: u32) {
    let reset = control
        .order(&id("balances", version), &Order::Reset, AT_ALL)
        .await;
    assert_eq!(reset.expect("it is done"), "it was reset");
}

/// A store that does something when it is asked how it is, before it answers.
struct Meanwhile<F>(Arc<dyn EventStore>, F);

#[async_trait]
impl<F, D> Wrapper for Meanwhile<F>
where
    F: Fn() -> D + Send + Sync + 'static,
    D: Future<Output = ()> + Send + 'static,
{
    fn inner(&self) -> &dyn EventStore {
        &*self.0
    }

    async fn info(&self) -> Result<StoreInfo> {
        (self.1)().await;
        self.0.info().await
    }
}

/// What happened: somebody switched to a version that was at the end of the store, and somebody else reset it at the
/// same time: only its incarnation was compared when the readers were switched, and they saw an empty table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_is_reset_meanwhile_is_not_switched_to() {
    let world = restored().await;
    let (process, gate) = gated(&world, by_hand()).await;
    let second = id("balances", 2);
    until_phase(&process, &second, Phase::Live).await;
    let control = world.control();
    let whole = world.head().await;
    let is_stored = async || control.version(&second).await.expect("its row").checkpoint == whole;
    until_so(is_stored, "its place is stored").await;
    let operator = world.control();
    let closed = Arc::clone(&gate);
    let resets = move || {
        let (operator, closed) = (operator.clone(), Arc::clone(&closed));
        async move {
            closed.is_closed.store(true, Ordering::SeqCst);
            reset(&operator, 2).await;
        }
    };
    let store = Outer(Meanwhile(Arc::clone(&world.store), resets));
    let error = control.switch_in(&store, &second).await;
    let error = error.expect_err("it is empty").to_string();
    assert!(error.contains("try again"), "{error}");
    assert_eq!(active(&world).await, 1);
    gate.is_closed.store(false, Ordering::SeqCst);
    let switched = async || control.switch_in(&*world.store, &second).await.is_ok();
    until_so(switched, "a switch").await;
    world.applies_all(&process, "balances").await;
    process.shutdown().await;
}

/// What happened: an owner that had stood still while it was about to take the readers took them by what it knew,
/// though another process had taken the version over, and reset it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_wakes_does_not_switch() {
    let world = restored().await;
    let (is_held, asked) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let holds = {
        let (is_held, asked) = (Arc::clone(&is_held), Arc::clone(&asked));
        move || {
            // It is asked when the process starts, when its session begins, and then before a switch.
            let is_switch = asked.fetch_add(1, Ordering::SeqCst) >= 2;
            let is_held = Arc::clone(&is_held);
            async move {
                while is_switch && is_held.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    };
    let held = Outer(Meanwhile(Arc::clone(&world.store), holds));
    let held: Arc<dyn EventStore> = Arc::new(held);
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let config = Config {
        lease: LONG,
        ..quick()
    };
    let first = Projections::on(&held, faulty.clone()).config(config);
    let first = first.view(BalancesV2).start().await.expect("started");
    until_so(async || asked.load(Ordering::SeqCst) > 2, "it would switch").await;
    faulty.set_hung(true);
    world.end_leases().await;
    let config = Config {
        // The first one does not get the version back.
        lease: LONG,
        ..by_hand()
    };
    let (second, gate) = gated(&world, config).await;
    until_phase(&second, &id("balances", 2), Phase::Live).await;
    gate.is_closed.store(true, Ordering::SeqCst);
    reset(&world.control(), 2).await;
    is_held.store(false, Ordering::SeqCst);
    faulty.set_hung(false);
    until_phase(&first, &id("balances", 2), Phase::StandingBy).await;
    assert_eq!(active(&world).await, 1);
    gate.is_closed.store(false, Ordering::SeqCst);
    second.shutdown().await;
    first.shutdown().await;
}

/// What happened: a process that had not heard of a restore yet took the readers from a version that was reset into the
/// present life of the store already. Now it does not, as long as another process runs that version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_has_not_noticed_a_restore_does_not_switch() {
    let mut world = World::new().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    let known = Arc::clone(&world.store);
    world.store = first_of(&world.store, 10).await;
    let config = || Config {
        lease: LONG,
        ..quick()
    };
    let present = world.started(config(), Balances).await;
    until_phase(&present, &id("balances", 1), Phase::Stopped).await;
    reset(&world.control(), 1).await;
    world.is_whole(&present, OnPoison::Stop).await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let late = Projections::on(&known, faulty.clone()).config(config());
    let late = late.view(BalancesV2).start().await.expect("started");
    until_phase(&late, &id("balances", 2), Phase::Live).await;
    // It tries when it is live, and at each look from the third on.
    let looks = faulty.looks() + 40;
    until_so(async || faulty.looks() >= looks, "it looks").await;
    assert_eq!(active(&world).await, 1);
    late.shutdown().await;
    present.shutdown().await;
}

/// Goal: of two operators, one of whom switches to a version while the other one resets it, at moments of chance,
/// readers are never shown the version while it is empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_operators_reset_and_switch() {
    let seed = gesta_kit::depth::seed();
    println!("GESTA_SEED={seed}");
    let mut random = Random::seed(seed);
    for _ in 0..HISTORIES.div_ceil(4) {
        let world = restored().await;
        let (process, gate) = gated(&world, by_hand()).await;
        let second = id("balances", 2);
        until_phase(&process, &second, Phase::Live).await;
        let pauses = Arc::new(AtomicU64::new(random.below(1_000)));
        let pause = move || {
            let micros = Random::seed(pauses.fetch_add(1, Ordering::SeqCst)).below(20_000);
            tokio::time::sleep(Duration::from_micros(micros))
        };
        let store = Outer(Meanwhile(Arc::clone(&world.store), pause));
        let (control, is_over) = (world.control(), AtomicBool::new(false));
        let switches = async {
            while !is_over.load(Ordering::SeqCst) {
                match control.switch_in(&store, &second).await {
                    Ok(()) => return,
                    Err(Error::Invalid(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let other = world.control();
        let random = &mut random;
        let resets = async {
            for _ in 0..4 {
                gate.is_closed.store(true, Ordering::SeqCst);
                reset(&other, 2).await;
                // It was switched to before the reset, or it is not switched to before it has come to the end again.
                let before = active(&world).await;
                let micros = random.below(30_000);
                tokio::time::sleep(Duration::from_micros(micros)).await;
                let then = active(&world).await;
                gate.is_closed.store(false, Ordering::SeqCst);
                assert_eq!(before, then, "readers were shown an empty version");
                if then == 2 {
                    break;
                }
                let micros = random.below(20_000);
                tokio::time::sleep(Duration::from_micros(micros)).await;
            }
            is_over.store(true, Ordering::SeqCst);
        };
        tokio::join!(switches, resets);
        process.shutdown().await;
    }
}

/// [`Balances`], and how often an event could not be applied.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicU32>);

impl View for Counted {
    const NAME: &'static str = "balances";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Balance;

    fn filter(&self) -> Filter {
        Balances.filter()
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Balances.key(event)
    }

    fn evolve(
        &self,
        row: &mut Option<Balance>,
        event: &RecordedEvent,
    ) -> std::result::Result<(), ApplyError> {
        let done = Balances.evolve(row, event);
        self.0.fetch_add(u32::from(done.is_err()), Ordering::SeqCst);
        done
    }
}

/// A store that is away once an event could not be applied so often, until it is there again.
struct AwayAfter {
    store: Restorable,
    tried: Counted,
    is_back: AtomicBool,
}

#[async_trait]
impl Wrapper for AwayAfter {
    fn inner(&self) -> &dyn EventStore {
        &self.store
    }

    async fn info(&self) -> Result<StoreInfo> {
        self.answers()?;
        self.store.info().await
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        self.answers()?;
        self.store.read_all(request).await
    }
}

impl AwayAfter {
    fn answers(&self) -> Result<()> {
        let tried = self.tried.0.load(Ordering::SeqCst);
        if tried >= quick().attempts_max && !self.is_back.load(Ordering::SeqCst) {
            return Err(gesta_core::Error::unavailable("it fails over"));
        }
        Ok(())
    }
}

/// What happened: an event was condemned, and before its batch was written the store failed over and lost the event.
/// After the reset another event was in its place, and was put aside without a try. Now a reset forgets what was known
/// of events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_in_the_place_of_a_condemned_one_is_applied() {
    for on_poison in [OnPoison::Park, OnPoison::Skip] {
        let mut world = World::new().await;
        // The first one, so that none before it is applied after the reset, which would end the search.
        world.append("account-1", "added", "no number").await;
        world.append_many(20).await;
        let tried = Counted::default();
        let store = Arc::new(Outer(AwayAfter {
            store: Restorable::new(Arc::clone(&world.store)),
            tried: tried.clone(),
            is_back: AtomicBool::new(false),
        }));
        let held: Arc<dyn EventStore> = store.clone();
        let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
        let config = Config {
            on_poison,
            ..quick()
        };
        let process = Projections::on(&held, faulty).config(config);
        let process = process.view(tried.clone()).start().await.expect("started");
        let balances = id("balances", 1);
        until_phase(&process, &balances, Phase::StoreAway).await;
        assert_eq!(tried.0.load(Ordering::SeqCst), quick().attempts_max);
        world.store = first_of(&world.store, 0).await;
        world.append("account-1", "added", "5").await;
        world.append_many(3).await;
        // Nobody does it before the store is there.
        let control = world.control();
        let waited = control
            .order(&balances, &Order::Reset, Duration::ZERO)
            .await;
        waited.expect_err("not yet");
        store.store.notices(Arc::clone(&world.store));
        store.is_back.store(true, Ordering::SeqCst);
        let is_reset = async || world.row("balances").await.resets == 1;
        until_so(is_reset, "a reset").await;
        // The process that waits has heard of it too: else it would end the wait.
        until(&process, &balances, |progress| progress.resets == 1).await;
        world.is_whole(&process, on_poison).await;
        assert!(world.parked(&balances).await.is_empty());
        process.shutdown().await;
    }
}

/// What happened: when a store was copied back without a new incarnation, no version could take the readers from one
/// that had come further than the copy, until the store had passed that place. Now somebody can switch by the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_is_further_than_the_store_is_left() {
    let mut world = World::new().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    let all = world.store.read_everything().await.expect("read");
    let same = MemoryConfig {
        incarnation: world.store.incarnation().await.expect("known"),
        ..MemoryConfig::default()
    };
    let copy = MemoryStore::restored(same, all.into_iter().take(10));
    world.store = Arc::new(copy.expect("whole"));
    let (control, second) = (world.control(), id("balances", 2));
    let process = world.started(quick(), BalancesV2).await;
    until_phase(&process, &second, Phase::Live).await;
    let error = control.switch(&second).await.expect_err("it is behind");
    assert!(
        error.to_string().contains("is behind the active"),
        "{error}"
    );
    let switched = async || control.switch_in(&*world.store, &second).await.is_ok();
    until_so(switched, "a switch").await;
    assert_eq!(active(&world).await, 2);
    process.shutdown().await;
}
