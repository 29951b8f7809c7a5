//! Rows of the read model in a SQLite file of their own.
//!
//! Why they are not in the store's file: the store is its only writer. A power cut may lose the last transactions here
//! (`synchronous=NORMAL`), rows and checkpoint together; their events are counted again.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, params};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::{AvailableSeats, Batch, Error, Views};

const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS cinema_available_seats (
        show_id BLOB NOT NULL PRIMARY KEY,
        available INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS cinema_checkpoint (
        name TEXT NOT NULL PRIMARY KEY,
        checkpoint TEXT NOT NULL
    ) WITHOUT ROWID;
    INSERT INTO cinema_checkpoint VALUES ('available-seats', '') ON CONFLICT DO NOTHING;
";
const READ_CHECKPOINT: &str =
    "SELECT checkpoint FROM cinema_checkpoint WHERE name = 'available-seats'";
const MOVE_CHECKPOINT: &str = "UPDATE cinema_checkpoint SET checkpoint = ?2 WHERE name = 'available-seats' AND checkpoint = ?1";
const PUT_SEATS: &str = "
    INSERT INTO cinema_available_seats (show_id, available) VALUES (?1, ?2)
    ON CONFLICT (show_id) DO UPDATE SET available = excluded.available";
const ADD_SEATS: &str =
    "UPDATE cinema_available_seats SET available = available + ?2 WHERE show_id = ?1";
const READ_PAGE: &str = "
    SELECT show_id, available FROM cinema_available_seats WHERE show_id > ?1 ORDER BY show_id LIMIT ?2";

/// Rows of the read model in a file, or in memory.
#[derive(Debug)]
pub(super) struct SqliteViews {
    path: Option<PathBuf>,
    connection: Arc<Mutex<Option<Connection>>>,
}

impl SqliteViews {
    /// Makes the place for rows next to the store that the URL `sqlite:rest` names.
    pub(super) fn beside(rest: &str) -> Self {
        let path = rest.split_once('?').map_or(rest, |(path, _)| path);
        let path = match path.strip_prefix("//").unwrap_or(path) {
            ":memory:" => None,
            path => {
                let stem = path.strip_suffix(".db").unwrap_or(path);
                Some(format!("{stem}.views.db").into())
            }
        };
        let connection = Arc::default();
        Self { path, connection }
    }

    /// Runs `work` on the connection, on a thread that may block. After an error a new connection is opened.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let mut place = Arc::clone(&self.connection).lock_owned().await;
        let path = self.path.clone();
        let run = move || {
            let mut connection = match place.take() {
                Some(connection) => connection,
                None => connect(path.as_ref())?,
            };
            let done = work(&mut connection);
            // What is in memory must stay.
            if done.is_ok() || path.is_none() {
                *place = Some(connection);
            }
            done
        };
        let done = tokio::task::spawn_blocking(run).await;
        done.map_err(|error| Error::Database(error.to_string()))?
            .map_err(|error| Error::Database(error.to_string()))
    }
}

fn connect(path: Option<&PathBuf>) -> rusqlite::Result<Connection> {
    let connection = path.map_or_else(Connection::open_in_memory, Connection::open)?;
    connection.execute_batch(TABLES)?;
    Ok(connection)
}

#[async_trait]
impl Views for SqliteViews {
    async fn checkpoint(&self) -> Result<String, Error> {
        self.with(|connection| connection.query_row(READ_CHECKPOINT, [], |row| row.get(0)))
            .await
    }

    async fn apply(&self, batch: &Batch) -> Result<bool, Error> {
        let batch = batch.clone();
        self.with(move |connection| {
            let transaction = connection.transaction()?;
            let moved = transaction.execute(MOVE_CHECKPOINT, params![batch.from, batch.to])? > 0;
            if moved && batch.is_anew {
                transaction.execute("DELETE FROM cinema_available_seats", [])?;
            }
            if moved {
                let mut put = transaction.prepare_cached(PUT_SEATS)?;
                let mut add = transaction.prepare_cached(ADD_SEATS)?;
                for (show_id, change) in batch.changes {
                    let statement = if change.is_new { &mut put } else { &mut add };
                    statement.execute(params![show_id.as_bytes(), change.seats])?;
                }
            }
            transaction.commit()?;
            Ok(moved)
        })
        .await
    }

    async fn page(&self, after: Option<Uuid>, limit: u16) -> Result<Vec<AvailableSeats>, Error> {
        self.with(move |connection| {
            let mut statement = connection.prepare_cached(READ_PAGE)?;
            // An empty blob comes before every id.
            let after = after.map_or(Vec::new(), |id| id.as_bytes().to_vec());
            let rows = statement.query_map(params![after, limit], |row| {
                Ok(AvailableSeats {
                    show_id: Uuid::from_bytes(row.get(0)?),
                    available: row.get(1)?,
                })
            })?;
            rows.collect()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_lies_next_to_the_store() {
        let beside = |rest: &str| SqliteViews::beside(rest).path;
        assert_eq!(beside(":memory:"), None);
        assert_eq!(
            beside("data/cinema.db"),
            Some("data/cinema.views.db".into())
        );
        assert_eq!(beside("///x/s?readers=2"), Some("/x/s.views.db".into()));
    }
}
