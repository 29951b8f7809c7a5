//! SwissBorg's akka-persistence-postgres in its three forms: one table; partitions by position; a partition per entity and
//! in it ranges of sequence numbers.
//!
//! Like the real one: columns, BRIN and GIN indexes, metadata as `jsonb`, positions of the partitioned form asked for
//! before the insert, partitions made on the way to an insert, by statements of their own, and remembered. Left out:
//! tags (the list is empty), the plugin's queue, and the table `journal_metadata` with its trigger, whose use is off by
//! default; an append is one statement where the plugin binds row after row within a transaction.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::journal::Design;
use super::rows::{Answer, Json, append_error, execute, millis, payloads, query, sequence, writer};
use crate::failure::Result;
use crate::target::{Append, Session};

/// Positions, or sequence numbers, of a partition.
pub(super) const PARTITION: i64 = 10_000_000;

const EXTENSION: &str = "intarray";
const PAYLOAD: (&str, &str) = ("journal", "message");
const READ_BACK: &str = include_str!("../../sql/journals/plain/read_back.sql");
const INSERT_EVENT: &str = include_str!("../../sql/journals/plain/insert_event.sql");
const INSERT_EVENTS: &str = include_str!("../../sql/journals/plain/insert_events.sql");

/// One table.
pub(super) struct Plain;

/// Partitions by position.
pub(super) struct Partitioned {
    size: i64,
    known: Known,
}

/// A partition per entity, and in it partitions by sequence number.
pub(super) struct Nested {
    size: i64,
    known: Known,
}

impl Partitioned {
    pub(super) fn new(size: i64) -> Self {
        let known = Known::default();
        Self { size, known }
    }
}

impl Nested {
    pub(super) fn new(size: i64) -> Self {
        let known = Known::default();
        Self { size, known }
    }
}

#[async_trait]
impl Design for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn title(&self) -> &'static str {
        "akka-persistence-postgres, plain"
    }

    fn note(&self) -> &'static str {
        "untagged events; each append is one INSERT and its own transaction, on the worker's own connection"
    }

    fn extension(&self) -> Option<&'static str> {
        Some(EXTENSION)
    }

    fn tables(&self) -> &'static str {
        include_str!("../../sql/journals/plain/create_tables.sql")
    }

    fn payload(&self) -> (&'static str, &'static str) {
        PAYLOAD
    }

    fn read_back(&self) -> &'static str {
        READ_BACK
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        let inserter = Inserter::open(database, INSERT_EVENT, INSERT_EVENTS).await?;
        Ok(Box::new(PlainSession(inserter)))
    }
}

#[async_trait]
impl Design for Partitioned {
    fn name(&self) -> &'static str {
        "partitioned"
    }

    fn title(&self) -> &'static str {
        "akka-persistence-postgres, partitioned"
    }

    fn note(&self) -> &'static str {
        "untagged events; each append asks for its positions first, makes their partition if it is not there, and inserts"
    }

    fn extension(&self) -> Option<&'static str> {
        Some(EXTENSION)
    }

    fn tables(&self) -> &'static str {
        include_str!("../../sql/journals/partitioned/create_tables.sql")
    }

    fn payload(&self) -> (&'static str, &'static str) {
        PAYLOAD
    }

    fn read_back(&self) -> &'static str {
        READ_BACK
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        let one = include_str!("../../sql/journals/partitioned/insert_event.sql");
        let several = include_str!("../../sql/journals/partitioned/insert_events.sql");
        let inserter = Inserter::open(database, one, several).await?;
        let next = include_str!("../../sql/journals/partitioned/next_orderings.sql");
        Ok(Box::new(PartitionedSession {
            next: inserter.client.prepare(next).await?,
            inserter,
            size: self.size,
            known: self.known.clone(),
        }))
    }

    async fn close(&self) {
        self.known.forget();
    }
}

#[async_trait]
impl Design for Nested {
    fn name(&self) -> &'static str {
        "nested"
    }

    fn title(&self) -> &'static str {
        "akka-persistence-postgres, nested partitions"
    }

    fn note(&self) -> &'static str {
        "untagged events; each append is one INSERT, before which a new entity gets a table and in it a partition"
    }

    fn extension(&self) -> Option<&'static str> {
        Some(EXTENSION)
    }

    fn tables(&self) -> &'static str {
        include_str!("../../sql/journals/nested/create_tables.sql")
    }

    fn payload(&self) -> (&'static str, &'static str) {
        PAYLOAD
    }

    fn read_back(&self) -> &'static str {
        READ_BACK
    }

    /// Partition by partition: reading thousands at once takes more locks than a server has.
    async fn read_backs(&self, client: &Client, schema: &str, prefix: &str) -> Result<Vec<String>> {
        let select = include_str!("../../sql/journals/nested/select_partitions.sql");
        let beginning = format!("j_{}", in_name(prefix));
        let rows = client.query(select, &[&schema, &beginning]).await?;
        let of = |table: String| READ_BACK.replace("FROM journal\n", &format!("FROM {table}\n"));
        Ok(rows.iter().map(|row| of(row.get(0))).collect())
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        Ok(Box::new(NestedSession {
            inserter: Inserter::open(database, INSERT_EVENT, INSERT_EVENTS).await?,
            size: self.size,
            known: self.known.clone(),
        }))
    }

    async fn close(&self) {
        self.known.forget();
    }
}

