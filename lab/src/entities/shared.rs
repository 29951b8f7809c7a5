//! Several processes that drive the same entities: nothing lost, nothing doubled, nothing stale, and each gets its share.
//!
//! Each "process" is a store of its own with its own runtime, connections and caches: to the database they are different processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use gesta::entity::{Config, Error};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::hot::per_second;
use super::tally::{Book, Command};
use super::{Common, start};
use crate::cells;
use crate::failure::Result;
use crate::histogram::Latencies;
use crate::random::Random;
use crate::report::numbers::percent;
use crate::report::{Table, Unit};
use crate::store::{self, Opened};
use crate::units::grouped;

/// Several processes on the same entities (PostgreSQL only).
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SharedArgs {
    #[command(flatten)]
    common: Common,
    /// Entities.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    entities: u32,
    /// Callers of each process.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    callers: u32,
    /// Processes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    processes: u32,
    /// Of a hundred commands so many have no event.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100))]
    looks: u32,
    /// Share of the commands that each process must have.
    #[arg(long, default_value_t = 0.2)]
    floor: f64,
}

/// The command.
pub(crate) async fn run(args: &SharedArgs, stop: &CancellationToken) -> Result<bool> {
    let first = store::open(&args.common.store).await?;
    let mut others: Vec<Opened> = Vec::new();
    for _ in 1..args.processes {
        others.push(store::open_url(&first.url, args.common.store.rtt, 1).await?);
    }
    let all: Vec<&Opened> = std::iter::once(&first).chain(&others).collect();
    let book = Book::new(usize::try_from(args.entities)?);
    let until = Instant::now() + args.common.duration;
    let mut running = Vec::new();
    for (process, opened) in (0..).zip(&all) {
        let entities = start(&opened.owner()?, Config::default())?;
        let commands = Arc::new(AtomicU64::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for caller in 0..args.callers {
            let by: u32 = process * args.callers + caller;
            let (entities, book, commands, stop) = (
                entities.clone(),
                Arc::clone(&book),
                Arc::clone(&commands),
                stop.clone(),
            );
            let args = args.clone();
            tasks.spawn(async move {
                let mut random = Random::fork(args.common.seed, u64::from(by));
                let mut latencies = Latencies::default();
                let mut unavailable = 0_u64;
                let mut n = 0;
                while Instant::now() < until && !stop.is_cancelled() {
                    let entity = random.below(args.entities as usize);
                    let command = if random.below(100) < args.looks as usize {
                        Command::Look
                    } else {
                        n += 1;
                        Command::Count { by, n }
                    };
                    let (before, sent) = (book.before(entity), Instant::now());
                    match entities.execute(&entity.to_string(), command).await {
                        Ok(reply) => {
                            book.after(entity, before, command, reply);
                            latencies.record(sent.elapsed());
                            commands.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::Unavailable(_) | Error::Overloaded(_)) => unavailable += 1,
                        Err(error) => return Err(format!("caller {by}: {error}")),
                    }
                }
                Ok((latencies, unavailable))
            });
        }
        running.push((entities, commands, tasks));
    }
    let (mut rows, mut wrongs) = (Vec::new(), Vec::new());
    let seconds = args.common.duration.as_secs_f64();
    for (entities, commands, mut tasks) in running {
        let (mut latencies, mut unavailable) = (Latencies::default(), 0);
        while let Some(done) = tasks.join_next().await {
            match done? {
                Ok((some, refused)) => {
                    latencies.merge(&some);
                    unavailable += refused;
                }
                Err(wrong) => wrongs.push(wrong),
            }
        }
        entities.shutdown().await;
        rows.push((
            commands.load(Ordering::Relaxed),
            latencies,
            unavailable,
            entities.stats(),
        ));
    }
    let (acknowledged, found) = book.check(first.store.as_ref()).await?;
    wrongs.extend(found);
    let total: u64 = rows.iter().map(|(commands, ..)| commands).sum();
    let share = |commands: u64| per_second(commands, 1.0) / per_second(total, 1.0).max(1.0);
    let starved = rows
        .iter()
        .any(|(commands, ..)| share(*commands) < args.floor);
    let mut report = args.common.report(
        "entities-shared",
        "Several processes on the same entities",
        &first,
        &wrongs,
    );
    report.workload = json!({
        "entities": args.entities, "callers": args.callers, "processes": args.processes, "looks": args.looks,
        "floor": args.floor, "duration_seconds": seconds,
    });
    report.finding = format!(
        "{} processes answered {} commands/s together; {} acknowledged commands were compared with the store{}.",
        args.processes,
        grouped(per_second(total, seconds)),
        grouped(per_second(acknowledged, 1.0)),
        if starved { "; one of them starved" } else { "" }
    );
    if starved {
        report.caution(format!(
            "a process had less than {} of the commands",
            percent(args.floor)
        ));
    }
    let columns = [
        ("process", Unit::Count),
        ("commands/s", Unit::Count),
        ("share", Unit::Share),
        ("p50", Unit::Millis),
        ("p99", Unit::Millis),
        ("decided again", Unit::Count),
        ("reloads", Unit::Count),
        ("unavailable", Unit::Count),
    ];
    let mut table = Table::new("Processes", columns);
    for (process, (commands, latencies, unavailable, stats)) in rows.iter().enumerate() {
        let p = latencies.percentiles();
        let rate = per_second(*commands, seconds);
        let (again, reloads) = (stats.decided_again, stats.reloads);
        table.row(cells![
            process,
            rate,
            share(*commands),
            p.p50,
            p.p99,
            again,
            reloads,
            *unavailable
        ]);
    }
    report.table(table);
    let valid = report.finish(&args.common.report, !stop.is_cancelled())?;
    for opened in all {
        opened.store.shutdown().await?;
    }
    Ok(valid && (!starved || stop.is_cancelled()))
}
