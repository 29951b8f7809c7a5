//! One measured stretch of load: the generator, a sampler of processor times beside it, and what is told of both.

use std::rc::Rc;
use std::time::Duration;

use gesta_load::cinema::generator::{Drive, Generator, Phase, windows};
use gesta_load::cinema::measure::PhaseResult;
use gesta_load::cinema::model::{Call, Outcome};
use gesta_load::counters::{self, DatabaseFigures, Stretch, Watch};
use gesta_report::cells;
use gesta_report::histogram::Percentiles;
use gesta_report::{Cell, Report, Table, Unit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::workload::ladder::Reached;
use crate::workload::watch::{Sampled, Watched, sample};

/// Time between the decision to start and the first intended start.
pub(crate) const HEAD_START: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) drive: Drive,
    pub(crate) result: PhaseResult,
    /// Why it was the last of a ladder, if it was.
    pub(crate) stopped: Option<String>,
    cpu: Sampled,
}

/// Runs phases without pauses and samples their measured parts.
pub(crate) async fn run(
    generator: &Rc<Generator>,
    phases: &[(String, Phase)],
    watched: &Watched,
    stop: &CancellationToken,
) -> Vec<Step> {
    let plain: Vec<Phase> = phases.iter().map(|(_, phase)| *phase).collect();
    let windows = windows(&plain, Instant::now() + HEAD_START);
    let measured = windows.iter().map(|window| (window.from, window.end));
    let sampled = sample(measured.collect(), watched.clone(), stop.clone());
    let sampler = tokio::task::spawn_local(sampled);
    let results = generator.run(&windows, stop).await;
    let mut samples = sampler.await.unwrap_or_default().into_iter();
    let steps = phases.iter().zip(results);
    let steps = steps.map(|((name, phase), result)| Step {
        name: name.clone(),
        drive: phase.drive,
        result,
        stopped: None,
        cpu: samples.next().unwrap_or_default(),
    });
    steps.collect()
}

impl Step {
    /// Tells why the figures are not those of the application, if they are not, and what failed.
    pub(crate) fn tell_of_trouble(&self, report: &mut Report) {
        let (name, lag) = (&self.name, self.result.lag.percentiles());
        let is_open = matches!(self.drive, Drive::Open { .. });
        let why = self.cpu.limit(is_open.then_some(lag.p99));
        if let Some(why) = why {
            report.caution(format!(
                "{name}: {why}: the figures are those of the generator."
            ));
        }
        for (cause, count) in &self.result.errors {
            report.caution(format!("{name}: {count} x {cause}."));
        }
    }

    /// What a step of a ladder is judged by; none for a closed loop.
    pub(crate) fn reached(&self) -> Option<Reached> {
        let Drive::Open { rate, .. } = self.drive else {
            return None;
        };
        Some(Reached {
            offered: rate,
            done: self.result.decided_per_second(),
            p99_ms: self.result.served().p99,
            refused: self.count(Outcome::Refused),
            // Whether the other answers can be true is found at the end.
            wrong: self.count(Outcome::Failed),
        })
    }

    /// Requests of the measured part that ended so.
    pub(crate) fn count(&self, outcome: Outcome) -> u64 {
        self.result.over(|_, found| found == outcome).count
    }

    /// Tells why the figures are no result, if they are none.
    pub(crate) fn object(&self, report: &mut Report) {
        if self.result.is_mostly_refused() {
            let (name, refused) = (&self.name, self.count(Outcome::Refused));
            report.problem(format!(
                "{name}: most requests were refused as overloaded, {refused} in all"
            ));
        }
    }

    /// Processor time of the processes of this name, in cores; none if they are not on this machine.
    pub(crate) fn cores(&self, name: &str) -> Option<f64> {
        self.cpu.of(name)
    }

    /// Processor time of everything on this machine, in cores.
    pub(crate) fn machine_cores(&self) -> f64 {
        self.cpu.machine.machine_cores
    }

    /// What the database did, if it can be asked.
    pub(crate) fn database(&self) -> Option<&DatabaseFigures> {
        self.cpu.database.as_ref()
    }

    fn micros_per_request(&self) -> Option<f64> {
        let sent = self.result.sent;
        (sent > 0).then(|| self.cpu.own * self.result.seconds * 1e6 / sent as f64)
    }
}

/// Title of the table of steps.
pub(crate) const STEPS: &str = "Steps";
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

/// Tells of the steps: a row for each, and for each kind of call.
pub(crate) fn tell(report: &mut Report, steps: &[Step]) {
    steps.iter().for_each(|step| step.tell_of_trouble(report));
    let wait = |step: &Step| step.result.connection_wait.percentiles().p99;
    let served = |step: &Step| latency_cells(&step.result.served());
    let table = Table::of(STEPS, steps)
        .column("step", Unit::Words, |step| &step.name)
        .column("answers/s", Unit::Count, |step| {
            step.result.answered_per_second()
        })
        .column("accepted/s", Unit::Count, |step| {
            step.result.accepted_per_second()
        })
        .columns(&LATENCY, served)
        .column("refused", Unit::Count, |step| step.count(Outcome::Refused))
        .column("rejected", Unit::Count, |step| {
            step.count(Outcome::Rejected)
        })
        .column("failed", Unit::Count, |step| step.count(Outcome::Failed))
        .column("unsent", Unit::Count, |step| {
            step.result.unsent.percentiles().count
        })
        .column("application", Unit::Cores, |step| step.cores("application"))
        .column("database", Unit::Cores, |step| step.cores("database"))
        .column("machine", Unit::Cores, |step| {
            step.cpu.machine.machine_cores
        })
        .column("generator", Unit::Cores, |step| step.cpu.own)
        .column("µs per request", Unit::Count, Step::micros_per_request)
        .column("generator late (p99)", Unit::Millis, |step| {
            step.result.lag.percentiles().p99
        })
        .column("wait for a connection (p99)", Unit::Millis, wait)
        .column("ended the ladder", Unit::Words, |step| {
            step.stopped.as_ref()
        });
    report.table(table.table());
    let mut calls = Vec::new();
    for step in steps {
        for (call, call_name) in Call::ALL {
            for (outcome, outcome_name) in Outcome::ALL {
                let latency = step.result.over(|c, o| (c, o) == (call, outcome));
                calls.push((&step.name, call_name, outcome_name, latency));
            }
        }
    }
    calls.retain(|(.., latency)| latency.count > 0);
    let calls = Table::of("Every kind of call", &calls)
        .column("step", Unit::Words, |(step, ..)| *step)
        .column("call", Unit::Words, |(_, call, ..)| *call)
        .column("outcome", Unit::Words, |(_, _, outcome, _)| *outcome)
        .columns(&LATENCY, |(.., latency)| latency_cells(latency));
    let mut calls = calls.table();
    calls.folded = steps.len() > 1;
    report.table(calls);
}

/// Tells what the database did in each step.
pub(crate) fn tell_of_database(report: &mut Report, steps: &[Step], database: &Watch) {
    let counted = steps.iter().filter_map(|step| {
        Some(Stretch {
            name: step.name.clone(),
            done_per_second: step.result.decided_per_second(),
            figures: step.cpu.database.as_ref()?,
        })
    });
    let counted: Vec<Stretch<'_>> = counted.collect();
    counters::tell(report, "request", &counted, database.method());
}
