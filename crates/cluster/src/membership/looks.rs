//! How often other nodes may make this node look.
//!
//! Why some looks may come at once: a node that drains hands over several logs in a moment, and until the taker has
//! looked nobody serves such a log. In a rolling restart of three nodes the next node may get half of all logs. Why not
//! all looks may come at once: a node that asks repeatedly must not make this node ask the registry without a pause.

use std::time::Duration;

use gesta_core::Moment;

/// The number of looks that others may ask for at once. This is also the number of parts of a beat: with each part one
/// more look may be asked for.
const AT_ONCE_MAX: u32 = 32;

/// The looks that others may ask for now.
#[derive(Debug)]
pub(super) struct Looks {
    left: u32,
    /// The moment since which one more look is being waited for.
    since: Moment,
}

impl Looks {
    pub(super) fn begin(now: Moment) -> Self {
        Self {
            left: AT_ONCE_MAX,
            since: now,
        }
    }

    /// Takes one look. Returns whether there was one.
    pub(super) fn take(&mut self, beat: Duration, now: Moment) -> bool {
        let every = beat / AT_ONCE_MAX;
        while self.left < AT_ONCE_MAX && now.since(self.since) >= every {
            self.left += 1;
            self.since += every;
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
        assert_eq!(taken(start + Duration::from_millis(24)), 0);
        assert_eq!(taken(start + Duration::from_millis(25)), 1);
        assert_eq!(taken(start + Duration::from_millis(80)), 2);
        assert_eq!(taken(start + Duration::from_secs(60)), 32);
    }
}
