//! A process with timers on a store whose faults a test chooses, and what it has fired.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    Append, Appended, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision,
    ReadStream, Result, StreamId, StreamPage, Timestamp,
};
use gesta_kit::faulty::{FaultyStore, World};
use gesta_kit::support::OffsetClock;
use gesta_kit::{Outer, Wrapper};
use gesta_timers::{Config, RunningTimers, Timer, Timers};
use tokio::sync::watch;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// What has fired, and when.
#[derive(Clone, Default)]
pub(crate) struct Fired(Arc<Mutex<Vec<(Timer, Timestamp)>>>);

impl Fired {
    pub(crate) fn note(&self, timer: Timer, now: Timestamp) {
        self.0.lock().unwrap().push((timer, now));
    }

    pub(crate) fn all(&self) -> Vec<(Timer, Timestamp)> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.all().into_iter().map(|(timer, _)| timer.key).collect()
    }
}

type Holds = dyn Fn(&Append) -> bool + Send + Sync;

/// A store before which a process stands still: it is held between two of its calls.
pub(crate) struct Gate {
    store: Arc<dyn EventStore>,
    /// Which appends are held.
    holds: watch::Sender<Option<Arc<Holds>>>,
    /// Whether reads are held.
    holds_reads: watch::Sender<bool>,
    /// The number of appends that are held.
    held: AtomicUsize,
    /// The states that were sent.
    pub(crate) states: Mutex<Vec<Vec<u8>>>,
}

impl Gate {
    fn new(store: Arc<dyn EventStore>) -> Arc<Outer<Self>> {
        Arc::new(Outer(Self {
            store,
            holds: watch::Sender::new(None),
            holds_reads: watch::Sender::new(false),
            held: AtomicUsize::new(0),
            states: Mutex::default(),
        }))
    }

    /// Holds such appends before they are sent.
    pub(crate) fn hold(&self, holds: impl Fn(&Append) -> bool + Send + Sync + 'static) {
        self.holds.send_replace(Some(Arc::new(holds)));
    }

    /// Holds all appends and reads of streams before they are sent.
    pub(crate) fn hold_all(&self) {
        self.hold(|_| true);
        self.holds_reads.send_replace(true);
    }

    /// Lets all calls go on.
    pub(crate) fn release(&self) {
        self.holds.send_replace(None);
        self.holds_reads.send_replace(false);
    }

    /// Returns the number of appends that are held.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn note_states(&self, append: &Append) {
        let events = append.streams.iter().flat_map(|of| &of.events);
        let states = events.filter(|event| event.event_type.as_str() == "timers-state");
        let mut sent = self.states.lock().unwrap();
        sent.extend(states.map(|event| event.data.to_vec()));
    }
}

#[async_trait]
impl Wrapper for Gate {
    fn inner(&self) -> &dyn EventStore {
        &*self.store
    }

    async fn append(&self, append: Append) -> Result<Appended> {
        let is_held = |holds: &Option<Arc<Holds>>| holds.as_ref().is_some_and(|it| it(&append));
        let mut holds = self.holds.subscribe();
        if is_held(&holds.borrow()) {
            self.held.fetch_add(1, Ordering::Relaxed);
            let _ = holds.wait_for(|holds| !is_held(holds)).await;
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
        self.note_states(&append);
        self.store.append(append).await
    }

    async fn read_stream(&self, request: ReadStream) -> Result<StreamPage> {
        let mut holds = self.holds_reads.subscribe();
        let _ = holds.wait_for(|holds| !*holds).await;
        self.store.read_stream(request).await
    }
}

/// A process: its store, its clock, and its timers.
pub(crate) struct Process {
    pub(crate) store: FaultyStore,
    /// What its timers use the store through.
    pub(crate) gate: Arc<Outer<Gate>>,
    /// Wrong by as much as a test says.
    pub(crate) clock: OffsetClock,
    pub(crate) timers: Timers,
}

impl Process {
    pub(crate) fn new(world: &Arc<World>, config: Config) -> Self {
        let store = world.store();
        let clock = OffsetClock::of(world.clock());
        let gate = Gate::new(store.share());
        let shared: Arc<dyn EventStore> = gate.clone();
        let timers = Timers::on(&shared, "orders").unwrap().config(config);
        Self {
            timers: timers.clock(Arc::new(clock.clone())),
            gate,
            store,
            clock,
        }
    }

    /// Fires, and notes what has fired by the right time.
    pub(crate) fn run(&self, fired: &Fired) -> RunningTimers {
        let (fired, right) = (fired.clone(), self.store.world().clock());
        let noted = move |timer| {
            fired.note(timer, right.now());
            async { Ok(()) }
        };
        self.timers.run(noted).unwrap()
    }
}

pub(crate) fn after(world: &World, time: Duration) -> Timestamp {
    Timestamp(world.clock().now().0 + i64::try_from(time.as_micros()).unwrap())
}

pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    gesta_kit::support::until(what, 60 * MINUTE, async || is_so()).await;
}

pub(crate) async fn count_of(world: &Arc<World>, stream: &str) -> usize {
    let stream = StreamId::new(stream).unwrap();
    let is_it = |event: &&gesta_kit::faulty::StoredEvent| event.event.stream == stream;
    world.stored().iter().filter(is_it).count()
}

/// Appends requests that are made by hand.
pub(crate) async fn append_requests(process: &Process, requests: impl IntoIterator<Item = String>) {
    let of_type = EventType::new("timer-set").unwrap();
    let event = |data| EventData::json(of_type.clone(), data);
    let events: Vec<EventData> = requests.into_iter().map(event).collect();
    let stream = "$timers-{orders}";
    let appended = process
        .store
        .append_to(stream, ExpectedRevision::Any, events);
    appended.await.unwrap();
}
