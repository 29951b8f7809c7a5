//! What the pipeline knows of streams and event types: as committed, and as they will be once all decided batches have
//! committed (the *tip*).
//!
//! Invariants: a tip differs from the committed state only while batches that touch the stream are undecided; only
//! entries without such batches leave the cache.

use std::collections::HashMap;

use gesta_core::backend::{EventRef, LoadRequest, Loaded, LoadedStream, RowId, StreamHead};
use gesta_core::{Error, EventType, Lifecycle, Result, Revision, StreamId};
use hashlink::LruCache;

use super::names::{Listing, Names};

/// The number of event types in memory above which all types are forgotten at a moment when no batch is open.
const TYPES_CACHED_MAX: usize = 20_000;

/// The state of a stream that decides about appends to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct StreamState {
    pub(crate) main: Option<StreamHead>,
    pub(crate) meta: Option<StreamHead>,
    pub(crate) deleted_before: Revision,
    pub(crate) tombstoned: bool,
    /// True if the metadata hide events, which scavenging removes.
    pub(crate) hides_events: bool,
}

impl StreamState {
    fn from_loaded(loaded: &LoadedStream) -> Result<Self> {
        let lifecycle = match &loaded.meta {
            Some(meta) => Lifecycle::from_event(&meta.data, &meta.metadata)?,
            None => Lifecycle::default(),
        };
        Ok(Self {
            main: loaded.head,
            meta: loaded.meta.as_ref().map(|meta| meta.head),
            deleted_before: lifecycle.deleted_before,
            tombstoned: lifecycle.tombstoned,
            hides_events: lifecycle.metadata.hides_events(),
        })
    }

    /// Returns the last revision that readers can see; `None` if there is no such stream for readers.
    pub(crate) fn visible(&self) -> Option<Revision> {
        self.main
            .map(|head| head.last)
            .filter(|last| !self.tombstoned && *last >= self.deleted_before)
    }
}

#[derive(Debug, Default)]
struct StreamEntry {
    committed: StreamState,
    tip: StreamState,
    /// The number of decided batches that touch the stream and whose outcome is open.
    open: u32,
}

#[derive(Debug, Default)]
struct TypeEntry {
    committed: Option<RowId>,
    tip: Option<RowId>,
}

/// The cache of the states of streams and types.
#[derive(Debug)]
pub(crate) struct Heads {
    streams: LruCache<StreamId, StreamEntry>,
    streams_max: usize,
    types: HashMap<EventType, TypeEntry>,
    pub(super) names: Names,
}

impl Heads {
    pub(crate) fn new(streams_max: usize, names: Names) -> Self {
        Self {
            streams: LruCache::new_unbounded(),
            streams_max,
            types: HashMap::new(),
            names,
        }
    }

    /// Returns the tip of a stream, if it is known.
    pub(crate) fn tip(&mut self, stream: &StreamId) -> Option<StreamState> {
        self.streams.get(stream).map(|entry| entry.tip)
    }

    /// Returns whether the type is known, because it was looked up or created.
    pub(crate) fn knows_type(&self, event_type: &EventType) -> bool {
        self.types.contains_key(event_type)
    }

    /// Returns the row id of a type as of the tip; `None` if the type must be created.
    pub(crate) fn type_tip(&self, event_type: &EventType) -> Option<RowId> {
        self.types.get(event_type).and_then(|entry| entry.tip)
    }

    /// Notes that a batch being formed creates a type.
    pub(crate) fn create_type(&mut self, event_type: &EventType, row: RowId) {
        self.types.entry(event_type.clone()).or_default().tip = Some(row);
    }

    /// Notes the state in which a batch being formed leaves a stream. `opens` says whether the batch touches the stream
    /// for the first time.
    pub(crate) fn advance(&mut self, stream: &StreamId, tip: StreamState, opens: bool) {
        if let Some(entry) = self.streams.peek_mut(stream) {
            if entry.tip.main.is_none() {
                self.names.add(stream);
            }
            entry.tip = tip;
            entry.open += u32::from(opens);
        }
    }

    /// Notes that a batch that left the stream in this state has committed.
    pub(crate) fn commit(&mut self, stream: &StreamId, state: StreamState) {
        if let Some(entry) = self.streams.peek_mut(stream) {
            entry.committed = state;
            entry.open = entry.open.saturating_sub(1);
            if entry.open == 0 {
                entry.tip = state;
            }
        }
    }

    /// Returns whether the stream is known.
    pub(crate) fn knows_stream(&mut self, stream: &StreamId) -> bool {
        self.streams.get(stream).is_some()
    }

    /// Returns whether there is no such stream. If so, the stream is known as new from now on. This must not be called
    /// for a stream that is being looked up: the answer may be older than what becomes of the stream now, and may come
    /// after that was forgotten.
    pub(crate) fn takes_as_new(&mut self, stream: &StreamId) -> bool {
        let is_new = self.names.lack(stream);
        if is_new {
            self.streams.insert(stream.clone(), StreamEntry::default());
        }
        is_new
    }

