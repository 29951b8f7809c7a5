//! Makes events of this store out of events of a source: id, type, payload, metadata, tags.
//!
//! The store makes times, revisions and positions anew. What the source said stands in the metadata of each event,
//! under the key `$source`: kind, key, sequence number, place, time, and what else the source knows. The source's own
//! metadata stay beside it if they are a JSON object, else they stand inside.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gesta_core::{ContentType, Error, EventData, EventId, Result, Tag, Tags, limits};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

use crate::event::{Place, SourceEvent};
use crate::kind::Kind;
use crate::types::TypeRule;

/// The key of the metadata under which an imported event says where it stood.
const SOURCE_KEY: &str = "$source";

/// What is written about the source.
#[derive(Serialize)]
struct Origin<'a> {
    kind: &'static str,
    key: &'a str,
    sequence: u64,
    place: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter_manifest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serializer: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    deleted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a serde_json::value::RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata_serializer: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata_manifest: Option<&'a str>,
}

/// Where an imported event says that it stood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stood {
    pub(crate) key: String,
    pub(crate) sequence: u64,
    pub(crate) place: Place,
    pub(crate) tenant: Option<String>,
    /// What tells the event from others of its number, if that was written.
    pub(crate) digest: Option<u128>,
}

/// Reads where an event of the target stood in its source; `None` if it was not imported.
pub(crate) fn stood(metadata: &[u8]) -> Option<Stood> {
    #[derive(Deserialize)]
    struct Document {
        #[serde(rename = "$source")]
        source: Written,
    }
    #[derive(Deserialize)]
    struct Written {
        key: String,
        sequence: u64,
        place: String,
        tenant: Option<String>,
        digest: Option<String>,
    }
    let Document { source } = serde_json::from_slice(metadata).ok()?;
    Some(Stood {
        key: source.key,
        sequence: source.sequence,
        place: source.place.parse().ok()?,
        tenant: source.tenant,
        digest: source
            .digest
            .and_then(|text| u128::from_str_radix(&text, 16).ok()),
    })
}

/// Returns the id of an event: the one that the source gave it, or else one made of the kind, the key and the number,
/// so that it is the same each time.
pub(crate) fn id_of(kind: Kind, event: &SourceEvent) -> EventId {
    match event.id {
        Some(id) if !id.is_nil() => EventId(id),
        _ => EventId(derived_id(kind, &event.key, event.sequence)),
    }
}

