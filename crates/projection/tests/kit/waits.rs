//! Reads of one's own writes: when the waiting ends, and with which reason.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    AllPage, Appended, Checkpoint, EventStore, Filter, Place, ReadAll, RecordedEvent,
};
use gesta_kit::{Outer, Wrapper};
use gesta_projection::testing::{Fate, Faulty, Through};
use gesta_projection::{
    Api, ApplyError, Batch, Config, Error, OnPoison, Order, Phase, Projection, Request, State, View,
};

use super::fixtures::{Balance, Balances, of_category};
use super::versions::BalancesV2;
use super::world::{AT_ALL, Process, World, id, quick, until_phase, until_so};
use crate::flavour::Target;

/// What authors get of a transaction.
type Transaction = <Target as gesta_projection::Target>::Transaction;

/// A projection that was paused says so to whoever waits; one that is behind says by how much; a checkpoint of another
/// store is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_ends_with_a_reason() {
    let world = World::new().await;
    let process = world.started(quick(), Balances).await;
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
    assert!(
        lag.positions >= 1 && lag.age > Some(Duration::ZERO),
        "{lag:?}"
    );
    world.control().resume(&balances).await.expect("resumed");
    process.look_now();
    process
        .wait_for("balances", &written.checkpoint, AT_ALL)
        .await
        .expect("applied");
    assert_eq!(
        process.lag("balances").await.expect("its lag").age,
        Some(Duration::ZERO)
    );
    let strange = World::new().await.head().await;
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
    // What happened: a place of this store that it does not reach was told to be shown, for nothing matched up to it.
    let head = world.head().await;
    let further = world.checkpoint_at(&head, position(&head) + 10);
    let error = process.wait_for("balances", &further, AT_ALL).await;
    let error = error.expect_err("it is stored nowhere");
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    assert!(matches!(
        process.wait_for("unknown", &strange, AT_ALL).await,
        Err(Error::NotFound(_))
    ));
    process.shutdown().await;
}

/// The position of a checkpoint of one log.
fn position(at: &Checkpoint) -> u64 {
    match &at.place {
        Place::Logs(positions) => positions[0].0,
        Place::Stream { .. } => panic!("it is one of all events"),
    }
}

/// What happened: whoever waited while the readers were switched to another version was told of a reset, for the old
/// version had been reset once in its life, and the new one never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_is_no_reset() {
    let world = World::new().await;
    world.append_many(5).await;
    let by_hand = || Config {
        switch_when_caught_up: false,
        // The one that hangs is not taken for dead.
        lease: Duration::from_secs(3_600),
        ..quick()
    };
    let hangs = Faulty::new(world.target.clone(), 0, Fate::None);
    let first = world.faulty(by_hand(), &hangs).view(Balances).start().await;
    let first = first.expect("started");
    let (control, old, new) = (world.control(), id("balances", 1), id("balances", 2));
    let reset = control.order(&old, &Order::Reset, AT_ALL).await;
    reset.expect("it was reset");
    world.applies_all(&first, "balances").await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let second = world.faulty(by_hand(), &faulty);
    let second = second.view(Balances).view(BalancesV2).start().await;
    let second = second.expect("started");
    hangs.set_hung(true);
    let written = world.append("account-1", "added", "1").await.checkpoint;
    let (api, path) = (second.api(), "/balances/wait");
    let parameters = HashMap::from([
        ("checkpoint".to_owned(), written.to_string()),
        ("timeout_ms".to_owned(), "60000".to_owned()),
    ]);
    let asked = api.answer(Request {
        method: "GET",
        path,
        parameters: &parameters,
        content_type: None,
        caller: None,
    });
    let switched = async {
        // Both wait for the old version meanwhile.
        let looks = faulty.looks() + 20;
        until_so(async || faulty.looks() >= looks, "it looks").await;
        let is_there = async || control.switch_in(&*world.store, &new).await.is_ok();
        until_so(is_there, "it is switched").await;
    };
    let waits = second.wait_for("balances", &written, AT_ALL);
    let (waited, answer, ()) = tokio::join!(waits, asked, switched);
    waited.expect("the new version shows it");
    assert_eq!(answer.status, 200, "{answer:?}");
    hangs.set_hung(false);
    first.shutdown().await;
    second.shutdown().await;
}

