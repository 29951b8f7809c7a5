//! What administrators have a server do with its store: check it, scavenge it, switch virtual streams on or off.
//!
//! Why lines: a check of a large store lasts for many minutes. Lines that tell how far it is keep the connection alive,
//! and somebody who waits informed; the last line is the result, or the problem.
//! Invariant: an answer without a last line is no result.

use std::fmt;

use gesta_core::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::answer::unreadable;
use crate::json;
use crate::problem::Document;

/// The media type of the lines.
pub const LINES_MEDIA_TYPE: &str = "application/x-ndjson";

/// How far a check or a scavenge has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// How many events were read, or removed.
    pub events: u64,
    /// How many streams with metadata were looked at; 0 for a check.
    pub streams: u64,
}

/// One broken promise that a check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What is broken.
    pub kind: String,
    /// The number of the log in which it is broken.
    pub log: u16,
    /// The position of the event that is concerned.
    pub position: Option<i64>,
    /// The name of the stream that is concerned.
    pub stream: Option<String>,
    /// The number of the row of that stream, for one whose name cannot be read.
    pub stream_row: Option<i64>,
    /// The revision of the event that is concerned.
    pub revision: Option<i64>,
    /// What is wrong, with the values.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: log {}", self.kind, self.log)?;
        if let Some(position) = self.position {
            write!(f, ", position {position}")?;
        }
        match (&self.stream, self.stream_row) {
            (Some(name), _) => write!(f, ", stream {name}")?,
            (None, Some(row)) => write!(f, ", stream row {row}")?,
            (None, None) => {}
        }
        if let Some(revision) = self.revision {
            write!(f, ", revision {revision}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// The result of a check of the whole store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Whether nothing is wrong.
    pub healthy: bool,
    /// How many events were read.
    pub events: u64,
    /// How many findings there are, also those that are not listed.
    pub findings_total: u64,
    /// The first findings.
    pub findings: Vec<Finding>,
}

/// The result of a scavenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scavenged {
    /// Whether events were only counted, and nothing was removed.
    pub dry_run: bool,
    /// How many streams with metadata were looked at.
    pub streams: u64,
    /// Of how many streams something was removed, or would be.
    pub streams_changed: u64,
    /// How many streams have metadata that cannot be read; nothing of them was removed.
    pub streams_unreadable: u64,
    /// How many events were removed, or would be.
    pub events: u64,
    /// The bytes of data and metadata of these events.
    pub payload_bytes: u64,
}

/// Whether a store keeps virtual streams, and how far their entries are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualStreams {
    /// Whether virtual streams are switched on.
    pub on: bool,
    /// The position up to which entries are written.
    pub position: u64,
    /// The position of the last event.
    pub end: u64,
}

/// The request to switch virtual streams on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchVirtualStreams {
    /// Whether they are to be on.
    pub on: bool,
}

/// A line of an answer that lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line<T> {
    /// How far the work is.
    Progress(Progress),
    /// The result, which is the last line.
    Done(T),
    /// Why there is no result, which is the last line.
    Problem(Box<Document>),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Text<T> {
    Progress(Progress),
    Done(T),
    Problem(Box<RawValue>),
}

impl<T: Serialize> Line<T> {
    /// Writes the line, with its line break.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        match self {
            Line::Progress(progress) => json::value(&mut out, &Text::<T>::Progress(*progress)),
            Line::Done(done) => json::value(&mut out, &Text::Done(done)),
            Line::Problem(document) => {
                out.extend_from_slice(b"{\"problem\":");
                out.extend_from_slice(&document.to_json());
                out.push(b'}');
            }
        }
        out.push(b'\n');
        out
    }
}

impl<T: DeserializeOwned> Line<T> {
    /// Reads a line.
    ///
    /// # Errors
    /// `Corrupt` if the line has another form.
    pub fn read(line: &[u8]) -> Result<Self> {
        let wrong = || unreadable("a line has another form");
        let text: Text<T> =
            serde_json::from_slice(line).map_err(|error| wrong().caused_by(error))?;
        Ok(match text {
            Text::Progress(progress) => Line::Progress(progress),
            Text::Done(done) => Line::Done(done),
            Text::Problem(problem) => {
                let document = Document::read(problem.get().as_bytes()).ok_or_else(wrong)?;
                Line::Problem(Box::new(document))
            }
        })
    }
}

/// Makes the error that a problem in a last line stands for.
#[must_use]
pub fn error_of(problem: Document) -> Error {
    let detail = problem.detail.clone();
    match problem.into_error() {
        Some(kind) => Error::new(kind),
        None => Error::unavailable(format!("the server failed: {detail}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let scavenged = Scavenged {
            dry_run: true,
            streams: 3,
            streams_changed: 2,
            streams_unreadable: 1,
            events: 5,
            payload_bytes: 70,
        };
        let document = Document::new(problem::UNAVAILABLE, "the server \"is\" stopping");
        let lines = [
            Line::Progress(Progress {
                events: 7,
                streams: 1,
            }),
            Line::Done(scavenged),
            Line::Problem(Box::new(document)),
        ];
        for line in lines {
            let text = line.write();
            assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 1);
            assert_eq!(Line::read(&text).expect("readable"), line);
        }
        let done = br#"{"done":{"dry_run":true}}"#;
        for wrong in [&done[..], b"{}", b"", br#"{"problem":{}}"#] {
            assert!(Line::<Scavenged>::read(wrong).is_err());
        }
    }
}
