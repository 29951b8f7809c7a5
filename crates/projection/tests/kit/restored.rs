//! Stores and targets that were put back to earlier moments, and streams whose first events are gone.

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::{
    AllPage, EventStore, EventStoreExt, ExpectedRevision, Filter, ReadAll, ReadStream,
    RecordedEvent, Result, Revision, SetStreamMetadata, StreamId, StreamMetadata, StreamPage,
};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::testing::{Fate, Faulty};
use gesta_projection::{
    ApplyError, BeginAt, Config, Error, OnPoison, OnRestore, Order, Phase, State, View,
};

use super::fixtures::{Balance, Balances, number, of_category, seen};
use super::versions::BalancesV2;
use super::world::{AT_ALL, World, id, quick, until_phase, until_so};

/// Puts the store of a world back to its first ten events, in another life.
async fn restore(world: &mut World) {
    let events = world.store.read_everything().await.expect("read");
    let restored = MemoryStore::restored(MemoryConfig::default(), events.into_iter().take(10));
    world.store = Arc::new(restored.expect("whole"));
}

/// A world whose store was restored after a projection had come to its end.
async fn restored() -> World {
    let mut world = World::new().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    restore(&mut world).await;
    world
}

/// Schedule 23: a store that was restored to an earlier backup has another incarnation: the projection stops and says
/// so, instead of going on with rows of events that are not there. What happened: no reset was ever obeyed after that,
/// for whoever ran the version stopped before it looked at commands. Now the reset lets it go on, from the same floor
/// in the store as it is now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_23_a_restored_store_is_noticed() {
    let world = restored().await;
    let (control, balances) = (world.control(), id("balances", 1));
    let process = world.started(quick(), Balances).await;
    let stopped = until_phase(&process, &balances, Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(why.contains("the store was restored or replaced"), "{why}");
    let row = world.row("balances").await;
    assert_eq!((row.state, row.error), (State::Stopped, Some(why.clone())));
    // Whoever waits is told of it, and not that the checkpoint is wrong.
    let head = world.head().await;
    let waited = process.wait_for("balances", &head, AT_ALL).await;
    let told = waited.expect_err("it has stopped").to_string();
    assert!(told.contains(&why), "{told}");
    let row = world.row("balances").await;
    let missing = control.missing(&*world.store, &row, &head).await;
    assert_eq!(missing.expect("known"), 10);
    // To go on is of no use, as long as nobody resets it.
    control.resume(&balances).await.expect("resumed");
    process.look_now();
    until_so(
        async || world.row("balances").await.state == State::Stopped,
        "a stop",
    )
    .await;
    let reset = control.order(&balances, &Order::Reset, AT_ALL).await;
    assert_eq!(reset.expect("it is done"), "it was reset");
    world.is_whole(&process, OnPoison::Stop).await;
    world.append_many(5).await;
    world.is_whole(&process, OnPoison::Stop).await;
    let row = world.row("balances").await;
    assert_eq!(
        (row.state, row.resets, row.error),
        (State::Running, 1, None)
    );
    let floor = world.checkpoint_at(&world.head().await, 0);
    assert_eq!(row.floor, floor);
    process.shutdown().await;
    world.comes_right(OnPoison::Stop).await;
}

/// Rows that can always be built again need nobody who acts: the version is reset by itself, once, and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_may_be_reset_by_itself() {
    let mut world = restored().await;
    let resetting = || Config {
        on_restore: OnRestore::Reset,
        ..quick()
    };
    let process = world.started(resetting(), Balances).await;
    until_so(async || world.row("balances").await.resets == 1, "a reset").await;
    world.is_whole(&process, OnPoison::Stop).await;
    world.append_many(5).await;
    world.is_whole(&process, OnPoison::Stop).await;
    let row = world.row("balances").await;
    assert_eq!(
        (row.state, row.resets, row.error),
        (State::Running, 1, None)
    );
    assert_eq!(row.floor, world.checkpoint_at(&world.head().await, 0));
    process.shutdown().await;
    // The checkpoint of the same life is not touched; that of another one is, each time.
    let process = world.started(resetting(), Balances).await;
    world.append_many(1).await;
    world.is_whole(&process, OnPoison::Stop).await;
    assert_eq!(world.row("balances").await.resets, 1);
    process.shutdown().await;
    restore(&mut world).await;
    let process = world.started(resetting(), Balances).await;
    until_so(async || world.row("balances").await.resets == 2, "a reset").await;
    world.is_whole(&process, OnPoison::Stop).await;
    process.shutdown().await;
}

