//! A SQLite file as the target of a copy.
//!
//! The file is written over one connection, which keeps every other process out. Commits are not synced one by one:
//! what is lost when the machine fails is copied again, and the last transaction is synced.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use gesta_core::backend::RowId;
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{Error, ErrorKind, LogId, Result};
use gesta_sql::verify::{AuditName, AuditRow};
use gesta_sql::{UNFINISHED_COPY, name_checksum};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};

use crate::batch::{Batch, Floor, NewName, State};
use crate::part::{Finish, Found, Names, Part, READ_ROWS, Which, disturbed, state_of, state_text};

/// How long another process is waited for.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// A SQLite file.
pub(crate) struct SqlitePart {
    connection: Arc<Mutex<Connection>>,
    name: String,
}

impl SqlitePart {
    /// True if a file is a database without any table, or has no byte.
    pub(crate) async fn is_blank(path: &Path) -> Result<bool> {
        let path = path.to_owned();
        let look = move || -> rusqlite::Result<bool> {
            let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            connection.busy_timeout(BUSY_MAX)?;
            connection.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| {
                row.get(0)
            })
        };
        let looked = tokio::task::spawn_blocking(look).await;
        looked
            .map_err(|error| stopped(&error))?
            .map_err(|error| failed(&error))
    }

    /// Opens the store in a file.
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        let (name, path) = (path.display().to_string(), path.to_owned());
        let open = move || -> rusqlite::Result<Connection> {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(BUSY_MAX)?;
            connection.execute_batch(
                "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -262144; \
                 PRAGMA wal_autocheckpoint = 16384; PRAGMA temp_store = MEMORY; BEGIN IMMEDIATE; COMMIT;",
            )?;
            Ok(connection)
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let opened = opened.map_err(|error| stopped(&error))?;
        Ok(Self {
            connection: Arc::new(Mutex::new(opened.map_err(|error| failed(&error))?)),
            name,
        })
    }

    async fn on<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let connection = Arc::clone(&self.connection);
        let work = move || {
            let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            work(&connection)
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| stopped(&error))?
    }

    async fn transaction(
        &self,
        work: impl FnOnce(&Connection) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.on(|connection| {
            let transaction = connection.unchecked_transaction();
            let transaction = transaction.map_err(|error| failed(&error))?;
            work(&transaction)?;
            transaction.commit().map_err(|error| failed(&error))
        })
        .await
    }
}

fn stopped(error: &tokio::task::JoinError) -> Error {
    Error::unavailable(format!("the target: the work was stopped: {error}"))
}

fn failed(error: &rusqlite::Error) -> Error {
    let text = format!("the target: {error}");
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
            Error::unavailable(format!("{text}: another process uses it"))
        }
        Some(rusqlite::ErrorCode::DiskFull | rusqlite::ErrorCode::SystemIoFailure) => {
            Error::unavailable(text)
        }
        _ => ErrorKind::Refused(text).into(),
    }
}

