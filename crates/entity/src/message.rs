//! The messages to a shard.

use gesta_core::peers::{PeerAnswer, Unanswered};
use gesta_core::{Appended, RecordedEvent, StreamId};

use crate::ask::Ask;
use crate::decider::Decider;

/// A message to a shard.
pub(crate) enum Message<D: Decider> {
    Ask {
        stream: StreamId,
        ask: Ask<D>,
    },
    /// A submission has this outcome.
    Outcome {
        stream: StreamId,
        number: u64,
        result: gesta_core::Result<Appended>,
    },
    Loaded {
        stream: StreamId,
        number: u64,
        part: LoadedPart,
    },
    /// A request that was forwarded has this outcome.
    Forwarded {
        stream: StreamId,
        number: u64,
        outcome: Result<PeerAnswer, Unanswered>,
    },
    /// It is time to check what waits to be forwarded.
    Wake {
        stream: StreamId,
    },
    /// No request will come any more: the shard ends when all are answered.
    Stop,
}

/// A piece of what was loaded for one entity. The pieces come in order.
pub(crate) enum LoadedPart {
    /// This is the last snapshot. The events follow, beginning with the one after which it was taken.
    Snapshot(Box<RecordedEvent>),
    Events(Vec<RecordedEvent>),
    /// Everything was loaded.
    End,
    Failed(gesta_core::Error),
}
