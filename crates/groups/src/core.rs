//! What only simulations and fuzzing use: the machine of a group, and what reads the documents in which the store keeps
//! groups.

use gesta_core::{EventData, Filter, RecordedEvent, Result};

use crate::record::{self, Configuration, Progressed};

pub use crate::machine::{FailedBy, Limits, Machine, Origin, ParkOrder, Sent};

/// Reads the configuration of a group. Returns the event that records the same, and its filter.
///
/// # Errors
/// `Corrupt` if the document cannot be read; `InvalidArgument` if its filter breaks a rule.
pub fn configured(event: &RecordedEvent) -> Result<(EventData, Filter)> {
    let configuration: Configuration = record::read(event)?;
    let filter = configuration.filter.to_filter()?;
    Ok((record::configured(&configuration)?, filter))
}

/// Reads a checkpoint of a group. Returns the event that records the same.
///
/// # Errors
/// `Corrupt` if the document cannot be read.
pub fn progressed(event: &RecordedEvent) -> Result<EventData> {
    let progressed: Progressed = record::read(event)?;
    record::progressed(&progressed)
}