    /// Begins to list all names, if the number of streams that were looked up and not found makes that worthwhile.
    pub(crate) fn begin_listing(&mut self) -> Option<Listing> {
        let sent = self.streams.iter().filter(|(_, entry)| entry.open > 0);
        self.names.begin(sent.map(|(stream, _)| stream))
    }

    /// Returns whether decided batches that touch the stream have not committed yet.
    pub(crate) fn is_open(&mut self, stream: &StreamId) -> bool {
        self.streams
            .peek(stream)
            .is_some_and(|entry| entry.open > 0)
    }

    /// Notes that a batch that created this type has committed.
    pub(crate) fn commit_type(&mut self, event_type: &EventType, row: RowId) {
        self.types.insert(
            event_type.clone(),
            TypeEntry {
                committed: Some(row),
                tip: Some(row),
            },
        );
    }

    /// Resets a stream to its committed state, because a batch was undone. This must be called for all open batches.
    pub(crate) fn rewind(&mut self, stream: &StreamId) {
        if let Some(entry) = self.streams.peek_mut(stream) {
            entry.tip = entry.committed;
            entry.open = 0;
        }
    }

    /// Resets a type to its committed state, because a batch that would have created it was undone.
    pub(crate) fn rewind_type(&mut self, event_type: &EventType) {
        if let Some(entry) = self.types.get_mut(event_type) {
            entry.tip = entry.committed;
        }
    }

    /// Takes the answer of the database. What is known already is newer and stays. Returns the streams whose stored
    /// state cannot be read, each with the error; they stay unknown.
    pub(crate) fn learn(
        &mut self,
        request: LoadRequest,
        loaded: &Loaded,
    ) -> Vec<(StreamId, Error)> {
        let mut corrupt = Vec::new();
        for (stream, state) in request.streams.into_iter().zip(&loaded.streams) {
            let state = match StreamState::from_loaded(state) {
                Ok(state) => state,
                Err(error) => {
                    corrupt.push((stream, error));
                    continue;
                }
            };
            if state == StreamState::default() {
                self.names.missed();
            }
            if !self.streams.contains_key(&stream) {
                self.streams.insert(
                    stream,
                    StreamEntry {
                        committed: state,
                        tip: state,
                        open: 0,
                    },
                );
            }
        }
        for (event_type, row) in request.types.into_iter().zip(&loaded.types) {
            self.types.entry(event_type).or_insert(TypeEntry {
                committed: *row,
                tip: *row,
            });
        }
        corrupt
    }

    /// Takes an event that another process has committed, or an event of this process that was found by looking. No
    /// batch may be open.
    pub(crate) fn observe(&mut self, event: &EventRef) {
        self.types.insert(
            event.event_type.clone(),
            TypeEntry {
                committed: Some(event.type_row),
                tip: Some(event.type_row),
            },
        );
        self.names.add(&event.stream);
        if let Some(described) = event.stream.described_stream() {
            self.streams.remove(&described);
            return;
        }
        let Some(entry) = self.streams.peek_mut(&event.stream) else {
            return;
        };
        if entry
            .committed
            .main
            .is_none_or(|head| head.position < event.position)
        {
            entry.committed.main = Some(head_of(event));
            entry.tip = entry.committed;
        }
    }

    /// Forgets everything. No batch may be open.
    pub(crate) fn clear(&mut self) {
        self.streams.clear();
        self.types.clear();
        self.names.forget();
    }

    /// Brings the cache back to its bounds. The least recently used streams leave it first.
    pub(crate) fn shrink(&mut self, nothing_open: bool) {
        // Entries in use come back; the others that are too many go.
        let mut tries = self.streams.len().saturating_sub(self.streams_max) + 64;
        while self.streams.len() > self.streams_max && tries > 0 {
            tries -= 1;
            if let Some((stream, entry)) = self.streams.remove_lru()
                && entry.open > 0
            {
                self.streams.insert(stream, entry);
            }
        }
        if nothing_open && self.types.len() > TYPES_CACHED_MAX {
            self.types.clear();
        }
    }
}

