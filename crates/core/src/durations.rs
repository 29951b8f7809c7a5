//! How long something took, many times: a histogram that is counted without a lock.
//!
//! Why here: a node counts in several crates, and one place shows all of it. Not here: the form for Prometheus.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in microseconds; a last one has no bound.
pub const BOUNDS_MICROS: [u64; 14] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000,
];
const BUCKETS: usize = BOUNDS_MICROS.len() + 1;

/// Counts durations.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [AtomicU64; BUCKETS],
    micros: AtomicU64,
}

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DurationCounts {
    /// How many there were up to each bound and above the one before it; in the end those above the last bound.
    pub buckets: [u64; BUCKETS],
    /// All of them together, in microseconds.
    pub micros: u64,
}

impl Durations {
    /// Counts one.
    pub fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> DurationCounts {
        DurationCounts {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            micros: self.micros.load(Ordering::Relaxed),
        }
    }
}

impl DurationCounts {
    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl AddAssign for DurationCounts {
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in self.buckets.iter_mut().zip(other.buckets) {
            *sum += more;
        }
        self.micros += other.micros;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_the_first_bucket_that_holds_it() {
        let durations = Durations::default();
        for micros in [0, 500, 501, 10_000_000, 10_000_001] {
            durations.add(Duration::from_micros(micros));
        }
        let mut counts = durations.read();
        assert_eq!(counts.buckets[..2], [2, 1]);
        assert_eq!(counts.buckets[BUCKETS - 2..], [1, 1]);
        assert_eq!((counts.count(), counts.micros), (5, 20_001_002));
        counts += counts;
        assert_eq!((counts.count(), counts.buckets[0]), (10, 4));
    }
}
