//! Bodies of appends and of filters.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{Append, Condition, ContentType, EventData, Query, StreamAppend, limits};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::Expected;
use crate::json::{self, Bounded, Object, Text};

/// The body of an append to one stream, which the address names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppendBody<'a> {
    /// The revision that the writer expects of the stream.
    #[serde(default)]
    pub expected: Expected,
    /// The events, in order.
    #[serde(borrow)]
    pub events: Events<'a>,
}

/// The events of one stream, at most [`limits::APPEND_EVENTS_MAX`] of them.
pub type Events<'a> = Bounded<Object<EventBody<'a>>, { limits::APPEND_EVENTS_MAX }>;

/// The body of an append to several streams. `P` is a [`PartBody`], or what one can be read from later.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeveralBody<P> {
    /// What is appended to each stream; at most [`limits::APPEND_STREAMS_MAX`] streams.
    pub appends: Bounded<P, { limits::APPEND_STREAMS_MAX }>,
    /// What must hold of streams to which nothing is appended, and of all events.
    #[serde(default, skip_serializing_if = "Bounded::is_empty")]
    pub conditions: Bounded<Object<ConditionBody>, { limits::APPEND_STREAMS_MAX }>,
}

/// The state of a stream to which nothing is appended, or what no event may be.
#[derive(Debug, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct ConditionBody {
    /// The name of the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The revision that the stream must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// Queries that no event may meet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_match: Option<Bounded<Object<QueryBody>, { limits::FILTER_VALUES_MAX }>>,
    /// The checkpoint after which no event may meet them. Without it they are about all events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// What is appended to one of several streams.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartBody<'a> {
    /// The name of the stream.
    #[serde(borrow)]
    pub stream: Text<'a>,
    /// The revision that the writer expects of the stream.
    #[serde(default)]
    pub expected: Expected,
    /// The events, in order.
    #[serde(borrow)]
    pub events: Events<'a>,
}

/// One event to append.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventBody<'a> {
    /// The id of the event; the store chooses one if there is none.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Text<'a>>,
    /// The type of the event.
    #[serde(borrow, rename = "type")]
    pub event_type: Text<'a>,
    /// The content type of the data, by its name.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<Text<'a>>,
    /// The data as JSON. Unlike in the other fields, `null` is a value here.
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub data: Option<&'a RawValue>,
    /// The data in base64, given instead of `data`. `null` is refused, since this field stands for the data.
    #[serde(
        borrow,
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub data_base64: Option<Text<'a>>,
    /// The metadata as JSON.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<&'a RawValue>,
    /// The metadata in base64, given instead of `metadata`.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub metadata_base64: Option<Text<'a>>,
    /// The tags of the event, at most [`limits::TAGS_MAX`].
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Bounded<Text<'a>, { limits::TAGS_MAX }>>,
}

/// One query of a filter. An event meets it if it meets the condition of each list that is not empty.
#[derive(Debug, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct QueryBody {
    /// The type of the event is one of these.
    #[serde(default)]
    pub types: Vec<String>,
    /// The event carries all of these tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The name of the stream begins with one of these.
    #[serde(default)]
    pub stream_prefixes: Vec<String>,
    /// The category of the stream is one of these.
    #[serde(default)]
    pub categories: Vec<String>,
}

pub(crate) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Writes the body of an append to one stream.
#[must_use]
pub fn append_to(part: &StreamAppend) -> Bytes {
    written(&AppendBody {
        expected: Expected(part.expected),
        events: events(part),
    })
}

/// Writes the body of an append to several streams.
#[must_use]
pub fn append_several(append: &Append) -> Bytes {
    let parts = append.streams.iter().map(|part| PartBody {
        stream: text(part.stream.as_str()),
        expected: Expected(part.expected),
        events: events(part),
    });
    let conditions = append.conditions.iter().map(|condition| {
        Object(match condition {
            Condition::Stream { stream, expected } => ConditionBody {
                stream: Some(stream.as_str().to_owned()),
                expected: Some(Expected(*expected)),
                ..ConditionBody::default()
            },
            Condition::NoMatch { filter, after } => {
                let queries = filter.any_of.iter().map(|query| Object(query.into()));
                ConditionBody {
                    no_match: Some(Bounded(queries.collect())),
                    after: after.as_ref().map(ToString::to_string),
                    ..ConditionBody::default()
                }
            }
        })
    });
    written(&SeveralBody {
        appends: Bounded(parts.collect()),
        conditions: Bounded(conditions.collect()),
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

/// Returns the bytes as JSON if a document gives them back unchanged, and servers take them so. Space around a value is
/// not kept, so it makes this `None`.
fn as_json(bytes: &[u8]) -> Option<&RawValue> {
    let json: &RawValue = serde_json::from_slice(bytes).ok()?;
    (json.get().len() == bytes.len() && !json::is_too_deep(bytes)).then_some(json)
}

#[cfg(test)]
mod tests {
    use gesta_core::{EventType, ExpectedRevision, StreamId};

    use super::*;
    use crate::json::DEPTH_MAX;

    /// What happened: data that are nested deeper than servers take as JSON were written as JSON all the same, and the
    /// server refused an append that other stores take. What holds now: they travel in base64.
    #[test]
    fn data_that_are_nested_too_deep_travel_in_base64() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        for (depth, is_json) in [(DEPTH_MAX, true), (DEPTH_MAX + 1, false)] {
            let event = EventData::json(EventType::new("T").expect("valid"), nested(depth));
            let event = event.with_metadata(nested(depth));
            let body = EventBody::from(&event);
            assert_eq!(
                (body.data.is_some(), body.metadata.is_some()),
                (is_json, is_json)
            );
            let part = StreamAppend {
                stream: StreamId::new("cart-1").expect("valid"),
                expected: ExpectedRevision::Any,
                events: vec![event],
            };
            let text = append_to(&part);
            let Object(read): Object<AppendBody<'_>> = serde_json::from_slice(&text).expect("JSON");
            let Object(event) = &read.events.0[0];
            assert_eq!(event.data_base64.is_none(), is_json);
            assert_eq!(event.content_type.is_none(), is_json);
        }
    }
}
