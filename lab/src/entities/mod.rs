//! `entities hot`: one entity with many callers. After the run every acknowledged command is looked for in the store.

pub(crate) mod crowd;
pub(crate) mod hot;
pub(crate) mod tally;

use std::sync::Arc;

use gesta::entity::{Builder, Config, Entities, EntityType, JsonEvents, Snapshots};
use gesta_core::OwnerStore;
use tokio_util::sync::CancellationToken;

use crate::failure::Result;

use tally::{Event, Tally};

/// The entity runtime, under load.
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

/// The command. True if the run is a result.
pub(crate) async fn run(args: &EntitiesArgs, stop: &CancellationToken) -> Result<bool> {
    let What::Hot(args) = &args.what;
    hot::run(args, stop).await
}

/// A runtime that takes a snapshot every so many events, or none.
pub(crate) fn start(
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
