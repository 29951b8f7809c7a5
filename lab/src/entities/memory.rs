//! How much memory an idle entity takes beside its state: the growth of this process, divided.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gesta::entity::Config;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::tally::Tally;
use super::{Common, start};
use crate::failure::Result;
use crate::host;
use crate::report::Unit;
use crate::store;

/// Memory of many idle entities.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct MemoryArgs {
    #[command(flatten)]
    common: Common,
    /// Entities.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    entities: u32,
    /// Most that an entity may take, in bytes, its small state included.
    #[arg(long, default_value_t = 1_024)]
    ceiling: u64,
}

/// The command.
pub(crate) async fn run(args: &MemoryArgs, stop: &CancellationToken) -> Result<bool> {
    let opened = store::open(&args.common.store).await?;
    let config = Config {
        active_max: usize::try_from(args.entities)? * 2,
        ..Config::default()
    };
    let entities = start(&opened.owner()?, config)?;
    // What grows once for all: caches, pools, stacks.
    for id in 0..10_000 {
        entities
            .read_stale(&format!("warm-{id}"), |tally: &Tally| tally.count)
            .await?;
    }
    let (before, active_before) = (host::resident_bytes(), entities.stats().active);
    let next = Arc::new(AtomicU32::new(0));
    let mut tasks = tokio::task::JoinSet::<Result<()>>::new();
    for _ in 0..1_000 {
        let (entities, next, stop) = (entities.clone(), Arc::clone(&next), stop.clone());
        let count = args.entities;
        tasks.spawn(async move {
            loop {
                let id = next.fetch_add(1, Ordering::Relaxed);
                if id >= count || stop.is_cancelled() {
                    return Ok(());
                }
                entities
                    .read_stale(&id.to_string(), |tally: &Tally| tally.count)
                    .await?;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let stats = entities.stats();
    let (after, held) = (host::resident_bytes(), stats.active - active_before);
    let each = after.saturating_sub(before) / held.max(1);
    let state = size_of::<Tally>();
    let wrongs = if each > args.ceiling {
        vec![format!("{each} bytes each is above {}", args.ceiling)]
    } else {
        vec![]
    };
    let mut report = args.common.report(
        "entities-memory",
        "Memory of idle entities",
        &opened,
        &wrongs,
    );
    report.workload = json!({ "entities": args.entities, "ceiling": args.ceiling });
    report.finding = format!("An idle entity takes {each} bytes, {state} of them its state.");
    report.fact("idle entities", Unit::Count, held, "");
    report.fact("the process holds", Unit::Bytes, after, "");
    let valid = report.finish(&args.common.report, !stop.is_cancelled())?;
    entities.shutdown().await;
    opened.store.shutdown().await?;
    Ok(valid)
}
