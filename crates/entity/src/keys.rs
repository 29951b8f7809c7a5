//! Idempotency keys: which commands an entity has already carried out, and what it replied.
//!
//! The key, the reply and a fingerprint of the command are written into the metadata of its last event. So they are
//! stored with the event or not at all; snapshots hold them too. A key without events is not remembered, because
//! nothing happened. Invariants: an entity remembers no more than its [`Bounds`], also while it is loaded; it knows
//! whether it has forgotten a command that may still be sent again ([`Keys::may_have_known`]), and the clocks of nodes
//! take no part in that; a copy for a snapshot shares what it holds, so its cost does not grow with the number of keys.
//! Not here: when a key is looked up and what is answered (`slot::command`).

use std::borrow::{Borrow, Cow};
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use gesta_core::{Error, RecordedEvent, Result};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_128;

use crate::stats::Counters;

mod list;
mod stored;

pub(crate) use list::List;
pub(crate) use stored::{Held, RestoredKeys, StoredCommand, age};

/// The greatest length of a key, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 256;
/// How many bytes a remembered command counts beside its key and its reply: times, numbers, pointers.
const OVERHEAD_BYTES: usize = 128;

type JsonResult<T> = std::result::Result<T, serde_json::Error>;
/// Returns the bytes that tell a command from others.
type Form<C> = Box<dyn Fn(&C) -> JsonResult<Vec<u8>> + Send + Sync>;

/// What an entity type needs for keys: it turns commands into bytes, and replies into JSON and back.
pub(crate) struct KeyCodec<C, R> {
    pub(crate) form: Form<C>,
    pub(crate) encode: fn(&R) -> JsonResult<Box<RawValue>>,
    pub(crate) decode: fn(&RawValue) -> JsonResult<R>,
}

impl<C, R: Serialize + DeserializeOwned> KeyCodec<C, R> {
    /// Makes a codec that writes replies as JSON, and commands in this form.
    pub(crate) fn new(form: impl Fn(&C) -> JsonResult<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self {
            form: Box::new(form),
            encode: |reply| serde_json::value::to_raw_value(reply),
            decode: |json| serde_json::from_str(json.get()),
        }
    }
}

/// Returns JSON that is the same for equal values: the keys of objects are sorted.
pub(crate) fn sorted_json(value: &impl Serialize) -> JsonResult<Vec<u8>> {
    serde_json::to_vec(&serde_json::to_value(value)?)
}

/// A fingerprint that tells a command from another command with the same key. The fingerprint is the XXH3 hash of the
/// form of the command, with 128 bits (Collet, 2019; the algorithm is final).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(u128);

impl Fingerprint {
    pub(crate) fn of(form: &[u8]) -> Self {
        Self(xxh3_128(form))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16)
            .map(Self)
            .map_err(D::Error::custom)
    }
}

/// Checks the length of a key.
///
/// # Errors
/// `InvalidArgument` if the key is empty or too long.
pub(crate) fn check(key: &str) -> Result<()> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    Err(Error::invalid(
        "idempotency key",
        format!("must be 1 to {KEY_BYTES_MAX} bytes, found {}", key.len()),
    ))
}

/// Checks a key that a caller gives.
///
/// # Errors
/// `InvalidArgument` if the key begins as the keys do that nodes make: it would be remembered as briefly as these.
pub(crate) fn check_given(key: &str) -> Result<()> {
    if !key.starts_with(MADE) {
        return Ok(());
    }
    let rule = format!("must not begin with {MADE:?}, which is for keys that nodes make");
    Err(Error::invalid("idempotency key", rule))
}

/// What the metadata of an event holds about its command.
#[derive(Serialize, Deserialize)]
struct Metadata<'a> {
    #[serde(rename = "$idempotencyKey", borrow)]
    key: Cow<'a, str>,
    #[serde(rename = "$reply", borrow)]
    reply: Cow<'a, RawValue>,
    /// The fingerprint of the command. Events of the first versions have none.
    #[serde(rename = "$command", default, skip_serializing_if = "Option::is_none")]
    command: Option<Fingerprint>,
}

/// Makes the metadata of the last event of a command with a key.
pub(crate) fn metadata(key: &str, command: Fingerprint, reply: &RawValue) -> Result<Bytes> {
    let metadata = Metadata {
        key: key.into(),
        reply: Cow::Borrowed(reply),
        command: Some(command),
    };
    serde_json::to_vec(&metadata)
        .map(Bytes::from)
        .map_err(|error| Error::invalid("reply", error.to_string()))
}

