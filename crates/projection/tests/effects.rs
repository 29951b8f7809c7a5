//! Effects: at least once and in order, by one process at a time, from where the version before has come to.
#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use gesta_core::{
    Append, Appended, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, Filter,
    RecordedEvent, Result, SetStreamMetadata, StreamId, StreamMetadata,
};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::{
    ApplyError, BeginAt, Config, Effect, Effects, OnPoison, Phase, Progress, RunningEffects,
};
use gesta_testkit::{Around, Outer};
use tokio::sync::Semaphore;

const AT_ALL: Duration = Duration::from_secs(60);

type Sent = Arc<Mutex<Vec<String>>>;

/// Notes what it would send. An event whose data begin with `bad` fails until it was tried often enough.
struct Mail<const VERSION: u32> {
    sent: Sent,
    fails: u32,
}

impl<const V: u32> Effect for Mail<V> {
    const NAME: &'static str = "mail";
    const VERSION: u32 = V;

    fn filter(&self) -> Filter {
        Filter::ALL
    }

    async fn perform(
        &self,
        event: &RecordedEvent,
        attempt: u32,
    ) -> std::result::Result<(), ApplyError> {
        let text = std::str::from_utf8(&event.data)?.to_owned();
        if text.starts_with("bad") && attempt <= self.fails {
            return Err(ApplyError::text("the other side is away"));
        }
        self.sent.lock().expect("not poisoned").push(text);
        Ok(())
    }
}

fn quick() -> Config {
    Config {
        lease: Duration::from_millis(200),
        look_every: Duration::from_millis(10),
        back_off: (Duration::from_millis(1), Duration::from_millis(5)),
        ..Config::default()
    }
}

fn store() -> Arc<dyn EventStore> {
    Arc::new(MemoryStore::new())
}

async fn append(store: &Arc<dyn EventStore>, texts: &[&str]) {
    for text in texts {
        let event_type = EventType::new("noted").expect("valid");
        let events = vec![EventData::json(event_type, (*text).to_owned())];
        let appended = store
            .append_to("note-1", ExpectedRevision::Any, events)
            .await;
        appended.expect("appended");
    }
}

async fn run<const V: u32>(
    store: &Arc<dyn EventStore>,
    config: Config,
    fails: u32,
) -> (RunningEffects, Sent) {
    let sent = Sent::default();
    let mail = Mail::<V> {
        sent: Arc::clone(&sent),
        fails,
    };
    let effects = Effects::on(store)
        .config(config)
        .effect(mail, BeginAt::Start);
    (effects.start().await.expect("started"), sent)
}

async fn until(running: &RunningEffects, is_so: impl FnMut(&Progress) -> bool) -> Progress {
    let mut progress = running.progress("mail").expect("it runs here");
    let found = tokio::time::timeout(AT_ALL, progress.wait_for(is_so)).await;
    found
        .expect("it comes to it")
        .expect("its task runs")
        .clone()
}

async fn until_phase(running: &RunningEffects, phase: Phase) -> Progress {
    until(running, |progress| progress.phase == phase).await
}

fn texts(sent: &Sent) -> Vec<String> {
    sent.lock().expect("not poisoned").clone()
}

/// Goal: each event once and in order while nothing fails, over restarts and new versions; an older version does
/// nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_begins_where_the_one_before_stands() {
    let store = store();
    append(&store, &["a", "b", "c"]).await;
    let (running, sent) = run::<1>(&store, quick(), 0).await;
    until(&running, |progress| progress.events == 3).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["a", "b", "c"]);
    append(&store, &["d"]).await;
    let (second, sent) = run::<2>(&store, quick(), 0).await;
    until(&second, |progress| progress.events == 1).await;
    assert_eq!(texts(&sent), ["d"]);
    let (old, sent) = run::<1>(&store, quick(), 0).await;
    let stopped = until_phase(&old, Phase::Stopped).await;
    assert_eq!(
        stopped.error.as_deref(),
        Some("version 2 has run, this is 1")
    );
    second.shutdown().await;
    old.shutdown().await;
    assert_eq!(texts(&sent), Vec::<String>::new());
}

/// Goal: an effect may begin with what happens from now on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_may_begin_at_the_end() {
    let store = store();
    append(&store, &["long ago"]).await;
    let sent = Sent::default();
    let mail = Mail::<1> {
        sent: Arc::clone(&sent),
        fails: 0,
    };
    let effects = Effects::on(&store)
        .config(quick())
        .effect(mail, BeginAt::End);
    let running = effects.start().await.expect("started");
    until_phase(&running, Phase::Live).await;
    append(&store, &["now"]).await;
    until(&running, |progress| progress.events == 1).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["now"]);
}

