//! The clock of calls: it counts the time in which the machine was suspended, as [`Instant`] does not.
//!
//! Why: a call that waits, or is written and unanswered, must be over when its deadline is, however the machine has
//! slept meanwhile. Sent again afterwards, it might meet an owner that no longer remembers its ids.
//! A moment of this clock is an [`Instant`] plus the whole suspension so far; the cores compare such moments only.

use std::time::Duration;

use tokio::time::Instant;

/// Timers do not see suspension; while calls wait they end at least so often, and the clock is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A clock. Tests have machines that are suspended when they say so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    suspended: fn() -> Duration,
}

impl Clock {
    /// The clock of this machine.
    pub(crate) const MACHINE: Self = Self::new(gesta_core::suspended);

    /// The clock of a machine that was suspended for so long.
    pub(crate) const fn new(suspended: fn() -> Duration) -> Self {
        Self { suspended }
    }

    /// The moment now.
    pub(crate) fn now(self) -> Instant {
        self.moment(Instant::now())
    }

    /// The moment at which a timer set now to `instant` ends, if the machine is not suspended before.
    pub(crate) fn moment(self, instant: Instant) -> Instant {
        instant + (self.suspended)()
    }

    /// To when a timer is set for this moment.
    pub(crate) fn timer(self, moment: Instant) -> Instant {
        let left = moment.saturating_duration_since(self.now());
        Instant::now() + left.min(LOOK_EVERY)
    }
}
