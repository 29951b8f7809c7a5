//! How events become bytes and back: [`EventCodec`] and its implementations.
//!
//! Why a codec of its own: the type and the data of an event are stored side by side and outlive the Rust types from
//! which they came.
//! Invariants: what was encoded decodes to the same event; no bytes make a codec panic; the user chooses the name of an
//! event type on disk, and can test it with [`round_trips`](crate::scenario::round_trips).
//! Not here: metadata and tags of events, snapshots.

use std::fmt;

use bytes::Bytes;
use gesta_core::{ContentType, EventType};

mod by_serde;
#[cfg(feature = "cbor")]
mod cbor;
mod json;
#[cfg(feature = "proto")]
mod proto;
mod readable;
mod tagged;
mod upcast;

pub use by_serde::{SerdeEvents, SerdeEventsBuilder};
#[cfg(feature = "cbor")]
pub(crate) use cbor::from_slice as read_cbor;
#[cfg(feature = "cbor")]
pub use cbor::{Cbor, CborEvents, CborEventsBuilder};
pub use json::{Json, JsonEvents, JsonEventsBuilder};
#[cfg(feature = "proto")]
pub use proto::{ProtoEvents, ProtoEventsBuilder};

/// An event that is ready to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Encoded {
    /// The type of the event on disk.
    pub event_type: EventType,
    /// What `data` is: JSON or another form.
    pub content_type: ContentType,
    /// The payload of the event.
    pub data: Bytes,
}

/// A stored event that is to be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored<'a> {
    /// The type of the event on disk.
    pub event_type: &'a str,
    /// What `data` is: JSON or another form.
    pub content_type: ContentType,
    /// The payload of the event.
    pub data: &'a Bytes,
}

impl<'a> Stored<'a> {
    /// Describes an event that is stored with JSON data.
    #[must_use]
    pub fn json(event_type: &'a str, data: &'a Bytes) -> Self {
        Self {
            event_type,
            content_type: ContentType::Json,
            data,
        }
    }

    /// Describes an event that is stored with other data than JSON.
    #[must_use]
    pub fn binary(event_type: &'a str, data: &'a Bytes) -> Self {
        Self {
            event_type,
            content_type: ContentType::Binary,
            data,
        }
    }
}

impl<'a> From<&'a Encoded> for Stored<'a> {
    fn from(encoded: &'a Encoded) -> Self {
        Self {
            event_type: encoded.event_type.as_str(),
            content_type: encoded.content_type,
            data: &encoded.data,
        }
    }
}

/// The reason why an event cannot be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The codec has no event of this type.
    #[error("event type {0:?} is not known")]
    UnknownType(String),
    /// The bytes are not what the type says.
    #[error("event of type {event_type:?} cannot be read: {detail}")]
    Malformed {
        /// The type of the event on disk.
        event_type: String,
        /// What is wrong with the bytes.
        detail: String,
    },
    /// The value has no form on disk.
    #[error("event cannot be written: {0}")]
    Unwritable(String),
}

impl CodecError {
    /// Makes the error for data that is not what `read_as` says. `stored` is the type on disk.
    fn malformed(stored: &str, read_as: &str, error: impl fmt::Display) -> Self {
        CodecError::Malformed {
            event_type: stored.to_owned(),
            detail: if stored == read_as {
                error.to_string()
            } else {
                format!("upcast to {read_as:?}: {error}")
            },
        }
    }
}

impl<F: fmt::Display> tagged::ReadError<F> {
    /// Makes the error for an event that is stored as type `stored` and read as type `read_as`.
    fn of_stored(self, stored: &str, read_as: &str) -> CodecError {
        match self {
            tagged::ReadError::UnknownName => CodecError::UnknownType(read_as.to_owned()),
            error => CodecError::malformed(stored, read_as, error),
        }
    }
}

/// Returns the type on disk of a variant. The result is an error if no variant was seen, or if its name is not a valid
/// event type.
fn stored_type(variant: Option<&str>) -> Result<EventType, CodecError> {
    let variant = variant.ok_or_else(|| CodecError::Unwritable(tagged::NOT_AN_ENUM.to_owned()))?;
    EventType::new(variant).map_err(|error| CodecError::Unwritable(error.to_string()))
}

/// Refuses JSON where a binary form is read, because bytes of one could be taken for the other.
#[cfg(any(feature = "cbor", feature = "proto"))]
fn refuse_json(stored: Stored<'_>) -> Result<(), CodecError> {
    if stored.content_type == ContentType::Json {
        return Err(CodecError::Malformed {
            event_type: stored.event_type.to_owned(),
            detail: "the data are stored as JSON".to_owned(),
        });
    }
    Ok(())
}

/// Turns events into bytes and back.
///
/// These codecs are ready-made: [`JsonEvents`], `CborEvents` (feature `cbor`), `ProtoEvents` (feature `proto`).
///
/// A codec of your own must decode what it has encoded to an equal event, on every machine and in every later version
/// of the program. A codec must never panic, whatever the bytes are.
pub trait EventCodec<E>: Send + Sync + 'static {
    /// Turns an event into its form on disk.
    ///
    /// # Errors
    /// [`CodecError::Unwritable`] if the event has no form on disk.
    fn encode(&self, event: &E) -> Result<Encoded, CodecError>;

    /// Turns a form on disk back into the event.
    ///
    /// # Errors
    /// [`CodecError::UnknownType`] if the codec has no event of this type; [`CodecError::Malformed`] if the bytes are
    /// not what the type says.
    fn decode(&self, stored: Stored<'_>) -> Result<E, CodecError>;
}
