//! Events as a source tells them, before they have names and types of this store.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use gesta_core::{Error, Result, Timestamp};
use uuid::Uuid;

/// A place in the order of a source: its global number, or what stands for one. A journal whose order has two parts
/// (transaction and number, commit and prepare position) uses both numbers, else `minor` is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Place {
    /// The first part.
    pub major: u64,
    /// The second part.
    pub minor: u64,
}

impl Place {
    /// The place before all events.
    pub const START: Place = Place { major: 0, minor: 0 };

    /// Makes the place of a number. A negative number counts as 0.
    #[must_use]
    pub fn number(number: i64) -> Self {
        Self {
            major: u64::try_from(number).unwrap_or(0),
            minor: 0,
        }
    }

    /// Returns the first part as databases keep it.
    pub(crate) fn major_i64(self) -> i64 {
        i64::try_from(self.major).unwrap_or(i64::MAX)
    }

    /// Returns the second part as databases keep it.
    pub(crate) fn minor_i64(self) -> i64 {
        i64::try_from(self.minor).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.minor {
            0 => write!(f, "{}", self.major),
            minor => write!(f, "{}.{minor}", self.major),
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
        let wrong = || Error::corrupt(format!("{text:?} is no place of a source"));
        Ok(Self {
            major: major.parse().map_err(|_| wrong())?,
            minor: minor.parse().map_err(|_| wrong())?,
        })
    }
}

/// What an event of a source is for the import.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Role {
    /// An event of a stream.
    #[default]
    Event,
    /// Metadata of the stream that the key names.
    StreamMetadata,
    /// The end of the stream that the key names: nothing may be appended to it any more.
    Tombstone,
    /// Nothing to import; the text says what it is, in the plural.
    LeftOut(&'static str),
}

/// An event as its source tells it.
#[derive(Clone, Debug, Default)]
pub struct SourceEvent {
    /// The entity or stream: persistence id, stream name, stream id. With a tenant it stands before, `tenant/id`.
    pub key: Arc<str>,
    /// Number of the event in its stream, as the source counts.
    pub sequence: u64,
    /// Place of the event in the order of the source.
    pub place: Place,
    /// Identity that the source gave the event, if it is a UUID.
    pub id: Option<Uuid>,
    /// Type of the event, if the source knows types.
    pub event_type: Option<String>,
    /// Manifest of the serializer, or the class of the event.
    pub manifest: Option<String>,
    /// Manifest of an event adapter.
    pub adapter_manifest: Option<String>,
    /// Number of the serializer that wrote the data.
    pub serializer: Option<i32>,
    /// The incarnation of the entity that wrote the event.
    pub writer: Option<String>,
    /// Payload of the event.
    pub data: Bytes,
    /// Metadata that the source keeps with the event.
    pub metadata: Bytes,
    /// Number of the serializer that wrote the metadata.
    pub metadata_serializer: Option<i32>,
    /// Manifest of the serializer that wrote the metadata.
    pub metadata_manifest: Option<String>,
    /// Labels of the event.
    pub tags: Vec<String>,
    /// When the event was written.
    pub time: Option<Timestamp>,
    /// Whether the source has the event marked as deleted or archived.
    pub deleted: bool,
    /// Type of the stream, if the source keeps it apart from the key.
    pub category: Option<String>,
    /// Id of the stream, if the source keeps it apart from the key.
    pub ident: Option<String>,
    /// The tenant, if there is one.
    pub tenant: Option<String>,
    /// What the event belongs to.
    pub correlation: Option<String>,
    /// What has caused the event.
    pub causation: Option<String>,
    /// What the event is for the import.
    pub(crate) role: Role,
    /// Whether the source says that the data are JSON; else a JSON object or list counts as JSON.
    pub(crate) data_is_json: bool,
    /// What tells the event from others of its number, if the source has no places that last.
    pub(crate) digest: Option<u128>,
}

impl SourceEvent {
    /// Returns the memory that the event holds, roughly, in bytes.
    pub(crate) fn cost_bytes(&self) -> usize {
        let tags: usize = self.tags.iter().map(String::len).sum();
        512 + self.key.len() + self.data.len() + self.metadata.len() + tags
    }

    /// Returns why an event is refused whose key is also that of another tenant's stream.
    pub(crate) fn of_two_tenants(&self) -> Error {
        let text = "a stream without a tenant and one of a tenant have this key: import them one after the other, from views \
                    that show one tenant (--table)";
        gesta_core::ErrorKind::Unsupported(text.into()).into()
    }

    /// Returns the event's place in words, for messages.
    pub(crate) fn named(&self) -> String {
        format!(
            "{:?} number {} (place {})",
            self.key, self.sequence, self.place
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_keep_their_text_and_order() {
        for (text, major, minor) in [("0", 0, 0), ("17", 17, 0), ("740.12", 740, 12)] {
            let place: Place = text.parse().unwrap();
            assert_eq!((place.major, place.minor), (major, minor));
            assert_eq!(place.to_string(), text);
        }
        assert!("".parse::<Place>().is_err() && "1.x".parse::<Place>().is_err());
        assert!(Place { major: 1, minor: 9 } < Place { major: 2, minor: 0 });
    }
}
