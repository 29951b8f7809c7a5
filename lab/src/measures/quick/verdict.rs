//! What the figures of `quick` mean, in words: how much to plan for, what the limit is, what else to know.

use gesta_report::units::grouped;

use gesta_load::target::Phase;

/// A 99th percentile up to this is good.
const P99_MS_MAX: f64 = 100.0;
/// A load counts as carried if this share of it was acknowledged on the clock.
const CARRIED: f64 = 0.97;
/// Share of the highest good load to plan for: the rest is for peaks, backups and bad days.
const PLANNED: f64 = 0.7;
/// A machine is busy when this share of its cores is.
const BUSY: f64 = 0.85;
/// Share of the cores that other programs may use. If they use more, the figures are not those of this machine.
const OTHERS_MAX: f64 = 0.2;
/// The writer mostly waits for what takes this share of its time.
const MOSTLY: f64 = 0.6;

/// An open-loop step.
#[derive(Debug, Clone)]
pub(super) struct Open {
    /// Events per second offered.
    pub(super) rate: f64,
    pub(super) phase: Phase,
}

impl Open {
    /// It was carried, and with a good 99th percentile.
    pub(super) fn is_good(&self) -> bool {
        self.has_kept_up() && self.phase.latency_ms.p99 <= P99_MS_MAX
    }

    /// What was offered was acknowledged, however late.
    pub(super) fn has_kept_up(&self) -> bool {
        let phase = &self.phase;
        phase.events_per_second >= self.rate * CARRIED && phase.latency_ms.count > 0
    }
}

/// What was measured.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    pub(super) closed: Vec<Phase>,
    pub(super) open: Vec<Open>,
    pub(super) bare_commits_per_second: Option<f64>,
    /// Commits at the peak of the closed loop.
    pub(super) batches_per_second: f64,
    pub(super) read_events_per_second: Option<f64>,
    pub(super) disk_bytes_per_event: Option<f64>,
    pub(super) mean_bytes: f64,
    pub(super) round_trip_ms: f64,
    /// Processors that this process may use.
    pub(super) cores: usize,
    /// The machine has more: then what all programs on it use says nothing about these.
    pub(super) has_more_cores: bool,
    /// Most cores that other programs used while this was measured or before.
    pub(super) others_cores: f64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct QuickAnswer {
    /// None if no load was carried well, or if other programs used the machine.
    pub(super) plan_events_per_second: Option<f64>,
    pub(super) sentences: [String; 2],
}

impl Measured {
    fn peak(&self) -> Option<&Phase> {
        let rate = |phase: &&Phase| phase.events_per_second;
        self.closed
            .iter()
            .max_by(|a, b| rate(a).total_cmp(&rate(b)))
    }

    /// The highest load that was carried with a good 99th percentile.
    fn highest_good(&self) -> Option<&Open> {
        let good = self.open.iter().filter(|open| open.is_good());
        good.max_by(|a, b| a.rate.total_cmp(&b.rate))
    }

    fn limit(&self) -> String {
        let Some(peak) = self.peak() else {
            return "not known: nothing was measured".into();
        };
        let cores = self.cores;
        let busy = match self.has_more_cores {
            true => peak.cpu.own_cores,
            false => peak.cpu.machine_cores,
        };
        let lone = self.closed.iter().find(|phase| phase.connections == 1);
        let lone_ms = lone.map_or(0.0, |phase| phase.latency_ms.p50);
        let far_ms = self.round_trip_ms;
        // Commits one after the other, each as long as a bare one: the share of the time in which the disk works.
        let bare = self.bare_commits_per_second.unwrap_or(f64::INFINITY);
        let disk_share = self.batches_per_second / bare;
        if busy >= cores as f64 * BUSY {
            let own = peak.cpu.own_cores;
            format!(
                "the processors: at the peak {busy:.1} of {cores} cores were busy, {own:.1} of them in this process (store and load together)"
            )
        } else if far_ms > 1.0 && far_ms >= lone_ms * MOSTLY {
            format!(
                "the distance: a round trip to the database takes {far_ms:.1} ms of the {lone_ms:.1} ms that a lone append waits"
            )
        } else if disk_share >= MOSTLY {
            let (percent, each) = (disk_share.min(1.0) * 100.0, 1_000.0 / bare);
            format!(
                "the disk: commits fill {percent:.0} % of the one writer's time, {each:.2} ms each; {busy:.1} of {cores} cores were busy"
            )
        } else {
            format!(
                "the one writer that puts all appends in order: {busy:.1} of {cores} cores were busy at the peak, and the disk had time to spare"
            )
        }
    }

    /// Returns true if other programs used so much of the machine that the figures are not those of the machine.
    fn is_disturbed(&self) -> bool {
        !self.has_more_cores && self.cores > 0 && self.others_cores > self.cores as f64 * OTHERS_MAX
    }