/// Waits within `apply` for its own projection, which would be for ever.
#[derive(Clone, Default)]
struct WaitsForItself {
    process: Arc<OnceLock<Arc<Process>>>,
    answer: Arc<Mutex<Option<String>>>,
}

impl Projection<Target> for WaitsForItself {
    const NAME: &'static str = "waits";
    const VERSION: u32 = 1;

    fn filter(&self) -> Filter {
        of_category("account")
    }

    async fn create(&self, _: &mut Transaction) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn clear(&self, _: &mut Transaction) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn apply(&self, _: &mut Transaction, batch: &Batch) -> Result<(), ApplyError> {
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
    let world = World::new().await;
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

/// What happened: the time was looked at between two questions only, so a target that gave no answer was waited for
/// without end. Now it has as long as a lease beyond the time that is waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_target_that_hangs() {
    let world = World::new().await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let process = world.faulty(quick(), &faulty).view(Balances).start().await;
    let process = process.expect("started");
    until_phase(&process, &id("balances", 1), Phase::Live).await;
    faulty.set_hung(true);
    let written = world.append("account-1", "added", "1").await;
    let waiting = process.wait_for("balances", &written.checkpoint, Duration::ZERO);
    let waited = tokio::time::timeout(AT_ALL, waiting).await;
    let error = waited.expect("it ends").expect_err("no answer");
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    faulty.set_hung(false);
    world.is_whole(&process, OnPoison::Stop).await;
    process.shutdown().await;
}

/// What happened: a process that had stood still answered by what it knew before, though another one had taken the
/// projection over and reset it. Now it answers from memory only by a look that is younger than its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stood_still_asks() {
    let world = World::new().await;
    let written = world.append("account-1", "added", "1").await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let first = world.faulty(quick(), &faulty).view(Balances).start().await;
    let first = first.expect("started");
    until_phase(&first, &id("balances", 1), Phase::Live).await;
    let own = async || {
        let wait = Duration::ZERO;
        first.wait_for("balances", &written.checkpoint, wait).await
    };
    own().await.expect("applied");
    faulty.set_hung(true);
    world.end_leases().await;
    let second = world.started(quick(), Balances).await;
    until_phase(&second, &id("balances", 1), Phase::Live).await;
    let (control, balances) = (world.control(), id("balances", 1));
    let reset = control.order(&balances, &Order::Reset, AT_ALL).await;
    reset.expect("it was reset");
    // The one that hangs does not see it, and does not answer that it shows the event.
    let error = own().await.expect_err("it does not know");
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    faulty.set_hung(false);
    second.shutdown().await;
}

/// A projection whose batch takes until its process has looked some more times.
#[derive(Clone)]
struct Slow {
    faulty: Faulty<Target>,
    is_begun: Arc<OnceLock<()>>,
}

impl Projection<Target> for Slow {
    const NAME: &'static str = "slow";
    const VERSION: u32 = 1;

    fn filter(&self) -> Filter {
        of_category("account")
    }

    async fn create(&self, _: &mut Transaction) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn clear(&self, _: &mut Transaction) -> Result<(), ApplyError> {
        Ok(())
    }

