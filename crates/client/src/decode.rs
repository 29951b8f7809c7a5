//! Decoding of answers: what the server sends is checked like any stored data, and never panics.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{
    AllPage, Appended, AppendedStream, Capabilities, Checkpoint, ContentType, Deleted, Durability,
    Error, EventId, EventType, IdempotencyWindow, Incarnation, LogId, Position, RecordedEvent,
    Result, Revision, StoreInfo, StreamId, StreamInfo, StreamPage, StreamsPage, Tag, Tags,
    Timestamp,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

/// Reads a JSON answer of the given form.
fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|error| unreadable("it has another form").caused_by(error))
}

fn unreadable(why: &str) -> Error {
    Error::corrupt(format!("answer of the server: {why}"))
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Text<'_> {
    fn stream(&self) -> StreamId {
        StreamId::from_stored(self.0.as_ref().into())
    }

    fn checkpoint(&self) -> Result<Checkpoint> {
        self.0
            .parse()
            .map_err(|_| unreadable("a checkpoint cannot be read"))
    }
}

#[derive(Deserialize)]
struct EventDocument<'a> {
    #[serde(borrow)]
    stream: Text<'a>,
    revision: u64,
    log: u16,
    position: u64,
    id: Uuid,
    #[serde(borrow, rename = "type")]
    event_type: Text<'a>,
    #[serde(borrow)]
    created: Text<'a>,
    #[serde(borrow)]
    content_type: Text<'a>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data_base64: Option<Text<'a>>,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    metadata_base64: Option<Text<'a>>,
    #[serde(borrow)]
    tags: Vec<Text<'a>>,
}

/// `null` is data, unlike for the other fields.
fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl EventDocument<'_> {
    fn recorded(self, answer: &[u8]) -> Result<RecordedEvent> {
        let base64 = |text: &str| {
            STANDARD
                .decode(text)
                .map(Bytes::from)
                .map_err(|error| unreadable("base64 cannot be read").caused_by(error))
        };
        let data = match (self.data, self.data_base64) {
            (Some(raw), None) => Bytes::copy_from_slice(with_space(answer, raw.get())),
            (None, Some(text)) => base64(&text.0)?,
            _ => return Err(unreadable("an event needs either data or data_base64")),
        };
        let metadata = match (self.metadata, self.metadata_base64) {
            (Some(raw), _) => Bytes::copy_from_slice(with_space(answer, raw.get())),
            (None, Some(text)) => base64(&text.0)?,
            (None, None) => Bytes::new(),
        };
        let content_type = [ContentType::Json, ContentType::Binary]
            .into_iter()
            .find(|known| known.as_str() == self.content_type.0)
            .ok_or_else(|| unreadable("an event has an unknown content_type"))?;
        let tags = self
            .tags
            .iter()
            .map(|t| Tag::from_stored(t.0.as_ref().into()));
        Ok(RecordedEvent {
            stream: self.stream.stream(),
            revision: Revision(self.revision),
            log: LogId(self.log),
            position: Position(self.position),
            id: EventId(self.id),
            event_type: EventType::from_stored(self.event_type.0.as_ref().into()),
            created: Timestamp::parse(&self.created.0)
                .map_err(|error| unreadable("created cannot be read").caused_by(error))?,
            content_type,
            data,
            metadata,
            tags: Tags::from_stored(tags.collect()),
        })
    }
}

/// A value with the space around it: the server writes stored JSON as it is, between its own
/// punctuation, and a parser drops the space that belongs to it.
fn with_space<'a>(answer: &'a [u8], value: &str) -> &'a [u8] {
    let from = value.as_ptr().addr().wrapping_sub(answer.as_ptr().addr());
    let to = from.saturating_add(value.len());
    let (Some(before), Some(after)) = (answer.get(..from), answer.get(to..)) else {
        return &[];
    };
    let space = |b: &&u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r');
    let from = from - before.iter().rev().take_while(space).count();
    let to = to + after.iter().take_while(space).count();
    &answer[from..to]
}

/// One event.
pub(crate) fn event(json: &[u8]) -> Result<RecordedEvent> {
    parse::<EventDocument<'_>>(json)?.recorded(json)
}

fn events(json: &[u8], documents: Vec<EventDocument<'_>>) -> Result<Vec<RecordedEvent>> {
    documents.into_iter().map(|d| d.recorded(json)).collect()
}

