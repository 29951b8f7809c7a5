//! The journal of akka-persistence-jdbc 5: one INSERT per append, as its schema was measured in the published comparison.
//!
//! Like the real one: table, indexes, columns written. Left out: tags and the plugin's queue (`batching` has it); several
//! events of an append are one statement where the plugin binds row after row.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::journal::Design;
use super::rows::{Answer, execute, millis, payloads, sequence, writer};
use crate::failure::Result;
use crate::target::{Append, Session};

pub(super) const TABLES: &str = include_str!("../../sql/journals/jdbc/create_tables.sql");
pub(super) const READ_BACK: &str = include_str!("../../sql/journals/jdbc/read_back.sql");
pub(super) const PAYLOAD: (&str, &str) = ("event_journal", "event_payload");

pub(super) struct Jdbc;

#[async_trait]
impl Design for Jdbc {
    fn name(&self) -> &'static str {
        "jdbc"
    }

    fn title(&self) -> &'static str {
        "akka-persistence-jdbc 5, schema alone"
    }

    fn note(&self) -> &'static str {
        "untagged events; each append is one INSERT and its own transaction, on the worker's own connection"
    }

    fn tables(&self) -> &'static str {
        TABLES
    }

    fn payload(&self) -> (&'static str, &'static str) {
        PAYLOAD
    }

    fn read_back(&self) -> &'static str {
        READ_BACK
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        let one = include_str!("../../sql/journals/jdbc/insert_event.sql");
        let several = include_str!("../../sql/journals/jdbc/insert_events.sql");
        Ok(Box::new(Inserter::open(database, one, several).await?))
    }
}

/// Inserts by one statement for one event, and another for several.
///
/// Both bind the stream, the sequence number (of the first), the writer, milliseconds, and the data.
pub(super) struct Inserter {
    client: Client,
    one: Statement,
    several: Statement,
    writer: String,
}

impl Inserter {
    pub(super) async fn open(database: &Database, one: &str, several: &str) -> Result<Self> {
        let client = database.worker().await?;
        Ok(Self {
            one: client.prepare(one).await?,
            several: client.prepare(several).await?,
            writer: writer(),
            client,
        })
    }
}

#[async_trait]
impl Session for Inserter {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        let (first, now) = (sequence(append.revision), millis());
        let data = payloads(append);
        let (statement, data): (_, &(dyn ToSql + Sync)) = match &data[..] {
            [one] => (&self.one, one),
            _ => (&self.several, &data),
        };
        let values: &[&(dyn ToSql + Sync)] = &[&append.stream, &first, &self.writer, &now, data];
        execute(&self.client, statement, values).await?;
        Ok(())
    }
}
