//! What the n-th append of a writer is: a pure function, so that nothing need be remembered of it.
//!
//! Why: a soak makes hundreds of millions of appends. A writer makes its appends one after the other, so "everything
//! below n" says which were acknowledged; stream, claim and contents follow from writer and n.
//! Three of four appends go to streams of the writer alone, with the exact revision; one goes without a claim to a
//! stream that all writers share.

use std::sync::Arc;

use gesta_core::{Append, EventId, ExpectedRevision, Revision, StreamId};

use crate::random::Random;
use crate::target::digest;
use crate::workload::Workload;

/// Of so many appends in a row the last goes to a shared stream.
const SHARED_EVERY: u64 = 4;
/// Own streams that a writer fills by turns.
const LANES: u64 = 8;
/// Appends to an own stream; then its lane goes on with a new one.
const APPENDS_PER_STREAM: u64 = 50;
/// An event number is the writer's number, then the number of the event among the writer's own.
const EVENT_BITS: u32 = 44;
/// Most writers: what is left of 62 bits, and then some to spare.
pub(super) const WRITERS_MAX: u32 = 1 << 16;

/// All appends of a run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) workload: Arc<Workload>,
    /// Events per append.
    pub(super) per_append: u64,
}

/// Where an append goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// A stream of the writer alone; its events begin at this revision.
    Own(StreamId, u64),
    /// A shared stream, by its index.
    Shared(usize),
}

/// Which event of the run it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Which {
    pub(super) writer: usize,
    /// Its number among the writer's events.
    pub(super) event: u64,
}

impl Which {
    /// What an answer said about the event, as a number; the sum of such numbers tells two histories apart.
    pub(super) fn digest(self, revision: u64, position: u64) -> u64 {
        digest(Plan::number(self.writer, self.event), revision, position)
    }
}

impl Plan {
    /// The number of an event in the run.
    fn number(writer: usize, event: u64) -> u64 {
        debug_assert!(event < 1 << EVENT_BITS);
        ((writer as u64) << EVENT_BITS) | event
    }

    /// Which event has this id; none if it is not of this run.
    pub(super) fn which(&self, id: EventId) -> Option<Which> {
        let number = self.workload.run.number_of(id)?;
        Some(Which {
            writer: usize::try_from(number >> EVENT_BITS).ok()?,
            event: number & ((1 << EVENT_BITS) - 1),
        })
    }

    /// The id of an event.
    pub(super) fn id(&self, which: Which) -> EventId {
        let number = Self::number(which.writer, which.event);
        self.workload.run.event_id(number)
    }

    /// Where the n-th append of a writer goes.
    pub(super) fn target(&self, writer: usize, n: u64) -> Target {
        if n % SHARED_EVERY == SHARED_EVERY - 1 {
            let mut random = Random::fork(n, writer as u64);
            return Target::Shared(random.below(self.workload.streams().len()));
        }
        // Among the writer's appends to its own streams it is the `own`-th.
        let own = n - n / SHARED_EVERY;
        let (lane, turn) = (own % LANES, own / LANES);
        let first_turn = turn - turn % APPENDS_PER_STREAM;
        // Named after the first of its events, whose id looks random.
        let first = Which {
            writer,
            event: nth_own(first_turn * LANES + lane) * self.per_append,
        };
        let name = format!("soak-{}", self.id(first));
        let stream = StreamId::new(name).expect("a valid name");
        Target::Own(stream, (turn - first_turn) * self.per_append)
    }

    /// The n-th append of a writer.
    pub(super) fn append(&self, writer: usize, n: u64) -> Append {
        let (stream, expected) = match self.target(writer, n) {
            Target::Own(stream, 0) => (stream, ExpectedRevision::NoStream),
            Target::Own(stream, next) => (stream, ExpectedRevision::Exact(Revision(next - 1))),
            Target::Shared(i) => (self.workload.streams()[i].clone(), ExpectedRevision::Any),
        };
        let events = (n * self.per_append..(n + 1) * self.per_append)
            .map(|event| self.workload.event(Self::number(writer, event)))
            .collect();
        Append::to(stream, expected, events)
    }

    /// The data of an event.
    pub(super) fn payload(&self, which: Which) -> &bytes::Bytes {
        let number = Self::number(which.writer, which.event);
        self.workload.payload(number)
    }

    /// Most events of an own stream.
    pub(super) fn events_per_stream(&self) -> u64 {
        APPENDS_PER_STREAM * self.per_append
    }
}

/// The number of a writer's append that is the `own`-th to one of its own streams.
fn nth_own(own: u64) -> u64 {
    own + own / (SHARED_EVERY - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::workload::{PayloadKind, Run, WorkloadArgs};

    fn plan(per_append: u64) -> Plan {
        let args = WorkloadArgs {
            streams: 10,
            payload: 50,
            payload_kind: PayloadKind::Json,
            metadata: 0,
            seed: 7,
        };
        let workload = Arc::new(Workload::new(&args, Run::numbered(3)));
        Plan {
            workload,
            per_append,
        }
    }

    #[test]
    fn claims_fit_what_was_appended_before() {
        let plan = plan(3);
        let mut streams: HashMap<StreamId, u64> = HashMap::new();
        let mut shared = 0;
        for n in 0..20_000 {
            for writer in [0, 7] {
                let append = plan.append(writer, n);
                let part = &append.streams[0];
                let length = streams.entry(part.stream.clone()).or_default();
                match (plan.target(writer, n), part.expected) {
                    (Target::Shared(_), ExpectedRevision::Any) => shared += 1,
                    (Target::Own(_, 0), ExpectedRevision::NoStream) => assert_eq!(*length, 0),
                    (Target::Own(_, at), ExpectedRevision::Exact(last)) => {
                        assert_eq!((*length, *length - 1), (at, last.0));
                    }
                    other => panic!("{other:?}"),
                }
                *length += 3;
            }
        }
        assert_eq!(shared, 10_000);
        let longest = plan.events_per_stream();
        let own = streams.keys().filter(|s| s.as_str().starts_with("soak-"));
        assert!(own.clone().all(|stream| streams[stream] <= longest));
        // 15,000 appends of two writers in streams of 50.
        assert_eq!(own.count(), 2 * (15_000_usize.div_ceil(400) * 8));
    }

    #[test]
    fn an_event_tells_its_writer_and_number() {
        let plan = plan(2);
        for (writer, n) in [(0, 0), (1, 5), (65_535, (1 << 42) - 1)] {
            let append = plan.append(writer, n);
            for (j, event) in (0..).zip(&append.streams[0].events) {
                let which = plan.which(event.id.unwrap()).unwrap();
                let event_number = n * 2 + j;
                assert_eq!((which.writer, which.event), (writer, event_number));
                assert_eq!(event.data, *plan.payload(which));
                assert_eq!(event.id, Some(plan.id(which)));
            }
        }
        assert_eq!(plan.which(EventId::random()), None);
    }

    #[test]
    fn digests_tell_places_apart() {
        let which = Which {
            writer: 1,
            event: 2,
        };
        let one = which.digest(3, 4);
        assert_eq!(one, which.digest(3, 4));
        assert_ne!(one, which.digest(4, 3));
        assert_ne!(one, Which { writer: 2, ..which }.digest(3, 4));
    }
}