/// Where nobody can tell where the version begins in the restored store, it stops, and says both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_without_a_beginning_is_not_reset_by_itself() {
    let mut world = World::new().await;
    world.append_many(12).await;
    let floor = BeginAt::Checkpoint(world.head().await);
    let begun = world.process(quick()).view(Balances);
    let process = begun.begin_at("balances", floor).start().await;
    let process = process.expect("started");
    world.append_many(3).await;
    world.applies_all(&process, "balances").await;
    process.shutdown().await;
    let rows = seen(&world.database, "balances").await;
    restore(&mut world).await;
    let resetting = world.process(quick()).on_restore(OnRestore::Reset);
    let process = resetting.view(Balances).start().await.expect("started");
    let stopped = until_phase(&process, &id("balances", 1), Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(why.contains("the store was restored or replaced"), "{why}");
    assert!(why.contains("say with begin_at"), "{why}");
    assert_eq!(seen(&world.database, "balances").await, rows);
    process.shutdown().await;
}

/// What happened: a new version could not begin after a restore, for the active one had begun in another life of the
/// store; and one that was told where to begin could never take the readers. Now it does both; the old version cannot
/// be switched back to, but retired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_follows_one_of_before_the_restore() {
    let world = restored().await;
    let (control, store) = (world.control(), &*world.store);
    let process = world.started(quick(), BalancesV2).await;
    until_so(
        async || world.row("balances").await.id.version == 2,
        "a switch",
    )
    .await;
    world.applies_all(&process, "balances").await;
    let first = id("balances", 1);
    for back in [
        control.switch(&first).await,
        control.switch_in(store, &first).await,
    ] {
        assert!(matches!(back, Err(Error::Invalid(_))), "{back:?}");
    }
    control.retire(&first).await.expect("nobody reads it");
    process.shutdown().await;
}

/// The same if somebody switches by hand: only with the store at hand can it be told which version is of its present
/// life, and whether it has come to the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_switches_after_a_restore() {
    let world = restored().await;
    let (control, second) = (world.control(), id("balances", 2));
    let by_hand = Config {
        switch_when_caught_up: false,
        ..quick()
    };
    let process = world.started(by_hand, BalancesV2).await;
    until_phase(&process, &second, Phase::Live).await;
    let error = control.switch(&second).await.expect_err("not known");
    assert!(error.to_string().contains("name the store"), "{error}");
    control.pause(&second).await.expect("paused");
    until_phase(&process, &second, Phase::Paused).await;
    world.append_many(2).await;
    let error = control.switch_in(&*world.store, &second).await;
    let error = error.expect_err("it is behind").to_string();
    assert!(error.contains("2 positions behind the end"), "{error}");
    control.resume(&second).await.expect("resumed");
    until_so(
        async || control.switch_in(&*world.store, &second).await.is_ok(),
        "a switch",
    )
    .await;
    assert_eq!(world.row("balances").await.id, second);
    process.shutdown().await;
}

