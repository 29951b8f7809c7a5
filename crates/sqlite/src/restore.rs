//! A restore puts a copy of a backup where no store is, and makes a store of it.
//!
//! How: the copy lies beside the place of the store, under another name, until it is whole, has a new incarnation (C9)
//! and was checked. Until it has the incarnation it is a backup, and before that no database: whatever a kill leaves of
//! a restore, positions of the old store are used again by nobody.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use gesta_core::{Error, Incarnation, Result};

use crate::backup::{UNFINISHED, check_new, finish, remove_if_there};
use crate::config::SqliteConfig;
use crate::end_note::Opening;
use crate::files::{self, failed_at, with_suffix};
use crate::place;
use crate::store::SqliteBackend;

/// Number of bytes of a backup that are copied before a restore looks again whether to stop.
const BYTES_PER_STEP: u64 = 16 * 1024 * 1024;
/// Number of bytes at the beginning of a backup that are copied last: a block of the file system, so that one which can
/// share blocks between files shares all others.
const BYTES_LAST: u64 = 4_096;

/// Who has made the file that is restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MadeBy {
    Gesta,
    Sqlite,
}

/// A copy of a backup beside the place of the future store, not checked yet. Dropping it removes the copy.
///
/// It is a backup until it has a new incarnation, which is the first thing that it gets: what a kill leaves of it is no
/// store in which positions of the old one would be used again, whatever becomes of the file.
#[derive(Debug)]
pub struct Restoring {
    copy: Unfinished,
    to: PathBuf,
    incarnation: Incarnation,
}

/// The path of a copy. Dropping it removes the copy, and what lies beside it.
#[derive(Debug)]
struct Unfinished(PathBuf);

impl Restoring {
    /// Copies the backup `from` to a file beside `to`, the place of the future store, and gives the copy a new
    /// incarnation. The copy ends when `stopped` returns true.
    ///
    /// # Errors
    /// `InvalidArgument` if something is at `to`, or if `from` is no backup but a store in use; `Unavailable` if the
    /// backup cannot be copied, or the copy was stopped; those of [`SqliteBackend::new_incarnation`]. Nothing is left
    /// behind then.
    pub fn begin(from: &Path, to: &Path, stopped: &dyn Fn() -> bool) -> Result<Self> {
        Self::copy(from, to, MadeBy::Gesta, stopped)
    }

    /// Copies a file that SQLite itself has made from a store that may have been in use (`sqlite3 .backup`, `VACUUM
    /// INTO`, Litestream) to a file beside `to`. Such a file is whole. It holds the mark of an opening, as one that was
    /// copied alone by `cp` does, so the caller must know who has made it.
    ///
    /// # Errors
    /// Those of [`Restoring::begin`].
    pub fn begin_with_sqlite_copy(
        from: &Path,
        to: &Path,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Self> {
        Self::copy(from, to, MadeBy::Sqlite, stopped)
    }

    /// Returns the path of the copy of a backup that will be the store at `to`, until it has its name.
    #[must_use]
    pub fn path_of(to: &Path) -> PathBuf {
        with_suffix(to, UNFINISHED)
    }

    fn copy(from: &Path, to: &Path, made_by: MadeBy, stopped: &dyn Fn() -> bool) -> Result<Self> {
        for place in [to.to_owned(), with_suffix(to, "-wal")] {
            check_new("store", &place)?;
        }
        let from = &files::canonical(from).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                let rule = format!(
                    "must be a file made by `gesta backup`, and there is none at {}",
                    from.display()
                );
                Error::invalid("backup", rule)
            }
            _ => failed_at(from, error),
        })?;
        let wal = with_suffix(from, "-wal");
        if fs::metadata(&wal).is_ok_and(|found| found.len() > 0) {
            let rule = format!(
                "must be a file made by `gesta backup`; beside {} is {}, so it is a store in use, or one that was not closed",
                from.display(),
                wal.display()
            );
            return Err(Error::invalid("backup", rule));
        }
        place::check_not_open("backup", from)?;
        let mut source = File::open(from).map_err(|error| failed_at(from, error))?;
        let is_database = files::begins_with(&source, place::SQLITE_BEGINS);
        if !is_database.map_err(|error| failed_at(from, error))? {
            let rule = format!(
                "must be a file made by `gesta backup`; {} is no SQLite database",
                from.display()
            );
            return Err(Error::invalid("backup", rule));
        }
        let mark = place::read_mark(&source).map_err(|error| failed_at(from, error))?;
        // Backups had no mark once.
        let is_backup = matches!(mark, Opening::NONE | Opening::BACKUP);
        if !is_backup && made_by == MadeBy::Gesta {
            let rule = format!(
                "must be a file made by `gesta backup`; {} was copied from a store in use, or from one that was not closed. If it \
                 was copied by cp, rsync or the like, the newest events are missing in it: copy the store by `gesta backup`, \
                 also while its server runs. Only if SQLite itself has made it (`sqlite3 .backup`, `VACUUM INTO`, Litestream) \
                 is it whole, and --sqlite-copy says so",
                from.display()
            );
            return Err(Error::invalid("backup", rule));
        }
        let folder = files::directory_of(to);
        files::create_directories(folder).map_err(|error| {
            let what = format!("the folder {} cannot be made", folder.display());
            files::failed(&what, error)
        })?;
        let copy = Unfinished(Self::path_of(to));
        copy.remove_all();
        let copied = files::private()
            .write(true)
            .create_new(true)
            .open(&copy.0)
            .and_then(|mut target| copy_file(&mut source, &mut target, stopped))
            .map_err(|error| {
                let what = format!(
                    "{} cannot be copied to the folder {}",
                    from.display(),
                    folder.display()
                );
                files::failed(&what, error)
            })?;
        match copied {
            Copied::Whole => {}
            Copied::Stopped => return Err(Error::unavailable("the restore was stopped")),
        }
        let incarnation = SqliteBackend::new_incarnation(&SqliteConfig::file(&copy.0))?;
        Ok(Self {
            copy,
            to: to.to_owned(),
            incarnation,
        })
    }

    /// Returns the incarnation that the store will have.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the path of the copy. The copy must be opened, checked and closed before [`Restoring::finish`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.copy.0
    }

    /// Moves the copy to the place of the store.
    ///
    /// # Errors
    /// `InvalidArgument` if something has come to that place meanwhile; `Unavailable` if the file system refuses.
    pub fn finish(self) -> Result<()> {
        let copy = &self.copy.0;
        File::open(copy)
            .and_then(|file| file.sync_all())
            .map_err(|error| failed_at(copy, error))?;
        // A note of a store that was here stays: it names another incarnation, so it says nothing about this one. What
        // has come to this place meanwhile needs its own, and who opens this store writes another.
        finish(copy, &self.to)
    }
}

