//! Writes data to standard output: for people, or one JSON object per line.
//!
//! Why here: every command shows events, places and summaries in the same way.
//! Invariants: nothing but data is written to standard output; a closed pipe ends the command quietly; no text of
//! others, such as data of events, names, and what a server answers, drives the terminal or makes one text look like
//! another: all that people are shown is made printable here, so that no command can forget it. JSON is as it is in a
//! file or a pipe, and has escapes for the same characters on a terminal.
//! Here is also [`say!`], by which all is said about the work, on standard error, and the line that shows how far a
//! long command has come (`progress`).

mod progress;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::fd::AsFd;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gesta_core::{Checkpoint, ContentType, RecordedEvent, printable};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::io::Interest;
use tokio::net::unix::pipe;

use crate::args::OutputFormat;
use crate::exit::{Failure, Outcome};
use crate::named_store;

pub(crate) use self::progress::{ProgressLine, copied, humane, rate};

/// The buffered standard output.
pub(crate) struct Output<W: Write = BufWriter<Stdout>> {
    format: OutputFormat,
    is_terminal: bool,
    /// What the command has done, if it said so: what is told if the answer cannot be written.
    done: Option<String>,
    to: W,
}

impl Output {
    /// Returns standard output in this form.
    pub(crate) fn stdout(format: OutputFormat) -> Self {
        Self {
            format,
            is_terminal: io::stdout().is_terminal(),
            done: None,
            to: BufWriter::with_capacity(64 * 1024, io::stdout()),
        }
    }
}

impl<W: Write> Output<W> {
    /// Notes what the command has done, before its answer is written. If the answer cannot be written, this is told
    /// instead, so that nobody takes the command for one that did nothing, and gives it again.
    pub(crate) fn has_done(&mut self, done: impl Into<String>) {
        self.done = Some(done.into());
    }

    /// Tells whether data are written for people, and not as JSON.
    fn is_for_people(&self) -> bool {
        self.format == OutputFormat::Pretty
    }

    /// Writes `record` as a line of JSON, or the text that `pretty` makes of it.
    pub(crate) fn record<T: Serialize>(
        &mut self,
        record: &T,
        pretty: impl FnOnce(&T) -> String,
    ) -> Outcome {
        let written = self.try_record(record, pretty);
        self.told(written)
    }

    fn try_record<T: Serialize>(
        &mut self,
        record: &T,
        pretty: impl FnOnce(&T) -> String,
    ) -> io::Result<()> {
        match self.format {
            OutputFormat::Json if self.is_terminal => {
                let text = serde_json::to_string(record)?;
                self.to.write_all(escaped(&text).as_bytes())?;
                self.to.write_all(b"\n")
            }
            OutputFormat::Json => {
                serde_json::to_writer(&mut self.to, record)?;
                self.to.write_all(b"\n")
            }
            OutputFormat::Pretty => {
                let text = pretty(record);
                self.to.write_all(printable(&text).as_bytes())?;
                match text.ends_with('\n') {
                    true => Ok(()),
                    false => self.to.write_all(b"\n"),
                }
            }
        }
    }

    /// Makes the outcome of what was written: who reads it sees the cause, and what is done nevertheless.
    fn told(&self, written: io::Result<()>) -> Outcome {
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => {
                let done = self.done.as_deref();
                let done = done.unwrap_or("what the command has done so far stays done");
                Failure::other(format!(
                    "standard output cannot be written: {error}; {done}"
                ))
            }
        })
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
        if !self.is_for_people() {
            return Ok(());
        }
        let written = writeln!(self.to, "{}", printable(line));
        self.told(written)
    }

    /// Writes a text of Gesta itself as it is, in either form.
    pub(crate) fn text(&mut self, text: &str) -> Outcome {
        let written = self.to.write_all(text.as_bytes());
        self.told(written)
    }

    /// Writes a JSON text as it is, in either form; on a terminal with escapes for what does not show.
    pub(crate) fn json_text(&mut self, text: &str) -> Outcome {
        match self.is_terminal {
            true => self.text(&escaped(text)),
            false => self.text(text),
        }
    }

    /// Hands everything that is buffered to the reader.
    pub(crate) fn flush(&mut self) -> Outcome {
        let written = self.to.flush();
        self.told(written)
    }
}

