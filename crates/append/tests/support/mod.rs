//! Processes that append to a [`World`], each with its own faults.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_append::{Config, Pipeline};
use gesta_core::backend::{Backend, Batch, CommitObserver};
use gesta_core::{LogId, RecordedEvent, StreamId};
use gesta_kit::faulty::{Faulty, World};

/// A process.
pub(crate) type Process = Faulty<Pipeline>;

/// A database of one log, whose processes may have so many batches in flight.
pub(crate) fn world(batches_in_flight_max: usize) -> Arc<World> {
    let world = World::new(1);
    world.set_batches_in_flight_max(batches_in_flight_max);
    world
}

/// All stored events. Fails if a process has sent what would break positions, revisions or names.
pub(crate) fn events(world: &World) -> Vec<RecordedEvent> {
    let stored = world.stored();
    stored.into_iter().map(|stored| stored.event).collect()
}

/// Checks what must always hold: positions and revisions without gaps.
pub(crate) fn check(world: &World) {
    let mut next: HashMap<StreamId, u64> = HashMap::new();
    for (event, position) in events(world).iter().zip(1..) {
        assert_eq!(event.position.0, position);
        let revision = next.entry(event.stream.clone()).or_default();
        assert_eq!(event.revision.0, *revision, "stream {}", event.stream);
        *revision += 1;
    }
}

struct NoObserver;

impl CommitObserver for NoObserver {
    fn committed(&self, _: &Arc<Batch>) {}
    fn read_log_end(&self, _: LogId) {}
}

/// Panics when it is told of the first batch.
pub(crate) struct PanicsOnce(pub(crate) std::sync::atomic::AtomicBool);

impl CommitObserver for PanicsOnce {
    fn committed(&self, _: &Arc<Batch>) {
        let is_first = !self.0.swap(true, std::sync::atomic::Ordering::Relaxed);
        assert!(!is_first, "planned");
    }
    fn read_log_end(&self, _: LogId) {}
}

/// A process that appends.
pub(crate) fn start_with(world: &Arc<World>, config: Config) -> Process {
    start_observed(world, config, Arc::new(NoObserver))
}

/// A process that appends, with an observer.
pub(crate) fn start_observed(
    world: &Arc<World>,
    config: Config,
    observer: Arc<dyn CommitObserver>,
) -> Process {
    let start = |backend: Arc<dyn Backend>| {
        Pipeline::start(backend, LogId(0), config, world.clock(), observer)
    };
    Faulty::start(world, start)
}

/// A process of two pipelines that share the bound on what waits.
pub(crate) fn start_two_sharing(world: &Arc<World>, config: &Config) -> Faulty<[Pipeline; 2]> {
    let admission = config.admission();
    let start = |backend: Arc<dyn Backend>| {
        [(); 2].map(|()| {
            let (config, clock) = (config.clone(), world.clock());
            let (backend, admission) = (Arc::clone(&backend), Arc::clone(&admission));
            let observer = Arc::new(NoObserver);
            Pipeline::start_sharing(backend, LogId(0), config, clock, observer, admission)
        })
    };
    Faulty::start(world, start)
}

/// How long a test waits for one thing to happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

/// Waits until a condition holds, but not for ever. Real time passes also where that of the tasks stands still.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(
            begun.elapsed() < DEADLINE,
            "{what}: did not happen within {DEADLINE:?}"
        );
        tokio::task::yield_now().await;
    }
}
