//! A target in memory that can be told to lie, and the load and the check against it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::failure::Result;
use crate::sizes::Sizes;

/// What the target does to every 100th append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    None,
    Drop,
    Double,
    Alter,
    Misplace,
    RefuseButStore,
    Retry,
    Unknown,
    /// Every append, so the worker gives up.
    AlwaysFail,
}

/// How long an append takes. The clock is the tests' own: it goes on when everybody waits.
const ANSWER: Duration = Duration::from_millis(1);

struct Lying {
    lie: Lie,
    appends: Mutex<u64>,
    stored: Arc<Mutex<HashMap<String, Vec<Event>>>>,
}

struct LyingSession(Arc<Lying>);

#[async_trait]
impl Session for LyingSession {
    async fn append(&mut self, append: &Append<'_>) -> std::result::Result<(), AppendError> {
        tokio::time::sleep(ANSWER).await;
        let mut appends = self.0.appends.lock().unwrap();
        *appends += 1;
        let lie = if appends.is_multiple_of(100) {
            self.0.lie
        } else {
            Lie::None
        };
        let mut stored = self.0.stored.lock().unwrap();
        let events = stored.entry(append.stream.to_owned()).or_default();
        if self.0.lie != Lie::Drop {
            assert_eq!(events.len() as u64, append.revision, "the right revision");
        }
        match lie {
            Lie::Drop => events.extend_from_slice(&append.events[1..]),
            Lie::Alter => {
                let mut event = append.events[0].clone();
                event.data = event.data.slice(..event.data.len() - 1);
                events.push(event);
                events.extend_from_slice(&append.events[1..]);
            }
            Lie::Retry => return Err(AppendError::Retry("40001".into())),
            Lie::Unknown => {
                events.extend_from_slice(append.events);
                return Err(AppendError::Unknown("the connection broke".into()));
            }
            Lie::RefuseButStore => {
                events.extend_from_slice(append.events);
                return Err(AppendError::Failed("refused".into()));
            }
            _ if self.0.lie == Lie::AlwaysFail => return Err(AppendError::Failed("no".into())),
            _ => events.extend_from_slice(append.events),
        }
        Ok(())
    }
}

struct LyingTarget(Arc<Lying>);

#[async_trait]
impl Target for LyingTarget {
    fn name(&self) -> &'static str {
        "lying"
    }
    fn title(&self) -> &'static str {
        "lying"
    }
    async fn prepare(&self) -> Result<()> {
        Ok(())
    }
    async fn facts(&self) -> Result<TargetFacts> {
        unreachable!("nobody asks")
    }
    async fn connect(&self) -> Result<Box<dyn Session>> {
        Ok(Box::new(LyingSession(Arc::clone(&self.0))))
    }
    async fn read_back(&self, prefix: &str, see: &mut (dyn FnMut(Stored) + Send)) -> Result<()> {
        let stored = self.0.stored.lock().unwrap().clone();
        for (n, (stream, events)) in stored.into_iter().enumerate() {
            assert!(stream.starts_with(prefix));
            for (revision, event) in (0..).zip(events) {
                let shift = u64::from(self.0.lie == Lie::Misplace && n == 0);
                let one = Stored {
                    stream: stream.clone(),
                    revision: revision + shift,
                    mark: Events::mark_in(&event.data),
                    bytes: Some(event.data.len() as u64),
                    whole: None,
                };
                if self.0.lie == Lie::Double && n == 0 && revision == 0 {
                    see(one.clone());
                }
                see(one);
            }
        }
        Ok(())
    }
    async fn disk_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    async fn remove(&self) -> Result<()> {
        Ok(())
    }
}

async fn loaded(lie: Lie) -> (PhaseRun, ReadBack) {
    loaded_at(lie, None).await
}

async fn loaded_at(lie: Lie, rate: Option<f64>) -> (PhaseRun, ReadBack) {
    let lying = Lying {
        lie,
        appends: Mutex::default(),
        stored: Arc::default(),
    };
    let target: Arc<dyn Target> = Arc::new(LyingTarget(Arc::new(lying)));
    let sizes = Sizes::parse("two", "3,60,80,65\n1,100,200,120").unwrap();
    let events = Arc::new(Events::new(sizes, 2, 7));
    let load = Load {
        first_worker: 40,
        workers: 4,
        events: 2,
        events_per_stream: 10,
        streams: 2,
        rate,
        warm_up: Duration::from_millis(20),
        duration: Duration::from_millis(300),
    };
    let stop = CancellationToken::new();
    let (run, claims) = run(&target, &events, &load, &stop).await.unwrap();
    let found = check(target.as_ref(), &events, &claims).await.unwrap();
    (run, found)
}

#[tokio::test(start_paused = true)]
async fn an_honest_target_is_believed() {
    let (run, found) = loaded(Lie::None).await;
    assert!(found.is_clean(), "{found:?}");
    // 4 workers, 300 ms on the clock, 1 ms each; the last ones may end behind it.
    assert!(
        (1_190..=1_204).contains(&run.appends) && run.complete,
        "{run:?}"
    );
    assert_eq!(run.events, run.appends * 2);
    assert_eq!(found.acknowledged, found.found);
    assert!(found.acknowledged >= run.events, "warm-up too");
    let figures = run.figures(4, Embedded::Yes);
    assert!(figures.latency_ms.count == run.appends && figures.errors.is_empty());
    assert!(figures.seconds <= 0.31, "{figures:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_a_schedule() {
    let (run, found) = loaded_at(Lie::None, Some(200.0)).await;
    assert!(found.is_clean(), "{found:?}");
    // 0.3 s on the clock.
    assert!((59..=61).contains(&run.appends), "{run:?}");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_drops_an_event_is_caught() {
    let (_, found) = loaded(Lie::Drop).await;
    assert!(found.lost > 0, "{found:?}");
    let complaint = found.complaint().unwrap();
    assert!(complaint.contains(" lost"), "{complaint}");
}

#[tokio::test(start_paused = true)]
async fn doubled_altered_misplaced_and_refused_events_are_caught() {
    assert!(loaded(Lie::Double).await.1.doubled > 0);
    assert!(loaded(Lie::Alter).await.1.altered > 0);
    assert!(loaded(Lie::Misplace).await.1.misplaced > 0);
    let (run, found) = loaded(Lie::RefuseButStore).await;
    assert!(
        found.uninvited > 0 && run.errors["refused"] > 0,
        "{found:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn tries_are_counted_and_unknown_outcomes_may_be_stored() {
    let (run, found) = loaded(Lie::Retry).await;
    assert!(found.is_clean() && run.retries["40001"] > 0, "{found:?}");
    let (run, found) = loaded(Lie::Unknown).await;
    assert!(found.is_clean(), "{found:?}");
    assert!(found.found > found.acknowledged);
    assert!(run.errors["the connection broke"] > 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_only_fails_gives_up() {
    let (run, found) = loaded(Lie::AlwaysFail).await;
    assert_eq!((run.gave_up, run.appends, found.acknowledged), (4, 0, 0));
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
    let phase = sum.figures(16, Embedded::No);
    assert_eq!(
        (phase.appends_per_second, phase.events_per_second),
        (20.0, 100.0)
    );
    assert_eq!(phase.generator_limit, None);
    (sum.complete, sum.cpu.own_cores) = (false, 1_000.0);
    let phase = sum.figures(16, Embedded::No);
    assert!(phase.generator_limit.unwrap().contains("cores") && !phase.complete);
    assert_eq!(sum.figures(16, Embedded::Yes).generator_limit, None);
}
