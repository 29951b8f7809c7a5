//! When requests are intended to start, and how long steps go on.
//!
//! Times are nanoseconds since the generator began. Not here: who sends what (`engine`).

use std::time::Duration;

use serde::Serialize;

use crate::histogram::Percentiles;

/// A strict schedule: start number `n` is at `begin` + `n` / rate, whatever has become of the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace {
    begin: u64,
    interval: f64,
}

impl Pace {
    /// A schedule of `rate` starts a second; without a rate there is none.
    pub(crate) fn new(begin: u64, rate: f64) -> Option<Self> {
        (rate > 0.0 && rate.is_finite()).then(|| Self {
            begin,
            interval: 1e9 / rate,
        })
    }

    /// When start number `n` is.
    #[expect(clippy::cast_precision_loss, reason = "counts of hours fit")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time of hours, not negative"
    )]
    pub(crate) fn at(&self, n: u64) -> u64 {
        self.begin + (n as f64 * self.interval) as u64
    }
}

/// Steps of rising load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Steps {
    /// The first.
    pub(crate) from: f64,
    /// From one to the next.
    pub(crate) step: f64,
    /// The last is not above.
    pub(crate) to: f64,
}

impl Steps {
    /// Reads `FROM:STEP:TO`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<f64>, _> = text.split(':').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[from, step, to])
                if from > 0.0 && step > 0.0 && to >= from && to.is_finite() && to / step < 1e6 =>
            {
                Ok(Self { from, step, to })
            }
            _ => Err(format!(
                "{text:?} is not FROM:STEP:TO, such as 500:250:5000"
            )),
        }
    }

    /// The load of each step.
    pub(crate) fn loads(&self) -> Vec<f64> {
        (0_u32..)
            .map(|n| self.from + f64::from(n) * self.step)
            .take_while(|load| *load <= self.to + self.step * 1e-9)
            .collect()
    }
}

/// When steps are enough: the 99th percentile of all requests is above this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StopRule {
    /// The bar.
    pub(crate) p99_max: Duration,
}

impl StopRule {
    /// True if the step is bad: too slow, or nothing was answered at all.
    pub(crate) fn ends(&self, latency: &Percentiles) -> bool {
        latency.count == 0 || latency.p99 > self.p99_max.as_secs_f64() * 1_000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_do_not_drift() {
        let pace = Pace::new(500, 15_000.0).unwrap();
        assert_eq!(pace.at(0), 500);
        assert_eq!(pace.at(1), 500 + 66_666);
        assert_eq!(pace.at(15_000), 500 + 1_000_000_000);
        assert_eq!(pace.at(15_000 * 3_600), 500 + 3_600_000_000_000);
        assert_eq!(Pace::new(0, 0.0), None);
        assert_eq!(Pace::new(0, f64::NAN), None);
    }

    #[test]
    fn steps_are_read_and_counted() {
        let steps = Steps::parse("500:250:1300").unwrap();
        assert_eq!(steps.loads(), [500.0, 750.0, 1_000.0, 1_250.0]);
        assert_eq!(Steps::parse("1:1:1").unwrap().loads(), [1.0]);
        assert_eq!(Steps::parse("0.1:0.1:0.3").unwrap().loads().len(), 3);
        for bad in [
            "", "1:2", "1:2:3:4", "0:1:2", "1:0:2", "3:1:2", "a:b:c", "1:1:inf", "1:1e-9:2",
        ] {
            assert!(Steps::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_step_is_bad_above_the_bar_or_without_any_answer() {
        let rule = StopRule {
            p99_max: Duration::from_millis(50),
        };
        let with = |count, p99| Percentiles {
            count,
            p99,
            ..Percentiles::default()
        };
        assert!(!rule.ends(&with(100, 50.0)));
        assert!(rule.ends(&with(100, 50.1)));
        assert!(rule.ends(&with(0, 0.0)));
    }
}
