//! Idempotency keys: which commands an entity has already carried out, and what it replied.
//!
//! Key and reply travel in the metadata of the last event of their command, so they are stored with it or not at all,
//! and in snapshots. A key without events is not remembered: nothing happened.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use gesta_core::{Error, RecordedEvent, Result, Revision, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Longest key, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 256;

/// Replies to JSON and back.
pub(crate) struct ReplyCodec<R> {
    pub(crate) encode: fn(&R) -> std::result::Result<Box<RawValue>, serde_json::Error>,
    pub(crate) decode: fn(&RawValue) -> std::result::Result<R, serde_json::Error>,
}

impl<R: Serialize + DeserializeOwned> ReplyCodec<R> {
    pub(crate) fn json() -> Self {
        Self {
            encode: |reply| serde_json::value::to_raw_value(reply),
            decode: |json| serde_json::from_str(json.get()),
        }
    }
}

/// Checks a key.
///
/// # Errors
/// `InvalidArgument` if it is empty or too long.
pub(crate) fn check(key: &str) -> Result<()> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    Err(Error::invalid(
        "idempotency key",
        format!("must be 1 to {KEY_BYTES_MAX} bytes, found {}", key.len()),
    ))
}

/// What stands in the metadata of an event.
#[derive(Serialize, Deserialize)]
struct Metadata<'a> {
    #[serde(rename = "$idempotencyKey", borrow)]
    key: std::borrow::Cow<'a, str>,
    #[serde(rename = "$reply", borrow)]
    reply: std::borrow::Cow<'a, RawValue>,
}

/// The metadata of the last event of a command with a key.
pub(crate) fn metadata(key: &str, reply: &RawValue) -> Result<Bytes> {
    let metadata = Metadata {
        key: key.into(),
        reply: std::borrow::Cow::Borrowed(reply),
    };
    serde_json::to_vec(&metadata)
        .map(Bytes::from)
        .map_err(|error| Error::invalid("reply", error.to_string()))
}

/// A command that was carried out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Remembered {
    key: String,
    pub(crate) reply: Box<RawValue>,
    /// Of its last event, if this process knows.
    pub(crate) revision: Option<u64>,
    /// When it was stored, in microseconds.
    at: i64,
}

/// The keys of one entity, oldest first.
#[derive(Debug, Default, Clone)]
pub(crate) struct Keys {
    by_key: HashMap<String, Remembered>,
    order: VecDeque<String>,
}

impl Keys {
    pub(crate) fn get(&self, key: &str) -> Option<&Remembered> {
        self.by_key.get(key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Remembers a command that is being carried out, or was.
    pub(crate) fn insert(
        &mut self,
        key: &str,
        reply: Box<RawValue>,
        revision: Option<Revision>,
        at: Timestamp,
    ) {
        let remembered = Remembered {
            key: key.to_owned(),
            reply,
            revision: revision.map(|revision| revision.0),
            at: at.as_micros(),
        };
        if self.by_key.insert(key.to_owned(), remembered).is_none() {
            self.order.push_back(key.to_owned());
        }
    }

    /// Remembers the key of a stored event, if it has one.
    pub(crate) fn learn(&mut self, event: &RecordedEvent) {
        if event.metadata.is_empty() {
            return;
        }
        // Metadata of other writers may be anything.
        if let Ok(found) = serde_json::from_slice::<Metadata<'_>>(&event.metadata) {
            let reply = found.reply.into_owned();
            self.insert(&found.key, reply, Some(event.revision), event.created);
        }
    }

    /// Forgets what was stored before a moment.
    pub(crate) fn forget_before(&mut self, moment: i64) {
        while let Some(oldest) = self.order.front()
            && self
                .by_key
                .get(oldest)
                .is_none_or(|remembered| remembered.at < moment)
        {
            self.by_key.remove(oldest);
            self.order.pop_front();
        }
    }

    /// All of them, oldest first, for a snapshot.
    pub(crate) fn to_vec(&self) -> Vec<Remembered> {
        self.order
            .iter()
            .filter_map(|key| self.by_key.get(key).cloned())
            .collect()
    }

    /// Those of a snapshot.
    pub(crate) fn from_vec(all: Vec<Remembered>) -> Self {
        let order = all.iter().map(|one| one.key.clone()).collect();
        let by_key = all.into_iter().map(|one| (one.key.clone(), one)).collect();
        Self { by_key, order }
    }
}
