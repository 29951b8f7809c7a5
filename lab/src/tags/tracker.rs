//! The highest number of a journal below which none is missing, as the plugins find it.
//!
//! A sequence hands out numbers before their rows can be seen. A reader that goes on past a number that is still
//! missing never sees its row; so one task per process looks for new numbers, stops before the first that is missing,
//! and gives a missing one up as never coming after it has looked for it some times (rolled-back inserts leave holes
//! for ever). Readers go no further than its maximum. The price: a look per interval, and up to one interval of delay.

use std::collections::BTreeMap;

/// Looks after which a missing number is given up.
const TRIES: u32 = 10;

/// What the tracker knows.
#[derive(Debug)]
pub(super) struct Tracker {
    safe: u64,
    /// Looks that found the hole that begins at a number.
    holes: BTreeMap<u64, u32>,
}

impl Tracker {
    /// Nothing up to `safe` is missing.
    pub(super) fn after(safe: u64) -> Self {
        Self {
            safe,
            holes: BTreeMap::new(),
        }
    }

    /// The maximum.
    pub(super) fn safe(&self) -> u64 {
        self.safe
    }

    /// A look: the numbers above the maximum, rising.
    pub(super) fn see(&mut self, numbers: &[u64]) {
        let mut holes = BTreeMap::new();
        let mut last = self.safe;
        let mut is_safe = true;
        for &number in numbers {
            let next = last + 1;
            if number > next {
                let looks = self.holes.get(&next).map_or(1, |looks| looks + 1);
                if looks < TRIES {
                    is_safe = false;
                }
                holes.insert(next, looks);
            }
            last = number;
            if is_safe {
                self.safe = number;
            }
        }
        self.holes = holes.split_off(&(self.safe + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_as_far_as_nothing_is_missing() {
        let mut tracker = Tracker::after(5);
        tracker.see(&[]);
        assert_eq!(tracker.safe(), 5);
        tracker.see(&[6, 7, 9, 10]);
        assert_eq!(tracker.safe(), 7);
        tracker.see(&[8, 9, 10, 13]);
        assert_eq!(tracker.safe(), 10);
    }

    #[test]
    fn gives_up_what_does_not_come() {
        let mut tracker = Tracker::after(0);
        for _ in 1..TRIES {
            tracker.see(&[2, 3]);
            assert_eq!(tracker.safe(), 0);
        }
        tracker.see(&[2, 3]);
        assert_eq!(tracker.safe(), 3);
    }

    #[test]
    fn each_hole_is_given_its_own_time() {
        let mut tracker = Tracker::after(0);
        tracker.see(&[1, 4]);
        for _ in 2..TRIES {
            tracker.see(&[4, 6]);
            assert_eq!(tracker.safe(), 1);
        }
        tracker.see(&[4, 6]);
        assert_eq!(tracker.safe(), 4, "the first is given up");
        tracker.see(&[6]);
        assert_eq!(tracker.safe(), 6, "the second came one look later");
        assert!(tracker.holes.is_empty());
    }

    #[test]
    fn a_hole_that_shrinks_is_waited_for_again() {
        let mut tracker = Tracker::after(0);
        for _ in 1..TRIES {
            tracker.see(&[5]);
        }
        tracker.see(&[1, 5]);
        assert_eq!(tracker.safe(), 1);
    }
}
