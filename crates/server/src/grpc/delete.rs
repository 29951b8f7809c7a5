//! The calls `Delete` and `Tombstone`.

use gesta_access::Operation;
use gesta_core::{DeleteKind, DeleteStream, ErrorKind, ExpectedRevision, Position, StreamId};
use gesta_grpc::messages::streams::delete_req::Options;
use gesta_grpc::messages::streams::delete_resp::{Position as At, PositionOption};
use gesta_grpc::messages::streams::{DeleteReq, DeleteResp, TombstoneReq};
use gesta_grpc::v2::StreamState;
use gesta_grpc::{Expected, Positions, Refusal, ids};

use super::Result;
use super::call::GrpcCall;
use super::claim::{self, Backing, StreamLook};
use super::reply::Reply;

/// Carries out `Delete`.
pub(crate) async fn delete(call: &mut GrpcCall) -> Result<Reply> {
    let request: DeleteReq = call.message().await?;
    carry_out(&call.backing(), request.options, DeleteKind::Soft).await
}

/// Carries out `Tombstone`.
pub(crate) async fn tombstone(call: &mut GrpcCall) -> Result<Reply> {
    let request: TombstoneReq = call.message().await?;
    carry_out(&call.backing(), request.options, DeleteKind::Tombstone).await
}

async fn carry_out(on: &Backing, options: Option<Options>, kind: DeleteKind) -> Result<Reply> {
    let Some(options) = options else {
        return Err(Refusal::invalid("the options must be given"));
    };
    let stream = ids::stream(options.stream_identifier.as_ref())?;
    let expected = Expected::of_delete(options.expected_stream_revision)?;
    let positions = Positions::from(on.admitted.store.incarnation().await?);
    let position = match expected.revision() {
        Some(revision) => match attempt(on, &stream, revision, kind).await? {
            DeleteAttempt::Deleted(position) => position,
            DeleteAttempt::NotAsExpected => refused(on, &stream, expected, kind).await?,
        },
        // No stream has such a revision.
        None => refused(on, &stream, expected, kind).await?,
    };
    Ok(Reply::message(&DeleteResp {
        position_option: Some(PositionOption::Position(At {
            commit_position: positions.shown(position),
            prepare_position: positions.shown(position),
        })),
    }))
}

enum DeleteAttempt {
    Deleted(Position),
    NotAsExpected,
}

async fn attempt(
    on: &Backing,
    stream: &StreamId,
    expected: ExpectedRevision,
    kind: DeleteKind,
) -> Result<DeleteAttempt> {
    let request = DeleteStream {
        stream: stream.clone(),
        expected,
        kind,
    };
    match on.admitted.store.delete_stream(request).await {
        Ok(deleted) => Ok(DeleteAttempt::Deleted(deleted.position)),
        Err(error) => match error.kind() {
            ErrorKind::WrongExpectedRevision { .. } | ErrorKind::StreamNotFound(_) => {
                Ok(DeleteAttempt::NotAsExpected)
            }
            _ => Err(error.into()),
        },
    }
}

/// Decides what these clients are told of a delete that Gesta refuses. A stream that is deleted already may be deleted
/// again, and may get a tombstone at its last revision; one that has metadata only counts as existing.
async fn refused(
    on: &Backing,
    stream: &StreamId,
    expected: Expected,
    kind: DeleteKind,
) -> Result<Position> {
    let found = claim::look(on, Operation::Delete(stream), stream).await?;
    let actual = claim::last_of(found.state);
    let wrong = Refusal::wrong_expected_version(stream, expected, actual);
    let is_there = matches!(found.state, StreamState::At(_));
    if is_there || !is_deleted_as_expected(stream, expected, &found)? {
        return Err(wrong);
    }
    // A stream that has metadata only is deleted with them.
    if kind == DeleteKind::Soft && found.state != StreamState::NoStream {
        return found.described_at.ok_or(wrong);
    }
    match attempt(on, stream, ExpectedRevision::NoStream, kind).await? {
        DeleteAttempt::Deleted(position) => Ok(position),
        DeleteAttempt::NotAsExpected => Err(wrong),
    }
}

fn is_deleted_as_expected(
    stream: &StreamId,
    expected: Expected,
    found: &StreamLook,
) -> Result<bool> {
    match (expected, found.state) {
        (Expected::Any | Expected::NoStream, StreamState::Deleted(_)) => Ok(true),
        _ => claim::stands_for_no_stream(stream, expected, found),
    }
}
