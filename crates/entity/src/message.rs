//! The messages to a shard.

use gesta_core::peers::{PeerAnswer, Unanswered};
use gesta_core::{Appended, Position, RecordedEvent, Revision, StreamId};

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

/// What is known of the deletes of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deleted {
    /// The revision before which all events were deleted; 0 if the stream was never deleted.
    pub(crate) before: Revision,
    /// A position after which the stream was not deleted.
    pub(crate) until: Position,
}

/// A piece of what was loaded for one entity. The pieces come in order.
pub(crate) enum LoadedPart {
    /// This is the last snapshot. The events follow, beginning with the one after which it was taken.
    Snapshot(Box<RecordedEvent>),
    /// These are the next events.
    Events {
        events: Vec<RecordedEvent>,
        deleted: Deleted,
    },
    /// Everything was loaded.
    End {
        /// The last revision of the stream; `None` if there is no such stream.
        last: Option<Revision>,
        deleted: Deleted,
    },
    Failed(gesta_core::Error),
}
