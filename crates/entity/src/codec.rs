//! How events become bytes and back: [`EventCodec`] and its implementations.
//!
//! Why a codec of its own: type and data of an event are stored side by side and outlive the Rust types that they
//! came from.
//! Invariants: what was encoded decodes to the same event; no bytes make a codec panic; the name of an event type on
//! disk is chosen by the user, who can test it with [`round_trips`](crate::scenario::round_trips).
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

/// An event ready to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Encoded {
    /// Its type on disk.
    pub event_type: EventType,
    /// What `data` is.
    pub content_type: ContentType,
    /// The payload.
    pub data: Bytes,
}

/// A stored event, to be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored<'a> {
    /// Its type on disk.
    pub event_type: &'a str,
    /// What `data` is.
    pub content_type: ContentType,
    /// The payload.
    pub data: &'a Bytes,
}

impl<'a> Stored<'a> {
    /// An event stored with JSON data.
    #[must_use]
    pub fn json(event_type: &'a str, data: &'a Bytes) -> Self {
        Self {
            event_type,
            content_type: ContentType::Json,
            data,
        }
    }

    /// An event stored with other data.
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

/// Why an event cannot be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The codec has no event of this type.
    #[error("event type {0:?} is not known")]
    UnknownType(String),
    /// The bytes are not what the type says.
    #[error("event of type {event_type:?} cannot be read: {detail}")]
    Malformed {
        /// The type on disk.
        event_type: String,
        /// What is wrong.
        detail: String,
    },
    /// The value has no form on disk.
    #[error("event cannot be written: {0}")]
    Unwritable(String),
}

impl CodecError {
    /// Data that are not what `read_as` says; `stored` is the type on disk.
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
    /// The error of an event stored as type `stored` and read as type `read_as`.
    fn of_stored(self, stored: &str, read_as: &str) -> CodecError {
        match self {
            tagged::ReadError::UnknownName => CodecError::UnknownType(read_as.to_owned()),
            error => CodecError::malformed(stored, read_as, error),
        }
    }
}

/// The type on disk of a variant; `None` if no variant was seen.
fn stored_type(variant: Option<&str>) -> Result<EventType, CodecError> {
    let variant = variant.ok_or_else(|| CodecError::Unwritable(tagged::NOT_AN_ENUM.to_owned()))?;
    EventType::new(variant).map_err(|error| CodecError::Unwritable(error.to_string()))
}

/// Refuses JSON where a binary form is read: bytes of one could pass for the other.
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

/// Events to bytes and back.
///
/// Ready-made: [`JsonEvents`], `CborEvents` (feature `cbor`), `ProtoEvents` (feature `proto`).
///
/// A codec of your own decodes what it has encoded to an equal event, on every machine and in every later version of
/// the program; it never panics, whatever the bytes are.
pub trait EventCodec<E>: Send + Sync + 'static {
    /// The form of an event on disk.
    ///
    /// # Errors
    /// [`CodecError::Unwritable`].
    fn encode(&self, event: &E) -> Result<Encoded, CodecError>;

    /// The event of a form on disk.
    ///
    /// # Errors
    /// [`CodecError::UnknownType`], [`CodecError::Malformed`].
    fn decode(&self, stored: Stored<'_>) -> Result<E, CodecError>;
}
