//! The tables of Elixir EventStore 1.3: every event is stored once and linked twice, from its stream and from `$all`,
//! whose row is locked until the commit. An append is one statement, or, as older versions did it, five round trips.
//!
//! Like the real one: tables, keys, foreign keys, the notification per changed stream. Left out: triggers that forbid
//! updates and deletes (an append fires none), and the question for the stream's id that the driver asks before the
//! statement. In the separate form the transaction is BEGIN, events, stream and links, `$all` and links, COMMIT.

use std::sync::Arc;

use async_trait::async_trait;
use gesta_load::target::{Append, AppendError, Session};
use gesta_report::failure::Result;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

use super::database::Database;
use super::journal::{Design, Tables};
use super::rows::{Answer, command, prepare, query, version};

const BUNDLED: Tables = Tables {
    name: "eventstore",
    title: "Elixir EventStore 1.3",
    note: "each append is one statement of chained sub-queries that holds the row of $all until its commit",
    extension: None,
    create: sql!("eventstore/create_tables"),
    payload: ("events", "data"),
    read_back: sql!("eventstore/read_back"),
};

const SEPARATE: Tables = Tables {
    name: "eventstore-separate",
    title: "Elixir EventStore's tables, separate statements",
    note: "each append is a transaction of five round trips that holds the row of $all over one of them and the commit",
    ..BUNDLED
};

pub(super) enum EventStore {
    /// An append is one statement.
    Bundled,
    /// An append is a transaction of five round trips.
    Separate,
}

#[async_trait]
impl Design for EventStore {
    fn tables(&self) -> &'static Tables {
        match self {
            EventStore::Bundled => &BUNDLED,
            EventStore::Separate => &SEPARATE,
        }
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        let client = database.worker().await?;
        Ok(match self {
            EventStore::Bundled => {
                let sql = [sql!("eventstore/append_new"), sql!("eventstore/append")];
                let [new, more] = prepare(&client, sql).await?;
                Box::new(Bundled { client, new, more })
            }
            EventStore::Separate => {
                let sql = [
                    sql!("eventstore/insert_events"),
                    sql!("eventstore/link_new_stream"),
                    sql!("eventstore/link_stream"),
                    sql!("eventstore/link_all"),
                ];
                let statements = prepare(&client, sql).await?;
                Box::new(Separate { client, statements })
            }
        })
    }
}

/// The ids and the data of the events of an append, in order.
fn columns<'a>(append: &Append<'a>) -> (Vec<Uuid>, Vec<&'a [u8]>) {
    let events = append.events.iter();
    events.map(|event| (event.id, &event.data[..])).unzip()
}

fn wrong_version() -> AppendError {
    AppendError::Failed("wrong expected version".into())
}

struct Bundled {
    client: Client,
    /// Appends to a new stream.
    new: Statement,
    more: Statement,
}

#[async_trait]
impl Session for Bundled {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        let (ids, data) = columns(append);
        let expected = version(append.revision);
        let values: [&(dyn ToSql + Sync); 4] = [&append.stream, &ids, &data, &expected];
        let rows = match append.revision {
            0 => query(&self.client, &self.new, &values[..3]).await?,
            _ => query(&self.client, &self.more, &values).await?,
        };
        let linked: i64 = rows[0].get(0);
        match usize::try_from(linked) == Ok(append.events.len()) {
            true => Ok(()),
            false => Err(wrong_version()),
        }
    }
}

struct Separate {
    client: Client,
    /// Insert events, link them from a new stream, from one that is there, and from `$all`.
    statements: [Statement; 4],
}

impl Separate {
    async fn write(&self, append: &Append<'_>) -> Answer<()> {
        let (client, [insert, link_new, link, link_all]) = (&self.client, &self.statements);
        let (ids, data) = columns(append);
        let before = version(append.revision);
        query(client, insert, &[&ids, &data]).await?;
        let values: [&(dyn ToSql + Sync); 3] = [&append.stream, &ids, &before];
        let linked = match append.revision {
            0 => query(client, link_new, &values[..2]).await?,
            _ => query(client, link, &values).await?,
        };
        let stream: i64 = linked.first().ok_or_else(wrong_version)?.get(0);
        query(client, link_all, &[&stream, &ids, &before]).await?;
        Ok(())
    }
}

#[async_trait]
impl Session for Separate {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        command(&self.client, "BEGIN").await?;
        let error = match self.write(append).await {
            Ok(()) => return command(&self.client, "COMMIT").await,
            Err(error @ AppendError::Unknown(_)) => return Err(error),
            Err(error) => error,
        };
        // The connection can be used again, or the outcome is unknown.
        match self.client.batch_execute("ROLLBACK").await {
            Ok(()) => Err(error),
            Err(broken) => Err(AppendError::Unknown(broken.to_string())),
        }
    }
}
