//! Where a store and its rows are while they are measured, and how the rows are read by others.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gesta_projection_postgres::{Options, PostgresTarget};
use gesta_projection_sqlite::SqliteTarget;
use gesta_report::failure::{Context, Result};

use gesta_load::machine::postgres;
use gesta_load::machine::store::{self, Opened};

/// Schemas of the store and of the rows.
const STORE: &str = "gesta_lab_projections";
const ROWS: &str = "gesta_lab_rows";

/// A store and a place for rows.
#[derive(Debug)]
pub(super) enum Place {
    Postgres { url: String },
    Sqlite { folder: PathBuf },
}

impl Place {
    pub(super) fn postgres(url: &str) -> Self {
        Self::Postgres {
            url: url.to_owned(),
        }
    }

    pub(super) fn sqlite(folder: &Path) -> Self {
        Self::Sqlite {
            folder: folder.to_owned(),
        }
    }

    pub(super) fn is_postgres(&self) -> bool {
        matches!(self, Self::Postgres { .. })
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Postgres { .. } => "PostgreSQL",
            Self::Sqlite { .. } => "SQLite",
        }
    }

    /// Opens the store, which is made if it is not there.
    pub(super) async fn open(&self) -> Result<Opened> {
        let url = match self {
            Self::Postgres { url } => {
                let sign = if url.contains('?') { '&' } else { '?' };
                format!("{url}{sign}schema={STORE}")
            }
            Self::Sqlite { folder } => format!("sqlite:{}", folder.join("store.db").display()),
        };
        store::open_url(&url, Duration::ZERO, 1).await
    }

    /// Makes room for rows, without any.
    pub(super) async fn clear_rows(&self) -> Result<()> {
        match self {
            Self::Postgres { url } => {
                let client = postgres::connect(url).await?;
                let anew = format!("DROP SCHEMA IF EXISTS {ROWS} CASCADE; CREATE SCHEMA {ROWS}");
                client.batch_execute(&anew).await.context(anew)
            }
            Self::Sqlite { folder } => {
                for suffix in ["", "-wal", "-shm"] {
                    let file = folder.join(format!("rows.db{suffix}"));
                    if file.exists() {
                        std::fs::remove_file(&file).context(file.display())?;
                    }
                }
                Ok(())
            }
        }
    }

    pub(super) fn rows_file(folder: &Path) -> PathBuf {
        folder.join("rows.db")
    }

    pub(super) fn postgres_target(url: &str) -> Result<PostgresTarget> {
        let options = Options {
            schema: Some(ROWS.to_owned()),
            ..Options::default()
        };
        Ok(PostgresTarget::with(url, options)?)
    }

    pub(super) fn sqlite_target(folder: &Path) -> SqliteTarget {
        SqliteTarget::at(Self::rows_file(folder))
    }

    /// Connects to the rows without a target.
    pub(super) async fn connect(url: &str) -> Result<tokio_postgres::Client> {
        let client = postgres::connect(url).await?;
        let set = format!("SET search_path = {ROWS}");
        client.batch_execute(&set).await.context(set)?;
        Ok(client)
    }

    /// Reads how many events the rows of a read model stand for: the value of an aggregate over all of them.
    pub(super) async fn counted(&self, view: &str, aggregate: &str) -> Result<u64> {
        let sql = format!("SELECT CAST(coalesce({aggregate}, 0) AS bigint) FROM {view}");
        let sum: i64 = match self {
            Self::Postgres { url } => {
                let row = Self::connect(url).await?.query_one(&sql, &[]).await;
                row.context("reading rows back")?.get(0)
            }
            Self::Sqlite { folder } => {
                let connection = rusqlite::Connection::open(Self::rows_file(folder))?;
                connection.query_row(&sql, [], |row| row.get(0))?
            }
        };
        Ok(u64::try_from(sum).unwrap_or(0))
    }

    /// Removes what was made.
    pub(super) async fn remove(&self) -> Result<()> {
        if let Self::Postgres { url } = self {
            let client = postgres::connect(url).await?;
            let drop = format!(
                "DROP SCHEMA IF EXISTS {ROWS} CASCADE; DROP SCHEMA IF EXISTS {STORE} CASCADE"
            );
            client.batch_execute(&drop).await.context(drop)?;
        }
        Ok(())
    }
}