impl Unfinished {
    fn remove_all(&self) {
        for suffix in ["", "-wal", "-shm", "-end", ".lock"] {
            remove_if_there(&with_suffix(&self.0, suffix));
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.remove_all();
    }
}

/// How the copy of a file has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Copied {
    Whole,
    Stopped,
}

/// Copies a SQLite database into an empty file, as a backup. The bytes by which it is known as a database are written
/// last: a copy that was stopped, even by a kill, is none, and is opened by nobody.
fn copy_file(
    source: &mut File,
    target: &mut File,
    stopped: &dyn Fn() -> bool,
) -> std::io::Result<Copied> {
    let mut first = Vec::new();
    source.by_ref().take(BYTES_LAST).read_to_end(&mut first)?;
    place::mark_header(&mut first, Opening::BACKUP);
    target.seek(SeekFrom::Start(BYTES_LAST))?;
    loop {
        if stopped() {
            return Ok(Copied::Stopped);
        }
        if std::io::copy(&mut source.by_ref().take(BYTES_PER_STEP), target)? == 0 {
            break;
        }
    }
    let (begins, rest) = first.split_at(place::SQLITE_BEGINS.len().min(first.len()));
    let after = u64::try_from(begins.len()).unwrap_or_default();
    files::write_at(target, rest, after)?;
    files::write_at(target, begins, 0)?;
    Ok(Copied::Whole)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Goal: a copy is the same bytes but for the mark, and before its end no SQLite database.
    #[test]
    fn a_copy_that_is_stopped_is_no_database() {
        let home = tempfile::tempdir().expect("dir");
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        let step = usize::try_from(BYTES_PER_STEP).expect("fits");
        for length in [16, 100, 4_096, 4_097, 3 * step + 5] {
            let mut bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
            bytes[..16].copy_from_slice(place::SQLITE_BEGINS);
            fs::write(&from, &bytes).expect("writes");
            let copy = |stopped: &dyn Fn() -> bool| {
                let mut source = File::open(&from).expect("opens");
                let mut target = File::create(&to).expect("makes");
                copy_file(&mut source, &mut target, stopped).expect("copies")
            };
            let steps = Cell::new(0);
            let after_two = || steps.replace(steps.get() + 1) == 2;
            let end = copy(&after_two);
            let is_long = length > 2 * step;
            assert_eq!(end == Copied::Stopped, is_long, "{length}");
            let left = File::open(&to).expect("opens");
            let is_database = files::begins_with(&left, place::SQLITE_BEGINS).expect("reads");
            assert_eq!(is_database, !is_long, "{length}");
            assert_eq!(copy(&|| false), Copied::Whole);
            place::mark_header(&mut bytes, Opening::BACKUP);
            assert!(fs::read(&to).expect("reads") == bytes, "{length}");
        }
    }
}
