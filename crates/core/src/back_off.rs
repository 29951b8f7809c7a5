//! Back-off: pauses between attempts, each twice as long as the one before.

use std::time::Duration;

/// The pauses before further attempts.
#[derive(Debug, Clone, Copy)]
pub struct BackOff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl BackOff {
    /// Makes a back-off whose first pause is `min`, and whose pauses are never longer than `max`.
    #[must_use]
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max,
            next: min,
        }
    }

    /// Returns how long to wait before the next attempt, after one has failed.
    #[must_use]
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.max);
        pause
    }

    /// Makes the next pause the shortest again, after an attempt has succeeded.
    pub fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_and_begin_again() {
        let mut back_off = BackOff::new(Duration::from_millis(10), Duration::from_millis(50));
        let mut pauses = || back_off.pause().as_millis();
        assert_eq!([pauses(), pauses(), pauses(), pauses()], [10, 20, 40, 50]);
        back_off.reset();
        assert_eq!(back_off.pause().as_millis(), 10);
    }
}
