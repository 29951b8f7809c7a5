//! Puts a backup in the place of a store, after checking it, with a new incarnation.

use std::path::Path;

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

/// Makes a store at `url` out of the backup `from`. Copies the backup, checks every promise that data can show, and
/// gives the copy a new incarnation, since positions after the backup will be used again. Only then the copy gets its
/// name.
///
/// # Errors
/// `InvalidArgument` if something is at `url` already, or `from` is a store in use, or not by whom `made_by` says;
/// `Unavailable` if it cannot be copied; `Corrupt` or `Schema` if it is no store; `Unsupported` for other databases
/// than SQLite, which have their own ways.
///
/// # Cancel safety
/// If the future is dropped, at most a file is left whose name ends in `.unfinished`; the next restore removes it.
pub async fn restore(
    from: &Path,
    made_by: MadeBy,
    url: &str,
    progress: impl FnMut(AuditProgress) + Send,
) -> Result<Restored> {
    let restored = match Scheme::of(url) {
        Ok(Scheme::Sqlite) => sqlite(from, made_by, url, progress).await,
        Ok(Scheme::Postgres) => Err(crate::database::own_backups("nothing was restored")),
        Err(error) => Err(error),
    };
    restored.map_err(|error| error.during("restore"))
}

#[cfg(feature = "sqlite")]
async fn sqlite(
    from: &Path,
    made_by: MadeBy,
    url: &str,
    progress: impl FnMut(AuditProgress) + Send,
) -> Result<Restored> {
    use gesta_sqlite::{Location, Restoring, SqliteBackend, SqliteConfig};

    use crate::blocking::blocking;
    use crate::database::{Database, Options};

    let Location::File(to) = SqliteConfig::parse(url)?.location else {
        return Err(Error::invalid("store", "must be a file"));
    };
    let from = from.to_owned();
    let restoring = blocking(move || match made_by {
        MadeBy::Gesta => Restoring::begin(&from, &to),
        MadeBy::Sqlite => Restoring::begin_with_sqlite_copy(&from, &to),
    })
    .await?;
    let copy = format!("sqlite:{}", restoring.path().display());
    let database = Database::open(&copy, &Options::default()).await?;
    let report = database.verify(progress).await;
    database.close().await;
    let report = report?;
    if !report.is_healthy() {
        return Ok(Restored {
            report,
            incarnation: None,
        });
    }
    let incarnation = blocking(move || {
        let config = SqliteConfig::file(restoring.path());
        let incarnation = SqliteBackend::new_incarnation(&config)?;
        restoring.finish()?;
        Ok(incarnation)
    })
    .await?;
    Ok(Restored {
        report,
        incarnation: Some(incarnation),
    })
}

#[cfg(not(feature = "sqlite"))]
async fn sqlite(
    _from: &Path,
    _made_by: MadeBy,
    _url: &str,
    _progress: impl FnMut(AuditProgress) + Send,
) -> Result<Restored> {
    Err(crate::url::left_out("sqlite"))
}
