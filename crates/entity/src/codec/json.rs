//! [`JsonEvents`]: events as JSON text by serde.

use gesta_core::ContentType;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::by_serde::{Format, SerdeEvents, SerdeEventsBuilder};
use super::readable::{Numbers, Readable};
use super::tagged::{self, ReadError};
use super::{CodecError, Stored};

/// A codec for events as JSON text, by serde. This is the codec to begin with, because what it stores can be read and
/// queried with SQL.
///
/// `E` is an enum with serde's derives, in serde's default representation. The name of a variant is the type of the
/// event on disk. So give every variant the name that it is to keep for ever; the Rust name is then free to change. The
/// content of the variant is the data:
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
/// type of event, give its name as an `alias` to a unit variant for which `evolve` does nothing.
///
/// A number comes back exactly as it was. NaN and the infinities, which JSON does not have, and nesting deeper than 100
/// levels are refused before they are stored. Nesting deeper than 127 levels is refused when it is read. The content
/// type of a stored event is not checked.
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
pub type JsonEvents<E> = SerdeEvents<E, Json>;
/// A [`JsonEvents`] that also reads older forms.
pub type JsonEventsBuilder<E> = SerdeEventsBuilder<E, Json>;

/// The format JSON text.
#[derive(Debug)]
pub enum Json {}

impl Format for Json {
    const NAME: &'static str = "Json";
    const CONTENT_TYPE: ContentType = ContentType::Json;

    /// Accepts every stored event: the content type is not checked.
    fn check(_: Stored<'_>) -> Result<(), CodecError> {
        Ok(())
    }

    fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
        let readable = Readable::new(value, Numbers::Finite);
        serde_json::to_vec(&readable).map_err(|error| error.to_string())
    }

    fn read<T: DeserializeOwned>(data: &[u8]) -> Result<T, String> {
        serde_json::from_slice(data).map_err(|error| error.to_string())
    }

    fn read_event<E: DeserializeOwned>(name: &str, data: &[u8]) -> Result<E, ReadError<String>> {
        let mut content = serde_json::Deserializer::from_slice(data);
        let event = tagged::read(name, &mut content).map_err(ReadError::in_words)?;
        content
            .end()
            .map_err(|error| ReadError::Content(error.to_string()))?;
        Ok(event)
    }
}
