//! `Append`: events for one stream, each in a message of its own.

use gesta_core::{Appended, EventData, Revision, StreamId, limits};
use gesta_grpc::messages::shared::Empty;
use gesta_grpc::messages::streams::append_req::{Content, Options};
use gesta_grpc::messages::streams::append_resp::success::{CurrentRevisionOption, PositionOption};
use gesta_grpc::messages::streams::append_resp::{Position, Result as Outcome, Success};
use gesta_grpc::messages::streams::{AppendReq, AppendResp};
use gesta_grpc::proposed::{self, Proposed};
use gesta_grpc::{Expected, Positions, Refusal, ids};

use super::Result;
use super::call::{GrpcCall, in_read_time};
use super::claim;
use super::reply::Reply;

/// Carries out `Append`.
pub(crate) async fn append(call: &mut GrpcCall) -> Result<Reply> {
    let on = call.backing();
    let (stream, expected, events) = in_read_time(&on.state, request(call)).await?;
    if events.is_empty() {
        let result = match claim::check(&on, &stream, expected).await? {
            Ok(last) => nothing_stored(last),
            Err(actual) => Outcome::WrongExpectedVersion(expected.wrong_in_append(actual)),
        };
        return Ok(reply(result));
    }
    let outcome = claim::append(&on, stream, expected, events).await?;
    Ok(reply(match outcome {
        claim::Outcome::Stored(appended) => stored(&appended),
        claim::Outcome::Wrong(actual) => {
            Outcome::WrongExpectedVersion(expected.wrong_in_append(actual))
        }
    }))
}

/// Reads all messages of the call.
async fn request(call: &mut GrpcCall) -> Result<(StreamId, Expected, Vec<EventData>)> {
    let Some(AppendReq {
        content: Some(Content::Options(options)),
    }) = call.next().await?
    else {
        return Err(Refusal::invalid("the first message must be the options"));
    };
    let Options {
        stream_identifier,
        expected_stream_revision,
    } = options;
    let stream = ids::stream(stream_identifier.as_ref())?;
    let expected = Expected::of_append(expected_stream_revision)?;
    let events = events(call, &stream).await?;
    Ok((stream, expected, events))
}

/// After so many events what they hold is counted. Fewer hold little more than their call.
const COUNTED_TOGETHER: usize = 16;

/// Reads the events that follow the options.
async fn events(call: &mut GrpcCall, stream: &StreamId) -> Result<Vec<EventData>> {
    let mut events = Vec::new();
    let (mut bytes, mut cost) = (0, 0);
    while let Some(request) = call.next::<AppendReq>().await? {
        let Some(Content::ProposedMessage(message)) = request.content else {
            return Err(Refusal::invalid(
                "every message after the first must be an event",
            ));
        };
        if events.len() == limits::APPEND_EVENTS_MAX {
            return Err(Refusal::too_many_events(events.len() + 1));
        }
        let mut event = [Proposed::from(message).into_event(stream)?];
        proposed::own(&mut event, call.requests.last_bytes());
        bytes += event[0].payload_bytes();
        cost += event[0].cost_bytes();
        if bytes > limits::APPEND_BYTES_MAX {
            return Err(Refusal::append_too_large(limits::APPEND_BYTES_MAX));
        }
        events.extend(event);
        // They hold more than the bytes that came.
        if events.len().is_multiple_of(COUNTED_TOGETHER) {
            call.requests.hold(cost)?;
        }
    }
    Ok(events)
}

fn stored(appended: &Appended) -> Outcome {
    let last = appended.streams.last();
    let position = last.map_or(appended.position, |stream| stream.position);
    let position = Positions::from(appended.checkpoint.incarnation).shown(position);
    Outcome::Success(Success {
        current_revision_option: last
            .map(|stream| CurrentRevisionOption::CurrentRevision(stream.last_revision.0)),
        position_option: Some(PositionOption::Position(Position {
            commit_position: position,
            prepare_position: position,
        })),
    })
}

fn nothing_stored(last: Option<Revision>) -> Outcome {
    Outcome::Success(Success {
        current_revision_option: Some(match last {
            Some(revision) => CurrentRevisionOption::CurrentRevision(revision.0),
            None => CurrentRevisionOption::NoStream(Empty {}),
        }),
        position_option: Some(PositionOption::NoPosition(Empty {})),
    })
}

fn reply(result: Outcome) -> Reply {
    Reply::message(&AppendResp {
        result: Some(result),
    })
}
