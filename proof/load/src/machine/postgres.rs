//! Plain connections to PostgreSQL, beside Gesta: for bare statements, for counting (`counters`), for faults.

use std::collections::BTreeMap;

use tokio_postgres::Client;

use gesta_report::endpoint;
use gesta_report::failure::{Context, Result};

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
pub async fn connect(url: &str) -> Result<Client> {
    gesta_rig::connect(&endpoint::for_driver(url))
        .await
        .context("connecting to PostgreSQL without TLS")
}

/// The settings of the server that bear on the figures.
pub async fn settings(url: &str) -> Result<BTreeMap<String, String>> {
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
pub fn durability(settings: &BTreeMap<String, String>) -> (&'static str, String) {
    let names = ["fsync", "synchronous_commit", "full_page_writes"];
    let of = |name: &str| settings.get(name).map_or("?", String::as_str);
    let detail = names.map(|name| format!("{name}={}", of(name))).join(", ");
    let full =
        of("fsync") == "on" && of("full_page_writes") == "on" && of("synchronous_commit") != "off";
    (if full { "full" } else { "weakened" }, detail)
}

/// Sets how large values of a column are compressed: `pglz` or `lz4`.
pub fn compression_sql(table: &str, column: &str, method: &str) -> String {
    format!(
        "ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTENDED, ALTER COLUMN {column} SET COMPRESSION {method}"
    )
}

/// Bytes of all tables of a schema with their indexes and large values.
pub async fn schema_bytes(url: &str, schema: &str) -> Result<u64> {
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
