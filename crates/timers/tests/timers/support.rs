//! A process with timers on a store whose faults a test chooses, and what it has fired.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::{
    Clock, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, StreamId, Timestamp,
};
use gesta_testkit::faulty::{FaultyStore, World};
use gesta_timers::{Config, RunningTimers, Timer, Timers};
use tokio::time::{sleep, timeout};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// A clock that is wrong by as much as a test says.
pub(crate) struct WrongClock {
    right: Arc<dyn Clock>,
    pub(crate) error: AtomicI64,
}

impl Clock for WrongClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.right.now().0 + self.error.load(Ordering::Relaxed))
    }
}

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

/// A process: its store, its clock, and its timers.
pub(crate) struct Process {
    pub(crate) store: FaultyStore,
    pub(crate) clock: Arc<WrongClock>,
    pub(crate) timers: Timers,
}

impl Process {
    pub(crate) fn new(world: &Arc<World>, config: Config) -> Self {
        let store = world.store();
        let clock = Arc::new(WrongClock {
            right: world.clock(),
            error: AtomicI64::new(0),
        });
        let shared: Arc<dyn EventStore> = store.share();
        let timers = Timers::on(&shared, "orders").unwrap().config(config);
        Self {
            timers: timers.clock(Arc::clone(&clock) as Arc<dyn Clock>),
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
    let waited = async {
        while !is_so() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(60 * MINUTE, waited).await.is_ok(), "{what}");
}

pub(crate) async fn count_of(world: &Arc<World>, stream: &str) -> usize {
    let stream = StreamId::new(stream).unwrap();
    let is_it = |event: &&gesta_testkit::faulty::StoredEvent| event.event.stream == stream;
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
