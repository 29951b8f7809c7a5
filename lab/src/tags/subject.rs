//! What is measured: something that is filled, read by tag by many, written to, and removed.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use super::journal::NUMBER_BYTES;
use super::plan::From;
use super::readers::Readers;
use crate::failure::{Context, Result};
use crate::random::Random;
use crate::workload::WorkloadArgs;

/// How readers and writers work.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Pause of a polled reader after a page that was not full, and of the tracker.
    pub(super) poll: Duration,
    /// Events per page of a polled reader.
    pub(super) page: u64,
    /// Connections that polled readers share.
    pub(super) connections: u32,
    /// Connections that write to a polled journal.
    pub(super) writers: u32,
    /// Events per insert of a polled journal.
    pub(super) batch: u64,
    /// Events per append to Gesta.
    pub(super) per_append: u64,
    /// Appends to Gesta under way at once.
    pub(super) waiters: usize,
    /// Streams, bytes per event, seed.
    pub(super) workload: WorkloadArgs,
}

impl Settings {
    /// What follows the number in the message of an event.
    pub(super) fn filler(&self) -> Bytes {
        let mut random = Random::fork(self.workload.seed, 3);
        let bytes = self.workload.payload.saturating_sub(NUMBER_BYTES);
        let noise = std::iter::repeat_with(|| random.next().to_le_bytes()).flatten();
        noise.take(bytes).collect()
    }
}

/// One form in one database.
#[async_trait]
pub(super) trait Subject: Send {
    /// Makes it anew, with its older events, ready to be read and written.
    async fn prepare(&mut self, stop: &CancellationToken) -> Result<()>;

    /// Starts the readers. `written`: the place of the last event, if nothing will be written any more.
    async fn readers(&mut self, from: From, written: Option<u64>) -> Result<Readers>;

    /// Writes the burst, once; returns the place of the last event.
    async fn write(&mut self, stop: &CancellationToken) -> Result<u64>;

    /// Removes everything, also what a part of `prepare` made.
    async fn remove(&mut self) -> Result<()>;
}

/// Brings freshly filled tables of a schema to the state of old ones: statistics known, pages marked as visible, written out.
pub(super) async fn settle(client: &Client, schema: &str) -> Result<()> {
    let tables = client
        .query(
            "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = $1",
            &[&schema],
        )
        .await
        .context("listing tables")?;
    for table in tables {
        let table: String = table.get(0);
        let sql = format!("VACUUM (ANALYZE) {schema}.{table}");
        client.batch_execute(&sql).await.context(sql)?;
    }
    // Only some roles may; then a checkpoint may fall into the measurement.
    let _ = client.batch_execute("CHECKPOINT").await;
    Ok(())
}
