//! What becomes of a projection while the store is restored under running processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    AllPage, EventStore, EventStoreExt, Filter, ReadAll, RecordedEvent, Result, StoreInfo,
};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::testing::{Fate, Faulty, Restorable};
use gesta_projection::{ApplyError, Config, OnPoison, Order, Phase, Projections, View};
use gesta_testkit::{Around, Outer};

use super::fixtures::{Balance, Balances};
use super::world::{World, id, quick, until_phase, until_so};

/// Returns the store that a restore of its first events gives, in another life.
async fn first_of(store: &Arc<dyn EventStore>, events: usize) -> Arc<dyn EventStore> {
    let all = store.read_everything().await.expect("read");
    let first = all.into_iter().take(events);
    let restored = MemoryStore::restored(MemoryConfig::default(), first);
    Arc::new(restored.expect("whole"))
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
impl Around for AwayAfter {
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
        world.append_many(20).await;
        world.append("account-1", "added", "no number").await;
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
        world.store = first_of(&world.store, 20).await;
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
        world.is_whole(&process, on_poison).await;
        assert!(world.parked(&balances).await.is_empty());
        process.shutdown().await;
    }
}
