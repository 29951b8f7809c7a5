//! Encoding of answers: events, pages, and where an append went. Data goes out byte for byte.
//!
//! Invariants: `data` and `metadata` are only shown as JSON if they are JSON, not nested deeper than clients can read; in texts of one event
//! a line, also only if they have no line break, which JSON allows between its tokens. Otherwise
//! they are shown as `data_base64` and `metadata_base64`.

use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{
    AllPage, Appended, AppendedStream, ContentType, Deleted, RecordedEvent, StreamPage, StreamsPage,
};
use serde_json::value::RawValue;

use crate::document::is_too_deep;
use crate::json::{key, number, optional_number, plain, string, value};

/// What surrounds an event, and so what its bytes must not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A JSON document: anything goes.
    Document,
    /// One event a line.
    Line,
}

/// Room for the fields of an event beside its data.
const EVENT_FIELDS_BYTES: usize = 384;

/// Most bytes that the event takes, about: all its bytes in base64.
pub(crate) fn bytes_max(event: &RecordedEvent) -> usize {
    let tags: usize = event
        .tags
        .as_slice()
        .iter()
        .map(|tag| tag.as_str().len())
        .sum();
    let names = event.stream.as_str().len() + event.event_type.as_str().len() + tags;
    EVENT_FIELDS_BYTES + 2 * names + event.payload_bytes() / 3 * 4 + 8
}

pub(crate) fn event(out: &mut Vec<u8>, event: &RecordedEvent, framing: Framing) {
    out.reserve(EVENT_FIELDS_BYTES + event.payload_bytes());
    out.extend_from_slice(b"{\"stream\":");
    string(out, event.stream.as_str());
    key(out, "revision");
    number(out, event.revision.0);
    key(out, "log");
    number(out, u64::from(event.log.0));
    key(out, "position");
    number(out, event.position.0);
    key(out, "id");
    plain(out, event.id);
    key(out, "type");
    string(out, event.event_type.as_str());
    key(out, "created");
    plain(out, event.created);
    key(out, "content_type");
    plain(out, event.content_type.as_str());
    if event.content_type == ContentType::Json && is_json(&event.data, framing) {
        key(out, "data");
        out.extend_from_slice(&event.data);
    } else {
        key(out, "data_base64");
        base64(out, &event.data);
    }
    metadata(out, &event.metadata, framing);
    key(out, "tags");
    out.push(b'[');
    for (i, tag) in event.tags.as_slice().iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        string(out, tag.as_str());
    }
    out.extend_from_slice(b"]}");
}

/// No metadata are `null`; so the text `null` as metadata is shown in base64.
fn metadata(out: &mut Vec<u8>, bytes: &Bytes, framing: Framing) {
    if bytes.is_empty() {
        out.extend_from_slice(b",\"metadata\":null");
    } else if is_json(bytes, framing) && bytes.trim_ascii() != b"null" {
        key(out, "metadata");
        out.extend_from_slice(bytes);
    } else {
        key(out, "metadata_base64");
        base64(out, bytes);
    }
}

fn is_json(bytes: &[u8], framing: Framing) -> bool {
    let one_line = || !bytes.iter().any(|b| matches!(b, b'\n' | b'\r'));
    (framing == Framing::Document || one_line())
        && serde_json::from_slice::<&RawValue>(bytes).is_ok()
        && !is_too_deep(bytes)
}

fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    plain(out, base64::display::Base64Display::new(bytes, &STANDARD));
}

fn events(out: &mut Vec<u8>, events: &[RecordedEvent]) {
    out.extend_from_slice(b"{\"events\":[");
    for (i, recorded) in events.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        event(out, recorded, Framing::Document);
    }
    out.push(b']');
}

fn page_capacity(events: &[RecordedEvent]) -> usize {
    events
        .iter()
        .map(|e| e.payload_bytes() + EVENT_FIELDS_BYTES)
        .sum()
}

pub(crate) fn stream_page(page: &StreamPage) -> Bytes {
    let mut out = Vec::with_capacity(page_capacity(&page.events));
    events(&mut out, &page.events);
    key(&mut out, "end");
    value(&mut out, &page.end);
    key(&mut out, "next");
    optional_number(&mut out, page.next.map(|r| r.0));
    key(&mut out, "last_revision");
    number(&mut out, page.last_revision.0);
    out.push(b'}');
    out.into()
}

pub(crate) fn all_page(page: &AllPage) -> Bytes {
    let mut out = Vec::with_capacity(page_capacity(&page.events));
    events(&mut out, &page.events);
    key(&mut out, "end");
    value(&mut out, &page.end);
    key(&mut out, "next");
    plain(&mut out, &page.next);
    out.push(b'}');
    out.into()
}

/// Events as lines of their own.
pub(crate) fn lines(events: &[RecordedEvent]) -> Bytes {
    let mut out = Vec::with_capacity(page_capacity(events));
    for recorded in events {
        event(&mut out, recorded, Framing::Line);
        out.push(b'\n');
    }
    out.into()
}

