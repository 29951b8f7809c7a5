//! The moment at which the time of a change is over, wherever the change is then.
//!
//! Why it has a clock of its own: the clock of the runtime stands still while the machine is suspended, and a change
//! that is tried again after hours may have been forgotten by the memory of recent ids. See [`gesta_core::suspended`].

use std::time::Duration;

use tokio::time::Instant;

/// The moment after which nobody waits for a change any more, and nobody begins it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    /// The moment, as an uptime of the machine.
    at: Duration,
}

impl Deadline {
    /// Makes the deadline that lies `within` after now.
    pub(crate) fn after(within: Duration) -> Self {
        let at = gesta_core::uptime().saturating_add(within);
        Self { at }
    }

    /// Returns the time that is left; zero if the deadline is over.
    pub(crate) fn remaining(self) -> Duration {
        self.at.saturating_sub(gesta_core::uptime())
    }

    pub(crate) fn is_over(self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the same moment for a timer, or for a link, which counts suspension itself.
    pub(crate) fn instant(self) -> Instant {
        Instant::now() + self.remaining()
    }
}
