//! Keeps the rights of streams in memory.
//!
//! Why a set of names beside the cache: most streams have no metadata at all. The set tells this without a read, so
//! that a reader of all events costs no query for each stream. It holds 64-bit hashes; two names with the same hash
//! cost a read and nothing else.
//! Invariants: memory is bounded by [`CACHE_BYTES_MAX`] and [`KNOWN_MAX`]; rights that were read before a change are
//! never kept after it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use gesta_core::{Error, ErrorKind, EventStore, ReadStream, Result, StreamId};
use quick_cache::sync::Cache;

use crate::rights::StreamRights;

/// The most memory for rights of streams, roughly, in bytes.
const CACHE_BYTES_MAX: u64 = 32 * 1_024 * 1_024;
/// How many streams are expected to be in the cache.
const CACHE_STREAMS: usize = 20_000;
/// The most streams with metadata that are remembered. If there are more, the metadata of every stream is read once.
const KNOWN_MAX: usize = 1_000_000;
/// How many events of a metadata stream are read at most to find the rights that a deleted stream had.
const HISTORY_MAX: usize = 32;
/// How often rights are read at most because they changed during the read.
const READS_MAX: usize = 3;

#[derive(Clone)]
struct Weigh;

impl quick_cache::Weighter<StreamId, Arc<StreamRights>> for Weigh {
    fn weight(&self, stream: &StreamId, rights: &Arc<StreamRights>) -> u64 {
        let bytes = stream.as_str().len() + rights.cost_bytes();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The streams that have metadata.
#[derive(Debug)]
pub(crate) struct Known {
    hasher: RandomState,
    /// Hashes of the names of the streams; `None` if any stream may have metadata.
    hashes: Option<HashSet<u64>>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            hashes: Some(HashSet::new()),
        }
    }
}

impl Known {
    pub(crate) fn add(&mut self, name: &str) {
        let hash = self.hasher.hash_one(name);
        if let Some(hashes) = &mut self.hashes {
            hashes.insert(hash);
            if hashes.len() > KNOWN_MAX {
                tracing::info!(
                    streams = KNOWN_MAX,
                    "too many streams have metadata to remember which"
                );
                self.hashes = None;
            }
        }
    }

    /// Tells whether the set is full, so that nothing can be added.
    pub(crate) fn is_full(&self) -> bool {
        self.hashes.is_none()
    }

    fn may_have(&self, name: &str) -> bool {
        self.hashes
            .as_ref()
            .is_none_or(|hashes| hashes.contains(&self.hasher.hash_one(name)))
    }
}

/// The reads of the rights of one stream that are under way.
#[derive(Default)]
struct Loading {
    readers: usize,
    /// Counts the changes of the rights since the first of these reads began.
    changes: u64,
}

pub(crate) struct Acls {
    cache: Cache<StreamId, Arc<StreamRights>, Weigh>,
    known: RwLock<Known>,
    loading: Mutex<HashMap<StreamId, Loading>>,
    none: Arc<StreamRights>,
}

impl Default for Acls {
    fn default() -> Self {
        Self {
            cache: Cache::with_weighter(CACHE_STREAMS, CACHE_BYTES_MAX, Weigh),
            known: RwLock::default(),
            loading: Mutex::default(),
            none: Arc::default(),
        }
    }
}

impl Acls {
    /// Forgets all rights and begins with these streams as those that have metadata.
    pub(crate) fn begin(&self, known: Known) {
        let mut loading = self.loading();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        self.cache.clear();
        loading.values_mut().for_each(|read| read.changes += 1);
    }

    /// Returns the rights of a stream, unless they must be read.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<StreamRights>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if !known.may_have(name) {
            return Some(Arc::clone(&self.none));
        }
        drop(known);
        self.cache.get(name)
    }

    /// Forgets the rights of a stream, since its metadata has changed.
    pub(crate) fn changed(&self, name: &str) {
        let mut loading = self.loading();
        self.known
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .add(name);
        self.cache.remove(name);
        if let Some(read) = loading.get_mut(name) {
            read.changes += 1;
        }
    }

    /// Reads the rights of a stream, and keeps them unless they change during the read.
    pub(crate) async fn load(
        &self,
        store: &dyn EventStore,
        name: &str,
    ) -> Result<Arc<StreamRights>> {
        let stream = StreamId::new(name)?;
        let mut reads = 0;
        loop {
            let read = Reader::begin(self, &stream);
            let rights = Arc::new(read_rights(store, &stream).await?);
            reads += 1;
            if read.end(&rights) || reads == READS_MAX {
                return Ok(rights);
            }
        }
    }

    fn loading(&self) -> MutexGuard<'_, HashMap<StreamId, Loading>> {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn weight(&self) -> u64 {
        self.cache.weight()
    }
}

/// The rights that were read for one decision. They count beside those in memory, which may be dropped at any time.
#[derive(Default)]
pub(crate) struct RightsRead(Vec<(Box<str>, Arc<StreamRights>)>);

