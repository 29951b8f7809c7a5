//! Counts what clients are answered, and how long they wait for it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The answers that one client has got.
#[derive(Clone, Debug)]
pub(crate) struct Answers(Arc<Mutex<Counted>>);

#[derive(Debug)]
struct Counted {
    count: usize,
    last: Instant,
    /// The longest time between two answers.
    longest: Duration,
}

impl Answers {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Counted {
            count: 0,
            last: Instant::now(),
            longest: Duration::ZERO,
        })))
    }

    /// Counts one more.
    pub(crate) fn note(&self) {
        let mut counted = self.0.lock().unwrap();
        counted.count += 1;
        counted.longest = counted.longest.max(counted.last.elapsed());
        counted.last = Instant::now();
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().count
    }

    /// Forgets how long the client has waited so far.
    pub(crate) fn measure(&self) {
        self.0.lock().unwrap().longest = Duration::ZERO;
    }

    /// The longest time that the client has waited since that.
    pub(crate) fn waited(&self) -> Duration {
        self.0.lock().unwrap().longest
    }
}

/// The middle one of some times, of which there is one at least.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
