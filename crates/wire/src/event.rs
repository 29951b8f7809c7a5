//! Events and pages of them. Data goes out byte for byte, and comes back so.
//!
//! Why written by hand: stored JSON is written as it is, with the space around it, which no serializer of values keeps.
//! Invariants: `data` and `metadata` are only shown as JSON if they are JSON, not nested deeper than clients can read;
//! in texts of one event a line, also only if they have no line break, which JSON allows between its tokens. Otherwise
//! they are shown as `data_base64` and `metadata_base64`.

use std::borrow::Cow;

use base64::Engine;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{
    AllPage, ContentType, EventId, EventType, LogId, Position, RecordedEvent, Resolved,
    ResolvedPage, Result, Revision, SharedEvent, StreamPage, Tag, Tags, Timestamp,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::answer::{self, CheckpointText, unreadable};
use crate::json::{is_too_deep, key, number, optional_number, plain, string, value};
use crate::request;

/// What surrounds an event, which decides what the bytes of the event must not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// The event is part of a JSON document; its bytes may contain anything.
    Document,
    /// The event is one line of a text; its bytes must not contain a line break.
    Line,
}

/// How many bytes are reserved for the fields of an event beside its payload.
const EVENT_FIELDS_BYTES: usize = 384;
/// How many bytes are reserved for the fields of a page beside its events.
const PAGE_FIELDS_BYTES: usize = 256;

/// Estimates the largest size of an event as JSON, in bytes: its payload is counted as if all of it were written in
/// base64.
#[must_use]
pub fn bytes_max(event: &RecordedEvent) -> usize {
    let tags: usize = event
        .tags
        .as_slice()
        .iter()
        .map(|tag| tag.as_str().len())
        .sum();
    let names = event.stream.as_str().len() + event.event_type.as_str().len() + tags;
    EVENT_FIELDS_BYTES + 2 * names + event.payload_bytes() / 3 * 4 + 8
}

/// Appends an event as a JSON object to `out`.
pub fn write_event(out: &mut Vec<u8>, event: &RecordedEvent, framing: Framing) {
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

/// Appends an event as a JSON object to `out`. If a link led to the event, the object has one more field, `link`, which
/// tells where the link stands.
pub fn write_resolved(out: &mut Vec<u8>, found: &Resolved, framing: Framing) {
    write_event(out, &found.event, framing);
    if let Some(link) = &found.link {
        // The brace that ends the event.
        out.pop();
        link_field(out, link);
        out.push(b'}');
    }
}

/// Appends the field `link` of an event to `out`, with the comma before it. The field tells where the link to the event
/// stands.
pub fn link_field(out: &mut Vec<u8>, link: &RecordedEvent) {
    out.extend_from_slice(b",\"link\":{\"stream\":");
    string(out, link.stream.as_str());
    key(out, "revision");
    number(out, link.revision.0);
    key(out, "position");
    number(out, link.position.0);
    key(out, "id");
    plain(out, link.id);
    out.push(b'}');
}

/// Appends the metadata of an event. Empty metadata is shown as `null`; so metadata that is the text `null` is shown in
/// base64.
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
    let one_line = || memchr::memchr2(b'\n', b'\r', bytes).is_none();
    (framing == Framing::Document || one_line())
        && serde_json::from_slice::<&RawValue>(bytes).is_ok()
        && !is_too_deep(bytes)
}

fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    plain(out, Base64Display::new(bytes, &STANDARD));
}

/// Appends the list of a page. Each event is dropped as soon as it is written: a page is as large as its text, and both
/// would be held at once.
fn events(out: &mut Vec<u8>, events: Vec<RecordedEvent>) {
    out.extend_from_slice(b"{\"events\":[");
    for (i, recorded) in events.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_event(out, &recorded, Framing::Document);
    }
    out.push(b']');
}

/// What the text of a page takes at most, so that it is never moved: then it would be held twice. What is not written
/// to takes no memory.
fn page_capacity(events: &[RecordedEvent]) -> usize {
    PAGE_FIELDS_BYTES + events.iter().map(bytes_max).sum::<usize>()
}

