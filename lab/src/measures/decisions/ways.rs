//! The ways to append: plain, on a condition, by rules; driven by callers, counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::{Append, Checkpoint, EventStore, Filter, Query};
use gesta_load::entities::calls::{Calls, drive};
use gesta_report::failure::Result;
use tokio_util::sync::CancellationToken;

use super::Stores;
use super::courses::{self, COURSES, Decided, Finding, PLACES, register, subscribe, tag};

/// One in so many decisions is about a user name.
const NAMES_EVERY: u64 = 4;
/// Courses that are subscribed to at the same time. When they are nearly full, others take their place.
const COURSES_AT_ONCE: u64 = 64;
/// Decisions after which another tag takes the place of that which all share: whoever decides by it reads all of them.
const SHARED_EACH: u64 = 200;

/// How an event is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    OwnTag,
    Rules,
    SharedTag,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Plain, Self::OwnTag, Self::Rules, Self::SharedTag];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Plain => "plain appends",
            Self::OwnTag => "on a condition, each caller with a tag of its own",
            Self::Rules => "rules of courses, found by their own tags",
            Self::SharedTag => "rules of courses, found by one tag that all share",
        }
    }

    pub(super) fn has_rules(self) -> bool {
        matches!(self, Self::Rules | Self::SharedTag)
    }
}

/// What was measured.
pub(super) struct Measured {
    /// Those that were stored or rejected.
    pub(super) calls: Calls,
    pub(super) stored: u64,
    rejected: u64,
    /// Callers who were told that others had always come first.
    pub(super) gave_up: u64,
    times: u64,
}

impl Measured {
    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.calls.seconds.max(0.001)
    }

    pub(super) fn stored_per_second(&self) -> f64 {
        self.per_second(self.stored)
    }

    pub(super) fn rejected_per_second(&self) -> f64 {
        self.per_second(self.rejected)
    }

    /// Decisions that were made once more, since something had come between.
    pub(super) fn again_per_second(&self) -> f64 {
        let first = self.stored + self.rejected + self.gave_up;
        self.per_second(self.times.saturating_sub(first))
    }

    pub(super) fn tries(&self) -> f64 {
        self.times as f64 / (self.stored.max(1)) as f64
    }

    pub(super) fn p50(&self) -> f64 {
        self.calls.latencies.percentiles().p50
    }

    pub(super) fn p99(&self) -> f64 {
        self.calls.latencies.percentiles().p99
    }
}

/// What callers count together.
#[derive(Default)]
struct Counts {
    stored: AtomicU64,
    rejected: AtomicU64,
    gave_up: AtomicU64,
    times: AtomicU64,
    next: AtomicU64,
}

/// The end of the last append of each caller.
type Ends = Arc<Vec<Mutex<Option<Checkpoint>>>>;

/// Lets callers decide for so long.
pub(super) async fn measure(
    way: Way,
    callers: u32,
    stores: &Stores,
    run: &str,
    duration: Duration,
    stop: &CancellationToken,
) -> Result<Measured> {
    let counts = Arc::new(Counts::default());
    let ends: Ends = Arc::new((0..callers).map(|_| Mutex::default()).collect());
    let (stores, run, counted) = (stores.clone(), run.to_owned(), Arc::clone(&counts));
    let calls = drive(0..callers, duration, stop, move |by, _| {
        let (store, run) = (Arc::clone(stores.of(by)), run.clone());
        let (counts, ends) = (Arc::clone(&counted), Arc::clone(&ends));
        async move {
            let n = counts.next.fetch_add(1, Ordering::Relaxed);
            let mut times = 0;
            let decided = match way {
                Way::Plain => plain(&*store, &run, by, &mut times).await,
                Way::OwnTag => {
                    let end = &ends[usize::try_from(by).unwrap_or(0)];
                    own_tag(&*store, &run, by, end, &mut times).await
                }
                Way::Rules | Way::SharedTag => rules(&*store, way, &run, n, &mut times).await,
            };
            counts.times.fetch_add(times, Ordering::Relaxed);
            let count = match &decided {
                Ok(Decided::Stored) => &counts.stored,
                Ok(Decided::Rejected) => &counts.rejected,
                Ok(Decided::GaveUp) => &counts.gave_up,
                Err(wrong) => return Some(Err(wrong.clone())),
            };
            count.fetch_add(1, Ordering::Relaxed);
            Some(Ok(()))
        }
    });
    let calls = calls.await;
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Ok(Measured {
        calls,
        stored: read(&counts.stored),
        rejected: read(&counts.rejected),
        gave_up: read(&counts.gave_up),
        times: read(&counts.times),
    })
}

/// An event of a caller: its stream, and its tag.
fn of_caller(run: &str, by: u32) -> Append {
    let own = tag(&format!("caller:{run}-{by}"));
    let event = courses::event("counted", &[&own]);
    Append {
        streams: vec![courses::to(&format!("caller-{run}-{by}"), event)],
        conditions: Vec::new(),
    }
}

async fn plain(
    store: &dyn EventStore,
    run: &str,
    by: u32,
    times: &mut u64,
) -> std::result::Result<Decided, String> {
    *times += 1;
    let appended = store.append(of_caller(run, by)).await;
    appended.map_err(|error| error.to_string())?;
    Ok(Decided::Stored)
}

/// Appends if nothing with the caller's tag has come since the caller's last append. Nothing has.
async fn own_tag(
    store: &dyn EventStore,
    run: &str,
    by: u32,
    end: &Mutex<Option<Checkpoint>>,
    times: &mut u64,
) -> std::result::Result<Decided, String> {
    *times += 1;
    let query = Query {
        tags: vec![tag(&format!("caller:{run}-{by}"))],
        ..Query::default()
    };
    let after = end.lock().unwrap().clone();
    let append = of_caller(run, by).provided_no_match(Filter::query(query), after);
    let appended = store.append(append).await;
    let appended = appended.map_err(|error| error.to_string())?;
    *end.lock().unwrap() = Some(appended.checkpoint);
    Ok(Decided::Stored)
}

/// Decision number `n`: about a user name, or about a student and a course.
async fn rules(
    store: &dyn EventStore,
    way: Way,
    run: &str,
    n: u64,
    times: &mut u64,
) -> std::result::Result<Decided, String> {
    let shared = format!("school:{run}-{}", n / SHARED_EACH);
    let finding = Finding {
        shared: (way == Way::SharedTag).then(|| tag(&shared)),
    };
    // With one tag for all, whatever it finds is of its time alone.
    let generation = match way {
        Way::SharedTag => n / SHARED_EACH,
        _ => n / (COURSES_AT_ONCE * PLACES as u64),
    };
    if n.is_multiple_of(NAMES_EVERY) {
        // Every second name is asked for twice.
        let name = tag(&format!(
            "name:{run}-{generation}-{}",
            n / NAMES_EVERY / 3 * 2
        ));
        return register(store, &finding, &name, times).await;
    }
    let course = tag(&format!(
        "course:{run}-{generation}-{}",
        n % COURSES_AT_ONCE
    ));
    let student = n / (COURSES as u64 + 1);
    let student = tag(&format!("student:{run}-{generation}-{student}"));
    subscribe(store, &finding, &course, &student, times).await
}
