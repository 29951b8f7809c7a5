//! Events of which seeds and targets are made, and parts of inputs.

use bytes::Bytes;
use gesta_core::{
    ContentType, EventData, EventId, EventType, Incarnation, LogId, Position, RecordedEvent,
    Revision, StreamId, Tags, Timestamp,
};
use uuid::Uuid;

/// The time of the samples: 2026-09-21.
const CREATED: Timestamp = Timestamp(1_790_000_000_000_001);

pub(crate) fn id(number: u128) -> Uuid {
    Uuid::from_u128(0x0189_0dd5_ea3f_7a4e_8e3a_0000_0000_0000 + number)
}

pub(crate) fn incarnation() -> Incarnation {
    Incarnation(id(99))
}

pub(crate) fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

pub(crate) fn event_type(name: &str) -> EventType {
    EventType::new(name).expect("valid")
}

pub(crate) fn tags(texts: &[&str]) -> Tags {
    Tags::of(texts.iter().copied()).expect("valid")
}

/// An event that is to be appended.
pub(crate) fn proposed(data: &'static str) -> EventData {
    EventData::json(event_type("item-added"), data)
        .with_id(EventId(id(1)))
        .with_metadata(r#"{"$correlationId":"x"}"#)
        .with_tags(tags(&["cart:1", "größe"]))
}

/// An event that was stored, with these data and metadata.
pub(crate) fn recorded(data: impl Into<Bytes>, metadata: impl Into<Bytes>) -> RecordedEvent {
    RecordedEvent {
        stream: stream("cart-1"),
        revision: Revision(2),
        log: LogId(0),
        position: Position(9),
        id: EventId(id(2)),
        event_type: event_type("item-added"),
        created: CREATED,
        content_type: ContentType::Json,
        data: data.into(),
        metadata: metadata.into(),
        tags: tags(&["cart:1"]),
    }
}

/// JSON that is nested so deep.
pub(crate) fn nested(depth: usize) -> String {
    format!("{}1{}", "[".repeat(depth), "]".repeat(depth))
}

/// Takes the first byte of an input; 0 if there is none.
pub(crate) fn byte(input: &mut &[u8]) -> u8 {
    match input.split_first() {
        Some((first, rest)) => {
            *input = rest;
            *first
        }
        None => 0,
    }
}

/// Divides an input at its first zero byte.
pub(crate) fn two(input: &[u8]) -> (&[u8], &[u8]) {
    let at = input.iter().position(|byte| *byte == 0);
    match at {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &[]),
    }
}

/// Cuts an input into parts of this many bytes. An input without bytes is one part.
pub(crate) fn parts(input: &[u8], bytes: usize) -> Vec<&[u8]> {
    match input.is_empty() {
        true => vec![input],
        false => input.chunks(bytes.max(1)).collect(),
    }
}

/// Puts bytes before others.
pub(crate) fn after(first: &[u8], rest: impl AsRef<[u8]>) -> Vec<u8> {
    [first, rest.as_ref()].concat()
}
