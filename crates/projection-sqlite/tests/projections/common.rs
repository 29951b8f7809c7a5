//! Files for the tests of this crate.

use gesta_projection_sqlite::{Options, SqliteTarget, Synchronous, rusqlite};
use tempfile::TempDir;

/// A file for a target, and readers of it.
pub(crate) struct Files {
    folder: TempDir,
}

impl Files {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder }
    }

    pub(crate) fn make(&self) -> SqliteTarget {
        // What a power cut leaves is not tested here, so nothing has to wait for the disk.
        let options = Options {
            synchronous: Synchronous::Normal,
        };
        SqliteTarget::with(self.folder.path().join("read.db"), options)
    }

    /// Opens a connection as a reader has it.
    pub(crate) fn open(&self) -> rusqlite::Connection {
        let path = self.folder.path().join("read.db");
        rusqlite::Connection::open(path).expect("opened")
    }
}
