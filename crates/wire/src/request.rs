//! Bodies of appends, and filters.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{Append, ContentType, EventData, Query, StreamAppend, limits};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::Expected;
use crate::json::{self, Bounded, Object, Text};

/// The body of an append to one stream, which the address names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppendBody<'a> {
    /// The claim of the writer.
    #[serde(default)]
    pub expected: Expected,
    /// The events.
    #[serde(borrow)]
    pub events: Events<'a>,
}

/// The events of one stream.
pub type Events<'a> = Bounded<Object<EventBody<'a>>, { limits::APPEND_EVENTS_MAX }>;

/// The body of an append to several streams: each a [`PartBody`], still to be read.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeveralBody<P> {
    /// One per stream.
    pub appends: Bounded<P, { limits::APPEND_STREAMS_MAX }>,
}

/// What goes to one of several streams.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartBody<'a> {
    /// The stream.
    #[serde(borrow)]
    pub stream: Text<'a>,
    /// The claim of the writer.
    #[serde(default)]
    pub expected: Expected,
    /// The events.
    #[serde(borrow)]
    pub events: Events<'a>,
}

/// One event to append.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventBody<'a> {
    /// Its identity.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Text<'a>>,
    /// Its type.
    #[serde(borrow, rename = "type")]
    pub event_type: Text<'a>,
    /// What its data are.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<Text<'a>>,
    /// JSON; `null` is data too, unlike for the other fields.
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub data: Option<&'a RawValue>,
    /// Instead of `data`. Not `null` either: it stands for the data.
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub data_base64: Option<Text<'a>>,
    /// JSON.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<&'a RawValue>,
    /// Instead of `metadata`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub metadata_base64: Option<Text<'a>>,
    /// Its tags.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Bounded<Text<'a>, { limits::TAGS_MAX }>>,
}

/// One query of a filter.
#[derive(Debug, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct QueryBody {
    /// Event types.
    #[serde(default)]
    pub types: Vec<String>,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Beginnings of stream names.
    #[serde(default)]
    pub stream_prefixes: Vec<String>,
    /// Categories.
    #[serde(default)]
    pub categories: Vec<String>,
}

pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// The body of an append to one stream.
#[must_use]
pub fn append_to(part: &StreamAppend) -> Bytes {
    written(&AppendBody {
        expected: Expected(part.expected),
        events: events(part),
    })
}

/// The body of an append to several streams.
#[must_use]
pub fn append_several(append: &Append) -> Bytes {
    let parts = append.streams.iter().map(|part| PartBody {
        stream: text(part.stream.as_str()),
        expected: Expected(part.expected),
        events: events(part),
    });
    written(&SeveralBody {
        appends: Bounded(parts.collect()),
    })
}

fn written(body: &impl Serialize) -> Bytes {
    let mut out = Vec::new();
    json::value(&mut out, body);
    out.into()
}

fn text(text: &str) -> Text<'_> {
    Text(Cow::Borrowed(text))
}

fn events(part: &StreamAppend) -> Events<'_> {
    Bounded(
        part.events
            .iter()
            .map(|event| Object(event.into()))
            .collect(),
    )
}

impl<'a> From<&'a EventData> for EventBody<'a> {
    fn from(event: &'a EventData) -> Self {
        let base64 = |bytes| Text(STANDARD.encode(bytes).into());
        let is_json = event.content_type == ContentType::Json;
        let data = as_json(&event.data).filter(|_| is_json);
        // No metadata are `null` on the wire; so the text `null` travels in base64.
        let metadata = as_json(&event.metadata).filter(|json| json.get() != "null");
        let has_bytes = metadata.is_none() && !event.metadata.is_empty();
        let tags = event.tags.as_slice().iter().map(|tag| text(tag.as_str()));
        Self {
            id: event.id.map(|id| Text(id.to_string().into())),
            event_type: text(event.event_type.as_str()),
            content_type: data.is_none().then(|| text(event.content_type.as_str())),
            data,
            data_base64: data.is_none().then(|| base64(&event.data)),
            metadata,
            metadata_base64: has_bytes.then(|| base64(&event.metadata)),
            tags: (!event.tags.is_empty()).then(|| Bounded(tags.collect())),
        }
    }
}

impl From<&Query> for QueryBody {
    fn from(query: &Query) -> Self {
        Self {
            types: query.types.iter().map(ToString::to_string).collect(),
            tags: query.tags.iter().map(ToString::to_string).collect(),
            stream_prefixes: query.stream_prefixes.clone(),
            categories: query.categories.clone(),
        }
    }
}

/// The bytes as JSON, if they come out of a document as they went in: space around a value is not kept.
fn as_json(bytes: &[u8]) -> Option<&RawValue> {
    let json: &RawValue = serde_json::from_slice(bytes).ok()?;
    (json.get().len() == bytes.len()).then_some(json)
}
