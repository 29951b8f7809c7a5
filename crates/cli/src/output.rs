//! Writes data to standard output: for people, or one JSON object per line.
//!
//! Why here: every command shows events, places and summaries in the same way.
//! Invariants: nothing but data is written to standard output; a closed pipe ends the command
//! quietly; text of events cannot drive the terminal (control characters are made visible).
//! Not here: what is said about the work, which goes to standard error.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Stdout, Write};
use std::os::fd::AsFd;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gesta_core::{Checkpoint, ContentType, RecordedEvent};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::io::Interest;
use tokio::net::unix::pipe;

use crate::args::OutputFormat;
use crate::exit::{Failure, Outcome};

/// The buffered standard output.
pub(crate) struct Output<W: Write = BufWriter<Stdout>> {
    format: OutputFormat,
    to: W,
}

impl Output {
    /// Returns standard output in this form.
    pub(crate) fn stdout(format: OutputFormat) -> Self {
        Self {
            format,
            to: BufWriter::with_capacity(64 * 1024, io::stdout()),
        }
    }
}

impl<W: Write> Output<W> {
    /// Writes `record` as a line of JSON, or the text that `pretty` makes of it.
    pub(crate) fn record<T: Serialize>(
        &mut self,
        record: &T,
        pretty: impl FnOnce(&T) -> String,
    ) -> Outcome {
        match self.format {
            OutputFormat::Json => {
                serde_json::to_writer(&mut self.to, record).map_err(io::Error::from)?;
                self.to.write_all(b"\n")?;
            }
            OutputFormat::Pretty => {
                let text = pretty(record);
                self.to.write_all(text.as_bytes())?;
                if !text.ends_with('\n') {
                    self.to.write_all(b"\n")?;
                }
            }
        }
        Ok(())
    }

    /// Writes an event. `checkpoint` is the place after it, from which reading can go on.
    pub(crate) fn event(
        &mut self,
        event: &RecordedEvent,
        checkpoint: Option<&Checkpoint>,
    ) -> Outcome {
        self.record(&EventRecord::new(event, checkpoint), |_| {
            pretty_event(event)
        })
    }

    /// Writes a line for people, such as the heading of a table. With JSON it writes nothing.
    pub(crate) fn heading(&mut self, line: &str) -> Outcome {
        if self.format == OutputFormat::Pretty {
            writeln!(self.to, "{line}")?;
        }
        Ok(())
    }

    /// Writes a text as it is, in either form.
    pub(crate) fn text(&mut self, text: &str) -> Outcome {
        Ok(self.to.write_all(text.as_bytes())?)
    }

    /// Hands everything that is buffered to the reader.
    pub(crate) fn flush(&mut self) -> Outcome {
        Ok(self.to.flush()?)
    }
}

/// Does work whose only use is what it writes, and ends it as soon as the reader of standard output is gone: who
/// follows
/// a stream would otherwise notice that only when the next event comes.
pub(crate) async fn until_reader_gone(work: impl Future<Output = Outcome>) -> Outcome {
    tokio::select! {
        biased;
        outcome = work => outcome,
        () = reader_gone() => Err(Failure::ClosedPipe),
    }
}

/// Waits until the reader of standard output has closed it. Never ends if standard output is a file.
async fn reader_gone() {
    // Another handle of the same pipe, which is only watched. Neither a file can be watched, nor one that is closed.
    let handle = io::stdout().as_fd().try_clone_to_owned();
    match handle.and_then(pipe::Sender::from_owned_fd_unchecked) {
        Ok(watched) => drop(watched.ready(Interest::ERROR).await),
        Err(_) => std::future::pending().await,
    }
}

/// An event in JSON, with the fields of the HTTP API.
#[derive(Serialize)]
struct EventRecord<'a> {
    stream: &'a str,
    revision: u64,
    log: u16,
    position: u64,
    id: uuid::Uuid,
    #[serde(rename = "type")]
    event_type: &'a str,
    created: String,
    content_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata_base64: Option<String>,
    tags: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<String>,
}

impl<'a> EventRecord<'a> {
    fn new(event: &'a RecordedEvent, checkpoint: Option<&Checkpoint>) -> Self {
        let data = (event.content_type == ContentType::Json)
            .then(|| json_on_one_line(&event.data))
            .flatten();
        let metadata = json_on_one_line(&event.metadata);
        Self {
            stream: event.stream.as_str(),
            revision: event.revision.0,
            log: event.log.0,
            position: event.position.0,
            id: event.id.0,
            event_type: event.event_type.as_str(),
            created: event.created.to_string(),
            content_type: event.content_type.as_str(),
            data_base64: data.is_none().then(|| STANDARD.encode(&event.data)),
            data,
            metadata_base64: (metadata.is_none() && !event.metadata.is_empty())
                .then(|| STANDARD.encode(&event.metadata)),
            metadata,
            tags: event
                .tags
                .as_slice()
                .iter()
                .map(|tag| tag.as_str())
                .collect(),
            checkpoint: checkpoint.map(Checkpoint::to_string),
        }
    }
}

