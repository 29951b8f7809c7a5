//! Calls that write: appends, deletes, stream metadata.

use gesta_access::Operation;
use gesta_core::{
    Append, DeleteKind, DeleteStream, EventData, LogId, SetStreamMetadata, StreamMetadata, limits,
};
use gesta_wire::answer::{self, AppendedSeveral, AppendedTo, Stored};
use gesta_wire::json::{DEPTH_MAX, is_too_deep};
use gesta_wire::shown;
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};

use crate::call::{Answer, Call, json};
use crate::http::decode;
use crate::shared::body::Payload;
use crate::shared::body::{RequestBody, Reservation};
use crate::shared::metrics::AppendSize;
use crate::shared::problem::{self, Problem, Result};

/// The header that names the owner of the log that a change went to.
const LOG_OWNER: HeaderName = HeaderName::from_static("gesta-log-owner");

/// So few events hold little more than the head and the body of their request.
const FEW_EVENTS: usize = 16;

/// Carries out `POST /streams/{stream}`.
pub(crate) async fn append_to(call: &Call<'_>, body: &mut RequestBody) -> Result<Answer> {
    call.parameters(&[])?;
    let stream = call.stream()?;
    check_media_type(call)?;
    // The guard of the store asks this again with the append. It is asked here before the body is read: who may not
    // append is refused at once, and takes none of the memory for bodies.
    call.check(Operation::Append(&stream)).await?;
    let (payload, mut held) = payload(call, body, call.state.config.body_bytes_max).await?;
    let request = decode::append_to(stream, &payload)?;
    drop(payload);
    hold_events(&mut held, &request)?;
    let appended = append(call, request).await?;
    drop(held);
    let mut answer = json(
        StatusCode::CREATED,
        answer::write(&AppendedTo::of(&appended)),
    );
    hint_owner(call, appended.log, &mut answer);
    Ok(answer)
}

/// Carries out `POST /append`.
pub(crate) async fn append_several(call: &Call<'_>, body: &mut RequestBody) -> Result<Answer> {
    call.parameters(&[])?;
    check_media_type(call)?;
    let (payload, mut held) = payload(call, body, call.state.config.body_bytes_max).await?;
    let request = decode::append_several(&payload)?;
    drop(payload);
    hold_events(&mut held, &request)?;
    let appended = append(call, request).await?;
    drop(held);
    let mut answer = json(
        StatusCode::CREATED,
        answer::write(&AppendedSeveral::from(&appended)),
    );
    hint_owner(call, appended.log, &mut answer);
    Ok(answer)
}

/// Adds a header that names the owner of the log to which a change went, if that is another node.
fn hint_owner(call: &Call<'_>, log: LogId, answer: &mut Answer) {
    let Some(cluster) = &call.state.cluster else {
        return;
    };
    let value = cluster.owner_elsewhere(log).and_then(|owner| {
        let address = owner.address?;
        // An address that is no text for a header cannot be told.
        HeaderValue::try_from(format!("{address}; log={log}; epoch={}", owner.epoch)).ok()
    });
    if let Some(value) = value {
        answer.headers_mut().insert(LOG_OWNER, value);
    }
}

/// Counts many events as what they hold, which may be ten times the bytes of their body.
fn hold_events(held: &mut Reservation, request: &Append) -> Result<()> {
    if request.events() <= FEW_EVENTS {
        return Ok(());
    }
    let events = request.streams.iter().flat_map(|of| &of.events);
    held.grow_to(events.map(EventData::cost_bytes).sum())
}

async fn append(call: &Call<'_>, request: Append) -> Result<gesta_core::Appended> {
    let size = AppendSize::from(&request);
    let _turn = call
        .state
        .bounds
        .appends
        .turn(call.holder(), &request)
        .await?;
    let outcome = call.store().append(request).await;
    call.state.metrics.append(size, &outcome);
    Ok(outcome?)
}

