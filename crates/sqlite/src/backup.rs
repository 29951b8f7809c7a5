//! A backup is a consistent copy of a running store in a file of its own. A restore puts such a copy where no store is.
//!
//! How: SQLite's online backup copies all pages of one snapshot, a few at a time, on a connection of its own. Appends
//! go on meanwhile; only the write-ahead log cannot be started again, so it grows by what is appended. The copy has
//! another name until it is whole and synced, so a copy that was cut short never looks like a backup. A backup has the
//! incarnation of the store; a restored store gets another (C9).

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use gesta_core::{Error, Result};
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use crate::connection::open_reading;
use crate::end_note;
use crate::error::{Fault, Outcome};
use crate::files::sync_directory_of;

/// Text with which the name of an unfinished copy ends.
const UNFINISHED: &str = ".unfinished";
/// Number of pages copied before the copy looks again whether to stop: 4 MiB.
const PAGES_PER_STEP: i32 = 1_024;

/// The store from which a copy is made.
pub(crate) enum Source<'a> {
    /// The file of a store; the copy gets a connection and a snapshot of its own.
    File(&'a Path),
    /// The connection of a store in memory.
    Memory(&'a Connection),
}

/// Copies a store to a new file. The copy stops when `stopped` returns true.
///
/// # Errors
/// `InvalidArgument` if `to` exists; `Unavailable` if the copy cannot be made, or was stopped. Nothing is left behind
/// then.
pub(crate) fn back_up(from: &Source<'_>, to: &Path, stopped: &dyn Fn() -> bool) -> Outcome<()> {
    check_new("backup", to)?;
    let unfinished = unfinished(to);
    let result = copy(from, &unfinished, stopped)
        .and_then(|()| finish(&unfinished, to).map_err(Fault::from));
    if result.is_err() {
        remove_if_there(&unfinished);
    }
    result
}

/// Copies a store to a file without a name. The file is gone when it is closed, however the process ends.
///
/// # Errors
/// `Unavailable` if the copy cannot be made, or was stopped.
pub(crate) fn copy_without_name(
    from: &Source<'_>,
    path: &Path,
    stopped: &dyn Fn() -> bool,
) -> Outcome<File> {
    let copied = copy(from, path, stopped)
        .and_then(|()| File::open(path).map_err(|error| failed_at(path, error).into()));
    remove_if_there(path);
    copied
}

/// Returns the path at which a copy without a name is made, for a moment. It is beside the store, where there is space
/// for one.
pub(crate) fn nameless(path: &Path) -> PathBuf {
    with_suffix(path, "-copy")
}

fn check_new(what: &str, path: &Path) -> Result<()> {
    if path.exists() {
        let rule = format!("must be a new file, {} exists", path.display());
        return Err(Error::invalid(what, rule));
    }
    Ok(())
}

fn unfinished(to: &Path) -> PathBuf {
    with_suffix(to, UNFINISHED)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    PathBuf::from(name)
}

fn copy(from: &Source<'_>, path: &Path, stopped: &dyn Fn() -> bool) -> Outcome<()> {
    // Left behind by a copy that was killed; nobody needs it.
    remove_if_there(path);
    let mut target = Connection::open(path)?;
    // The whole file is synced at the end, or removed: no journal, which would be left behind too.
    target.pragma_update(None, "journal_mode", "OFF")?;
    target.pragma_update(None, "synchronous", "OFF")?;
    match from {
        Source::Memory(conn) => copy_pages(conn, &mut target, -1, stopped),
        Source::File(file) => {
            let conn = open_reading(file)?;
            conn.execute_batch(include_str!("../sql/begin_read.sql"))?;
            // The snapshot begins with the first read, and keeps the copy from beginning again after each commit.
            conn.query_row(include_str!("../sql/select_store.sql"), [], |_| Ok(()))?;
            copy_pages(&conn, &mut target, PAGES_PER_STEP, stopped)
        }
    }
}

fn copy_pages(
    from: &Connection,
    target: &mut Connection,
    pages_per_step: i32,
    stopped: &dyn Fn() -> bool,
) -> Outcome<()> {
    let backup = Backup::new(from, target)?;
    loop {
        match backup.step(pages_per_step)? {
            StepResult::Done => return Ok(()),
            StepResult::More if !stopped() => {}
            StepResult::More => return Err(Error::unavailable("the backup was stopped").into()),
            other => {
                let text = format!("the backup did not finish: {other:?}");
                return Err(Error::unavailable(text).into());
            }
        }
    }
}

fn failed_at(path: &Path, error: std::io::Error) -> Error {
    Error::unavailable(format!("{}: {error}", path.display())).caused_by(error)
}

fn finish(unfinished: &Path, to: &Path) -> Result<()> {
    let failed = |error| failed_at(to, error);
    File::open(unfinished)
        .and_then(|file| file.sync_all())
        .map_err(failed)?;
    check_new("backup", to)?;
    fs::rename(unfinished, to).map_err(failed)?;
    sync_directory_of(to).map_err(failed)
}

/// Removes a file, which need not exist.
pub(crate) fn remove_if_there(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), %error, "not removed");
    }
}

/// A copy of a backup beside the place of the future store, not checked yet. Dropping it removes the copy.
#[derive(Debug)]
pub struct Restoring {
    unfinished: PathBuf,
    to: PathBuf,
}

impl Restoring {
    /// Copies the backup `from` to a file beside `to`, the place of the future store.
    ///
    /// # Errors
    /// `InvalidArgument` if something is at `to`, or if `from` is no backup but a store in use; `Unavailable` if the
    /// backup cannot be copied.
    pub fn begin(from: &Path, to: &Path) -> Result<Self> {
        for place in [to.to_owned(), with_suffix(to, "-wal")] {
            check_new("store", &place)?;
        }
        let wal = with_suffix(from, "-wal");
        if fs::metadata(&wal).is_ok_and(|found| found.len() > 0) {
            let rule = format!(
                "must be a file made by `gesta backup`; beside {} is {}, so it is a store in use, or one that was not closed",
                from.display(),
                wal.display()
            );
            return Err(Error::invalid("backup", rule));
        }
        let restoring = Self {
            unfinished: unfinished(to),
            to: to.to_owned(),
        };
        restoring.remove_all();
        let mut source = File::open(from).map_err(|error| failed_at(from, error))?;
        File::create_new(&restoring.unfinished)
            .and_then(|mut target| std::io::copy(&mut source, &mut target))
            .map_err(|error| failed_at(&restoring.unfinished, error))?;
        Ok(restoring)
    }

    /// Returns the path of the copy. The copy must be opened, checked, given a new incarnation and closed before
    /// [`Restoring::finish`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.unfinished
    }

    /// Moves the copy to the place of the store.
    ///
    /// # Errors
    /// `InvalidArgument` if something has come to that place meanwhile; `Unavailable` if the file system refuses.
    pub fn finish(self) -> Result<()> {
        // A note of a store that was here says nothing about this one.
        end_note::remove(&self.to).map_err(|error| failed_at(&self.to, error))?;
        finish(&self.unfinished, &self.to)
    }

    fn remove_all(&self) {
        for suffix in ["", "-wal", "-shm", "-end", ".lock"] {
            remove_if_there(&with_suffix(&self.unfinished, suffix));
        }
    }
}

impl Drop for Restoring {
    fn drop(&mut self) {
        self.remove_all();
    }
}
