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
use super::{Common, Finished, start};
use crate::failure::Result;
use crate::histogram::Latencies;
use crate::random::Random;
use crate::record::Table;
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
    let mut table = Table::new([
        "process",
        "commands/s",
        "share",
        "p50 ms",
        "p99 ms",
        "decided again",
        "reloads",
        "unavailable",
    ]);
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
    let total: u64 = rows.iter().map(|(commands, ..)| commands).sum();
    let mut shares = Vec::new();
    for (process, (commands, latencies, unavailable, stats)) in rows.iter().enumerate() {
        let share = per_second(*commands, 1.0) / per_second(total, 1.0).max(1.0);
        let p = latencies.percentiles();
        table.row([
            process.to_string(),
            grouped(per_second(*commands, seconds)),
            format!("{:.0} %", share * 100.0),
            format!("{:.2}", p.p50),
            format!("{:.2}", p.p99),
            stats.decided_again.to_string(),
            stats.reloads.to_string(),
            unavailable.to_string(),
        ]);
        shares.push(share);
    }
    print!("{table}");
    let (acknowledged, found) = book.check(first.store.as_ref()).await?;
    wrongs.extend(found);
    println!("{acknowledged} acknowledged commands compared with the store");
    let starved = shares.iter().any(|share| *share < args.floor);
    if starved {
        println!(
            "STARVED: a process has less than {:.0} %",
            args.floor * 100.0
        );
    }
    let latencies: Vec<_> = rows
        .iter()
        .map(|(_, latencies, ..)| latencies.percentiles())
        .collect();
    let finished = Finished {
        workload: json!({
            "entities": args.entities, "callers": args.callers, "processes": args.processes, "looks": args.looks,
            "duration_seconds": seconds,
        }),
        result: json!({
            "commands_per_second": per_second(total, seconds), "shares": shares, "latency_ms_each": latencies,
            "acknowledged": acknowledged, "starved": starved,
            "decided_again_each": rows.iter().map(|(.., stats)| stats.decided_again).collect::<Vec<_>>(),
        }),
        errors: json!({ "unavailable": rows.iter().map(|(_, _, refused, _)| refused).sum::<u64>() }),
        complete: !stop.is_cancelled(),
        wrongs,
    };
    let valid = args.common.save(&first, "entities-shared", finished)?;
    for opened in all {
        opened.store.shutdown().await?;
    }
    Ok(valid && (!starved || stop.is_cancelled()))
}
