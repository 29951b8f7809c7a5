//! Keeps the names of interned streams and types by row id, in a bounded memory.
//!
//! Why: a join per event costs more than the event. An interned name never changes, so a name that was read once stays
//! right until the database loses commits; then its row id is used again for another name. So all names are forgotten
//! with each new generation of connections (`witness`), and names that an older connection has read are no longer
//! added. Of one generation the least recently used names are forgotten.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gesta_core::{EventType, LogId, StreamId};
use hashlink::LruCache;

const READ_STREAM_NAMES: &str = include_str!("../sql/read_stream_names.sql");
const READ_TYPE_NAMES: &str = include_str!("../sql/read_type_names.sql");

const STREAMS_MAX: usize = 200_000;
const TYPES_MAX: usize = 20_000;

/// The names of a store that are in memory.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) streams: Cache<StreamId>,
    pub(crate) types: Cache<EventType>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            streams: Cache::new(
                STREAMS_MAX,
                READ_STREAM_NAMES,
                "stream",
                StreamId::from_stored,
            ),
            types: Cache::new(
                TYPES_MAX,
                READ_TYPE_NAMES,
                "event type",
                EventType::from_stored,
            ),
        }
    }
}

impl Names {
    /// Forgets all names. From now on only connections of this generation add names.
    pub(crate) fn forget(&self, generation: u64) {
        self.streams.forget(generation);
        self.types.forget(generation);
    }
}

/// The names that connections of one generation have read.
#[derive(Debug)]
struct Remembered<T> {
    generation: u64,
    names: LruCache<(LogId, i64), T>,
}

/// The names of one kind.
#[derive(Debug)]
pub(crate) struct Cache<T> {
    known: Mutex<Remembered<T>>,
    pub(crate) sql: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) make: fn(Arc<str>) -> T,
}

impl<T: Clone> Cache<T> {
    fn new(max: usize, sql: &'static str, kind: &'static str, make: fn(Arc<str>) -> T) -> Self {
        Self {
            known: Mutex::new(Remembered {
                generation: 0,
                names: LruCache::new(max),
            }),
            sql,
            kind,
            make,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Remembered<T>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, generation: u64) {
        let mut known = self.lock();
        known.generation = generation;
        known.names.clear();
    }

    pub(crate) fn remembered(
        &self,
        log: LogId,
        rows: impl Iterator<Item = i64>,
    ) -> (Vec<Option<T>>, Vec<i64>) {
        let known = &mut self.lock().names;
        let mut missing = HashSet::new();
        let mut last: Option<(i64, T)> = None;
        let found = rows
            .map(|row| {
                if let Some((_, name)) = last.as_ref().filter(|(same, _)| *same == row) {
                    return Some(name.clone());
                }
                let name = known.get(&(log, row)).cloned();
                match &name {
                    Some(name) => last = Some((row, name.clone())),
                    None => {
                        missing.insert(row);
                    }
                }
                name
            })
            .collect();
        (found, missing.into_iter().collect())
    }

    /// Returns those of these rows, without doubles, whose names are not in memory.
    pub(crate) fn missing(&self, rows: &[(LogId, i64)]) -> Vec<(LogId, i64)> {
        let known = &self.lock().names;
        let missing = rows.iter().filter(|row| !known.contains_key(*row));
        let missing: BTreeSet<(LogId, i64)> = missing.copied().collect();
        missing.into_iter().collect()
    }

    /// Adds names that a connection of this generation has read.
    pub(crate) fn remember(&self, log: LogId, generation: u64, read: &HashMap<i64, T>) {
        let mut known = self.lock();
        if known.generation == generation {
            for (id, name) in read {
                known.names.insert((log, *id), name.clone());
            }
        }
    }
}
