//! Stores and targets that were put back to earlier moments, and streams whose first events are gone.

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{
    AllPage, EventStore, EventStoreExt, Filter, ReadAll, ReadStream, RecordedEvent, Result,
    Revision, StreamPage,
};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::{ApplyError, OnPoison, Phase, State, View};
use gesta_testkit::{Around, Outer};

use super::fixtures::{Balance, Balances, of_category, seen};
use super::world::{AT_ALL, World, id, quick, until_phase};

/// Schedule 23: a store that was restored to an earlier backup has another incarnation: the projection stops and says
/// so, instead of going on with rows of events that are not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_23_a_restored_store_is_noticed() {
    let mut world = World::new().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    let events = world.store.read_everything().await.expect("read");
    let restored = MemoryStore::restored(MemoryConfig::default(), events.into_iter().take(10));
    world.store = Arc::new(restored.expect("whole"));
    let process = world.started(quick(), Balances).await;
    let stopped = until_phase(&process, &id("balances", 1), Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(why.contains("the store was restored or replaced"), "{why}");
    let row = world.row("balances").await;
    assert_eq!((row.state, row.error), (State::Stopped, Some(why)));
    process.shutdown().await;
}

/// The same if the incarnation is the same, as after a file was copied back by hand: the checkpoint is above the head.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_above_the_head_is_noticed() {
    let mut world = World::new().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    let incarnation = world.store.incarnation().await.expect("known");
    let config = MemoryConfig {
        incarnation,
        ..MemoryConfig::default()
    };
    let events = world.store.read_everything().await.expect("read");
    let restored = MemoryStore::restored(config, events.into_iter().take(10));
    world.store = Arc::new(restored.expect("whole"));
    let process = world.started(quick(), Balances).await;
    let stopped = until_phase(&process, &id("balances", 1), Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(
        why.contains("at position 20 of log 0, whose last event is at 10"),
        "{why}"
    );
    process.shutdown().await;
}

/// Schedule 23: a target that was put back to an earlier backup just goes on from its own checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_23_a_restored_target_goes_on() {
    let world = World::new().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    let backup = world.database.back_up(&["balances_v1"]).await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    world.database.put_back(backup).await;
    world.append_many(5).await;
    let target = world.database.target();
    let world = World { target, ..world };
    world.comes_right(OnPoison::Stop).await;
}

/// A store whose first events of stream `account-1` were scavenged.
struct Scavenged(MemoryStore);

#[async_trait]
impl Around for Scavenged {
    fn inner(&self) -> &dyn EventStore {
        &self.0
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        let mut page = self.0.read_stream(request).await?;
        page.events.retain(is_kept);
        Ok(page)
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        let mut page = self.0.read_all(request).await?;
        page.events.retain(is_kept);
        Ok(page)
    }
}

fn is_kept(event: &RecordedEvent) -> bool {
    event.stream.as_str() != "account-1" || event.revision >= Revision(3)
}

/// A view that marks the rows of streams whose front is hidden.
struct Marked;

impl View for Marked {
    const NAME: &'static str = "balances";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Balance;

    fn filter(&self) -> Filter {
        of_category("account")
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

    fn front_hidden(
        &self,
        row: &mut Option<Balance>,
        _: &RecordedEvent,
    ) -> std::result::Result<(), ApplyError> {
        *row = Some(Balance {
            total: 1_000_000,
            events: 0,
            note: None,
        });
        Ok(())
    }
}

/// A fold over a stream whose first events are hidden or gone is told so, and it is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_front_is_told() {
    let world = World::with(Arc::new(Outer(Scavenged(MemoryStore::new())))).await;
    for n in 0..6 {
        world.append("account-1", "added", &n.to_string()).await;
        world.append("account-2", "added", &n.to_string()).await;
    }
    let process = world.started(quick(), Marked).await;
    world.applies_all(&process, "balances").await;
    let rows = world
        .database
        .lines("SELECT total FROM balances ORDER BY id")
        .await;
    assert_eq!(rows, ["1000012", "15"]);
    let mut progress = process.progress(&id("balances", 1)).expect("it runs here");
    // It is told right after the commit.
    let told = progress.wait_for(|progress| progress.hidden_fronts == 1);
    let told = tokio::time::timeout(AT_ALL, told).await.expect("in time");
    assert_eq!(told.expect("it runs").hidden_fronts, 1);
    process.shutdown().await;
}

/// A store that fails every second read.
struct Flaky(MemoryStore, std::sync::atomic::AtomicU32);

#[async_trait]
impl Around for Flaky {
    fn inner(&self) -> &dyn EventStore {
        &self.0
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        let call = self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if call % 2 == 1 {
            return Err(gesta_core::Error::unavailable("the connection died"));
        }
        self.0.read_all(request).await
    }
}

/// Schedule 14: the connection to the store dies, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_14_a_store_that_fails_is_read_again() {
    let world = World::with(Arc::new(Outer(Flaky(MemoryStore::new(), 0.into())))).await;
    world.append_many(50).await;
    let config = gesta_projection::Config {
        batch_events_max: 5,
        on_poison: OnPoison::Park,
        ..quick()
    };
    let process = world.started(config, Balances).await;
    let balances = id("balances", 1);
    let whole = |progress: &gesta_projection::Progress| progress.events >= 50;
    super::world::until(&process, &balances, whole).await;
    assert!(world.parked(&balances).await.is_empty());
    let events = async {
        // A read of the test itself may fail as well.
        loop {
            if let Ok(events) = world.store.read_everything().await {
                return events;
            }
        }
    };
    let expected = super::fixtures::balances_of(&events.await, OnPoison::Park);
    assert_eq!(seen(&world.database, "balances").await.1, expected);
    process.shutdown().await;
}
