//! The time by which pure cores measure.
//!
//! Why a type of its own: a core has no clock. It is told the time, and compares it with times that it was told before.
//! A moment needs no clock either, so that a simulation can make one out of nothing.
//! Invariants: moments of one core come from one clock, which nobody sets; arithmetic ends at the first and at the last
//! moment, and never panics.
//! Not here: which clock that is. The shell of a core decides whether it counts the time in which the machine was
//! suspended ([`uptime`](crate::uptime)).

use std::ops::{Add, AddAssign, Sub};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::clock::Timestamp;

/// The time since some beginning, by a clock that nobody sets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(pub Duration);

/// The time before the first use at which the moments of the monotonic clock begin. A runtime whose time is paused may
/// have begun earlier than that use.
const BEFORE_FIRST_USE: Duration = Duration::from_secs(24 * 60 * 60);
/// How far away a timer is set that no timer can reach.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The instant at which the moments of the monotonic clock begin.
static BEGINNING: LazyLock<Instant> = LazyLock::new(|| {
    let now = Instant::now();
    now.checked_sub(BEFORE_FIRST_USE).unwrap_or(now)
});

impl Moment {
    /// The first moment.
    pub const START: Self = Self(Duration::ZERO);

    /// Returns the moment of an instant of the monotonic clock.
    #[must_use]
    pub fn of(instant: Instant) -> Self {
        Self(instant.saturating_duration_since(*BEGINNING))
    }

    /// Returns the instant of the monotonic clock at this moment, or one that is years away.
    #[must_use]
    pub fn instant(self) -> Instant {
        let instant = BEGINNING.checked_add(self.0);
        instant.unwrap_or_else(|| *BEGINNING + FAR)
    }

    /// Returns the time from `earlier` to this moment; 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the moment that is later by `time`; `None` if there is no such moment.
    #[must_use]
    pub fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }
}

/// The time of an input of a core that stores times: a moment, and what clocks show that somebody may set.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The time by which durations are measured.
    pub moment: Moment,
    /// The time that is stored with events.
    pub wall: Timestamp,
    /// What the clock of the database shows, as far as is known; `None` if the database has none.
    pub database: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn arithmetic_ends_at_the_first_and_at_the_last_moment() {
        let (one, two) = (Moment(SECOND), Moment(SECOND * 2));
        assert_eq!((one + SECOND, two - SECOND), (two, one));
        assert_eq!((two.since(one), one.since(two)), (SECOND, Duration::ZERO));
        assert_eq!(one - SECOND * 9, Moment::START);
        assert_eq!(one + Duration::MAX, Moment(Duration::MAX));
        assert_eq!(one.checked_add(Duration::MAX), None);
        assert_eq!(one.checked_add(SECOND), Some(two));
    }

    /// Goal: timers end when the moment has come for which they were set, also those of a clock that began before the
    /// first moment was made.
    #[test]
    fn instants_and_moments_are_the_same_times() {
        let now = Instant::now();
        for instant in [now, now + SECOND * 5, now - SECOND] {
            assert_eq!(Moment::of(instant).instant(), instant);
        }
        assert_eq!(Moment::of(now + SECOND).since(Moment::of(now)), SECOND);
        assert!(Moment(Duration::MAX).instant() > now + FAR / 2);
    }
}
