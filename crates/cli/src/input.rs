//! Reads events from arguments and from lines of JSON on standard input.
//!
//! Why: an id is made here for every event that has none, before anything is sent, so that an append whose answer was
//! lost can be sent again without storing anything twice.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gesta_core::{EventData, EventId, EventType, Revision, StreamId, Tag, Tags};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use xxhash_rust::xxh3::Xxh3;

use crate::args::StreamAppend;
use crate::exit::{Failure, Outcome};
use crate::output::say;

/// The longest line that is read, in bytes: an event of 16 MiB in base64, and its other fields.
const LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How many events are read in advance.
const READ_AHEAD_EVENTS: usize = 64;

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
    metadata_base64: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    /// The stream in which an event that was read stood. Only `gesta all import` uses it.
    stream: Option<String>,
    content_type: Option<String>,
    /// The revision at which an event that was read stood. The store gives it another one, if need be.
    revision: Option<u64>,
    /// The fields that the store makes anew. They are accepted so that what was read can be imported.
    #[serde(rename = "log")]
    _log: Option<IgnoredAny>,
    /// The position at which an event that was read stood, as the revision.
    position: Option<u64>,
    #[serde(rename = "created")]
    _created: Option<IgnoredAny>,
    #[serde(rename = "checkpoint")]
    _checkpoint: Option<IgnoredAny>,
}

/// The event of one line.
pub(crate) struct LineEvent {
    /// The number of the line; the first is 1.
    pub(crate) line: u64,
    /// The stream that the line names, if it names one.
    pub(crate) stream: Option<StreamId>,
    /// The revision that the line tells, if it tells one.
    pub(crate) revision: Option<Revision>,
    /// The position that the line tells, if it tells one.
    pub(crate) position: Option<u64>,
    /// The event, which always has an id.
    pub(crate) event: EventData,
}

/// How ids are made for events that come without one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// Each id is random.
    Random,
    /// An id is made of the text up to and including the line, so the same text gives the same ids.
    OfText,
}

/// Reads a field in which `null` is a value and not the absence of data.
fn even_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

/// Makes the event that the arguments describe, if there is a `--type`.
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

/// Reads events line by line. Empty lines are skipped.
struct Lines<R> {
    from: R,
    number: u64,
    ids: Ids,
    /// The hash of all text so far.
    hash: u128,
}

impl<R: BufRead> Lines<R> {
    /// Reads lines of `from`.
    fn new(from: R, ids: Ids) -> Self {
        Self {
            from,
            number: 0,
            ids,
            hash: 0,
        }
    }

    /// Returns how many lines have been read.
    fn number(&self) -> u64 {
        self.number
    }

    /// Passes over lines, or over all lines if there are fewer.
    fn skip(&mut self, lines: u64) -> Outcome {
        while self.number < lines && self.line()?.is_some() {}
        Ok(())
    }

    /// Reads the next event; `None` at the end.
    fn next(&mut self) -> Outcome<Option<LineEvent>> {
        while let Some(line) = self.line()? {
            if !line.trim_ascii().is_empty() {
                return self.event(&line).map(Some);
            }
        }
        Ok(None)
    }