/// A floor in the middle means nothing in another life of the store: the reset is refused until the program says where
/// the version begins now, and so is a new version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_floor_of_before_the_restore_is_asked_for_anew() {
    let mut world = World::new().await;
    world.append_many(12).await;
    let floor = BeginAt::Checkpoint(world.head().await);
    world.append_many(8).await;
    let of = |world: &World, at: Option<BeginAt>| {
        let process = world.process(quick()).view(Balances);
        at.into_iter()
            .fold(process, |process, at| process.begin_at("balances", at))
    };
    let process = of(&world, Some(floor)).start().await.expect("started");
    world.applies_all(&process, "balances").await;
    process.shutdown().await;
    restore(&mut world).await;
    let new = world.process(quick()).view(BalancesV2).start().await;
    let error = new.expect_err("refused").to_string();
    assert!(
        error.contains("balances v2 cannot begin where balances v1 began"),
        "{error}"
    );
    assert!(error.contains("say with begin_at"), "{error}");
    let (control, balances) = (world.control(), id("balances", 1));
    let process = of(&world, None).start().await.expect("started");
    let reset = control.order(&balances, &Order::Reset, AT_ALL).await;
    let error = reset.expect_err("refused").to_string();
    assert!(error.contains("say with begin_at"), "{error}");
    until_so(
        async || world.row("balances").await.state == State::Stopped,
        "a stop",
    )
    .await;
    assert_eq!(world.row("balances").await.resets, 0);
    process.shutdown().await;
    let head = world.head().await;
    let process = of(&world, Some(BeginAt::End))
        .start()
        .await
        .expect("started");
    let reset = control.order(&balances, &Order::Reset, AT_ALL).await;
    reset.expect("it is done");
    world.append_many(3).await;
    world.applies_all(&process, "balances").await;
    let row = world.row("balances").await;
    assert_eq!((row.floor, row.events), (head, 3));
    process.shutdown().await;
}

/// A copy of the store with another number of logs is another store too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_goes_on_in_a_store_of_more_logs() {
    let mut world = World::new().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    let three = MemoryConfig {
        logs: 3,
        ..MemoryConfig::default()
    };
    world.store = Arc::new(MemoryStore::with_config(three));
    world.append_many(30).await;
    let process = world.started(quick(), Balances).await;
    until_phase(&process, &id("balances", 1), Phase::Stopped).await;
    let control = world.control();
    let reset = control
        .order(&id("balances", 1), &Order::Reset, AT_ALL)
        .await;
    reset.expect("it is done");
    world.is_whole(&process, OnPoison::Stop).await;
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
    let control = world.control();
    let reset = control
        .order(&id("balances", 1), &Order::Reset, AT_ALL)
        .await;
    reset.expect("it is done");
    world.is_whole(&process, OnPoison::Stop).await;
    process.shutdown().await;
}

/// Schedule 23: a target that was put back to an earlier backup just goes on from its own checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_23_a_restored_target_goes_on() {
    let world = World::new().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    world.database.back_up().await;
    world.append_many(20).await;
    world.comes_right(OnPoison::Stop).await;
    world.database.put_back().await;
    world.append_many(5).await;
    world.comes_right(OnPoison::Stop).await;
}

/// The same under a process that lives on, while nothing is appended: a fail-over to a standby that was behind, or a
/// backup that is put back. What happened: the process had no reason to ask, so the rows stayed away until the next
/// event, and whoever waited was told from memory that they were there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_23_a_target_that_is_restored_under_a_process_goes_on() {
    // Of the present session, and of one before it, whose epoch is smaller.
    for is_of_before in [false, true] {
        let world = World::new().await;
        world.append_many(20).await;
        world.comes_right(OnPoison::Stop).await;
        if is_of_before {
            world.database.back_up().await;
        }
        let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
        let process = world.faulty(quick(), &faulty).view(Balances).start().await;
        let process = process.expect("started");
        until_phase(&process, &id("balances", 1), Phase::Live).await;
        if !is_of_before {
            world.database.back_up().await;
        }
        world.append_many(20).await;
        world.is_whole(&process, OnPoison::Stop).await;
        let head = world.head().await;
        world.database.put_back().await;
        // The first may have been under way, the second is begun after it.
        let looks = faulty.looks() + 2;
        until_so(async || faulty.looks() >= looks, "it looks").await;
        // Nobody is told that the rows are there before they are.
        world.is_whole(&process, OnPoison::Stop).await;
        let row = world.row("balances").await;
        assert_eq!((row.checkpoint, row.events), (head, 40));
        process.shutdown().await;
    }
}

