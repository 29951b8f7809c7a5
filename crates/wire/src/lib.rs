//! What the server and its clients exchange: each document stands here once, with how it is written and how it is read.
//!
//! Why a crate: a member that one side renames alone is a member that the other side misses. Invariants: data of events
//! travel byte for byte; what is read is checked like any stored data, and never panics. Not here: HTTP itself,
//! addresses and their parameters (`gesta-server`, `gesta-client`), the rules of requests (`gesta-server`).
//!
//! * `request`: bodies of appends, filters; `answer`: what calls answer; `event`: events and pages of them;
//! * `maintenance`: what administrators have done with a store;
//! * `problem`: error answers; `expected`, `percent`: texts in addresses; `json`: strict reading and plain writing.

pub mod answer;
pub mod event;
mod expected;
pub mod json;
pub mod maintenance;
pub mod percent;
pub mod problem;
pub mod request;

use std::borrow::Cow;

pub use expected::{EXPECTED_RULE, Expected};

/// Shows a text from a request in quotes, shortened to about 60 bytes.
#[must_use]
pub fn shown(text: &str) -> String {
    format!("{:?}", shortened(text, 60))
}

/// Returns the text if it has at most `bytes_max` bytes, else its beginning and `…`. The cut is between two characters,
/// and `…` is not counted.
#[must_use]
pub fn shortened(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..text.floor_char_boundary(bytes_max)]))
}
