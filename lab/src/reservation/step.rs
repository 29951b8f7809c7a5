//! One measured stretch of load: the generator on this thread, a sampler of processor times beside it.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::cells;
use crate::failure::{Failure, Result};
use crate::histogram::Percentiles;
use crate::host::{CpuMeter, CpuUse};
use crate::report::{Cell, Chart, Report, Scale, Table, Unit};
use crate::reservation::drive::{Drive, Phase};
use crate::reservation::generator::Generator;
use crate::reservation::measure::PhaseResult;
use crate::reservation::model::{Call, Outcome};
use crate::reservation::processes::Tree;

/// Time between the decision to start and the first intended start.
const HEAD_START: Duration = Duration::from_millis(20);
/// A generator that is busier is the limit.
const OWN_SHARE_MAX: f64 = 0.9;
/// A generator that is later is the limit.
const LAG_P99_MS_MAX: f64 = 2.0;

/// Cores that processes kept busy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sampled {
    machine: CpuUse,
    trees: Vec<(String, f64)>,
}

/// A measured phase.
#[derive(Debug)]
pub(crate) struct Step {
    /// For people.
    pub(crate) name: String,
    /// What was asked.
    pub(crate) drive: Drive,
    /// What it came to.
    pub(crate) result: PhaseResult,
    cpu: Sampled,
}

/// Runs phases without pauses and samples their measured parts.
pub(crate) fn run(
    generator: &mut Generator,
    phases: &[(String, Phase)],
    trees: &[Tree],
    stop: &CancellationToken,
) -> Result<Vec<Step>> {
    let begin = Instant::now() + HEAD_START;
    let mut windows = Vec::new();
    let mut at = begin;
    for (_, phase) in phases {
        windows.push((at + phase.warm_up, at + phase.length()));
        at += phase.length();
    }
    let plain: Vec<Phase> = phases.iter().map(|(_, phase)| *phase).collect();
    let (results, samples) = std::thread::scope(|scope| {
        // Dropping the sender ends the sampling early.
        let (over, ended) = mpsc::channel::<()>();
        let sampler = scope.spawn(move || sample(&windows, trees, &ended));
        let results = generator.run(&plain, begin, stop);
        drop(over);
        let samples = sampler.join();
        (results, samples)
    });
    let samples = samples.map_err(|_| Failure("the sampler has failed".into()))?;
    let steps = phases.iter().zip(results?).enumerate();
    let steps = steps.map(|(i, ((name, phase), result))| Step {
        name: name.clone(),
        drive: phase.drive,
        result,
        cpu: samples.get(i).cloned().unwrap_or_default(),
    });
    Ok(steps.collect())
}

/// Looks at the beginning and the end of each window.
fn sample(
    windows: &[(Instant, Instant)],
    trees: &[Tree],
    ended: &mpsc::Receiver<()>,
) -> Vec<Sampled> {
    let mut samples = Vec::new();
    for (from, to) in windows {
        if !wait(*from, ended) {
            break;
        }
        let (began, machine) = (Instant::now(), CpuMeter::start());
        let before: Vec<Duration> = trees.iter().map(Tree::busy).collect();
        let complete = wait(*to, ended);
        let seconds = began.elapsed().as_secs_f64().max(0.001);
        let cores = trees.iter().zip(before).map(|(tree, before)| {
            let used = tree.busy().saturating_sub(before).as_secs_f64();
            (tree.name.clone(), (used / seconds * 100.0).round() / 100.0)
        });
        samples.push(Sampled {
            trees: cores.collect(),
            machine: machine.used(),
        });
        if !complete {
            break;
        }
    }
    samples
}

/// False if there is nothing to wait for any more.
fn wait(until: Instant, ended: &mpsc::Receiver<()>) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    matches!(ended.recv_timeout(left), Err(RecvTimeoutError::Timeout))
}

