//! The clock of calls: it counts the time in which the machine was suspended, as [`Instant`] does not.
//!
//! Why: a call that waits, or is written and unanswered, must be over when its deadline is, however long the machine
//! was suspended meanwhile. If it were sent again afterwards, it might meet an owner that no longer remembers its ids.
//! A moment of this clock is that of an [`Instant`] plus the whole suspension so far. The cores compare only such
//! moments.

use std::time::Duration;

use gesta_core::Moment;
use tokio::time::Instant;

/// The longest time for which a timer is set. Timers do not count suspension, so while calls wait, timers end at least
/// this often and the clock is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A clock. In tests the machine is suspended when the test says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    suspended: fn() -> Duration,
}

impl Clock {
    /// The clock of this machine.
    pub(crate) const MACHINE: Self = Self::new(gesta_core::suspended);

    /// Makes the clock of a machine that was suspended for the time that `suspended` returns.
    pub(crate) const fn new(suspended: fn() -> Duration) -> Self {
        Self { suspended }
    }

    /// Returns the moment now.
    pub(crate) fn now(self) -> Moment {
        self.moment(Instant::now())
    }

    /// Returns the moment at which a timer that is set now to `instant` ends, if the machine is not suspended before.
    pub(crate) fn moment(self, instant: Instant) -> Moment {
        Moment::of(instant.into_std()) + (self.suspended)()
    }

    /// Returns the instant to which a timer is set for this moment.
    pub(crate) fn timer(self, moment: Moment) -> Instant {
        let left = moment.since(self.now());
        Instant::now() + left.min(LOOK_EVERY)
    }
}
