//! After a restart: many entities, each asked for once, by many callers at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use gesta::entity::{Config, Entities};
use gesta_core::{Append, EventData, EventStore, EventType, ExpectedRevision, StreamId};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::hot::per_second;
use super::tally::{Command, Tally};
use super::{Common, Finished, start};
use crate::failure::Result;
use crate::histogram::Latencies;
use crate::host::CpuMeter;
use crate::random::Random;
use crate::store;
use crate::units::grouped;

/// Many entities loaded on demand.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RestartArgs {
    #[command(flatten)]
    common: Common,
    /// Entities.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    entities: u32,
    /// Events of each.
    #[arg(long, default_value_t = 10)]
    events: u64,
    /// Callers at once.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    callers: u32,
    /// Entities loaded by one statement.
    #[arg(long, default_value_t = 256)]
    load_batch: usize,
    /// Statements that load entities at once.
    #[arg(long, default_value_t = 2)]
    loads: usize,
}

/// The command.
pub(crate) async fn run(args: &RestartArgs, stop: &CancellationToken) -> Result<bool> {
    let opened = store::open(&args.common.store).await?;
    eprintln!("storing {} events", u64::from(args.entities) * args.events);
    fill(&opened.store, args, stop).await?;
    opened.store.shutdown().await?;
    if stop.is_cancelled() {
        return Ok(true);
    }
    // A new process as far as the database can tell: nothing is known.
    let again = store::open_url(&opened.url, args.common.store.rtt, 1).await?;
    let config = Config {
        loads_max: args.loads,
        load_batch_max: args.load_batch,
        active_max: usize::try_from(args.entities)? * 2,
        ..Config::default()
    };
    let entities = start(&again.owner()?, config)?;
    let meter = CpuMeter::start();
    let began = Instant::now();
    let (latencies, wrongs) = ask_all(&entities, args, stop).await;
    let seconds = began.elapsed().as_secs_f64();
    let cpu = meter.used();
    let stats = entities.stats();
    let rate = per_second(u64::from(args.entities), seconds);
    println!(
        "{} entities of {} events by {} callers: {} entities/s, {} events/s, p99 {:.1} ms, {:.2} cores, failures {}",
        args.entities,
        args.events,
        args.callers,
        grouped(rate),
        grouped(per_second(stats.loaded_events, seconds)),
        latencies.percentiles().p99,
        cpu.machine_cores,
        wrongs.len(),
    );
    let finished = Finished {
        workload: json!({
            "entities": args.entities, "events": args.events, "callers": args.callers,
            "load_batch": args.load_batch, "loads": args.loads,
        }),
        result: json!({
            "entities_per_second": rate, "seconds": seconds, "latency_ms": latencies.percentiles(),
            "loaded": stats.loads, "loaded_events": stats.loaded_events, "cpu": cpu,
        }),
        errors: json!({}),
        complete: !stop.is_cancelled(),
        wrongs,
    };
    let valid = args.common.save(&again, "entities-restart", finished)?;
    entities.shutdown().await;
    again.store.shutdown().await?;
    Ok(valid)
}

/// The events come round by round, so those of one entity lie far apart, as in life.
async fn fill(
    store: &Arc<dyn EventStore>,
    args: &RestartArgs,
    stop: &CancellationToken,
) -> Result<()> {
    for n in 0..args.events {
        let next = Arc::new(AtomicU64::new(0));
        let mut tasks = tokio::task::JoinSet::<Result<()>>::new();
        for _ in 0..1_000 {
            let (store, next, stop) = (Arc::clone(store), Arc::clone(&next), stop.clone());
            let entities = u64::from(args.entities);
            tasks.spawn(async move {
                loop {
                    let entity = next.fetch_add(1, Ordering::Relaxed);
                    if entity >= entities || stop.is_cancelled() {
                        return Ok(());
                    }
                    let data = format!("{{\"by\":{},\"n\":{n}}}", entity % 1_000);
                    let event = EventData::json(EventType::new("counted")?, data);
                    let stream = StreamId::new(format!("tally-{entity}"))?;
                    store
                        .append(Append::to(stream, ExpectedRevision::Any, vec![event]))
                        .await?;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
    }
    Ok(())
}

async fn ask_all(
    entities: &Entities<Tally>,
    args: &RestartArgs,
    stop: &CancellationToken,
) -> (Latencies, Vec<String>) {
    let count = usize::try_from(args.entities).unwrap_or(usize::MAX);
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = Random::new(args.common.seed);
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    let (order, next) = (Arc::new(order), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..args.callers {
        let (entities, order, next, stop) = (
            entities.clone(),
            Arc::clone(&order),
            Arc::clone(&next),
            stop.clone(),
        );
        let events = args.events;
        tasks.spawn(async move {
            let mut latencies = Latencies::default();
            let mut wrongs = Vec::new();
            while let Some(entity) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                if stop.is_cancelled() {
                    break;
                }
                let asked = Instant::now();
                match entities.execute(&entity.to_string(), Command::Look).await {
                    Ok(tally) if tally.count == events => latencies.record(asked.elapsed()),
                    Ok(tally) => wrongs.push(format!("entity {entity} has {tally:?}")),
                    Err(error) => wrongs.push(format!("entity {entity}: {error}")),
                }
            }
            (latencies, wrongs)
        });
    }
    let (mut latencies, mut wrongs) = (Latencies::default(), Vec::new());
    while let Some(Ok((some, wrong))) = tasks.join_next().await {
        latencies.merge(&some);
        wrongs.extend(wrong);
    }
    (latencies, wrongs)
}
