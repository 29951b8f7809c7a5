//! The schema of a store, by URL: makes it, migrates it, prints it, and begins a new life of the store after a restore.
//!
//! None of these functions needs the store to be open; SQLite refuses while it is.

use gesta_core::{Error, Incarnation, Result};

use crate::url::Scheme;

/// The versions of a schema before and after a migration. They are equal if there was nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migrated {
    /// The version before; of several databases, the oldest one.
    pub from: u32,
    /// The version now.
    pub to: u32,
}

/// Makes an empty store with `logs` logs (1 to 1,024; SQLite: 1).
///
/// With several PostgreSQL URLs, separated by spaces, the logs lie in turn in these databases. If this is interrupted,
/// calling it again finishes it.
///
/// # Errors
/// `Schema` if there is a store already; `InvalidArgument` if a URL or the number of logs cannot be used; `Unavailable`
/// if a database does not answer; `Unsupported` if the rights are missing.
///
/// # Cancel safety
/// If the future is dropped, the store may have been made or not; of several databases, some may have been made.
pub async fn create(url: &str, logs: u16) -> Result<Incarnation> {
    let made = match Scheme::of(url) {
        Ok(Scheme::Sqlite) => sqlite::create(url, logs).await,
        Ok(Scheme::Postgres) => postgres::create(url, logs).await,
        Err(error) => Err(error),
    };
    made.map_err(|error| error.during("create the schema"))
}

/// Brings an existing store to the schema of this program.
///
/// # Errors
/// `Schema` if there is no store, or it is newer than this program; `Unavailable` if the database does not answer;
/// `Unsupported` if the rights are missing.
///
/// # Cancel safety
/// If the future is dropped, the store may have been migrated or not; of several databases, some may have been. Calling
/// it again finishes it.
pub async fn migrate(url: &str) -> Result<Migrated> {
    let migrated = match Scheme::of(url) {
        Ok(Scheme::Sqlite) => sqlite::migrate(url).await,
        Ok(Scheme::Postgres) => postgres::migrate(url).await,
        Err(error) => Err(error),
    };
    migrated.map_err(|error| error.during("migrate the schema"))
}

/// Returns the statements that make a store with `logs` logs, for people who run them by hand. Connects to nothing.
///
/// # Errors
/// `InvalidArgument` if the URL or the number of logs cannot be used.
pub fn print(url: &str, logs: u16) -> Result<String> {
    match Scheme::of(url)? {
        Scheme::Sqlite => sqlite::print(url, logs),
        Scheme::Postgres => postgres::print(url, logs),
    }
}

/// Begins a new life of a store, as must follow every restore of a backup. Checkpoints that were made before are
/// refused from then on.
///
/// # Errors
/// `Schema` if there is no store; `Unavailable` if the database does not answer; `Unsupported` if the rights are
/// missing.
///
/// # Cancel safety
/// If the future is dropped, the new incarnation may have begun or not.
pub async fn new_incarnation(url: &str) -> Result<Incarnation> {
    let begun = match Scheme::of(url) {
        Ok(Scheme::Sqlite) => sqlite::new_incarnation(url).await,
        Ok(Scheme::Postgres) => postgres::new_incarnation(url).await,
        Err(error) => Err(error),
    };
    begun.map_err(|error| error.during("begin a new incarnation"))
}

/// Gives the space that scavenging has left in the file of a SQLite store back to the file system. The store must not
/// be open, and there must be space for two more files of that size. Returns the bytes of the file before and after.
///
/// # Errors
/// `Schema` if there is no store; `Unavailable` if the file cannot be read or written; `Unsupported` for other
/// databases, which use the space again by themselves.
///
/// # Cancel safety
/// If the future is dropped, the work goes on to its end in a thread of its own.
pub async fn compact(url: &str) -> Result<(u64, u64)> {
    let done = match Scheme::of(url) {
        Ok(Scheme::Sqlite) => sqlite::compact(url).await,
        Ok(Scheme::Postgres) => Err(gesta_core::ErrorKind::Unsupported(
            "PostgreSQL uses the space of removed events again by itself (autovacuum); VACUUM FULL gives it back".into(),
        )
        .into()),
        Err(error) => Err(error),
    };
    done.map_err(|error| error.during("compact the store"))
}

fn check_logs(logs: u16, logs_max: u16) -> Result<()> {
    if (1..=logs_max).contains(&logs) {
        return Ok(());
    }
    Err(Error::invalid(
        "logs",
        format!("must be 1 to {logs_max} for this database, found {logs}"),
    ))
}

#[cfg(feature = "sqlite")]
pub(crate) use sqlite::config as sqlite_config;

