//! [`CborEvents`]: events as CBOR (RFC 8949) by serde.
//!
//! Not here: how an enum is taken apart (`tagged`), chains of upcasts (`upcast`).

use std::cell::Cell;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;

use bytes::Bytes;
use gesta_core::{ContentType, Error, Result};
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::readable::{Numbers, Readable};
use super::tagged::{self, Content, NOT_AN_ENUM, ReadError};
use super::upcast::{Step, Upcasts};
use super::{CodecError, Encoded, EventCodec, Stored, refuse_json, stored_type};

/// Events as CBOR (RFC 8949), by serde: smaller and faster than JSON, still self-describing, for data with bytes in
/// them or numbers that JSON does not have.
///
/// The same enum and the same attributes as with [`JsonEvents`](crate::JsonEvents); the name of a variant is the type
/// of the event on disk, its content the data. A unit variant is stored as an empty map. Nesting deeper than 100 is
/// refused before it is stored, nesting deeper than 255 when it is read.
///
/// An event that was stored as JSON is refused when read: to change over, write an [`EventCodec`] that
/// encodes with this one and decodes with the one that [`Stored::content_type`] calls for.
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
pub struct CborEvents<E> {
    upcasts: Upcasts,
    events: PhantomData<fn(E) -> E>,
}

impl<E: Serialize + DeserializeOwned + 'static> CborEvents<E> {
    /// A codec for the variants of `E`.
    #[must_use]
    pub fn new() -> Self {
        Self {
            upcasts: Upcasts::default(),
            events: PhantomData,
        }
    }

    /// Begins a codec that also reads events of an older form: see [`CborEventsBuilder::upcast`].
    pub fn upcast<Old: DeserializeOwned, New: Serialize>(
        self,
        from: impl Into<String>,
        to: impl Into<String>,
        convert: impl Fn(Old) -> std::result::Result<New, String> + Send + Sync + 'static,
    ) -> CborEventsBuilder<E> {
        let builder = CborEventsBuilder {
            steps: Vec::new(),
            events: PhantomData,
        };
        builder.upcast(from, to, convert)
    }
}

/// A [`CborEvents`] that also reads older forms; [`build`](Self::build) checks it.
#[must_use = "call build()"]
pub struct CborEventsBuilder<E> {
    steps: Vec<Step>,
    events: PhantomData<fn(E) -> E>,
}

impl<E: Serialize + DeserializeOwned + 'static> CborEventsBuilder<E> {
    /// Reads events stored as `from` as events of type `to`, which is a variant of `E` or begins another upcast.
    ///
    /// `convert` turns the old data into the new ones, as types of serde: a struct of the old form,
    /// `serde_json::Value` where the data have no bytes in them, or a CBOR value of your choice. Its error says what
    /// is wrong with the data and makes the event malformed. It runs at each read of an old event and must always
    /// give the same answer. What is stored never changes.
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
    pub fn upcast<Old: DeserializeOwned, New: Serialize>(
        mut self,
        from: impl Into<String>,
        to: impl Into<String>,
        convert: impl Fn(Old) -> std::result::Result<New, String> + Send + Sync + 'static,
    ) -> Self {
        self.steps.push(Step {
            from: from.into(),
            to: to.into(),
            convert: Box::new(move |mut data| {
                let bytes = data.len();
                let old = from_reader(&mut data, bytes)?;
                if !data.is_empty() {
                    return Err(TRAILING.to_owned());
                }
                to_vec(&convert(old)?)
            }),
        });
        self
    }

    /// Checks the upcasts and gives the codec.
    ///
    /// # Errors
    /// `InvalidArgument` if `E` is no enum in serde's default representation, or an upcast is declared twice, begins
    /// at a variant of `E`, leads in a circle, or leads to a type that is neither a variant nor upcast.
    pub fn build(self) -> Result<CborEvents<E>> {
        let names = tagged::names_of::<E>().ok_or_else(|| Error::invalid("codec", NOT_AN_ENUM))?;
        Ok(CborEvents {
            upcasts: Upcasts::new(self.steps, |name| names.contains(&name))?,
            events: PhantomData,
        })
    }
}

