//! The class of a pinned event, which decides which consumer gets the event.

use std::borrow::Cow;

use gesta_core::RecordedEvent;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use super::consumers::PINS;
use crate::settings::Strategy;

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(rename = "$correlationId", borrow)]
    correlation: Cow<'a, str>,
}

/// Returns the class of an event. It is made of the event's stream, or of the `$correlationId` in its metadata; it is 0
/// if the strategy needs no class.
pub(super) fn of(strategy: Strategy, event: &RecordedEvent) -> u16 {
    let key = match strategy {
        Strategy::RoundRobin | Strategy::DispatchToSingle => return 0,
        Strategy::Pinned => None,
        Strategy::PinnedByCorrelation => serde_json::from_slice::<Metadata<'_>>(&event.metadata)
            .ok()
            .map(|metadata| metadata.correlation),
    };
    let key = key.as_deref().unwrap_or(event.stream.as_str());
    u16::try_from(xxh3_64(key.as_bytes()) % u64::from(PINS)).unwrap_or(0)
}
