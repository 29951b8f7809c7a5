//! [`OwnerStore`]: what the owner of streams (the entity runtime) needs beyond [`EventStore`](crate::EventStore).
//!
//! Why a trait of its own: an owner decides before the commits, so its appends must be handed over in order and at
//! once, and each must fail if the one that it was decided upon did; and it loads thousands of streams after a restart.
//! A store reached over a network cannot promise the first, so not every `EventStore` is an `OwnerStore`.

use async_trait::async_trait;

use crate::error::Result;
use crate::event::EventData;
use crate::ids::{EventId, Revision, StreamId};
use crate::request::{Appended, StreamPage};
use crate::store::EventStore;

/// What the owner believes to be the last event of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// There is no such stream (never written, or soft-deleted).
    NoStream,
    /// The last event of the stream is this one.
    Event(EventId),
}

/// Is told of the outcome of a [`Submission`], exactly once. Must not block.
pub type OnOutcome = Box<dyn FnOnce(Result<Appended>) + Send + Sync>;

/// Events that an owner has decided on, or the question whether its state is still current.
pub struct Submission {
    /// The stream.
    pub stream: StreamId,
    /// What the owner believes. The id tells more than a revision: if an earlier submission was refused and another
    /// process has stored an event at its revision, this one is refused as well.
    pub after: After,
    /// The events, each with its id. The owner never sends them again: they are not remembered for retries.
    /// Empty: store nothing, only confirm that `after` holds.
    pub events: Vec<EventData>,
    /// Told `Ok` when the events are durable, or when `after` was found to hold at a moment after the submission.
    pub on_outcome: OnOutcome,
}

impl std::fmt::Debug for Submission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Submission")
            .field("stream", &self.stream)
            .field("after", &self.after)
            .field("events", &self.events.len())
            .finish_non_exhaustive()
    }
}

/// Where to begin reading a stream that is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadFrom {
    /// At the first readable event.
    Start,
    /// At this event, included.
    Revision(Revision),
    /// At the last event.
    Last,
}

/// One stream to load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadStream {
    /// The stream.
    pub stream: StreamId,
    /// Where to begin; always forwards.
    pub from: LoadFrom,
    /// Most events wanted: 1 to 10,000.
    pub limit: usize,
}

/// An [`EventStore`] whose streams can be owned by a process.
#[async_trait]
pub trait OwnerStore: EventStore {
    /// Hands events over. Returns at once; the outcome is told later, possibly before this returns.
    ///
    /// Submissions to one stream are decided in the order of the calls.
    /// The outcome is as of [`EventStore::append`]: `WrongExpectedRevision` if `after` does not hold, …
    fn submit(&self, submission: Submission);

    /// Reads a page of each of up to 1,000 streams, sharing round trips. One answer per request, in their order; each
    /// as of [`EventStore::read_stream`]. A page may be short, even empty, without being the end: go on from `next`.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unavailable`, `Corrupt`.
    ///
    /// # Cancel safety
    /// Safe.
    async fn read_streams(&self, requests: Vec<LoadStream>) -> Result<Vec<Result<StreamPage>>>;
}
