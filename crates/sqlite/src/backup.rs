//! A backup is a consistent copy of a running store in a file of its own. See `restore` for the way back.
//!
//! How: SQLite's online backup copies all pages of one snapshot, a few at a time, on a connection of its own, which was
//! opened with the store: so it copies the store that is open here, whatever its name leads to meanwhile. Appends go
//! on; only the write-ahead log cannot be started again, so it grows by what is appended. The copy has another name
//! until it is whole and synced, so a copy that was cut short never looks like a backup. A backup has the incarnation
//! of the store; a restored store gets another (C9). So that nobody opens a backup as the store, it has a mark.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use gesta_core::{Error, Result};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use uuid::Uuid;

use crate::end_note::Opening;
use crate::error::Outcome;
use crate::files::{self, FileId, failed_at, sync_directory_of, with_suffix};
use crate::place::{self, Found, Place};
use crate::read_connection::ReadConnection;

/// Text with which the name of an unfinished copy ends.
pub(crate) const UNFINISHED: &str = ".unfinished";
/// Text between the name of the store and a random one in the name of a copy that will have none.
const NAMELESS: &str = "-copy-";
/// Number of pages copied before the copy looks again whether to stop: 4 MiB.
const PAGES_PER_STEP: i32 = 1_024;

/// Copies the store of a connection to a new file. The copy stops when `stopped` returns true.
///
/// # Errors
/// `InvalidArgument` if `to` exists; `Unavailable` if the copy cannot be made, or was stopped. Nothing is left behind
/// then.
pub(crate) fn back_up(
    from: &mut ReadConnection,
    to: &Path,
    stopped: &dyn Fn() -> bool,
) -> Outcome<()> {
    check_new("backup", to)?;
    let unfinished = with_suffix(to, UNFINISHED);
    // Left behind by a copy that was killed; nobody needs it.
    remove_if_there(&unfinished);
    let new = New::create(&unfinished)?;
    new.fill(from, stopped)?;
    new.finish(to)?;
    Ok(())
}

/// Copies the store of a connection to a file without a name, made at one of `paths`, the first that can be. The file
/// is gone when it is closed, however the process ends.
///
/// # Errors
/// `Unavailable` if the copy cannot be made, or was stopped.
pub(crate) fn copy_without_name(
    from: &mut ReadConnection,
    paths: &[PathBuf],
    stopped: &dyn Fn() -> bool,
) -> Outcome<File> {
    let mut failed = Error::unavailable("there is no place for the copy");
    for path in paths {
        match New::create(path) {
            Ok(new) => {
                new.fill(from, stopped)?;
                return Ok(new
                    .file
                    .try_clone()
                    .map_err(|error| failed_at(path, error))?);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed.into())
}

/// Returns the paths at which a copy without a name is made, for a moment: beside the store, where there should be
/// space for one, unless its folder is gone or read-only, or belongs to another store now; else among temporary files.
/// Each name is used once, so that no two processes write to one file.
pub(crate) fn nameless(place: Option<&Place>) -> Vec<PathBuf> {
    let name = Uuid::new_v4();
    let temporary = std::env::temp_dir().join(format!("gesta{NAMELESS}{name}"));
    match place {
        Some(place) if place.look() == Found::InPlace => {
            let beside = with_suffix(place.path(), &format!("{NAMELESS}{name}"));
            vec![beside, temporary]
        }
        _ => vec![temporary],
    }
}

/// Removes copies without a name that a process which was killed has left beside the store.
pub(crate) fn remove_left_behind(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    // Earlier versions called it just `-copy`.
    remove_if_there(&with_suffix(path, "-copy"));
    let begins = format!("{}{NAMELESS}", name.to_string_lossy());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&begins) {
            remove_if_there(&entry.path());
        }
    }
}

pub(crate) fn check_new(what: &str, path: &Path) -> Result<()> {
    // A symbolic link that leads nowhere is something too.
    let found = files::found_or_absent(fs::symlink_metadata(path));
    match found.map_err(|error| failed_at(path, error))? {
        Some(_) => Err(exists(what, path)),
        None => Ok(()),
    }
}

fn exists(what: &str, path: &Path) -> Error {
    let rule = format!(
        "must be a new file, {} exists: give another place, or move what is there away",
        path.display()
    );
    Error::invalid(what, rule)
}

/// A file that a copy is written to, which only its owner may read. Dropping it removes its name.
struct New {
    path: PathBuf,
    file: File,
}

impl New {
    fn create(path: &Path) -> Result<Self> {
        let file = files::private()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|error| files::failed_to("the backup cannot be written: ", path, error))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Copies all pages of one snapshot into the file.
    fn fill(&self, from: &mut ReadConnection, stopped: &dyn Fn() -> bool) -> Outcome<()> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NOFOLLOW
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // SQLite refuses any symbolic link on the way with that flag, those of folders too.
        let path = files::canonical(&self.path).map_err(|error| failed_at(&self.path, error))?;
        let mut target = Connection::open_with_flags(path, flags)?;
        // The whole file is synced at the end, or removed: no journal, which would be left behind too.
        target.pragma_update(None, "journal_mode", "OFF")?;
        target.pragma_update(None, "synchronous", "OFF")?;
        from.in_snapshot(|conn, _| {
            // The snapshot begins with the first read, and keeps the copy from beginning again after each commit.
            conn.query_row(include_str!("../sql/select_store.sql"), [], |_| Ok(()))?;
            copy_pages(conn, &mut target, PAGES_PER_STEP, stopped)
        })?;
        target.close().map_err(|(_, error)| error)?;
        self.check_name()?;
        // Nothing is missing from the copy, but it has the incarnation of the store: only a restore makes one of it.
        place::write_mark(&self.file, Opening::BACKUP)
            .map_err(|error| failed_at(&self.path, error))?;
        Ok(())
    }

    /// Refuses a name that leads to another file meanwhile: SQLite may have written to that one.
    fn check_name(&self) -> Result<()> {
        let failed = |error| failed_at(&self.path, error);
        let named = FileId::of(&fs::metadata(&self.path).map_err(failed)?);
        if named == FileId::of(&self.file.metadata().map_err(failed)?) {
            return Ok(());
        }
        let text = format!("{} was replaced meanwhile", self.path.display());
        Err(Error::unavailable(text))
    }

    fn finish(self, to: &Path) -> Result<()> {
        self.file.sync_all().map_err(|error| failed_at(to, error))?;
        self.check_name()?;
        finish(&self.path, to)
    }
}

impl Drop for New {
    fn drop(&mut self) {
        // After `finish` it has another name.
        remove_if_there(&self.path);
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

/// Gives a synced copy its name.
pub(crate) fn finish(unfinished: &Path, to: &Path) -> Result<()> {
    files::rename_to_new(unfinished, to).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => exists("backup", to),
        _ => failed_at(to, error),
    })?;
    sync_directory_of(to).map_err(|error| failed_at(to, error))
}

/// Removes a file, which need not exist.
pub(crate) fn remove_if_there(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), %error, "not removed");
    }
}