/// Carries out `DELETE /streams/{stream}`.
pub(crate) async fn delete(call: &Call<'_>) -> Result<Answer> {
    let parameters = call.parameters(&["expected", "tombstone"])?;
    let stream = call.stream()?;
    let kind = match parameters.one("tombstone")?.as_deref() {
        None | Some("false") => DeleteKind::Soft,
        Some("true") => DeleteKind::Tombstone,
        Some(other) => {
            return Err(Problem::invalid(
                "tombstone",
                format!("must be true or false, found {}", shown(other)),
            ));
        }
    };
    let request = DeleteStream {
        stream,
        expected: parameters.expected()?,
        kind,
    };
    let deleted = call.store().delete_stream(request).await?;
    Ok(stored(call, deleted.log, &Stored::from(&deleted)))
}

/// Carries out `PUT /streams/{stream}/metadata`.
pub(crate) async fn put_metadata(call: &Call<'_>, body: &mut RequestBody) -> Result<Answer> {
    let parameters = call.parameters(&["expected"])?;
    let (stream, expected) = (call.stream()?, parameters.expected()?);
    check_media_type(call)?;
    // Before the body is read, as for an append; the guard asks it again.
    call.check(Operation::WriteMetadata(&stream)).await?;
    // A little more than the limit, so that the rule that is broken is the one that is named.
    let bytes_max = limits::STREAM_METADATA_BYTES_MAX * 2;
    let (payload, _held) = payload(call, body, bytes_max).await?;
    if std::str::from_utf8(&payload.bytes).is_err() {
        return Err(Problem::invalid("metadata", "must be UTF-8"));
    }
    if is_too_deep(&payload.bytes) {
        let rule = format!("must not be nested deeper than {DEPTH_MAX}");
        return Err(Problem::invalid("metadata", rule));
    }
    let document = bytes::Bytes::copy_from_slice(&payload.bytes);
    let request = SetStreamMetadata {
        stream,
        expected,
        metadata: StreamMetadata::parse(document)?,
    };
    let set = call.store().set_stream_metadata(request).await?;
    Ok(stored(call, set.log, &Stored::from(&set)))
}

/// Makes the answer to a change that has no events of the caller, with the hint who owns its log.
fn stored(call: &Call<'_>, log: LogId, stored: &Stored) -> Answer {
    let mut answer = json(StatusCode::OK, answer::write(stored));
    hint_owner(call, log, &mut answer);
    answer
}

/// Refuses a body that does not say that it is JSON. A page of another site cannot make a browser send such a body
/// without asking first, so it cannot write to a server on the user's own machine.
pub(crate) fn check_media_type(call: &Call<'_>) -> Result<()> {
    check_content_encoding(call)?;
    let found = call.headers().get(CONTENT_TYPE);
    let text = found.and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = text.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let found = if found.is_some() {
        shown(text)
    } else {
        "none".to_owned()
    };
    Err(Problem::new(
        problem::UNSUPPORTED_MEDIA_TYPE,
        format!("Content-Type must be application/json, found {found}"),
    )
    .field("Content-Type"))
}

/// Refuses a compressed body: what cannot be undone must not be stored.
fn check_content_encoding(call: &Call<'_>) -> Result<()> {
    let codings = call.headers().get_all(CONTENT_ENCODING);
    let unknown = codings
        .iter()
        .find(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"));
    match unknown {
        None => Ok(()),
        Some(found) => Err(Problem::new(
            problem::UNSUPPORTED_MEDIA_TYPE,
            format!(
                "Content-Encoding must be identity or absent, found {}",
                shown(&String::from_utf8_lossy(found.as_bytes()))
            ),
        )
        .field("Content-Encoding")),
    }
}

/// Reads a whole body within bounds of size, time and memory.
pub(crate) async fn payload(
    call: &Call<'_>,
    body: &mut RequestBody,
    bytes_max: usize,
) -> Result<(Payload, Reservation)> {
    let mut held = call.reservation();
    let time_max = call.state.config.body_read_max;
    let payload = body.read(bytes_max, time_max, &mut held).await?;
    Ok((payload, held))
}
