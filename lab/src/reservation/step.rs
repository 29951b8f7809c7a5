//! One measured stretch of load: the generator on this thread, a sampler of processor times beside it.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, Result};
use crate::host::{CpuMeter, CpuUse};
use crate::record::Table;
use crate::reservation::drive::{Drive, Phase};
use crate::reservation::generator::Generator;
use crate::reservation::measure::PhaseResult;
use crate::reservation::model::{Call, Outcome};
use crate::reservation::processes::Tree;
use crate::units::grouped;

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

    fn is_closed(&self) -> bool {
        matches!(self.drive, Drive::Closed(_))
    }

    /// Everything, for a line.
    pub(crate) fn figures(&self) -> Value {
        let result = &self.result;
        let mut cpu = Map::new();
        for (name, cores) in &self.cpu.trees {
            cpu.insert(format!("{name}_cores"), json!(cores));
        }
        cpu.insert(
            "machine_cores".into(),
            json!(self.cpu.machine.machine_cores),
        );
        cpu.insert("generator_cores".into(), json!(rounded(result.own_share())));
        let answered: Map<String, Value> = Outcome::ALL
            .iter()
            .map(|outcome| {
                let count = result.answered[*outcome as usize];
                (outcome.name().to_owned(), json!(count))
            })
            .collect();
        let by_target: Vec<Value> = result
            .by_target
            .iter()
            .map(|[commands, reads]| json!({"commands_accepted": commands, "reads": reads}))
            .collect();
        json!({
            "name": self.name,
            "drive": self.drive,
            "seconds": rounded(result.seconds),
            "answered": answered,
            "answered_per_second": result.answered_per_second().round(),
            "accepted_per_second": result.accepted_per_second().round(),
            "latency_ms": result.measures.figures(),
            "warm_up_latency_ms": result.warm_up.figures(),
            "lag_ms": result.lag.percentiles(),
            "connection_wait_ms": result.connection_wait.percentiles(),
            "turn_wait_ms": result.turn_wait.percentiles(),
            "unsent": result.measures.unsent(),
            "cpu": cpu,
            "generator_micros_per_request": result.own_micros_per_request(),
            "generator_limit": self.generator_limit(),
            "by_server": by_target,
            "errors": result.errors,
            "complete": result.complete,
        })
    }

    fn cores(&self, name: &str) -> String {
        let of: Vec<String> = self
            .cpu
            .trees
            .iter()
            .filter(|(tree, _)| tree.starts_with(name))
            .map(|(_, cores)| format!("{cores:.2}"))
            .collect();
        if of.is_empty() {
            "-".into()
        } else {
            of.join("+")
        }
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// One row per step.
pub(crate) fn table(steps: &[Step]) -> Table {
    let mut table = Table::new([
        "step",
        "answers/s",
        "accepted/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "p99.99 ms",
        "max ms",
        "503",
        "4xx",
        "failed",
        "unsent",
        "app",
        "db",
        "own",
        "us/req",
        "lag p99",
        "conn p99",
    ]);
    for step in steps {
        let result = &step.result;
        let p = result.measures.overall();
        let count = |outcome: Outcome| result.measures.over(|_, o| o == outcome).count.to_string();
        table.row([
            step.name.clone(),
            grouped(result.answered_per_second()),
            grouped(result.accepted_per_second()),
            format!("{:.2}", p.p50),
            format!("{:.2}", p.p99),
            format!("{:.2}", p.p999),
            format!("{:.2}", p.p9999),
            format!("{:.2}", p.max),
            count(Outcome::Refused),
            count(Outcome::Rejected),
            count(Outcome::Failed),
            result.measures.unsent().to_string(),
            step.cores("application"),
            step.cores("database"),
            format!("{:.2}", result.own_share()),
            format!("{:.1}", result.own_micros_per_request()),
            format!("{:.2}", result.lag.percentiles().p99),
            format!("{:.2}", result.connection_wait.percentiles().p99),
        ]);
    }
    table
}

/// One row per kind of call and outcome of a step.
pub(crate) fn call_table(step: &Step) -> Table {
    let mut table = Table::new([
        "call",
        "outcome",
        "count",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "p99.99 ms",
        "max ms",
    ]);
    for call in Call::ALL {
        for outcome in Outcome::ALL {
            let p = step.result.measures.over(|c, o| (c, o) == (call, outcome));
            if p.count > 0 {
                table.row([
                    call.name().to_owned(),
                    outcome.name().to_owned(),
                    p.count.to_string(),
                    format!("{:.2}", p.p50),
                    format!("{:.2}", p.p99),
                    format!("{:.2}", p.p999),
                    format!("{:.2}", p.p9999),
                    format!("{:.2}", p.max),
                ]);
            }
        }
    }
    table
}
