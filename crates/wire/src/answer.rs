//! Answers to calls that give no events: where an append went, names of streams, the store itself.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use gesta_core::{
    Appended, AppendedStream, Capabilities, Checkpoint, Deleted, Durability, Error,
    IdempotencyWindow, Incarnation, LogId, MetadataSet, Position, Result, Revision, StoreInfo,
    StreamId, StreamInfo, StreamsPage,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::json;

/// Reads a JSON answer as a value of type `T`.
///
/// # Errors
/// `Corrupt` if the answer has another form.
pub fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|error| unreadable("it has another form").caused_by(error))
}

/// Writes an answer as JSON, as it is sent: with a line break at its end, so that a terminal goes on in a line of its
/// own.
#[must_use]
pub fn write(answer: &impl Serialize) -> Bytes {
    let mut out = Vec::with_capacity(256);
    json::value(&mut out, answer);
    out.push(b'\n');
    out.into()
}

pub(crate) fn unreadable(why: &str) -> Error {
    Error::corrupt(format!("answer of the server: {why}"))
}

/// A checkpoint, which JSON shows in its text form.
#[derive(Debug)]
pub struct CheckpointText<'a>(pub Cow<'a, Checkpoint>);

impl Serialize for CheckpointText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&*self.0)
    }
}

impl<'de> Deserialize<'de> for CheckpointText<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = json::Text::deserialize(deserializer)?;
        let checkpoint = text.0.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(Cow::Owned(checkpoint)))
    }
}

pub(crate) fn stream(name: &str) -> StreamId {
    StreamId::from_stored(name.into())
}

/// The answer to a delete or a change of metadata.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored<'a> {
    /// The number of the log in which the event lies.
    pub log: u16,
    /// The position in its log of the event that records the change.
    pub position: u64,
    /// A checkpoint after that event.
    pub checkpoint: CheckpointText<'a>,
}

macro_rules! stored {
    ($answer:ident) => {
        impl<'a> From<&'a $answer> for Stored<'a> {
            fn from(answer: &'a $answer) -> Self {
                Self {
                    log: answer.log.0,
                    position: answer.position.0,
                    checkpoint: CheckpointText(Cow::Borrowed(&answer.checkpoint)),
                }
            }
        }

        impl From<Stored<'_>> for $answer {
            fn from(stored: Stored<'_>) -> Self {
                Self {
                    log: LogId(stored.log),
                    position: Position(stored.position),
                    checkpoint: stored.checkpoint.0.into_owned(),
                }
            }
        }
    };
}
stored!(Deleted);
stored!(MetadataSet);

/// The answer to an append to one stream: its name, the revisions of its first and last event, the log, the position of
/// the last event and a checkpoint after it.
#[derive(Debug, Serialize, Deserialize)]
pub struct AppendedTo<'a> {
    #[serde(borrow)]
    stream: Cow<'a, str>,
    first_revision: u64,
    last_revision: u64,
    log: u16,
    position: u64,
    checkpoint: CheckpointText<'a>,
}

/// The answer to an append to several streams: the revisions and the position in each stream, the log, the position of
/// the last event and a checkpoint after it.
#[derive(Debug, Serialize, Deserialize)]
pub struct AppendedSeveral<'a> {
    #[serde(borrow)]
    streams: Vec<BodyPart<'a>>,
    log: u16,
    position: u64,
    checkpoint: CheckpointText<'a>,
}

#[derive(Debug, Serialize, Deserialize)]
struct BodyPart<'a> {
    #[serde(borrow)]
    stream: Cow<'a, str>,
    first_revision: u64,
    last_revision: u64,
    position: u64,
}

impl<'a> From<&'a AppendedStream> for BodyPart<'a> {
    fn from(part: &'a AppendedStream) -> Self {
        Self {
            stream: part.stream.as_str().into(),
            first_revision: part.first_revision.0,
            last_revision: part.last_revision.0,
            position: part.position.0,
        }
    }
}

impl BodyPart<'_> {
    fn appended(self) -> AppendedStream {
        AppendedStream {
            stream: stream(&self.stream),
            first_revision: Revision(self.first_revision),
            last_revision: Revision(self.last_revision),
            position: Position(self.position),
        }
    }
}

impl<'a> AppendedTo<'a> {
    /// Makes the answer from the first stream of an append; `None` if nothing was appended to any stream.
    #[must_use]
    pub fn of(appended: &'a Appended) -> Option<Self> {
        let part = BodyPart::from(appended.streams.first()?);
        Some(Self {
            stream: part.stream,
            first_revision: part.first_revision,
            last_revision: part.last_revision,
            log: appended.log.0,
            position: appended.position.0,
            checkpoint: CheckpointText(Cow::Borrowed(&appended.checkpoint)),
        })
    }
}

impl From<AppendedTo<'_>> for Appended {
    fn from(answer: AppendedTo<'_>) -> Self {
        let part = BodyPart {
            stream: answer.stream,
            first_revision: answer.first_revision,
            last_revision: answer.last_revision,
            position: answer.position,
        };
        Self {
            streams: vec![part.appended()],
            log: LogId(answer.log),
            position: Position(answer.position),
            checkpoint: answer.checkpoint.0.into_owned(),
        }
    }
}

