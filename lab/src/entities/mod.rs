//! `entities hot`: one entity with many callers. After the run every acknowledged command is looked for in the store.

pub(crate) mod crowd;
pub(crate) mod hot;
pub(crate) mod tally;

use std::sync::Arc;
use std::time::Duration;

use gesta::entity::{Builder, Config, Entities, EntityType, JsonEvents, Snapshots};
use gesta_core::OwnerStore;
use tokio_util::sync::CancellationToken;

use crate::failure::Result;
use crate::report::{Report, ReportArgs};
use crate::store::{Opened, StoreArgs};
use crate::units;

use tally::{Event, Tally};

/// The entity runtime: how fast, how large, and whether it keeps its word.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EntitiesArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum What {
    /// Many callers of one entity, at a distance from the database.
    Hot(hot::HotArgs),
}

/// What all of them need.
#[derive(Debug, Clone, clap::Args)]
struct Common {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    report: ReportArgs,
    /// Seed of every random choice.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long to measure, where it is a matter of time.
    #[arg(long, default_value = "20s", value_parser = units::duration)]
    duration: Duration,
}

/// Most wrong answers that are told.
const WRONGS_TOLD: usize = 10;

impl Common {
    /// A report on this store, of what was found wrong first.
    fn report(&self, kind: &str, title: &str, opened: &Opened, wrongs: &[String]) -> Report {
        let mut report = Report::begin(kind, title, self.seed);
        report.store = Some(opened.facts.clone());
        report.problems = wrongs.iter().take(WRONGS_TOLD).cloned().collect();
        if wrongs.len() > WRONGS_TOLD {
            report.problem(format!("and {} more", wrongs.len() - WRONGS_TOLD));
        }
        report
    }
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &EntitiesArgs, stop: &CancellationToken) -> Result<bool> {
    match &args.what {
        What::Hot(args) => hot::run(args, stop).await,
    }
}

fn start(store: &Arc<gesta::Store>, config: Config) -> Result<Entities<Tally>> {
    start_with(store, config, None)
}

/// A runtime that takes a snapshot every so many events, or none.
pub(crate) fn start_with(
    store: &Arc<gesta::Store>,
    config: Config,
    snapshot_every: Option<u64>,
) -> Result<Entities<Tally>> {
    let mut entity_type = EntityType::new("tally", JsonEvents::<Event>::new())?;
    if let Some(events) = snapshot_every {
        entity_type = entity_type.snapshots(Snapshots::json(1).every(events));
    }
    let store = Arc::clone(store) as Arc<dyn OwnerStore>;
    Ok(Builder::new().config(config).start(store, entity_type))
}
