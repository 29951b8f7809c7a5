//! Back-off: pauses between tries, each twice as long as the one before.

use std::time::Duration;

/// How long to wait before the next try.
#[derive(Debug, Clone, Copy)]
pub struct BackOff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl BackOff {
    /// The first pause is `min`, and none is longer than `max`.
    #[must_use]
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max,
            next: min,
        }
    }

    /// A try has failed: how long to wait before the next.
    #[must_use]
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.max);
        pause
    }

    /// A try has succeeded: the next pause is the shortest again.
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
