//! Names of interned streams and types, by row id, in a bounded memory.
//!
//! Why: a join per event costs more than the event. An interned name never changes, so a name once read stays right,
//! until the database loses commits: then its row id is used again for another name. So all names are forgotten with
//! each new generation of connections (`witness`), and what an older connection has read does not come in any more. Of
//! one generation the least recently used ones are forgotten.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gesta_core::backend::RowId;
use gesta_core::{Error, EventType, LogId, StreamId};
use gesta_sql::{name_checksum, row_id_from_sql};
use hashlink::LruCache;

use crate::pool::{PooledReader, ReadResult};

const READ_STREAM_NAMES: &str = include_str!("../sql/read_stream_names.sql");
const READ_TYPE_NAMES: &str = include_str!("../sql/read_type_names.sql");

const STREAMS_MAX: usize = 200_000;
const TYPES_MAX: usize = 20_000;

/// The memory of a store.
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
    /// Forgets all: from now on only connections of this generation add names.
    pub(crate) fn forget(&self, generation: u64) {
        self.streams.forget(generation);
        self.types.forget(generation);
    }
}

/// Names that connections of one generation have read.
#[derive(Debug)]
struct Remembered<T> {
    generation: u64,
    names: LruCache<(LogId, i64), T>,
}

/// Names of one kind.
#[derive(Debug)]
pub(crate) struct Cache<T> {
    known: Mutex<Remembered<T>>,
    sql: &'static str,
    kind: &'static str,
    make: fn(Arc<str>) -> T,
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

    /// The names of these rows, in their order. Unknown ones are read, all in one statement.
    ///
    /// # Errors
    /// `Corrupt` if a row has no name or its name was changed; what the database says.
    pub(crate) async fn resolve(
        &self,
        reader: &mut PooledReader,
        log: LogId,
        rows: impl Iterator<Item = i64> + Clone + Send,
    ) -> ReadResult<Vec<T>> {
        let (mut found, missing) = self.remembered(log, rows.clone());
        let read = if missing.is_empty() {
            HashMap::new()
        } else {
            self.read(reader, log, missing).await?
        };
        for (place, row) in found.iter_mut().zip(rows) {
            if place.is_none() {
                *place = read.get(&row).cloned();
            }
            if place.is_none() {
                let text = format!("{} row {row} of log {log} does not exist", self.kind);
                return Err(Error::corrupt(text).into());
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn remembered(
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

    async fn read(
        &self,
        reader: &mut PooledReader,
        log: LogId,
        missing: Vec<i64>,
    ) -> ReadResult<HashMap<i64, T>> {
        let statement = reader.statement(self.sql).await?;
        let log_number = crate::read::log_number(log)?;
        let rows = reader
            .connection
            .client
            .query(&statement, &[&log_number, &missing])
            .await?;
        let mut read = HashMap::with_capacity(rows.len());
        for row in &rows {
            let id: i64 = row.try_get(0)?;
            let name: &str = row.try_get(1)?;
            if row.try_get::<_, i64>(2)? != name_checksum(log, self.row_id(id)?, name) {
                let text = format!(
                    "{} row {id} of log {log}: wrong checksum of its name",
                    self.kind
                );
                return Err(Error::corrupt(text).into());
            }
            read.insert(id, (self.make)(Arc::from(name)));
        }
        let mut known = self.lock();
        if known.generation == reader.connection.generation {
            for (id, name) in &read {
                known.names.insert((log, *id), name.clone());
            }
        }
        Ok(read)
    }

    fn row_id(&self, id: i64) -> ReadResult<RowId> {
        Ok(row_id_from_sql(id)?)
    }
}
