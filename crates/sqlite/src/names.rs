//! Interned names by row id. Each connection caches them, so that reading an event needs no join.
//!
//! Invariants: row ids are never used again and names never change, so an entry never becomes wrong; the checksum of a
//! name is checked when the name is loaded.

use std::sync::Arc;

use gesta_core::backend::RowId;
use gesta_core::{Error, EventType, LogId, StreamId};
use gesta_sql::{name_checksum, row_id_from_sql};
use rusqlite::{Connection, OptionalExtension};

use crate::error::Outcome;
use crate::schema::name_corrupt;

/// Number of sets of stream names kept by one connection, with two names in each.
const STREAM_SETS: usize = 32 * 1024;
/// Number of sets of event types kept by one connection, with two types in each.
const TYPE_SETS: usize = 1024;

/// The names that one connection has read.
#[derive(Debug)]
pub(crate) struct Names {
    streams: Cache<StreamId>,
    types: Cache<EventType>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            streams: Cache::new(STREAM_SETS),
            types: Cache::new(TYPE_SETS),
        }
    }
}

/// A two-way set-associative cache, as in hardware. A row id has one set, by its low bits; the newer name of a set
/// stays longer. The cache is bounded by construction, and a hit costs one look into memory, which no list of uses can
/// beat: row ids are positions, so neighbours in time spread over the sets.
#[derive(Debug)]
struct Cache<T> {
    sets: Vec<[Option<(i64, T)>; 2]>,
    sets_max: usize,
}

impl<T: Clone> Cache<T> {
    fn new(sets_max: usize) -> Self {
        Self {
            sets: Vec::new(),
            sets_max,
        }
    }

    fn set_of(&self, row: i64) -> usize {
        usize::try_from(row.unsigned_abs()).unwrap_or(0) % self.sets_max
    }

    fn get(&self, row: i64) -> Option<&T> {
        let set = self.sets.get(self.set_of(row))?;
        set.iter()
            .flatten()
            .find(|(known, _)| *known == row)
            .map(|(_, name)| name)
    }

    fn insert(&mut self, row: i64, name: T) {
        if self.sets.is_empty() {
            self.sets.resize_with(self.sets_max, || [None, None]);
        }
        let index = self.set_of(row);
        if let Some(set) = self.sets.get_mut(index) {
            set.swap(0, 1);
            set[0] = Some((row, name));
        }
    }
}

impl Names {
    /// Returns the name of the stream with this row id.
    ///
    /// # Errors
    /// `Corrupt` if there is no such stream, or if its checksum is wrong.
    pub(crate) fn stream(&mut self, conn: &Connection, row: i64) -> Outcome<StreamId> {
        if let Some(name) = self.streams.get(row) {
            return Ok(name.clone());
        }
        let sql = include_str!("../sql/select_stream_name.sql");
        let name = StreamId::from_stored(load(conn, sql, "stream", row)?);
        self.streams.insert(row, name.clone());
        Ok(name)
    }

    /// Returns the event type with this row id.
    ///
    /// # Errors
    /// `Corrupt` if there is no such type, or if its checksum is wrong.
    pub(crate) fn event_type(&mut self, conn: &Connection, row: i64) -> Outcome<EventType> {
        if let Some(name) = self.types.get(row) {
            return Ok(name.clone());
        }
        let sql = include_str!("../sql/select_type_name.sql");
        let name = EventType::from_stored(load(conn, sql, "event type", row)?);
        self.types.insert(row, name.clone());
        Ok(name)
    }
}

fn load(conn: &Connection, sql: &str, what: &'static str, row: i64) -> Outcome<Arc<str>> {
    let id = row_id_from_sql(row)?;
    let found: Option<(Arc<str>, i64)> = conn
        .prepare_cached(sql)?
        .query_row([row], |found| {
            Ok((Arc::from(found.get_ref(0)?.as_str()?), found.get(1)?))
        })
        .optional()?;
    let (name, checksum) = found.ok_or_else(|| name_corrupt(what, id, "does not exist"))?;
    check(what, id, &name, checksum)?;
    Ok(name)
}

fn check(what: &str, id: RowId, name: &str, checksum: i64) -> Result<(), Error> {
    if name_checksum(LogId(0), id, name) == checksum {
        return Ok(());
    }
    Err(name_corrupt(
        what,
        id,
        &format!("({name:?}) has a wrong checksum"),
    ))
}

/// Returns the row id of a stream name; `None` if the name is not interned.
///
/// # Errors
/// `Corrupt` if the checksum of the name is wrong.
pub(crate) fn stream_row(conn: &Connection, name: &str) -> Outcome<Option<RowId>> {
    find(
        conn,
        include_str!("../sql/select_stream_by_name.sql"),
        "stream",
        name,
    )
}

/// Returns the row id of an event type; `None` if the type is not interned.
///
/// # Errors
/// `Corrupt` if the checksum of the type is wrong.
pub(crate) fn type_row(conn: &Connection, name: &str) -> Outcome<Option<RowId>> {
    find(
        conn,
        include_str!("../sql/select_type_by_name.sql"),
        "event type",
        name,
    )
}

fn find(conn: &Connection, sql: &str, what: &'static str, name: &str) -> Outcome<Option<RowId>> {
    let found: Option<(i64, i64)> = conn
        .prepare_cached(sql)?
        .query_row([name], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((row, checksum)) = found else {
        return Ok(None);
    };
    let id = row_id_from_sql(row)?;
    check(what, id, name, checksum)?;
    Ok(Some(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_the_two_newest_names_of_a_set() {
        let mut cache = Cache::new(4);
        assert_eq!(cache.get(1), None);
        for row in [1, 5, 2] {
            cache.insert(row, row.to_string());
        }
        assert_eq!(cache.get(1).map(String::as_str), Some("1"));
        cache.insert(9, "9".into());
        assert_eq!(cache.get(1), None);
        assert_eq!(cache.get(5).map(String::as_str), Some("5"));
        assert_eq!(cache.get(9).map(String::as_str), Some("9"));
        assert_eq!(cache.get(2).map(String::as_str), Some("2"));
        cache.insert(i64::MIN, "odd".into());
        assert_eq!(cache.get(i64::MIN).map(String::as_str), Some("odd"));
    }
}
