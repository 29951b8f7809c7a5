//! A store in an SQLite file that moves.
//!
//! One process has a file, so nobody else appends or reads while it is copied. It is shut in one transaction, over a
//! connection that keeps every other process out, and only if nothing came in the moment between.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use gesta::{Database, Options};
use gesta_core::{Error, ErrorKind, LogId, Result};
use gesta_postgres::Blocker;
use gesta_sql::MOVED_AWAY;
use gesta_sql::verify::AuditSource;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};
use uuid::Uuid;

use crate::mapping::PAGE_NAMES;
use crate::moving::{Note, SourceStand};
use crate::refusal::refuse;
use crate::source::{Closing, Copied, Look, Source};

/// How long another process is waited for.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// A store in a file.
pub(crate) struct SqliteSource {
    path: PathBuf,
    url: String,
    /// The open store; while it is open no other process has it.
    database: Option<Database>,
}

fn failed(error: rusqlite::Error) -> Error {
    let text = format!("the source: {error}");
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

/// Opens a file that is there, past what protects a store, and keeps every other process out.
fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_MAX)?;
    connection.execute_batch(
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = FULL; BEGIN IMMEDIATE; COMMIT;",
    )?;
    Ok(connection)
}

/// Reads how far the store in a file that is not served any more has gone; `None` if it has no note.
fn read_note(connection: &Connection) -> rusqlite::Result<Option<SourceStand>> {
    let version = connection.query_row("SELECT schema_version FROM store", [], |row| {
        row.get::<_, i64>(0)
    })?;
    if version <= i64::from(MOVED_AWAY) {
        return Ok(None);
    }
    let id = |text: &str| Uuid::parse_str(text).unwrap_or_default();
    let stand = |row: &rusqlite::Row<'_>| {
        let note = Note {
            id: id(&row.get::<_, String>(0)?),
            place: row.get(1)?,
            copied: row.get(2)?,
        };
        let opening: Option<String> = row.get(3)?;
        Ok(match (opening, row.get(4)?) {
            (None, _) => SourceStand::Shut(note),
            (Some(opening), false) => SourceStand::Opening(note, id(&opening)),
            (Some(opening), true) => SourceStand::Opened(note, id(&opening)),
        })
    };
    connection
        .query_row(
            "SELECT id, place, copied, opening, opened FROM moved",
            [],
            stand,
        )
        .optional()
}

/// Whether a file holds exactly what was copied.
fn holds(connection: &Connection, copied: &Copied) -> rusqlite::Result<Closing> {
    let incarnation: Vec<u8> =
        connection.query_row("SELECT incarnation FROM store", [], |row| row.get(0))?;
    let end: i64 =
        connection.query_row("SELECT coalesce(max(position), 0) FROM events", [], |row| {
            row.get(0)
        })?;
    let sql = "SELECT coalesce(sum(floor_revision), 0) FROM scavenges";
    let scavenged: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    let sql = "SELECT checksum FROM events WHERE position = ?1";
    let position = copied.look.ends.first().copied().unwrap_or(0);
    let mark = connection.query_row(sql, [position], |row| row.get::<_, i64>(0));
    let mark = mark.optional()?.unwrap_or(0);
    let sql = "SELECT is_on FROM virtual_index";
    let virtual_streams: bool = connection.query_row(sql, [], |row| row.get(0))?;
    let is_more = end > position || virtual_streams != copied.look.virtual_streams;
    let is_same = incarnation == copied.look.incarnation.0.as_bytes()
        && Some(&mark) == copied.marks.first()
        && end >= position;
    Ok(match is_same {
        false => Closing::OtherHistory,
        true if scavenged.unsigned_abs() != copied.look.scavenged => Closing::Scavenged,
        true if is_more => Closing::Changed,
        true => Closing::Done,
    })
}

impl SqliteSource {
    pub(crate) fn new(url: &str, path: PathBuf) -> Self {
        Self {
            path,
            url: url.to_owned(),
            database: None,
        }
    }

    async fn database(&mut self) -> Result<&Database> {
        if self.database.is_none() {
            let opened = Database::open(&self.url, &Options::default()).await;
            self.database = Some(opened.map_err(|error| match error.kind() {
                ErrorKind::Unavailable(why) => Error::unavailable(format!(
                    "{why}. A file belongs to one process: stop what uses it, for as long as the copy takes"
                )),
                _ => error,
            })?);
        }
        self.database
            .as_ref()
            .ok_or_else(|| Error::unavailable("the source is closed"))
    }

    /// Changes the note about the move by a statement that finds it, if it is that of this move.
    async fn note(&mut self, sql: &'static str, id: Uuid, opening: Uuid) -> Result<()> {
        let noted = self.on_file(move |connection| {
            connection.execute(sql, [id.to_string(), opening.to_string()])
        });
        match noted.await? {
            1 => Ok(()),
            _ => refuse(
                "the file moves by another move than this one, was opened again, or was opened at its new place",
            ),
        }
    }

