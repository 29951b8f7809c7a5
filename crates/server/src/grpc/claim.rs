//! What a stream is to these clients, and what their claims about it mean.
//!
//! Gesta knows a deleted stream as one that does not exist. These clients tell the two apart: they expect to find a
//! deleted stream at its last revision, and to be told that it is deleted if they expect it to exist. The stream is
//! read only when Gesta refuses a claim, so the common case costs nothing. What is tried after such a read carries a
//! claim of its own, so what was read need not stay true.

use std::sync::Arc;

use gesta_access::Operation;
use gesta_core::{
    Append, Appended, ErrorKind, EventData, ExpectedRevision, Lifecycle, Position, ReadStream,
    Revision, StreamId,
};
use gesta_grpc::v2::StreamState;
use gesta_grpc::{Expected, Refusal, stored};

use super::Result;
use crate::call::Admitted;
use crate::shared::metrics::AppendSize;
use crate::state::State;

/// What a call that writes needs: the server and the caller.
#[derive(Clone)]
pub(crate) struct Backing {
    pub(crate) state: Arc<State>,
    pub(crate) admitted: Admitted,
}

impl Backing {
    pub(crate) async fn check(&self, operation: Operation<'_>) -> Result<()> {
        Ok(self.admitted.check(&self.state, operation).await?)
    }
}

/// What was found about a stream.
pub(crate) struct StreamLook {
    pub(crate) state: StreamState,
    /// Position of the last event of the metadata stream, if that was read and has one.
    pub(crate) described_at: Option<Position>,
    /// True if that event is a delete.
    pub(crate) is_deleted: bool,
}

/// Reads the state of a stream for a caller who may make this change to it. The state decides the answer to the change,
/// and is told only as far as that answer tells it. So a caller who may only append needs no right to read. The right
/// is asked here too, though the guard of the store asks it with the change: this read goes past the guard.
///
/// Nobody can change a virtual stream, so a claim about one is refused. What it holds depends on who reads it, and is
/// not looked at here as the caller sees it.
pub(crate) async fn look(
    on: &Backing,
    change: Operation<'_>,
    stream: &StreamId,
) -> Result<StreamLook> {
    on.check(change).await?;
    stream.refuse_if_virtual()?;
    let store = &*on.state.store;
    let last = ReadStream::backwards(stream.clone()).limit(1);
    let found = |state| {
        Ok(StreamLook {
            state,
            described_at: None,
            is_deleted: false,
        })
    };
    match store.read_stream(last).await {
        Ok(page) => found(StreamState::At(page.last_revision)),
        Err(error) => match error.kind() {
            ErrorKind::StreamTombstoned(_) => found(StreamState::Tombstoned),
            ErrorKind::StreamNotFound(_) => look_at_metadata(on, stream).await,
            _ => Err(on.admitted.told(error).into()),
        },
    }
}

/// Reads what is noted about a stream that has no events.
async fn look_at_metadata(on: &Backing, stream: &StreamId) -> Result<StreamLook> {
    let last = ReadStream::backwards(stream.metadata_stream()).limit(1);
    let event = match on.state.store.read_stream(last).await {
        Ok(page) => page.events.into_iter().next(),
        Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => None,
        Err(error) => return Err(on.admitted.told(error).into()),
    };
    let Some(event) = event else {
        return Ok(StreamLook {
            state: StreamState::NoStream,
            described_at: None,
            is_deleted: false,
        });
    };
    let noted = Lifecycle::from_event(&event.data, &event.metadata)?;
    let last = noted.deleted_before.0.checked_sub(1).map(Revision);
    Ok(StreamLook {
        state: last.map_or(StreamState::NoStream, StreamState::Deleted),
        described_at: Some(event.position),
        is_deleted: stored::is_delete(&event),
    })
}

/// The outcome of an append.
pub(crate) enum Outcome {
    Stored(Appended),
    /// The claim was wrong. The stream has this last revision, if it exists.
    Wrong(Option<Revision>),
}

