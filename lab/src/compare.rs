//! `compare`: Gesta against the bare database in one run, alternating, so that both meet the same moods of the machine.
//!
//! Each round measures a load of appends, takes the batch size that it really had, and then the bare
//! statement at that size. Both begin with an empty table. Medians and the ratio per round are reported.

use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::append::{self, Measured};
use crate::beside::Beside;
use crate::bound::{self, Bound, Form, Plan};
use crate::failure::Result;
use crate::histogram::median;
use crate::load::LoadArgs;
use crate::record::{Record, Table};
use crate::report::ReportArgs;
use crate::store::{self, Opened, StoreArgs};
use crate::units::grouped;
use crate::workload::{Run, Workload, WorkloadArgs};

/// Gesta against the bare database, alternating.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Against a plain one-row INSERT and its commit.
    #[arg(long)]
    pub(crate) bare_insert: bool,
    /// Against this batch size instead of the one that the appends had.
    #[arg(long)]
    pub(crate) batch: Option<u32>,
    /// Against another store of this many logs (made new) instead of the bare database.
    #[arg(long)]
    pub(crate) against_logs: Option<u16>,
    /// Share of the bare database that must be reached, for example 0.85; a miss is exit code 1.
    #[arg(long)]
    pub(crate) floor: Option<f64>,
    /// Events per second that must be reached; a miss is exit code 1.
    #[arg(long)]
    pub(crate) floor_events: Option<f64>,
}

/// One round.
struct Round {
    gesta: Measured,
    batch: Option<f64>,
    other: Other,
}

/// What Gesta is compared with.
enum Other {
    Bound(Form, Bound),
    Store(Box<Measured>),
}

/// The command. True if everything was read back and the floors were reached.
pub(crate) async fn run(args: &CompareArgs, stop: &CancellationToken) -> Result<bool> {
    let mut record = Record::begin("compare", args.workload.seed);
    let opened = store::open(&args.store).await?;
    let other = match args.against_logs {
        Some(logs) => Some(
            store::open(
                &StoreArgs {
                    logs,
                    ..args.store.clone()
                }
                .beside()?,
            )
            .await?,
        ),
        None => None,
    };
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        if stop.is_cancelled() {
            break;
        }
        eprintln!("round {number} of {}", args.rounds);
        rounds.push(round(args, &opened, other.as_ref(), stop).await?);
    }

    let events = f64::from(args.load.events);
    let gesta: Vec<f64> = rounds
        .iter()
        .map(|r| r.gesta.outcome.appends_per_second() * events)
        .collect();
    let others: Vec<f64> = rounds.iter().map(|r| r.other.rate(events)).collect();
    let ratios: Vec<f64> = gesta
        .iter()
        .zip(&others)
        .map(|(g, o)| if *o > 0.0 { g / o } else { 0.0 })
        .collect();
    let sound = rounds
        .iter()
        .all(|r| r.gesta.is_valid() && r.other.is_valid());
    let reached = args.floor.is_none_or(|floor| median(&ratios) >= floor)
        && args
            .floor_events
            .is_none_or(|floor| median(&gesta) >= floor);
    let complete = !stop.is_cancelled();
    record.store = Some(opened.facts.clone());
    record.workload = append::parameters(&args.load, &args.workload);
    record.workload["against"] = json!(
        args.against_logs
            .map_or("bound".into(), |logs| format!("{logs} logs"))
    );
    record.result = json!({
        "events_per_second_median": median(&gesta), "against_median": median(&others), "ratio_median": median(&ratios),
        "ratios": ratios, "floor": args.floor, "floor_events": args.floor_events, "reached": reached,
        "rounds": rounds.iter().map(|r| json!({
            "gesta": r.gesta.figures(args.load.events), "batch": r.batch, "against": r.other.figures(args.load.events),
        })).collect::<Vec<_>>(),
    });
    (record.complete, record.valid) = (complete, sound);
    record.save(&args.report)?;
    print!("{}", table(&rounds, events));
    println!(
        "median: {} events/s against {}: {:.1} %{}",
        grouped(median(&gesta)),
        grouped(median(&others)),
        median(&ratios) * 100.0,
        if reached { "" } else { " (FLOOR MISSED)" }
    );
    for round in rounds.iter().filter(|r| !r.gesta.is_valid()) {
        append::verdict(&round.gesta);
    }
    opened.store.shutdown().await?;
    Ok(sound && (reached || !complete))
}

