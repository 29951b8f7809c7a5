//! When a connection was last looked at, so that nothing is served that has lain there while this process stood still.
//!
//! Why: the process may be frozen, or its machine suspended, for longer than forwarders wait. What they have sent
//! before is read when it wakes, and looks as if it had come just now; its deadline, told as the time that was left,
//! looks far. But by then the forwarder has given the link up, and another owner may have done the call, long enough
//! ago to have forgotten its id.
//! Invariant: once a connection was not looked at for too long, nothing that came on it is handed over any more.
//!
//! The pings of the connection see to it that it is looked at in time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The last look at a connection. Moments are those of the clock that counts suspension.
#[derive(Debug)]
pub(super) struct Looked {
    /// None once it was too late.
    last: Mutex<Option<Instant>>,
    gap_max: Duration,
}

impl Looked {
    pub(super) fn new(now: Instant, gap_max: Duration) -> Self {
        Self {
            last: Mutex::new(Some(now)),
            gap_max,
        }
    }

    /// The connection is about to be read. False if it was not for too long: then it must not be.
    pub(super) fn look(&self, now: Instant) -> bool {
        let mut last = self.lock();
        *last = last.filter(|last| self.is_near(*last, now)).map(|_| now);
        last.is_some()
    }

    /// True if what was read may be handed over.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        self.lock().is_some_and(|last| self.is_near(last, now))
    }

    fn is_near(&self, last: Instant, now: Instant) -> bool {
        now.saturating_duration_since(last) <= self.gap_max
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_not_looked_at_is_over() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let looked = Looked::new(start, Duration::from_secs(3));
        assert!(looked.look(at(3)) && looked.is_fresh(at(6)));
        assert!(!looked.is_fresh(at(7)), "before it is looked at");
        assert!(!looked.look(at(7)));
        assert!(!looked.look(at(8)) && !looked.is_fresh(at(8)), "for ever");
    }
}