/// Goal: an event that fails is tried again; after the last attempt the effect stops before it, and goes on with it
/// when somebody resumes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_stops_before_an_event_that_fails() {
    let store = store();
    append(&store, &["a", "bad", "c"]).await;
    let (running, sent) = run::<1>(&store, quick(), 3).await;
    let stopped = until_phase(&running, Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(
        why.contains("position 2 of log 0 failed in 3 attempts: the other side is away"),
        "{why}"
    );
    assert_eq!(texts(&sent), ["a"]);
    running.shutdown().await;
    let (running, sent) = run::<1>(&store, quick(), 2).await;
    until_phase(&running, Phase::Stopped).await;
    running.resume("mail").await.expect("resumed");
    until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["bad", "c"]);
}

/// Goal: an effect that skips goes on, and says what it has skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_may_skip() {
    let store = store();
    append(&store, &["a", "bad", "c"]).await;
    let config = Config {
        on_poison: OnPoison::Skip,
        ..quick()
    };
    let (running, sent) = run::<1>(&store, config, u32::MAX).await;
    let done = async {
        while texts(&sent).len() < 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(AT_ALL, done)
        .await
        .expect("it goes on");
    running.shutdown().await;
    assert_eq!(texts(&sent), ["a", "c"]);
    let states = store
        .read_whole_stream("$effect-mail")
        .await
        .expect("its states");
    let skipped = states
        .iter()
        .filter(|state| state.data.windows(8).any(|w| w == b"skipped:"));
    assert_eq!(skipped.count(), 1);
}

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

/// Performs nothing until it is let go on, and then what comes.
#[derive(Clone)]
struct Held {
    sent: Sent,
    began: Arc<Semaphore>,
    goes_on: Arc<Semaphore>,
    /// How many are performed now, and the most that were at once.
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Held {
    fn new() -> Self {
        Self {
            sent: Sent::default(),
            began: Arc::new(Semaphore::new(0)),
            goes_on: Arc::new(Semaphore::new(0)),
            now: Arc::default(),
            most: Arc::default(),
        }
    }

    /// Waits until one more event has begun to be performed.
    async fn until_begun(&self) {
        let begun = tokio::time::timeout(AT_ALL, self.began.acquire()).await;
        begun.expect("it begins").expect("open").forget();
    }
}

/// Counts one fewer when the handler has ended, or was given up.
struct Ends(Arc<AtomicUsize>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Effect for Held {
    const NAME: &'static str = "mail";
    const VERSION: u32 = 1;

    fn filter(&self) -> Filter {
        Filter::ALL
    }

    async fn perform(&self, event: &RecordedEvent, _: u32) -> std::result::Result<(), ApplyError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        let _ends = Ends(Arc::clone(&self.now));
        self.most.fetch_max(now, Ordering::SeqCst);
        self.began.add_permits(1);
        self.goes_on.acquire().await?.forget();
        let text = std::str::from_utf8(&event.data)?.to_owned();
        self.sent.lock().expect("not poisoned").push(text);
        Ok(())
    }
}

/// What happened: a process that stopped in the middle of a batch could read once more, and stored the place of what it
/// read. Goal: what it has not performed is performed by the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stops_leaves_the_rest_to_the_next() {
    // Which of two things that are ready goes first is chance.
    for _ in 0..20 {
        let store = store();
        append(&store, &["a", "b", "c"]).await;
        let held = Held::new();
        let effects = Effects::on(&store)
            .config(quick())
            .effect(held.clone(), BeginAt::Start);
        let running = effects.start().await.expect("started");
        held.until_begun().await;
        let mut stopped = std::pin::pin!(running.shutdown());
        // It is told before its first event has ended.
        assert!(stopped.as_mut().now_or_never().is_none());
        held.goes_on.add_permits(10);
        stopped.await;
        let before = texts(&held.sent);
        let (next, rest) = run::<1>(&store, quick(), 0).await;
        until(&next, |progress| progress.phase == Phase::Live).await;
        next.shutdown().await;
        let all: Vec<_> = before.into_iter().chain(texts(&rest)).collect();
        assert_eq!(all, ["a", "b", "c"]);
    }
}

/// A store that does not store so many states of effects.
struct Away(MemoryStore, Arc<AtomicU32>);

#[async_trait]
impl Around for Away {
    fn inner(&self) -> &dyn EventStore {
        &self.0
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        let is_state = request
            .streams
            .iter()
            .any(|part| part.stream.as_str().starts_with("$effect-"));
        let left = |left: u32| left.checked_sub(1);
        if is_state
            && self
                .1
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, left)
                .is_ok()
        {
            return Err(gesta_core::Error::unavailable("the connection died"));
        }
        self.0.append(request).await
    }
}

fn store_that_fails() -> (Arc<dyn EventStore>, Arc<AtomicU32>) {
    let fails = Arc::new(AtomicU32::new(0));
    let store = Away(MemoryStore::new(), Arc::clone(&fails));
    (Arc::new(Outer(store)), fails)
}