/// Appends to a store that is made for this round; to the named one if that is a server.
async fn gesta(args: &CompareArgs, opened: &Opened, stop: &CancellationToken) -> Result<Measured> {
    let Some(beside) = Beside::of(&opened.url, "gesta_lab_round")? else {
        return append::measure(opened, &args.load, &args.workload, stop).await;
    };
    beside.clear().await?;
    let fresh = store::open_url(beside.url(), args.store.rtt, args.store.logs).await?;
    beside.settle().await?;
    let measured = append::measure(&fresh, &args.load, &args.workload, stop).await;
    fresh.store.shutdown().await?;
    beside.clear().await?;
    measured
}

async fn round(
    args: &CompareArgs,
    opened: &Opened,
    other: Option<&Opened>,
    stop: &CancellationToken,
) -> Result<Round> {
    let gesta = match other {
        // Both grow alike.
        Some(_) => append::measure(opened, &args.load, &args.workload, stop).await?,
        None => gesta(args, opened, stop).await?,
    };
    let batch = gesta.events_per_batch();
    let other = match other {
        Some(other) => {
            let measured = append::measure(other, &args.load, &args.workload, stop).await?;
            Other::Store(Box::new(measured))
        }
        None => {
            let form = match args.batch {
                _ if args.bare_insert => Form::BareInsert,
                Some(batch) => Form::Batch(batch),
                None => Form::Batch(rounded(batch.unwrap_or(1.0))),
            };
            let workload = Workload::new(&args.workload, Run::random());
            let plan = Plan {
                url: &opened.url,
                form,
                workload: &workload,
                warm_up: args.load.warm_up.min(Duration::from_secs(2)),
                duration: args.load.duration,
            };
            Other::Bound(form, bound::measure(&plan, stop).await?)
        }
    };
    Ok(Round {
        gesta,
        batch,
        other,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped before"
)]
fn rounded(batch: f64) -> u32 {
    batch.round().clamp(1.0, 100_000.0) as u32
}

impl Other {
    fn rate(&self, events: f64) -> f64 {
        match self {
            Other::Bound(_, bound) => bound.events_per_second,
            Other::Store(measured) => measured.outcome.appends_per_second() * events,
        }
    }

    fn is_valid(&self) -> bool {
        match self {
            Other::Bound(_, bound) => bound.valid,
            Other::Store(measured) => measured.is_valid(),
        }
    }

    fn figures(&self, events: u32) -> serde_json::Value {
        match self {
            Other::Bound(form, bound) => json!({ "form": form, "bound": bound }),
            Other::Store(measured) => measured.figures(events),
        }
    }
}

fn table(rounds: &[Round], events: f64) -> Table {
    let mut table = Table::new([
        "round",
        "gesta events/s",
        "batch",
        "p50 ms",
        "p99 ms",
        "cores",
        "against events/s",
        "batch",
        "p50 ms",
        "p99 ms",
        "cores",
        "ratio",
    ]);
    for (number, round) in rounds.iter().enumerate() {
        let gesta = round.gesta.outcome.appends_per_second() * events;
        let p = round.gesta.outcome.latencies.percentiles();
        let (batch, other, cpu) = match &round.other {
            Other::Bound(form, bound) => {
                (Some(f64::from(form.events())), bound.latency_ms, bound.cpu)
            }
            Other::Store(m) => (
                m.events_per_batch(),
                m.outcome.latencies.percentiles(),
                m.outcome.cpu,
            ),
        };
        let rate = round.other.rate(events);
        table.row([
            (number + 1).to_string(),
            grouped(gesta),
            append::told(round.batch),
            format!("{:.2}", p.p50),
            format!("{:.2}", p.p99),
            format!("{:.2}", round.gesta.outcome.cpu.machine_cores),
            grouped(rate),
            append::told(batch),
            format!("{:.2}", other.p50),
            format!("{:.2}", other.p99),
            format!("{:.2}", cpu.machine_cores),
            format!(
                "{:.1} %",
                if rate > 0.0 {
                    gesta / rate * 100.0
                } else {
                    0.0
                }
            ),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sizes_are_whole_and_in_range() {
        assert_eq!(rounded(0.0), 1);
        assert_eq!(rounded(101.6), 102);
        assert_eq!(rounded(1e12), 100_000);
    }
}
