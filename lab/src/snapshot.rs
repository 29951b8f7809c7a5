//! `snapshot`: does throughput hold while another session keeps an old snapshot of the database open?
//!
//! Why: designs that update a row per append collapse, because dead versions of that row can not be
//! removed as long as somebody might still look at them (`pg_dump`, an analyst's transaction).

use std::time::{Duration, Instant};

use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::append::{self, Measured};
use crate::failure::{Context, Result, fail};
use crate::histogram::median;
use crate::load::LoadArgs;
use crate::postgres;
use crate::record::Record;
use crate::report::ReportArgs;
use crate::store::{self, StoreArgs};
use crate::units;
use crate::workload::WorkloadArgs;

/// Throughput before, during and after a long open snapshot (PostgreSQL only).
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SnapshotArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// `--duration` is the length of one slice.
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// How long the snapshot stays open.
    #[arg(long, default_value = "10m", value_parser = units::duration)]
    pub(crate) hold: Duration,
    /// Share of the throughput without the snapshot that must be reached in its last slice.
    #[arg(long, default_value_t = 0.8)]
    pub(crate) floor: f64,
}

/// The command. True if the floor was held and nothing was lost.
pub(crate) async fn run(args: &SnapshotArgs, stop: &CancellationToken) -> Result<bool> {
    let mut record = Record::begin("snapshot", args.workload.seed);
    let opened = store::open(&args.store).await?;
    if opened.facts.backend != "postgres" {
        return fail("snapshot is about PostgreSQL");
    }
    let mut runs: Vec<(String, Measured)> = Vec::new();
    let slice = |name: String| {
        let opened = &opened;
        async move {
            eprintln!("{name}");
            let measured = append::measure(opened, &args.load, &args.workload, stop).await?;
            Ok::<_, crate::failure::Failure>((name, measured))
        }
    };
    // The first slice warms caches and makes the streams.
    runs.push(slice("before".into()).await?);
    let session = postgres::connect(opened.database_url()?).await?;
    session
        .batch_execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current(), count(*) FROM pg_class",
        )
        .await
        .context("opening the snapshot")?;
    let begin = Instant::now();
    while !stop.is_cancelled() && (begin.elapsed() < args.hold || runs.len() < 2) {
        runs.push(slice(format!("held for {:.0} s", begin.elapsed().as_secs_f64())).await?);
    }
    session
        .batch_execute("COMMIT")
        .await
        .context("the snapshot was lost")?;
    let held_seconds = begin.elapsed().as_secs_f64();
    if !stop.is_cancelled() {
        runs.push(slice("after".into()).await?);
    }

    let rate =
        |run: &(String, Measured)| run.1.outcome.appends_per_second() * f64::from(args.load.events);
    let held: Vec<f64> = runs
        .iter()
        .filter(|r| r.0.starts_with("held"))
        .map(rate)
        .collect();
    let free: Vec<f64> = runs
        .iter()
        .filter(|r| !r.0.starts_with("held"))
        .map(rate)
        .collect();
    let last = held.last().copied().unwrap_or(0.0);
    let ratio = if median(&free) > 0.0 {
        last / median(&free)
    } else {
        0.0
    };
    let sound = runs.iter().all(|(_, run)| run.is_valid());
    let complete = !stop.is_cancelled();
    record.store = Some(opened.facts.clone());
    record.workload = append::parameters(&args.load, &args.workload);
    record.workload["hold_seconds"] = json!(args.hold.as_secs_f64());
    record.result = json!({
        "events_per_second_free": free, "events_per_second_held": held, "held_seconds": held_seconds,
        "last_slice_share": ratio, "median_share": median(&held) / median(&free).max(1.0),
        "slices": runs.iter().map(|(name, run)| json!({"name": name, "run": run.figures(args.load.events)})).collect::<Vec<_>>(),
    });
    (record.complete, record.valid) = (complete, sound);
    record.save(&args.report)?;
    let rows: Vec<_> = runs
        .iter()
        .map(|(name, run)| (name.clone(), args.load.events, run))
        .collect();
    print!("{}", append::table(&rows));
    println!(
        "last slice under the snapshot: {:.0} % of without (floor {:.0} %)",
        ratio * 100.0,
        args.floor * 100.0
    );
    for (_, run) in runs.iter().filter(|(_, run)| !run.is_valid()) {
        append::verdict(run);
    }
    opened.store.shutdown().await?;
    Ok(sound && (!complete || ratio >= args.floor))
}
