//! The bound on everything that waits or is in flight in the pipelines of a store, in events and in bytes.

use std::sync::Arc;

use gesta_core::capacity::{Capacity, Permit, Refusal};
use gesta_core::{Error, ErrorKind, Result};

use crate::command::Cost;

/// The bound on the events and bytes that may wait or be in flight, in all pipelines that share it.
pub type Admission = Capacity<2>;

/// Admits a command, or refuses it at once. A single append that is larger than a bound is admitted when nothing else
/// waits or is in flight.
pub(crate) fn admit(admission: &Arc<Admission>, cost: Cost) -> Result<Permit<2>> {
    let refused = match admission.take_alone([cost.events, cost.bytes]) {
        Ok(permit) => return Ok(permit),
        Err(Refusal::Full { of: 0, taken }) => format!("{taken} events are waiting to be stored"),
        Err(Refusal::Full { taken, .. }) => format!("{taken} bytes are waiting to be stored"),
        Err(Refusal::Closed) => return Err(Error::unavailable("the store is shutting down")),
    };
    Err(ErrorKind::Overloaded(refused).into())
}