pub(crate) fn streams_page(page: &StreamsPage) -> Bytes {
    let mut out = Vec::with_capacity(64 + page.streams.len() * 64);
    out.extend_from_slice(b"{\"streams\":[");
    for (i, info) in page.streams.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"stream\":");
        string(&mut out, info.stream.as_str());
        key(&mut out, "last_revision");
        number(&mut out, info.last_revision.0);
        out.push(b'}');
    }
    out.push(b']');
    key(&mut out, "next");
    match &page.next {
        Some(next) => string(&mut out, next.as_str()),
        None => out.extend_from_slice(b"null"),
    }
    out.push(b'}');
    out.into()
}

fn appended_stream(out: &mut Vec<u8>, part: &AppendedStream) {
    out.extend_from_slice(b"{\"stream\":");
    string(out, part.stream.as_str());
    key(out, "first_revision");
    number(out, part.first_revision.0);
    key(out, "last_revision");
    number(out, part.last_revision.0);
}

/// The answer to an append to one stream.
pub(crate) fn appended_to(appended: &Appended) -> Bytes {
    let mut out = Vec::with_capacity(256);
    if let Some(part) = appended.streams.first() {
        appended_stream(&mut out, part);
        out.push(b',');
    } else {
        out.push(b'{');
    }
    place(
        &mut out,
        appended.log.0,
        appended.position.0,
        &appended.checkpoint,
    );
    out.into()
}

/// The answer to an append to several streams.
pub(crate) fn appended_several(appended: &Appended) -> Bytes {
    let mut out = Vec::with_capacity(128 + appended.streams.len() * 128);
    out.extend_from_slice(b"{\"streams\":[");
    for (i, part) in appended.streams.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        appended_stream(&mut out, part);
        key(&mut out, "position");
        number(&mut out, part.position.0);
        out.push(b'}');
    }
    out.extend_from_slice(b"],");
    place(
        &mut out,
        appended.log.0,
        appended.position.0,
        &appended.checkpoint,
    );
    out.into()
}

/// The answer to a delete or a change of metadata.
pub(crate) fn deleted(deleted: &Deleted) -> Bytes {
    let mut out = Vec::with_capacity(128);
    out.push(b'{');
    place(
        &mut out,
        deleted.log.0,
        deleted.position.0,
        &deleted.checkpoint,
    );
    out.into()
}

fn place(out: &mut Vec<u8>, log: u16, position: u64, checkpoint: &gesta_core::Checkpoint) {
    out.extend_from_slice(b"\"log\":");
    number(out, u64::from(log));
    key(out, "position");
    number(out, position);
    key(out, "checkpoint");
    plain(out, checkpoint);
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::{
        EventId, EventType, LogId, Position, Revision, StreamId, Tag, Tags, Timestamp,
    };

    fn recorded(
        content_type: ContentType,
        data: &'static [u8],
        metadata: &'static [u8],
    ) -> RecordedEvent {
        RecordedEvent {
            stream: StreamId::new("a\"b").expect("valid"),
            revision: Revision(2),
            log: LogId(0),
            position: Position(9),
            id: EventId(uuid::Uuid::from_u128(1)),
            event_type: EventType::new("T").expect("valid"),
            created: Timestamp(1_790_000_000_000_001),
            content_type,
            data: Bytes::from_static(data),
            metadata: Bytes::from_static(metadata),
            tags: Tags::new(vec![
                Tag::new("x").expect("valid"),
                Tag::new("ü").expect("valid"),
            ])
            .expect("valid"),
        }
    }

    fn shown(
        content_type: ContentType,
        data: &'static [u8],
        metadata: &'static [u8],
        framing: Framing,
    ) -> String {
        let mut out = Vec::new();
        event(&mut out, &recorded(content_type, data, metadata), framing);
        let text = String::from_utf8(out).expect("text");
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
        text
    }

    #[test]
    fn an_event_reads_as_documented() {
        assert_eq!(
            shown(ContentType::Json, b"{ \"n\": 1.0 }", b"{}", Framing::Line),
            "{\"stream\":\"a\\\"b\",\"revision\":2,\"log\":0,\"position\":9,\"id\":\"00000000-0000-0000-0000-000000000001\",\
             \"type\":\"T\",\"created\":\"2026-09-21T14:13:20.000001Z\",\"content_type\":\"application/json\",\
             \"data\":{ \"n\": 1.0 },\"metadata\":{},\"tags\":[\"x\",\"ü\"]}"
        );
    }

    #[test]
    fn what_json_or_a_line_cannot_hold_is_shown_in_base64() {
        let has = |text: String, part: &str| assert!(text.contains(part), "{text}");
        let (json, binary) = (ContentType::Json, ContentType::Binary);
        has(
            shown(binary, b"\0\xff", b"", Framing::Document),
            r#""data_base64":"AP8=","metadata":null"#,
        );
        has(
            shown(json, b"", b"x", Framing::Document),
            r#""data_base64":"","metadata_base64":"eA==""#,
        );
        has(
            shown(json, b"{},{}", b"null", Framing::Document),
            r#""data_base64":"e30se30=","metadata_base64":"bnVsbA==""#,
        );
        has(
            shown(json, b"\"\xff\"", b"", Framing::Document),
            r#""data_base64":"Iv8i""#,
        );
        has(
            shown(json, b"[\n1]", b"[\r]", Framing::Document),
            "\"data\":[\n1],\"metadata\":[\r]",
        );
        has(
            shown(json, b"[\n1]", b"[\r]", Framing::Line),
            r#""data_base64":"WwoxXQ==","metadata_base64":"Ww1d""#,
        );
    }
}