/// A command that was carried out, or is being carried out.
#[derive(Debug)]
pub(crate) struct Remembered {
    pub(crate) key: String,
    pub(crate) reply: Box<RawValue>,
    /// The revision of the last event of the command, if this process knows it.
    pub(crate) revision: Option<u64>,
    /// The time at which the command was stored, in microseconds, by the clock of the node that has stored it.
    pub(crate) at: i64,
    /// The fingerprint of the command. What the first versions have stored has none.
    pub(crate) command: Option<Fingerprint>,
    /// The time at which the command was first seen in memory, in milliseconds of the shard, which do not depend on a
    /// clock. A command that was loaded was stored before.
    pub(crate) seen_ms: i64,
}

impl Remembered {
    /// Returns the number of bytes that the command counts.
    fn bytes(&self) -> usize {
        self.key.len() + self.reply.get().len() + OVERHEAD_BYTES
    }
}

/// What an entity remembers at most. The last command is remembered in any case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) keys_max: usize,
    pub(crate) bytes_max: usize,
    /// The time in microseconds before which commands with keys of callers are forgotten, by the time at which they
    /// were stored.
    pub(crate) from: i64,
    /// The time in milliseconds before which commands with keys that nodes have made are forgotten, by the time at
    /// which they were first seen.
    pub(crate) made_from_ms: i64,
    /// The time in milliseconds before which a command was first seen if it is no longer sent again.
    pub(crate) sent_again_from_ms: i64,
}

/// The beginning of each key that a node has made, for a command that it forwards.
const MADE: &str = "$made-";

/// Makes a key for a command to which its caller gave none.
pub(crate) fn make() -> String {
    format!("{MADE}{}", uuid::Uuid::new_v4().simple())
}

/// The keys of one entity. Keys that nodes have made are needed for a short time only. Such keys are bounded
/// separately, so that no key of a caller is forgotten because of them.
#[derive(Debug)]
pub(crate) struct Keys {
    given: Memory,
    made: Memory,
}

/// One part of the keys of one entity. A part is counted in the gauges of the runtime as long as it lives.
#[derive(Debug)]
struct Memory {
    is_old: fn(&Remembered, &Bounds) -> bool,
    by_key: HashSet<ByKey>,
    /// The commands, oldest first. A key that came again after another process had forgotten it may have two entries
    /// here.
    order: List,
    bytes: usize,
    /// The time at which the youngest command was first seen of those that were forgotten while they could still be
    /// sent again.
    forgotten_ms: Option<i64>,
    counters: Arc<Counters>,
}

/// A remembered command, which is found by its key.
#[derive(Debug)]
struct ByKey(Arc<Remembered>);

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        &self.0.key
    }
}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

