//! [`OwnerStore`]: what the owner of streams (the entity runtime) needs beyond [`EventStore`](crate::EventStore).
//!
//! Why a trait of its own: an owner decides before the commits. So its appends must be handed over in order and at
//! once, and each must fail if the one that it was decided upon did. An owner also loads thousands of streams after a
//! restart. A store reached over a network cannot promise the first, so not every `EventStore` is an `OwnerStore`.

use async_trait::async_trait;

use crate::error::Result;
use crate::event::EventData;
use crate::ids::{EventId, Position, Revision, StreamId};
use crate::request::{Appended, StreamPage};
use crate::store::EventStore;

/// What the owner believes to be the last event of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// There is no such stream: it was never written, or it was soft-deleted.
    NoStream {
        /// Revision that the next event of the stream will have: 0 if the stream was never written. So a stream that
        /// was begun and deleted since is told from the one that the owner knows.
        next: Revision,
    },
    /// The last event of the stream is this one.
    Event(EventId),
}

impl After {
    /// The stream was never written.
    pub const NOTHING: After = After::NoStream { next: Revision(0) };
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

/// A page of a stream that is loaded, and what a reader of the page cannot see.
#[derive(Clone, Debug)]
pub struct LoadedPage {
    /// The page, as [`EventStore::read_stream`] gives it.
    pub page: Result<StreamPage>,
    /// Revision before which all events were deleted: 0 if the stream was never deleted, or if nothing is known of it.
    /// If there is no such stream, its next event has this revision.
    pub deleted_before: Revision,
    /// Position of the last event of the metadata stream; 0 if there is none. The stream was not deleted after it.
    pub changed_at: Position,
}

/// An [`EventStore`] whose streams can be owned by a process.
#[async_trait]
pub trait OwnerStore: EventStore {
    /// Hands events over and returns at once. The outcome is told later, possibly before this method returns.
    ///
    /// Submissions to one stream are decided in the order of the calls. The outcome is one of those of
    /// [`EventStore::append`], such as `WrongExpectedRevision` if `after` does not hold.
    fn submit(&self, submission: Submission);

    /// Returns a position of the log of this stream that was stored before the call: the last one that this process
    /// knows of. It may be far before the end; 0 if nothing is known.
    fn known_end(&self, stream: &StreamId) -> Position;

    /// Reads a page of each of up to 1,000 streams in few round trips. There is one answer per request, in their order,
    /// whose page is as [`EventStore::read_stream`] gives it. A page may be short, even empty, without being the end:
    /// the caller goes on from `next`.
    ///
    /// # Errors
    /// `InvalidArgument`, `Unavailable`, `Corrupt`.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn read_streams(&self, requests: Vec<LoadStream>) -> Result<Vec<LoadedPage>>;
}
