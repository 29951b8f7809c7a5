//! Schemas for the tests, and readers that do not go through the target. Of all drivers of PostgreSQL.

use std::time::Duration;

use gesta_rig::{fresh_schema, shared};
use tokio_postgres::{Client, IsolationLevel, SimpleQueryMessage};

use crate::flavour::{Limits, Target, target};

/// Ends the leases of all processes, as time would.
pub(crate) const END_LEASES: &str = "UPDATE gesta_projections_nodes SET until = '-infinity'";
/// What the leases of all processes are after the clock was set an hour back.
pub(crate) const SET_BACK: &str =
    "UPDATE gesta_projections_nodes SET until = until + interval '1 hour'";
/// The same after it was set an hour ahead.
pub(crate) const SET_AHEAD: &str =
    "UPDATE gesta_projections_nodes SET until = until - interval '1 hour'";
/// Each how manieth call of a process is tested to fail: all are tested with SQLite, which is quicker.
pub(crate) const EVERY: usize = 5;
/// Random histories of each kind.
pub(crate) const HISTORIES: u64 = 4;
/// Whether a text may hold the character 0.
pub(crate) const TAKES_ZERO: bool = false;
/// Makes the table of the projection `journal`.
pub(crate) const JOURNAL: &str =
    "CREATE TABLE IF NOT EXISTS journal_v1 (n bigserial, position bigint, amount bigint)";
/// Fills it: `$1` positions, `$2` amounts.
pub(crate) const INSERT_JOURNAL: &str = "INSERT INTO journal_v1 (position, amount) \
     SELECT e.position, e.amount FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS e (position, amount, n) \
     ORDER BY e.n";

/// Connects as somebody else than the target, to a schema.
pub(crate) async fn connect(url: &str, schema: &str) -> Client {
    let client = gesta_rig::connect(url).await.expect("connected");
    let set = format!("SET search_path = \"{schema}\"");
    client.batch_execute(&set).await.expect("set");
    client
}

/// The tables that are kept or put back: those that each batch locks first, and no leases, which are those of the
/// processes that live.
const KEPT_TABLES: &str = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() \
    AND tablename NOT LIKE 'kept_%' AND tablename <> 'gesta_projections_nodes' \
    ORDER BY tablename <> 'gesta_projections', tablename";

/// A schema of a server.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) schema: String,
}

impl Database {
    /// Makes a schema on the server that the tests share.
    pub(crate) async fn new() -> Self {
        let server = shared().expect("PostgreSQL is installed");
        Self::on(&server.url()).await
    }

    /// Makes a schema on a server.
    pub(crate) async fn on(url: &str) -> Self {
        let schema = fresh_schema();
        let client = connect(url, "public").await;
        let create = format!("CREATE SCHEMA {schema}");
        client.batch_execute(&create).await.expect("made");
        let url = url.to_owned();
        Self { url, schema }
    }

    /// Makes a target of the schema, as another process has it.
    pub(crate) fn target(&self) -> Target {
        self.target_with(Limits::default())
    }

    pub(crate) fn target_with(&self, limits: Limits) -> Target {
        target(&self.url, &self.schema, limits)
    }

    /// Makes a target that reaches the same schema by another way.
    pub(crate) fn target_by(&self, url: &str, limits: Limits) -> Target {
        target(url, &self.schema, limits)
    }

    pub(crate) async fn connect(&self) -> Client {
        connect(&self.url, &self.schema).await
    }

    pub(crate) async fn execute(&self, sql: &str) {
        let client = self.connect().await;
        client.batch_execute(sql).await.expect("executed");
    }

    /// Returns the rows of a query, each as a text with spaces between its columns.
    pub(crate) async fn lines(&self, sql: &str) -> Vec<String> {
        lines(self.connect().await.simple_query(sql).await)
    }

    /// Runs queries in one snapshot, each of a table: one that does not exist has no rows.
    pub(crate) async fn snapshot(&self, of_tables: &[(&str, &str)]) -> Vec<Vec<String>> {
        let mut reader = self.connect().await;
        let snapshot = reader
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead);
        let reader = snapshot.start().await.expect("begun");
        let mut found = Vec::new();
        for (table, sql) in of_tables {
            let has =
                format!("SELECT to_regclass('{table}') WHERE to_regclass('{table}') IS NOT NULL");
            let has = lines(reader.simple_query(&has).await);
            found.push(match has.is_empty() {
                true => Vec::new(),
                false => lines(reader.simple_query(sql).await),
            });
        }
        found
    }

    /// Returns true if there is a table, or a view, of this name.
    pub(crate) async fn has(&self, table: &str) -> bool {
        let sql = format!("SELECT 1 WHERE to_regclass('{table}') IS NOT NULL");
        !self.lines(&sql).await.is_empty()
    }

    /// Returns how many rows readers see under a name; `None` if there is no such name.
    pub(crate) async fn count(&self, name: &str) -> Option<i64> {
        let sql = format!("SELECT count(*) FROM {name}");
        let row = self.connect().await.query_one(&sql, &[]).await.ok()?;
        Some(row.get(0))
    }

    /// Waits until a transaction waits for the row of a projection, which another one has changed.
    pub(crate) async fn until_one_waits(&self, _: &Target) {
        // Whoever waits for the transaction that holds a row has the lock on the row's turn meanwhile.
        let sql = "SELECT 1 FROM pg_locks WHERE locktype = 'tuple' AND relation = 'gesta_projections'::regclass";
        while self.lines(sql).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Keeps what the tables hold, in the place of what was kept before.
    pub(crate) async fn back_up(&self) {
        let mut client = self.connect().await;
        // Tables that are made meanwhile are none of the snapshot, nor is what is noted of them.
        let snapshot = client
            .build_transaction()
            .isolation_level(IsolationLevel::RepeatableRead);
        let snapshot = snapshot.start().await.expect("begun");
        for table in lines(snapshot.simple_query(KEPT_TABLES).await) {
            let keep = format!(
                "DROP TABLE IF EXISTS kept_{table}; CREATE TABLE kept_{table} AS SELECT * FROM {table}"
            );
            snapshot.batch_execute(&keep).await.expect("kept");
        }
        snapshot.commit().await.expect("committed");
    }

    /// Puts back what was kept, under processes that use it.
    pub(crate) async fn put_back(&self) {
        let mut client = self.connect().await;
        let transaction = client.transaction().await.expect("begun");
        // From here on no batch begins, nor is a table made.
        let delete = "DELETE FROM gesta_projections";
        transaction.batch_execute(delete).await.expect("deleted");
        for table in lines(transaction.simple_query(KEPT_TABLES).await) {
            let delete = format!("DELETE FROM {table}");
            transaction.batch_execute(&delete).await.expect("deleted");
            let kept = format!("kept_{table}");
            if self.has(&kept).await {
                let insert =
                    format!("INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM {kept}");
                transaction.batch_execute(&insert).await.expect("put back");
            }
        }
        transaction.commit().await.expect("committed");
    }
}

fn lines(answer: Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>) -> Vec<String> {
    let messages = answer.expect("rows").into_iter();
    let rows = messages.filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            let cells = (0..row.len()).map(|at| row.get(at).unwrap_or_default());
            Some(cells.collect::<Vec<&str>>().join(" "))
        }
        _ => None,
    });
    rows.collect()
}
