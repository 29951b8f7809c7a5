//! The audit (`gesta_sql::verify`) reads the rows of a store here, raw and in one snapshot.
//!
//! A value of another type than the schema says is not an error but damage: it is handed on as an impossible value,
//! which the audit then finds by the checksum.

use async_trait::async_trait;
use bytes::Bytes;
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{LogId, Result};
use gesta_sql::verify::{AuditFloor, AuditName, AuditRow, AuditSource, AuditTag};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use crate::checkpoint::CountedSnapshot;
use crate::connection::open_reading;
use crate::error::{Outcome, closed};
use crate::place::Place;
use crate::read_connection::ReadConnection;
use crate::reader::Readers;
use crate::schema::odd_triggers;

/// One snapshot of a SQLite store. Dropping it ends the snapshot.
///
/// While the snapshot lives, the write-ahead log of the store cannot be started again, and grows with what is appended.
#[derive(Debug)]
pub struct SqliteAudit {
    access: Access,
    /// Keeps the writing thread from trying to start the write-ahead log again, for which it would wait.
    _snapshot: Option<CountedSnapshot>,
}

#[derive(Debug)]
enum Access {
    /// A connection with an open transaction; `None` while a job has it, or after a job was dropped.
    Own(Option<Box<ReadConnection>>),
    /// The connection of the writing thread, for a store in memory. The audit may see a part of the appends made
    /// meanwhile.
    Shared(Readers),
}

impl SqliteAudit {
    pub(crate) fn of_file(place: &Place, snapshot: CountedSnapshot) -> Outcome<Self> {
        let conn = open_reading(place)?;
        conn.execute_batch(include_str!("../sql/begin_read.sql"))?;
        // The snapshot begins with the first read.
        conn.query_row(include_str!("../sql/select_store.sql"), [], |_| Ok(()))?;
        Ok(Self {
            access: Access::Own(Some(Box::new(ReadConnection::new(conn)))),
            _snapshot: Some(snapshot),
        })
    }

    pub(crate) fn of_memory(readers: Readers) -> Self {
        Self {
            access: Access::Shared(readers),
            _snapshot: None,
        }
    }

    async fn run<T: Send + 'static>(
        &mut self,
        job: impl FnOnce(&Connection) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        match &mut self.access {
            Access::Shared(readers) => readers.run(move |reader| job(&reader.conn)).await,
            Access::Own(place) => {
                let reader = place.take().ok_or_else(closed)?;
                let work = tokio::task::spawn_blocking(move || {
                    let result = job(&reader.conn);
                    (reader, result)
                });
                let (reader, result) = work.await.map_err(|error| closed().caused_by(error))?;
                *place = Some(reader);
                Ok(result?)
            }
        }
    }
}

#[async_trait]
impl AuditSource for SqliteAudit {
    fn logs(&self) -> u16 {
        1
    }

    async fn rows(&mut self, _log: LogId, after: i64, limit: usize) -> Result<Vec<AuditRow>> {
        self.run(move |conn| {
            let mut bytes = 0;
            let sql = include_str!("../sql/audit_rows.sql");
            collect(conn, sql, [after], audit_row, |page, row: &AuditRow| {
                bytes += row.data.len() + row.metadata.len();
                let last = page.last();
                let full = page.len() >= limit || bytes > PAGE_BYTES_MAX;
                full && last.is_some_and(|last: &AuditRow| last.position != row.position)
            })
        })
        .await
    }

    async fn streams(&mut self, _log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>> {
        self.names(include_str!("../sql/audit_streams.sql"), after, limit)
            .await
    }

    async fn types(&mut self, _log: LogId, after: i64, limit: usize) -> Result<Vec<AuditName>> {
        self.names(include_str!("../sql/audit_types.sql"), after, limit)
            .await
    }

    async fn tags(
        &mut self,
        _log: LogId,
        after: Option<&AuditTag>,
        limit: usize,
    ) -> Result<Vec<AuditTag>> {
        let (tag, position) = after.map_or((String::new(), -1), |after| {
            (after.tag.clone(), after.position)
        });
        self.run(move |conn| {
            let decode = |row: &Row<'_>| {
                Ok(AuditTag {
                    tag: text(row, 0)?,
                    position: int(row, 1)?,
                })
            };
            let sql = include_str!("../sql/audit_tags.sql");
            collect(conn, sql, params![tag, position], decode, |page, _| {
                page.len() >= limit
            })
        })
        .await
    }

