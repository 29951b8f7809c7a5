//! The connections to the file: a few idle ones, and one turn to write.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gesta_projection::{TargetError, TargetErrorKind};
use rusqlite::{Connection, OpenFlags};
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
}

impl Connections {
    pub(crate) fn new(path: PathBuf, synchronous: Synchronous) -> Self {
        Self {
            path,
            synchronous,
            idle: Mutex::new(Vec::new()),
            turn: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
        }
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