    /// Works on the file, of which no store is open meanwhile.
    async fn on_file<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.end().await;
        let path = self.path.clone();
        let work = move || {
            let mut connection = connect(&path)?;
            let done = work(&mut connection)?;
            connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
            connection.close().map_err(|(_, error)| error)?;
            Ok(done)
        };
        let done = tokio::task::spawn_blocking(work).await;
        let done =
            done.map_err(|error| Error::unavailable(format!("the work was stopped: {error}")))?;
        done.map_err(failed)
    }
}

#[async_trait]
impl Source for SqliteSource {
    fn near(&self) -> i64 {
        0
    }

    async fn lock(&mut self) -> Result<()> {
        // Whoever has the file open keeps others out.
        Ok(())
    }

    async fn logs(&mut self) -> Result<u16> {
        Ok(1)
    }

    async fn stand(&mut self) -> Result<SourceStand> {
        if self.database.is_some() {
            return Ok(SourceStand::Open);
        }
        let opened = self.database().await.map(drop);
        match opened {
            Ok(()) => Ok(SourceStand::Open),
            Err(error) if matches!(error.kind(), ErrorKind::Schema(_)) && self.path.exists() => {
                match self.on_file(|connection| read_note(connection)).await {
                    Ok(Some(stand)) => Ok(stand),
                    // The file holds another program's tables, or is a store of another version.
                    Ok(None) | Err(_) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn look(&mut self) -> Result<Look> {
        let mut snapshot = self.database().await?.snapshot().await?;
        let (mut scavenged, mut after) = (0, i64::MIN);
        loop {
            let page = snapshot.rows.floors(LogId(0), after, PAGE_NAMES).await?;
            let Some(last) = page.last() else {
                break;
            };
            after = last.stream;
            let revisions = page.iter().map(|floor| floor.revision.unsigned_abs());
            scavenged += revisions.sum::<u64>();
        }
        let ends = snapshot.ends.iter().map(|end| end.0.cast_signed());
        Ok(Look {
            incarnation: snapshot.incarnation,
            ends: ends.collect(),
            scavenged,
            virtual_streams: snapshot.virtual_streams,
        })
    }

    async fn has(&mut self, log: u16, position: i64, checksum: i64) -> Result<bool> {
        if position == 0 {
            return Ok(true);
        }
        let mut rows = self.rows().await?;
        let found = rows.rows(LogId(log), position - 1, 1).await?;
        let first = found.first();
        Ok(first.is_some_and(|row| row.position == position && row.checksum == checksum))
    }

    async fn rows(&mut self) -> Result<Box<dyn AuditSource>> {
        self.database().await?.rows().await
    }

    async fn close(&mut self, to: &Note, copied: &Copied) -> Result<Closing> {
        let (to, copied) = (to.clone(), copied.clone());
        self.on_file(move |connection| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = holds(&transaction, &copied)?;
            if done != Closing::Done {
                return Ok(done);
            }
            transaction.execute_batch(
                "CREATE TABLE moved (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, place TEXT NOT NULL, \
                 copied TEXT, opening TEXT, opened INTEGER NOT NULL DEFAULT 0 CHECK (opening IS NOT NULL OR opened = 0)) \
                 STRICT",
            )?;
            let sql = "INSERT INTO moved (one, id, place, copied) VALUES (1, ?1, ?2, ?3)";
            transaction.execute(sql, (to.id.to_string(), to.place, to.copied))?;
            let sql = "UPDATE store SET schema_version = schema_version + ?1";
            transaction.execute(sql, [MOVED_AWAY])?;
            transaction.commit()?;
            Ok(Closing::Done)
        })
        .await
    }

    async fn shut(&mut self, _id: Uuid, _digest: &str, _copied: &Copied) -> Result<Closing> {
        // It was shut when it was closed.
        Ok(Closing::Done)
    }

    async fn note_opening(&mut self, id: Uuid, opening: Uuid) -> Result<()> {
        let sql = "UPDATE moved SET opening = ?2 WHERE id = ?1 AND opened = 0 AND coalesce(opening = ?2, true)";
        self.note(sql, id, opening).await
    }

    async fn note_opened(&mut self, id: Uuid, opening: Uuid) -> Result<()> {
        let sql = "UPDATE moved SET opening = ?2, opened = 1 WHERE id = ?1 AND coalesce(opening = ?2, true)";
        self.note(sql, id, opening).await
    }

    async fn blockers(&mut self) -> Result<Vec<Blocker>> {
        // One process has the file.
        Ok(Vec::new())
    }

    async fn reopen(&mut self, id: Uuid) -> Result<Closing> {
        self.on_file(move |connection| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let is_ours = match read_note(&transaction)? {
                Some(SourceStand::Shut(note) | SourceStand::Opening(note, _)) => note.id == id,
                _ => false,
            };
            if is_ours {
                let sql = "UPDATE store SET schema_version = schema_version - ?1";
                transaction.execute(sql, [MOVED_AWAY])?;
                transaction.execute_batch("DROP TABLE moved")?;
            }
            transaction.commit()?;
            Ok(Closing::Done)
        })
        .await
    }

    async fn end(&mut self) {
        if let Some(database) = self.database.take() {
            database.close().await;
        }
    }
}
