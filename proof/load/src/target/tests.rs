//! The load and the check against a store that can be told to break its word: each breach must be found.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_core::{Append, Result, *};
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;
use gesta_report::read_back::ReadBack;
use tokio_util::sync::CancellationToken;

use super::{Events, Expected, GestaTarget, Load, PhaseRun, Target, check, run};
use crate::machine::CurrentStore;
use crate::sizes::Sizes;

/// What the store does to one append out of fifty.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Breach {
    None,
    /// Acknowledges it and stores nothing.
    Drop,
    /// Stores it twice, under the same ids.
    Double,
    /// Answers with another revision.
    WrongRevision,
    /// Changes the payload.
    Alter,
    /// Stores it, and refuses it.
    RefuseStored,
    /// Shows it at another place of its stream.
    Misplace,
    /// Refuses it with a passing error the first time.
    Busy,
    /// Refuses every append.
    RefuseAll,
}

/// A wrapper over the reference store. A double is shown on reads, as the reference store itself recognises retries.
struct Broken {
    inner: MemoryStore,
    breach: Breach,
    count: AtomicU64,
}

#[async_trait]
impl Wrapper for Broken {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn append(&self, mut request: Append) -> Result<Appended> {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        let refused = Err(ErrorKind::Refused("no reason".into()).into());
        match self.breach {
            Breach::RefuseAll => refused,
            _ if n % 50 != 25 => self.inner.append(request).await,
            Breach::Drop => MemoryStore::new().append(request).await,
            Breach::WrongRevision => {
                let mut answer = self.inner.append(request).await?;
                answer.streams[0].first_revision.0 += 1;
                Ok(answer)
            }
            Breach::Alter => {
                request.streams[0].events[0].data = "changed".into();
                self.inner.append(request).await
            }
            Breach::RefuseStored => {
                self.inner.append(request).await?;
                refused
            }
            Breach::Busy => Err(ErrorKind::Overloaded("full".into()).into()),
            _ => self.inner.append(request).await,
        }
    }

    async fn read_all(&self, request: ReadAll) -> Result<AllPage> {
        let mut page = self.inner.read_all(request).await?;
        match (self.breach, page.events.last().cloned()) {
            (Breach::Double, Some(last)) => page.events.push(last),
            (Breach::Misplace, Some(mut last)) => {
                last.revision.0 += 1;
                page.events.pop();
                page.events.push(last);
            }
            _ => {}
        }
        Ok(page)
    }
}

/// No test waits longer for what a store does to its word.
const PATIENCE: Duration = Duration::from_secs(60);

fn load(waiters: u32, events: u64, rate: f64, duration: Duration) -> Load {
    Load {
        first_worker: 0,
        workers: waiters,
        events,
        events_per_stream: 30 * events,
        streams: 5,
        rate: Some(rate),
        warm_up: Duration::from_millis(20),
        duration,
    }
}

async fn loaded(
    store: Arc<dyn EventStore>,
    expected: Expected,
    load: &Load,
    stop: &CancellationToken,
) -> (PhaseRun, ReadBack) {
    let target =
        GestaTarget::around(CurrentStore::new(store, None)).appending(expected, "{}".into());
    let target: Arc<dyn Target> = Arc::new(target);
    let sizes = Sizes::exactly(50).unwrap();
    let events = Arc::new(Events::new(sizes, 1, 1));
    let (run, claims) = run(&target, &events, load, stop).await.unwrap();
    let found = check(target.as_ref(), &events, &claims).await;
    (run, found.unwrap())
}

/// Loads a store of its own, and again for twice as long until this is shown: on a busy machine a load may make a few
/// appends only.
async fn measured_until(
    breach: Breach,
    expected: Expected,
    is_shown: impl Fn(&PhaseRun, &ReadBack) -> bool,
) -> (PhaseRun, ReadBack) {
    // Whoever only fails pauses after each.
    let mut duration = match breach {
        Breach::RefuseAll => Duration::from_millis(1_500),
        _ => Duration::from_millis(150),
    };
    let begun = Instant::now();
    loop {
        let store = Arc::new(Outer(Broken {
            inner: MemoryStore::new(),
            breach,
            count: AtomicU64::new(0),
        }));
        let load = load(4, 3, 2_000.0, duration);
        let (run, found) = loaded(store, expected, &load, &CancellationToken::new()).await;
        if is_shown(&run, &found) || begun.elapsed() > PATIENCE {
            return (run, found);
        }
        duration *= 2;
    }
}

