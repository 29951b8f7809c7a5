//! The lock of a store, so that one process has it: an exclusive lock on a file beside the database.
//!
//! Why not SQLite's own locks: several connections of one process must read while one writes, which its exclusive mode
//! forbids. Why a file of its own: closing any handle of the database file would drop POSIX locks that SQLite holds on
//! it. The lock is the operating system's and ends with the process, however it ends. The file stays: removing it would
//! let two processes lock two files of one name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use gesta_core::{Error, Result};

/// Holds the lock until it is dropped.
#[derive(Debug)]
pub(crate) struct StoreLock {
    _file: File,
}

impl StoreLock {
    /// Takes the lock of the database at `path`.
    ///
    /// # Errors
    /// `Unavailable` if another process, or another store of this process, holds the lock. The message says which one,
    /// and what to do.
    pub(crate) fn take(path: &Path) -> Result<Self> {
        let lock_path = lock_path(path);
        let failed = |error: std::io::Error| {
            Error::unavailable(format!("cannot lock {}: {error}", lock_path.display()))
                .caused_by(error)
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(path, &lock_path, &mut file)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // The process id only helps people; without it the lock is as good.
        if let Err(error) = write_id(&mut file) {
            tracing::warn!(file = %lock_path.display(), %error, "process id not written to the lock file");
        }
        Ok(Self { _file: file })
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

fn write_id(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    writeln!(file, "{}", std::process::id())?;
    file.flush()
}

fn held(path: &Path, lock_path: &Path, file: &mut File) -> Error {
    let mut text = String::new();
    // A file of our own of a few bytes; anything else in it is not shown.
    let id = file
        .take(32)
        .read_to_string(&mut text)
        .ok()
        .and_then(|_| text.trim().parse::<u32>().ok());
    let holder = match id {
        Some(id) if id == std::process::id() => format!("this process ({id})"),
        Some(id) => format!("process {id}"),
        None => "another process".into(),
    };
    Error::unavailable(format!(
        "{} is open in {holder}, which holds the lock {}; a SQLite store belongs to one process at a time: \
         stop that process, or reach the store through its server",
        path.display(),
        lock_path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_is_refused_with_a_sentence_that_helps() {
        let home = tempfile::tempdir().expect("dir");
        let path = home.path().join("gesta.db");
        let first = StoreLock::take(&path).expect("free");
        let error = StoreLock::take(&path).expect_err("taken").to_string();
        let id = std::process::id().to_string();
        for part in ["gesta.db.lock", &id, "one process", "through its server"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        drop(first);
        StoreLock::take(&path).expect("free again");
    }
}
