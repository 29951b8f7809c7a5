//! Plain connections to PostgreSQL, beside Gesta: for `bound`, for counting queries, for faults.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tokio_postgres::{Client, NoTls};

use crate::endpoint;
use crate::failure::{Context, Result};

/// Settings that bear on the figures.
const SETTINGS: &[&str] = &[
    "autovacuum",
    "checkpoint_timeout",
    "commit_delay",
    "default_toast_compression",
    "effective_io_concurrency",
    "fsync",
    "full_page_writes",
    "huge_pages",
    "jit",
    "maintenance_work_mem",
    "max_connections",
    "max_wal_size",
    "min_wal_size",
    "server_version",
    "shared_buffers",
    "synchronous_commit",
    "synchronous_standby_names",
    "wal_buffers",
    "wal_compression",
    "wal_level",
    "wal_sync_method",
    "work_mem",
];

/// Connects without TLS: the lab's own statements are for databases at hand.
pub(crate) async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(&endpoint::for_driver(url), NoTls)
        .await
        .context("connecting to PostgreSQL without TLS")?;
    // Ends when the client is dropped; a broken connection shows in the client's next call.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(client)
}

/// The settings of the server that bear on the figures.
pub(crate) async fn settings(url: &str) -> Result<BTreeMap<String, String>> {
    let client = connect(url).await?;
    let rows = client
        .query(
            "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY($1)",
            &[&SETTINGS],
        )
        .await
        .context("reading pg_settings")?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// What a commit means with these settings, in the words of the store's own facts.
pub(crate) fn durability(settings: &BTreeMap<String, String>) -> (&'static str, String) {
    let names = ["fsync", "synchronous_commit", "full_page_writes"];
    let of = |name: &str| settings.get(name).map_or("?", String::as_str);
    let detail = names.map(|name| format!("{name}={}", of(name))).join(", ");
    let full =
        of("fsync") == "on" && of("full_page_writes") == "on" && of("synchronous_commit") != "off";
    (if full { "full" } else { "weakened" }, detail)
}

/// Sets how large values of a column are compressed: `pglz` or `lz4`.
pub(crate) fn compression_sql(table: &str, column: &str, method: &str) -> String {
    format!(
        "ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTENDED, ALTER COLUMN {column} SET COMPRESSION {method}"
    )
}

/// Bytes of all tables of a schema with their indexes and large values.
pub(crate) async fn schema_bytes(url: &str, schema: &str) -> Result<u64> {
    let client = connect(url).await?;
    let row = client
        .query_one(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = $1 AND c.relkind = 'r'",
            &[&schema],
        )
        .await
        .context("sizes of tables")?;
    Ok(u64::try_from(row.get::<_, i64>(0)).unwrap_or(0))
}

/// What a database did between two looks, the lab's own looking left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Spent {
    /// Statements executed (or transactions, where statements are not counted).
    pub(crate) queries: u64,
    /// Those among them that insert events or tell of them; none where statements are not counted.
    pub(crate) appends: Option<u64>,
    /// Time spent executing them.
    pub(crate) database_ms: f64,
}

impl Spent {
    /// The difference to an earlier look.
    pub(crate) fn since(&self, earlier: &Spent) -> Spent {
        Spent {
            queries: self.queries.saturating_sub(earlier.queries),
            appends: self
                .appends
                .zip(earlier.appends)
                .map(|(now, then)| now.saturating_sub(then)),
            database_ms: (self.database_ms - earlier.database_ms).max(0.0),
        }
    }
}

/// Counts what a database does.
pub(crate) struct Watch {
    client: Client,
    statements: bool,
}

/// How long a backend may keep its counters to itself (`PGSTAT_IDLE_INTERVAL`), and a bit.
const COUNTERS_LATE: Duration = Duration::from_millis(11_000);

impl Watch {
    /// Watches the database of this URL.
    pub(crate) async fn start(url: &str) -> Result<Self> {
        let client = connect(url).await?;
        // Fails if the library is not loaded at server start or the role may not: then transactions are counted.
        let make = "CREATE EXTENSION IF NOT EXISTS pg_stat_statements";
        let look = "SELECT count(*) FROM pg_stat_statements";
        let statements =
            client.batch_execute(make).await.is_ok() && client.batch_execute(look).await.is_ok();
        Ok(Self { client, statements })
    }

    /// How it counts.
    pub(crate) fn method(&self) -> &'static str {
        match self.statements {
            true => "pg_stat_statements (statements, BEGIN and COMMIT too)",
            false => "pg_stat_database (transactions, some of them late: rough figures)",
        }
    }

    /// The counters now.
    pub(crate) async fn look(&self) -> Result<Spent> {
        let sql = if self.statements {
            "SELECT coalesce(sum(calls), 0)::int8, coalesce(sum(total_exec_time), 0)::float8,
                    coalesce(sum(calls) FILTER (WHERE query ~ 'INSERT INTO (events|journal)|pg_notify'), 0)::int8
             FROM pg_stat_statements
             WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND query NOT LIKE '%pg_stat_statements%'"
        } else {
            tokio::time::sleep(COUNTERS_LATE).await;
            "SELECT xact_commit + xact_rollback, active_time, NULL::int8 FROM pg_stat_database WHERE datname = current_database()"
        };
        let row = self
            .client
            .query_one(sql, &[])
            .await
            .context("counting queries")?;
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok(Spent {
            queries: count(row.get(0)),
            appends: row.get::<_, Option<i64>>(2).map(count),
            database_ms: row.get(1),
        })
    }
}