async fn run_held(store: &Arc<dyn EventStore>, held: &Held, config: Config) -> RunningEffects {
    let effects = Effects::on(store).config(config);
    let effects = effects.effect(held.clone(), BeginAt::Start);
    effects.start().await.expect("started")
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

/// Returns a store that was restored from all that is in another one.
async fn restored(store: &Arc<dyn EventStore>) -> Arc<dyn EventStore> {
    let events = store.read_everything().await.expect("read");
    let restored = MemoryStore::restored(MemoryConfig::default(), events);
    Arc::new(restored.expect("whole"))
}

/// What happened: after a restore an effect stopped, and nothing led on but to delete its stream. Goal: it stops, since
/// its checkpoint is of another life of the store, and begins again where it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restore_it_begins_again_where_it_is_told() {
    let store = store();
    append(&store, &["a", "b"]).await;
    let (running, _) = run::<1>(&store, quick(), 0).await;
    let done = until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    let store = restored(&store).await;
    append(&store, &["c"]).await;
    let (running, sent) = run::<1>(&store, quick(), 0).await;
    let stopped = until_phase(&running, Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(why.contains("the store was restored or replaced"), "{why}");
    assert!(why.contains("begin_again"), "{why}");
    let resumed = running.resume("mail").await.expect_err("of no use");
    assert!(resumed.to_string().contains("begin_again"), "{resumed}");
    let old = BeginAt::Checkpoint(done.checkpoint.expect("known"));
    let error = running.begin_again("mail", old).await.expect_err("refused");
    assert!(
        error.to_string().contains("effect mail cannot begin at"),
        "{error}"
    );
    let again = running.begin_again("mail", BeginAt::End).await;
    again.expect("it begins");
    until_phase(&running, Phase::Live).await;
    append(&store, &["d"]).await;
    until(&running, |progress| progress.events == 1).await;
    assert_eq!(texts(&sent), ["d"]);
    // Also one that has not stopped.
    let again = running.begin_again("mail", BeginAt::Start).await;
    again.expect("it begins");
    until(&running, |progress| progress.events == 5).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["d", "a", "b", "c", "d"]);
}

/// Goal: an effect that is told so before goes on by itself after a restore.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restore_it_may_go_on_by_itself() {
    let store = store();
    append(&store, &["a", "b"]).await;
    let (running, _) = run::<1>(&store, quick(), 0).await;
    until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    let store = restored(&store).await;
    let sent = Sent::default();
    let mail = Mail::<1> {
        sent: Arc::clone(&sent),
        fails: 0,
    };
    let effects = Effects::on(&store).config(quick());
    let effects = effects.effect(mail, BeginAt::End);
    let effects = effects.after_restore(BeginAt::Start);
    let running = effects.start().await.expect("started");
    until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["a", "b"]);
}

/// What happened: metadata that hide the states of an effect made it wait for ever without a word. Goal: it says so,
/// and begins again where it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_states_are_told() {
    let store = store();
    append(&store, &["a", "b"]).await;
    let (running, _) = run::<1>(&store, quick(), 0).await;
    until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    let states = store
        .read_whole_stream("$effect-mail")
        .await
        .expect("its states");
    let hide = SetStreamMetadata {
        stream: StreamId::new("$effect-mail").expect("valid"),
        expected: ExpectedRevision::Any,
        metadata: StreamMetadata::parse(format!("{{\"$tb\":{}}}", states.len())).expect("valid"),
    };
    store.set_stream_metadata(hide).await.expect("set");
    let (running, sent) = run::<1>(&store, quick(), 0).await;
    let stopped = until_phase(&running, Phase::Stopped).await;
    let why = stopped.error.expect("a reason");
    assert!(
        why.contains("stream $effect-mail hide all its states"),
        "{why}"
    );
    let resumed = running.resume("mail").await.expect_err("of no use");
    assert!(resumed.to_string().contains("begin_again"), "{resumed}");
    let again = running.begin_again("mail", BeginAt::End).await;
    again.expect("it begins");
    until_phase(&running, Phase::Live).await;
    append(&store, &["c"]).await;
    until(&running, |progress| progress.events == 1).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["c"]);
}

/// Goal: what somebody else has written among the states stops no effect, and the last state before it counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_state_is_passed_over() {
    let store = store();
    append(&store, &["a", "b"]).await;
    let (running, _) = run::<1>(&store, quick(), 0).await;
    until(&running, |progress| progress.events == 2).await;
    running.shutdown().await;
    let strange = EventData::json(EventType::new("effect-state").expect("valid"), "1");
    let appended = store.append_to("$effect-mail", ExpectedRevision::Any, [strange]);
    appended.await.expect("appended");
    let (running, sent) = run::<1>(&store, quick(), 0).await;
    until_phase(&running, Phase::Live).await;
    append(&store, &["c"]).await;
    until(&running, |progress| progress.events == 1).await;
    running.shutdown().await;
    assert_eq!(texts(&sent), ["c"]);
}
