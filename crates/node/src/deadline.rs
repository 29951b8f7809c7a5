//! When a change is over, wherever it is then.
//!
//! Why a clock of its own: the runtime's stands still while the machine is suspended, and a change that is tried again
//! after hours may have been forgotten by the memory of recent ids. See [`gesta_core::suspended`].

use std::time::Duration;

use tokio::time::Instant;

/// The moment after which nobody waits for a change any more, and nobody begins it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    /// Of the machine's uptime.
    at: Duration,
}

impl Deadline {
    /// So much later than now.
    pub(crate) fn after(within: Duration) -> Self {
        let at = gesta_core::uptime().saturating_add(within);
        Self { at }
    }

    /// The time that is left; zero if it is over.
    pub(crate) fn remaining(self) -> Duration {
        self.at.saturating_sub(gesta_core::uptime())
    }

    pub(crate) fn is_over(self) -> bool {
        self.remaining().is_zero()
    }

    /// The same moment for a timer, or a link, which knows of suspension itself.
    pub(crate) fn instant(self) -> Instant {
        Instant::now() + self.remaining()
    }
}