    async fn apply(&self, _: &mut Transaction, _: &Batch) -> Result<(), ApplyError> {
        let _ = self.is_begun.set(());
        // Enough for the process to be told to stop in between.
        let looks = self.faulty.looks() + 20;
        while self.faulty.looks() < looks {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }
}

/// What happened: a process that was told to stop gave up its looks, and with them its lease, while its last batch was
/// still written. Now the lease is kept until the last projection has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_is_kept_until_the_last_batch_is_written() {
    let world = World::new().await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let slow = Slow {
        faulty: faulty.clone(),
        is_begun: Arc::default(),
    };
    let config = Config {
        // A file has one writer: the lease is not renewed within a batch of it.
        lease: Duration::from_secs(3_600),
        ..quick()
    };
    let process = world
        .faulty(config, &faulty)
        .projection(Through(slow.clone()));
    let process = process.start().await.expect("started");
    world.append("account-1", "added", "1").await;
    until_so(async || slow.is_begun.get().is_some(), "a batch").await;
    let stopped = tokio::time::timeout(AT_ALL, process.shutdown()).await;
    stopped.expect("it looks on, so that the batch comes to its end");
    let row = world.row("slow").await;
    assert_eq!((row.events, row.owner), (1, None));
}

/// A store whose reads of some events give no answer: those of category `rare`.
struct Hangs(Arc<dyn EventStore>);

#[async_trait]
impl Wrapper for Hangs {
    fn inner(&self) -> &dyn EventStore {
        &*self.0
    }

    async fn read_all(&self, request: ReadAll) -> gesta_core::Result<AllPage> {
        if request.filter == of_category("rare") {
            std::future::pending::<()>().await;
        }
        self.0.read_all(request).await
    }
}

/// As [`Balances`], of events that are rare.
#[derive(Clone, Copy)]
struct Rare;

impl View for Rare {
    const NAME: &'static str = "rare";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Balance;

    fn filter(&self) -> Filter {
        of_category("rare")
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Balances.key(event)
    }

    fn evolve(&self, row: &mut Option<Balance>, event: &RecordedEvent) -> Result<(), ApplyError> {
        Balances.evolve(row, event)
    }
}

/// What happened: the store was searched for one request at a time, of all projections: while a search for one of them
/// took long, requests that waited for another one were told that their time was over, for what it had long shown. And
/// whoever searched did not look meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_that_takes_long_holds_up_nobody() {
    let world = World::new().await;
    let faulty = Faulty::new(world.target.clone(), 0, Fate::None);
    let process = world.faulty(quick(), &faulty).view(Balances).view(Rare);
    let process = process.start().await.expect("started");
    for name in ["balances", "rare"] {
        until_phase(&process, &id(name, 1), Phase::Live).await;
    }
    let store: Arc<dyn EventStore> = Arc::new(Outer(Hangs(Arc::clone(&world.store))));
    let looked_at = Faulty::new(world.target.clone(), 0, Fate::None);
    let api = Api::of(&store, looked_at.clone());
    let wait = |path: &'static str, written: Appended| {
        let api = api.clone();
        tokio::spawn(async move {
            let parameters = HashMap::from([
                ("checkpoint".to_owned(), written.checkpoint.to_string()),
                ("timeout_ms".to_owned(), "20000".to_owned()),
            ]);
            let asked = api.answer(Request {
                method: "GET",
                path,
                parameters: &parameters,
                content_type: None,
                caller: None,
            });
            asked.await.status
        })
    };
    // Of no projection, so nothing is stored of it, and the store is searched.
    let other = world.append("other-1", "added", "1").await;
    let rare = wait("/rare/wait", other);
    faulty.set_away(true);
    let account = world.append("account-1", "added", "1").await;
    let account = wait("/balances/wait", account);
    // Whatever began before the first of these looks has ended with the last one.
    let looks = looked_at.looks() + 3;
    until_so(async || looked_at.looks() >= looks, "it looks").await;
    assert!(!rare.is_finished() && !account.is_finished());
    faulty.set_away(false);
    assert_eq!(account.await.expect("no panic"), 200);
    assert!(!rare.is_finished(), "nothing of it is stored");
    world.append("rare-1", "added", "1").await;
    assert_eq!(rare.await.expect("no panic"), 200);
    process.shutdown().await;
}
