//! Snapshots: the state at a revision, so that an entity with many events loads fast. A snapshot is always safe to
//! delete.
//!
//! A snapshot is an event in the stream `$snapshot-<stream>`, which keeps only its last event. A snapshot names the
//! event after which it was taken by revision *and* id. If that event is not found there any more (another history
//! after a restore, a deleted stream), or if the version or the bytes cannot be read, the snapshot is ignored and a new
//! one is written in time. Snapshots are encoded and written by a task of their own, so that no command waits for this;
//! idempotency keys are shared with that task. The oldest keys are left out when a snapshot would be larger than an
//! event may be.

use gesta_core::limits::EVENT_BYTES_MAX;
use gesta_core::system_streams::SNAPSHOT_PREFIX;
use gesta_core::{
    ContentType, EventData, EventId, EventType, RecordedEvent, Result, Revision, StreamId,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::guard::guarded;
use crate::keys::{Held, List, RestoredKeys, StoredCommand, age};

/// The event type of snapshots.
const SNAPSHOT_TYPE: &str = "$snapshot";
/// The greatest number of bytes of the header of a snapshot without its keys.
const HEADER_BYTES_MAX: usize = 1_024;
type Due<D> = Box<dyn Fn(&D, u64) -> bool + Send + Sync>;
type Encode<D> = fn(&D) -> std::result::Result<Vec<u8>, String>;
type Decode<D> = fn(&[u8]) -> std::result::Result<D, String>;

/// When snapshots are taken, and how they are stored.
pub struct Snapshots<D> {
    version: u32,
    content_type: ContentType,
    encode: Encode<D>,
    decode: Decode<D>,
    clone: fn(&D) -> D,
    due: Due<D>,
}

impl<D> std::fmt::Debug for Snapshots<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshots")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl<D: Clone + Send + 'static> Snapshots<D> {
    /// Keeps snapshots as JSON, every 100 events. Raise `version` whenever the type or the meaning of the state
    /// changes: snapshots of other versions are ignored.
    #[must_use]
    pub fn json(version: u32) -> Self
    where
        D: Serialize + DeserializeOwned,
    {
        Self::with(
            version,
            ContentType::Json,
            |state| serde_json::to_vec(state).map_err(|error| error.to_string()),
            |bytes| serde_json::from_slice(bytes).map_err(|error| error.to_string()),
        )
    }

    /// Keeps snapshots as CBOR, every 100 events; see [`json`](Self::json).
    #[cfg(feature = "cbor")]
    #[must_use]
    pub fn cbor(version: u32) -> Self
    where
        D: Serialize + DeserializeOwned,
    {
        Self::with(
            version,
            ContentType::Binary,
            |state| {
                let mut bytes = Vec::new();
                ciborium::into_writer(state, &mut bytes).map_err(|error| error.to_string())?;
                Ok(bytes)
            },
            crate::codec::read_cbor,
        )
    }

    /// Keeps snapshots in a form of your own, every 100 events; see [`json`](Self::json).
    #[must_use]
    pub fn with(
        version: u32,
        content_type: ContentType,
        encode: Encode<D>,
        decode: Decode<D>,
    ) -> Self {
        Self {
            version,
            content_type,
            encode,
            decode,
            clone: D::clone,
            due: Box::new(|_, events| events >= 100),
        }
    }

    /// Takes a snapshot every `events` events (at least 1).
    #[must_use]
    pub fn every(self, events: u64) -> Self {
        self.when(move |_, since| since >= events.max(1))
    }

    /// Takes a snapshot when `due` says so, from the state and the number of events since the last snapshot.
    #[must_use]
    pub fn when(mut self, due: impl Fn(&D, u64) -> bool + Send + Sync + 'static) -> Self {
        self.due = Box::new(due);
        self
    }
}

impl<D> Snapshots<D> {
    pub(crate) fn is_due(&self, state: &D, events_since: u64) -> bool {
        (self.due)(state, events_since)
    }

    pub(crate) fn copy(&self, state: &D) -> D {
        (self.clone)(state)
    }

    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Writes a state as snapshots hold it.
    pub(crate) fn write_state(&self, state: &D) -> std::result::Result<Vec<u8>, String> {
        guarded("the writing of a snapshot", || (self.encode)(state))
            .map_err(|panicked| panicked.to_string())?
    }

    /// Reads a state that a snapshot of the same version held.
    pub(crate) fn read_state(&self, bytes: &[u8]) -> std::result::Result<D, String> {
        guarded("the reading of a snapshot", || (self.decode)(bytes))
            .map_err(|panicked| panicked.to_string())?
    }

