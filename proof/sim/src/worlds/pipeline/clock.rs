//! The clocks of one process: one that nobody sets, by which deadlines are, and the one that shows the time of day.
//!
//! Both run a little faster or slower than those of other processes. The second one is set now and then, forward or
//! back. A process that sleeps (it was stopped, or its machine was paused) does nothing meanwhile; when it wakes up,
//! its clock has gone on, or has stood still as well.

use std::time::Duration;

use gesta_core::Timestamp;

/// The right time of day at the start, in microseconds.
const EPOCH: i64 = 1_700_000_000_000_000;

/// The clocks of one process.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// A moment by the time of the schedule, and by this clock.
    anchor: (Duration, Duration),
    /// Time that passes by this clock while a thousand parts of time pass.
    rate: u32,
    /// How far the time of day is ahead of the clock that nobody sets, in microseconds.
    ahead: i64,
    /// Time at which the process fell asleep, if it sleeps.
    asleep_since: Option<Duration>,
}

impl Clock {
    /// Makes the clock of a process that starts now. The time of day is right.
    #[must_use]
    pub fn right(now: Duration) -> Self {
        Self {
            anchor: (now, now),
            rate: 1000,
            ahead: 0,
            asleep_since: None,
        }
    }

    /// Returns what the clock that nobody sets shows, since the start.
    #[must_use]
    pub fn shows(&self, now: Duration) -> Duration {
        let (then, shown) = self.anchor;
        shown + now.saturating_sub(then) * self.rate / 1000
    }

    /// Returns the time of day that the process sees, in microseconds.
    #[must_use]
    pub fn wall(&self, now: Duration) -> i64 {
        EPOCH + micros(self.shows(now)) + self.ahead
    }

    /// Returns the right time of day, in microseconds.
    #[must_use]
    pub fn right_wall(now: Duration) -> i64 {
        EPOCH + micros(now)
    }

    /// Returns the time since the start at which a right clock shows this.
    #[must_use]
    pub fn time_of(wall: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(wall.0 - EPOCH).unwrap_or(0))
    }

    /// Lets the clock go faster or slower from now on.
    pub fn drift(&mut self, now: Duration, rate: u32) {
        self.anchor = (now, self.shows(now));
        self.rate = rate;
    }

    /// Sets the time of day so far ahead of the right one, in microseconds.
    pub fn set(&mut self, now: Duration, ahead: i64) {
        self.ahead = micros(now) - micros(self.shows(now)) + ahead;
    }

    /// Sets both clocks right, as far as that is possible: what nobody sets goes on from where it is.
    pub fn correct(&mut self, now: Duration) {
        self.drift(now, 1000);
        self.set(now, 0);
    }

    /// Returns true if the process sleeps.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.asleep_since.is_some()
    }

    /// Lets the process fall asleep.
    pub fn fall_asleep(&mut self, now: Duration) {
        self.asleep_since = Some(now);
    }

    /// Wakes the process up. If its clock has stood still, it goes on from where it stood.
    pub fn wake_up(&mut self, now: Duration, stood_still: bool) {
        if let Some(since) = self.asleep_since.take()
            && stood_still
        {
            self.anchor = (now, self.shows(since));
        }
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_clock_drifts_sleeps_and_is_set() {
        let mut clock = Clock::right(SECOND);
        assert_eq!(clock.shows(11 * SECOND), 11 * SECOND);
        clock.drift(11 * SECOND, 1100);
        assert_eq!(clock.shows(21 * SECOND), 22 * SECOND);
        clock.fall_asleep(21 * SECOND);
        assert!(clock.is_asleep());
        clock.wake_up(31 * SECOND, true);
        assert_eq!(clock.shows(31 * SECOND), 22 * SECOND);
        let right = Clock::right_wall(31 * SECOND);
        assert_eq!(right - clock.wall(31 * SECOND), 9_000_000);
        clock.set(31 * SECOND, 5_000_000);
        assert_eq!(clock.wall(31 * SECOND) - right, 5_000_000);
        clock.correct(31 * SECOND);
        let later = 41 * SECOND;
        assert_eq!(clock.wall(later), Clock::right_wall(later));
        assert_eq!(clock.shows(later), 32 * SECOND);
    }
}
