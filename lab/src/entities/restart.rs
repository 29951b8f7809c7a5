//! After a restart: many entities, each asked for once, by many callers at the same time.

use std::time::Instant;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::crowd::{Crowd, ask_all, make};
use super::hot::per_second;
use super::{Common, Finished, start};
use crate::failure::Result;
use crate::host::CpuMeter;
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
    let crowd = Crowd {
        prefix: String::new(),
        entities: args.entities,
        events: args.events,
    };
    eprintln!("storing {} events", crowd.total());
    let config = crowd.config(args.loads, args.load_batch)?;
    let entities = start(&opened.owner()?, config.clone())?;
    make(&entities, &crowd, stop).await?;
    entities.shutdown().await;
    opened.store.shutdown().await?;
    if stop.is_cancelled() {
        return Ok(true);
    }
    // A new process as far as the database can tell: nothing is known.
    let again = store::open_url(&opened.url, args.common.store.rtt, 1).await?;
    let entities = start(&again.owner()?, config)?;
    let meter = CpuMeter::start();
    let began = Instant::now();
    let (latencies, wrongs) =
        ask_all(&entities, &crowd, args.callers, args.common.seed, stop).await;
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
