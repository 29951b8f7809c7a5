//! Translates events that Gesta itself stores about streams for the clients of this protocol.
//!
//! Gesta notes a delete and a tombstone in the metadata stream of the stream, with its own state as the event's
//! metadata. The clients know a delete as metadata that hide all events until the next one is appended, and a tombstone
//! as the last event of the stream itself. Their servers write the metadata once more with that next event, with the
//! revision from which on events are readable again; Gesta does not, so whoever reads the metadata of a stream that has
//! begun again is shown its last event like that ([`begun_again`]).

use std::borrow::Cow;

use bytes::Bytes;
use gesta_core::{
    ContentType, EventType, Lifecycle, RecordedEvent, Revision, StreamId, TRUNCATED_UNTIL_WRITTEN,
};
use gesta_pattern::{METADATA, STREAM_DELETED};

/// Type of the event that notes a delete.
const DELETED: &str = "$deleted";
/// Revision that the event of a tombstone has for clients.
const TOMBSTONE: Revision = Revision(i64::MAX.cast_unsigned());

/// Returns the event as the clients know it. An event that looks the same to clients is returned as it is.
#[must_use]
pub fn translated(event: &RecordedEvent) -> Cow<'_, RecordedEvent> {
    if !event.event_type.as_str().starts_with('$') {
        return Cow::Borrowed(event);
    }
    let Some(described) = event.stream.described_stream() else {
        return Cow::Borrowed(event);
    };
    match event.event_type.as_str() {
        DELETED => Cow::Owned(truncated(event, TRUNCATED_UNTIL_WRITTEN)),
        "$tombstone" => Cow::Owned(tombstone(event, described)),
        _ if event.metadata.is_empty() => Cow::Borrowed(event),
        // The store's own state of the stream.
        _ => Cow::Owned(RecordedEvent {
            metadata: Bytes::new(),
            ..event.clone()
        }),
    }
}

/// Returns true if an event notes that a stream is closed for ever.
#[must_use]
pub fn is_tombstone(event: &RecordedEvent) -> bool {
    event.event_type.as_str() == "$tombstone" && event.stream.described_stream().is_some()
}

/// Returns the event of a delete as these clients know it once its stream has begun again: with the revision from which
/// on events are readable. Any other event is returned as it is.
#[must_use]
pub fn begun_again(event: RecordedEvent) -> RecordedEvent {
    if !is_delete(&event) {
        return event;
    }
    match Lifecycle::from_event(&event.data, &event.metadata) {
        Ok(state) => truncated(&event, state.deleted_before.0),
        Err(_) => event,
    }
}

/// Returns true if an event notes that a stream is deleted.
#[must_use]
pub fn is_delete(event: &RecordedEvent) -> bool {
    event.event_type.as_str() == DELETED && event.stream.described_stream().is_some()
}

/// Makes the metadata event that hides all events before a revision.
fn truncated(event: &RecordedEvent, before: u64) -> RecordedEvent {
    let mut document: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&event.data).unwrap_or_default();
    document.insert("$tb".into(), before.into());
    let data = serde_json::Value::Object(document).to_string();
    RecordedEvent {
        event_type: EventType::from_stored(METADATA.into()),
        content_type: ContentType::Json,
        data: data.into(),
        metadata: Bytes::new(),
        ..event.clone()
    }
}

/// Makes the last event of a stream that is closed for ever.
fn tombstone(event: &RecordedEvent, described: StreamId) -> RecordedEvent {
    RecordedEvent {
        stream: described,
        revision: TOMBSTONE,
        event_type: EventType::from_stored(STREAM_DELETED.into()),
        content_type: ContentType::Binary,
        data: Bytes::new(),
        metadata: Bytes::new(),
        ..event.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::tests::event;

    fn noted(event_type: &str, data: &'static str, state: &'static str) -> RecordedEvent {
        RecordedEvent {
            stream: StreamId::new("$$cart-1").expect("valid"),
            data: data.into(),
            metadata: state.into(),
            ..event(event_type)
        }
    }

    #[test]
    fn a_delete_is_metadata_that_hide_all_until_the_stream_begins_again() {
        let stored = noted("$deleted", r#"{"owner":"x"}"#, r#"{"deleted_before":4}"#);
        let seen = translated(&stored);
        assert_eq!(seen.event_type.as_str(), "$metadata");
        assert_eq!(seen.data, r#"{"$tb":9223372036854775807,"owner":"x"}"#);
        assert!(seen.metadata.is_empty());
        assert_eq!(
            (seen.revision, seen.position),
            (stored.revision, stored.position)
        );
        let again = begun_again(stored);
        assert_eq!(again.event_type.as_str(), "$metadata");
        assert_eq!(again.data, r#"{"$tb":4,"owner":"x"}"#);
        assert_eq!(*translated(&again), again);
        let other = noted("$metadata", r#"{"a":1}"#, r#"{"deleted_before":4}"#);
        assert_eq!(begun_again(other.clone()), other);
    }

    #[test]
    fn a_tombstone_is_the_last_event_of_the_stream() {
        let stored = noted("$tombstone", "{}", r#"{"tombstone":true}"#);
        let seen = translated(&stored);
        assert_eq!(seen.event_type.as_str(), "$streamDeleted");
        assert_eq!(seen.stream.as_str(), "cart-1");
        assert_eq!(seen.revision.0, 9_223_372_036_854_775_807);
    }

    /// Goal: filters compare the names that clients see.
    #[test]
    fn patterns_know_events_by_the_names_that_are_shown() {
        for stored in [
            noted("$deleted", "{}", r#"{"deleted_before":4}"#),
            noted("$tombstone", "{}", r#"{"tombstone":true}"#),
            noted("$metadata", "{}", ""),
            event("$deleted"),
            event("$tombstone"),
            event("added"),
        ] {
            let seen = translated(&stored);
            let names = (seen.stream.as_str(), seen.event_type.as_str());
            assert_eq!(gesta_pattern::shown_as(&stored), names);
        }
    }

    #[test]
    fn the_state_that_the_store_keeps_is_not_shown() {
        let stored = noted("$metadata", "{}", r#"{"deleted_before":4}"#);
        assert!(translated(&stored).metadata.is_empty());
        let ordinary = RecordedEvent {
            metadata: "x".into(),
            ..event("$deleted")
        };
        assert_eq!(*translated(&ordinary), ordinary);
    }
}
