//! The search for schedules that break promises.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::{Finding, Form, Found, World, check};

/// What is searched, and for how long.
#[derive(Debug, Clone)]
pub struct Search {
    /// The world.
    pub world: &'static World,
    /// Only schedules of this form, if one is given.
    pub form: Option<&'static Form>,
    /// The seed of the first schedule. The others follow.
    pub first: u64,
    /// The greatest number of schedules.
    pub schedules: u64,
    /// The search ends after this time, if one is given.
    pub limit: Option<Duration>,
    /// How many schedules run at a time; as many as there are processors if no number is given.
    pub threads: Option<NonZeroUsize>,
    /// What is done with a schedule that breaks a promise.
    pub found: Found,
}

/// The end of a search.
#[derive(Debug)]
pub struct Searched {
    /// The schedule that breaks a promise, if there is one.
    pub finding: Option<Box<Finding>>,
    /// The number of schedules that break none.
    pub done: u64,
    /// How long it took.
    pub took: Duration,
}

/// What the threads of a search share.
struct Shared<'a> {
    search: &'a Search,
    began: Instant,
    /// The number of the next schedule.
    next: AtomicU64,
    /// Somebody has found something.
    is_over: AtomicBool,
}

impl Search {
    /// Searches until something is found, or all is done. At least one schedule runs, even on a machine that stands
    /// still.
    #[must_use]
    pub fn run(&self) -> Searched {
        let threads = self.threads.map_or_else(available_parallelism, Ok);
        let threads = threads.map_or(1, NonZeroUsize::get);
        let shared = Shared {
            search: self,
            began: Instant::now(),
            next: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        };
        let (finding, done) = std::thread::scope(|scope| {
            let work = || shared.work();
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let results = workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)));
            results.fold((None, 0), |(found, done), (finding, count)| {
                (found.or(finding), done + count)
            })
        });
        Searched {
            finding,
            done,
            took: shared.began.elapsed(),
        }
    }
}

impl Shared<'_> {
    /// Takes one schedule after the other. Returns what was found, and how many broke no promise.
    fn work(&self) -> (Option<Box<Finding>>, u64) {
        let Search {
            world, form, found, ..
        } = *self.search;
        let mut done = 0;
        loop {
            let number = self.next.fetch_add(1, Relaxed);
            if number >= self.search.schedules || self.is_over.load(Relaxed) {
                return (None, done);
            }
            let seed = self.search.first.wrapping_add(number);
            let form = form.unwrap_or_else(|| world.form_of(seed));
            if let Err(finding) = check(world, form, seed, found) {
                self.is_over.store(true, Relaxed);
                return (Some(finding), done);
            }
            done += 1;
            let limit = self.search.limit;
            if limit.is_some_and(|limit| self.began.elapsed() >= limit) {
                return (None, done);
            }
        }
    }
}
