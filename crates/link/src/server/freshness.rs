//! When a connection was last read, so that nothing is served that has waited there while this process was stopped.
//!
//! Why: the process may be frozen, or its machine suspended, for longer than forwarders wait. What they have sent
//! before is read when the process goes on, and looks as if it had come just now. Its deadline, which is told as the
//! time that was left, looks far away. But by then the forwarder has given the link up, and another owner may have done
//! the call, so long ago that it has forgotten its id.
//! Invariant: once a connection was not read for too long, nothing that came on it is handed over any more.
//!
//! The pings of the connection make sure that it is read in time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gesta_core::Moment;

/// The last time at which a connection was read. Moments are those of the clock that counts suspension.
#[derive(Debug)]
pub(super) struct Freshness {
    /// The moment; `None` once it was too late.
    last: Mutex<Option<Moment>>,
    gap_max: Duration,
}

impl Freshness {
    pub(super) fn new(now: Moment, gap_max: Duration) -> Self {
        Self {
            last: Mutex::new(Some(now)),
            gap_max,
        }
    }

    /// Notes that the connection is about to be read. Returns false if it was not read for too long; then it must not
    /// be read.
    pub(super) fn look(&self, now: Moment) -> bool {
        let mut last = self.lock();
        *last = last.filter(|last| self.is_near(*last, now)).map(|_| now);
        last.is_some()
    }

    /// Returns whether what was read may be handed over.
    pub(super) fn is_fresh(&self, now: Moment) -> bool {
        self.lock().is_some_and(|last| self.is_near(last, now))
    }

    fn is_near(&self, last: Moment, now: Moment) -> bool {
        now.since(last) <= self.gap_max
    }

    fn lock(&self) -> MutexGuard<'_, Option<Moment>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_not_looked_at_is_over() {
        let start = Moment::START;
        let at = |seconds| start + Duration::from_secs(seconds);
        let freshness = Freshness::new(start, Duration::from_secs(3));
        assert!(freshness.look(at(3)) && freshness.is_fresh(at(6)));
        assert!(!freshness.is_fresh(at(7)), "before it is looked at");
        assert!(!freshness.look(at(7)));
        assert!(
            !freshness.look(at(8)) && !freshness.is_fresh(at(8)),
            "for ever"
        );
    }
}
