//! One entity, many callers: what pipelining is worth. Without it, the limit is one command per round trip.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta::entity::{Config, Entities};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::start;
use super::tally::{Book, Command, Tally};
use crate::cells;
use crate::failure::Result;
use crate::histogram::Latencies;
use crate::host::CpuMeter;
use crate::report::{Report, ReportArgs, Table, Unit};
use crate::store::{self, StoreArgs};
use crate::units::{self, grouped};

/// How long one caller is measured alone, at most.
const ALONE_MAX: Duration = Duration::from_secs(3);
/// Most wrong answers that are told.
const WRONGS_TOLD: usize = 10;

/// One entity, many callers.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HotArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    report: ReportArgs,
    /// How long to measure.
    #[arg(long, default_value = "20s", value_parser = units::duration)]
    duration: Duration,
    /// Callers, each with one command under way.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    callers: u32,
}

/// The command.
pub(crate) async fn run(args: &HotArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("entities-hot", "One entity, many callers", 0);
    let opened = store::open(&args.store).await?;
    let entities = start(&opened.owner()?, Config::default(), None)?;
    let (book, callers) = (Book::new(1), args.callers);
    let single = args.duration.min(ALONE_MAX);
    let (alone, mut wrongs) = load(&entities, &book, 0..1, single, stop).await;
    let meter = CpuMeter::start();
    let before = opened.pipelines();
    let (many, failures) = load(&entities, &book, 1..callers + 1, args.duration, stop).await;
    let cpu = meter.used();
    let pipelines = opened.pipelines().zip(before);
    let batches = pipelines.map(|(now, before)| now.since(before).batches);
    entities.shutdown().await;
    let (acknowledged, found) = book.check(opened.store.as_ref()).await?;
    wrongs.extend(failures.into_iter().chain(found));
    report.problems = wrongs.iter().take(WRONGS_TOLD).cloned().collect();
    report.store = Some(opened.facts.clone());
    report.workload =
        json!({ "callers": callers, "duration_seconds": args.duration.as_secs_f64() });
    let columns = [("callers", Unit::Count), ("commands/s", Unit::Count)];
    let latencies = ["p50", "p99", "p99.9", "longest"].map(|name| (name, Unit::Millis));
    let columns = columns.into_iter().chain(latencies);
    let mut table = Table::new("Commands of one entity", columns);
    let mut told = Vec::new();
    for (callers, (latencies, seconds)) in [(1, alone), (callers, many)] {
        let p = latencies.percentiles();
        let rate = (p.count as f64 / seconds.max(0.001)).round();
        table.row(cells![callers, rate, p.p50, p.p99, p.p999, p.max]);
        told.push((grouped(rate), Unit::Millis.told(p.p99)));
    }
    let [(one, _), (all, p99)] = told.as_slice() else {
        unreachable!("two were measured")
    };
    report.finding = format!(
        "One entity answers {all} commands/s of {callers} callers, p99 {p99}; one caller alone gets {one}."
    );
    report.table(table);
    let again = "acknowledged commands found again";
    report.fact(again, Unit::Count, acknowledged, "");
    report.fact("cores busy", Unit::Cores, cpu.machine_cores, "");
    report.fact("batches", Unit::Count, batches, "");
    let valid = report.finish(&args.report, !stop.is_cancelled())?;
    opened.store.shutdown().await?;
    Ok(valid)
}

/// What callers (whose numbers no earlier call may have used) got: latencies in so many seconds, and failures.
async fn load(
    entities: &Entities<Tally>,
    book: &Arc<Book>,
    callers: std::ops::Range<u32>,
    duration: Duration,
    stop: &CancellationToken,
) -> ((Latencies, f64), Vec<String>) {
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for by in callers {
        let (entities, book, stop) = (entities.clone(), Arc::clone(book), stop.clone());
        tasks.spawn(async move {
            let (mut latencies, mut failures) = (Latencies::default(), Vec::new());
            for n in 0.. {
                if began.elapsed() >= duration || stop.is_cancelled() {
                    break;
                }
                let (sent, before) = (Instant::now(), book.before(0));
                let command = Command::Count { by, n };
                match entities.execute("0", command).await {
                    Ok(reply) => {
                        book.after(0, before, command, reply);
                        latencies.record(sent.elapsed());
                    }
                    Err(error) => failures.push(format!("caller {by}: {error}")),
                }
            }
            (latencies, failures)
        });
    }
    let (mut latencies, mut failures) = (Latencies::default(), Vec::new());
    while let Some(Ok((some, failed))) = tasks.join_next().await {
        latencies.merge(&some);
        failures.extend(failed);
    }
    ((latencies, began.elapsed().as_secs_f64()), failures)
}
