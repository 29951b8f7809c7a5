//! The pace at which a node appends to a log that another node owns: it is slow.
//!
//! Why: the owner cannot be reached from here but may be at work. Each commit of one of the two makes the batch in
//! flight of the other miss. A few commits a second leave the owner most of its rate.
//! Not here: that a busy owner lets these appends through at all, which pipelines achieve by giving way to each other
//! (`gesta_append`).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The shortest time between two moments at which changes are let through. Changes that wait meanwhile go together and
/// share a batch.
const EVERY: Duration = Duration::from_millis(50);

/// Lets changes of one log through, at that pace.
#[derive(Debug)]
pub(crate) struct DirectPace {
    /// The moment from which on the next changes are let through.
    next: Mutex<Instant>,
}

impl DirectPace {
    pub(crate) fn new() -> Self {
        Self {
            next: Mutex::new(Instant::now()),
        }
    }

    /// Waits until a change may go.
    pub(crate) async fn wait(&self) {
        let until = self.reserve(Instant::now());
        tokio::time::sleep_until(until).await;
        self.pass(until);
    }

    /// Returns the moment at which a change that comes now may go.
    fn reserve(&self, now: Instant) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if *next <= now {
            *next = now + EVERY;
            return now;
        }
        *next
    }

    /// Lets the changes that waited for this moment go. Changes that come now wait for the next moment.
    fn pass(&self, until: Instant) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = (*next).max(until + EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a lone change goes at once; those that come within the pause go together at its end, and the next ones
    /// after another pause.
    #[tokio::test(start_paused = true)]
    async fn changes_go_in_groups() {
        let pace = DirectPace::new();
        let start = Instant::now();
        pace.wait().await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        futures::future::join_all((0..10).map(|_| pace.wait())).await;
        let first = start.elapsed();
        assert!(first >= EVERY && first < EVERY * 2, "{first:?}");
        futures::future::join_all((0..10).map(|_| pace.wait())).await;
        let second = start.elapsed();
        assert!(second >= EVERY * 2 && second < EVERY * 3, "{second:?}");
    }
}