    async fn floors(&mut self, _log: LogId, after: i64, limit: usize) -> Result<Vec<AuditFloor>> {
        self.run(move |conn| {
            let decode = |row: &Row<'_>| {
                Ok(AuditFloor {
                    stream: int(row, 0)?,
                    revision: int(row, 1)?,
                    position: int(row, 2)?,
                })
            };
            let sql = include_str!("../sql/audit_scavenges.sql");
            collect(conn, sql, [after], decode, |page, floor: &AuditFloor| {
                page.len() >= limit
                    && page
                        .last()
                        .is_some_and(|last: &AuditFloor| last.stream != floor.stream)
            })
        })
        .await
    }

    async fn stream_name(&mut self, _log: LogId, row: i64) -> Result<Option<String>> {
        self.run(move |conn| {
            let sql = include_str!("../sql/select_stream_name.sql");
            Ok(conn
                .query_row(sql, [row], |found| text(found, 0))
                .optional()?)
        })
        .await
    }

    async fn virtual_findings(&mut self, limit: usize) -> Result<Vec<String>> {
        self.run(move |conn| {
            let sql = include_str!("../sql/audit_virtual.sql");
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            collect(conn, sql, [limit], |row| text(row, 0), |_, _| false)
        })
        .await
    }

    async fn engine_findings(&mut self) -> Result<Vec<String>> {
        self.run(|conn| {
            let mut statement = conn.prepare("PRAGMA integrity_check(100)")?;
            let lines: Vec<String> = statement
                .query_map([], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            Ok(lines.into_iter().filter(|line| line != "ok").collect())
        })
        .await
    }

    async fn schema_findings(&mut self) -> Result<Vec<String>> {
        self.run(odd_triggers).await
    }
}

impl SqliteAudit {
    async fn names(
        &mut self,
        sql: &'static str,
        after: i64,
        limit: usize,
    ) -> Result<Vec<AuditName>> {
        self.run(move |conn| {
            let decode = |row: &Row<'_>| {
                Ok(AuditName {
                    id: int(row, 0)?,
                    name: text(row, 1)?,
                    checksum: int(row, 2)?,
                })
            };
            collect(conn, sql, [after], decode, |page, name: &AuditName| {
                page.len() >= limit
                    && page
                        .last()
                        .is_some_and(|last: &AuditName| last.id != name.id)
            })
        })
        .await
    }
}

/// Collects the rows of a statement until `ends` says that a row belongs to the next page.
fn collect<T>(
    conn: &Connection,
    sql: &str,
    binds: impl Params,
    decode: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    mut ends: impl FnMut(&[T], &T) -> bool,
) -> Outcome<Vec<T>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(binds)?;
    let mut page = Vec::new();
    while let Some(row) = rows.next()? {
        let item = decode(row)?;
        if ends(&page, &item) {
            break;
        }
        page.push(item);
    }
    Ok(page)
}

fn audit_row(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    Ok(AuditRow {
        position: int(row, 0)?,
        stream: int(row, 1)?,
        revision: int(row, 2)?,
        event_id: blob(row, 3)?,
        event_type: int(row, 4)?,
        created: int(row, 5)?,
        content_type: int(row, 6)?,
        writer: int(row, 7)?,
        checksum: int(row, 8)?,
        tags: match row.get_ref(9)? {
            ValueRef::Null => Vec::new(),
            _ => text(row, 9)?.split('\n').map(str::to_owned).collect(),
        },
        metadata: blob(row, 10)?,
        data: blob(row, 11)?,
    })
}

fn int(row: &Row<'_>, column: usize) -> rusqlite::Result<i64> {
    Ok(row.get_ref(column)?.as_i64().unwrap_or(i64::MIN))
}

fn blob(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(match row.get_ref(column)? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Bytes::copy_from_slice(bytes),
        _ => Bytes::new(),
    })
}

fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    Ok(match row.get_ref(column)? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        _ => String::new(),
    })
}