impl Step {
    /// Why the generator was the limit, if it was.
    pub(crate) fn generator_limit(&self) -> Option<&'static str> {
        let lag = self.result.lag.percentiles();
        if self.result.own_share() > OWN_SHARE_MAX {
            Some("the generator's thread was busy")
        } else if lag.count > 0 && lag.p99 > LAG_P99_MS_MAX && !self.is_closed() {
            Some("the generator was late")
        } else {
            None
        }
    }

    fn tell_of_trouble(&self, report: &mut Report) {
        let name = &self.name;
        if let Some(why) = self.generator_limit() {
            report.caution(format!(
                "{name}: {why}: the figures are those of the generator."
            ));
        }
        for (cause, count) in &self.result.errors {
            report.caution(format!("{name}: {count} x {cause}."));
        }
    }

    fn is_closed(&self) -> bool {
        matches!(self.drive, Drive::Closed(_))
    }

    fn cores(&self, name: &str) -> Option<f64> {
        let of = self.cpu.trees.iter();
        let of = of.filter(|(tree, _)| tree.starts_with(name));
        of.map(|(_, cores)| *cores).reduce(|sum, cores| sum + cores)
    }
}

/// Title of the table of steps.
pub(crate) const STEPS: &str = "Steps";
/// Title of the table of calls.
pub(crate) const CALLS: &str = "Every kind of call";
/// What is told of latencies.
pub(crate) const LATENCY: [(&str, Unit); 6] = [
    ("requests", Unit::Count),
    ("p50", Unit::Millis),
    ("p99", Unit::Millis),
    ("p99.9", Unit::Millis),
    ("p99.99", Unit::Millis),
    ("longest", Unit::Millis),
];

/// The cells of these columns.
pub(crate) fn latency_cells(p: &Percentiles) -> Vec<Cell> {
    cells![p.count, p.p50, p.p99, p.p999, p.p9999, p.max]
}

/// Tells of the steps: a row and a line of the chart for each, and each kind of call.
pub(crate) fn tell(report: &mut Report, steps: &[Step]) {
    let first = [
        ("step", Unit::Words),
        ("answers/s", Unit::Count),
        ("accepted/s", Unit::Count),
    ];
    let last = [
        ("refused", Unit::Count),
        ("rejected", Unit::Count),
        ("failed", Unit::Count),
        ("unsent", Unit::Count),
        ("application", Unit::Cores),
        ("database", Unit::Cores),
        ("machine", Unit::Cores),
        ("generator", Unit::Cores),
        ("µs per request", Unit::Count),
        ("generator late (p99)", Unit::Millis),
        ("wait for a connection (p99)", Unit::Millis),
        ("wait for the turn (p99)", Unit::Millis),
    ];
    let columns = first.into_iter().chain(LATENCY).chain(last);
    let mut table = Table::new(STEPS, columns);
    let place = [
        ("step", Unit::Words),
        ("call", Unit::Words),
        ("outcome", Unit::Words),
    ];
    let mut calls = Table::new(CALLS, place.into_iter().chain(LATENCY));
    calls.folded = steps.len() > 1;
    for step in steps {
        let result = &step.result;
        let count = |outcome: Outcome| result.measures.over(|_, o| o == outcome).count;
        let first = cells![
            &step.name,
            result.answered_per_second(),
            result.accepted_per_second()
        ];
        let last = cells![
            count(Outcome::Refused),
            count(Outcome::Rejected),
            count(Outcome::Failed),
            result.measures.unsent(),
            step.cores("application"),
            step.cores("database"),
            step.cpu.machine.machine_cores,
            result.own_share(),
            result.own_micros_per_request(),
            result.lag.percentiles().p99,
            result.connection_wait.percentiles().p99,
            result.turn_wait.percentiles().p99,
        ];
        table.row([first, latency_cells(&result.measures.overall()), last].concat());
        for call in Call::ALL {
            for outcome in Outcome::ALL {
                let p = result.measures.over(|c, o| (c, o) == (call, outcome));
                if p.count > 0 {
                    let place = cells![&step.name, call.name(), outcome.name()];
                    calls.row([place, latency_cells(&p)].concat());
                }
            }
        }
        step.tell_of_trouble(report);
    }
    if steps.len() > 1 {
        let (x, y) = (("step", Scale::Steps), (&["p50", "p99"][..], Scale::Log));
        report.chart(Chart::lines("Latency, step by step", STEPS, x, y));
    }
    report.table(table);
    report.table(calls);
}
