//! Events before they are stored (`EventData`) and after (`RecordedEvent`).

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::ids::{EventId, EventType, LogId, Position, Revision, StreamId, Tag};
use crate::limits;

/// Kind of the data of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ContentType {
    /// JSON text. A store gives it back byte for byte.
    #[default]
    Json,
    /// Data of any other kind.
    Binary,
}

impl ContentType {
    /// Returns the media type: `application/json` or `application/octet-stream`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ContentType::Json => "application/json",
            ContentType::Binary => "application/octet-stream",
        }
    }
}

/// The tags of an event: at most 32, all different, in the order given. They are cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tags(Option<Arc<[Tag]>>);

impl Tags {
    /// The tags of an event that has none.
    pub const NONE: Tags = Tags(None);

    /// Checks a list of tags and takes it.
    ///
    /// # Errors
    /// `InvalidArgument` if there are more than 32 tags, or if two are equal.
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

    /// Makes the tags of an event of texts.
    ///
    /// # Errors
    /// `InvalidArgument` if a text is no tag, if there are more than 32, or if two are equal.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::{EventData, Tags};
    /// # fn main() -> gesta_core::Result<()> {
    /// let reserved = EventData::new("seat-reserved", &7)?.with_tags(Tags::of(["show:12", "seat:7"])?);
    /// # assert_eq!(reserved.tags.as_slice().len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn of(tags: impl IntoIterator<Item: TryInto<Tag, Error: Into<Error>>>) -> Result<Self> {
        let tags: Result<Vec<Tag>> = tags
            .into_iter()
            .map(|tag| tag.try_into().map_err(Into::into))
            .collect();
        Self::new(tags?)
    }

    /// Takes tags that a store has kept, without checking them again. For backends only.
    #[must_use]
    pub fn from_stored(tags: Vec<Tag>) -> Self {
        if tags.is_empty() {
            Self(None)
        } else {
            Self(Some(tags.into()))
        }
    }

    /// Returns the tags in their order.
    #[must_use]
    pub fn as_slice(&self) -> &[Tag] {
        self.0.as_deref().unwrap_or(&[])
    }

    /// Returns true if `tag` is one of the tags.
    #[must_use]
    pub fn contains(&self, tag: &Tag) -> bool {
        self.as_slice().contains(tag)
    }

    /// Returns true if there are no tags.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// An event to be appended.
///
/// Its id is drawn when it is made. So the same value, appended a second time because the first answer was lost, is a
/// retry: it gets the first answer, and nothing is stored twice. Values that are made anew for a second attempt are
/// other events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventData {
    /// Identity for idempotent retries. With `None` the store makes an id, and a retry is not recognised.
    pub id: Option<EventId>,
    /// Type of the event.
    pub event_type: EventType,
    /// Kind of `data`.
    pub content_type: ContentType,
    /// Payload of the event.
    pub data: Bytes,
    /// Data about the event, usually JSON; empty if there is none.
    pub metadata: Bytes,
    /// Labels by which reads and subscriptions can filter.
    pub tags: Tags,
}

impl EventData {
    /// Makes an event whose data are a value as JSON, and draws its id.
    ///
    /// # Errors
    /// `InvalidArgument` if the type is empty, too long or has control characters, or if the value has no JSON form.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::EventData;
    /// #[derive(serde::Serialize)]
    /// struct ItemAdded {
    ///     item: String,
    /// }
    ///
    /// # fn main() -> gesta_core::Result<()> {
    /// let added = EventData::new("item-added", &ItemAdded { item: "book".into() })?;
    /// assert_eq!(added.data, r#"{"item":"book"}"#);
    /// assert!(added.id.is_some());
    /// # Ok(()) }
    /// ```
    pub fn new<T: Serialize + ?Sized>(
        event_type: impl TryInto<EventType, Error: Into<Error>>,
        data: &T,
    ) -> Result<Self> {
        let event_type = event_type.try_into().map_err(Into::into)?;
        let json = serde_json::to_vec(data).map_err(|error| {
            let rule = format!("of an event {event_type:?} must have a JSON form: {error}");
            Error::invalid("data", rule)
        })?;
        Ok(Self::json(event_type, json))
    }