/// Returns the head of a stream after its events up to this one were stored.
fn head_of(event: &EventRef) -> StreamHead {
    StreamHead {
        row: event.stream_row,
        last: event.revision,
        position: event.position,
        id: Some(event.id),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// These streams were looked up and not found.
    fn known(heads: &mut Heads, names: &[StreamId]) {
        let request = LoadRequest {
            streams: names.to_vec(),
            types: Vec::new(),
        };
        let nothing = Loaded {
            end: gesta_core::backend::LogEnd::default(),
            streams: vec![LoadedStream::default(); names.len()],
            types: Vec::new(),
        };
        assert!(heads.learn(request, &nothing).is_empty());
    }

    /// Goal: the listing may read the names before a batch under way is stored; what that creates is not new
    /// afterwards.
    #[test]
    fn what_is_under_way_when_listing_begins_is_not_new() {
        let mut heads = Heads::new(10, Names::new(10, 2));
        let [sent, idle] = ["sent", "idle"].map(|name| StreamId::new(name).expect("valid"));
        known(&mut heads, &[sent.clone(), idle.clone()]);
        heads.advance(&sent, StreamState::default(), true);
        let listing = heads.begin_listing().expect("two streams were not found");
        heads.names.listed(listing.number, Some(HashSet::new()));
        assert!(!heads.names.lack(&sent));
        assert!(heads.names.lack(&idle));
    }

    fn names(count: usize) -> Vec<StreamId> {
        let name = |number| StreamId::new(format!("s-{number}")).expect("valid");
        (0..count).map(name).collect()
    }

    /// Goal: as many streams are kept as are to be kept, the most recently used; those that are in use stay though they
    /// are more.
    #[test]
    fn streams_not_in_use_leave_the_cache() {
        let mut heads = Heads::new(10, Names::new(10, 2));
        let all = names(30);
        known(&mut heads, &all);
        heads.advance(&all[0], StreamState::default(), true);
        assert!(heads.knows_stream(&all[1]), "used last");
        heads.shrink(true);
        let kept: Vec<bool> = all.iter().map(|name| heads.knows_stream(name)).collect();
        assert_eq!(kept.iter().filter(|is_known| **is_known).count(), 10);
        assert!(kept[0] && kept[1]);
        heads.shrink(true);
        assert_eq!(heads.streams.len(), 10, "no more than necessary");

        let all = names(200);
        known(&mut heads, &all);
        for name in &all {
            heads.advance(name, StreamState::default(), true);
        }
        heads.shrink(false);
        assert!(all.iter().all(|name| heads.is_open(name)));
        assert_eq!(heads.streams.len(), 200);
    }

    /// Goal: of too many event types all are forgotten, but not while a batch may rest on them.
    #[test]
    fn too_many_types_are_forgotten_when_nothing_is_under_way() {
        let mut heads = Heads::new(10, Names::new(10, 2));
        let of = |number| EventType::new(format!("t-{number}")).expect("valid");
        for number in 1..=TYPES_CACHED_MAX {
            heads.commit_type(&of(number), RowId(1));
        }
        heads.shrink(true);
        assert!(heads.knows_type(&of(1)), "not too many");
        heads.commit_type(&of(0), RowId(1));
        heads.shrink(false);
        assert!(heads.knows_type(&of(1)), "under way");
        heads.shrink(true);
        assert!(!heads.knows_type(&of(1)));
    }

    fn at(last: u64) -> StreamState {
        StreamState {
            main: Some(StreamHead {
                row: RowId(1),
                last: Revision(last),
                position: gesta_core::Position(last + 1),
                id: None,
            }),
            ..StreamState::default()
        }
    }

    /// Goal: a tip differs from what is committed only while a batch that moves the stream is open.
    #[test]
    fn the_tip_is_what_is_committed_once_nothing_is_open() {
        let mut heads = Heads::new(10, Names::new(10, 2));
        let stream = &names(1)[0];
        known(&mut heads, &names(1));
        heads.advance(stream, at(0), true);
        heads.advance(stream, at(1), false);
        heads.advance(stream, at(2), true);
        heads.commit(stream, at(1));
        assert!(heads.is_open(stream));
        assert_eq!(heads.tip(stream), Some(at(2)), "another batch is open");
        heads.rewind(stream);
        assert!(!heads.is_open(stream));
        assert_eq!(heads.tip(stream), Some(at(1)));
        heads.advance(stream, at(2), true);
        heads.commit(stream, at(3));
        assert!(!heads.is_open(stream));
        assert_eq!(heads.tip(stream), Some(at(3)));
    }

    /// Goal: a type that a batch would have created exists only if the batch is stored.
    #[test]
    fn a_type_is_undone_with_its_batch() {
        let mut heads = Heads::new(10, Names::new(10, 2));
        let [kept, undone] = ["kept", "undone"].map(|name| EventType::new(name).expect("valid"));
        for event_type in [&kept, &undone] {
            heads.create_type(event_type, RowId(7));
            assert_eq!(heads.type_tip(event_type), Some(RowId(7)));
        }
        heads.commit_type(&kept, RowId(7));
        heads.rewind_type(&kept);
        heads.rewind_type(&undone);
        assert_eq!(heads.type_tip(&kept), Some(RowId(7)));
        assert_eq!(heads.type_tip(&undone), None);
    }

    /// Goal: readers see the last event, unless all are deleted or the stream is tombstoned.
    #[test]
    fn what_is_deleted_is_not_visible() {
        let state = |deleted_before, tombstoned| StreamState {
            deleted_before: Revision(deleted_before),
            tombstoned,
            ..at(5)
        };
        assert_eq!(state(0, false).visible(), Some(Revision(5)));
        assert_eq!(state(5, false).visible(), Some(Revision(5)));
        assert_eq!(state(6, false).visible(), None);
        assert_eq!(state(0, true).visible(), None);
        assert_eq!(StreamState::default().visible(), None);
    }
}
