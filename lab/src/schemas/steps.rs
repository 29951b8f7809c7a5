//! Steps of load, when they end, and which of them was the best.
//!
//! Phase *p* with step *S* has *p·S* connections, up to *M*. The method is that of the published comparison (docs/benchmarks.md).

use std::time::Duration;

use serde::Serialize;

use crate::failure::{Result, fail};
use crate::histogram::median;
use crate::target::Phase;
use crate::units::grouped;

/// Most phases of one schema.
const PHASES_MAX: u32 = 1_000;

/// How the load grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Steps {
    step: u32,
    max: u32,
}

impl Steps {
    pub(super) fn new(step: u32, max: u32) -> Result<Self> {
        if step == 0 || step > max {
            return fail(format!(
                "--step {step}, --max {max}: each must be at least 1, and the step not above the maximum"
            ));
        }
        if max.div_ceil(step) > PHASES_MAX {
            return fail(format!(
                "--step {step} and --max {max} make more than {PHASES_MAX} phases"
            ));
        }
        Ok(Self { step, max })
    }

    /// Connections, phase by phase; the last phase has the maximum.
    pub(super) fn each(self) -> impl Iterator<Item = u32> {
        let phases = self.max.div_ceil(self.step);
        (1..=phases).map(move |phase| (phase * self.step).min(self.max))
    }

    /// The most connections that there will be.
    pub(super) fn most(self) -> u32 {
        self.max
    }

    /// Number of phases.
    pub(super) fn count(self) -> u32 {
        self.max.div_ceil(self.step)
    }
}

/// When a schema has had enough, and what still counts as good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    /// A phase with a higher average latency is the last.
    pub(super) average_max: Duration,
    /// A phase with a higher 99th percentile is not good.
    pub(super) p99_max: Duration,
}

/// Why a schema's phases ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ended {
    /// All phases were run.
    LargestLoad,
    /// The average latency was too high.
    TooSlow { average_ms: f64, max_ms: f64 },
    /// Nothing was stored in the phase, or every worker gave up; the most frequent cause.
    Failed(String),
    /// Ctrl-C.
    Interrupted,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ended::LargestLoad => f.write_str("the largest load"),
            Ended::TooSlow { average_ms, max_ms } => {
                write!(
                    f,
                    "average latency {average_ms:.0} ms is above {max_ms:.0} ms"
                )
            }
            Ended::Failed(cause) => write!(f, "failed: {cause}"),
            Ended::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl Limits {
    /// Whether this phase was the last, and why.
    pub(super) fn ends(&self, phase: &Phase, gave_up: u32) -> Option<Ended> {
        let max_ms = self.average_max.as_secs_f64() * 1_000.0;
        if !phase.complete {
            Some(Ended::Interrupted)
        } else if phase.latency_ms.count == 0 || gave_up >= phase.connections {
            let causes = phase.errors.iter().chain(&phase.retries);
            let most = causes.max_by_key(|(_, count)| **count);
            let cause = most.map_or("nothing was stored", |(cause, _)| cause.as_str());
            Some(Ended::Failed(cause.to_owned()))
        } else if phase.latency_ms.mean > max_ms {
            Some(Ended::TooSlow {
                average_ms: phase.latency_ms.mean,
                max_ms,
            })
        } else {
            None
        }
    }

    fn is_good(&self, phase: &Phase) -> bool {
        phase.complete
            && phase.latency_ms.count > 0
            && phase.latency_ms.p99 <= self.p99_max.as_secs_f64() * 1_000.0
    }

    /// The highest rate whose 99th percentile is within the limit.
    pub(super) fn best(&self, phases: &[Phase]) -> Option<Best> {
        let good = phases.iter().filter(|phase| self.is_good(phase));
        let best = good.max_by(|a, b| a.events_per_second.total_cmp(&b.events_per_second))?;
        Some(Best {
            connections: best.connections,
            events_per_second: best.events_per_second,
            p99_ms: best.latency_ms.p99,
        })
    }
}

/// The best phase.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Best {
    pub(super) connections: u32,
    pub(super) events_per_second: f64,
    pub(super) p99_ms: f64,
}