pub(crate) fn stream_page(json: &[u8]) -> Result<StreamPage> {
    #[derive(Deserialize)]
    struct Page<'a> {
        #[serde(borrow)]
        events: Vec<EventDocument<'a>>,
        next: Option<u64>,
        end: bool,
        last_revision: u64,
    }
    let page: Page<'_> = parse(json)?;
    Ok(StreamPage {
        events: events(json, page.events)?,
        next: page.next.map(Revision),
        end: page.end,
        last_revision: Revision(page.last_revision),
    })
}

pub(crate) fn all_page(json: &[u8]) -> Result<AllPage> {
    #[derive(Deserialize)]
    struct Page<'a> {
        #[serde(borrow)]
        events: Vec<EventDocument<'a>>,
        #[serde(borrow)]
        next: Text<'a>,
        end: bool,
    }
    let page: Page<'_> = parse(json)?;
    Ok(AllPage {
        events: events(json, page.events)?,
        next: page.next.checkpoint()?,
        end: page.end,
    })
}

pub(crate) fn streams_page(json: &[u8]) -> Result<StreamsPage> {
    #[derive(Deserialize)]
    struct Page<'a> {
        #[serde(borrow)]
        streams: Vec<Stream<'a>>,
        #[serde(borrow)]
        next: Option<Text<'a>>,
    }
    #[derive(Deserialize)]
    struct Stream<'a> {
        #[serde(borrow)]
        stream: Text<'a>,
        last_revision: u64,
    }
    let page: Page<'_> = parse(json)?;
    let streams = page.streams.into_iter().map(|info| StreamInfo {
        stream: info.stream.stream(),
        last_revision: Revision(info.last_revision),
    });
    Ok(StreamsPage {
        streams: streams.collect(),
        next: page.next.map(|name| name.stream()),
    })
}

#[derive(Deserialize)]
struct PartDocument<'a> {
    #[serde(borrow)]
    stream: Text<'a>,
    first_revision: u64,
    last_revision: u64,
    position: u64,
}

impl PartDocument<'_> {
    fn part(self) -> AppendedStream {
        AppendedStream {
            stream: self.stream.stream(),
            first_revision: Revision(self.first_revision),
            last_revision: Revision(self.last_revision),
            position: Position(self.position),
        }
    }
}

/// The answer to an append to one stream.
pub(crate) fn appended_to(json: &[u8]) -> Result<Appended> {
    let place = deleted(json)?;
    Ok(Appended {
        streams: vec![parse::<PartDocument<'_>>(json)?.part()],
        log: place.log,
        position: place.position,
        checkpoint: place.checkpoint,
    })
}

/// The answer to an append to several streams.
pub(crate) fn appended_several(json: &[u8]) -> Result<Appended> {
    #[derive(Deserialize)]
    struct Several<'a> {
        #[serde(borrow)]
        streams: Vec<PartDocument<'a>>,
    }
    let place = deleted(json)?;
    let several: Several<'_> = parse(json)?;
    Ok(Appended {
        streams: several
            .streams
            .into_iter()
            .map(PartDocument::part)
            .collect(),
        log: place.log,
        position: place.position,
        checkpoint: place.checkpoint,
    })
}

/// The answer to a delete or a change of metadata.
pub(crate) fn deleted(json: &[u8]) -> Result<Deleted> {
    #[derive(Deserialize)]
    struct Place<'a> {
        log: u16,
        position: u64,
        #[serde(borrow)]
        checkpoint: Text<'a>,
    }
    let place: Place<'_> = parse(json)?;
    Ok(Deleted {
        log: LogId(place.log),
        position: Position(place.position),
        checkpoint: place.checkpoint.checkpoint()?,
    })
}

#[derive(Deserialize)]
struct InfoDocument {
    backend: String,
    engine: String,
    incarnation: Uuid,
    logs: u16,
    heads: Vec<u64>,
    durability: DurabilityDocument,
    capabilities: CapabilitiesDocument,
    idempotency: IdempotencyDocument,
}

#[derive(Deserialize)]
struct DurabilityDocument {
    level: String,
    detail: String,
}

#[derive(Deserialize)]
struct CapabilitiesDocument {
    persistent: bool,
    shared: bool,
    several_logs: bool,
    batches_in_flight_max: usize,
}

#[derive(Deserialize)]
struct IdempotencyDocument {
    time_ms: u64,
    positions: u64,
}

pub(crate) fn info(json: &[u8]) -> Result<StoreInfo> {
    let info: InfoDocument = parse(json)?;
    Ok(StoreInfo {
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
    })
}