    /// Reads the state, its revision, the id of its last event and the keys, if the snapshot can be used. The error
    /// says why it cannot.
    pub(crate) fn read(&self, event: &RecordedEvent) -> std::result::Result<Restored<D>, String> {
        let header: Header<StoredCommand<'_>> =
            serde_json::from_slice(&event.metadata).map_err(|error| error.to_string())?;
        if header.version != self.version {
            return Err(format!("version {}, not {}", header.version, self.version));
        }
        Ok(Restored {
            state: self.read_state(&event.data)?,
            revision: Revision(header.revision),
            last: EventId(header.event_id),
            keys: RestoredKeys {
                keys: header.keys.into_iter().map(StoredCommand::read).collect(),
                forgotten_age_ms: header.keys_forgotten_age_ms,
            },
        })
    }
}

/// What the metadata of a snapshot holds.
#[derive(Serialize, Deserialize)]
struct Header<K> {
    version: u32,
    revision: u64,
    event_id: uuid::Uuid,
    /// The remembered commands: first those with keys that nodes have made, then those with keys of callers, each
    /// oldest first.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    keys: Vec<K>,
    /// How long before the snapshot the youngest of the left-out commands was first seen, in milliseconds. These are
    /// the commands that are not among `keys` although they might be sent again; `None` if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keys_forgotten_age_ms: Option<u64>,
}

/// A snapshot that was read.
pub(crate) struct Restored<D> {
    pub(crate) state: D,
    pub(crate) revision: Revision,
    pub(crate) last: EventId,
    pub(crate) keys: RestoredKeys,
}

/// A state that is to be written once the event after which it was taken is durable.
pub(crate) struct Draft<D> {
    pub(crate) state: D,
    pub(crate) last: EventId,
    pub(crate) keys: Held,
}

/// A draft whose event is durable.
pub(crate) struct Ready<D> {
    pub(crate) stream: StreamId,
    pub(crate) revision: Revision,
    pub(crate) draft: Draft<D>,
}

/// Returns the stream of the snapshots of a stream.
pub(crate) fn snapshot_stream(stream: &StreamId) -> Result<StreamId> {
    StreamId::new(format!("{SNAPSHOT_PREFIX}{stream}"))
}

impl<D> Snapshots<D> {
    /// Makes the event of a snapshot. Returns it with the number of the oldest keys that do not fit into it.
    pub(crate) fn event(&self, due: &Ready<D>) -> Result<(EventData, u64)> {
        let invalid = |error: String| gesta_core::Error::invalid("snapshot", error);
        let data = self.write_state(&due.draft.state).map_err(invalid)?;
        let space = EVENT_BYTES_MAX.saturating_sub(data.len() + HEADER_BYTES_MAX);
        let held = &due.draft.keys;
        // Those that nodes have made are younger than a few minutes.
        let made = youngest_that_fit(&held.made, space, held.now_ms);
        let taken: usize = made.iter().map(|key| key.get().len() + 1).sum();
        let given = youngest_that_fit(&held.given, space - taken, held.now_ms);
        let left_out = [(&held.made, made.len()), (&held.given, given.len())];
        let youngest = left_out.iter().filter_map(|(list, fitting)| {
            let left_out = list.youngest_first().nth(*fitting)?;
            Some(left_out.seen_ms)
        });
        let forgotten_ms = youngest.chain(held.forgotten_ms).max();
        let left_out = left_out.map(|(list, fitting)| list.len() - fitting);
        let header = Header {
            version: self.version,
            revision: due.revision.0,
            event_id: due.draft.last.0,
            keys: made.into_iter().chain(given).collect(),
            keys_forgotten_age_ms: forgotten_ms.map(|seen_ms| age(seen_ms, held.now_ms)),
        };
        let event = EventData {
            id: None,
            event_type: EventType::new(SNAPSHOT_TYPE)?,
            content_type: self.content_type,
            data: data.into(),
            metadata: serde_json::to_vec(&header)
                .map_err(|error| invalid(error.to_string()))?
                .into(),
            tags: gesta_core::Tags::NONE,
        };
        Ok((event, left_out.iter().sum::<usize>() as u64))
    }
}

/// Returns as many of the youngest keys as fit into `space` bytes, oldest first, as JSON.
fn youngest_that_fit(keys: &List, space: usize, now_ms: i64) -> Vec<Box<RawValue>> {
    let mut left = space;
    let fitting = keys.youngest_first().map_while(|one| {
        let json = serde_json::value::to_raw_value(&StoredCommand::of(one, now_ms)).ok()?;
        // With its comma.
        left = left.checked_sub(json.get().len() + 1)?;
        Some(json)
    });
    let mut fitting: Vec<_> = fitting.collect();
    fitting.reverse();
    fitting
}