#[tokio::test]
async fn a_sound_store_passes_with_every_claim() {
    for expected in [Expected::Any, Expected::Exact] {
        let (run, found) = measured_until(Breach::None, expected, |run, found| {
            run.appends > 50 || !found.is_clean()
        })
        .await;
        let is_sound = found.is_clean() && run.errors.is_empty();
        assert!(is_sound, "{found:?} {run:?}");
        assert!(run.complete && run.appends > 50);
        assert_eq!(found.found, found.acknowledged);
        assert_eq!(run.latencies.percentiles().count, run.appends);
    }
}

/// Goal: whatever a store does to its word is found, and named for what it is.
#[tokio::test]
async fn every_breach_is_caught() {
    let any = Expected::Any;
    let (_, dropped) = measured_until(Breach::Drop, any, |_, found| found.lost > 0).await;
    assert!(dropped.lost > 0 && dropped.found + dropped.lost == dropped.acknowledged);
    for breach in [
        Breach::Double,
        Breach::WrongRevision,
        Breach::Alter,
        Breach::Misplace,
    ] {
        let count = |found: &ReadBack| match breach {
            Breach::Double => found.doubled,
            Breach::Alter => found.altered,
            _ => found.misplaced,
        };
        let (_, found) = measured_until(breach, any, |_, found| count(found) > 0).await;
        assert!(count(&found) > 0, "{breach:?}: {found:?}");
    }
    let is_told = |run: &PhaseRun, found: &ReadBack| found.uninvited > 0 && !run.errors.is_empty();
    let (run, refused) = measured_until(Breach::RefuseStored, Expected::Exact, is_told).await;
    assert!(is_told(&run, &refused), "{refused:?}");
    let has_retried = |run: &PhaseRun, _: &ReadBack| run.retries.contains_key("overloaded");
    let (run, busy) = measured_until(Breach::Busy, any, has_retried).await;
    assert!(busy.is_clean() && run.errors.is_empty() && run.retries["overloaded"] > 0);
    let (run, refused) = measured_until(Breach::RefuseAll, any, |run, _| run.gave_up == 4).await;
    assert!(refused.is_clean() && refused.acknowledged == 0);
    let gave_up = (run.gave_up, run.appends);
    assert_eq!(gave_up, (4, 0), "who only fails gives up");
}

#[tokio::test]
async fn an_interrupted_run_is_a_partial_result() {
    let stop = CancellationToken::new();
    let store: Arc<dyn EventStore> = Arc::new(MemoryStore::new());
    let load = Load {
        warm_up: Duration::ZERO,
        ..load(2, 1, 500.0, Duration::from_secs(3_600))
    };
    let stopper = async {
        // Stops once something is stored.
        let mut all = store
            .subscribe(Subscribe {
                to: SubscribeTo::All(Filter::ALL),
                from: SubscribeFrom::Start,
            })
            .await
            .unwrap();
        all.next_event().await.unwrap();
        stop.cancel();
    };
    let running = loaded(Arc::clone(&store), Expected::Any, &load, &stop);
    let ((run, found), ()) = tokio::join!(running, stopper);
    assert!(found.is_clean() && !run.complete);
    assert!(run.seconds < 60.0 && found.acknowledged > 0);
}

#[test]
fn workers_add_up_and_a_busy_generator_is_named() {
    let one = |appends| PhaseRun {
        appends,
        events: appends * 5,
        ..PhaseRun::default()
    };
    let mut sum = one(10);
    sum.add(one(30));
    (sum.seconds, sum.complete, sum.cpu.own_cores) = (2.0, true, 0.75);
    let phase = sum.figures(16, false);
    let rates = (phase.appends_per_second, phase.events_per_second);
    assert_eq!(rates, (20.0, 100.0));
    assert_eq!(phase.generator_limit, None);
    (sum.complete, sum.cpu.own_cores) = (false, 1_000.0);
    let phase = sum.figures(16, false);
    assert!(phase.generator_limit.unwrap().contains("cores") && !phase.complete);
    assert_eq!(sum.figures(16, true).generator_limit, None);
}
