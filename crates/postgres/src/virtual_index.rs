//! What is stored for virtual streams: switches them, writes entries, reads them.
//!
//! A page of entries is one statement. Its condition is the position up to which the log had been looked at, and the
//! last event of the part of the log that the entries are about. So of several processes one succeeds, and entries that
//! were made of events which a fail-over has lost are refused, even if they were read from the old primary and are
//! written to the new one.
//! Not here: which entries there are (`gesta_core::backend::IndexPage`).

use std::sync::Arc;

use async_trait::async_trait;
use gesta_core::backend::{
    Entries, Entry, EntrySlice, IndexPage, IndexState, IndexWrite, Purpose, VirtualIndex,
};
use gesta_core::{Direction, Error, ErrorKind, Result};
use gesta_sql::{position_from_sql, revision_from_sql};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use crate::connect::pool::{Pool, PooledReader, Read, ReadError, ReadResult};
use crate::error;
use crate::sql_numbers::bound;

const READ_INDEX: &str = include_str!("../sql/read_virtual_index.sql");
const SWITCH_INDEX: &str = include_str!("../sql/switch_virtual_index.sql");
const WRITE_ENTRIES: &str = include_str!("../sql/write_virtual_entries.sql");
const READ_STREAM: &str = include_str!("../sql/read_virtual_stream.sql");
const READ_FORWARDS: &str = include_str!("../sql/read_virtual_entries_forwards.sql");
const READ_BACKWARDS: &str = include_str!("../sql/read_virtual_entries_backwards.sql");

/// The virtual streams of a store.
#[derive(Debug)]
pub(crate) struct PostgresIndex {
    pool: Arc<Pool>,
}

impl PostgresIndex {
    pub(crate) fn new(pool: &Arc<Pool>) -> Self {
        let pool = Arc::clone(pool);
        Self { pool }
    }
}

async fn query(
    reader: &mut PooledReader,
    sql: &'static str,
    params: &[&(dyn ToSql + Sync)],
) -> ReadResult<Vec<Row>> {
    let statement = reader.statement(sql).await?;
    Ok(reader.connection.client.query(&statement, params).await?)
}

/// Runs a statement that changes something. If a right is missing, the error says which one.
async fn change(
    reader: &mut PooledReader,
    sql: &'static str,
    params: &[&(dyn ToSql + Sync)],
) -> ReadResult<Vec<Row>> {
    match query(reader, sql, params).await {
        Err(ReadError::Driver(driver))
            if driver.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) =>
        {
            let text = format!(
                "virtual streams need more rights: let an administrator grant what `gesta schema print` ends with ({})",
                error::text(&driver)
            );
            Err(ReadError::Ours(ErrorKind::Unsupported(text).into()))
        }
        outcome => outcome,
    }
}

fn state(rows: &[Row]) -> ReadResult<IndexState> {
    let row = rows
        .first()
        .ok_or_else(|| Error::corrupt("the table virtual_index is empty"))?;
    Ok(IndexState {
        on: row.try_get(0)?,
        position: position_from_sql(row.try_get(1)?)?,
    })
}

struct ReadState;

impl Read for ReadState {
    type Answer = IndexState;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<IndexState> {
        state(&query(reader, READ_INDEX, &[]).await?)
    }
}

struct Switch {
    on: bool,
}

impl Read for Switch {
    type Answer = IndexState;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<IndexState> {
        let rows = change(reader, SWITCH_INDEX, &[&self.on]).await?;
        if rows.is_empty() && self.on {
            let text = "a store in several databases keeps no virtual streams";
            return Err(ReadError::Ours(ErrorKind::Unsupported(text.into()).into()));
        }
        state(&rows)
    }
}

/// A write of entries. It runs twice if its connection breaks; if the first run was stored, the second misses.
struct Write {
    page: IndexPage,
}

impl Read for Write {
    type Answer = IndexWrite;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<IndexWrite> {
        let page = &self.page;
        let of_each = page.entries.iter();
        let numbers: Vec<i64> = of_each.clone().map(|new| bound(new.number)).collect();
        let names: Vec<&str> = of_each.clone().map(|new| new.stream.as_str()).collect();
        let counts: Vec<i64> = of_each.clone().map(|new| length(&new.positions)).collect();
        let before = counts.iter().scan(0, |sum, count| {
            let before = *sum;
            *sum += count;
            Some(before)
        });
        let before: Vec<i64> = before.collect();
        let positions = of_each.flat_map(|new| &new.positions);
        let positions: Vec<i64> = positions.map(|position| bound(position.0)).collect();
        let (after, through) = (bound(page.after.0), bound(page.through.0));
        let params: [&(dyn ToSql + Sync); 8] = [
            &after,
            &through,
            &page.writer.0,
            &numbers,
            &names,
            &counts,
            &before,
            &positions,
        ];
        let rows = change(reader, WRITE_ENTRIES, &params).await?;
        let written: i64 = match rows.first() {
            Some(row) => row.try_get(0)?,
            None => 0,
        };
        Ok(match written {
            0 => IndexWrite::Missed,
            _ => IndexWrite::Written,
        })
    }
}

fn length<T>(list: &[T]) -> i64 {
    i64::try_from(list.len()).unwrap_or(i64::MAX)
}

struct ReadEntries<'a> {
    slice: &'a EntrySlice,
}

impl Read for ReadEntries<'_> {
    type Answer = Entries;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Entries> {
        let slice = self.slice;
        let found = query(reader, READ_STREAM, &[&slice.stream.as_str()]).await?;
        let state = state(&found)?;
        let (number, next): (Option<i64>, Option<i64>) = match found.first() {
            Some(row) => (row.try_get(2)?, row.try_get(3)?),
            None => (None, None),
        };
        let (Some(number), Some(next)) = (number, next) else {
            return Ok(Entries {
                state,
                last: None,
                entries: Vec::new(),
            });
        };
        let last = next - 1;
        // Entries are never changed, so a second snapshot shows them as the first one did.
        let sql = match slice.direction {
            Direction::Forwards => READ_FORWARDS,
            Direction::Backwards => READ_BACKWARDS,
        };
        let (from, to) = (bound(slice.from.0), bound(slice.to.0).min(last));
        let limit = i64::try_from(slice.limit).unwrap_or(i64::MAX);
        let rows = query(reader, sql, &[&number, &from, &to, &limit]).await?;
        let mut entries = Vec::with_capacity(rows.len());
        for row in &rows {
            entries.push(Entry {
                revision: revision_from_sql(row.try_get(0)?)?,
                position: position_from_sql(row.try_get(1)?)?,
            });
        }
        Ok(Entries {
            state,
            last: Some(revision_from_sql(last)?),
            entries,
        })
    }
}

#[async_trait]
impl VirtualIndex for PostgresIndex {
    async fn state(&self) -> Result<IndexState> {
        let what = "read the state of virtual streams";
        self.pool.read(what, Purpose::Read, ReadState).await
    }

    async fn switch(&self, on: bool) -> Result<IndexState> {
        let what = "switch virtual streams";
        self.pool.read(what, Purpose::Read, Switch { on }).await
    }

    async fn write(&self, page: IndexPage) -> Result<IndexWrite> {
        let what = "write entries of virtual streams";
        self.pool.read(what, Purpose::Read, Write { page }).await
    }

    async fn read(&self, slice: EntrySlice) -> Result<Entries> {
        let what = "read a virtual stream";
        let read = ReadEntries { slice: &slice };
        self.pool.read(what, Purpose::Read, read).await
    }
}
