//! Events before and after they were stored.

use std::sync::Arc;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::ids::{EventId, EventType, LogId, Position, Revision, StreamId, Tag};
use crate::limits;

/// What the data of an event is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ContentType {
    /// JSON text. It comes back byte for byte.
    #[default]
    Json,
    /// Anything else.
    Binary,
}

impl ContentType {
    /// The media type: `application/json` or `application/octet-stream`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ContentType::Json => "application/json",
            ContentType::Binary => "application/octet-stream",
        }
    }
}

/// The tags of an event: at most 32, all different, in the order given. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tags(Option<Arc<[Tag]>>);

impl Tags {
    /// No tags.
    pub const NONE: Tags = Tags(None);

    /// Checks and takes a list of tags.
    ///
    /// # Errors
    /// `InvalidArgument` if there are more than 32 or one stands twice.
    pub fn new(tags: Vec<Tag>) -> Result<Self> {
        if tags.len() > limits::TAGS_MAX {
            return Err(Error::invalid(
                "tags",
                format!("must be at most {}, found {}", limits::TAGS_MAX, tags.len()),
            ));
        }
        for (i, tag) in tags.iter().enumerate() {
            if tags[..i].contains(tag) {
                return Err(Error::invalid(
                    "tags",
                    format!("must differ, found {tag:?} twice"),
                ));
            }
        }
        Ok(Self::from_stored(tags))
    }

    /// Takes tags that a store has kept. For backends only.
    #[must_use]
    pub fn from_stored(tags: Vec<Tag>) -> Self {
        if tags.is_empty() {
            Self(None)
        } else {
            Self(Some(tags.into()))
        }
    }

    /// The tags in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Tag] {
        self.0.as_deref().unwrap_or(&[])
    }

    /// True if this tag is among them.
    #[must_use]
    pub fn contains(&self, tag: &Tag) -> bool {
        self.as_slice().contains(tag)
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// An event to be appended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventData {
    /// Identity for idempotent retries; `None` lets the store make one, which is not retry-safe.
    pub id: Option<EventId>,
    /// Type of the event.
    pub event_type: EventType,
    /// What `data` is.
    pub content_type: ContentType,
    /// The payload.
    pub data: Bytes,
    /// Data about the event, usually JSON; empty if there is none.
    pub metadata: Bytes,
    /// Labels to query by.
    pub tags: Tags,
}

impl EventData {
    /// An event with JSON data. The text is stored as it is; it is not checked to be JSON.
    #[must_use]
    pub fn json(event_type: EventType, data: impl Into<Bytes>) -> Self {
        Self {
            id: None,
            event_type,
            content_type: ContentType::Json,
            data: data.into(),
            metadata: Bytes::new(),
            tags: Tags::NONE,
        }
    }

    /// An event with data of any kind.
    #[must_use]
    pub fn binary(event_type: EventType, data: impl Into<Bytes>) -> Self {
        Self {
            content_type: ContentType::Binary,
            ..Self::json(event_type, data)
        }
    }

    /// Sets the id, which makes a retry safe.
    #[must_use]
    pub fn with_id(mut self, id: EventId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: impl Into<Bytes>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// Sets the tags.
    #[must_use]
    pub fn with_tags(mut self, tags: Tags) -> Self {
        self.tags = tags;
        self
    }

    /// Size of data and metadata, in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.data.len() + self.metadata.len()
    }

    /// Memory that the event holds, roughly, in bytes: payload, tags, names and the structures themselves. Every bound
    /// on memory counts this, so that no part of an event is free of charge.
    #[must_use]
    pub fn cost_bytes(&self) -> usize {
        EVENT_OVERHEAD_BYTES
            + self.payload_bytes()
            + self.event_type.as_str().len()
            + self.tags.cost_bytes()
    }
}

/// What an event takes in memory beside its payload, names and tags, in bytes.
pub const EVENT_OVERHEAD_BYTES: usize = 256;
/// What a tag takes in memory beside its text, in bytes.
const TAG_OVERHEAD_BYTES: usize = 32;

impl Tags {
    /// Memory that the tags hold, roughly, in bytes.
    #[must_use]
    pub fn cost_bytes(&self) -> usize {
        let tags = self.as_slice().iter();
        tags.map(|tag| tag.as_str().len() + TAG_OVERHEAD_BYTES)
            .sum()
    }
}

/// An event as it was stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedEvent {
    /// Its stream.
    pub stream: StreamId,
    /// Its number in the stream.
    pub revision: Revision,
    /// Its log.
    pub log: LogId,
    /// Its place in the order of the log.
    pub position: Position,
    /// Its identity.
    pub id: EventId,
    /// Its type.
    pub event_type: EventType,
    /// When it was stored, by the store's clock; never decreases along positions.
    pub created: Timestamp,
    /// What `data` is.
    pub content_type: ContentType,
    /// The payload.
    pub data: Bytes,
    /// Data about the event; empty if there is none.
    pub metadata: Bytes,
    /// Its labels.
    pub tags: Tags,
}

impl RecordedEvent {
    /// Size of data and metadata, in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.data.len() + self.metadata.len()
    }

    /// Memory that the event holds, as [`EventData::cost_bytes`], with the name of its stream.
    #[must_use]
    pub fn cost_bytes(&self) -> usize {
        EVENT_OVERHEAD_BYTES
            + self.payload_bytes()
            + self.stream.as_str().len()
            + self.event_type.as_str().len()
            + self.tags.cost_bytes()
    }
}