impl Keys {
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self {
            given: Memory::new(|one, bounds| one.at < bounds.from, Arc::clone(&counters)),
            made: Memory::new(|one, bounds| one.seen_ms < bounds.made_from_ms, counters),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Remembered> {
        self.memory_of(key).get(key)
    }

    /// Returns whether a command with this key that is sent again may be one that was forgotten.
    pub(crate) fn may_have_known(&self, key: &str, bounds: Bounds) -> bool {
        self.memory_of(key).may_have_known(bounds)
    }

    fn memory_of(&self, key: &str) -> &Memory {
        match key.starts_with(MADE) {
            true => &self.made,
            false => &self.given,
        }
    }

    /// Returns whether there is nothing that a new memory would not know as well.
    pub(crate) fn is_empty(&self, bounds: Bounds) -> bool {
        let is_empty = |memory: &Memory| memory.order.len() == 0 && !memory.may_have_known(bounds);
        is_empty(&self.given) && is_empty(&self.made)
    }

    /// Returns everything that is remembered, for a snapshot.
    pub(crate) fn held(&self, now_ms: i64) -> Held {
        Held {
            given: self.given.order.clone(),
            made: self.made.order.clone(),
            now_ms,
            forgotten_ms: self.given.forgotten_ms.max(self.made.forgotten_ms),
        }
    }

    /// Remembers what a snapshot says.
    pub(crate) fn restore(&mut self, restored: RestoredKeys, now_ms: i64, bounds: Bounds) {
        if let Some(age_ms) = restored.forgotten_age_ms {
            let forgotten_ms = Some(now_ms.saturating_sub_unsigned(age_ms));
            for memory in [&mut self.given, &mut self.made] {
                memory.forgotten_ms = memory.forgotten_ms.max(forgotten_ms);
            }
        }
        for one in restored.keys {
            let seen_ms = now_ms.saturating_add(one.seen_ms);
            let one = Remembered { seen_ms, ..one };
            if !(self.memory_of(&one.key).is_old)(&one, &bounds) {
                self.insert(one, bounds);
            }
        }
    }

    /// Remembers a command that is being carried out, or was. Others may be forgotten because of it.
    pub(crate) fn insert(&mut self, remembered: Remembered, bounds: Bounds) {
        match remembered.key.starts_with(MADE) {
            true => self.made.insert(remembered, bounds),
            false => self.given.insert(remembered, bounds),
        }
    }

    /// Remembers the key of a stored event, if it has one. A key that a node has made counts as new, whenever the event
    /// was stored, because the event may have been stored by the clock of another node.
    pub(crate) fn learn(&mut self, event: &RecordedEvent, now_ms: i64, bounds: Bounds) {
        // Metadata of other writers may be anything.
        let Ok(found) = serde_json::from_slice::<Metadata<'_>>(&event.metadata) else {
            return;
        };
        let at = event.created.as_micros();
        if at < bounds.from && !found.key.starts_with(MADE) {
            return;
        }
        let remembered = Remembered {
            key: found.key.into_owned(),
            reply: found.reply.into_owned(),
            revision: Some(event.revision.0),
            at,
            command: found.command,
            seen_ms: now_ms,
        };
        self.insert(remembered, bounds);
    }

    /// Forgets commands that are too old, and the oldest ones if there are too many.
    pub(crate) fn forget(&mut self, bounds: Bounds) {
        self.given.forget(bounds);
        self.made.forget(bounds);
    }
}

impl Memory {
    fn new(is_old: fn(&Remembered, &Bounds) -> bool, counters: Arc<Counters>) -> Self {
        Self {
            is_old,
            by_key: HashSet::new(),
            order: List::default(),
            bytes: 0,
            forgotten_ms: None,
            counters,
        }
    }

    fn may_have_known(&self, bounds: Bounds) -> bool {
        let is_recent = |forgotten_ms| forgotten_ms >= bounds.sent_again_from_ms;
        self.forgotten_ms.is_some_and(is_recent)
    }

    fn get(&self, key: &str) -> Option<&Remembered> {
        self.by_key.get(key).map(|found| &*found.0)
    }

    /// Remembers a command that is being carried out, or was. Others may be forgotten because of it.
    fn insert(&mut self, remembered: Remembered, bounds: Bounds) {
        let bytes = remembered.bytes();
        let remembered = Arc::new(remembered);
        self.order.push(Arc::clone(&remembered));
        self.by_key.replace(ByKey(remembered));
        self.bytes += bytes;
        self.counters.keys.add(1);
        self.counters.key_bytes.add(bytes as u64);
        self.forget(bounds);
    }

