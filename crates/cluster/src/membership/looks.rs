//! How often other nodes may make this one look.
//!
//! Why some at once: a node that drains hands over several logs in a moment, and until the taker has looked nobody
//! serves the log. In a rolling restart of three nodes the next one may have half of all logs. Why not all: who asks
//! again and again must not make a node ask the registry without a pause.

use std::time::Duration;

use super::times::Moment;

/// Looks that others may ask for at once; one more comes with each such part of a beat.
const AT_ONCE_MAX: u32 = 32;

/// The looks that others may ask for now.
#[derive(Debug)]
pub(super) struct Looks {
    left: u32,
    /// Since when one more is being waited for.
    since: Moment,
}

impl Looks {
    pub(super) fn begin(now: Moment) -> Self {
        Self {
            left: AT_ONCE_MAX,
            since: now,
        }
    }

    /// Takes one, if there is one.
    pub(super) fn take(&mut self, beat: Duration, now: Moment) -> bool {
        let every = beat / AT_ONCE_MAX;
        while self.left < AT_ONCE_MAX && now.since(self.since) >= every {
            self.left += 1;
            self.since = self.since.plus(every);
        }
        if self.left == AT_ONCE_MAX {
            self.since = now;
        }
        let is_there = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_looks_come_at_once_and_more_of_them_with_time() {
        let (beat, start) = (Duration::from_millis(800), Moment(Duration::from_secs(5)));
        let mut looks = Looks::begin(start);
        let mut taken = |at: Moment| (0..50).filter(|_| looks.take(beat, at)).count();
        assert_eq!(taken(start), 32);
        assert_eq!(taken(start.plus(Duration::from_millis(24))), 0);
        assert_eq!(taken(start.plus(Duration::from_millis(25))), 1);
        assert_eq!(taken(start.plus(Duration::from_millis(80))), 2);
        assert_eq!(taken(start.plus(Duration::from_secs(60))), 32);
    }
}
