//! Virtual streams in a SQLite file: switching them on and off, writing entries, reading entries.
//!
//! The writing thread writes the entries between two batches, a bounded page in one transaction. Nobody else writes to
//! the file, but the position up to which the log was looked at is compared all the same, as the contract of
//! [`VirtualIndex`] says.

use async_trait::async_trait;
use gesta_core::backend::{
    Entries, Entry, EntrySlice, IndexPage, IndexState, IndexWrite, NewEntries, VirtualIndex,
};
use gesta_core::{Direction, Error, Result, Revision};
use gesta_sql::{position_from_sql, revision_from_sql, to_sql};
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::oneshot;

use crate::append::{commit, end_transaction};
use crate::error::{Fault, Outcome, WriteFault, closed, write_fault};
use crate::reader::Readers;
use crate::row::int;
use crate::write_thread::{WriteState, WriteThread};

/// The virtual streams of a SQLite store.
#[derive(Debug)]
pub(crate) struct SqliteIndex {
    readers: Readers,
    thread: WriteThread,
}

impl SqliteIndex {
    pub(crate) fn new(readers: &Readers, thread: &WriteThread) -> Self {
        Self {
            readers: readers.clone(),
            thread: thread.clone(),
        }
    }

    /// Runs a change on the writing thread, in a transaction of its own.
    async fn change<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        self.thread.run(move |state| {
            let _ = answer.send(in_transaction(state, job));
        })?;
        answered.await.map_err(|_| closed())?
    }
}

fn in_transaction<T>(state: &WriteState, job: impl FnOnce(&Connection) -> Outcome<T>) -> Result<T> {
    state.check_writable()?;
    let conn = &state.reader.conn;
    let begun = conn.prepare_cached(include_str!("../sql/begin_write.sql"));
    let result = begun
        .and_then(|mut begin| begin.execute([]))
        .map_err(Fault::from)
        .and_then(|_| job(conn))
        .and_then(|done| Ok(commit(conn).map(|()| done)?));
    let ended = end_transaction(conn);
    if let Err(Fault::Sql(error)) = &result
        && write_fault(error) == WriteFault::Fatal
    {
        state.fault.set(error);
    }
    if let Err(error) = &ended {
        state.fault.set(error);
    }
    let done = result?;
    ended.map_err(Fault::from)?;
    Ok(done)
}

fn state(conn: &Connection) -> Outcome<IndexState> {
    let found = conn
        .prepare_cached(include_str!("../sql/select_virtual_index.sql"))?
        .query_row([], |row| {
            Ok((row.get::<_, bool>(0)?, row.get::<_, i64>(1)?))
        })
        .optional()?;
    let (on, position) = found.ok_or_else(|| Error::corrupt("table virtual_index has no row"))?;
    Ok(IndexState {
        on,
        position: position_from_sql(position)?,
    })
}

fn switch(conn: &Connection, on: bool) -> Outcome<IndexState> {
    conn.prepare_cached(include_str!("../sql/update_virtual_switch.sql"))?
        .execute([on])?;
    state(conn)
}

fn write(conn: &Connection, page: &IndexPage) -> Outcome<IndexWrite> {
    let moved = conn
        .prepare_cached(include_str!("../sql/update_virtual_position.sql"))?
        .execute(params![
            to_sql(page.after.0, "position")?,
            to_sql(page.through.0, "position")?,
            page.writer.0
        ])?;
    if moved == 0 {
        return Ok(IndexWrite::Missed);
    }
    for entries in &page.entries {
        add(conn, entries)?;
    }
    Ok(IndexWrite::Written)
}

fn add(conn: &Connection, new: &NewEntries) -> Outcome<()> {
    let count = i64::try_from(new.positions.len()).unwrap_or(i64::MAX);
    let (number, next): (i64, i64) = conn
        .prepare_cached(include_str!("../sql/upsert_virtual_stream.sql"))?
        .query_row(
            params![to_sql(new.number, "number")?, new.stream.as_str(), count],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
    let mut insert = conn.prepare_cached(include_str!("../sql/insert_virtual_entry.sql"))?;
    for (revision, position) in (next - count..).zip(&new.positions) {
        insert.execute(params![number, revision, to_sql(position.0, "position")?])?;
    }
    Ok(())
}

fn read(conn: &Connection, slice: &EntrySlice) -> Outcome<Entries> {
    let state = state(conn)?;
    let found: Option<(i64, i64)> = conn
        .prepare_cached(include_str!("../sql/select_virtual_stream.sql"))?
        .query_row([slice.stream.as_str()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let Some((number, next)) = found else {
        return Ok(Entries {
            state,
            last: None,
            entries: Vec::new(),
        });
    };
    let last = next - 1;
    let to = to_sql(slice.to.0.min(Revision::MAX.0), "revision")?.min(last);
    let mut entries = Vec::new();
    if let Ok(from) = to_sql(slice.from.0, "revision") {
        let sql = match slice.direction {
            Direction::Forwards => include_str!("../sql/select_virtual_entries_forwards.sql"),
            Direction::Backwards => include_str!("../sql/select_virtual_entries_backwards.sql"),
        };
        let limit = i64::try_from(slice.limit).unwrap_or(i64::MAX);
        let mut statement = conn.prepare_cached(sql)?;
        let mut rows = statement.query([number, from, to, limit])?;
        while let Some(row) = rows.next()? {
            entries.push(Entry {
                revision: revision_from_sql(int(row, 0)?)?,
                position: position_from_sql(int(row, 1)?)?,
            });
        }
    }
    Ok(Entries {
        state,
        last: Some(revision_from_sql(last)?),
        entries,
    })
}

#[async_trait]
impl VirtualIndex for SqliteIndex {
    async fn state(&self) -> Result<IndexState> {
        self.readers.run(|reader| state(&reader.conn)).await
    }

    async fn switch(&self, on: bool) -> Result<IndexState> {
        self.change(move |conn| switch(conn, on)).await
    }

    async fn write(&self, page: IndexPage) -> Result<IndexWrite> {
        self.change(move |conn| write(conn, &page)).await
    }

    async fn read(&self, slice: EntrySlice) -> Result<Entries> {
        self.readers
            .run(move |reader| reader.in_snapshot(|conn, _| read(conn, &slice)))
            .await
    }
}
