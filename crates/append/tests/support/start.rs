//! Processes that append, each with its observer.

use super::*;

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
pub(crate) fn start_with(sim: &Arc<Sim>, config: Config) -> Pipeline {
    let backend: Arc<dyn Backend> = Arc::<Sim>::clone(sim);
    let clock = Arc::new(SystemClock);
    Pipeline::start(backend, LogId(0), config, clock, Arc::new(NoObserver))
}

/// Two pipelines that share the bound on what waits.
pub(crate) fn start_two_sharing(sim: &Arc<Sim>, config: &Config) -> [Pipeline; 2] {
    let admission = config.admission();
    [(); 2].map(|()| {
        let backend: Arc<dyn Backend> = Arc::<Sim>::clone(sim);
        let (clock, observer) = (Arc::new(SystemClock), Arc::new(NoObserver));
        let admission = Arc::clone(&admission);
        Pipeline::start_sharing(
            backend,
            LogId(0),
            config.clone(),
            clock,
            observer,
            admission,
        )
    })
}

/// A process that appends, with an observer.
pub(crate) fn start_observed(sim: &Arc<Sim>, observer: Arc<dyn CommitObserver>) -> Pipeline {
    let backend: Arc<dyn Backend> = Arc::<Sim>::clone(sim);
    let clock = Arc::new(SystemClock);
    Pipeline::start(backend, LogId(0), Config::default(), clock, observer)
}
