//! Effects that note what they would send, and stores that fail.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    Append, Appended, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, Filter,
    RecordedEvent, Result,
};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::{
    ApplyError, BeginAt, Config, Effect, Effects, Phase, Progress, RunningEffects,
};
use tokio::sync::Semaphore;

pub(crate) const AT_ALL: Duration = Duration::from_secs(60);

pub(crate) type Sent = Arc<Mutex<Vec<String>>>;

/// Notes what it would send. An event whose data begin with `bad` fails until it was tried often enough.
pub(crate) struct Mail<const VERSION: u32> {
    pub(crate) sent: Sent,
    pub(crate) fails: u32,
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

pub(crate) fn quick() -> Config {
    Config {
        lease: Duration::from_millis(200),
        look_every: Duration::from_millis(10),
        back_off: (Duration::from_millis(1), Duration::from_millis(5)),
        ..Config::default()
    }
}

pub(crate) fn store() -> Arc<dyn EventStore> {
    Arc::new(MemoryStore::new())
}

pub(crate) async fn append(store: &Arc<dyn EventStore>, texts: &[&str]) {
    for text in texts {
        let event_type = EventType::new("noted").expect("valid");
        let events = vec![EventData::json(event_type, (*text).to_owned())];
        let appended = store
            .append_to("note-1", ExpectedRevision::Any, events)
            .await;
        appended.expect("appended");
    }
}

pub(crate) async fn run<const V: u32>(
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

pub(crate) async fn until(
    running: &RunningEffects,
    is_so: impl FnMut(&Progress) -> bool,
) -> Progress {
    let mut progress = running.progress("mail").expect("it runs here");
    let found = tokio::time::timeout(AT_ALL, progress.wait_for(is_so)).await;
    found
        .expect("it comes to it")
        .expect("its task runs")
        .clone()
}

pub(crate) async fn until_phase(running: &RunningEffects, phase: Phase) -> Progress {
    until(running, |progress| progress.phase == phase).await
}

pub(crate) fn texts(sent: &Sent) -> Vec<String> {
    sent.lock().expect("not poisoned").clone()
}

/// Performs nothing until it is let go on, and then what comes.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) sent: Sent,
    pub(crate) began: Arc<Semaphore>,
    pub(crate) goes_on: Arc<Semaphore>,
    /// How many are performed now, and the most that were at once.
    pub(crate) now: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
}

impl Held {
    pub(crate) fn new() -> Self {
        Self {
            sent: Sent::default(),
            began: Arc::new(Semaphore::new(0)),
            goes_on: Arc::new(Semaphore::new(0)),
            now: Arc::default(),
            most: Arc::default(),
        }
    }

    /// Waits until one more event has begun to be performed.
    pub(crate) async fn until_begun(&self) {
        let begun = tokio::time::timeout(AT_ALL, self.began.acquire()).await;
        begun.expect("it begins").expect("open").forget();
    }
}

/// Counts one fewer when the handler has ended, or was given up.
pub(crate) struct Ends(Arc<AtomicUsize>);

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

/// Returns true if an append is of a state of an effect.
pub(crate) fn is_of_states(request: &Append) -> bool {
    let mut streams = request.streams.iter();
    streams.any(|part| part.stream.as_str().starts_with("$effect-"))
}

/// A store that does not store so many states of effects.
pub(crate) struct Away(MemoryStore, Arc<AtomicU32>);

#[async_trait]
impl Wrapper for Away {
    fn inner(&self) -> &dyn EventStore {
        &self.0
    }

    async fn append(&self, request: Append) -> Result<Appended> {
        let is_state = is_of_states(&request);
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

pub(crate) fn store_that_fails() -> (Arc<dyn EventStore>, Arc<AtomicU32>) {
    let fails = Arc::new(AtomicU32::new(0));
    let store = Away(MemoryStore::new(), Arc::clone(&fails));
    (Arc::new(Outer(store)), fails)
}

pub(crate) async fn run_held(
    store: &Arc<dyn EventStore>,
    held: &Held,
    config: Config,
) -> RunningEffects {
    let effects = Effects::on(store).config(config);
    let effects = effects.effect(held.clone(), BeginAt::Start);
    effects.start().await.expect("started")
}

/// Returns a store that was restored from all that is in another one.
pub(crate) async fn restored(store: &Arc<dyn EventStore>) -> Arc<dyn EventStore> {
    let events = store.read_everything().await.expect("read");
    let restored = MemoryStore::restored(MemoryConfig::default(), events);
    Arc::new(restored.expect("whole"))
}
