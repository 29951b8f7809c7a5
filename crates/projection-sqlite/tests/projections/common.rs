//! Files for the tests of this crate.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use gesta_projection_sqlite::{Options, SqliteTarget, Synchronous, rusqlite};
use tempfile::TempDir;

/// Files for targets, one after the other, and readers of the last one.
#[derive(Debug)]
pub(crate) struct Files {
    folder: TempDir,
    made: AtomicU32,
}

impl Files {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let made = AtomicU32::new(0);
        Self { folder, made }
    }

    fn path(&self) -> PathBuf {
        let made = self.made.load(Ordering::SeqCst);
        self.folder.path().join(format!("read-{made}.db"))
    }

    /// Makes a target in a new file.
    pub(crate) fn make(&self) -> SqliteTarget {
        self.made.fetch_add(1, Ordering::SeqCst);
        self.again()
    }

    /// Makes another target of the same file.
    pub(crate) fn again(&self) -> SqliteTarget {
        // What a power cut leaves is not tested here, so nothing has to wait for the disk.
        let options = Options {
            synchronous: Synchronous::Normal,
        };
        SqliteTarget::with(self.path(), options)
    }

    /// Opens a connection as a reader has it.
    pub(crate) fn open(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).expect("opened")
    }

    /// Copies what the file holds, as a backup.
    pub(crate) fn copy(&self) -> PathBuf {
        let backup = self.folder.path().join("backup.db");
        let sql = format!("VACUUM INTO '{}'", backup.display());
        self.open().execute_batch(&sql).expect("copied");
        backup
    }

    /// Puts a backup in the place of the file.
    pub(crate) fn put_back(&self, backup: &std::path::Path) {
        // Connections that are open keep the file that they have.
        for file in ["", "-wal", "-shm"] {
            let name = format!("{}{file}", self.path().display());
            let _ = std::fs::remove_file(name);
        }
        std::fs::copy(backup, self.path()).expect("put back");
    }
}