/// Does work whose only use is what it writes, and ends it as soon as the reader of standard output is gone: who
/// follows a stream would otherwise notice that only when the next event comes.
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
        match words(&event.data) {
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
fn words(data: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(data).ok()?;
    (!text.contains(char::is_control)).then_some(text)
}

fn indented(text: &mut String, label: &str, bytes: &[u8]) {
    for line in String::from_utf8_lossy(bytes).lines() {
        let _ = writeln!(text, "    {label}{line}");
    }
}

/// Returns a text of others as it stands in a line with other texts: its line breaks are made visible too.
pub(crate) fn visible(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// Returns the same JSON with escapes for the characters that do not show, or that change how others are shown. Outside
/// of its strings JSON has none of them.
pub(crate) fn escaped(json: &str) -> Cow<'_, str> {
    let Cow::Owned(_) = printable(json) else {
        return Cow::Borrowed(json);
    };
    let mut shown = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match printable(c.encode_utf8(&mut [0; 4])) {
            // A carriage return stands between tokens.
            Cow::Owned(_) if c != '\r' => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(shown, "\\u{unit:04x}");
                }
            }
            _ => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Returns how many of something there are, in words.
pub(crate) fn count(number: u64, one: &str) -> String {
    counted(number, one, &format!("{one}s"))
}

/// Returns a number with what is said of one thing or of several, such as *1 event is* and *2 events are*.
pub(crate) fn counted(number: u64, one: &str, several: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        number => format!("{number} {several}"),
    }
}

/// Says something about the work on standard error, which text of others cannot drive either.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::output::said(&std::fmt::format(format_args!($($text)*)))
    };
}
pub(crate) use say;

/// Says a text, as [`say!`] does. Commands that it names get the store of this one.
pub(crate) fn said(text: &str) {
    let text = named_store::completed(text);
    progress::above(|| eprintln!("{}", in_one_piece(&text)));
}

/// Returns a text as it is said: the lines after the first one are set back, so that a text of others does not look
/// like another thing that is said.
fn in_one_piece(text: &str) -> String {
    printable(text).replace('\n', "\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::{
        EventId, EventType, LogId, Position, Revision, StreamId, Tag, Tags, Timestamp,
    };

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

    fn output(format: OutputFormat, is_terminal: bool) -> Output<Vec<u8>> {
        Output {
            format,
            is_terminal,
            done: None,
            to: Vec::new(),
        }
    }

    fn written(format: OutputFormat, event: &RecordedEvent) -> String {
        let mut output = output(format, false);
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

    /// What happened: characters above U+007F that drive a terminal or turn text around were shown as they are, and
    /// some commands forgot those below. Goal: whatever a command makes of a record, a terminal gets nothing of it that
    /// does not show; JSON means the same, and in a pipe it is as it was.
    #[test]
    fn no_text_of_others_drives_the_terminal() {
        let hostile = "\u{1b}]0;x\u{7}\u{9b}31m\u{202e}\u{200b}\r.";
        let in_json = "\u{7f}\u{9b}31m\u{202e}\u{200b}\u{e0041}.";
        let shows = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).expect("text");
            assert!(matches!(printable(text), Cow::Borrowed(_)), "{text:?}");
        };
        let mut pretty = output(OutputFormat::Pretty, false);
        pretty
            .record(&hostile, |text| format!("{text}\nb"))
            .expect("written");
        pretty.heading(hostile).expect("written");
        let mut event = event(&format!("{{\"a\":\"{hostile}\"}}"));
        event.tags = Tags::new(vec![Tag::new("t\u{202e}").expect("a tag")]).expect("tags");
        pretty.event(&event, None).expect("written");
        shows(&pretty.to);
        assert!(pretty.to.contains(&b'\n'));

        let mut json = output(OutputFormat::Json, true);
        json.record(&in_json, |_| String::new()).expect("written");
        json.json_text(&format!("{{\n\"a\":\"{in_json}\"}}"))
            .expect("written");
        shows(&json.to);
        let text = String::from_utf8(json.to).expect("text");
        let (first, second) = text.split_once('\n').expect("a line");
        let first: String = serde_json::from_str(first).expect("JSON");
        let second: serde_json::Value = serde_json::from_str(second).expect("JSON");
        assert_eq!((first.as_str(), &second["a"]), (in_json, &in_json.into()));

        let mut piped = output(OutputFormat::Json, false);
        piped.record(&in_json, |_| String::new()).expect("written");
        let text = String::from_utf8(piped.to).expect("text");
        assert!(text.contains(in_json), "{text:?}");
    }

    /// What happened: a database that answers with line breaks wrote whole lines of its own below an error.
    #[test]
    fn what_others_say_stands_in_one_piece() {
        let said = in_one_piece("error: away\nerror: all is lost\r\n\u{1b}[2J");
        assert_eq!(
            said,
            "error: away\n  error: all is lost\\u{d}\n  \\u{1b}[2J"
        );
    }

    /// Goal: nothing is said past what makes it printable.
    #[test]
    fn everything_is_said_by_say() {
        fn sources(folder: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                match path.is_dir() {
                    true => sources(&path, found),
                    false => found.push(path),
                }
            }
        }
        let mut files = Vec::new();
        sources(
            std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")),
            &mut files,
        );
        for file in files.iter().filter(|file| !file.ends_with("output.rs")) {
            let text = std::fs::read_to_string(file).expect("text");
            for written in ["eprint!(", "eprintln!(", " print!(", "println!("] {
                assert!(!text.contains(written), "{}: {written}", file.display());
            }
        }
    }
}
