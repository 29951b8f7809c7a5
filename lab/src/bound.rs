//! `bound`: what the bare database carries: the append statement in a loop on one connection, without the pipeline.
//!
//! The table is Gesta's own: a store is made beside the measured one, closed, and filled by plain
//! statements. No chain, no expected revisions, no answers to callers: nothing that waits for each
//! answer can be faster with the same rows, indexes, durability and one connection.

mod postgres;
mod sqlite;

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::beside::Beside;
use crate::failure::{Result, fail};
use crate::histogram::{Latencies, Percentiles};
use crate::host::{CpuMeter, CpuUse};
use crate::random::Random;
use crate::record::{Record, Table};
use crate::report::ReportArgs;
use crate::store::{self, StoreArgs};
use crate::units::{self, grouped};
use crate::workload::{Run, Workload, WorkloadArgs};

/// Inserts batches into a table like Gesta's, without Gesta.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BoundArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// Events per statement and commit.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) batch: u32,
    /// A plain one-row INSERT and its commit, instead of arrays.
    #[arg(long)]
    pub(crate) bare_insert: bool,
    /// Time before the clock starts.
    #[arg(long, default_value = "2s", value_parser = units::duration)]
    pub(crate) warm_up: Duration,
    /// Time on the clock.
    #[arg(long, default_value = "15s", value_parser = units::duration)]
    pub(crate) duration: Duration,
}

/// How batches are inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    /// Many rows per commit.
    Batch(u32),
    /// One row, one statement, one commit.
    BareInsert,
}

impl Form {
    /// Events per commit.
    pub(crate) fn events(self) -> u32 {
        match self {
            Form::Batch(events) => events,
            Form::BareInsert => 1,
        }
    }
}

/// What to run.
pub(crate) struct Plan<'a> {
    /// URL of the measured store, beside which the table is made.
    pub(crate) url: &'a str,
    /// How.
    pub(crate) form: Form,
    /// Payloads.
    pub(crate) workload: &'a Workload,
    /// Time before the clock starts.
    pub(crate) warm_up: Duration,
    /// Time on the clock.
    pub(crate) duration: Duration,
}

/// What the bare database did.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Bound {
    /// Rate.
    pub(crate) events_per_second: f64,
    /// Events inserted on the clock.
    pub(crate) events: u64,
    /// Length of the window.
    pub(crate) seconds: f64,
    /// Time of one statement with its commit.
    pub(crate) latency_ms: Percentiles,
    /// Processor time.
    pub(crate) cpu: CpuUse,
    /// Rows found afterwards are those inserted.
    pub(crate) valid: bool,
}

/// The schema of the table, or the beginning of its folder's name.
const SCHEMA: &str = "gesta_lab_bound";

/// Runs it, on whichever database the URL names.
pub(crate) async fn measure(plan: &Plan<'_>, stop: &CancellationToken) -> Result<Bound> {
    let Some(beside) = Beside::of(plan.url, SCHEMA)? else {
        return fail("bound is for postgres:// and sqlite: stores");
    };
    beside.clear().await?;
    let made = store::open_store(beside.url(), 1).await?;
    made.shutdown().await?;
    drop(made);
    beside.settle().await?;
    let bound = match plan.url.starts_with("sqlite:") {
        true => sqlite::measure(plan, &beside, stop),
        false => postgres::measure(plan, &beside, stop).await,
    };
    beside.clear().await?;
    bound
}

/// The command.
pub(crate) async fn run(args: &BoundArgs, stop: &CancellationToken) -> Result<bool> {
    let mut record = Record::begin("bound", args.workload.seed);
    let opened = store::open(&args.store).await?;
    let form = if args.bare_insert {
        Form::BareInsert
    } else {
        Form::Batch(args.batch)
    };
    let workload = Workload::new(&args.workload, Run::random());
    let plan = Plan {
        url: &opened.url,
        form,
        workload: &workload,
        warm_up: args.warm_up,
        duration: args.duration,
    };
    let bound = measure(&plan, stop).await?;
    record.store = Some(opened.facts.clone());
    record.workload = json!({ "form": form, "events": args.workload, "duration_seconds": args.duration.as_secs_f64() });
    record.result = json!(bound);
    (record.complete, record.valid) = (!stop.is_cancelled(), bound.valid);
    record.save(&args.report)?;
    print!("{}", table(&[("bound".into(), form, &bound)]));
    opened.store.shutdown().await?;
    Ok(bound.valid)
}

/// One row per run.
pub(crate) fn table(runs: &[(String, Form, &Bound)]) -> Table {
    let mut table = Table::new([
        "run", "batch", "events/s", "p50 ms", "p99 ms", "max ms", "cores", "own",
    ]);
    for (name, form, bound) in runs {
        table.row([
            name.clone(),
            form.events().to_string(),
            grouped(bound.events_per_second),
            format!("{:.2}", bound.latency_ms.p50),
            format!("{:.2}", bound.latency_ms.p99),
            format!("{:.2}", bound.latency_ms.max),
            format!("{:.2}", bound.cpu.machine_cores),
            format!("{:.2}", bound.cpu.own_cores),
        ]);
    }
    table
}

/// Which stream, revision and position the next event has.
struct Places {
    random: Random,
    revisions: Vec<i64>,
    position: i64,
    number: u64,
}

/// One event for the table.
struct Place {
    stream: i64,
    revision: i64,
    number: u64,
}

impl Places {
    fn new(workload: &Workload) -> Self {
        Self {
            random: workload.choices(0),
            revisions: vec![0; workload.streams().len()],
            position: 0,
            number: 0,
        }
    }

    fn next(&mut self) -> Place {
        let stream = self.random.below(self.revisions.len());
        let revision = self.revisions[stream];
        self.revisions[stream] += 1;
        self.position += 1;
        self.number += 1;
        let stream = i64::try_from(stream).expect("streams are counted in 32 bits");
        Place {
            stream,
            revision,
            number: self.number,
        }
    }
}

/// Counts what happens on the clock.
struct Clocked {
    from: Instant,
    to: Instant,
    meter: Option<CpuMeter>,
    latencies: Latencies,
    events: u64,
    last: Instant,
}

impl Clocked {
    fn start(plan: &Plan<'_>) -> Self {
        let from = Instant::now() + plan.warm_up;
        Self {
            from,
            to: from + plan.duration,
            meter: None,
            latencies: Latencies::default(),
            events: 0,
            last: from,
        }
    }

    fn is_over(&self, stop: &CancellationToken) -> bool {
        Instant::now() >= self.to || stop.is_cancelled()
    }

    fn add(&mut self, begun: Instant, events: u32) {
        let now = Instant::now();
        if now < self.from || now >= self.to {
            return;
        }
        self.meter.get_or_insert_with(CpuMeter::start);
        self.latencies.record(now - begun);
        self.events += u64::from(events);
        self.last = now;
    }

    /// `stored` is what the table holds, `inserted` what was sent.
    fn finish(self, stored: u64, inserted: u64) -> Bound {
        // An interrupted run ends with its last statement.
        let end = if Instant::now() >= self.to {
            self.to
        } else {
            self.last
        };
        let seconds = end.saturating_duration_since(self.from).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "counts of minutes fit")]
        let rate = if seconds > 0.0 {
            self.events as f64 / seconds
        } else {
            0.0
        };
        Bound {
            events_per_second: rate.round(),
            events: self.events,
            seconds,
            latency_ms: self.latencies.percentiles(),
            cpu: self.meter.map(|meter| meter.used()).unwrap_or_default(),
            valid: stored == inserted,
        }
    }
}