impl<E: Serialize + DeserializeOwned + 'static> EventCodec<E> for CborEvents<E> {
    fn encode(&self, event: &E) -> std::result::Result<Encoded, CodecError> {
        let name = Cell::new(None);
        let data = to_vec(&Content { event, name: &name }).map_err(CodecError::Unwritable)?;
        Ok(Encoded {
            event_type: stored_type(name.get())?,
            content_type: ContentType::Binary,
            data: Bytes::from(data),
        })
    }

    fn decode(&self, stored: Stored<'_>) -> std::result::Result<E, CodecError> {
        refuse_json(stored)?;
        let upcast = self.upcasts.apply(stored.event_type, stored.data)?;
        let (name, data) = match &upcast {
            Some((name, data)) => (*name, data.as_slice()),
            None => (stored.event_type, stored.data.as_ref()),
        };
        read(name, data).map_err(|error| error.of_stored(stored.event_type, name))
    }
}

const TRAILING: &str = "there are bytes after the data";

/// Begins the array of name and content that [`Named`] is read from.
const ARRAY_OF_TWO: u8 = 0x82;

fn read<E: DeserializeOwned>(name: &str, data: &[u8]) -> std::result::Result<E, ReadError<String>> {
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

/// An event, read from an array of name and content.
///
/// `ciborium` lends its deserializer only to types, not to values, so the name has to come in with the bytes.
enum Named<E> {
    Event(E),
    UnknownName,
    NotAnEnum,
}

impl<'de, E: DeserializeOwned> Deserialize<'de> for Named<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_tuple(2, NamedVisitor(PhantomData))
    }
}

struct NamedVisitor<E>(PhantomData<E>);

impl<'de, E: DeserializeOwned> Visitor<'de> for NamedVisitor<E> {
    type Value = Named<E>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("name and content of an event")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Named<E>, A::Error> {
        let name: String = seq
            .next_element()?
            .ok_or_else(|| de::Error::invalid_length(0, &self))?;
        seq.next_element_seed(ContentOf(name, self.0))?
            .ok_or_else(|| de::Error::invalid_length(1, &self))
    }
}

/// The content of the event with this name.
struct ContentOf<E>(String, PhantomData<E>);

impl<'de, E: DeserializeOwned> DeserializeSeed<'de> for ContentOf<E> {
    type Value = Named<E>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        content: D,
    ) -> std::result::Result<Named<E>, D::Error> {
        match tagged::read(&self.0, content) {
            Ok(event) => Ok(Named::Event(event)),
            Err(ReadError::UnknownName) => Ok(Named::UnknownName),
            Err(ReadError::NotAnEnum) => Ok(Named::NotAnEnum),
            Err(ReadError::Content(error)) => Err(error),
        }
    }
}

/// Reads a value.
pub(crate) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<T, String> {
    from_reader(bytes, bytes.len())
}

/// Reads a value of at most `bytes` bytes.
///
/// `ciborium` reads some texts, such as names of fields, only if they fit into its buffer. What was written must be
/// readable, so the buffer holds the whole event.
fn from_reader<T: DeserializeOwned>(
    reader: impl Read,
    bytes: usize,
) -> std::result::Result<T, String> {
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

fn to_vec<T: Serialize>(value: &T) -> std::result::Result<Vec<u8>, String> {
    let mut data = Vec::new();
    ciborium::into_writer(&Readable::new(value, Numbers::All), &mut data).map_err(|error| {
        match error {
            ciborium::ser::Error::Io(error) => error.to_string(),
            ciborium::ser::Error::Value(detail) => detail,
        }
    })?;
    Ok(data)
}

impl<E: Serialize + DeserializeOwned + 'static> Default for CborEvents<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> fmt::Debug for CborEvents<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CborEvents")
            .field("upcasts", &self.upcasts)
            .finish()
    }
}

impl<E> fmt::Debug for CborEventsBuilder<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CborEventsBuilder")
            .field("upcasts", &self.steps.len())
            .finish()
    }
}
