//! A timer: as it is set, and as it fires.

use gesta_core::{Error, EventId, RecordedEvent, Result, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_128;

use crate::data::Data;

/// The greatest number of bytes of a key.
pub const KEY_BYTES_MAX: usize = 256;
/// The greatest number of bytes of the data of a timer, as the JSON text in which it is written.
pub const DATA_BYTES_MAX: usize = 4_096;
/// The greatest depth to which the data of a timer may nest: states hold them a few levels deeper, and JSON is read up
/// to 128 levels.
pub const DATA_DEPTH_MAX: usize = 64;

/// Why a timer could not fire; it fires again after a pause.
pub type FireError = Box<dyn std::error::Error + Send + Sync>;

/// A timer that is to be set.
#[derive(Debug, Clone)]
pub struct NewTimer {
    pub(crate) id: EventId,
    pub(crate) key: String,
    pub(crate) due: Timestamp,
    pub(crate) data: Data,
    pub(crate) because: Option<Cause>,
}

/// The place of the event because of which something is set or cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cause {
    pub(crate) log: u16,
    pub(crate) position: u64,
    /// When the event was stored, in microseconds since 1970.
    pub(crate) created: i64,
    /// The life of the store in which the event was there when the request was made, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) incarnation: Option<Uuid>,
}

impl Cause {
    pub(crate) fn of(event: &RecordedEvent) -> Self {
        Self {
            log: event.log.0,
            position: event.position.0,
            created: event.created.0,
            incarnation: None,
        }
    }

    /// Returns whether this event was before another one. Of two logs nobody knows. In one life of a log positions say
    /// it; a clock may be set back. In two of them the times have to agree: after a loss positions are used again, by
    /// events that were stored later.
    pub(crate) fn is_before(self, other: Self) -> bool {
        let of_one_life = self.incarnation.is_some() && self.incarnation == other.incarnation;
        self.log == other.log
            && self.position < other.position
            && (of_one_life || self.created <= other.created)
    }
}

impl NewTimer {
    /// Makes a timer that fires at `due`, or at once if that has passed. A timer of the same key that is pending is
    /// replaced.
    ///
    /// The id is drawn here: setting the same value again after a lost answer sets one timer.
    #[must_use]
    pub fn new(key: impl Into<String>, due: Timestamp) -> Self {
        Self {
            id: EventId::random(),
            key: key.into(),
            due,
            data: Data::default(),
            because: None,
        }
    }

    /// Makes a timer because of an event: its id is made of the id of the event and the key. So a process that handles
    /// the event again sets the same timer, with the same [`Timer::command_key`]. It does not replace a timer that was
    /// set because of a later event of the same log.
    #[must_use]
    pub fn because_of(event: &RecordedEvent, key: impl Into<String>, due: Timestamp) -> Self {
        let mut timer = Self::new(key, due);
        timer.id = id_of(&[event.id.0.as_bytes(), timer.key.as_bytes()]);
        timer.because = Some(Cause::of(event));
        timer
    }

    /// Sets what the timer carries, as JSON. Who gives a [`RawValue`] gets that very text when the timer fires.
    ///
    /// # Errors
    /// `InvalidArgument` if it has no JSON.
    pub fn with_data(mut self, data: &impl Serialize) -> Result<Self> {
        self.data = Data::of(data)?;
        Ok(self)
    }

    /// Checks the bounds.
    pub(crate) fn validate(&self) -> Result<()> {
        check(&self.key, self.due, &self.data)
    }
}

/// Checks the bounds of a timer.
pub(crate) fn check(key: &str, due: Timestamp, data: &Data) -> Result<()> {
    check_key(key)?;
    if !(0..=Timestamp::MAX.0).contains(&due.0) {
        let rule = format!("must be from 1970 to 9999, found {due}");
        return Err(Error::invalid("due", rule));
    }
    let bytes = data.bytes();
    if bytes > DATA_BYTES_MAX {
        let rule = format!("must have at most {DATA_BYTES_MAX} bytes as JSON, found {bytes}");
        return Err(Error::invalid("data", rule));
    }
    let depth = data.depth();
    if depth > DATA_DEPTH_MAX {
        let rule = format!("must nest at most {DATA_DEPTH_MAX} levels deep, found {depth}");
        return Err(Error::invalid("data", rule));
    }
    Ok(())
}

/// Makes an id of these parts: the same of the same ones.
pub(crate) fn id_of(parts: &[&[u8]]) -> EventId {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(*part);
    }
    EventId(Uuid::from_u128(xxh3_128(&bytes)))
}

/// Checks the key of a timer.
pub(crate) fn check_key(key: &str) -> Result<()> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX || key.chars().any(char::is_control) {
        let rule = format!(
            "must have 1 to {KEY_BYTES_MAX} bytes and no control characters, found {:?} of {} bytes",
            key.chars().take(40).collect::<String>(),
            key.len()
        );
        return Err(Error::invalid("key", rule));
    }
    Ok(())
}

/// A timer that is pending, or fires.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timer {
    /// The key by which it is replaced and cancelled.
    pub key: String,
    /// The time before which it does not fire.
    pub due: Timestamp,
    /// The id with which it was set: that of an event.
    pub id: EventId,
    pub(crate) data: Data,
    pub(crate) because: Option<Cause>,
}

impl Timer {
    /// Returns a key for the command that the timer gives: the same each time that this timer fires, and different for
    /// every other one, of other names as well. With it a command is carried out once, however often the timer fires,
    /// as long as the entity remembers the key.
    #[must_use]
    pub fn command_key(&self) -> String {
        format!("timer-{}", self.id)
    }

    /// Returns about how many bytes the timer has as JSON.
    pub(crate) fn bytes(&self) -> usize {
        200 + self.key.len() + self.data.bytes()
    }

    /// Returns what the timer carries, as the JSON text in which it was written; `null` if nothing. The text may hold
    /// what no Rust type does, as the number `1e400`: another program may have set the timer.
    #[must_use]
    pub fn data(&self) -> &RawValue {
        self.data.raw()
    }

    /// Reads what the timer carries.
    ///
    /// # Errors
    /// Why it is not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> std::result::Result<T, FireError> {
        Ok(serde_json::from_str(self.data.text())?)
    }
}