#[cfg(feature = "postgres")]
pub(crate) use postgres::configs as postgres_configs;

#[cfg(feature = "sqlite")]
mod sqlite {
    use gesta_core::{ErrorKind, Incarnation, Result};
    use gesta_sqlite::{SqliteBackend, SqliteConfig};

    use super::{Migrated, check_logs};
    use crate::blocking::blocking;

    const LOGS_MAX: u16 = 1;

    pub(crate) fn config(url: &str, logs: u16) -> Result<SqliteConfig> {
        check_logs(logs, LOGS_MAX)?;
        SqliteConfig::parse(url)
    }

    pub(super) async fn create(url: &str, logs: u16) -> Result<Incarnation> {
        let config = config(url, logs)?;
        blocking(move || {
            let migrated = SqliteBackend::migrate(&config)?;
            if migrated.from.is_some() {
                return Err(
                    ErrorKind::Schema("there is a store in this file already".into()).into(),
                );
            }
            SqliteBackend::new_incarnation(&config)
        })
        .await
    }

    pub(super) async fn migrate(url: &str) -> Result<Migrated> {
        let config = config(url, LOGS_MAX)?.must_exist();
        let migrated = blocking(move || SqliteBackend::migrate(&config)).await?;
        Ok(Migrated {
            from: migrated.from.unwrap_or(0),
            to: migrated.to,
        })
    }

    pub(super) fn print(url: &str, logs: u16) -> Result<String> {
        config(url, logs)?;
        Ok(gesta_sqlite::schema_text())
    }

    pub(super) async fn compact(url: &str) -> Result<(u64, u64)> {
        let config = config(url, LOGS_MAX)?;
        blocking(move || SqliteBackend::compact(&config)).await
    }

    pub(super) async fn new_incarnation(url: &str) -> Result<Incarnation> {
        let config = config(url, LOGS_MAX)?;
        blocking(move || SqliteBackend::new_incarnation(&config)).await
    }
}

#[cfg(not(feature = "sqlite"))]
mod sqlite {
    use gesta_core::{Incarnation, Result};

    use super::Migrated;
    use crate::url::left_out;

    pub(super) async fn create(_url: &str, _logs: u16) -> Result<Incarnation> {
        Err(left_out("sqlite"))
    }

    pub(super) async fn migrate(_url: &str) -> Result<Migrated> {
        Err(left_out("sqlite"))
    }

    pub(super) fn print(_url: &str, _logs: u16) -> Result<String> {
        Err(left_out("sqlite"))
    }

    pub(super) async fn compact(_url: &str) -> Result<(u64, u64)> {
        Err(left_out("sqlite"))
    }

    pub(super) async fn new_incarnation(_url: &str) -> Result<Incarnation> {
        Err(left_out("sqlite"))
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use gesta_core::limits::LOGS_MAX;
    use gesta_core::{Incarnation, Result};
    use gesta_postgres::{Config, several};

    use super::{Migrated, check_logs};

    /// Returns the configuration of each database that is named; there is at least one.
    pub(crate) fn configs(urls: &str, logs: u16) -> Result<Vec<Config>> {
        check_logs(logs, LOGS_MAX)?;
        let mut configs = Config::parse_list(urls)?;
        for config in &mut configs {
            config.logs_if_new = logs;
        }
        Ok(configs)
    }

    pub(super) async fn create(urls: &str, logs: u16) -> Result<Incarnation> {
        several::create(&configs(urls, logs)?, logs).await
    }

    pub(super) async fn migrate(urls: &str) -> Result<Migrated> {
        let (from, to) = several::migrate(&configs(urls, 1)?).await?;
        Ok(Migrated { from, to })
    }

    pub(super) fn print(urls: &str, logs: u16) -> Result<String> {
        several::ddl(&configs(urls, logs)?, logs)
    }

    pub(super) async fn new_incarnation(urls: &str) -> Result<Incarnation> {
        several::new_incarnation(&configs(urls, 1)?).await
    }
}

#[cfg(not(feature = "postgres"))]
mod postgres {
    use gesta_core::{Incarnation, Result};

    use super::Migrated;
    use crate::url::left_out;

    pub(super) async fn create(_url: &str, _logs: u16) -> Result<Incarnation> {
        Err(left_out("postgres"))
    }

    pub(super) async fn migrate(_url: &str) -> Result<Migrated> {
        Err(left_out("postgres"))
    }

    pub(super) fn print(_url: &str, _logs: u16) -> Result<String> {
        Err(left_out("postgres"))
    }

    pub(super) async fn new_incarnation(_url: &str) -> Result<Incarnation> {
        Err(left_out("postgres"))
    }
}