fn write(connection: &Connection, batch: &Batch, state: &str) -> rusqlite::Result<()> {
    let name = |sql: &str, names: &[NewName]| -> rusqlite::Result<()> {
        let mut insert = connection.prepare_cached(sql)?;
        for name in names {
            let sum = name_checksum(LogId(0), RowId(name.id.cast_unsigned()), &name.name);
            insert.execute(params![name.id, &*name.name, sum])?;
        }
        Ok(())
    };
    name(
        "INSERT INTO streams (id, name, checksum) VALUES (?1, ?2, ?3)",
        &batch.streams,
    )?;
    name(
        "INSERT INTO types (id, name, checksum) VALUES (?1, ?2, ?3)",
        &batch.types,
    )?;
    let mut floor = connection.prepare_cached(
        "INSERT INTO scavenges (stream, floor_revision, floor_position) VALUES (?1, ?2, ?3)",
    )?;
    for found in &batch.floors {
        floor.execute([found.stream, found.revision, found.position])?;
    }
    let mut event = connection.prepare_cached(
        "INSERT INTO events (position, stream, revision, event_id, type, created, content_type, writer, checksum, tags, \
         metadata, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    let mut tag = connection.prepare_cached("INSERT INTO tags (tag, position) VALUES (?1, ?2)")?;
    for (_, row) in &batch.rows {
        let tags = (!row.tags.is_empty()).then(|| row.tags.join("\n"));
        event.execute(params![
            row.position,
            row.stream,
            row.revision,
            &*row.event_id,
            row.event_type,
            row.created,
            row.content_type,
            row.writer,
            row.checksum,
            tags,
            &*row.metadata,
            &*row.data,
        ])?;
        for text in &row.tags {
            tag.execute(params![text, row.position])?;
        }
    }
    connection
        .execute("UPDATE copying SET state = ?1", [state])
        .map(drop)
}

#[async_trait]
impl Part for SqlitePart {
    fn name(&self) -> &str {
        &self.name
    }

    fn logs(&self) -> u16 {
        1
    }

    fn own(&self) -> &[u16] {
        &[0]
    }

    async fn look(&mut self) -> Result<Found> {
        self.on(|connection| {
            let look = || -> rusqlite::Result<(bool, Option<String>)> {
                let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'copying')";
                let state = match connection.query_row(sql, [], |row| row.get(0))? {
                    true => connection
                        .query_row("SELECT state FROM copying", [], |row| row.get(0))
                        .optional()?,
                    false => None,
                };
                let sql = "SELECT EXISTS (SELECT 1 FROM events) OR EXISTS (SELECT 1 FROM streams)";
                Ok((connection.query_row(sql, [], |row| row.get(0))?, state))
            };
            Ok(match look().map_err(|error| failed(&error))? {
                (_, Some(state)) => Found::Unfinished(state_of(&state)?),
                (true, None) => Found::Used,
                (false, None) => Found::Empty,
            })
        })
        .await
    }

    async fn begin(&mut self, state: &State) -> Result<()> {
        let state = state_text(state)?;
        self.transaction(move |connection| {
            let begin = || -> rusqlite::Result<()> {
                connection.execute_batch(
                    "CREATE TABLE copying (one INTEGER PRIMARY KEY CHECK (one = 1), state TEXT NOT NULL) STRICT",
                )?;
                connection.execute("INSERT INTO copying VALUES (1, ?1)", [state])?;
                let sql = "UPDATE store SET schema_version = schema_version + ?1";
                connection.execute(sql, [UNFINISHED_COPY]).map(drop)
            };
            begin().map_err(|error| failed(&error))
        })
        .await
    }

    async fn write(&mut self, batch: &Arc<Batch>, state: &State) -> Result<()> {
        let (batch, state) = (Arc::clone(batch), state_text(state)?);
        let name = self.name.clone();
        self.transaction(move |connection| {
            let sql = "SELECT coalesce(max(position), 0) FROM events";
            let last = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
            let last = last.map_err(|error| failed(&error))?;
            if last != batch.before[0] {
                return Err(disturbed(&name, 0, batch.before[0], last));
            }
            write(connection, &batch, &state).map_err(|error| failed(&error))
        })
        .await
    }

    async fn put(&mut self, state: &State) -> Result<()> {
        let state = state_text(state)?;
        self.transaction(move |connection| {
            let put = connection.execute("UPDATE copying SET state = ?1", [state]);
            put.map(drop).map_err(|error| failed(&error))
        })
        .await
    }

    async fn names(&mut self, names: Names, _log: u16, after: i64) -> Result<Vec<AuditName>> {
        let table = match names {
            Names::Streams => "streams",
            Names::Types => "types",
        };
        let sql = format!(
            "SELECT id, name, checksum FROM {table} WHERE id > ?1 ORDER BY id LIMIT {READ_ROWS}"
        );
        let name = |row: &Row<'_>| {
            Ok(AuditName {
                id: row.get(0)?,
                name: row.get(1)?,
                checksum: row.get(2)?,
            })
        };
        self.on(move |connection| {
            let read = || -> rusqlite::Result<Vec<AuditName>> {
                let mut statement = connection.prepare_cached(&sql)?;
                statement.query_map([after], name)?.collect()
            };
            read().map_err(|error| failed(&error))
        })
        .await
    }

    async fn rows(&mut self, _log: u16, after: i64) -> Result<Vec<AuditRow>> {
        self.on(move |connection| {
            let read = || -> rusqlite::Result<Vec<AuditRow>> {
                let mut statement = connection.prepare_cached(
                    "SELECT position, stream, revision, event_id, type, created, content_type, writer, checksum, tags, \
                     metadata, data FROM events WHERE position > ?1 ORDER BY position LIMIT ?2",
                )?;
                let mut rows = statement.query([after, READ_ROWS])?;
                let (mut page, mut bytes) = (Vec::new(), 0);
                while let Some(row) = rows.next()?
                    && bytes < PAGE_BYTES_MAX
                {
                    let row = read_row(row)?;
                    bytes += row.data.len() + row.metadata.len();
                    page.push(row);
                }
                Ok(page)
            };
            read().map_err(|error| failed(&error))
        })
        .await
    }

    async fn floors(&mut self, _log: u16) -> Result<Vec<Floor>> {
        let floor = |row: &Row<'_>| {
            Ok(Floor {
                log: 0,
                stream: row.get(0)?,
                revision: row.get(1)?,
                position: row.get(2)?,
            })
        };
        self.on(move |connection| {
            let read = || -> rusqlite::Result<Vec<Floor>> {
                let sql = "SELECT stream, floor_revision, floor_position FROM scavenges";
                let mut statement = connection.prepare_cached(sql)?;
                statement.query_map([], floor)?.collect()
            };
            read().map_err(|error| failed(&error))
        })
        .await
    }

    async fn ends(&mut self) -> Result<Vec<(u16, i64)>> {
        let end = self.on(|connection| {
            let sql = "SELECT coalesce(max(position), 0) FROM events";
            let end = connection.query_row(sql, [], |row| row.get(0));
            end.map_err(|error| failed(&error))
        });
        Ok(vec![(0, end.await?)])
    }

    async fn alone(&mut self) -> Result<()> {
        // The file is locked.
        Ok(())
    }

    async fn count_tags(&mut self, _log: u16, which: Which) -> Result<u64> {
        let after = match which {
            Which::All => 0,
            Which::After(after, _) => after,
        };
        let count = self.on(move |connection| {
            let sql = "SELECT count(*) FROM tags WHERE position > ?1";
            let count = connection.query_row(sql, [after], |row| row.get(0));
            count.map_err(|error| failed(&error))
        });
        let count: i64 = count.await?;
        Ok(count.unsigned_abs())
    }

    async fn finish(&mut self, finish: Finish) -> Result<()> {
        self.on(|connection| {
            // From here on what is committed is on the disk.
            let sync = "PRAGMA synchronous = FULL; PRAGMA wal_checkpoint(TRUNCATE)";
            connection
                .execute_batch(sync)
                .map_err(|error| failed(&error))
        })
        .await?;
        self.transaction(move |connection| {
            let finish = || -> rusqlite::Result<()> {
                let sql = "UPDATE store SET schema_version = schema_version - ?1";
                connection.execute(sql, [UNFINISHED_COPY])?;
                let sql = "UPDATE store SET incarnation = ?1";
                connection.execute(sql, [&finish.incarnation.0.as_bytes()[..]])?;
                if finish.virtual_streams {
                    connection.execute("UPDATE virtual_index SET is_on = 1", [])?;
                }
                connection.execute_batch("DROP TABLE copying")
            };
            finish().map_err(|error| failed(&error))
        })
        .await?;
        self.on(|connection| {
            let done = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
            done.map_err(|error| failed(&error))
        })
        .await
    }
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<AuditRow> {
    let bytes = |column: usize| -> rusqlite::Result<Bytes> {
        Ok(Bytes::copy_from_slice(row.get_ref(column)?.as_blob()?))
    };
    let tags: Option<String> = row.get(9)?;
    Ok(AuditRow {
        position: row.get(0)?,
        stream: row.get(1)?,
        revision: row.get(2)?,
        event_id: bytes(3)?,
        event_type: row.get(4)?,
        created: row.get(5)?,
        content_type: row.get(6)?,
        writer: row.get(7)?,
        checksum: row.get(8)?,
        tags: tags.map_or_else(Vec::new, |tags| {
            tags.split('\n').map(str::to_owned).collect()
        }),
        metadata: bytes(10)?,
        data: bytes(11)?,
    })
}
