//! One entity, many callers: what pipelining is worth. Without it, the limit is one command per round trip.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gesta::entity::{Config, Entities};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::tally::{Book, Command, Tally};
use super::{Common, start};
use crate::cells;
use crate::failure::Result;
use crate::histogram::{Latencies, Percentiles};
use crate::host::CpuMeter;
use crate::report::{Table, Unit};
use crate::store;
use crate::units::grouped;

/// One entity, many callers.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct HotArgs {
    #[command(flatten)]
    common: Common,
    /// Callers, each with one command under way.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    callers: u32,
    /// Commands that each caller hands over before it waits for the first.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    ahead: u32,
}

struct Loaded {
    commands: u64,
    seconds: f64,
    latencies: Latencies,
    failures: Vec<String>,
}

/// The command.
pub(crate) async fn run(args: &HotArgs, stop: &CancellationToken) -> Result<bool> {
    let opened = store::open(&args.common.store).await?;
    let owner = opened.owner()?;
    let entities = start(&owner, Config::default())?;
    let book = Book::new(1);
    let single = args.common.duration.min(Duration::from_secs(3));
    let alone = load(&entities, &book, 0..1, 1, single, stop).await;
    let meter = CpuMeter::start();
    let before = opened.pipelines();
    let callers = 1..args.callers + 1;
    let many = load(
        &entities,
        &book,
        callers,
        args.ahead,
        args.common.duration,
        stop,
    )
    .await;
    let cpu = meter.used();
    let pipelines = opened
        .pipelines()
        .zip(before)
        .map(|(now, before)| now.since(before));
    entities.shutdown().await;
    let (acknowledged, mut wrongs) = book.check(opened.store.as_ref()).await?;
    wrongs.extend(many.failures);
    let rate = per_second(many.commands, many.seconds);
    let (one, all) = (alone.latencies.percentiles(), many.latencies.percentiles());
    let mut report =
        args.common
            .report("entities-hot", "One entity, many callers", &opened, &wrongs);
    report.workload = json!({ "callers": args.callers, "ahead": args.ahead, "duration_seconds": args.common.duration.as_secs_f64() });
    report.finding = format!(
        "One entity answers {} commands/s of {} callers, p99 {}; one caller alone gets {}.",
        grouped(rate),
        args.callers,
        Unit::Millis.told(all.p99),
        grouped(per_second(alone.commands, alone.seconds))
    );
    let columns = [("callers", Unit::Count), ("commands/s", Unit::Count)];
    let latencies = ["p50", "p99", "p99.9", "longest"].map(|name| (name, Unit::Millis));
    let mut table = Table::new(
        "Commands of one entity",
        columns.into_iter().chain(latencies),
    );
    for (callers, rate, p) in [
        (1, per_second(alone.commands, alone.seconds), one),
        (args.callers, rate, all),
    ] {
        table.row(cells![callers, rate, p.p50, p.p99, p.p999, p.max]);
    }
    report.table(table);
    report.fact(
        "acknowledged commands found again",
        Unit::Count,
        acknowledged,
        "",
    );
    report.fact("cores busy", Unit::Cores, cpu.machine_cores, "");
    report.fact(
        "batches",
        Unit::Count,
        pipelines.map(|pipelines| pipelines.batches),
        "",
    );
    let valid = report.finish(&args.common.report, !stop.is_cancelled())?;
    opened.store.shutdown().await?;
    Ok(valid)
}

/// Commands per second of callers (whose numbers no earlier call may have used) of one entity, their latencies, and what was wrong with their answers.
pub(crate) async fn measure(
    opened: &store::Opened,
    callers: std::ops::Range<u32>,
    duration: Duration,
    stop: &CancellationToken,
) -> Result<(f64, Percentiles, Vec<String>)> {
    let entities = start(&opened.owner()?, Config::default())?;
    let book = Book::new(1);
    let loaded = load(&entities, &book, callers, 1, duration, stop).await;
    entities.shutdown().await;
    let (_, mut wrongs) = book.check(opened.store.as_ref()).await?;
    wrongs.extend(loaded.failures);
    let rate = per_second(loaded.commands, loaded.seconds);
    Ok((rate, loaded.latencies.percentiles(), wrongs))
}

async fn load(
    entities: &Entities<Tally>,
    book: &Arc<Book>,
    callers: std::ops::Range<u32>,
    ahead: u32,
    duration: Duration,
    stop: &CancellationToken,
) -> Loaded {
    let total = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let until = began + duration;
    let mut tasks = tokio::task::JoinSet::new();
    for by in callers {
        let (entities, book, total, stop) = (
            entities.clone(),
            Arc::clone(book),
            Arc::clone(&total),
            stop.clone(),
        );
        tasks.spawn(async move {
            let mut latencies = Latencies::default();
            let mut failures = Vec::new();
            let mut n = 0;
            while Instant::now() < until && !stop.is_cancelled() {
                let sent = Instant::now();
                let before = book.before(0);
                let commands: Vec<_> = (0..ahead)
                    .map(|i| Command::Count {
                        by,
                        n: n + u64::from(i),
                    })
                    .collect();
                n += u64::from(ahead);
                let pending: Vec<_> = commands
                    .iter()
                    .map(|command| entities.submit("0", (*command).into()))
                    .collect();
                for (command, pending) in commands.into_iter().zip(pending) {
                    match pending.await {
                        Ok(done) => {
                            book.after(0, before, command, done.reply);
                            latencies.record(sent.elapsed());
                            total.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => failures.push(format!("caller {by}: {error}")),
                    }
                }
            }
            (latencies, failures)
        });
    }
    let mut loaded = Loaded {
        commands: 0,
        seconds: 0.0,
        latencies: Latencies::default(),
        failures: Vec::new(),
    };
    while let Some(Ok((latencies, failures))) = tasks.join_next().await {
        loaded.latencies.merge(&latencies);
        loaded.failures.extend(failures);
    }
    loaded.seconds = began.elapsed().as_secs_f64();
    loaded.commands = total.load(Ordering::Relaxed);
    loaded
}

#[expect(clippy::cast_precision_loss, reason = "counts of minutes fit")]
pub(super) fn per_second(count: u64, seconds: f64) -> f64 {
    (count as f64 / seconds.max(0.001)).round()
}
