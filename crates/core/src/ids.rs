//! Identifiers and numbers, each with a type of its own so that they cannot be mixed up.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::clock::Timestamp;
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

        impl TryFrom<&String> for $name {
            type Error = Error;
            fn try_from(value: &String) -> Result<Self> {
                Self::new(value.as_str())
            }
        }

        impl From<&$name> for $name {
            fn from(value: &$name) -> Self {
                value.clone()
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

/// The beginning of 2020, in milliseconds since 1970. Incarnations count their time from there.
const TIMES_FROM_MS: u64 = 1_577_836_800_000;
/// Longest time since then that incarnations count. It is over in 2089, and positions have 62 bits then.
const TIMES_MAX_MS: u64 = (1 << 41) - 1;
/// By how many positions, as a power of two, an incarnation begins later that was begun a millisecond later.
const POSITIONS_OF_A_MS_BITS: u32 = 21;

/// Identity of one life of a store. A restore from a backup, or a fail-over that lost commits, begins another life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incarnation(pub Uuid);

impl Incarnation {
    /// Makes a new random incarnation.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Makes the incarnation that follows this one. `end` is the greatest position that is known of this one, and `now`
    /// is the time.
    ///
    /// Unlike a random incarnation it carries a time, and so a place to count positions from: see
    /// [`positions_from`](Self::positions_from). That place is beyond every position of this incarnation up to `end`,
    /// and beyond every one that was handed out by earlier incarnations, also by those that this database knows nothing
    /// of, because it was put back from a backup. The latter rests on the clock: nobody appends more than two thousand
    /// million events a second, and the clock was not set back.
    #[must_use]
    pub fn after(self, end: Position, now: Timestamp) -> Self {
        let now = u64::try_from(now.as_micros()).unwrap_or(0) / 1_000;
        let before = self.positions_from().saturating_add(end.0) >> POSITIONS_OF_A_MS_BITS;
        let since = now.saturating_sub(TIMES_FROM_MS).max(before + 1);
        let time = TIMES_FROM_MS + since.min(TIMES_MAX_MS);
        let mut random = [0; 10];
        random.copy_from_slice(&Uuid::new_v4().as_bytes()[..10]);
        Self(uuid::Builder::from_unix_timestamp_millis(time, &random).into_uuid())
    }

    /// Returns the number that is added to a position wherever a position is shown without its incarnation, as the gRPC
    /// protocol does. So a position of one incarnation is never taken for one of another: each incarnation begins
    /// beyond the positions of those before it. The first one of a store begins at 0.
    #[must_use]
    pub fn positions_from(self) -> u64 {
        match self.0.get_version_num() {
            // Others are random: the first one of a store, and those that older versions began.
            7 => {
                let since = self.time_ms().saturating_sub(TIMES_FROM_MS);
                since.min(TIMES_MAX_MS) << POSITIONS_OF_A_MS_BITS
            }
            _ => 0,
        }
    }

    /// Returns when this incarnation was begun; `None` if it does not tell.
    #[must_use]
    pub fn begun(self) -> Option<Timestamp> {
        let micros = i64::try_from(self.time_ms()).ok()?.checked_mul(1_000)?;
        (self.0.get_version_num() == 7).then_some(Timestamp(micros))
    }

    /// Returns the milliseconds since 1970 that a UUID of version 7 holds (RFC 9562, section 5.7).
    fn time_ms(self) -> u64 {
        u64::try_from(self.0.as_u128() >> 80).unwrap_or(0)
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

    /// Goal: no position that was ever shown is taken for one of a later incarnation.
    #[test]
    fn a_later_incarnation_begins_beyond_all_positions_of_earlier_ones() {
        const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
        let first = Incarnation::random();
        assert_eq!((first.positions_from(), first.begun()), (0, None));
        let mut before = first;
        // As one after the other in the same millisecond, and with a clock that goes back.
        for (end, now) in [
            (5_000, NOW),
            (10_000_000_000, NOW),
            (0, Timestamp(NOW.0 - 3_600_000_000)),
            (7, Timestamp(-1)),
            (1, Timestamp(NOW.0 + 1)),
        ] {
            let next = before.after(Position(end), now);
            let last = before.positions_from() + end;
            assert!(next.positions_from() > last, "{end} {now:?}");
            assert_ne!(next, before.after(Position(end), now));
            before = next;
        }
        // What a backup knows nothing of: a week of 100,000 events a second after it, and an incarnation in between.
        let week = 7 * 86_400;
        let lost = first.after(Position(100_000 * week), NOW);
        let shown = lost.positions_from() + 100_000 * week;
        let restored = first.after(Position(0), Timestamp(NOW.0 + 60_000_000));
        assert!(restored.positions_from() > shown);
        let begun = restored.begun().expect("it tells");
        assert_eq!(begun, Timestamp(NOW.0 + 60_000_000));
        // At the end of its time it stays within what all clients can hold.
        let last = restored.after(Position::MAX, Timestamp(i64::MAX));
        assert!(last.positions_from() < 1 << 62);
        assert!(last.after(Position::MAX, NOW).positions_from() < 1 << 62);
    }

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