fn derived_id(kind: Kind, key: &str, sequence: u64) -> Uuid {
    let mut hasher = Xxh3::new();
    for part in [
        kind.name().as_bytes(),
        key.as_bytes(),
        &sequence.to_be_bytes(),
    ] {
        // With its length each part is told from the next.
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    uuid::Builder::from_bytes(hasher.digest128().to_be_bytes())
        .with_variant(uuid::Variant::RFC4122)
        .with_version(uuid::Version::Custom)
        .into_uuid()
}

/// Tells whether a text is a whole JSON value.
fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

/// Tells whether a payload is a JSON object or list. Where the source does not say what it is, numbers and words are
/// not taken for JSON: any bytes can be one by chance.
pub(crate) fn is_json_document(bytes: &[u8]) -> bool {
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(first, Some(b'{' | b'[')) && is_json(bytes)
}

/// Makes the event that is appended.
///
/// # Errors
/// `InvalidArgument` with the rule that the event breaks.
pub(crate) fn convert(kind: Kind, types: &TypeRule, event: &SourceEvent) -> Result<EventData> {
    let event_type = types.of(event)?;
    let tags = tags_of(event)?;
    let id = id_of(kind, event);
    let metadata = metadata_of(kind, event)?;
    let data = event.data.clone();
    let bytes = data.len() + metadata.len();
    if bytes > limits::EVENT_BYTES_MAX {
        return Err(Error::invalid(
            "event",
            format!(
                "must be at most {} bytes of data and metadata, found {bytes}",
                limits::EVENT_BYTES_MAX
            ),
        ));
    }
    Ok(EventData {
        id: Some(id),
        event_type,
        content_type: match event.data_is_json || is_json_document(&data) {
            true => ContentType::Json,
            false => ContentType::Binary,
        },
        data,
        metadata,
        tags,
    })
}

fn tags_of(event: &SourceEvent) -> Result<Tags> {
    if event.tags.is_empty() {
        return Ok(Tags::NONE);
    }
    let mut tags: Vec<Tag> = Vec::with_capacity(event.tags.len());
    for text in &event.tags {
        let tag = Tag::new(text.as_str())?;
        // A tag that was written twice is one tag.
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    Tags::new(tags)
}

fn metadata_of(kind: Kind, event: &SourceEvent) -> Result<Bytes> {
    let own = event.metadata.trim_ascii();
    // Keys may be written with escapes.
    let keys: Option<HashMap<Cow<'_, str>, IgnoredAny>> = serde_json::from_slice(own).ok();
    let has = |key: &str| keys.as_ref().is_some_and(|keys| keys.contains_key(key));
    // A document that was imported before, and is imported again, has the key already.
    let stays_beside = keys.is_some() && !has(SOURCE_KEY);
    let inside = match !stays_beside && !own.is_empty() {
        true => serde_json::from_slice::<&serde_json::value::RawValue>(own).ok(),
        false => None,
    };
    let filled = |text: &'_ Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let origin = Origin {
        kind: kind.name(),
        key: &event.key,
        sequence: event.sequence,
        place: event.place.to_string(),
        time: event.time.map(|time| time.to_string()),
        manifest: event.manifest.as_deref().filter(|text| !text.is_empty()),
        adapter_manifest: event
            .adapter_manifest
            .as_deref()
            .filter(|text| !text.is_empty()),
        serializer: event.serializer,
        writer: event.writer.as_deref().filter(|text| !text.is_empty()),
        tenant: event.tenant.as_deref(),
        deleted: event.deleted,
        digest: event.digest.map(|digest| format!("{digest:032x}")),
        metadata: inside,
        metadata_base64: (!stays_beside && !own.is_empty() && inside.is_none())
            .then(|| STANDARD.encode(&event.metadata)),
        metadata_serializer: event.metadata_serializer,
        metadata_manifest: event
            .metadata_manifest
            .as_deref()
            .filter(|text| !text.is_empty()),
    };
    let unwritable = |error: serde_json::Error| Error::invalid("metadata", error.to_string());
    let mut text = Vec::with_capacity(own.len() + 256);
    text.extend_from_slice(b"{\"$source\":");
    serde_json::to_writer(&mut text, &origin).map_err(unwritable)?;
    // The names that clients of EventStoreDB give these two.
    for (key, value) in [
        ("$correlationId", &event.correlation),
        ("$causationId", &event.causation),
    ] {
        let is_free = !(stays_beside && has(key));
        if let (true, true, Some(value)) = (is_free, filled(value), value) {
            text.extend_from_slice(format!(",\"{key}\":").as_bytes());
            serde_json::to_writer(&mut text, value).map_err(unwritable)?;
        }
    }
    if stays_beside {
        let rest = own[1..own.len() - 1].trim_ascii();
        if !rest.is_empty() {
            text.push(b',');
            text.extend_from_slice(rest);
        }
    }
    text.push(b'}');
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::Timestamp;
    use serde_json::{Value, json};

    fn event() -> SourceEvent {
        SourceEvent {
            key: "Account|7".into(),
            sequence: 3,
            place: Place::number(17),
            manifest: Some("a.Deposited".into()),
            serializer: Some(33),
            data: Bytes::from_static(b"\x00\x01"),
            time: Some(Timestamp(1_700_000_000_000_001)),
            ..SourceEvent::default()
        }
    }

    fn converted(event: &SourceEvent) -> (EventData, Value) {
        let made = convert(Kind::AkkaJdbc, &TypeRule::AsIs, event).unwrap();
        let metadata = serde_json::from_slice(&made.metadata).unwrap();
        (made, metadata)
    }

    #[test]
    fn where_an_event_stood_is_written_and_read_again() {
        let (made, metadata) = converted(&event());
        assert_eq!(
            metadata["$source"],
            json!({"kind": "akka-persistence-jdbc", "key": "Account|7", "sequence": 3, "place": "17",
                   "time": "2023-11-14T22:13:20.000001Z", "manifest": "a.Deposited", "serializer": 33})
        );
        assert_eq!(made.content_type, ContentType::Binary);
        let read = stood(&made.metadata).unwrap();
        assert_eq!(
            (read.key.as_str(), read.sequence, read.place),
            ("Account|7", 3, Place::number(17))
        );
        assert_eq!(stood(b"{}"), None);
        assert_eq!(stood(b""), None);
    }

    #[test]
    fn metadata_of_the_source_stay_beside_or_inside() {
        let with = |metadata: &'static [u8]| {
            let event = SourceEvent {
                metadata: metadata.into(),
                ..event()
            };
            converted(&event).1
        };
        assert_eq!(with(b"{\"user\": 1.50}")["user"], json!(1.5));
        assert_eq!(with(b" { } ").as_object().unwrap().len(), 1);
        assert_eq!(with(b"[1]")["$source"]["metadata"], json!([1]));
        assert_eq!(
            with(b"\x08\x01")["$source"]["metadata_base64"],
            json!("CAE=")
        );
        // Metadata of an event that was imported into another store before.
        assert_eq!(
            with(b"{\"$source\":1}")["$source"]["metadata"],
            json!({"$source": 1})
        );
        assert_eq!(
            with(br#"{"\u0024source":1}"#)["$source"]["metadata"],
            json!({"$source": 1})
        );
        assert_eq!(with(br#"{"a":"$source"}"#)["a"], json!("$source"));
        let event = SourceEvent {
            metadata: Bytes::from_static(b"{\"a\":1,\"b\":\"$correlationId\"}"),
            correlation: Some("c".into()),
            ..event()
        };
        let (made, metadata) = converted(&event);
        assert_eq!(
            (&metadata["$correlationId"], &metadata["a"]),
            (&json!("c"), &json!(1))
        );
        assert!(stood(&made.metadata).is_some());
    }

    #[test]
    fn ids_are_the_same_each_time_and_differ_between_events() {
        let id = |kind, key: &str, sequence| derived_id(kind, key, sequence);
        let one = id(Kind::AkkaJdbc, "a", 1);
        assert_eq!(one, id(Kind::AkkaJdbc, "a", 1));
        assert_ne!(one, id(Kind::AkkaJdbc, "a", 2));
        assert_ne!(one, id(Kind::AkkaR2dbc, "a", 1));
        assert_ne!(one, id(Kind::AkkaJdbc, "b", 1));
        // What is stored in a target must be found again by every later version.
        assert_eq!(one.to_string(), "ddd81af2-6a13-86b7-b7ef-f2a46219f798");
        let own = Uuid::new_v4();
        let event = SourceEvent {
            id: Some(own),
            ..event()
        };
        assert_eq!(id_of(Kind::Marten, &event), EventId(own));
    }

    #[test]
    fn only_documents_are_json() {
        for (data, json) in [
            (&b"{\"a\":1}"[..], true),
            (b" [1, 2]", true),
            (b"1", false),
            (b"\"x\"", false),
            (b"{\"a\":", false),
            (b"", false),
            (b"\x0a\x02", false),
        ] {
            assert_eq!(is_json_document(data), json, "{data:?}");
        }
    }

    #[test]
    fn what_a_store_cannot_hold_is_refused() {
        let refused = |change: fn(&mut SourceEvent)| {
            let mut event = event();
            change(&mut event);
            convert(Kind::AkkaJdbc, &TypeRule::AsIs, &event)
                .expect_err("refused")
                .to_string()
        };
        assert!(
            refused(|e| e.tags = (0..33).map(|n| n.to_string()).collect()).contains("at most 32")
        );
        assert!(refused(|e| e.tags = vec![String::new()]).contains("tags"));
        assert!(refused(|e| e.manifest = Some("x".repeat(513))).contains("type"));
        assert!(refused(|e| e.data = vec![0; limits::EVENT_BYTES_MAX].into()).contains("16777216"));
        let twice = SourceEvent {
            tags: vec!["t".into(), "t".into()],
            ..event()
        };
        assert_eq!(converted(&twice).0.tags.as_slice().len(), 1);
    }
}
