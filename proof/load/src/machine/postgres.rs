//! Connections to PostgreSQL beside those of a store: for bare statements, for counting (`counters`), for faults.
//!
//! Invariant: what a URL demands of TLS holds for them as for those of a store, since both are opened by the product's
//! rules. A connection that asked for less could tell the password to whoever answers.

use std::collections::BTreeMap;

use gesta_postgres::Config;
use gesta_report::failure::{Context, Failure, Result};
use tokio_postgres::Client;

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

/// Connects to the first host of a URL that lets us in, with the TLS that the URL demands.
///
/// # Errors
/// The URL breaks a rule, or no host lets us in.
pub async fn connect(url: &str) -> Result<Client> {
    let (hosts, tls) = gesta_postgres::connections(&Config::parse(url)?)?;
    let mut failure = Failure("the URL names no host".into());
    for host in hosts {
        match host.connect(tls.clone()).await {
            Ok((client, connection)) => {
                // Ends when the client is dropped; a broken connection shows in the client's next call.
                tokio::spawn(async move {
                    let _ = connection.await;
                });
                return Ok(client);
            }
            Err(error) => failure = error.into(),
        }
    }
    Err(failure).context("connecting to PostgreSQL")
}

/// True if the schema of this URL has a store with events. Scavenging leaves the last event of a log.
///
/// # Errors
/// The database cannot be asked, or its store has moved.
pub async fn has_events(url: &str) -> Result<bool> {
    let events = format!("\"{}\".events", Config::parse(url)?.schema);
    let client = connect(url).await?;
    let is_there = "SELECT to_regclass($1) IS NOT NULL";
    let is_there = client.query_one(is_there, &[&events]).await;
    if !is_there.context("looking for a store")?.get::<_, bool>(0) {
        return Ok(false);
    }
    let any = format!("SELECT EXISTS (SELECT FROM {events})");
    let any = client.query_one(&any, &[]).await;
    Ok(any.context("looking for events")?.get(0))
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// The server's message that asks for the password in the clear.
    const CLEARTEXT_PASSWORD: [u8; 9] = [b'R', 0, 0, 0, 8, 0, 0, 0, 3];

    /// What happened: these connections dropped `sslmode` and were made without TLS, so that whoever answered in the
    /// place of the database could ask for the password and got it. What the URL demands holds for each connection.
    #[tokio::test]
    async fn no_password_is_told_without_the_tls_that_the_url_demands() {
        for mode in ["require", "verify-ca", "verify-full"] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let heard = Arc::new(Mutex::new(Vec::new()));
            let hearing = Arc::clone(&heard);
            let asking = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut part = [0; 1_024];
                while let Ok(count @ 1..) = stream.read(&mut part).await {
                    hearing.lock().unwrap().extend_from_slice(&part[..count]);
                    let _ = stream.write_all(&CLEARTEXT_PASSWORD).await;
                }
            });
            let url = format!("postgres://u:secret@127.0.0.1:{port}/x?sslmode={mode}");
            assert!(connect(&url).await.is_err(), "{mode}");
            asking.abort();
            let heard = String::from_utf8_lossy(&heard.lock().unwrap()).into_owned();
            assert!(!heard.contains("secret"), "{mode}: {heard:?}");
        }
    }
}
