//! Plain connections to PostgreSQL, beside Gesta: for `bound`, for counting queries, for faults.

use std::collections::BTreeMap;

use tokio_postgres::{Client, NoTls};

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
    let (client, connection) = tokio_postgres::connect(url, NoTls)
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
            "SELECT name, setting || coalesce(unit, '') FROM pg_settings WHERE name = ANY($1)",
            &[&SETTINGS],
        )
        .await
        .context("reading pg_settings")?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