impl<'a> From<&'a Appended> for AppendedSeveral<'a> {
    fn from(appended: &'a Appended) -> Self {
        Self {
            streams: appended.streams.iter().map(BodyPart::from).collect(),
            log: appended.log.0,
            position: appended.position.0,
            checkpoint: CheckpointText(Cow::Borrowed(&appended.checkpoint)),
        }
    }
}

impl From<AppendedSeveral<'_>> for Appended {
    fn from(answer: AppendedSeveral<'_>) -> Self {
        Self {
            streams: answer.streams.into_iter().map(BodyPart::appended).collect(),
            log: LogId(answer.log),
            position: Position(answer.position),
            checkpoint: answer.checkpoint.0.into_owned(),
        }
    }
}

/// A page of stream names, each with the last revision of the stream, and the name after which the next page begins.
#[derive(Debug, Serialize, Deserialize)]
pub struct Streams<'a> {
    #[serde(borrow)]
    streams: Vec<Stream<'a>>,
    #[serde(borrow)]
    next: Option<Cow<'a, str>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stream<'a> {
    #[serde(borrow)]
    stream: Cow<'a, str>,
    last_revision: u64,
}

impl<'a> From<&'a StreamsPage> for Streams<'a> {
    fn from(page: &'a StreamsPage) -> Self {
        let streams = page.streams.iter().map(|info| Stream {
            stream: info.stream.as_str().into(),
            last_revision: info.last_revision.0,
        });
        Self {
            streams: streams.collect(),
            next: page.next.as_ref().map(|name| name.as_str().into()),
        }
    }
}

impl From<Streams<'_>> for StreamsPage {
    fn from(page: Streams<'_>) -> Self {
        let streams = page.streams.into_iter().map(|info| StreamInfo {
            stream: stream(&info.stream),
            last_revision: Revision(info.last_revision),
        });
        Self {
            streams: streams.collect(),
            next: page.next.map(|name| stream(&name)),
        }
    }
}

/// What `GET /info` tells about the store; the server adds its limits.
#[derive(Debug, Serialize, Deserialize)]
pub struct Info {
    backend: String,
    engine: String,
    incarnation: Uuid,
    logs: u16,
    heads: Vec<u64>,
    durability: DurabilityOf,
    capabilities: CapabilitiesOf,
    idempotency: Idempotency,
    /// Servers before this field do not tell it.
    #[serde(default)]
    newest_event_ahead_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct DurabilityOf {
    level: String,
    detail: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct CapabilitiesOf {
    persistent: bool,
    shared: bool,
    several_logs: bool,
    batches_in_flight_max: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Idempotency {
    time_ms: u64,
    positions: u64,
}

impl From<StoreInfo> for Info {
    fn from(info: StoreInfo) -> Self {
        Self {
            durability: DurabilityOf {
                level: info.durability.name().to_owned(),
                detail: info.durability.detail().to_owned(),
            },
            capabilities: CapabilitiesOf {
                persistent: info.capabilities.persistent,
                shared: info.capabilities.shared,
                several_logs: info.capabilities.several_logs,
                batches_in_flight_max: info.capabilities.batches_in_flight_max,
            },
            idempotency: Idempotency {
                time_ms: u64::try_from(info.idempotency.time.as_millis()).unwrap_or(u64::MAX),
                positions: info.idempotency.positions,
            },
            heads: info.heads.iter().map(|head| head.0).collect(),
            newest_event_ahead_ms: u64::try_from(info.newest_event_ahead.as_millis())
                .unwrap_or(u64::MAX),
            incarnation: info.incarnation.0,
            logs: info.logs,
            backend: info.backend,
            engine: info.engine,
        }
    }
}

impl TryFrom<Info> for StoreInfo {
    type Error = Error;

    fn try_from(info: Info) -> Result<Self> {
        Ok(Self {
            backend: info.backend,
            engine: info.engine,
            incarnation: Incarnation(info.incarnation),
            logs: info.logs,
            durability: match info.durability.level.as_str() {
                "full" => Durability::Full(info.durability.detail),
                "weakened" => Durability::Weakened(info.durability.detail),
                "none" => Durability::None,
                _ => return Err(unreadable("the level of durability is unknown")),
            },
            capabilities: Capabilities {
                persistent: info.capabilities.persistent,
                shared: info.capabilities.shared,
                several_logs: info.capabilities.several_logs,
                batches_in_flight_max: info.capabilities.batches_in_flight_max,
            },
            idempotency: IdempotencyWindow {
                time: Duration::from_millis(info.idempotency.time_ms),
                positions: info.idempotency.positions,
            },
            heads: info.heads.into_iter().map(Position).collect(),
            newest_event_ahead: Duration::from_millis(info.newest_event_ahead_ms),
        })
    }
}
