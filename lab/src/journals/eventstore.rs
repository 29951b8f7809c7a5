//! The tables of Elixir EventStore 1.3: every event is stored once and linked twice, from its stream and from `$all`,
//! whose row is locked until the commit. An append is one statement, or, as older versions did it, five round trips.
//!
//! Like the real one: tables, keys, foreign keys, the notification per changed stream. Left out: triggers that forbid
//! updates and deletes (an append fires none), and the question for the stream's id that the driver asks before the
//! statement. In the separate form the transaction is BEGIN, events, stream and links, `$all` and links, COMMIT.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::journal::{Design, Tables};
use super::rows::{Answer, command, execute, ids, payloads, query, rolled_back, version};
use crate::failure::Result;
use crate::target::{Append, AppendError, Session};

const TABLES: Tables = Tables {
    name: "eventstore",
    title: "Elixir EventStore 1.3",
    note: "each append is one statement of chained sub-queries that holds the row of $all until its commit",
    extension: None,
    create: include_str!("../../sql/journals/eventstore/create_tables.sql"),
    payload: ("events", "data"),
    read_back: include_str!("../../sql/journals/eventstore/read_back.sql"),
};

static BUNDLED: Tables = TABLES;

static SEPARATE: Tables = Tables {
    name: "eventstore-separate",
    title: "Elixir EventStore's tables, separate statements",
    note: "each append is a transaction of five round trips that holds the row of $all over one of them and the commit",
    ..TABLES
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
            EventStore::Bundled => Box::new(Bundled::open(client).await?),
            EventStore::Separate => Box::new(Separate::open(client).await?),
        })
    }
}

fn wrong_version() -> AppendError {
    AppendError::Failed("wrong expected version".into())
}

struct Bundled {
    client: Client,
    new: Statement,
    more: Statement,
}

impl Bundled {
    async fn open(client: Client) -> Result<Self> {
        let new = include_str!("../../sql/journals/eventstore/append_new.sql");
        let more = include_str!("../../sql/journals/eventstore/append.sql");
        Ok(Self {
            new: client.prepare(new).await?,
            more: client.prepare(more).await?,
            client,
        })
    }
}

#[async_trait]
impl Session for Bundled {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        let (ids, data) = (ids(append), payloads(append));
        let expected = version(append.revision);
        let values: [&(dyn ToSql + Sync); 4] = [&append.stream, &ids, &data, &expected];
        let rows = match append.revision {
            0 => query(&self.client, &self.new, &values[..3]).await?,
            _ => query(&self.client, &self.more, &values).await?,
        };
        let linked: i64 = rows[0].get(0);
        if usize::try_from(linked) == Ok(append.events.len()) {
            Ok(())
        } else {
            Err(wrong_version())
        }
    }
}

struct Separate {
    client: Client,
    insert: Statement,
    link_new: Statement,
    link: Statement,
    link_all: Statement,
}

impl Separate {
    async fn open(client: Client) -> Result<Self> {
        let prepare = |sql| client.prepare(sql);
        Ok(Self {
            insert: prepare(include_str!(
                "../../sql/journals/eventstore/insert_events.sql"
            ))
            .await?,
            link_new: prepare(include_str!(
                "../../sql/journals/eventstore/link_new_stream.sql"
            ))
            .await?,
            link: prepare(include_str!(
                "../../sql/journals/eventstore/link_stream.sql"
            ))
            .await?,
            link_all: prepare(include_str!("../../sql/journals/eventstore/link_all.sql")).await?,
            client,
        })
    }

    async fn write(&self, append: &Append<'_>) -> Answer<()> {
        let (ids, data) = (ids(append), payloads(append));
        let before = version(append.revision);
        let client = &self.client;
        execute(client, &self.insert, &[&ids, &data]).await?;
        let values: [&(dyn ToSql + Sync); 3] = [&append.stream, &ids, &before];
        let linked = match append.revision {
            0 => query(client, &self.link_new, &values[..2]).await?,
            _ => query(client, &self.link, &values).await?,
        };
        let stream: i64 = linked.first().ok_or_else(wrong_version)?.get(0);
        execute(client, &self.link_all, &[&stream, &ids, &before]).await?;
        Ok(())
    }
}

#[async_trait]
impl Session for Separate {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        command(&self.client, "BEGIN").await?;
        match self.write(append).await {
            Ok(()) => command(&self.client, "COMMIT").await,
            Err(error) => Err(rolled_back(&self.client, error).await),
        }
    }
}
