//! Events that clients ask to store.

use std::collections::BTreeMap;

use bytes::Bytes;
use gesta_core::{ContentType, EventData, EventType, StreamId, Tags, limits};

use crate::Result;
use crate::ids;
use crate::messages::shared;
use crate::messages::streams::{append_req, batch_append_req};
use crate::refusal::Refusal;

/// An event in the form that both calls that append share.
#[derive(Debug)]
pub struct Proposed {
    id: Option<shared::Uuid>,
    metadata: BTreeMap<String, String>,
    custom_metadata: Bytes,
    data: Bytes,
}

impl From<append_req::ProposedMessage> for Proposed {
    fn from(message: append_req::ProposedMessage) -> Self {
        Self {
            id: message.id,
            metadata: message.metadata,
            custom_metadata: message.custom_metadata,
            data: message.data,
        }
    }
}

impl From<batch_append_req::ProposedMessage> for Proposed {
    fn from(message: batch_append_req::ProposedMessage) -> Self {
        Self {
            id: message.id,
            metadata: message.metadata,
            custom_metadata: message.custom_metadata,
            data: message.data,
        }
    }
}

impl Proposed {
    /// Makes the event that a store takes, for this stream.
    ///
    /// # Errors
    /// `InvalidArgument` if the event has no id, no type or no content type, breaks a rule or is too large.
    pub fn into_event(mut self, stream: &StreamId) -> Result<EventData> {
        let id = ids::event_id(self.id.as_ref())?;
        let mut required = |key: &'static str| {
            let value = self.metadata.remove(key);
            value.ok_or_else(|| Refusal::missing_metadata(key))
        };
        let (event_type, content_type) = (required("type")?, required("content-type")?);
        if event_type.is_empty() {
            return Err(Refusal::missing_metadata("type"));
        }
        // The metadata of an event of a metadata stream are the store's own.
        let metadata = match stream.described_stream() {
            Some(_) => Bytes::new(),
            None => self.custom_metadata,
        };
        let (bytes, bytes_max) = (self.data.len() + metadata.len(), bytes_max(stream));
        if bytes > bytes_max {
            return Err(Refusal::event_too_large(id, bytes, bytes_max));
        }
        Ok(EventData {
            id: Some(id),
            event_type: EventType::new(event_type)?,
            content_type: content_type_of(&content_type),
            data: self.data,
            metadata,
            tags: Tags::NONE,
        })
    }
}

/// Returns how large an event of this stream may be, in bytes.
pub(crate) fn bytes_max(stream: &StreamId) -> usize {
    match stream.described_stream() {
        Some(_) => limits::STREAM_METADATA_BYTES_MAX,
        None => limits::EVENT_BYTES_MAX,
    }
}

fn content_type_of(text: &str) -> ContentType {
    if text == ContentType::Json.as_str() {
        ContentType::Json
    } else {
        ContentType::Binary
    }
}

/// Copies the payloads of events if most of the message from which they came would be kept for nothing. The payloads
/// share the memory of the whole message, which had `message_bytes` bytes. So an event never holds much more memory
/// than it is counted for.
pub fn own(events: &mut [EventData], message_bytes: usize) {
    let kept: usize = events.iter().map(EventData::cost_bytes).sum();
    if message_bytes <= kept.saturating_mul(2) {
        return;
    }
    for event in events {
        event.data = Bytes::copy_from_slice(&event.data);
        event.metadata = Bytes::copy_from_slice(&event.metadata);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::UuidForm;
    use uuid::Uuid;

    fn proposed(metadata: &[(&str, &str)]) -> Proposed {
        Proposed {
            id: Some(ids::uuid(Uuid::from_u128(7), UuidForm::Text)),
            metadata: metadata
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            custom_metadata: Bytes::from_static(b"about"),
            data: Bytes::from_static(b"{}"),
        }
    }

    fn stream(name: &str) -> StreamId {
        StreamId::new(name).expect("valid")
    }

    #[test]
    fn an_event_is_taken_whole() {
        let message = proposed(&[
            ("type", "added"),
            ("content-type", "application/json"),
            ("x", "y"),
        ]);
        let event = message.into_event(&stream("cart-1")).expect("good");
        assert_eq!(event.event_type.as_str(), "added");
        assert_eq!(event.content_type, ContentType::Json);
        assert_eq!(
            (&event.data[..], &event.metadata[..]),
            (&b"{}"[..], &b"about"[..])
        );
    }

    #[test]
    fn an_event_of_a_metadata_stream_keeps_its_document_alone() {
        let message = proposed(&[("type", "$metadata"), ("content-type", "application/json")]);
        let event = message.into_event(&stream("$$cart-1")).expect("good");
        assert!(event.metadata.is_empty());
    }

    #[test]
    fn what_is_missing_is_named() {
        for (metadata, missing) in [
            (&[("content-type", "x")][..], "type"),
            (&[("type", "added")], "content-type"),
            (&[("type", ""), ("content-type", "x")], "type"),
        ] {
            let refusal = proposed(metadata)
                .into_event(&stream("cart-1"))
                .expect_err("refused");
            assert!(
                refusal.message.contains(&format!("'{missing}'")),
                "{refusal:?}"
            );
            assert_eq!(
                refusal.to_trailers()["exception"],
                "missing-required-metadata-property"
            );
        }
    }

    #[test]
    fn a_small_event_does_not_keep_a_large_message() {
        let message = Bytes::from(vec![0; 1_000_000]);
        let event = |bytes: &Bytes| EventData {
            data: bytes.slice(..10),
            ..proposed(&[("type", "added"), ("content-type", "x")])
                .into_event(&stream("cart-1"))
                .expect("good")
        };
        let mut events = [event(&message)];
        own(&mut events, message.len());
        assert_ne!(events[0].data.as_ptr(), message.as_ptr());
        let mut events = [event(&message)];
        own(&mut events, 300);
        assert_eq!(events[0].data.as_ptr(), message.as_ptr());
    }
}
