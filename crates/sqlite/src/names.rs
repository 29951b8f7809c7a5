//! Interned names by row id, cached per connection so that reading an event needs no join.
//!
//! Invariants: row ids are never reused and names never change, so an entry never becomes wrong; the checksum of a
//! name is checked when it is loaded.

use std::sync::Arc;

use gesta_core::backend::RowId;
use gesta_core::{Error, EventType, LogId, StreamId};
use gesta_sql::{name_checksum, row_id_from_sql};
use hashlink::LruCache;
use rusqlite::{Connection, OptionalExtension};

use crate::error::Outcome;
use crate::schema::name_corrupt;

/// Most stream names kept by one connection: a few MiB.
const STREAMS_MAX: usize = 50_000;
/// Most event types kept by one connection.
const TYPES_MAX: usize = 10_000;

/// The cache.
#[derive(Debug)]
pub(crate) struct Names {
    streams: LruCache<i64, StreamId>,
    types: LruCache<i64, EventType>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            streams: LruCache::new(STREAMS_MAX),
            types: LruCache::new(TYPES_MAX),
        }
    }
}

impl Names {
    /// The stream of a row id.
    ///
    /// # Errors
    /// `Corrupt` if there is none, or its checksum is wrong.
    pub(crate) fn stream(&mut self, conn: &Connection, row: i64) -> Outcome<StreamId> {
        if let Some(name) = self.streams.get(&row) {
            return Ok(name.clone());
        }
        let sql = include_str!("../sql/select_stream_name.sql");
        let name = StreamId::from_stored(load(conn, sql, "stream", row)?);
        self.streams.insert(row, name.clone());
        Ok(name)
    }

    /// The event type of a row id.
    ///
    /// # Errors
    /// `Corrupt` if there is none, or its checksum is wrong.
    pub(crate) fn event_type(&mut self, conn: &Connection, row: i64) -> Outcome<EventType> {
        if let Some(name) = self.types.get(&row) {
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

/// The row id of a stream name, if it is interned.
///
/// # Errors
/// `Corrupt` if its checksum is wrong.
pub(crate) fn stream_row(conn: &Connection, name: &str) -> Outcome<Option<RowId>> {
    find(
        conn,
        include_str!("../sql/select_stream_by_name.sql"),
        "stream",
        name,
    )
}

/// The row id of an event type, if it is interned.
///
/// # Errors
/// `Corrupt` if its checksum is wrong.
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
