//! The journal of akka-persistence-r2dbc: no number over all events; a slice and the database's time order them.
//!
//! Like the real one: table, both indexes, the slice, and the time that is never before that of the entity's event
//! before. Left out: tags; several events of an append are one statement where the plugin binds row after row within a
//! transaction.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::journal::{Design, Tables};
use super::rows::{Answer, payloads, query, sequence, writer};
use crate::failure::Result;
use crate::target::{Append, Session};

/// Slices, for ever.
const SLICES: i32 = 1_024;

static TABLES: Tables = Tables {
    name: "r2dbc",
    title: "akka-persistence-r2dbc",
    note: "untagged events; each append is one INSERT and its own transaction, with a look at the event before",
    extension: None,
    create: include_str!("../../sql/journals/r2dbc/create_tables.sql"),
    payload: ("event_journal", "event_payload"),
    read_back: include_str!("../../sql/journals/r2dbc/read_back.sql"),
};

pub(super) struct R2dbc;

#[async_trait]
impl Design for R2dbc {
    fn tables(&self) -> &'static Tables {
        &TABLES
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        let client = database.worker().await?;
        let prepare = |sql| client.prepare(sql);
        Ok(Box::new(Inserter {
            first: prepare(include_str!(
                "../../sql/journals/r2dbc/insert_first_event.sql"
            ))
            .await?,
            firsts: prepare(include_str!(
                "../../sql/journals/r2dbc/insert_first_events.sql"
            ))
            .await?,
            one: prepare(include_str!("../../sql/journals/r2dbc/insert_event.sql")).await?,
            several: prepare(include_str!("../../sql/journals/r2dbc/insert_events.sql")).await?,
            writer: writer(),
            client,
        }))
    }
}

struct Inserter {
    client: Client,
    first: Statement,
    firsts: Statement,
    one: Statement,
    several: Statement,
    writer: String,
}

#[async_trait]
impl Session for Inserter {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        let (slice, first) = (slice(append.stream), sequence(append.revision));
        let entity_type = append.stream.split('-').next().unwrap_or_default();
        let data = payloads(append);
        let is_one = data.len() == 1;
        let data: &(dyn ToSql + Sync) = if is_one { &data[0] } else { &data };
        let stream = &append.stream;
        let values: [&(dyn ToSql + Sync); 6] =
            [&slice, &entity_type, stream, &self.writer, data, &first];
        let (statement, values) = match (append.revision, is_one) {
            (0, true) => (&self.first, &values[..5]),
            (0, false) => (&self.firsts, &values[..5]),
            (_, true) => (&self.one, &values[..]),
            (_, false) => (&self.several, &values[..]),
        };
        query(&self.client, statement, values).await?;
        Ok(())
    }
}

/// The slice of an entity: Java's hash of the name, its remainder first and then without its sign.
fn slice(name: &str) -> i32 {
    let hash = name.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    });
    (hash % SLICES).abs()
}
