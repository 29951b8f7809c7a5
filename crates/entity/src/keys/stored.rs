//! Remembered commands as they stand in snapshots.
//!
//! Why not as they are in memory: when a process has seen a command first is a time of its own, without a clock that
//! others share; a snapshot says instead how long ago that was when the snapshot was taken.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Fingerprint, List, Remembered};

/// What an entity remembers at one moment, for a snapshot. What the lists hold is shared and not copied.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) given: List,
    pub(crate) made: List,
    /// The moment, as in [`Remembered::seen_ms`].
    pub(crate) now_ms: i64,
    /// When the youngest command was first seen of those that are forgotten, if one of them can still be sent again.
    pub(crate) forgotten_ms: Option<i64>,
}

/// What a snapshot says of remembered commands.
#[derive(Debug)]
pub(crate) struct RestoredKeys {
    /// Oldest first: those with keys that nodes have made, then those with keys of callers. Their times are relative to
    /// the moment of the snapshot.
    pub(crate) keys: Vec<Remembered>,
    pub(crate) forgotten_age_ms: Option<u64>,
}

impl RestoredKeys {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.forgotten_age_ms.is_none()
    }
}

/// A command in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredCommand<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    reply: Cow<'a, RawValue>,
    revision: Option<u64>,
    at: i64,
    /// Missing in what the first versions have stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<Fingerprint>,
    /// At least so long before the snapshot the command was carried out. Missing in what the first versions have
    /// stored.
    #[serde(default)]
    age_ms: u64,
}

impl<'a> StoredCommand<'a> {
    pub(crate) fn of(one: &'a Remembered, now_ms: i64) -> Self {
        Self {
            key: Cow::Borrowed(&one.key),
            reply: Cow::Borrowed(&one.reply),
            revision: one.revision,
            at: one.at,
            command: one.command,
            age_ms: age(one.seen_ms, now_ms),
        }
    }

    /// The command, with the time relative to the snapshot.
    pub(crate) fn read(self) -> Remembered {
        Remembered {
            key: self.key.into_owned(),
            reply: self.reply.into_owned(),
            revision: self.revision,
            at: self.at,
            command: self.command,
            seen_ms: 0_i64.saturating_sub_unsigned(self.age_ms),
        }
    }
}

/// The time from one moment to another.
pub(crate) fn age(seen_ms: i64, now_ms: i64) -> u64 {
    u64::try_from(now_ms.saturating_sub(seen_ms)).unwrap_or(0)
}