/// Partitions that are there, as far as this process knows.
#[derive(Clone, Default)]
struct Known(Arc<Mutex<HashSet<String>>>);

impl Known {
    fn has(&self, partition: &str) -> bool {
        self.0.lock().unwrap().contains(partition)
    }

    fn add(&self, partition: String) {
        self.0.lock().unwrap().insert(partition);
    }

    fn forget(&self) {
        self.0.lock().unwrap().clear();
    }
}

/// Inserts by one statement for one event, and another for several.
///
/// Both bind the stream, the sequence number (of the first), the metadata, the data, and then what is special.
struct Inserter {
    client: Client,
    one: Statement,
    several: Statement,
    writer: String,
}

impl Inserter {
    async fn open(database: &Database, one: &str, several: &str) -> Result<Self> {
        let client = database.worker().await?;
        Ok(Self {
            one: client.prepare(one).await?,
            several: client.prepare(several).await?,
            writer: writer(),
            client,
        })
    }

    async fn insert(&self, append: &Append<'_>, orderings: Option<&[i64]>) -> Answer<()> {
        let (first, data) = (sequence(append.revision), payloads(append));
        let metadata = format!(
            r#"{{"serId":1,"serManifest":"lab-event","writer":"{}","timestamp":{}}}"#,
            self.writer,
            millis()
        );
        let metadata = Json(metadata.as_bytes());
        let is_one = data.len() == 1;
        let data: &(dyn ToSql + Sync) = if is_one { &data[0] } else { &data };
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&append.stream, &first, &metadata, data];
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
    async fn make(&self, ddl: &str) -> Answer<()> {
        match self.client.batch_execute(ddl).await {
            Err(error) if !is_there(&error) => Err(append_error(error)),
            _ => Ok(()),
        }
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

struct PlainSession(Inserter);

#[async_trait]
impl Session for PlainSession {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        self.0.insert(append, None).await
    }
}

struct PartitionedSession {
    inserter: Inserter,
    next: Statement,
    size: i64,
    known: Known,
}

#[async_trait]
impl Session for PartitionedSession {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        let count = i64::try_from(append.events.len()).expect("few");
        let rows = query(&self.inserter.client, &self.next, &[&count]).await?;
        let orderings: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let (from, to) = (orderings[0], orderings[orderings.len() - 1]);
        for number in from / self.size..=to / self.size {
            let name = number.to_string();
            if !self.known.has(&name) {
                let ddl = include_str!("../../sql/journals/partitioned/create_partition.sql");
                self.inserter.make(&ranged(ddl, number, self.size)).await?;
                self.known.add(name);
            }
        }
        self.inserter.insert(append, Some(&orderings)).await
    }
}

struct NestedSession {
    inserter: Inserter,
    size: i64,
    known: Known,
}

#[async_trait]
impl Session for NestedSession {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        let first = sequence(append.revision);
        let last = sequence(append.revision + append.events.len() as u64 - 1);
        for number in first / self.size..=last / self.size {
            let key = format!("{}/{number}", append.stream);
            if !self.known.has(&key) {
                self.make_partition(append.stream, number).await?;
                self.known.add(key);
            }
        }
        self.inserter.insert(append, None).await
    }
}

impl NestedSession {
    async fn make_partition(&self, stream: &str, number: i64) -> Answer<()> {
        let name = in_name(stream);
        let entity = include_str!("../../sql/journals/nested/create_entity_partition.sql");
        let entity = entity
            .replace("{name}", &name)
            .replace("{id}", &stream.replace('\'', "''"));
        self.inserter.make(&entity).await?;
        let range = include_str!("../../sql/journals/nested/create_range_partition.sql");
        let range = ranged(&range.replace("{name}", &name), number, self.size);
        self.inserter.make(&range).await
    }
}

/// What stands for an entity in the names of its tables: what is not a letter, a digit or `_` becomes `_`.
fn in_name(id: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    id.chars().map(word).collect()
}

/// The statement for the partition of this number.
fn ranged(ddl: &str, number: i64, size: i64) -> String {
    ddl.replace("{number}", &number.to_string())
        .replace("{from}", &(number * size).to_string())
        .replace("{to}", &((number + 1) * size).to_string())
}