/// Appends under a claim as these clients mean it.
pub(crate) async fn append(
    on: &Backing,
    stream: StreamId,
    expected: Expected,
    events: Vec<EventData>,
) -> Result<Outcome> {
    let Some(revision) = expected.revision() else {
        // No stream has such a revision.
        return Ok(
            match look(on, Operation::Append(&stream), &stream).await?.state {
                StreamState::Tombstoned => return Err(Refusal::stream_deleted(&stream)),
                state => Outcome::Wrong(last_of(state)),
            },
        );
    };
    // Only these claims can mean something else to Gesta.
    let again = matches!(expected, Expected::StreamExists | Expected::Exact(_))
        .then(|| (stream.clone(), events.clone()));
    let outcome = attempt(on, Append::to(stream, revision, events)).await?;
    match (outcome, again) {
        (Outcome::Wrong(None), Some((stream, events))) => {
            let found = look(on, Operation::Append(&stream), &stream).await?;
            if !stands_for_no_stream(&stream, expected, &found)? {
                return Ok(Outcome::Wrong(last_of(found.state)));
            }
            attempt(on, Append::to(stream, ExpectedRevision::NoStream, events)).await
        }
        (outcome, _) => Ok(outcome),
    }
}

/// The last revision that is told of a stream that is not as expected: also of one that is deleted, for a new event
/// gets the next one.
pub(crate) fn last_of(state: StreamState) -> Option<Revision> {
    match state {
        StreamState::At(last) | StreamState::Deleted(last) => Some(last),
        StreamState::NoStream | StreamState::Tombstoned => None,
    }
}

async fn attempt(on: &Backing, request: Append) -> Result<Outcome> {
    let size = AppendSize::from(&request);
    let holder = on.admitted.holder();
    let _turn = on.state.bounds.appends.turn(holder, &request).await?;
    let outcome = on.admitted.store.append(request).await;
    on.state.metrics.append(size, &outcome);
    match outcome {
        Ok(appended) => Ok(Outcome::Stored(appended)),
        Err(error) => match error.kind() {
            ErrorKind::WrongExpectedRevision { actual, .. } => Ok(Outcome::Wrong(*actual)),
            _ => Err(error.into()),
        },
    }
}

/// Returns true if a claim about a stream that does not exist for Gesta is right for these clients.
pub(crate) fn stands_for_no_stream(
    stream: &StreamId,
    expected: Expected,
    found: &StreamLook,
) -> Result<bool> {
    match (expected, found.state) {
        (Expected::StreamExists, StreamState::Deleted(_)) | (_, StreamState::Tombstoned) => {
            Err(Refusal::stream_deleted(stream))
        }
        (Expected::StreamExists, StreamState::NoStream) if found.is_deleted => {
            Err(Refusal::stream_deleted(stream))
        }
        // A stream that has metadata only counts as existing.
        (Expected::StreamExists, StreamState::NoStream) => Ok(found.described_at.is_some()),
        (Expected::Exact(revision), StreamState::Deleted(last)) => Ok(revision == last),
        _ => Ok(false),
    }
}

/// Checks a claim without writing. Returns the last revision of the stream, as an error if the claim is wrong.
pub(crate) async fn check(
    on: &Backing,
    stream: &StreamId,
    expected: Expected,
) -> Result<std::result::Result<Option<Revision>, Option<Revision>>> {
    let found = look(on, Operation::Append(stream), stream).await?;
    let last = match found.state {
        StreamState::At(last) => Some(last),
        StreamState::Tombstoned => return Err(Refusal::stream_deleted(stream)),
        StreamState::NoStream | StreamState::Deleted(_) => None,
    };
    let right = match (expected, last) {
        (Expected::Any, _) | (Expected::NoStream, None) | (Expected::StreamExists, Some(_)) => true,
        (Expected::Exact(revision), Some(last)) => revision == last,
        (Expected::NoStream, Some(_)) => false,
        (Expected::StreamExists | Expected::Exact(_), None) => {
            stands_for_no_stream(stream, expected, &found)?
        }
    };
    Ok(match right {
        true => Ok(last),
        false => Err(last_of(found.state)),
    })
}
