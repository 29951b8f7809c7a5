//! Effects: at least once and in order, by one process at a time, from where the version before has come to.
#![allow(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use gesta_core::{
    EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, Filter, RecordedEvent,
};
use gesta_memory::MemoryStore;
use gesta_projection::{
    ApplyError, BeginAt, Config, Effect, Effects, OnPoison, Phase, Progress, RunningEffects,
};
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

    async fn perform(&self, event: &RecordedEvent, attempt: u32) -> Result<(), ApplyError> {
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
struct Held {
    sent: Sent,
    began: Arc<Semaphore>,
    goes_on: Arc<Semaphore>,
}

impl Effect for Held {
    const NAME: &'static str = "mail";
    const VERSION: u32 = 1;

    fn filter(&self) -> Filter {
        Filter::ALL
    }

    async fn perform(&self, event: &RecordedEvent, _: u32) -> Result<(), ApplyError> {
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
        let (began, goes_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let sent = Sent::default();
        let held = Held {
            sent: Arc::clone(&sent),
            began: Arc::clone(&began),
            goes_on: Arc::clone(&goes_on),
        };
        let effects = Effects::on(&store)
            .config(quick())
            .effect(held, BeginAt::Start);
        let running = effects.start().await.expect("started");
        let first = tokio::time::timeout(AT_ALL, began.acquire()).await;
        drop(first.expect("it begins"));
        let mut stopped = std::pin::pin!(running.shutdown());
        // It is told before its first event has ended.
        assert!(stopped.as_mut().now_or_never().is_none());
        goes_on.add_permits(10);
        stopped.await;
        let before = texts(&sent);
        let (next, rest) = run::<1>(&store, quick(), 0).await;
        until(&next, |progress| progress.phase == Phase::Live).await;
        next.shutdown().await;
        let all: Vec<_> = before.into_iter().chain(texts(&rest)).collect();
        assert_eq!(all, ["a", "b", "c"]);
    }
}