    /// Forgets commands that are too old, and the oldest ones if there are too many.
    fn forget(&mut self, bounds: Bounds) {
        while let Some(oldest) = self.order.oldest() {
            let is_old = (self.is_old)(oldest, &bounds);
            let is_too_much = self.order.len() > bounds.keys_max || self.bytes > bounds.bytes_max;
            if !is_old && (!is_too_much || self.order.len() == 1) {
                return;
            }
            if !is_old {
                self.counters.keys_forgotten_early.add(1);
            }
            if oldest.seen_ms >= bounds.sent_again_from_ms {
                self.forgotten_ms = self.forgotten_ms.max(Some(oldest.seen_ms));
            }
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.order.pop_oldest() else {
            return;
        };
        let bytes = oldest.bytes();
        self.bytes -= bytes;
        self.counters.keys.subtract(1);
        self.counters.key_bytes.subtract(bytes as u64);
        let found = self.by_key.get(oldest.key.as_str());
        // The same key may have come again since.
        if found.is_some_and(|found| Arc::ptr_eq(&found.0, &oldest)) {
            self.by_key.remove(oldest.key.as_str());
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.counters.keys.subtract(self.order.len() as u64);
        self.counters.key_bytes.subtract(self.bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Bounds = Bounds {
        keys_max: usize::MAX,
        bytes_max: usize::MAX,
        from: 0,
        made_from_ms: 0,
        sent_again_from_ms: 0,
    };

    fn one(key: usize, at: i64) -> Remembered {
        Remembered {
            key: format!("key-{key}"),
            reply: RawValue::from_string(key.to_string()).expect("JSON"),
            revision: None,
            at,
            command: Some(Fingerprint::of(b"command")),
            seen_ms: at,
        }
    }

    fn keys(count: usize, bounds: Bounds) -> Memory {
        let mut keys = Keys::new(Arc::default()).given;
        for key in 0..count {
            keys.insert(one(key, 1), bounds);
        }
        keys
    }

    #[test]
    fn the_oldest_are_forgotten_by_count_by_bytes_and_by_age() {
        let by_count = Bounds { keys_max: 3, ..ALL };
        let by_bytes = Bounds {
            bytes_max: 3 * one(1_000, 1).bytes(),
            ..ALL
        };
        for bounds in [by_count, by_bytes] {
            let mut keys = keys(1_000, bounds);
            assert_eq!(keys.order.len(), 3, "{bounds:?}");
            assert!(keys.get("key-996").is_none() && keys.get("key-997").is_some());
            let stats = keys.counters.snapshot();
            assert_eq!((stats.keys, stats.keys_forgotten_early), (3, 997));
            assert_eq!(stats.key_bytes, keys.bytes as u64);
            keys.insert(one(2_000, 5), bounds);
            keys.forget(Bounds { from: 5, ..bounds });
            assert_eq!((keys.order.len(), keys.by_key.len()), (1, 1));
            let counters = Arc::clone(&keys.counters);
            assert_eq!(counters.snapshot().keys_forgotten_early, 998);
            drop(keys);
            let stats = counters.snapshot();
            assert_eq!((stats.keys, stats.key_bytes), (0, 0));
        }
    }

    #[test]
    fn what_came_last_is_remembered_whatever_the_bound() {
        let none = Bounds {
            keys_max: 0,
            bytes_max: 0,
            ..ALL
        };
        assert!(keys(10, none).get("key-9").is_some());
    }

    #[test]
    fn a_key_that_comes_again_is_remembered_as_long_as_its_last_time() {
        let mut keys = keys(1, ALL);
        keys.insert(one(1, 1), ALL);
        keys.insert(one(0, 7), ALL);
        keys.forget(Bounds { from: 7, ..ALL });
        assert_eq!(keys.get("key-0").map(|found| found.at), Some(7));
        assert_eq!((keys.order.len(), keys.by_key.len()), (1, 1));
    }

    /// What happened: keys of forwarded commands would have pushed those of callers out.
    #[test]
    fn keys_that_nodes_have_made_are_bounded_by_themselves() {
        let bounds = Bounds {
            keys_max: 10,
            ..ALL
        };
        let made_one = |at| Remembered {
            key: make(),
            ..one(1, at)
        };
        let mut keys = Keys::new(Arc::default());
        keys.insert(one(0, 1), bounds);
        let last = made_one(1);
        let last_key = last.key.clone();
        (0..99).for_each(|_| keys.insert(made_one(1), bounds));
        keys.insert(last, bounds);
        assert!(keys.get("key-0").is_some() && keys.get(&last_key).is_some());
        let held = keys.held(1);
        assert_eq!((held.given.len(), held.made.len()), (1, 10));
        keys.forget(Bounds {
            made_from_ms: 2,
            ..bounds
        });
        assert!(keys.get("key-0").is_some() && keys.get(&last_key).is_none());
        assert!(!keys.is_empty(bounds));
    }

    /// Stored for ever: neither the hash nor its text may change.
    #[test]
    fn a_fingerprint_is_this_text() {
        let form = sorted_json(&serde_json::json!({"b": 1, "a": [true, "x"]})).expect("JSON");
        assert_eq!(form, br#"{"a":[true,"x"],"b":1}"#);
        let text = serde_json::to_string(&Fingerprint::of(&form)).expect("JSON");
        assert_eq!(text, "\"f2c27c25e3cf71fc4540e118734a8e6a\"");
        let read: Fingerprint = serde_json::from_str(&text).expect("readable");
        assert_eq!(read, Fingerprint::of(&form));
    }
}