/// Writes a page of a stream as a JSON document, with a line break at its end.
#[must_use]
pub fn write_stream_page(page: StreamPage) -> Bytes {
    let mut out = Vec::with_capacity(page_capacity(&page.events));
    events(&mut out, page.events);
    page_fields(&mut out, page.end, page.next, page.last_revision);
    out.into()
}

/// Appends what a page of a stream tells beside its events, and ends the document.
fn page_fields(out: &mut Vec<u8>, end: bool, next: Option<Revision>, last_revision: Revision) {
    key(out, "end");
    value(out, &end);
    key(out, "next");
    optional_number(out, next.map(|r| r.0));
    key(out, "last_revision");
    number(out, last_revision.0);
    out.extend_from_slice(b"}\n");
}

/// Writes a page of a stream whose links were followed, as a JSON document, with a line break at its end.
#[must_use]
pub fn write_resolved_page(page: ResolvedPage) -> Bytes {
    let mut out = Vec::with_capacity(resolved_capacity(&page.events));
    out.extend_from_slice(b"{\"events\":[");
    for (i, found) in page.events.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_resolved(&mut out, &found, Framing::Document);
    }
    out.push(b']');
    page_fields(&mut out, page.end, page.next, page.last_revision);
    out.into()
}

fn resolved_capacity(events: &[Resolved]) -> usize {
    let of_link = |link: &SharedEvent| EVENT_FIELDS_BYTES + 2 * link.stream.as_str().len();
    let bytes = |found: &Resolved| bytes_max(&found.event) + found.link.as_ref().map_or(0, of_link);
    PAGE_FIELDS_BYTES + events.iter().map(bytes).sum::<usize>()
}

/// Writes a page of all events as a JSON document, with a line break at its end.
#[must_use]
pub fn write_all_page(page: AllPage) -> Bytes {
    let mut out = Vec::with_capacity(page_capacity(&page.events));
    events(&mut out, page.events);
    key(&mut out, "end");
    value(&mut out, &page.end);
    key(&mut out, "next");
    plain(&mut out, &page.next);
    out.extend_from_slice(b"}\n");
    out.into()
}

/// Writes events as JSON, one event in each line.
#[must_use]
pub fn write_lines(events: Vec<RecordedEvent>) -> Bytes {
    let mut out = Vec::with_capacity(page_capacity(&events));
    for recorded in events {
        write_event(&mut out, &recorded, Framing::Line);
        out.push(b'\n');
    }
    out.into()
}

/// Writes events to which links may have led as JSON, one event in each line.
#[must_use]
pub fn write_resolved_lines(events: Vec<Resolved>) -> Bytes {
    let mut out = Vec::with_capacity(resolved_capacity(&events));
    for found in events {
        write_resolved(&mut out, &found, Framing::Line);
        out.push(b'\n');
    }
    out.into()
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    stream: Cow<'a, str>,
    revision: u64,
    log: u16,
    position: u64,
    id: Uuid,
    #[serde(borrow, rename = "type")]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    created: Cow<'a, str>,
    #[serde(borrow)]
    content_type: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "request::present")]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data_base64: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    metadata_base64: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tags: Vec<Cow<'a, str>>,
}

impl Event<'_> {
    fn recorded(self, answer: &[u8]) -> Result<RecordedEvent> {
        let base64 = |text: &str| {
            STANDARD
                .decode(text)
                .map(Bytes::from)
                .map_err(|error| unreadable("base64 cannot be read").caused_by(error))
        };
        let data = match (self.data, self.data_base64) {
            (Some(raw), None) => Bytes::copy_from_slice(with_space(answer, raw.get())),
            (None, Some(text)) => base64(&text)?,
            _ => return Err(unreadable("an event needs either data or data_base64")),
        };
        let metadata = match (self.metadata, self.metadata_base64) {
            (Some(raw), _) => Bytes::copy_from_slice(with_space(answer, raw.get())),
            (None, Some(text)) => base64(&text)?,
            (None, None) => Bytes::new(),
        };
        let content_type = [ContentType::Json, ContentType::Binary]
            .into_iter()
            .find(|known| known.as_str() == self.content_type)
            .ok_or_else(|| unreadable("an event has an unknown content_type"))?;
        let tags = self
            .tags
            .iter()
            .map(|t| Tag::from_stored(t.as_ref().into()));
        Ok(RecordedEvent {
            stream: answer::stream(&self.stream),
            revision: Revision(self.revision),
            log: LogId(self.log),
            position: Position(self.position),
            id: EventId(self.id),
            event_type: EventType::from_stored(self.event_type.as_ref().into()),
            created: Timestamp::parse(&self.created)
                .map_err(|error| unreadable("created cannot be read").caused_by(error))?,
            content_type,
            data,
            metadata,
            tags: Tags::from_stored(tags.collect()),
        })
    }
}

