//! Designs whose append is one INSERT and its own transaction, and the worker that inserts.
//!
//! `jdbc` is akka-persistence-jdbc 5, as its schema was measured in the published comparison; `akka-net-tags`
//! is Akka.Persistence.Sql for .NET with tags in a table of their own, `akka-net-column` its older form with tags as
//! text in a column (as long as there are none, both write the same row); `plain` is the one table of SwissBorg's
//! akka-persistence-postgres (`swissborg` has its other forms). `r2dbc` is akka-persistence-r2dbc: it has no number
//! over all events; a slice and the database's time order them. Like the real ones: tables, indexes, columns written;
//! of `r2dbc` the slice, and the time that is never before that of the entity's event before. Left out: tags and the
//! plugins' queues (`batching` has that of `jdbc`).

use std::sync::Arc;

use async_trait::async_trait;
use gesta_load::target::{Append, Session};
use gesta_report::failure::Result;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::journal::{Design, Tables};
use super::rows::{Answer, Json, append_error, millis, only, prepare, query, sequence, writer};

const NOTE: &str = "untagged events; each append is one INSERT and its own transaction, on the worker's own connection";
/// Slices of `r2dbc`, for ever.
const SLICES: i32 = 1_024;

/// What an INSERT binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bind {
    Stream,
    Sequence,
    Data,
    Writer,
    Millis,
    /// What SwissBorg's tables keep beside the data, as JSON.
    Metadata,
    /// The position that was asked for before.
    Ordering,
    Slice,
    EntityType,
}

/// A design with an INSERT.
pub(super) struct Inserts {
    pub(super) tables: Tables,
    pub(super) insert: &'static str,
    /// What it binds, in order.
    pub(super) binds: &'static [Bind],
    /// Another INSERT for the first event of an entity; it binds all of these but the last.
    pub(super) first: Option<&'static str>,
}

pub(super) const JDBC: Inserts = Inserts {
    tables: Tables {
        name: "jdbc",
        title: "akka-persistence-jdbc 5, schema alone",
        note: NOTE,
        extension: None,
        create: sql!("jdbc/create_tables"),
        payload: ("event_journal", "event_payload"),
        read_back: sql!("jdbc/read_back"),
    },
    insert: sql!("jdbc/insert_event"),
    binds: &[
        Bind::Stream,
        Bind::Sequence,
        Bind::Writer,
        Bind::Millis,
        Bind::Data,
    ],
    first: None,
};

const AKKA_NET: Inserts = Inserts {
    tables: Tables {
        name: "akka-net-tags",
        title: "Akka.Persistence.Sql, table of tags",
        create: sql!("akka_net/create_tables"),
        payload: ("journal", "message"),
        read_back: sql!("akka_net/read_back"),
        ..JDBC.tables
    },
    insert: sql!("akka_net/insert_event"),
    ..JDBC
};

const AKKA_NET_COLUMN: Inserts = Inserts {
    tables: Tables {
        name: "akka-net-column",
        title: "Akka.Persistence.Sql, column of tags",
        create: sql!("akka_net/create_tables_column"),
        ..AKKA_NET.tables
    },
    ..AKKA_NET
};

/// SwissBorg's partitioned forms vary this one.
pub(super) const PLAIN: Inserts = Inserts {
    tables: Tables {
        name: "plain",
        title: "akka-persistence-postgres, plain",
        note: NOTE,
        extension: Some("intarray"),
        create: sql!("plain/create_tables"),
        payload: ("journal", "message"),
        read_back: sql!("plain/read_back"),
    },
    insert: sql!("plain/insert_event"),
    binds: &[Bind::Stream, Bind::Sequence, Bind::Metadata, Bind::Data],
    first: None,
};

const R2DBC: Inserts = Inserts {
    tables: Tables {
        name: "r2dbc",
        title: "akka-persistence-r2dbc",
        note: "untagged events; each append is one INSERT and its own transaction, with a look at the event before",
        create: sql!("r2dbc/create_tables"),
        read_back: sql!("r2dbc/read_back"),
        ..JDBC.tables
    },
    insert: sql!("r2dbc/insert_event"),
    binds: &[
        Bind::Slice,
        Bind::EntityType,
        Bind::Stream,
        Bind::Writer,
        Bind::Data,
        Bind::Sequence,
    ],
    first: Some(sql!("r2dbc/insert_first_event")),
};

/// All of them.
pub(super) static ALL: [Inserts; 5] = [JDBC, AKKA_NET, AKKA_NET_COLUMN, PLAIN, R2DBC];

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
pub(super) struct Inserter {
    pub(super) client: Client,
    design: &'static Inserts,
    insert: Statement,
    first: Statement,
    writer: String,
}

impl Inserter {
    pub(super) async fn open(database: &Database, design: &'static Inserts) -> Result<Self> {
        let client = database.worker().await?;
        let first = design.first.unwrap_or(design.insert);
        let [insert, first] = prepare(&client, [design.insert, first]).await?;
        Ok(Self {
            client,
            design,
            insert,
            first,
            writer: writer(),
        })
    }

    pub(super) async fn insert(&self, append: &Append<'_>, ordering: i64) -> Answer<()> {
        let data = &only(append)?.data[..];
        let (sequence, now, writer) = (sequence(append.revision), millis(), &self.writer);
        let metadata = format!(
            r#"{{"serId":1,"serManifest":"lab-event","writer":"{writer}","timestamp":{now}}}"#
        );
        let metadata = Json(metadata.as_bytes());
        let slice = slice(append.stream);
        let entity_type = append.stream.split('-').next().unwrap_or_default();
        let value = |bind: &Bind| {
            let value: &(dyn ToSql + Sync) = match bind {
                Bind::Stream => &append.stream,
                Bind::Sequence => &sequence,
                Bind::Data => &data,
                Bind::Writer => writer,
                Bind::Millis => &now,
                Bind::Metadata => &metadata,
                Bind::Ordering => &ordering,
                Bind::Slice => &slice,
                Bind::EntityType => &entity_type,
            };
            value
        };
        let mut values: Vec<_> = self.design.binds.iter().map(value).collect();
        let is_first = append.revision == 0 && self.design.first.is_some();
        if is_first {
            values.pop();
        }
        let statement = if is_first { &self.first } else { &self.insert };
        query(&self.client, statement, &values).await?;
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
        self.insert(append, 0).await
    }
}

/// The slice of an entity: Java's hash of the name, its remainder first and then without its sign.
fn slice(name: &str) -> i32 {
    let hash = name.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    });
    (hash % SLICES).abs()
}

/// True for the errors by which the slower of two writers hears that a table has been made.
fn is_there(error: &tokio_postgres::Error) -> bool {
    // Duplicate table, unique violation in the catalogue, duplicate object, overlapping partition.
    let codes = ["42P07", "23505", "42710", "42P17"];
    error
        .code()
        .is_some_and(|code| codes.contains(&code.code()))
}
