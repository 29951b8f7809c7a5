//! Identifiers and numbers, each with a type of its own so that they cannot be mixed up.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::limits;

/// Checks the length of a name in bytes, and that it has no control characters.
fn check_name(field: &'static str, value: &str, bytes_max: usize) -> Result<()> {
    if value.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    if value.len() > bytes_max {
        return Err(Error::invalid(
            field,
            format!("must be at most {bytes_max} bytes, found {}", value.len()),
        ));
    }
    if let Some((at, c)) = value.char_indices().find(|(_, c)| c.is_control()) {
        return Err(Error::invalid(
            field,
            format!(
                "must not contain control characters, found U+{:04X} at byte {at}",
                u32::from(c)
            ),
        ));
    }
    Ok(())
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $field:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks a text and makes a value of it.
            ///
            /// # Errors
            /// `InvalidArgument` if the text is empty, is too long, or contains control characters.
            pub fn new(value: impl Into<Arc<str>>) -> Result<Self> {
                let value = value.into();
                check_name($field, &value, $max)?;
                Ok(Self(value))
            }

            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Error;
            fn try_from(value: &str) -> Result<Self> {
                Self::new(value)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(value: String) -> Result<Self> {
                Self::new(value)
            }
        }

        impl std::str::FromStr for $name {
            type Err = Error;
            fn from_str(value: &str) -> Result<Self> {
                Self::new(value)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type!(
    /// Name of a stream: 1 to 1,024 bytes of UTF-8 without control characters, compared byte by byte.
    ///
    /// Names that start with `$` belong to the system; `$$name` is the metadata stream of `name`.
    StreamId, "stream", limits::STREAM_NAME_BYTES_MAX
);
name_type!(
    /// Type of an event: 1 to 512 bytes of UTF-8 without control characters.
    EventType, "type", limits::EVENT_TYPE_BYTES_MAX
);
name_type!(
    /// A free label of an event: 1 to 256 bytes of UTF-8 without control characters.
    Tag, "tags", limits::TAG_BYTES_MAX
);

/// Prefix of the name of every metadata stream.
const METADATA_PREFIX: &str = "$$";

impl StreamId {
    /// Returns the category: the text before the first `-` of the name, or the whole name if it contains none.
    #[must_use]
    pub fn category(&self) -> &str {
        self.0
            .split_once('-')
            .map_or(&*self.0, |(category, _)| category)
    }

    /// Returns true if the name starts with `$`.
    #[must_use]
    pub fn is_system(&self) -> bool {
        self.0.starts_with('$')
    }

    /// Returns the stream whose metadata this stream holds: its name is what follows the `$$` of this one. Returns
    /// `None` if this name does not start with `$$`, or if no valid name follows.
    #[must_use]
    pub fn described_stream(&self) -> Option<StreamId> {
        let name = self.0.strip_prefix(METADATA_PREFIX)?;
        StreamId::new(name).ok()
    }

    /// Returns the metadata stream `$$name` of this stream. Its name may be two bytes longer than an ordinary one.
    #[must_use]
    pub fn metadata_stream(&self) -> StreamId {
        StreamId(Arc::from(format!("{METADATA_PREFIX}{}", self.0)))
    }

    /// Makes a stream id of a name that a store has kept, without checking the name again.
    ///
    /// For backends only: a stored name was checked when it was appended.
    #[must_use]
    pub fn from_stored(name: Arc<str>) -> StreamId {
        StreamId(name)
    }
}

impl EventType {
    /// Makes an event type of a text that a store has kept, without checking the text again. For backends only.
    #[must_use]
    pub fn from_stored(name: Arc<str>) -> EventType {
        EventType(name)
    }
}

impl Tag {
    /// Makes a tag of a text that a store has kept, without checking the text again. For backends only.
    #[must_use]
    pub fn from_stored(name: Arc<str>) -> Tag {
        Tag(name)
    }
}

/// Identity of an event, chosen by the client: the key of idempotent appends within one stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventId(pub Uuid);

impl EventId {
    /// Makes a new random id.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of an event in its stream. The first event has 0; there are no gaps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u64);

impl Revision {
    /// Largest revision that a store accepts. Databases keep 63 bits.
    pub const MAX: Revision = Revision(i64::MAX as u64 - 1);

    /// Returns the revision after this one. The largest `u64` stays as it is.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Place of an event in the order of its log. The first event has 1; 0 is before all events. Do not rely on
/// gaplessness.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position(pub u64);

impl Position {
    /// The position before the first event of a log.
    pub const START: Position = Position(0);
    /// Largest position that a store accepts. Databases keep 63 bits.
    pub const MAX: Position = Position(i64::MAX as u64 - 1);

    /// Returns the position after this one. The largest `u64` stays as it is.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the position that is greater by `count`, at most the largest `u64`.
    #[must_use]
    pub fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a log, which is the unit of order. The first log of a store is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogId(pub u16);

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of one life of a store. A restore from a backup, or a fail-over that lost commits, begins another life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incarnation(pub Uuid);

impl Incarnation {
    /// Makes a new random incarnation.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_at_their_limits_and_not_beyond() {
        assert!(StreamId::new("a").is_ok());
        assert!(StreamId::new("x".repeat(1_024)).is_ok());
        assert!(StreamId::new("x".repeat(1_025)).is_err());
        assert!(StreamId::new("").is_err());
        assert!(EventType::new("x".repeat(512)).is_ok());
        assert!(EventType::new("x".repeat(513)).is_err());
        assert!(Tag::new("x".repeat(257)).is_err());
    }

    #[test]
    fn control_characters_are_refused_and_named() {
        let error = StreamId::new("a\u{0}b").expect_err("refused");
        assert!(error.to_string().contains("U+0000 at byte 1"), "{error}");
        assert!(StreamId::new("a\u{85}b").is_err());
        assert!(StreamId::new("größe-1 ☃").is_ok());
    }

    #[test]
    fn category_is_the_text_before_the_first_dash() {
        assert_eq!(StreamId::new("cart-1-2").expect("valid").category(), "cart");
        assert_eq!(StreamId::new("cart").expect("valid").category(), "cart");
    }

    #[test]
    fn metadata_stream_and_back() {
        let stream = StreamId::new("cart-1").expect("valid");
        let meta = stream.metadata_stream();
        assert_eq!(meta.as_str(), "$$cart-1");
        assert_eq!(meta.described_stream(), Some(stream));
    }
}
