//! [`OwnerStore`]: what the owner of streams (the entity runtime) needs beyond [`EventStore`](crate::EventStore).
//!
//! Why a trait of its own: an owner decides before the commits. So its appends must be handed over in order and at
//! once, and each must fail if the one that it was decided upon did. An owner also loads thousands of streams after a
//! restart. A store reached over a network cannot promise the first, so not every `EventStore` is an `OwnerStore`.

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

/// Receives the outcome of a [`Submission`], exactly once. It must not block.
pub type OnOutcome = Box<dyn FnOnce(Result<Appended>) + Send + Sync>;

/// Events that an owner has decided on, or the question whether its state is still current.
pub struct Submission {
    /// Stream that the submission is about.
    pub stream: StreamId,
    /// What the owner believes to be the last event of the stream. An id tells more than a revision: if an earlier
    /// submission was refused and another process has stored an event at its revision, this submission is refused as
    /// well.
    pub after: After,
    /// The events, each with its id. The owner never sends them again, so they are not remembered for retries. Without
    /// events the submission stores nothing and only confirms that `after` holds.
    pub events: Vec<EventData>,
    /// Receives `Ok` when the events are durable, or when `after` was found to hold at a moment after the submission.
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

/// Where the read of a stream that is loaded begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadFrom {
    /// The read begins at the first readable event.
    Start,
    /// The read begins at this event, which is included.
    Revision(Revision),
    /// The read begins at the last event.
    Last,
}

/// Request to load one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadStream {
    /// Stream to load.
    pub stream: StreamId,
    /// Where the page begins. The read is always forwards.
    pub from: LoadFrom,
    /// Largest number of events in the page: 1 to 10,000.
    pub limit: usize,
}

/// An [`EventStore`] whose streams can be owned by a process.
#[async_trait]
pub trait OwnerStore: EventStore {
    /// Hands events over and returns at once. The outcome is told later, possibly before this method returns.
    ///
    /// Submissions to one stream are decided in the order of the calls. The outcome is one of those of
    /// [`EventStore::append`], such as `WrongExpectedRevision` if `after` does not hold.
    fn submit(&self, submission: Submission);

    /// Reads a page of each of up to 1,000 streams in few round trips. There is one answer per request, in their order,
    /// as [`EventStore::read_stream`] gives it. A page may be short, even empty, without being the end: the caller goes
    /// on from `next`.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unavailable`, `Corrupt`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn read_streams(&self, requests: Vec<LoadStream>) -> Result<Vec<Result<StreamPage>>>;
}
