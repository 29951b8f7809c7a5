//! Rows in an SQLite file.

use std::path::PathBuf;
use std::time::Duration;

use gesta_core::Filter;
use gesta_projection::{ApplyError, Batch, Projection};
use gesta_projection_sqlite::{Options, SqliteTarget, Synchronous, rusqlite};
use rusqlite::types::Value;
use tempfile::TempDir;

use crate::kit::fixtures::{amounts, of_category};

/// The target under test.
pub(crate) type Target = SqliteTarget;

/// Ends the leases of all processes, as time would.
pub(crate) const END_LEASES: &str = "UPDATE gesta_projections_nodes SET until = 0";
/// What the leases of all processes are after the clock was set an hour back.
pub(crate) const SET_BACK: &str = "UPDATE gesta_projections_nodes SET until = until + 3600000";
/// The same after it was set an hour ahead.
pub(crate) const SET_AHEAD: &str = "UPDATE gesta_projections_nodes SET until = until - 3600000";
/// Each how manieth call of a process is tested to fail.
pub(crate) const EVERY: usize = 1;
/// Random histories of each kind.
pub(crate) const HISTORIES: u64 = 12;
/// Whether a text may hold the character 0.
pub(crate) const TAKES_ZERO: bool = true;

/// A file.
#[derive(Debug)]
pub(crate) struct Database {
    folder: TempDir,
}

impl Database {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("read.db")
    }

    /// Makes a target of the file, as another process has it.
    pub(crate) fn target(&self) -> Target {
        // What a power cut leaves is not tested here, so nothing has to wait for the disk.
        let options = Options {
            synchronous: Synchronous::Normal,
        };
        SqliteTarget::with(self.path(), options)
    }

    fn open(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).expect("opened")
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.open().execute_batch(sql).expect("executed");
    }

    /// Returns the rows of a query, each as a text with spaces between its columns.
    pub(crate) async fn lines(&self, sql: &str) -> Vec<String> {
        lines(&self.open(), sql)
    }

    /// Runs queries in one snapshot, each of a table: one that does not exist has no rows.
    pub(crate) async fn snapshot(&self, of_tables: &[(&str, &str)]) -> Vec<Vec<String>> {
        let mut reader = self.open();
        let reader = reader.transaction().expect("begun");
        let of_tables = of_tables.iter();
        let found = of_tables.map(|(table, sql)| match has(&reader, table) {
            true => lines(&reader, sql),
            false => Vec::new(),
        });
        found.collect()
    }

    /// Returns true if there is a table, or a view, of this name.
    pub(crate) async fn has(&self, table: &str) -> bool {
        has(&self.open(), table)
    }

    /// Returns how many rows readers see under a name; `None` if there is no such name.
    pub(crate) async fn count(&self, name: &str) -> Option<i64> {
        let sql = format!("SELECT count(*) FROM {name}");
        self.open().query_row(&sql, [], |row| row.get(0)).ok()
    }

    /// Waits until a call waits for the transaction that is open.
    pub(crate) async fn until_one_waits(&self, target: &Target) {
        while target.waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn backup(&self) -> PathBuf {
        self.folder.path().join("backup.db")
    }

    /// Copies what the file holds, in the place of an earlier copy.
    pub(crate) async fn back_up(&self) {
        let _ = std::fs::remove_file(self.backup());
        let sql = format!("VACUUM INTO '{}'", self.backup().display());
        self.execute(&sql).await;
    }

    /// Makes the file hold what was copied, under processes that use it. Leases are those of the processes that live.
    pub(crate) async fn put_back(&self) {
        let mut connection = self.open();
        let attach = format!("ATTACH '{}' AS kept", self.backup().display());
        connection.execute_batch(&attach).expect("attached");
        let immediate = rusqlite::TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(immediate);
        let transaction = transaction.expect("begun");
        let tables = |of: &str| {
            let sql = format!(
                "SELECT name FROM {of}.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' \
                 AND name <> 'gesta_projections_nodes'"
            );
            lines(&transaction, &sql)
        };
        let kept = tables("kept");
        for table in tables("main") {
            let delete = format!("DELETE FROM main.{table}");
            transaction.execute_batch(&delete).expect("deleted");
            if kept.contains(&table) {
                let insert = format!("INSERT INTO main.{table} SELECT * FROM kept.{table}");
                transaction.execute_batch(&insert).expect("put back");
            }
        }
        transaction.commit().expect("put back");
    }
}

fn has(reader: &rusqlite::Connection, table: &str) -> bool {
    let sql = "SELECT count(*) > 0 FROM sqlite_schema WHERE name = ?1";
    let has = reader.query_row(sql, [table], |row| row.get(0));
    has.expect("an answer")
}

fn lines(reader: &rusqlite::Connection, sql: &str) -> Vec<String> {
    let mut statement = reader.prepare(sql).expect("prepared");
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let cell = |at| {
            Ok(match row.get::<_, Value>(at)? {
                Value::Text(text) => text,
                Value::Integer(number) => number.to_string(),
                Value::Null => String::new(),
                other => format!("{other:?}"),
            })
        };
        let cells: rusqlite::Result<Vec<String>> = (0..columns).map(cell).collect();
        Ok(cells?.join(" "))
    });
    let rows: rusqlite::Result<Vec<String>> = rows.expect("rows").collect();
    rows.expect("rows")
}

/// Writes the position and the number of each event of category `account` into a table without a key: an event that
/// was applied twice, or out of order, is seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Journal;

impl Projection<Target> for Journal {
    const NAME: &'static str = "journal";
    const VERSION: u32 = 1;
    const TABLES: &'static [&'static str] = &["journal"];

    fn filter(&self) -> Filter {
        of_category("account")
    }

    async fn create(&self, transaction: &mut rusqlite::Connection) -> Result<(), ApplyError> {
        let sql = "CREATE TABLE IF NOT EXISTS journal_v1 (n INTEGER PRIMARY KEY, position INTEGER, amount INTEGER)";
        transaction.execute_batch(sql)?;
        Ok(())
    }

    async fn clear(&self, transaction: &mut rusqlite::Connection) -> Result<(), ApplyError> {
        transaction.execute("DELETE FROM journal_v1", [])?;
        Ok(())
    }

    async fn apply(
        &self,
        transaction: &mut rusqlite::Connection,
        batch: &Batch,
    ) -> Result<(), ApplyError> {
        let (positions, numbers) = amounts(batch)?;
        let sql = "INSERT INTO journal_v1 (position, amount) VALUES (?1, ?2)";
        let mut insert = transaction.prepare_cached(sql)?;
        for row in positions.into_iter().zip(numbers) {
            insert.execute(row)?;
        }
        Ok(())
    }
}
