//! [`SerdeEvents`]: events by serde, in any format that can tell the content of an enum apart from its name.
//!
//! Not here: the formats (`json`, `cbor`), how an enum is taken apart (`tagged`), chains of upcasts (`upcast`).

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use gesta_core::{ContentType, Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::tagged::{self, Content, NOT_AN_ENUM, ReadError};
use super::upcast::{UpcastStep, Upcasts};
use super::{CodecError, Encoded, EventCodec, Stored, stored_type};

/// How values of serde are written and read.
pub trait Format: 'static {
    /// The name of the format, for `Debug`.
    const NAME: &'static str;
    /// What the data of the format is: JSON or another form.
    const CONTENT_TYPE: ContentType;

    /// Refuses stored data that cannot be of this format, whatever the bytes are.
    fn check(stored: Stored<'_>) -> std::result::Result<(), CodecError>;

    /// Writes a value.
    fn write<T: Serialize>(value: &T) -> std::result::Result<Vec<u8>, String>;

    /// Reads a value that takes all of the data.
    fn read<T: DeserializeOwned>(data: &[u8]) -> std::result::Result<T, String>;

    /// Reads the event of this name. Its content must take all of the data.
    fn read_event<E: DeserializeOwned>(
        name: &str,
        data: &[u8],
    ) -> std::result::Result<E, ReadError<String>>;
}

/// A codec for events by serde, in the format `F`: [`JsonEvents`](crate::JsonEvents), `CborEvents` (feature `cbor`).
pub struct SerdeEvents<E, F> {
    upcasts: Upcasts,
    events: PhantomData<fn(E, F) -> E>,
}

impl<E: Serialize + DeserializeOwned + 'static, F: Format> SerdeEvents<E, F> {
    /// Makes a codec for the variants of `E`.
    #[must_use]
    pub fn new() -> Self {
        Self {
            upcasts: Upcasts::default(),
            events: PhantomData,
        }
    }

    /// Begins a codec that also reads events of an older form: see [`SerdeEventsBuilder::upcast`].
    pub fn upcast<Old: DeserializeOwned, New: Serialize>(
        self,
        from: impl Into<String>,
        to: impl Into<String>,
        convert: impl Fn(Old) -> std::result::Result<New, String> + Send + Sync + 'static,
    ) -> SerdeEventsBuilder<E, F> {
        let builder = SerdeEventsBuilder {
            steps: Vec::new(),
            events: PhantomData,
        };
        builder.upcast(from, to, convert)
    }
}

/// A [`SerdeEvents`] that also reads older forms. [`build`](Self::build) checks it and makes it ready.
#[must_use = "call build()"]
pub struct SerdeEventsBuilder<E, F> {
    steps: Vec<UpcastStep>,
    events: PhantomData<fn(E, F) -> E>,
}

impl<E: Serialize + DeserializeOwned + 'static, F: Format> SerdeEventsBuilder<E, F> {
    /// Reads events stored as `from` as events of type `to`, which is a variant of `E` or begins another upcast.
    ///
    /// `convert` turns the old data into the new data, as types of serde: a struct of the old form,
    /// [`serde_json::Value`] if the data has no bytes in it, or a value of another crate. Its error says what is wrong
    /// with the data and makes the event malformed. `convert` runs at each read of an old event and must always give
    /// the same answer. What is stored never changes.
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
        self.steps.push(UpcastStep {
            from: from.into(),
            to: to.into(),
            convert: Box::new(move |data| F::write(&convert(F::read(data)?)?)),
        });
        self
    }

    /// Checks the upcasts and returns the codec.
    ///
    /// # Errors
    /// `InvalidArgument` if `E` is no enum in serde's default representation. The error is also returned if an upcast
    /// is declared twice, begins at a variant of `E`, leads in a circle, or leads to a type that is neither a variant
    /// nor upcast.
    pub fn build(self) -> Result<SerdeEvents<E, F>> {
        let names = tagged::names_of::<E>().ok_or_else(|| Error::invalid("codec", NOT_AN_ENUM))?;
        Ok(SerdeEvents {
            upcasts: Upcasts::new(self.steps, |name| names.contains(&name))?,
            events: PhantomData,
        })
    }
}

impl<E: Serialize + DeserializeOwned + 'static, F: Format> EventCodec<E> for SerdeEvents<E, F> {
    fn encode(&self, event: &E) -> std::result::Result<Encoded, CodecError> {
        let name = Cell::new(None);
        let content = Content { event, name: &name };
        let data = F::write(&content).map_err(CodecError::Unwritable)?;
        Ok(Encoded {
            event_type: stored_type(name.get())?,
            content_type: F::CONTENT_TYPE,
            data: Bytes::from(data),
        })
    }

    fn decode(&self, stored: Stored<'_>) -> std::result::Result<E, CodecError> {
        F::check(stored)?;
        let upcast = self.upcasts.apply(stored.event_type, stored.data)?;
        let (name, data) = match &upcast {
            Some((name, data)) => (*name, data.as_slice()),
            None => (stored.event_type, stored.data.as_ref()),
        };
        F::read_event(name, data).map_err(|error| error.of_stored(stored.event_type, name))
    }
}

impl<E: Serialize + DeserializeOwned + 'static, F: Format> Default for SerdeEvents<E, F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E, F: Format> fmt::Debug for SerdeEvents<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(&format!("{}Events", F::NAME))
            .field("upcasts", &self.upcasts)
            .finish()
    }
}

impl<E, F: Format> fmt::Debug for SerdeEventsBuilder<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(&format!("{}EventsBuilder", F::NAME))
            .field("upcasts", &self.steps.len())
            .finish()
    }
}
