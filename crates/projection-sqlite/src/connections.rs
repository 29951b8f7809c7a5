//! The connections to the file: a few idle ones, and one turn to write.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gesta_projection::{TargetError, TargetErrorKind};
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{OrTarget, Result};

/// Largest number of connections that are kept open though nobody uses them.
const IDLE_MAX: usize = 4;
/// How long a statement waits for another process that writes.
const BUSY_FOR: Duration = Duration::from_secs(5);
/// Statements that each connection keeps prepared.
const PREPARED_MAX: usize = 64;

/// What a commit survives. A power cut never tears a batch apart: rows and checkpoint are there together or not at all,
/// and what is missing is applied again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Synchronous {
    /// `synchronous = FULL`: a commit survives a power cut.
    #[default]
    Full,
    /// `synchronous = NORMAL`: a power cut may take the last batches, which are then applied again. Faster.
    Normal,
}

pub(crate) struct Connections {
    path: PathBuf,
    synchronous: Synchronous,
    idle: Mutex<Vec<Connection>>,
    /// SQLite has one writer: those of this process take turns here, in order, and do not poll for the lock.
    turn: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// The folder of a file that is deleted with the target: after the connections are closed.
    _folder: Option<TempDir>,
}

impl Connections {
    pub(crate) fn new(path: PathBuf, synchronous: Synchronous, folder: Option<TempDir>) -> Self {
        Self {
            path,
            synchronous,
            idle: Mutex::new(Vec::new()),
            turn: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
            _folder: folder,
        }
    }

    #[cfg(test)]
    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Waits for the turn to write.
    pub(crate) async fn turn(&self) -> Result<OwnedSemaphorePermit> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        turn.map_err(|_| TargetError::new(TargetErrorKind::Away, "the target is closed"))
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Takes a connection, or opens one.
    pub(crate) fn take(&self) -> Result<Connection> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        idle.map_or_else(|| self.open(), Ok)
    }

    /// Keeps a connection for others, unless a transaction was left open in it.
    pub(crate) fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if connection.is_autocommit() && idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    fn open(&self) -> Result<Connection> {
        make_private(&self.path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags).or_target()?;
        connection.busy_timeout(BUSY_FOR).or_target()?;
        let mode: String = connection
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .or_target()?;
        if mode != "wal" {
            return Err(TargetError::new(
                TargetErrorKind::Unusable,
                format!("the file must be in WAL mode, but SQLite keeps it in mode {mode}"),
            ));
        }
        let synchronous = match self.synchronous {
            Synchronous::Full => "FULL",
            Synchronous::Normal => "NORMAL",
        };
        connection
            .pragma_update(None, "synchronous", synchronous)
            .or_target()?;
        connection
            .pragma_update(None, "cache_size", -16_384)
            .or_target()?;
        connection.set_prepared_statement_cache_capacity(PREPARED_MAX);
        Ok(connection)
    }
}

/// Makes the file, if there is none, for its owner alone: it holds what events hold. The files that SQLite makes beside
/// it get its mode.
#[cfg(unix)]
fn make_private(path: &std::path::Path) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(TargetError::new(
            TargetErrorKind::Unusable,
            format!("{} cannot be made or opened: {error}", path.display()),
        )),
        _ => Ok(()),
    }
}

#[cfg(not(unix))]
fn make_private(_: &std::path::Path) -> Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Goal: nobody else on the machine reads what events hold.
    #[test]
    fn a_new_file_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("read.db");
        let connections = Connections::new(path.clone(), Synchronous::Full, None);
        let connection = connections.take().expect("opens");
        connection
            .execute_batch("CREATE TABLE t (x)")
            .expect("made");
        for name in ["read.db", "read.db-wal", "read.db-shm"] {
            let found = std::fs::metadata(folder.path().join(name)).expect("there");
            assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
        }
    }
}
