//! Answers that a test holds back.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

/// A kind of answers that a test can hold back. The database has done its work by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// The answers to commits.
    Commits,
    /// The streams and types that were looked up.
    Loads,
    /// The ids that were read for the deduplication window, part by part.
    Ids,
    /// The names of streams.
    Names,
    /// The parts of logs.
    Logs,
    /// The ends of the first log.
    EndsOfFirstLog,
}

impl Answers {
    /// How many kinds there are.
    pub(super) const KINDS: usize = Self::EndsOfFirstLog as usize + 1;
}

/// As many answers as if all were let through.
const ALL: usize = Semaphore::MAX_PERMITS / 2;

/// Lets answers of one kind through, or holds them.
pub(super) struct Gate {
    left: Semaphore,
    held: AtomicUsize,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            left: Semaphore::new(ALL),
            held: AtomicUsize::new(0),
        }
    }
}

impl Gate {
    /// Lets `count` answers through and no more; `None` lets all through.
    pub(super) fn let_through(&self, count: Option<usize>) {
        self.left.forget_permits(usize::MAX);
        self.left.add_permits(count.unwrap_or(ALL).min(ALL));
    }

    /// Returns how many more answers are let through.
    pub(super) fn left(&self) -> usize {
        self.left.available_permits()
    }

    /// Returns how many answers are held.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Waits until one more answer may go.
    pub(super) async fn pass(&self) {
        if let Ok(permit) = self.left.try_acquire() {
            permit.forget();
            return;
        }
        let _held = Held::new(&self.held);
        if let Ok(permit) = self.left.acquire().await {
            permit.forget();
        }
    }
}

/// Counts an answer as held while this value lives.
struct Held<'a>(&'a AtomicUsize);

impl<'a> Held<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