/// How far rounds of the same differ: half of their range, as a share of their median; 0 of fewer than two.
pub(super) fn noise(rounds: &[f64]) -> f64 {
    let (least, most) = rounds
        .iter()
        .fold((f64::MAX, f64::MIN), |(l, m), x| (l.min(*x), m.max(*x)));
    let middle = median(rounds);
    if rounds.len() < 2 || middle <= 0.0 {
        return 0.0;
    }
    (most - least) / 2.0 / middle
}

/// One line for the terminal.
pub(super) fn told(phase: &Phase) -> String {
    format!(
        "{:>4} connections: {:>8} events/s, average {:.1} ms, p99 {:.1} ms, {:.2} cores",
        phase.connections,
        grouped(phase.events_per_second),
        phase.latency_ms.mean,
        phase.latency_ms.p99,
        phase.cpu.machine_cores,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Percentiles;

    fn connections(step: u32, max: u32) -> Vec<u32> {
        let steps = Steps::new(step, max).unwrap();
        let all: Vec<u32> = steps.each().collect();
        assert_eq!(all.len(), steps.count() as usize);
        assert_eq!(*all.last().unwrap(), steps.most());
        all
    }

    #[test]
    fn each_phase_adds_a_step_up_to_the_maximum() {
        assert_eq!(connections(8, 32), [8, 16, 24, 32]);
        assert_eq!(connections(5, 15), [5, 10, 15]);
        assert_eq!(connections(8, 20), [8, 16, 20], "the last step is shorter");
        assert_eq!(connections(7, 7), [7]);
        // As published, where 8 processes had up to 75 connections each.
        assert_eq!(connections(200, 600), [200, 400, 600]);
    }

    #[test]
    fn impossible_steps_are_refused_with_their_values() {
        for (step, max) in [(0, 5), (6, 5), (1, 2_000)] {
            let error = Steps::new(step, max).unwrap_err().0;
            assert!(error.contains(&max.to_string()), "{error}");
        }
    }

    fn phase(rate: f64, mean: f64, p99: f64) -> Phase {
        Phase {
            connections: 8,
            events_per_second: rate,
            latency_ms: Percentiles {
                count: 100,
                mean,
                p99,
                ..Percentiles::default()
            },
            complete: true,
            ..Phase::default()
        }
    }

    const LIMITS: Limits = Limits {
        average_max: Duration::from_millis(500),
        p99_max: Duration::from_millis(100),
    };

    #[test]
    fn a_schema_is_stopped_when_its_average_latency_passes_the_limit() {
        assert_eq!(LIMITS.ends(&phase(1.0, 500.0, 9_000.0), 0), None);
        let ended = LIMITS.ends(&phase(1.0, 500.1, 600.0), 0).unwrap();
        assert_eq!(ended.to_string(), "average latency 500 ms is above 500 ms");
    }

    #[test]
    fn a_schema_that_stores_nothing_has_failed() {
        let mut nothing = phase(0.0, 0.0, 0.0);
        nothing.latency_ms.count = 0;
        nothing
            .errors
            .insert("53200: out of shared memory".into(), 80);
        nothing.retries.insert("40001".into(), 7);
        let ended = LIMITS.ends(&nothing, 0).unwrap();
        assert_eq!(ended.to_string(), "failed: 53200: out of shared memory");
        assert_eq!(LIMITS.ends(&phase(1.0, 1.0, 1.0), 7), None);
        assert!(
            LIMITS.ends(&phase(1.0, 1.0, 1.0), 8).is_some(),
            "all gave up"
        );
        nothing.complete = false;
        assert_eq!(LIMITS.ends(&nothing, 8), Some(Ended::Interrupted));
    }

    #[test]
    fn the_best_rate_keeps_the_limit_of_p99() {
        let phases = [
            phase(4_000.0, 2.0, 20.0),
            phase(5_000.0, 3.0, 100.0),
            phase(6_000.0, 3.0, 100.1),
        ];
        assert_eq!(LIMITS.best(&phases).unwrap().events_per_second, 5_000.0);
        assert_eq!(LIMITS.best(&phases[2..]), None);
        assert_eq!(LIMITS.best(&[]), None);
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