/// A store whose first events of stream `account-1` were scavenged.
struct Scavenged(MemoryStore);

#[async_trait]
impl Wrapper for Scavenged {
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

/// What happened: a version that a reset after a restore let begin with the first event was told of no hidden fronts,
/// until its process was started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_front_is_told_after_a_reset_to_the_start() {
    let mut world = World::new().await;
    for n in 0..6 {
        world.append("account-1", "added", &n.to_string()).await;
    }
    let begun = |world: &World, at| {
        let process = world.process(quick()).view(Marked);
        process.begin_at("balances", at)
    };
    let at = BeginAt::Checkpoint(world.head().await);
    let process = begun(&world, at).start().await.expect("started");
    until_phase(&process, &id("balances", 1), Phase::Live).await;
    process.shutdown().await;
    let events = world.store.read_everything().await.expect("read");
    let restored = MemoryStore::restored(MemoryConfig::default(), events);
    world.store = Arc::new(Outer(Scavenged(restored.expect("whole"))));
    let process = begun(&world, BeginAt::Start).start().await;
    let process = process.expect("started");
    let (control, balances) = (world.control(), id("balances", 1));
    let reset = control.order(&balances, &Order::Reset, AT_ALL).await;
    reset.expect("it is done");
    world.applies_all(&process, "balances").await;
    let totals = "SELECT total FROM balances";
    assert_eq!(world.database.lines(totals).await, ["1000012"]);
    process.shutdown().await;
}

/// As [`Marked`], with a row for each ten amounts of a stream.
struct Decades;

impl View for Decades {
    const NAME: &'static str = "balances";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Balance;

    fn filter(&self) -> Filter {
        of_category("account")
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        let decade = number(event).ok()? / 10;
        Some(format!("{}/{decade}", event.stream))
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
        event: &RecordedEvent,
    ) -> std::result::Result<(), ApplyError> {
        Marked.front_hidden(row, event)
    }
}

/// What happened: when metadata hid the first events of a stream that a view had seen, each new row of that stream was
/// taken for one that lacks them, and marked by the author's code. Now only what was hidden before the view met it is
/// told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_that_is_hidden_later_is_not_told() {
    let world = World::new().await;
    let append = async |numbers: std::ops::Range<u32>| {
        for n in numbers {
            world.append("account-1", "added", &n.to_string()).await;
        }
    };
    let process = world.started(quick(), Decades).await;
    append(0..25).await;
    world.applies_all(&process, "balances").await;
    let request = SetStreamMetadata {
        stream: StreamId::new("account-1").expect("valid"),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(r#"{"$maxCount":5}"#).expect("valid"),
    };
    let set = world.store.set_stream_metadata(request).await;
    set.expect("set");
    append(25..35).await;
    world.applies_all(&process, "balances").await;
    let balances = id("balances", 1);
    let progress = process.progress(&balances).expect("it runs here");
    assert_eq!(progress.borrow().hidden_fronts, 0);
    process.shutdown().await;
    // Nor by a process that has not seen the first events itself, as long as one of what was seen is there.
    let process = world.started(quick(), Decades).await;
    append(35..42).await;
    world.applies_all(&process, "balances").await;
    let progress = process.progress(&balances).expect("it runs here");
    assert_eq!(progress.borrow().hidden_fronts, 0);
    process.shutdown().await;
    let totals = "SELECT max(total) FROM balances";
    assert_eq!(world.database.lines(totals).await, ["345"]);
}

/// A store that fails every second read.
struct Flaky(MemoryStore, std::sync::atomic::AtomicU32);

#[async_trait]
impl Wrapper for Flaky {
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