    fn line(&mut self) -> Outcome<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let read =
            std::io::Read::take(&mut self.from, LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        // Some editors and exports begin a text with the byte order mark of UTF-8.
        if self.number == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        if read as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            return Err(self.refuse(&format!("is longer than {LINE_BYTES_MAX} bytes")));
        }
        if self.ids == Ids::OfText {
            let mut hasher = Xxh3::new();
            hasher.update(&self.hash.to_le_bytes());
            hasher.update(line.trim_ascii_end());
            self.hash = hasher.digest128();
        }
        Ok(Some(line))
    }

    fn id(&self) -> EventId {
        match self.ids {
            Ids::Random => EventId::random(),
            Ids::OfText => {
                let bytes = self.hash.to_be_bytes();
                let custom = uuid::Builder::from_bytes(bytes)
                    .with_variant(uuid::Variant::RFC4122)
                    .with_version(uuid::Version::Custom);
                EventId(custom.into_uuid())
            }
        }
    }

    fn event(&self, line: &[u8]) -> Outcome<LineEvent> {
        let line: Line = serde_json::from_slice(line.trim_ascii_end())
            .map_err(|error| self.refuse(&wrong_json(line, &error)))?;
        let refuse = |error: gesta_core::Error| self.refuse(&error.to_string());
        let event_type = EventType::new(line.event_type).map_err(refuse)?;
        let is_json = match line.content_type.as_deref() {
            None => line.data.is_some(),
            Some("application/json") => true,
            Some("application/octet-stream") if line.data.is_none() => false,
            Some(other) => {
                return Err(self.refuse(&format!(
                    "has content_type {other:?}, which does not go with its data: application/json goes with data, and \
                     application/octet-stream with data_base64"
                )));
            }
        };
        let data = match (line.data, line.data_base64) {
            (Some(_), Some(_)) => {
                return Err(
                    self.refuse("has both data and data_base64: one of them must be left out")
                );
            }
            (Some(data), None) => data.get().as_bytes().to_vec(),
            (None, Some(text)) => self.decode("data_base64", &text)?,
            (None, None) => {
                return Err(
                    self.refuse("has neither data nor data_base64: one of them must be there")
                );
            }
        };
        let event = if is_json {
            EventData::json(event_type, data)
        } else {
            EventData::binary(event_type, data)
        };
        let metadata = match (line.metadata, line.metadata_base64) {
            (Some(_), Some(_)) => {
                return Err(self.refuse(
                    "has both metadata and metadata_base64: one of them must be left out",
                ));
            }
            (Some(json), None) => json.get().as_bytes().to_vec(),
            (None, Some(text)) => self.decode("metadata_base64", &text)?,
            (None, None) => Vec::new(),
        };
        let tags: Result<Vec<Tag>, _> = line.tags.into_iter().map(Tag::new).collect();
        let stream = line.stream.map(StreamId::new).transpose().map_err(refuse)?;
        Ok(LineEvent {
            line: self.number,
            stream,
            revision: line.revision.map(Revision),
            position: line.position,
            event: event
                .with_id(line.id.map_or_else(|| self.id(), EventId))
                .with_metadata(metadata)
                .with_tags(tags.and_then(Tags::new).map_err(refuse)?),
        })
    }

    fn decode(&self, field: &str, text: &str) -> Outcome<Vec<u8>> {
        // Many programs break base64 into lines of 76 characters.
        let whole: String = text.split_ascii_whitespace().collect();
        STANDARD
            .decode(whole)
            .map_err(|error| self.refuse(&format!("{field}: {error}")))
    }

    fn refuse(&self, why: &str) -> Failure {
        refuse_line(self.number, why)
    }
}

/// Says what is wrong with a line. Its number is told by another, so of the place only the column is.
fn wrong_json(line: &[u8], error: &serde_json::Error) -> String {
    let found = match line.trim_ascii().first() {
        Some(b'{') => {
            let text = error.to_string();
            let place = format!(" at line {} column {}", error.line(), error.column());
            let text = match text.strip_suffix(&place) {
                Some(text) => format!("{text}, at column {}", error.column()),
                None => text,
            };
            return match text.starts_with("unknown field `sequence`") {
                true => {
                    format!("{text}; a file of such lines is for `gesta import FILE --kind lines`")
                }
                false => text,
            };
        }
        Some(b'[') => "a list",
        Some(b'"') => "a text",
        _ => "something else",
    };
    format!(
        "must be one event, a JSON object on one line, such as {{\"type\": \"placed\", \"data\": {{\"total\": 1}}}}; found {found}"
    )
}

/// Makes the failure for a line that cannot be accepted.
pub(crate) fn refuse_line(line: u64, why: &str) -> Failure {
    Failure::usage(format!("line {line} of the input: {why}"))
}

