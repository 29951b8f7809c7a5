//! Events from arguments and from lines of JSON on standard input.
//!
//! Why: an id is made here for every event that has none, before anything is sent, so that a lost
//! answer can be asked for again without storing anything twice.

use std::io::BufRead;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gesta_core::{EventData, EventId, EventType, Tag, Tags};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::args::StreamAppend;
use crate::exit::{Failure, Outcome};

/// Longest line that is read: an event of 16 MiB in base64, with room for its other fields.
const LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// An event as users write it, with the fields of the HTTP API.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: Option<uuid::Uuid>,
    #[serde(rename = "type")]
    event_type: String,
    #[serde(default, deserialize_with = "even_null")]
    data: Option<Box<RawValue>>,
    data_base64: Option<String>,
    metadata: Option<Box<RawValue>>,
    #[serde(default)]
    tags: Vec<String>,
}

/// `null` is data like any other, not the absence of data.
fn even_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

/// The event that the arguments describe, if there is a `--type`.
pub(crate) fn from_arguments(args: &StreamAppend) -> Outcome<Option<EventData>> {
    let Some(event_type) = args.event_type.clone() else {
        return Ok(None);
    };
    let data = args.data.as_deref().unwrap_or_default();
    check_json("--data", data)?;
    let metadata = args.metadata.as_deref().unwrap_or("");
    if !metadata.is_empty() {
        check_json("--metadata", metadata)?;
    }
    Ok(Some(
        EventData::json(event_type, data.to_owned())
            .with_id(args.id.unwrap_or_else(EventId::random))
            .with_metadata(metadata.to_owned())
            .with_tags(Tags::new(args.tags.clone())?),
    ))
}

fn check_json(option: &str, text: &str) -> Outcome {
    serde_json::from_str::<&RawValue>(text)
        .map(|_| ())
        .map_err(|error| Failure::usage(format!("{option} must be JSON: {error}")))
}

/// Reads events line by line; empty lines are skipped.
pub(crate) struct Lines<R> {
    from: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// Lines of `from`.
    pub(crate) fn new(from: R) -> Self {
        Self { from, number: 0 }
    }

    /// The next event; `None` at the end.
    pub(crate) fn next(&mut self) -> Outcome<Option<EventData>> {
        loop {
            let mut line = Vec::new();
            let read =
                std::io::Read::take(&mut self.from, LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if read as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
                return Err(self.refuse(&format!("is longer than {LINE_BYTES_MAX} bytes")));
            }
            if !line.trim_ascii().is_empty() {
                return self.event(&line).map(Some);
            }
        }
    }

    fn event(&self, line: &[u8]) -> Outcome<EventData> {
        let line: Line =
            serde_json::from_slice(line).map_err(|error| self.refuse(&error.to_string()))?;
        let refuse = |error: gesta_core::Error| self.refuse(&error.to_string());
        let event_type = EventType::new(line.event_type).map_err(refuse)?;
        let event = match (line.data, line.data_base64) {
            (Some(_), Some(_)) => return Err(self.refuse("has both data and data_base64")),
            (Some(data), None) => EventData::json(event_type, data.get().to_owned()),
            (None, Some(text)) => {
                let bytes = STANDARD
                    .decode(text)
                    .map_err(|error| self.refuse(&format!("data_base64: {error}")))?;
                EventData::binary(event_type, bytes)
            }
            (None, None) => return Err(self.refuse("has neither data nor data_base64")),
        };
        let tags: Result<Vec<Tag>, _> = line.tags.into_iter().map(Tag::new).collect();
        Ok(event
            .with_id(line.id.map_or_else(EventId::random, EventId))
            .with_metadata(
                line.metadata
                    .map(|json| json.get().to_owned())
                    .unwrap_or_default(),
            )
            .with_tags(tags.and_then(Tags::new).map_err(refuse)?))
    }

    fn refuse(&self, why: &str) -> Failure {
        Failure::usage(format!("line {} of standard input: {why}", self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(text: &str) -> Outcome<Option<EventData>> {
        Lines::new(text.as_bytes()).next()
    }

    #[test]
    fn data_stays_as_it_was_written() {
        let event =
            first("\n{\"type\":\"a\",\"data\":{\"x\": 1.0,  \"y\":[ ]},\"tags\":[\"t\"]}\n")
                .expect("valid")
                .expect("one event");
        assert_eq!(event.data, r#"{"x": 1.0,  "y":[ ]}"#);
        assert!(event.id.is_some());
        let null = first(r#"{"type":"a","data":null}"#)
            .expect("valid")
            .expect("one event");
        assert_eq!(null.data, "null");
        assert!(first("\n \n").expect("valid").is_none());
    }

    #[test]
    fn wrong_lines_are_refused_with_their_number() {
        for bad in [
            "{",
            "[]",
            r#"{"data":1}"#,
            r#"{"type":"a"}"#,
            r#"{"type":"","data":1}"#,
            r#"{"type":"a","data":1,"data_base64":"AA=="}"#,
            r#"{"type":"a","data_base64":"?"}"#,
            r#"{"type":"a","data":1,"colour":2}"#,
            r#"{"type":"a","data":1,"id":"x"}"#,
            r#"{"type":"a","data":1,"tags":["t","t"]}"#,
        ] {
            let mut lines = Lines::new(bad.as_bytes());
            let failure = lines.next().expect_err(bad);
            assert!(
                failure.to_string().starts_with("line 1 of standard input"),
                "{failure}"
            );
        }
        assert!(first("\u{0}").is_err());
        assert!(
            Lines::new(&b"{\"type\":\"\xff\",\"data\":1}"[..])
                .next()
                .is_err()
        );
    }
}
