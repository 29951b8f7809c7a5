//! The entity of the commands that need one (`locking`, `recovery`, `decisions`) and of fail-overs, its runtime, and
//! callers.

pub mod calls;
pub mod population;
pub mod tally;

use std::sync::Arc;

use gesta::entity::{Builder, Config, Entities, EntityType, JsonEvents, Snapshots};
use gesta_core::OwnerStore;

use gesta_report::failure::Result;

use tally::{Event, Tally};

/// A runtime that takes a snapshot every so many events, or none.
pub fn start(
    store: &Arc<gesta::DatabaseStore>,
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
