//! Encoding of append bodies.

use std::io::Write;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{Append, ContentType, EventData, ExpectedRevision, StreamAppend};
use serde_json::value::RawValue;

/// The body of an append to one stream; without the name of the stream, which is in the address.
pub(crate) fn append_to(append: &StreamAppend) -> Bytes {
    let mut out = b"{".to_vec();
    claim_and_events(&mut out, append);
    out.push(b'}');
    out.into()
}

/// The body of an append to several streams.
pub(crate) fn append_several(append: &Append) -> Bytes {
    let mut out = b"{\"appends\":[".to_vec();
    for (i, part) in append.streams.iter().enumerate() {
        out.extend_from_slice(if i > 0 {
            b",{\"stream\":"
        } else {
            b"{\"stream\":"
        });
        string(&mut out, part.stream.as_str());
        out.push(b',');
        claim_and_events(&mut out, part);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    out.into()
}

/// An expected revision as a parameter has it.
pub(crate) fn expected(expected: ExpectedRevision) -> String {
    match expected {
        ExpectedRevision::Any => "any".into(),
        ExpectedRevision::NoStream => "no_stream".into(),
        ExpectedRevision::StreamExists => "stream_exists".into(),
        ExpectedRevision::Exact(revision) => revision.to_string(),
    }
}

fn claim_and_events(out: &mut Vec<u8>, part: &StreamAppend) {
    let claim = expected(part.expected);
    match part.expected {
        ExpectedRevision::Exact(_) => show(out, format_args!("\"expected\":{claim}")),
        _ => show(out, format_args!("\"expected\":\"{claim}\"")),
    }
    out.extend_from_slice(b",\"events\":[");
    for (i, data) in part.events.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        event(out, data);
    }
    out.push(b']');
}

fn event(out: &mut Vec<u8>, event: &EventData) {
    out.extend_from_slice(b"{\"type\":");
    string(out, event.event_type.as_str());
    if let Some(id) = event.id {
        show(out, format_args!(",\"id\":\"{id}\""));
    }
    if event.content_type == ContentType::Json && is_json(&event.data) {
        out.extend_from_slice(b",\"data\":");
        out.extend_from_slice(&event.data);
    } else {
        let data = Base64Display::new(&event.data, &STANDARD);
        let content_type = event.content_type.as_str();
        show(
            out,
            format_args!(",\"data_base64\":\"{data}\",\"content_type\":\"{content_type}\""),
        );
    }
    // No metadata are `null` on the wire; so the text `null` travels in base64.
    if is_json(&event.metadata) && event.metadata != "null" {
        out.extend_from_slice(b",\"metadata\":");
        out.extend_from_slice(&event.metadata);
    } else if !event.metadata.is_empty() {
        let metadata = Base64Display::new(&event.metadata, &STANDARD);
        show(out, format_args!(",\"metadata_base64\":\"{metadata}\""));
    }
    if !event.tags.is_empty() {
        out.extend_from_slice(b",\"tags\":[");
        for (i, tag) in event.tags.as_slice().iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            string(out, tag.as_str());
        }
        out.push(b']');
    }
    out.push(b'}');
}

/// True if the bytes are JSON that comes out of a document as it went in: space around a value is not kept.
fn is_json(bytes: &[u8]) -> bool {
    let space = |b: Option<&u8>| b.is_some_and(u8::is_ascii_whitespace);
    !space(bytes.first())
        && !space(bytes.last())
        && serde_json::from_slice::<&RawValue>(bytes).is_ok()
}

/// Writing to memory cannot fail.
fn show(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let written = out.write_fmt(text);
    debug_assert!(written.is_ok(), "writing to memory: {written:?}");
}

fn string(out: &mut Vec<u8>, text: &str) {
    let written = serde_json::to_writer(out, text);
    debug_assert!(written.is_ok(), "JSON of a text: {written:?}");
}