    /// Makes an event with JSON data, and draws its id. The text is stored as it is; it is not checked to be JSON.
    #[must_use]
    pub fn json(event_type: EventType, data: impl Into<Bytes>) -> Self {
        Self {
            id: Some(EventId::random()),
            event_type,
            content_type: ContentType::Json,
            data: data.into(),
            metadata: Bytes::new(),
            tags: Tags::NONE,
        }
    }

    /// Makes an event with data of any kind, and draws its id.
    #[must_use]
    pub fn binary(event_type: EventType, data: impl Into<Bytes>) -> Self {
        Self {
            content_type: ContentType::Binary,
            ..Self::json(event_type, data)
        }
    }

    /// Sets the id: for who derives it of something that is the same whenever the event is made, such as the message
    /// that caused it.
    #[must_use]
    pub fn with_id(mut self, id: EventId) -> Self {
        self.id = Some(id);
        self
    }

    /// Leaves the id to the store. Then a retry is not recognised, and stores the event a second time.
    #[must_use]
    pub fn without_id(mut self) -> Self {
        self.id = None;
        self
    }

    /// Sets the metadata of the event.
    #[must_use]
    pub fn with_metadata(mut self, metadata: impl Into<Bytes>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// Sets the tags of the event.
    #[must_use]
    pub fn with_tags(mut self, tags: Tags) -> Self {
        self.tags = tags;
        self
    }

    /// Returns the size of data and metadata, in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.data.len() + self.metadata.len()
    }

    /// Returns the memory that the event holds, roughly, in bytes: payload, tags, names and the structures themselves.
    /// Every bound on memory counts this, so that no part of an event is free of charge.
    #[must_use]
    pub fn cost_bytes(&self) -> usize {
        EVENT_OVERHEAD_BYTES
            + self.payload_bytes()
            + self.event_type.as_str().len()
            + self.tags.cost_bytes()
    }
}

/// Memory that an event takes beside its payload, names and tags, in bytes.
pub const EVENT_OVERHEAD_BYTES: usize = 256;
/// Memory that a tag takes beside its text, in bytes.
const TAG_OVERHEAD_BYTES: usize = 32;

impl Tags {
    /// Returns the memory that the tags hold, roughly, in bytes.
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
    /// Stream of the event.
    pub stream: StreamId,
    /// Number of the event in its stream; the first is 0.
    pub revision: Revision,
    /// Log of the event.
    pub log: LogId,
    /// Place of the event in the order of its log; the first is 1.
    pub position: Position,
    /// Identity of the event.
    pub id: EventId,
    /// Type of the event.
    pub event_type: EventType,
    /// Time at which the event was stored, by the clock of the store. It never decreases along the positions of a log.
    pub created: Timestamp,
    /// Kind of `data`.
    pub content_type: ContentType,
    /// Payload of the event.
    pub data: Bytes,
    /// Data about the event; empty if there is none.
    pub metadata: Bytes,
    /// Labels of the event.
    pub tags: Tags,
}

impl RecordedEvent {
    /// Reads the data as JSON.
    ///
    /// # Errors
    /// `InvalidArgument` if the data are not JSON of this type.
    ///
    /// # Examples
    /// ```
    /// # use gesta_core::*;
    /// #[derive(serde::Deserialize)]
    /// struct ItemAdded {
    ///     item: String,
    /// }
    ///
    /// # fn print(event: RecordedEvent) -> Result<()> {
    /// let added: ItemAdded = event.json()?;
    /// println!("{}", added.item);
    /// # Ok(()) }
    /// ```
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_slice(&self.data).map_err(|error| {
            let rule = format!(
                "of event {} of stream {} (type {}) must be JSON of the type that is asked for: {error}",
                self.revision, self.stream, self.event_type
            );
            Error::invalid("data", rule)
        })
    }

    /// Returns the size of data and metadata, in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.data.len() + self.metadata.len()
    }

    /// Returns the memory that the event holds, roughly, in bytes, as [`EventData::cost_bytes`] counts it, with the
    /// name of the stream.
    #[must_use]
    pub fn cost_bytes(&self) -> usize {
        EVENT_OVERHEAD_BYTES
            + self.payload_bytes()
            + self.stream.as_str().len()
            + self.event_type.as_str().len()
            + self.tags.cost_bytes()
    }
}