/// Returns the JSON text on one line: its line breaks, which JSON allows only between tokens, become blanks. Returns
/// `None` if the text is no JSON.
fn json_on_one_line(bytes: &[u8]) -> Option<Box<RawValue>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let line = if text.contains(['\n', '\r']) {
        text.replace(['\n', '\r'], " ")
    } else {
        text.to_owned()
    };
    RawValue::from_string(line.trim().to_owned()).ok()
}

fn pretty_event(event: &RecordedEvent) -> String {
    let mut text = format!(
        "{}@{}  {}  {}  position {}",
        event.stream, event.revision, event.event_type, event.created, event.position
    );
    if event.log.0 != 0 {
        let _ = write!(text, " of log {}", event.log);
    }
    for tag in event.tags.as_slice() {
        let _ = write!(text, "  #{tag}");
    }
    text.push('\n');
    if event.content_type == ContentType::Json {
        indented(&mut text, "", &event.data);
    } else {
        match printable(&event.data) {
            Some(words) => indented(&mut text, "text ", words.as_bytes()),
            None => _ = writeln!(text, "    base64 {}", STANDARD.encode(&event.data)),
        }
    }
    if !event.metadata.is_empty() {
        indented(&mut text, "metadata ", &event.metadata);
    }
    text
}

/// Returns binary data as text if people can read it, such as the target of a link.
fn printable(data: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(data).ok()?;
    (!text.contains(char::is_control)).then_some(text)
}

fn indented(text: &mut String, label: &str, bytes: &[u8]) {
    for line in String::from_utf8_lossy(bytes).lines() {
        let _ = writeln!(text, "    {label}{}", visible(line));
    }
}

/// Returns the text with its control characters made visible.
pub(crate) fn visible(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let hidden = c.is_control() && c != '\t';
            let shown = hidden.then(|| c.escape_default());
            let plain = (!hidden).then_some(c);
            shown.into_iter().flatten().chain(plain)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::{EventId, EventType, LogId, Position, Revision, StreamId, Tags, Timestamp};

    fn event(data: &str) -> RecordedEvent {
        RecordedEvent {
            stream: StreamId::new("cart-1").expect("valid"),
            revision: Revision(3),
            log: LogId(0),
            position: Position(9),
            id: EventId(uuid::Uuid::from_u128(5)),
            event_type: EventType::new("added").expect("valid"),
            created: Timestamp(0),
            content_type: ContentType::Json,
            data: data.to_owned().into(),
            metadata: Vec::new().into(),
            tags: Tags::NONE,
        }
    }

    fn written(format: OutputFormat, event: &RecordedEvent) -> String {
        let mut output = Output {
            format,
            to: Vec::new(),
        };
        output.event(event, None).expect("written");
        String::from_utf8(output.to).expect("text")
    }

    #[test]
    fn an_event_is_one_line_of_json_whatever_its_data() {
        let line = written(
            OutputFormat::Json,
            &event("{\n \"a\": 1.50,\r\n \"b\": \"x\\n\"}"),
        );
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(
            line.contains(r#""data":{  "a": 1.50,   "b": "x\n"}"#),
            "{line}"
        );
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["stream"], "cart-1");
        assert_eq!(value["created"], "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn data_that_is_no_json_is_shown_in_base64() {
        let value: serde_json::Value =
            serde_json::from_str(&written(OutputFormat::Json, &event("{"))).expect("JSON");
        assert_eq!(value["data_base64"], "ew==");
        assert!(value.get("data").is_none());
    }

    #[test]
    fn binary_data_that_people_can_read_are_shown_as_text() {
        let mut event = event("3@cart-1");
        event.content_type = ContentType::Binary;
        assert!(written(OutputFormat::Pretty, &event).contains("    text 3@cart-1\n"));
        let value: serde_json::Value =
            serde_json::from_str(&written(OutputFormat::Json, &event)).expect("JSON");
        assert_eq!(value["data_base64"], "M0BjYXJ0LTE=");
        event.data = vec![0, 1].into();
        assert!(written(OutputFormat::Pretty, &event).contains("    base64 AAE=\n"));
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let text = written(OutputFormat::Pretty, &event("\"\u{1b}[2J\""));
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(text.contains("\\u{1b}[2J"), "{text:?}");
    }
}
