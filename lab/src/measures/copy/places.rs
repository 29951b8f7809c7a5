//! Where the stores of a run are: two files, and databases that are made on one server.

use std::path::{Path, PathBuf};

use gesta_report::endpoint;
use gesta_report::failure::{Context, Result};

use gesta_load::machine::postgres;

/// What the names of all databases of the lab's copies begin with.
const PREFIX: &str = "gesta_lab_copy";
/// The store of one log, the two databases of the store of several, and the target of `pg_restore`.
const DATABASES: [&str; 4] = ["one", "first", "second", "restored"];

/// The places of a run.
#[derive(Debug)]
pub(super) struct Places {
    server: String,
    folder: PathBuf,
    /// Random, so that runs on one server do not drop each other's databases.
    run: String,
}

impl Places {
    pub(super) fn new(server: &str, folder: &Path) -> Self {
        Self {
            server: server.to_owned(),
            folder: folder.to_owned(),
            run: uuid::Uuid::new_v4().simple().to_string(),
        }
    }

    fn sqlite(&self, name: &str) -> String {
        format!("sqlite:{}", self.folder.join(name).display())
    }

    /// The store that is filled.
    pub(super) fn file(&self) -> String {
        self.sqlite("first.db")
    }

    /// The store that comes out at the end.
    pub(super) fn last_file(&self) -> String {
        self.sqlite("last.db")
    }

    /// The store of one log on PostgreSQL.
    pub(super) fn one(&self) -> String {
        self.database(DATABASES[0])
    }

    /// The store on two databases.
    pub(super) fn several(&self) -> String {
        let [_, first, second, _] = DATABASES;
        [first, second].map(|name| self.database(name)).join(" ")
    }

    /// The database to which the rows of [`one`](Self::one) are restored.
    pub(super) fn restored(&self) -> String {
        self.database(DATABASES[3])
    }

    /// A file for what is told.
    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("copy.log")
    }

    /// The URL of a database on the server.
    fn database(&self, name: &str) -> String {
        endpoint::with_database(&self.server, &self.named(name))
    }

    /// The name of a database.
    fn named(&self, name: &str) -> String {
        format!("{PREFIX}_{name}_{}", &self.run[..8])
    }

    /// Makes the databases, without any rows.
    pub(super) async fn make(&self) -> Result<()> {
        self.remove_copies().await?;
        self.each("CREATE DATABASE", "").await
    }

    /// Removes the databases and the last file, but not what was filled.
    pub(super) async fn remove_copies(&self) -> Result<()> {
        for suffix in ["", "-wal", "-shm", ".lock"] {
            let file = self.folder.join(format!("last.db{suffix}"));
            if file.exists() {
                std::fs::remove_file(&file).context(file.display())?;
            }
        }
        self.each("DROP DATABASE IF EXISTS", "WITH (FORCE)").await
    }

    /// Removes the databases.
    pub(super) async fn remove(&self) -> Result<()> {
        self.remove_copies().await
    }

    async fn each(&self, verb: &str, options: &str) -> Result<()> {
        let client = postgres::connect(&self.server).await?;
        for name in DATABASES {
            let sql = format!("{verb} {} {options}", self.named(name));
            client.batch_execute(&sql).await.context(sql)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happened: a run dropped the databases of another one on the same server, with its connections.
    #[test]
    fn runs_on_one_server_have_databases_of_their_own() {
        let [one, other] = [(); 2].map(|()| Places::new("postgres://u@h/x", Path::new("/tmp")));
        for name in DATABASES {
            assert_ne!(one.database(name), other.database(name));
            let begin = format!("postgres://u@h/gesta_lab_copy_{name}_");
            assert!(one.database(name).starts_with(&begin), "{one:?}");
        }
    }
}
