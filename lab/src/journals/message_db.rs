//! Message DB 1.3: one function call per message, which locks the message's category until the commit.
//!
//! Like the real one: table, indexes, what the functions for writing do. Several events of an append are as many calls,
//! one after the other, in one transaction, as its clients do. Left out: functions for reading, views, privileges.
//! It stores `jsonb`, hence JSON only, and not byte by byte as given.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::journal::{Design, Tables};
use super::rows::{Answer, Json, command, query, rolled_back, version};
use crate::failure::Result;
use crate::target::{Append, Event, Session};

static TABLES: Tables = Tables {
    name: "message-db",
    title: "Message DB 1.3",
    note: "each event is one call of write_message, which lets one transaction per category write at a time; data are jsonb",
    extension: None,
    create: include_str!("../../sql/journals/message_db/create_tables.sql"),
    payload: ("messages", "data"),
    read_back: include_str!("../../sql/journals/message_db/read_back.sql"),
};

pub(super) struct MessageDb;

#[async_trait]
impl Design for MessageDb {
    fn tables(&self) -> &'static Tables {
        &TABLES
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        let client = database.worker().await?;
        let write = include_str!("../../sql/journals/message_db/write_message.sql");
        Ok(Box::new(Caller {
            write: client.prepare(write).await?,
            client,
        }))
    }
}

struct Caller {
    client: Client,
    write: Statement,
}

impl Caller {
    async fn write(&self, stream: &str, event: &Event, expected: i64) -> Answer<()> {
        let id = event.id.to_string();
        let data = Json(&event.data);
        query(&self.client, &self.write, &[&id, &stream, &data, &expected]).await?;
        Ok(())
    }

    async fn write_all(&self, append: &Append<'_>) -> Answer<()> {
        for (before, event) in (version(append.revision)..).zip(append.events) {
            self.write(append.stream, event, before - 1).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Session for Caller {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        if let [event] = append.events {
            return self
                .write(append.stream, event, version(append.revision) - 1)
                .await;
        }
        command(&self.client, "BEGIN").await?;
        match self.write_all(append).await {
            Ok(()) => command(&self.client, "COMMIT").await,
            Err(error) => Err(rolled_back(&self.client, error).await),
        }
    }
}
