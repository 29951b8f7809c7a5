//! A consistent copy of a running store, in a file of its own.
//!
//! How: SQLite's online backup copies all pages within one snapshot, into a file with another name; that is
//! synced and only then renamed, so a copy that was cut short never looks like a backup.
//! A backup has the incarnation of the store; after restoring one, begin a new incarnation (C9).

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use gesta_core::{Error, Result};
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use crate::error::{Fault, Outcome};

/// What the name of an unfinished copy ends with.
const UNFINISHED: &str = ".unfinished";

/// Copies the store behind `from` to a new file.
///
/// # Errors
/// `InvalidArgument` if `to` exists; `Unavailable` if the copy cannot be made: nothing is left behind then.
pub(crate) fn back_up(from: &Connection, to: &Path) -> Outcome<()> {
    if to.exists() {
        return Err(Error::invalid(
            "backup",
            format!("must be a new file, {} exists", to.display()),
        )
        .into());
    }
    let unfinished = unfinished(to);
    let result =
        copy(from, &unfinished).and_then(|()| finish(&unfinished, to).map_err(Fault::from));
    if result.is_err() {
        remove_unfinished(&unfinished);
    }
    result
}

fn unfinished(to: &Path) -> PathBuf {
    let mut name = OsString::from(to.as_os_str());
    name.push(UNFINISHED);
    PathBuf::from(name)
}

fn copy(from: &Connection, path: &Path) -> Outcome<()> {
    // Left behind by a copy that was killed; it is of no use to anybody.
    remove_unfinished(path);
    let mut target = Connection::open(path)?;
    // The whole file is synced at the end, or removed.
    target.pragma_update(None, "synchronous", "OFF")?;
    let backup = Backup::new(from, &mut target)?;
    match backup.step(-1)? {
        StepResult::Done => Ok(()),
        other => Err(Error::unavailable(format!("the backup did not finish: {other:?}")).into()),
    }
}

fn finish(unfinished: &Path, to: &Path) -> Result<()> {
    let failed = |error: std::io::Error| {
        Error::unavailable(format!("backup to {}: {error}", to.display())).caused_by(error)
    };
    File::open(unfinished)
        .and_then(|file| file.sync_all())
        .map_err(failed)?;
    if to.exists() {
        return Err(Error::invalid(
            "backup",
            format!("must be a new file, {} exists", to.display()),
        ));
    }
    fs::rename(unfinished, to).map_err(failed)?;
    sync_directory_of(to).map_err(failed)
}

fn remove_unfinished(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), %error, "unfinished backup not removed");
    }
}

/// Makes the name of a file durable, where directories can be synced.
pub(crate) fn sync_directory_of(path: &Path) -> std::io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if cfg!(unix) {
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}
