//! [`JsonEvents`]: events as JSON text by serde.
//!
//! Not here: how an enum is taken apart (`tagged`), chains of upcasts (`upcast`).

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use gesta_core::{ContentType, Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::readable::{Numbers, Readable};
use super::tagged::{self, Content, NOT_AN_ENUM, ReadError};
use super::upcast::{Step, Upcasts};
use super::{CodecError, Encoded, EventCodec, Stored, stored_type};

/// Events as JSON text, by serde: the codec to begin with, since what it stores can be read and queried with SQL.
///
/// `E` is an enum with serde's derives, in serde's default representation. The name of a variant is the type of the
/// event on disk, so give every variant the name that it is to keep for ever: the Rust name is then free to change.
/// The content of the variant is the data:
///
/// | variant | data |
/// |---|---|
/// | `Opened { by: String }` | `{"by":"ann"}` |
/// | `Opened(Opening)` | whatever `Opening` is, usually an object |
/// | `Moved(u32, u32)` | `[3,4]` |
/// | `Closed` | `{}`; `null` and objects with fields are read too |
///
/// All attributes of serde work: `default` for fields that older events lack, `alias` for types that were renamed,
/// `other` on a unit variant for types that no longer matter. Events whose form has changed are upcast. To retire a
/// type of event, let a unit variant have its name as an `alias` and do nothing in `evolve`.
///
/// A number comes back exactly as it was. NaN and the infinities, which JSON does not have, and nesting deeper than
/// 100 are refused before they are stored; nesting deeper than 127 is refused when read. The content type of a stored
/// event is not looked at.
///
/// ```
/// use gesta_entity::{EventCodec, JsonEvents, Stored};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// enum CartEvent {
///     #[serde(rename = "item-added")]
///     ItemAdded { sku: String, quantity: u32 },
///     #[serde(rename = "checked-out")]
///     CheckedOut,
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let codec = JsonEvents::<CartEvent>::new();
/// let event = CartEvent::ItemAdded { sku: "tea".into(), quantity: 2 };
/// let encoded = codec.encode(&event)?;
/// assert_eq!(encoded.event_type.as_str(), "item-added");
/// assert_eq!(encoded.data, r#"{"sku":"tea","quantity":2}"#);
/// assert_eq!(codec.decode(Stored::from(&encoded))?, event);
/// # Ok(()) }
/// ```
pub struct JsonEvents<E> {
    upcasts: Upcasts,
    events: PhantomData<fn(E) -> E>,
}

impl<E: Serialize + DeserializeOwned + 'static> JsonEvents<E> {
    /// A codec for the variants of `E`.
    #[must_use]
    pub fn new() -> Self {
        Self {
            upcasts: Upcasts::default(),
            events: PhantomData,
        }
    }

    /// Begins a codec that also reads events of an older form: see [`JsonEventsBuilder::upcast`].
    pub fn upcast<Old: DeserializeOwned, New: Serialize>(
        self,
        from: impl Into<String>,
        to: impl Into<String>,
        convert: impl Fn(Old) -> std::result::Result<New, String> + Send + Sync + 'static,
    ) -> JsonEventsBuilder<E> {
        let builder = JsonEventsBuilder {
            steps: Vec::new(),
            events: PhantomData,
        };
        builder.upcast(from, to, convert)
    }
}

/// A [`JsonEvents`] that also reads older forms; [`build`](Self::build) checks it.
#[must_use = "call build()"]
pub struct JsonEventsBuilder<E> {
    steps: Vec<Step>,
    events: PhantomData<fn(E) -> E>,
}