impl RightsRead {
    /// Returns the rights of a stream, unless they must be read.
    pub(crate) fn of(&self, acls: &Acls, name: &str) -> Option<Arc<StreamRights>> {
        let read = self.0.iter().find(|(stream, _)| **stream == *name);
        read.map(|(_, rights)| Arc::clone(rights))
            .or_else(|| acls.get(name))
    }

    /// Reads the rights of a stream.
    pub(crate) async fn load(
        &mut self,
        acls: &Acls,
        store: &dyn EventStore,
        name: &str,
    ) -> Result<()> {
        let rights = acls.load(store, name).await?;
        self.0.push((name.into(), rights));
        Ok(())
    }
}

/// One read of the rights of a stream.
struct Reader<'a> {
    acls: &'a Acls,
    stream: &'a StreamId,
    changes: u64,
}

impl<'a> Reader<'a> {
    fn begin(acls: &'a Acls, stream: &'a StreamId) -> Self {
        let mut loading = acls.loading();
        let read = loading.entry(stream.clone()).or_default();
        read.readers += 1;
        Self {
            acls,
            stream,
            changes: read.changes,
        }
    }

    /// Keeps the rights that were read, unless they have changed since the read began. Returns whether they were kept.
    fn end(self, rights: &Arc<StreamRights>) -> bool {
        let loading = self.acls.loading();
        let is_newest = loading
            .get(self.stream)
            .is_some_and(|read| read.changes == self.changes);
        if is_newest {
            self.acls
                .cache
                .insert(self.stream.clone(), Arc::clone(rights));
        }
        is_newest
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut loading = self.acls.loading();
        if let Some(read) = loading.get_mut(self.stream) {
            read.readers -= 1;
            if read.readers == 0 {
                loading.remove(self.stream);
            }
        }
    }
}

async fn read_rights(store: &dyn EventStore, stream: &StreamId) -> Result<StreamRights> {
    let request = ReadStream::backwards(stream.metadata_stream()).limit(HISTORY_MAX);
    match store.read_stream(request).await {
        Ok(page) => {
            let all = page
                .events
                .last()
                .is_some_and(|oldest| oldest.revision.0 == 0);
            Ok(StreamRights::of(&page.events, all))
        }
        Err(error) => match error.kind() {
            ErrorKind::StreamNotFound(_) => Ok(StreamRights::default()),
            ErrorKind::StreamTombstoned(_) | ErrorKind::Corrupt(_) => Ok(StreamRights::closed()),
            _ => Err(unread(error)),
        },
    }
}

/// Makes an error which tells the caller that nothing was done, for a caller who waits for the rights.
fn unread(error: Error) -> Error {
    Error::unavailable("the rights of the stream cannot be read").caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gesta_core::{ExpectedRevision, SetStreamMetadata, StreamMetadata};
    use gesta_memory::MemoryStore;

    async fn set(store: &MemoryStore, name: &str, json: &str) {
        let request = SetStreamMetadata {
            stream: StreamId::new(name).expect("valid"),
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::parse(json.to_owned()).expect("valid"),
        };
        store.set_stream_metadata(request).await.expect("set");
    }

    #[tokio::test]
    async fn rights_are_read_once_and_again_after_a_change() {
        let (store, acls) = (MemoryStore::new(), Acls::default());
        assert_eq!(acls.get("a"), Some(Arc::default()), "it has no metadata");
        set(&store, "a", r#"{"$acl":{"$r":"x"}}"#).await;
        acls.changed("a");
        assert_eq!(acls.get("a"), None);
        let read = acls.load(&store, "a").await.expect("read");
        assert!(read.acl.is_some());
        assert_eq!(acls.get("a"), Some(read));
        acls.changed("a");
        assert_eq!(acls.get("a"), None);
        assert!(acls.loading().is_empty());
    }

    /// Goal: a change that comes while the rights are being read does not leave the old ones in memory.
    #[tokio::test]
    async fn rights_that_change_while_they_are_read_are_not_kept() {
        let acls = Acls::default();
        acls.changed("a");
        let stream = StreamId::new("a").expect("valid");
        let reader = Reader::begin(&acls, &stream);
        acls.changed("a");
        assert!(!reader.end(&Arc::default()));
        assert_eq!(acls.get("a"), None);
        assert!(acls.loading().is_empty());
    }

    #[tokio::test]
    async fn memory_is_bounded() {
        let acls = Acls::default();
        let long = "x".repeat(200);
        let json = format!(
            r#"{{"$acl":{{"$r":[{}"a"]}}}}"#,
            format!("\"{long}\",").repeat(99)
        );
        let rights = StreamRights {
            acl: crate::acl::Acl::of_metadata(json.as_bytes()).expect("readable"),
            ..StreamRights::default()
        };
        let rights = Arc::new(rights);
        for n in 0..10_000 {
            let stream = StreamId::new(format!("s-{n}")).expect("valid");
            assert!(Reader::begin(&acls, &stream).end(&rights));
        }
        assert!(acls.weight() <= CACHE_BYTES_MAX, "{}", acls.weight());
        let mut known = Known::default();
        for n in 0..=KNOWN_MAX {
            known.add(&n.to_string());
        }
        assert!(known.is_full() && known.may_have("never"));
    }
}
