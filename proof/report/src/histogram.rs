//! Latencies: recorded in microseconds, kept as a histogram, merged over tasks, printed in milliseconds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest latency that is told apart; what is longer counts as this.
const LONGEST_MICROS: u64 = 600_000_000;

/// Latencies of one kind of call.
#[derive(Clone)]
pub struct Latencies(Histogram<u64>);

/// What is reported of a histogram, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of values.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Half are not above.
    pub p50: f64,
    /// 90 % are not above.
    pub p90: f64,
    /// 99 % are not above.
    pub p99: f64,
    /// 99.9 % are not above.
    pub p999: f64,
    /// 99.99 % are not above.
    pub p9999: f64,
    /// The largest.
    pub max: f64,
}

impl std::fmt::Debug for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.percentiles().fmt(f)
    }
}

impl Default for Latencies {
    #[expect(clippy::expect_used, reason = "the bounds are constants")]
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_MICROS, 3).expect("valid bounds"))
    }
}

impl Latencies {
    /// Adds a value.
    pub fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record(micros.clamp(1, LONGEST_MICROS));
    }

    /// Adds all values of another.
    #[expect(clippy::expect_used, reason = "all have the same bounds")]
    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("the same bounds");
    }

    /// The figures.
    pub fn percentiles(&self) -> Percentiles {
        if self.0.is_empty() {
            return Percentiles::default();
        }
        let at = |quantile| millis(self.0.value_at_quantile(quantile));
        Percentiles {
            count: self.0.len(),
            mean: (self.0.mean()).round() / 1_000.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: millis(self.0.max()),
        }
    }
}

/// As pairs of microseconds and counts, so that processes can add theirs.
impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let recorded = self.0.iter_recorded();
        serializer.collect_seq(recorded.map(|at| (at.value_iterated_to(), at.count_at_value())))
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = Vec::<(u64, u64)>::deserialize(deserializer)?;
        let mut latencies = Self::default();
        for (micros, count) in pairs {
            let micros = micros.clamp(1, LONGEST_MICROS);
            latencies.0.saturating_record_n(micros, count);
        }
        Ok(latencies)
    }
}

fn millis(micros: u64) -> f64 {
    micros as f64 / 1_000.0
}

/// The middle value; of an even number the mean of the two in the middle; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (n, middle) if n % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// How far rounds of the same differ: half of their range, as a share of their median; 0 of fewer than two.
pub fn noise(rounds: &[f64]) -> f64 {
    let (least, most) = ends(rounds);
    let middle = median(rounds);
    if rounds.len() < 2 || middle <= 0.0 {
        return 0.0;
    }
    (most - least) / 2.0 / middle
}

/// The least and the most.
pub fn ends(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_values() {
        let mut latencies = Latencies::default();
        let mut other = Latencies::default();
        for micros in 1..=10_000_u64 {
            let half = if micros % 2 == 0 {
                &mut latencies
            } else {
                &mut other
            };
            half.record(Duration::from_micros(micros));
        }
        latencies.merge(&other);
        let p = latencies.percentiles();
        assert_eq!(p.count, 10_000);
        let near = |found: f64, wanted: f64| (found - wanted).abs() <= wanted * 0.001 + 0.001;
        assert!(near(p.p50, 5.0) && near(p.p90, 9.0), "{p:?}");
        assert!(near(p.p99, 9.9) && near(p.p999, 9.99), "{p:?}");
        assert!(near(p.max, 10.0) && near(p.mean, 5.0), "{p:?}");
    }

    #[test]
    fn latencies_pass_between_processes() {
        let mut latencies = Latencies::default();
        for micros in [1, 999, 1_000, 123_456, 99_999_999] {
            latencies.record(Duration::from_micros(micros));
        }
        let text = serde_json::to_string(&latencies).unwrap();
        let again: Latencies = serde_json::from_str(&text).unwrap();
        assert_eq!(again.percentiles(), latencies.percentiles());
    }

    #[test]
    fn noise_is_half_the_range_over_the_median() {
        assert_eq!(noise(&[]), 0.0);
        assert_eq!(noise(&[100.0]), 0.0);
        assert_eq!(noise(&[90.0, 110.0]), 0.1);
        assert_eq!(noise(&[0.0, 0.0]), 0.0);
        assert_eq!(noise(&[80.0, 100.0, 100.0]), 0.1);
    }
}
