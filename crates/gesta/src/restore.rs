//! Puts a backup in the place of a store, after checking it, with a new incarnation.

use std::path::{Path, PathBuf};
#[cfg(feature = "sqlite")]
use std::sync::Arc;
#[cfg(feature = "sqlite")]
use std::sync::atomic::{AtomicBool, Ordering};

use gesta_core::{Error, Incarnation, Result};
use gesta_sql::verify::{AuditProgress, AuditReport};

use crate::url::Scheme;

/// What a restore has done.
#[derive(Debug, Clone)]
pub struct Restored {
    /// What the check of the backup found.
    pub report: AuditReport,
    /// The incarnation of the new store; `None` if the backup is damaged, so that no store was made.
    pub incarnation: Option<Incarnation>,
}

/// Who has made the file that is restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MadeBy {
    /// `gesta backup`, or [`Database::backup`](crate::Database::backup).
    #[default]
    Gesta,
    /// SQLite itself, from a store that may have been in use: `sqlite3 .backup`, `VACUUM INTO`, or Litestream. Such a
    /// file is whole, but nothing in it tells it from one that was copied by `cp`, which need not be.
    Sqlite,
}

/// Makes a store at `url` out of the backup `from`. Copies the backup, gives the copy a new incarnation, since
/// positions after the backup will be used again, and checks every promise that data can show. Only then the copy gets
/// its name.
///
/// # Errors
/// `InvalidArgument` if something is at `url` already, or `from` is a store in use, or not by whom `made_by` says;
/// `Unavailable` if it cannot be copied; `Corrupt` or `Schema` if it is no store; `Unsupported` for other databases
/// than SQLite, which have their own ways.
///
/// # Cancel safety
/// If the future is dropped, no store was made, unless it was in its last step, which is then done to its end. At most
/// a file is left whose name ends in `.unfinished`; the next restore removes it.
pub async fn restore(
    from: &Path,
    made_by: MadeBy,
    url: &str,
    progress: impl FnMut(AuditProgress) + Send,
) -> Result<Restored> {
    match check_backup(from, made_by, url, progress, std::future::pending()).await? {
        Some(checked) => checked.put_in_place().await,
        // What never ends does not stop it.
        None => Err(Error::unavailable("the restore was stopped").during("restore")),
    }
}

/// For the command line. Does the first part of [`restore`], which may be given up: copies the backup beside the place
/// of the store, gives the copy a new incarnation, and checks it. `None` if `stop` has ended before that: then nothing
/// is left of the copy.
///
/// # Errors
/// Those of [`restore`].
///
/// # Cancel safety
/// If the future is dropped, no store was made. At most a file is left whose name ends in `.unfinished`; the next
/// restore removes it.
#[doc(hidden)]
pub async fn check_backup(
    from: &Path,
    made_by: MadeBy,
    url: &str,
    progress: impl FnMut(AuditProgress) + Send,
    stop: impl Future<Output = ()>,
) -> Result<Option<CheckedBackup>> {
    let checked = match Scheme::of(url) {
        Ok(Scheme::Sqlite) => check_sqlite(from, made_by, url, progress, stop).await,
        Ok(Scheme::Postgres) => Err(crate::database::own_backups("nothing was restored")),
        Err(error) => Err(error),
    };
    checked.map_err(|error| error.during("restore"))
}

/// For the command line. Returns the path of the copy that [`check_backup`] makes; `None` for what is no SQLite file.
#[doc(hidden)]
#[must_use]
pub fn unfinished_of(url: &str) -> Option<PathBuf> {
    #[cfg(feature = "sqlite")]
    if let Ok(to) = place_of(url) {
        return Some(gesta_sqlite::Restoring::path_of(&to));
    }
    let _ = url;
    None
}

/// For the command line. A backup that was copied beside the place of the new store and checked, but is no store yet.
/// Dropping it removes the copy.
#[doc(hidden)]
#[derive(Debug)]
pub struct CheckedBackup {
    report: AuditReport,
    #[cfg(feature = "sqlite")]
    restoring: gesta_sqlite::Restoring,
}

impl CheckedBackup {
    /// Does the second part of [`restore`]: gives the copy its name, unless it is damaged.
    ///
    /// # Errors
    /// Those of [`restore`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the store may have been made, whole, or not.
    pub async fn put_in_place(self) -> Result<Restored> {
        let done = self.finish().await;
        done.map_err(|error| error.during("restore"))
    }

    #[cfg(feature = "sqlite")]
    async fn finish(self) -> Result<Restored> {
        let Self { report, restoring } = self;
        if !report.is_healthy() {
            return Ok(Restored {
                report,
                incarnation: None,
            });
        }
        let incarnation = restoring.incarnation();
        crate::blocking::blocking(move || restoring.finish()).await?;
        Ok(Restored {
            report,
            incarnation: Some(incarnation),
        })
    }

    #[cfg(not(feature = "sqlite"))]
    async fn finish(self) -> Result<Restored> {
        Err(crate::url::left_out("sqlite"))
    }
}

/// Returns the path of the file at which a store will be.
#[cfg(feature = "sqlite")]
fn place_of(url: &str) -> Result<PathBuf> {
    match gesta_sqlite::SqliteConfig::parse(url)?.location {
        gesta_sqlite::Location::File(to) => Ok(to),
        _ => Err(Error::invalid(
            "store",
            format!("must be a file, such as sqlite:gesta-data/gesta.db, found {url}"),
        )),
    }
}

#[cfg(feature = "sqlite")]
async fn check_sqlite(
    from: &Path,
    made_by: MadeBy,
    url: &str,
    progress: impl FnMut(AuditProgress) + Send,
    stop: impl Future<Output = ()>,
) -> Result<Option<CheckedBackup>> {
    use gesta_sqlite::Restoring;

    use crate::database::{Database, Options};

    let mut stop = std::pin::pin!(stop);
    let (from, to) = (from.to_owned(), place_of(url)?);
    let is_stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_stopped);
    let copying = crate::blocking::blocking(move || {
        let stopped = || flag.load(Ordering::Relaxed);
        match made_by {
            MadeBy::Gesta => Restoring::begin(&from, &to, &stopped),
            MadeBy::Sqlite => Restoring::begin_with_sqlite_copy(&from, &to, &stopped),
        }
    });
    let mut copying = std::pin::pin!(copying);
    let restoring = tokio::select! {
        biased;
        copied = &mut copying => copied?,
        () = &mut stop => {
            is_stopped.store(true, Ordering::Relaxed);
            // It removes what it has copied, or fails for another reason.
            drop(copying.await);
            return Ok(None);
        }
    };
    let copy = format!("sqlite:{}", restoring.path().display());
    let database = Database::open(&copy, &Options::default()).await?;
    let report = tokio::select! {
        biased;
        report = database.verify(progress) => Some(report),
        () = &mut stop => None,
    };
    database.close().await;
    let Some(report) = report else {
        return Ok(None);
    };
    Ok(Some(CheckedBackup {
        report: report?,
        restoring,
    }))
}

#[cfg(not(feature = "sqlite"))]
async fn check_sqlite(
    _from: &Path,
    _made_by: MadeBy,
    _url: &str,
    _progress: impl FnMut(AuditProgress) + Send,
    _stop: impl Future<Output = ()>,
) -> Result<Option<CheckedBackup>> {
    Err(crate::url::left_out("sqlite"))
}
