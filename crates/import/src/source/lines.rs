//! Lines: one JSON object for each event, from a file or from standard input.
//!
//! `{"stream": "cart-1", "type": "item-added", "data": {…}}`, and perhaps `sequence` (the number of the event in its
//! stream, from 0 or 1), `id` (UUID), `data_base64` instead of `data`, `metadata` or `metadata_base64`, `tags`, `time`
//! (RFC 3339). Without `sequence` the events of a stream are counted in their order. A file is read from its beginning
//! each time: what is there already is known by its number, and compared.
//!
//! A file that is followed can be rewritten, or another one can take its name. Both are looked for before lines are
//! read on, and end the reading with an error that can be tried again: the next reader begins at the beginning.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{Error, Result, Timestamp};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{PAGE_BYTES, PAGE_EVENTS, Page, Source};
use crate::digest;
use crate::event::{Place, SourceEvent};
use crate::options::Options;

/// The longest line, in bytes: an event of 16 MiB in base64, and its other fields.
const LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// How many of the last bytes that were read are compared before a followed file is read on.
const TAIL_BYTES: usize = 4 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    stream: String,
    sequence: Option<u64>,
    id: Option<uuid::Uuid>,
    #[serde(rename = "type")]
    event_type: String,
    #[serde(default, deserialize_with = "given")]
    data: Option<Box<RawValue>>,
    data_base64: Option<String>,
    metadata: Option<Box<RawValue>>,
    metadata_base64: Option<String>,
    tags: Option<Vec<String>>,
    time: Option<String>,
    #[serde(default)]
    deleted: bool,
}

/// Tells why a line is no event. What `gesta all read` prints has another command.
fn no_event(line: &[u8], error: &serde_json::Error) -> String {
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(line).unwrap_or_default();
    // An event of another system hardly has all of them.
    let mut printed = ["stream", "revision", "position", "checkpoint"].iter();
    match printed.all(|field| object.contains_key(*field)) {
        true => "is what `gesta all read` prints: `gesta all import FILE` takes it".to_owned(),
        false => format!("is no event: {error}"),
    }
}

/// Reads a value that is there, also null, which is JSON like any other.
fn given<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(from).map(Some)
}

/// A file of lines.
pub(super) struct Lines {
    name: String,
    reader: Arc<Mutex<Reader>>,
}

struct Reader {
    from: Box<dyn BufRead + Send>,
    number: u64,
    /// A line whose end has not come yet.
    partial: Vec<u8>,
    counted: HashMap<Arc<str>, u64>,
    /// Whether lines have numbers; the first line decides.
    numbered: Option<bool>,
    /// The file, if it is followed.
    followed: Option<Followed>,
    /// Whether the last line is whole although no line break ends it: nothing is written to the file any more.
    is_over: bool,
}

/// What tells whether a file is still the one that was read.
struct Followed {
    path: String,
    file: File,
    /// How many bytes were read.
    offset: u64,
    /// The last bytes before that.
    tail: Vec<u8>,
}

impl Followed {
    fn take(&mut self, read: &[u8]) {
        self.offset += read.len() as u64;
        self.tail.extend_from_slice(read);
        let surplus = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..surplus);
    }

    /// Tells whether another file has taken the name.
    ///
    /// # Errors
    /// `Unavailable` if what was read does not stand in the file any more.
    fn is_replaced(&self) -> Result<bool> {
        let failed = |error| Error::unavailable(format!("the source: {}: {error}", self.path));
        let own = self.file.metadata().map_err(failed)?;
        if !own.is_file() {
            // A pipe has no bytes to compare.
            return Ok(false);
        }
        let mut there = vec![0; self.tail.len()];
        let begin = self.offset.saturating_sub(self.tail.len() as u64);
        match self.file.read_exact_at(&mut there, begin) {
            Ok(()) if there == self.tail => {}
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
                return Err(failed(error));
            }
            _ => return Err(self.begins_again("was rewritten")),
        }
        match std::fs::metadata(&self.path) {
            Ok(named) => Ok((named.dev(), named.ino()) != (own.dev(), own.ino())),
            // Its name was taken away, and nothing has it yet.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    fn begins_again(&self, what: &str) -> Error {
        Error::unavailable(format!(
            "the source: {} {what}, so it is read from its beginning",
            self.path
        ))
    }
}

/// Tells whether there is a file that can be read as lines, without opening it.
pub(super) fn check(path: &str) -> Result<()> {
    if path == "-" {
        return Ok(());
    }
    let found = std::fs::metadata(path).and_then(|found| match found.is_dir() {
        true => Err(std::io::ErrorKind::IsADirectory.into()),
        false => Ok(()),
    });
    found.map_err(|error| no_file(path, &error))
}

fn no_file(path: &str, error: &std::io::Error) -> Error {
    Error::invalid("source", format!("must be a file: {path}: {error}"))
}

impl Lines {
    pub(super) fn open(options: &Options) -> Result<Self> {
        let name = options.url.clone();
        let mut followed = None;
        let from: Box<dyn BufRead + Send> = match name.as_str() {
            "-" => Box::new(BufReader::new(std::io::stdin())),
            path => {
                check(path)?;
                let wrong = |error| no_file(path, &error);
                let file = File::open(path).map_err(wrong)?;
                if options.follow {
                    followed = Some(Followed {
                        path: path.to_owned(),
                        file: file.try_clone().map_err(wrong)?,
                        offset: 0,
                        tail: Vec::new(),
                    });
                }
                Box::new(BufReader::with_capacity(256 * 1024, file))
            }
        };
        Ok(Self {
            name,
            reader: Arc::new(Mutex::new(Reader {
                from,
                number: 0,
                partial: Vec::new(),
                counted: HashMap::new(),
                numbered: None,
                is_over: followed.is_none(),
                followed,
            })),
        })
    }
}

