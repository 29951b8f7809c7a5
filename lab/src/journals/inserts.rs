//! Designs whose append is one INSERT and its own transaction, and the worker that inserts.
//!
//! `jdbc` is akka-persistence-jdbc 5, as its schema was measured in the published comparison; `akka-net` is
//! Akka.Persistence.Sql for .NET in both of its forms, tags in a table of their own or as a list in a column; `plain` is
//! the one table of SwissBorg's akka-persistence-postgres (`swissborg` has its other forms).
//! Like the real ones: tables, indexes, columns written. Left out: tags and the plugins' queues (`batching` has that of
//! `jdbc`); several events of an append are one statement where the plugins bind row after row or open a transaction
//! around it.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::journal::{Design, Tables};
use super::rows::{Answer, Json, append_error, execute, millis, payloads, sequence, writer};
use crate::failure::Result;
use crate::target::{Append, Session};

const NOTE: &str = "untagged events; each append is one INSERT and its own transaction, on the worker's own connection";

/// A design with two statements: they insert one event, and several.
pub(super) struct Inserts {
    pub(super) tables: Tables,
    pub(super) one: &'static str,
    pub(super) several: &'static str,
}

pub(super) const JDBC: Tables = Tables {
    name: "jdbc",
    title: "akka-persistence-jdbc 5, schema alone",
    note: NOTE,
    extension: None,
    create: include_str!("../../sql/journals/jdbc/create_tables.sql"),
    payload: ("event_journal", "event_payload"),
    read_back: include_str!("../../sql/journals/jdbc/read_back.sql"),
};

const AKKA_NET: Inserts = Inserts {
    tables: Tables {
        name: "akka-net-tags",
        title: "Akka.Persistence.Sql, table of tags",
        note: NOTE,
        extension: None,
        create: include_str!("../../sql/journals/akka_net/create_tables.sql"),
        payload: ("journal", "message"),
        read_back: include_str!("../../sql/journals/akka_net/read_back.sql"),
    },
    one: include_str!("../../sql/journals/akka_net/insert_event.sql"),
    several: include_str!("../../sql/journals/akka_net/insert_events.sql"),
};

const PLAIN: Inserts = Inserts {
    tables: Tables {
        name: "plain",
        title: "akka-persistence-postgres, plain",
        note: NOTE,
        extension: Some("intarray"),
        create: include_str!("../../sql/journals/plain/create_tables.sql"),
        payload: ("journal", "message"),
        read_back: include_str!("../../sql/journals/plain/read_back.sql"),
    },
    one: include_str!("../../sql/journals/plain/insert_event.sql"),
    several: include_str!("../../sql/journals/plain/insert_events.sql"),
};

const AKKA_NET_CSV: Tables = Tables {
    name: "akka-net-csv",
    title: "Akka.Persistence.Sql, column of tags",
    create: include_str!("../../sql/journals/akka_net/create_tables_csv.sql"),
    ..AKKA_NET.tables
};

/// All of them.
pub(super) static ALL: [Inserts; 4] = [
    Inserts {
        tables: JDBC,
        one: include_str!("../../sql/journals/jdbc/insert_event.sql"),
        several: include_str!("../../sql/journals/jdbc/insert_events.sql"),
    },
    AKKA_NET,
    Inserts {
        tables: AKKA_NET_CSV,
        ..AKKA_NET
    },
    PLAIN,
];

/// SwissBorg's partitioned forms vary the plain one.
pub(super) const SWISSBORG: Inserts = PLAIN;

#[async_trait]
impl Design for &'static Inserts {
    fn tables(&self) -> &'static Tables {
        &self.tables
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        Ok(Box::new(Inserter::open(database, self).await?))
    }
}

/// A worker with the statements of such a design.
///
/// Both bind the stream, the sequence number (of the first), then the writer and milliseconds, or with SwissBorg's tables
/// metadata, then the data, and the positions if there are some.
pub(super) struct Inserter {
    pub(super) client: Client,
    one: Statement,
    several: Statement,
    writer: String,
    has_metadata: bool,
}

impl Inserter {
    pub(super) async fn open(database: &Database, design: &Inserts) -> Result<Self> {
        let client = database.worker().await?;
        Ok(Self {
            one: client.prepare(design.one).await?,
            several: client.prepare(design.several).await?,
            writer: writer(),
            has_metadata: design.tables.extension == PLAIN.tables.extension,
            client,
        })
    }

    pub(super) async fn insert(
        &self,
        append: &Append<'_>,
        orderings: Option<&[i64]>,
    ) -> Answer<()> {
        let (first, now, data) = (sequence(append.revision), millis(), payloads(append));
        let writer = &self.writer;
        let metadata = format!(
            r#"{{"serId":1,"serManifest":"lab-event","writer":"{writer}","timestamp":{now}}}"#
        );
        let metadata = Json(metadata.as_bytes());
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&append.stream, &first];
        if self.has_metadata {
            values.push(&metadata);
        } else {
            values.extend([writer as &(dyn ToSql + Sync), &now]);
        }
        let is_one = data.len() == 1;
        values.push(if is_one { &data[0] } else { &data });
        match &orderings {
            Some(orderings) if is_one => values.push(&orderings[0]),
            Some(orderings) => values.push(orderings),
            None => {}
        }
        let statement = if is_one { &self.one } else { &self.several };
        execute(&self.client, statement, &values).await?;
        Ok(())
    }

    /// Makes a table, unless it is there: another writer may be making it at the same time.
    pub(super) async fn make(&self, ddl: &str) -> Answer<()> {
        match self.client.batch_execute(ddl).await {
            Err(error) if !is_there(&error) => Err(append_error(error)),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Session for Inserter {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        self.insert(append, None).await
    }
}

/// True for the errors by which the slower of two writers hears that a table has been made.
fn is_there(error: &tokio_postgres::Error) -> bool {
    // Duplicate table, unique violation in the catalogue, duplicate object, overlapping partition.
    let codes = ["42P07", "23505", "42710", "42P17"];
    error
        .code()
        .is_some_and(|code| codes.contains(&code.code()))
}
