//! Remembered commands as snapshots hold them.
//!
//! Why they differ from those in memory: the time at which a process has first seen a command belongs to that process,
//! without a clock that others share. A snapshot says instead how long before the snapshot that was.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Fingerprint, List, Remembered};

/// What an entity remembers at one moment, for a snapshot. What the lists hold is shared and not copied.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) given: List,
    pub(crate) made: List,
    /// The moment in milliseconds, as in [`Remembered::seen_ms`].
    pub(crate) now_ms: i64,
    /// The time at which the youngest forgotten command was first seen, if it can still be sent again.
    pub(crate) forgotten_ms: Option<i64>,
}

/// What a snapshot says about remembered commands.
#[derive(Debug)]
pub(crate) struct RestoredKeys {
    /// The commands: first those with keys that nodes have made, then those with keys of callers, each oldest first.
    /// Their times are relative to the moment of the snapshot.
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
    /// The fingerprint of the command. What the first versions have stored has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<Fingerprint>,
    /// The least time in milliseconds between the command and the snapshot. What the first versions have stored has
    /// none.
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

    /// Returns the command, with a time relative to the snapshot.
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

/// Returns the time from one moment to another, in milliseconds; 0 if it is negative.
pub(crate) fn age(seen_ms: i64, now_ms: i64) -> u64 {
    u64::try_from(now_ms.saturating_sub(seen_ms)).unwrap_or(0)
}
