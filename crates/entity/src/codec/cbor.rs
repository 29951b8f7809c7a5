//! [`CborEvents`]: events as CBOR (RFC 8949) by serde.

use std::fmt;
use std::io::Read;
use std::marker::PhantomData;

use gesta_core::ContentType;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::by_serde::{Format, SerdeEvents, SerdeEventsBuilder};
use super::readable::{Numbers, Readable};
use super::tagged::{self, ReadError};
use super::{CodecError, Stored, refuse_json};

/// A codec for events as CBOR (RFC 8949), by serde. CBOR is smaller and faster than JSON and still self-describing. It
/// is for data that has bytes in it, or numbers that JSON does not have.
///
/// The enum and its attributes are the same as with [`JsonEvents`](crate::JsonEvents): the name of a variant is the
/// type of the event on disk, and its content is the data. A unit variant is stored as an empty map. Nesting deeper
/// than 100 levels is refused before it is stored, and nesting deeper than 255 levels is refused when it is read.
///
/// An event that was stored as JSON is refused when it is read. To change from JSON to CBOR, write an [`EventCodec`]
/// that encodes with this codec and decodes with the codec that [`Stored::content_type`] calls for.
///
/// ```
/// use gesta_entity::{CborEvents, EventCodec, Stored};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// enum ProbeEvent {
///     #[serde(rename = "measured")]
///     Measured { celsius: f64 },
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let codec = CborEvents::<ProbeEvent>::new();
/// let event = ProbeEvent::Measured { celsius: f64::INFINITY };
/// let encoded = codec.encode(&event)?;
/// assert_eq!(encoded.event_type.as_str(), "measured");
/// assert_eq!(codec.decode(Stored::from(&encoded))?, event);
/// # Ok(()) }
/// ```
///
/// Older forms are upcast:
///
/// ```
/// use gesta_entity::CborEvents;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// enum ProbeEvent {
///     #[serde(rename = "measured.v2")]
///     Measured(Measured),
/// }
/// #[derive(Serialize, Deserialize)]
/// struct Measured { celsius: f64 }
/// #[derive(Deserialize)]
/// struct MeasuredV1 { fahrenheit: f64 }
///
/// let codec = CborEvents::<ProbeEvent>::new()
///     .upcast("measured", "measured.v2", |old: MeasuredV1| {
///         Ok(Measured { celsius: (old.fahrenheit - 32.0) / 1.8 })
///     })
///     .build();
/// assert!(codec.is_ok());
/// ```
pub type CborEvents<E> = SerdeEvents<E, Cbor>;
/// A [`CborEvents`] that also reads older forms.
pub type CborEventsBuilder<E> = SerdeEventsBuilder<E, Cbor>;

const TRAILING: &str = "there are bytes after the data";

/// The first byte of the array of name and content from which [`Named`] is read.
const ARRAY_OF_TWO: u8 = 0x82;

/// The format CBOR.
#[derive(Debug)]
pub enum Cbor {}

impl Format for Cbor {
    const NAME: &'static str = "Cbor";
    const CONTENT_TYPE: ContentType = ContentType::Binary;

    fn check(stored: Stored<'_>) -> Result<(), CodecError> {
        refuse_json(stored)
    }

    fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
        use ciborium::ser::Error;
        let mut data = Vec::new();
        let readable = Readable::new(value, Numbers::All);
        ciborium::into_writer(&readable, &mut data).map_err(|error| match error {
            Error::Io(error) => error.to_string(),
            Error::Value(detail) => detail,
        })?;
        Ok(data)
    }

    fn read<T: DeserializeOwned>(mut data: &[u8]) -> Result<T, String> {
        let bytes = data.len();
        let value = from_reader(&mut data, bytes)?;
        if !data.is_empty() {
            return Err(TRAILING.to_owned());
        }
        Ok(value)
    }

    fn read_event<E: DeserializeOwned>(name: &str, data: &[u8]) -> Result<E, ReadError<String>> {
        let mut named = vec![ARRAY_OF_TWO];
        ciborium::into_writer(name, &mut named)
            .map_err(|error| ReadError::Content(error.to_string()))?;
        let bytes = named.len() + data.len();
        let mut reader = named.as_slice().chain(data);
        match from_reader(&mut reader, bytes).map_err(ReadError::Content)? {
            Named::Event(_) if !reader.into_inner().1.is_empty() => {
                Err(ReadError::Content(TRAILING.to_owned()))
            }
            Named::Event(event) => Ok(event),
            Named::UnknownName => Err(ReadError::UnknownName),
            Named::NotAnEnum => Err(ReadError::NotAnEnum),
        }
    }
}

/// An event that is read from an array of name and content.
///
/// `ciborium` lends its deserializer only to types, not to values, so the name must be part of the bytes.
enum Named<E> {
    Event(E),
    UnknownName,
    NotAnEnum,
}

impl<'de, E: DeserializeOwned> Deserialize<'de> for Named<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(2, NamedVisitor(PhantomData))
    }
}

struct NamedVisitor<E>(PhantomData<E>);

impl<'de, E: DeserializeOwned> Visitor<'de> for NamedVisitor<E> {
    type Value = Named<E>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("name and content of an event")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Named<E>, A::Error> {
        let name: String = seq
            .next_element()?
            .ok_or_else(|| de::Error::invalid_length(0, &self))?;
        seq.next_element_seed(ContentOf(name, self.0))?
            .ok_or_else(|| de::Error::invalid_length(1, &self))
    }
}

/// Reads the content of the event with this name.
struct ContentOf<E>(String, PhantomData<E>);

impl<'de, E: DeserializeOwned> DeserializeSeed<'de> for ContentOf<E> {
    type Value = Named<E>;

    fn deserialize<D: Deserializer<'de>>(self, content: D) -> Result<Named<E>, D::Error> {
        match tagged::read(&self.0, content) {
            Ok(event) => Ok(Named::Event(event)),
            Err(ReadError::UnknownName) => Ok(Named::UnknownName),
            Err(ReadError::NotAnEnum) => Ok(Named::NotAnEnum),
            Err(ReadError::Content(error)) => Err(error),
        }
    }
}

/// Reads a value.
pub(crate) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    from_reader(bytes, bytes.len())
}

/// Reads a value of at most `bytes` bytes.
///
/// `ciborium` reads some texts, such as names of fields, only if they fit into its buffer. What was written must be
/// readable, so the buffer holds the whole event.
fn from_reader<T: DeserializeOwned>(reader: impl Read, bytes: usize) -> Result<T, String> {
    use ciborium::de::Error;
    let mut small = [0; 1_024];
    let mut large;
    let buffer = if bytes <= small.len() {
        &mut small[..]
    } else {
        large = vec![0; bytes];
        &mut large[..]
    };
    ciborium::de::from_reader_with_buffer(reader, buffer).map_err(|error| match error {
        Error::Io(error) => format!("the data end too early: {error}"),
        Error::Syntax(_) => "the data are not CBOR".to_owned(),
        Error::Semantic(_, detail) => detail,
        Error::RecursionLimitExceeded => "the data are nested too deeply".to_owned(),
    })
}
