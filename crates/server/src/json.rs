//! Writing of JSON straight into a buffer: small answers need no tree of values.

use gesta_core::ExpectedRevision;
use serde::Serialize;

/// Appends a value. Writing to memory cannot fail, and no value here can refuse to be written.
pub(crate) fn value(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let written = serde_json::to_writer(out, value);
    debug_assert!(written.is_ok(), "JSON of a plain value: {written:?}");
}

/// Appends a string with its quotes.
pub(crate) fn string(out: &mut Vec<u8>, text: &str) {
    value(out, text);
}

/// Appends a number.
pub(crate) fn number(out: &mut Vec<u8>, number: u64) {
    value(out, &number);
}

/// Appends a number or `null`.
pub(crate) fn optional_number(out: &mut Vec<u8>, number: Option<u64>) {
    value(out, &number);
}

/// Appends `,"name":`, for every member of an object but the first.
pub(crate) fn key(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

/// Appends something that shows itself without quotes or backslashes, in quotes.
pub(crate) fn plain(out: &mut Vec<u8>, shown: impl std::fmt::Display) {
    use std::io::Write;
    out.push(b'"');
    let written = write!(out, "{shown}");
    debug_assert!(written.is_ok(), "writing to memory: {written:?}");
    out.push(b'"');
}

/// Appends an expected revision in the form that requests have.
pub(crate) fn expected(out: &mut Vec<u8>, expected: ExpectedRevision) {
    match expected {
        ExpectedRevision::Any => string(out, "any"),
        ExpectedRevision::NoStream => string(out, "no_stream"),
        ExpectedRevision::StreamExists => string(out, "stream_exists"),
        ExpectedRevision::Exact(revision) => number(out, revision.0),
    }
}
