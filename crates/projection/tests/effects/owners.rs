//! One process performs at a time, whatever becomes of it and of the store.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{Append, Appended, EventStore, EventStoreExt, Filter, RecordedEvent, Result};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;
use gesta_projection::{ApplyError, BeginAt, Config, Effect, Effects, Phase};

use super::support::{
    AT_ALL, Held, append, is_of_states, quick, run, run_held, store, store_that_fails, texts,
    until, until_phase,
};

/// Goal: one process performs, another stands by, and takes over when the first ends or dies; nothing is left out, and
/// what is repeated is only what came after the last checkpoint.
#[test]
fn another_process_takes_over() {
    let store = store();
    let here = tokio::runtime::Runtime::new().expect("a runtime");
    let dies = tokio::runtime::Runtime::new().expect("a runtime");
    here.block_on(append(&store, &["a", "b"]));
    let (first, sent) = dies.block_on(run::<1>(&store, quick(), 0));
    dies.block_on(until(&first, |progress| progress.events == 2));
    let (second, taken) = here.block_on(run::<1>(&store, quick(), 0));
    here.block_on(until_phase(&second, Phase::StandingBy));
    here.block_on(append(&store, &["c"]));
    dies.block_on(until(&first, |progress| progress.events == 3));
    assert_eq!(texts(&sent), ["a", "b", "c"]);
    // The process is gone, without a word.
    std::mem::forget(first);
    dies.shutdown_background();
    here.block_on(append(&store, &["d"]));
    here.block_on(async {
        let done = async {
            while texts(&taken).last().map(String::as_str) != Some("d") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(AT_ALL, done)
            .await
            .expect("it takes over");
        second.shutdown().await;
    });
    let all = ["a", "b", "c", "d"];
    let taken = texts(&taken);
    assert!(
        all.ends_with(&taken.iter().map(String::as_str).collect::<Vec<_>>()),
        "{taken:?}"
    );
}

/// What happened: when the checkpoint could not be stored while an event was performed, its handler went on unseen, and
/// the event was performed once more beside it. Goal: one at a time, and in order, also then.
#[tokio::test(start_paused = true)]
async fn an_event_is_not_performed_twice_at_once() {
    let (store, fails) = store_that_fails();
    append(&store, &["a", "b", "c"]).await;
    let held = Held::new();
    let running = run_held(&store, &held, quick()).await;
    held.until_begun().await;
    fails.store(u32::MAX, Ordering::SeqCst);
    until_phase(&running, Phase::StoreAway).await;
    fails.store(0, Ordering::SeqCst);
    held.until_begun().await;
    held.goes_on.add_permits(10);
    until(&running, |progress| progress.events == 3).await;
    running.shutdown().await;
    assert_eq!(held.most.load(Ordering::SeqCst), 1);
    assert_eq!(texts(&held.sent), ["a", "b", "c"]);
}

/// Goal: a store that is away for less than half of the lease interrupts nothing.
#[tokio::test(start_paused = true)]
async fn a_short_outage_interrupts_no_handler() {
    let (store, fails) = store_that_fails();
    append(&store, &["a", "b", "c"]).await;
    let held = Held::new();
    let config = Config {
        lease: Duration::from_secs(30),
        store_position_every: Duration::from_secs(1),
        ..quick()
    };
    let running = run_held(&store, &held, config).await;
    held.goes_on.add_permits(1);
    held.until_begun().await;
    held.until_begun().await;
    fails.store(5, Ordering::SeqCst);
    let stored = async || {
        store
            .read_whole_stream("$effect-mail")
            .await
            .expect("its states")
    };
    // The claim, and the place after the first event.
    while stored().await.len() < 2 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(fails.load(Ordering::SeqCst), 0);
    held.goes_on.add_permits(10);
    until(&running, |progress| progress.events == 3).await;
    running.shutdown().await;
    assert_eq!(texts(&held.sent), ["a", "b", "c"]);
    // The third has begun as well, and none has twice.
    assert_eq!(held.began.available_permits(), 1);
}

/// Notes each attempt, of whichever process, and always fails.
#[derive(Clone)]
struct Fails {
    process: u32,
    tried: Arc<Mutex<Vec<(u32, u32)>>>,
}

impl Effect for Fails {
    const NAME: &'static str = "mail";
    const VERSION: u32 = 1;

    fn filter(&self) -> Filter {
        Filter::ALL
    }

    async fn perform(
        &self,
        _: &RecordedEvent,
        attempt: u32,
    ) -> std::result::Result<(), ApplyError> {
        let mut tried = self.tried.lock().expect("not poisoned");
        tried.push((self.process, attempt));
        Err(ApplyError::text("the other side is away"))
    }
}

/// What happened: in a pause after a failed attempt that was longer than the lease the owner said nothing, so that
/// another process took over and began with the first attempt, and so in turns: the effect never stopped. Goal: one
/// process makes all attempts, and stops.
#[tokio::test(start_paused = true)]
async fn an_owner_lives_while_it_pauses() {
    let store = store();
    append(&store, &["a"]).await;
    let config = Config {
        back_off: (Duration::from_secs(5), Duration::from_secs(5)),
        ..quick()
    };
    let tried = Arc::default();
    let mut all = Vec::new();
    for process in 1..=2 {
        let fails = Fails {
            process,
            tried: Arc::clone(&tried),
        };
        let effects = Effects::on(&store).config(config.clone());
        let effects = effects.effect(fails, BeginAt::Start);
        all.push(effects.start().await.expect("started"));
    }
    for running in &all {
        let stopped = until_phase(running, Phase::Stopped).await;
        let why = stopped.error.expect("a reason");
        assert!(why.contains("failed in 3 attempts"), "{why}");
    }
    let tried = tried.lock().expect("not poisoned").clone();
    let process = tried[0].0;
    assert_eq!(tried, [(process, 1), (process, 2), (process, 3)]);
}

/// A store that stores states of effects at once, and answers this much later.
struct Slow(MemoryStore, Duration);

#[async_trait]
impl Wrapper for Slow {
    fn inner(&self) -> &dyn EventStore {
        &self.0
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        let appended = self.0.append(request.clone()).await;
        if is_of_states(&request) {
            tokio::time::sleep(self.1).await;
        }
        appended
    }
}

/// What happened: the lease of an owner counted from the answer to its state, though others had seen the state before.
/// While answers took most of a lease another process took over, and performed beside the first one. Goal: the owner
/// says that it lives within a lease of what it has said before.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_prolongs_no_lease() {
    let lease = Duration::from_secs(12);
    let slow = Slow(MemoryStore::new(), lease * 9 / 10);
    let store: Arc<dyn EventStore> = Arc::new(Outer(slow));
    append(&store, &["a"]).await;
    let config = Config {
        lease,
        look_every: Duration::from_secs(1),
        ..quick()
    };
    let held = Held::new();
    let first = run_held(&store, &held, config.clone()).await;
    held.until_begun().await;
    let second = run_held(&store, &held, config).await;
    until_phase(&second, Phase::StandingBy).await;
    tokio::time::sleep(lease * 20).await;
    assert_eq!(held.most.load(Ordering::SeqCst), 1);
    assert_eq!(held.began.available_permits(), 0, "it was performed again");
    held.goes_on.add_permits(1);
    until(&first, |progress| progress.events == 1).await;
    assert_eq!(texts(&held.sent), ["a"]);
}