    pub(super) fn verdict(&self) -> QuickAnswer {
        if self.is_disturbed() {
            let (others, cores) = (self.others_cores, self.cores);
            return QuickAnswer {
                plan_events_per_second: None,
                sentences: [
                    format!(
                        "Other programs used {others:.1} of {cores} cores, so there is no number to plan with."
                    ),
                    "Stop them, or take a machine of its own, and run this again.".into(),
                ],
            };
        }
        let good = self.highest_good();
        let plan = good.map(|open| two_digits(open.rate * PLANNED));
        let first = match (plan, good) {
            (Some(plan), Some(good)) => format!(
                "On this database plan for {} events/s of {} bytes each. That is {:.0} % of {}/s, the highest steady load tried at which 99 of 100 appends were durably stored within {P99_MS_MAX:.0} ms (measured: {:.1} ms).",
                grouped(plan),
                grouped(self.mean_bytes),
                PLANNED * 100.0,
                grouped(good.rate),
                good.phase.latency_ms.p99,
            ),
            _ if self.open.is_empty() => {
                "No steady load was tried, so there is no number to plan with.".to_owned()
            }
            _ => format!(
                "No steady load that was tried kept 99 of 100 appends within {P99_MS_MAX:.0} ms, so there is no number to plan with."
            ),
        };
        QuickAnswer {
            plan_events_per_second: plan,
            sentences: [first, format!("The limit is {}.", self.limit())],
        }
    }
}

/// Rounded down to two digits that mean something.
fn two_digits(value: f64) -> f64 {
    if value < 10.0 {
        return value.floor();
    }
    let scale = 10_f64.powf(value.log10().floor() - 1.0);
    (value / scale).floor() * scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_report::histogram::Percentiles;
    use gesta_report::host::CpuUse;

    fn phase(connections: u32, rate: f64, p99: f64, machine: f64) -> Phase {
        Phase {
            connections,
            events_per_second: rate,
            appends_per_second: rate,
            latency_ms: Percentiles {
                count: 1_000,
                p50: 0.25,
                p99,
                ..Percentiles::default()
            },
            cpu: CpuUse {
                machine_cores: machine,
                own_cores: machine / 2.0,
            },
            complete: true,
            ..Phase::default()
        }
    }

    fn open(rate: f64, reached: f64, p99: f64) -> Open {
        Open {
            rate,
            phase: phase(256, reached, p99, 1.0),
        }
    }

    fn measured() -> Measured {
        Measured {
            closed: vec![phase(1, 4_000.0, 0.4, 0.8), phase(64, 40_000.0, 3.0, 1.2)],
            open: vec![
                open(10_000.0, 10_000.0, 2.0),
                open(20_000.0, 19_800.0, 5.0),
                open(30_000.0, 29_900.0, 101.0),
                open(38_000.0, 30_000.0, 90.0),
            ],
            bare_commits_per_second: Some(5_000.0),
            disk_bytes_per_event: Some(800.0),
            mean_bytes: 500.0,
            cores: 2,
            ..Measured::default()
        }
    }

    #[test]
    fn the_plan_is_a_share_of_the_highest_load_that_was_carried_well() {
        let verdict = measured().verdict();
        assert_eq!(verdict.plan_events_per_second, Some(14_000.0));
        assert!(verdict.sentences[0].contains("plan for 14,000 events/s of 500 bytes"));
    }

    #[test]
    fn without_a_good_load_there_is_no_plan() {
        let mut bad = measured();
        bad.open.drain(..2);
        let verdict = bad.verdict();
        assert_eq!(verdict.plan_events_per_second, None);
        assert!(verdict.sentences[0].contains("no number to plan with"));
        let nothing = Measured::default().verdict();
        assert!(nothing.sentences[0].contains("No steady load was tried"));
        assert!(nothing.sentences[1].contains("nothing was measured"));
    }

    /// What happened: with other programs on three quarters of the machine, `quick` gave a quarter of what the machine
    /// carries as the number to plan with.
    #[test]
    fn on_a_machine_that_others_use_there_is_no_plan() {
        let mut shared = measured();
        shared.others_cores = 0.4;
        assert!(shared.verdict().plan_events_per_second.is_some());
        shared.others_cores = 1.5;
        let verdict = shared.verdict();
        assert_eq!(verdict.plan_events_per_second, None);
        let expected = "Other programs used 1.5 of 2 cores, so there is no number to plan with.";
        assert_eq!(verdict.sentences[0], expected);
        // What happened: a process that may use a part of the machine heard of what others did on the rest.
        shared.has_more_cores = true;
        assert!(shared.verdict().plan_events_per_second.is_some());
    }

    #[test]
    fn the_limit_is_named() {
        let mut is = measured();
        assert!(is.limit().starts_with("the one writer"));
        is.batches_per_second = 4_000.0;
        assert!(is.limit().starts_with("the disk: commits fill 80 %"));
        is.closed[1].cpu.machine_cores = 1.8;
        let busy = "the processors: at the peak 1.8 of 2";
        assert!(is.limit().starts_with(busy), "{}", is.limit());
        is.closed[1].cpu.machine_cores = 0.5;
        is.round_trip_ms = 5.0;
        is.closed[0].latency_ms.p50 = 5.6;
        assert!(is.limit().starts_with("the distance"));
    }
}
