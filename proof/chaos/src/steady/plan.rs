//! What the n-th append of a worker is: a pure function, so that nothing need be remembered of it.
//!
//! A worker fills some streams by turns, each up to a length, then goes on with new ones (`target::load`); so its n-th
//! append, or the n-th event that a subscriber gets of it, has one stream and one revision.

use std::sync::Arc;

use gesta_core::{EventId, StreamId};

use gesta_load::target::{Event, Events, NumberOf};

/// Streams that a worker fills by turns.
pub(super) const LANES: u32 = 8;
/// Appends to a stream.
const APPENDS_PER_STREAM: u64 = 20;

/// All appends of a run.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) events: Arc<Events>,
    /// Events per append.
    pub(super) per_append: u64,
}

impl Plan {
    /// Events per stream.
    pub(super) fn events_per_stream(per_append: u64) -> u64 {
        APPENDS_PER_STREAM * per_append
    }

    /// The stream of a worker's n-th append, and its first event with its revision.
    pub(super) fn append(&self, worker: u32, n: u64) -> (StreamId, u64, Event) {
        let (lane, turn) = (n % u64::from(LANES), n / u64::from(LANES));
        let stream = turn / APPENDS_PER_STREAM * u64::from(LANES) + lane;
        let revision = turn % APPENDS_PER_STREAM * self.per_append;
        let stream = u32::try_from(stream).expect("checked by the load");
        let stream = self.events.stream(worker, stream);
        let first = stream.events(revision..revision + 1).remove(0);
        (
            StreamId::new(stream.name).expect("a valid name"),
            revision,
            first,
        )
    }

    /// Whose event it is, and its number among the events of that worker; none if it is not of this run.
    pub(super) fn which(&self, id: EventId) -> Option<(u32, u64)> {
        let of = self.events.number_of(&id.0.as_simple().to_string())?;
        let (worker, stream) = NumberOf::worker_and_stream(of);
        let (generation, lane) = (stream / u64::from(LANES), stream % u64::from(LANES));
        let turn = generation * APPENDS_PER_STREAM + of.revision / self.per_append;
        let n = turn * u64::from(LANES) + lane;
        Some((worker, n * self.per_append + of.revision % self.per_append))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_load::sizes::Sizes;

    #[test]
    fn an_event_tells_its_worker_and_number() {
        let events = Events::new(Sizes::fixed(100).unwrap(), 1, 7);
        let events = Arc::new(events);
        for per_append in [1, 2, 3] {
            let plan = Plan {
                events: Arc::clone(&events),
                per_append,
            };
            for n in 0..2_000 {
                let (_, _, first) = plan.append(9, n);
                assert_eq!(plan.which(EventId(first.id)), Some((9, n * per_append)));
            }
        }
    }
}
