//! Faults that come and go. Single successes between the failures do not end such a fault, and the log is told of each
//! fault once.

use std::time::Duration;

use gesta_core::LastingFault;
use tokio::time::Instant;

/// How long nothing must have failed until a success ends the fault.
const OVER_AFTER: Duration = Duration::from_secs(10);

/// The state of such a fault: whether it lasts, and when it last showed.
#[derive(Debug, Default)]
pub(crate) struct Lasting {
    told: LastingFault,
    last: Option<Instant>,
}

impl Lasting {
    /// Notes a failure. Returns true if the log is to be told.
    pub(crate) fn fails(&mut self) -> bool {
        self.last = Some(Instant::now());
        self.told.begins()
    }

    /// Notes a success. Returns true if it ends the fault.
    pub(crate) fn succeeds(&mut self) -> bool {
        let is_over = |last: Instant| last.elapsed() >= OVER_AFTER;
        self.last.is_some_and(is_over) && self.told.ends()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_fault_is_over_when_nothing_has_failed_for_a_while() {
        let mut lasting = Lasting::default();
        assert!(!lasting.succeeds());
        assert!(lasting.fails() && !lasting.fails());
        assert!(!lasting.succeeds());
        tokio::time::advance(OVER_AFTER / 2).await;
        assert!(!lasting.fails());
        tokio::time::advance(OVER_AFTER / 2).await;
        assert!(!lasting.succeeds(), "one has failed meanwhile");
        tokio::time::advance(OVER_AFTER / 2).await;
        assert!(lasting.succeeds() && !lasting.succeeds());
        assert!(lasting.fails());
    }
}
