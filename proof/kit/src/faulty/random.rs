//! Random numbers that are the same everywhere for one seed (splitmix64, Steele et al. 2014).

use std::time::Duration;

/// A sequence of random numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Makes the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Makes another sequence, which later draws from this one do not change.
    pub fn fork(&mut self) -> Self {
        Self(self.number())
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `count` - 1; 0 if `count` is 0.
    pub fn below(&mut self, count: usize) -> usize {
        let count = u64::try_from(count.max(1)).expect("64 bits at most");
        usize::try_from(self.number() % count).expect("below a usize")
    }

    /// Returns true in this share of the cases: 0.0 is never, 1.0 always.
    pub fn chance(&mut self, share: f64) -> bool {
        ((self.number() >> 11) as f64) / ((1_u64 << 53) as f64) < share
    }

    /// Returns one of several values.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, values: &'a [T]) -> &'a T {
        &values[self.below(values.len())]
    }

    /// Returns a time up to `max`, in whole milliseconds.
    pub fn duration(&mut self, max: Duration) -> Duration {
        let millis = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.number() % millis.saturating_add(1).max(1))
    }
}