/// Returns standard input. Whoever sits at a terminal is told what is waited for.
fn typed() -> std::io::Stdin {
    let input = std::io::stdin();
    if input.is_terminal() {
        say!("reading events from the terminal, one JSON object per line; Ctrl-D ends them");
    }
    input
}

/// Events that a thread reads in advance. If a task read them itself, it could not be stopped while it waits for a
/// terminal or a slow pipe.
pub(crate) struct Feed {
    /// The first event, if it was looked at and not taken yet.
    first: Option<LineEvent>,
    events: mpsc::Receiver<Outcome<LineEvent>>,
    lines: Arc<AtomicU64>,
}

impl Feed {
    /// Starts to read events from a file, or from standard input. The first `skip` lines are passed over.
    pub(crate) fn start(file: Option<File>, ids: Ids, skip: u64) -> Outcome<Self> {
        let (sender, events) = mpsc::channel(READ_AHEAD_EVENTS);
        let lines = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lines);
        let read = move || {
            let from: Box<dyn BufRead> = match file {
                Some(file) => Box::new(BufReader::new(file)),
                None => Box::new(BufReader::new(typed())),
            };
            let mut lines = Lines::new(from, ids);
            let mut next = lines.skip(skip).and_then(|()| lines.next());
            loop {
                counted.store(lines.number(), Ordering::Release);
                let more = matches!(next, Ok(Some(_)));
                let Some(item) = next.transpose() else { break };
                // A receiver that is gone has stopped the command.
                if sender.blocking_send(item).is_err() || !more {
                    break;
                }
                next = lines.next();
            }
        };
        std::thread::Builder::new()
            .name("gesta-input".into())
            .spawn(read)?;
        Ok(Self {
            first: None,
            events,
            lines,
        })
    }

    /// Returns the next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Outcome<Option<LineEvent>> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.events.recv().await.transpose(),
        }
    }

    /// Reads the first event, which stays the next one. Returns false if there is none.
    pub(crate) async fn begin(&mut self) -> Outcome<bool> {
        self.first = self.next().await?;
        Ok(self.first.is_some())
    }

    /// Returns the number of lines, once the end has come.
    pub(crate) fn lines(&self) -> u64 {
        self.lines.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(text: &str) -> Outcome<Option<EventData>> {
        let next = Lines::new(text.as_bytes(), Ids::Random).next()?;
        Ok(next.map(|line| line.event))
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
        let marked = first("\u{feff}{\"type\":\"a\",\"data\":1}").expect("valid");
        assert_eq!(marked.expect("one event").data, "1");
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
            let mut lines = Lines::new(bad.as_bytes(), Ids::Random);
            let failure = lines.next().err().expect(bad);
            assert!(
                failure.to_string().starts_with("line 1 of the input"),
                "{failure}"
            );
        }
        assert!(first("\u{0}").is_err());
        assert!(
            Lines::new(&b"{\"type\":\"\xff\",\"data\":1}"[..], Ids::Random)
                .next()
                .is_err()
        );
    }

    /// Goal: an import that is repeated gives its events the same ids, and equal lines still differ.
    #[test]
    fn ids_of_text_are_the_same_each_time() {
        let ids = |text: &str| {
            let mut lines = Lines::new(text.as_bytes(), Ids::OfText);
            std::iter::from_fn(|| lines.next().expect("valid").map(|line| line.event.id))
                .collect::<Vec<_>>()
        };
        let line = "{\"type\":\"a\",\"data\":1}\n";
        let three = ids(&line.repeat(3));
        assert_eq!(three, ids(&line.repeat(3)));
        assert_eq!(three[..2], ids(&line.repeat(2)), "the end says nothing");
        assert!(three[0] != three[1] && three[1] != three[2]);
        assert_ne!(three[1], ids(&format!("\n{line}{line}"))[1]);
    }
}