/// Returns the JSON text of a value with the space around it. The server writes stored JSON as it is, between its own
/// punctuation, and a parser drops the space that belongs to it.
fn with_space<'a>(answer: &'a [u8], value: &str) -> &'a [u8] {
    let from = value.as_ptr().addr().wrapping_sub(answer.as_ptr().addr());
    let to = from.saturating_add(value.len());
    let (Some(before), Some(after)) = (answer.get(..from), answer.get(to..)) else {
        return &[];
    };
    let space = |b: &&u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r');
    let from = from - before.iter().rev().take_while(space).count();
    let to = to + after.iter().take_while(space).count();
    &answer[from..to]
}

/// Reads one event from JSON.
///
/// # Errors
/// `Corrupt` if the text is no event.
pub fn read_event(json: &[u8]) -> Result<RecordedEvent> {
    answer::read::<Event<'_>>(json)?.recorded(json)
}

fn recorded(json: &[u8], documents: Vec<Event<'_>>) -> Result<Vec<RecordedEvent>> {
    documents.into_iter().map(|d| d.recorded(json)).collect()
}

/// Reads a page of a stream from JSON.
///
/// # Errors
/// `Corrupt` if the text is no such page.
pub fn read_stream_page(json: &[u8]) -> Result<StreamPage> {
    #[derive(Deserialize)]
    struct Page<'a> {
        #[serde(borrow)]
        events: Vec<Event<'a>>,
        next: Option<u64>,
        end: bool,
        last_revision: u64,
    }
    let page: Page<'_> = answer::read(json)?;
    Ok(StreamPage {
        events: recorded(json, page.events)?,
        next: page.next.map(Revision),
        end: page.end,
        last_revision: Revision(page.last_revision),
    })
}

/// Reads a page of all events from JSON.
///
/// # Errors
/// `Corrupt` if the text is no such page.
pub fn read_all_page(json: &[u8]) -> Result<AllPage> {
    #[derive(Deserialize)]
    struct Page<'a> {
        #[serde(borrow)]
        events: Vec<Event<'a>>,
        next: CheckpointText<'a>,
        end: bool,
    }
    let page: Page<'_> = answer::read(json)?;
    Ok(AllPage {
        events: recorded(json, page.events)?,
        next: page.next.0.into_owned(),
        end: page.end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::StreamId;

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
        let event = recorded(content_type, data, metadata);
        write_event(&mut out, &event, framing);
        assert_eq!(read_event(&out).expect("readable"), event);
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
    fn an_event_that_a_link_led_to_tells_where_that_stands() {
        let event = std::sync::Arc::new(recorded(ContentType::Json, b"{}", b""));
        let mut plain = Vec::new();
        write_event(&mut plain, &event, Framing::Line);
        let mut out = Vec::new();
        write_resolved(&mut out, &Resolved::itself(event.clone()), Framing::Line);
        assert_eq!(out, plain);
        let link = RecordedEvent {
            stream: StreamId::new("$ce-a").expect("valid"),
            revision: Revision(7),
            ..(*event).clone()
        };
        let found = Resolved {
            link: Some(link.into()),
            event: event.clone(),
        };
        let mut out = Vec::new();
        write_resolved(&mut out, &found, Framing::Line);
        let read: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(read["link"]["stream"], "$ce-a");
        assert_eq!(read["link"]["revision"], 7);
        assert_eq!(read["link"]["id"], event.id.to_string());
        // Readers that know nothing of links read the event.
        assert_eq!(read_event(&out).expect("readable"), *event);
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