impl<E: Serialize + DeserializeOwned + 'static> JsonEventsBuilder<E> {
    /// Reads events stored as `from` as events of type `to`, which is a variant of `E` or begins another upcast.
    ///
    /// `convert` turns the old data into the new ones, as types of serde or as [`serde_json::Value`]. Its error says
    /// what is wrong with the data and makes the event malformed. It runs at each read of an old event and must
    /// always give the same answer. What is stored never changes.
    ///
    /// ```
    /// use gesta_entity::{EventCodec, JsonEvents, Stored};
    /// use serde::{Deserialize, Serialize};
    /// use serde_json::{Value, json};
    ///
    /// #[derive(Debug, PartialEq, Serialize, Deserialize)]
    /// enum CartEvent {
    ///     #[serde(rename = "item-added.v3")]
    ///     ItemAdded { sku: String, quantity: u32, note: String },
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let codec = JsonEvents::<CartEvent>::new()
    ///     .upcast("item-added", "item-added.v2", |mut event: Value| {
    ///         event["quantity"] = json!(1);
    ///         Ok(event)
    ///     })
    ///     .upcast("item-added.v2", "item-added.v3", |event: Value| {
    ///         let sku = event["sku"].as_str().ok_or("has no sku")?;
    ///         Ok(json!({ "sku": sku, "quantity": event["quantity"], "note": "" }))
    ///     })
    ///     .build()?;
    ///
    /// let data = r#"{"sku":"tea"}"#.into();
    /// let event = codec.decode(Stored::json("item-added", &data))?;
    /// assert_eq!(event, CartEvent::ItemAdded { sku: "tea".into(), quantity: 1, note: String::new() });
    /// # Ok(()) }
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
            convert: Box::new(move |data| {
                let old = serde_json::from_slice(data).map_err(|error| error.to_string())?;
                let new = convert(old)?;
                to_vec(&new)
            }),
        });
        self
    }

    /// Checks the upcasts and gives the codec.
    ///
    /// # Errors
    /// `InvalidArgument` if `E` is no enum in serde's default representation, or an upcast is declared twice, begins
    /// at a variant of `E`, leads in a circle, or leads to a type that is neither a variant nor upcast.
    pub fn build(self) -> Result<JsonEvents<E>> {
        let names = tagged::names_of::<E>().ok_or_else(|| Error::invalid("codec", NOT_AN_ENUM))?;
        Ok(JsonEvents {
            upcasts: Upcasts::new(self.steps, |name| names.contains(&name))?,
            events: PhantomData,
        })
    }
}

impl<E: Serialize + DeserializeOwned + 'static> EventCodec<E> for JsonEvents<E> {
    fn encode(&self, event: &E) -> std::result::Result<Encoded, CodecError> {
        let name = Cell::new(None);
        let content = Content { event, name: &name };
        let data = to_vec(&content).map_err(CodecError::Unwritable)?;
        Ok(Encoded {
            event_type: stored_type(name.get())?,
            content_type: ContentType::Json,
            data: Bytes::from(data),
        })
    }

    fn decode(&self, stored: Stored<'_>) -> std::result::Result<E, CodecError> {
        let upcast = self.upcasts.apply(stored.event_type, stored.data)?;
        let (name, data) = match &upcast {
            Some((name, data)) => (*name, data.as_slice()),
            None => (stored.event_type, stored.data.as_ref()),
        };
        read(name, data).map_err(|error| error.of_stored(stored.event_type, name))
    }
}

fn to_vec<T: Serialize>(value: &T) -> std::result::Result<Vec<u8>, String> {
    serde_json::to_vec(&Readable::new(value, Numbers::Finite)).map_err(|error| error.to_string())
}

fn read<E: DeserializeOwned>(
    name: &str,
    data: &[u8],
) -> std::result::Result<E, ReadError<serde_json::Error>> {
    let mut content = serde_json::Deserializer::from_slice(data);
    let event = tagged::read(name, &mut content)?;
    content.end().map_err(ReadError::Content)?;
    Ok(event)
}

impl<E: Serialize + DeserializeOwned + 'static> Default for JsonEvents<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> fmt::Debug for JsonEvents<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonEvents")
            .field("upcasts", &self.upcasts)
            .finish()
    }
}

impl<E> fmt::Debug for JsonEventsBuilder<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonEventsBuilder")
            .field("upcasts", &self.steps.len())
            .finish()
    }
}