impl Reader {
    /// Returns the next whole line; `None` at the present end.
    fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let room = LINE_BYTES_MAX.saturating_sub(self.partial.len() as u64);
        let before = self.partial.len();
        let read = (&mut self.from)
            .take(room)
            .read_until(b'\n', &mut self.partial);
        read.map_err(|error| Error::unavailable(format!("the source: {error}")))?;
        if let Some(followed) = &mut self.followed {
            followed.take(&self.partial[before..]);
        }
        let is_whole = self.partial.last() == Some(&b'\n');
        if !is_whole && self.partial.len() as u64 >= LINE_BYTES_MAX {
            return Err(self.refuse(&format!("is longer than {LINE_BYTES_MAX} bytes")));
        }
        // Somebody may be about to write the rest of the last line.
        if self.partial.is_empty() || (!is_whole && !self.is_over) {
            return Ok(None);
        }
        self.number += 1;
        let line = std::mem::take(&mut self.partial);
        Ok(Some(match self.number {
            1 => line
                .strip_prefix(b"\xef\xbb\xbf")
                .map(<[u8]>::to_vec)
                .unwrap_or(line),
            _ => line,
        }))
    }

    fn refuse(&self, why: &str) -> Error {
        Error::invalid(format!("line {} of the input", self.number), why)
    }

    fn event(&mut self, line: &[u8]) -> Result<SourceEvent> {
        if line.trim_ascii().first() == Some(&b'[') {
            return Err(self.refuse("must be one object per line, not a list"));
        }
        let line: Line =
            serde_json::from_slice(line).map_err(|error| self.refuse(&no_event(line, &error)))?;
        let is_numbered = line.sequence.is_some();
        if *self.numbered.get_or_insert(is_numbered) != is_numbered {
            return Err(
                self.refuse("must have a sequence if the first line has one, and none else")
            );
        }
        let key: Arc<str> = line.stream.into();
        let sequence = match line.sequence {
            Some(sequence) => sequence,
            None => {
                let counted = self.counted.entry(Arc::clone(&key)).or_insert(0);
                *counted += 1;
                *counted
            }
        };
        let bytes = |json: Option<Box<RawValue>>, base64: Option<String>, what: &str| match (
            json, base64,
        ) {
            (Some(_), Some(_)) => Err(self.refuse(&format!("has both {what} and {what}_base64"))),
            (Some(json), None) => Ok(Some(Bytes::copy_from_slice(json.get().as_bytes()))),
            (None, Some(text)) => {
                // Some databases break lines in base64.
                let text: Vec<u8> = text
                    .bytes()
                    .filter(|byte| !byte.is_ascii_whitespace())
                    .collect();
                let bytes = STANDARD.decode(text);
                bytes
                    .map(|bytes| Some(bytes.into()))
                    .map_err(|error| self.refuse(&format!("has {what}_base64: {error}")))
            }
            (None, None) => Ok(None),
        };
        // A query that prints both has null in the place of the other.
        let data = line
            .data
            .filter(|data| data.get() != "null" || line.data_base64.is_none());
        let data_is_json = data.is_some();
        let data = bytes(data, line.data_base64, "data")?
            .ok_or_else(|| self.refuse("has neither data nor data_base64"))?;
        let time = line.time.map(|text| {
            Timestamp::parse(&text).map_err(|_| {
                self.refuse(&format!(
                    "has a wrong time: must be RFC 3339, such as 2024-03-01T10:00:00Z, found {text:?}"
                ))
            })
        });
        let mut event = SourceEvent {
            sequence,
            place: Place {
                major: self.number,
                minor: 0,
            },
            id: line.id,
            event_type: Some(line.event_type),
            data,
            metadata: bytes(line.metadata, line.metadata_base64, "metadata")?.unwrap_or_default(),
            data_is_json,
            tags: line.tags.unwrap_or_default(),
            time: time.transpose()?,
            deleted: line.deleted,
            key,
            ..SourceEvent::default()
        };
        event.digest = Some(digest::of_event(&event));
        Ok(event)
    }

    fn page(&mut self) -> Result<Page> {
        let mut page = Page::default();
        if let Some(followed) = &self.followed {
            self.is_over = followed.is_replaced()?;
        }
        let mut bytes = 0;
        while page.events.len() < PAGE_EVENTS && bytes < PAGE_BYTES {
            let Some(line) = self.line()? else {
                page.end = true;
                break;
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let event = self.event(&line)?;
            bytes += event.cost_bytes();
            page.events.push(event);
        }
        if let Some(followed) = self.followed.as_ref().filter(|_| self.is_over)
            && page.events.is_empty()
        {
            return Err(followed.begins_again("is another file now"));
        }
        page.place = Place {
            major: self.number,
            minor: 0,
        };
        Ok(page)
    }
}

#[async_trait]
impl Source for Lines {
    fn identity(&self) -> String {
        self.name.clone()
    }

    fn resumes(&self) -> bool {
        false
    }

    async fn page(&mut self, _after: Place) -> Result<Page> {
        let reader = Arc::clone(&self.reader);
        let read = move || reader.lock().unwrap_or_else(PoisonError::into_inner).page();
        match tokio::task::spawn_blocking(read).await {
            Ok(page) => page,
            Err(error) => Err(Error::unavailable(format!(
                "a read of the source was stopped: {error}"
            ))),
        }
    }

    async fn count(&mut self, _after: Place) -> Result<Option<u64>> {
        Ok(None)
    }
}
