//! `append`: a load of appends, its latencies, and the proof that everything acknowledged is stored.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::failure::Result;
use crate::histogram::Percentiles;
use crate::load::{self, LoadArgs, Outcome};
use crate::read_back::{self, ReadBack};
use crate::record::{Record, Table};
use crate::report::ReportArgs;
use crate::store::{self, Opened, Pipelines, StoreArgs};
use crate::units::grouped;
use crate::workload::{Run, Workload, WorkloadArgs};

/// Appends under load, then reads everything back.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AppendArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// A finished load with its check.
pub(crate) struct Measured {
    pub(crate) outcome: Outcome,
    pub(crate) read_back: ReadBack,
    /// What the pipelines did, if they run in this process.
    pub(crate) pipelines: Option<Pipelines>,
}

impl Measured {
    /// True if the store kept its word.
    pub(crate) fn is_valid(&self) -> bool {
        self.read_back.is_clean() && self.outcome.wrongs.is_empty()
    }

    /// Mean number of events per batch; none if the pipelines run elsewhere.
    #[expect(clippy::cast_precision_loss, reason = "counts of minutes fit")]
    pub(crate) fn events_per_batch(&self) -> Option<f64> {
        let pipelines = self.pipelines.filter(|pipelines| pipelines.batches > 0)?;
        Some(pipelines.events as f64 / pipelines.batches as f64)
    }

    /// The figures of a line.
    pub(crate) fn figures(&self, events: u32) -> Value {
        let appends = self.outcome.appends_per_second();
        json!({
            "events_per_second": (appends * f64::from(events)).round(),
            "appends_per_second": appends.round(),
            "seconds": self.outcome.seconds,
            "latency_ms": self.outcome.latencies.percentiles(),
            "events_per_batch": self.events_per_batch(),
            "pipelines": self.pipelines,
            "cpu": self.outcome.cpu,
            "unresolved": self.outcome.unresolved.len(),
            "wrongs": self.outcome.wrongs.iter().take(10).collect::<Vec<_>>(),
            "read_back": self.read_back,
        })
    }
}

/// Runs the load on an open store, and checks it.
pub(crate) async fn measure(
    opened: &Opened,
    load: &LoadArgs,
    workload: &WorkloadArgs,
    stop: &CancellationToken,
) -> Result<Measured> {
    let workload = Arc::new(Workload::new(workload, Run::random()));
    let from = read_back::mark(opened.store.as_ref()).await?;
    let stores = [Arc::clone(&opened.store)];
    let before = opened.pipelines();
    let outcome = Outcome::merged(load::run(&stores, &workload, load, stop).await?);
    let pipelines = opened
        .pipelines()
        .zip(before)
        .map(|(now, before)| now.since(before));
    let events = u64::from(load.events);
    let read_back = read_back::check(&opened.store, from, &workload, events, &outcome).await?;
    Ok(Measured {
        outcome,
        read_back,
        pipelines,
    })
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &AppendArgs, stop: &CancellationToken) -> Result<bool> {
    let mut record = Record::begin("append", args.workload.seed);
    let opened = store::open(&args.store).await?;
    let measured = measure(&opened, &args.load, &args.workload, stop).await?;
    record.store = Some(opened.facts.clone());
    record.workload = parameters(&args.load, &args.workload);
    record.result = measured.figures(args.load.events);
    record.errors = json!(measured.outcome.errors);
    record.complete = measured.outcome.complete;
    record.valid = measured.is_valid();
    record.save(&args.report)?;
    print!(
        "{}",
        table(&[("append".into(), args.load.events, &measured)])
    );
    verdict(&measured);
    opened.store.shutdown().await?;
    Ok(measured.is_valid())
}

/// Load and workload as one object.
pub(crate) fn parameters(load: &LoadArgs, workload: &WorkloadArgs) -> Value {
    json!({
        "load": load,
        "warm_up_seconds": load.warm_up.as_secs_f64(),
        "duration_seconds": load.duration.as_secs_f64(),
        "events": workload,
    })
}

/// Events per batch, for a table.
pub(crate) fn told(batch: Option<f64>) -> String {
    batch.map_or("-".into(), |batch| format!("{batch:.1}"))
}

/// One row per run.
pub(crate) fn table(runs: &[(String, u32, &Measured)]) -> Table {
    let mut table = Table::new([
        "run",
        "events/s",
        "appends/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "batch",
        "cores",
        "own",
        "errors",
        "lost",
    ]);
    for (name, events, run) in runs {
        let appends = run.outcome.appends_per_second();
        let p: Percentiles = run.outcome.latencies.percentiles();
        table.row([
            name.clone(),
            grouped(appends * f64::from(*events)),
            grouped(appends),
            format!("{:.2}", p.p50),
            format!("{:.2}", p.p99),
            format!("{:.2}", p.p999),
            format!("{:.2}", p.max),
            told(run.events_per_batch()),
            format!("{:.2}", run.outcome.cpu.machine_cores),
            format!("{:.2}", run.outcome.cpu.own_cores),
            run.outcome.errors.values().sum::<u64>().to_string(),
            run.read_back.lost.to_string(),
        ]);
    }
    table
}

/// Says whether the store kept its word, and if not, how.
pub(crate) fn verdict(measured: &Measured) {
    let check = &measured.read_back;
    if measured.is_valid() {
        println!(
            "read back: all {} acknowledged events found in {:.1} s",
            check.acknowledged, check.seconds
        );
    } else {
        println!(
            "NO RESULT: lost {}, doubled {}, misplaced {}, altered {}, uninvited {}, wrong answers {}",
            check.lost,
            check.doubled,
            check.misplaced,
            check.altered,
            check.uninvited,
            measured.outcome.wrongs.len()
        );
        for finding in &check.findings {
            println!("  {finding}");
        }
        for wrong in measured.outcome.wrongs.iter().take(10) {
            println!("  {wrong}");
        }
    }
    if !measured.outcome.complete {
        println!(
            "interrupted: the figures are of {:.1} s",
            measured.outcome.seconds
        );
    }
}

#[cfg(test)]
mod tests;
