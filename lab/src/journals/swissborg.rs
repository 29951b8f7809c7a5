//! SwissBorg's akka-persistence-postgres with partitions: by position, or a partition per entity and in it ranges of
//! sequence numbers. Its form with one table is one of `inserts`.
//!
//! Like the real one: columns, BRIN and GIN indexes, metadata as `jsonb`, positions of the partitioned form asked for
//! before the insert, partitions made on the way to an insert, by statements of their own, and remembered. Left out:
//! tags (the list is empty), the plugin's queue, and the table `journal_metadata` with its trigger, whose use is off by
//! default; an append is one statement where the plugin binds row after row within a transaction.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::inserts::{Inserter, Inserts, SWISSBORG};
use super::journal::{Design, Tables};
use super::rows::{Answer, query, sequence};
use crate::failure::Result;
use crate::target::{Append, Session};

/// Positions, or sequence numbers, of a partition.
const PARTITION: i64 = 10_000_000;

static BY_POSITION: Inserts = Inserts {
    tables: Tables {
        name: "partitioned",
        title: "akka-persistence-postgres, partitioned",
        note: "untagged events; each append asks for its positions first, makes their partition if it is not there, and inserts",
        create: include_str!("../../sql/journals/partitioned/create_tables.sql"),
        ..SWISSBORG.tables
    },
    one: include_str!("../../sql/journals/partitioned/insert_event.sql"),
    several: include_str!("../../sql/journals/partitioned/insert_events.sql"),
};

static BY_ENTITY: Inserts = Inserts {
    tables: Tables {
        name: "nested",
        title: "akka-persistence-postgres, nested partitions",
        note: "untagged events; each append is one INSERT, before which a new entity gets a table and in it a partition",
        create: include_str!("../../sql/journals/nested/create_tables.sql"),
        ..SWISSBORG.tables
    },
    ..SWISSBORG
};

/// A form with partitions.
pub(super) struct Partitions {
    by_entity: bool,
    known: Known,
}

impl Partitions {
    /// The form of this name; none if there is none.
    pub(super) fn named(name: &str) -> Option<Self> {
        let by_entity = name == BY_ENTITY.tables.name;
        (by_entity || name == BY_POSITION.tables.name).then(|| Self {
            by_entity,
            known: Known::default(),
        })
    }

    fn inserts(&self) -> &'static Inserts {
        if self.by_entity {
            &BY_ENTITY
        } else {
            &BY_POSITION
        }
    }
}

#[async_trait]
impl Design for Partitions {
    fn tables(&self) -> &'static Tables {
        &self.inserts().tables
    }

    /// A partition per entity is read by itself: reading thousands at once takes more locks than a server has.
    async fn read_backs(&self, client: &Client, schema: &str, prefix: &str) -> Result<Vec<String>> {
        let whole = self.tables().read_back;
        if !self.by_entity {
            return Ok(vec![whole.to_owned()]);
        }
        let select = include_str!("../../sql/journals/nested/select_partitions.sql");
        let beginning = format!("j_{}", in_name(prefix));
        let rows = client.query(select, &[&schema, &beginning]).await?;
        let of = |table: String| whole.replace("FROM journal\n", &format!("FROM {table}\n"));
        Ok(rows.iter().map(|row| of(row.get(0))).collect())
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        let inserter = Inserter::open(database, self.inserts()).await?;
        let next = include_str!("../../sql/journals/partitioned/next_orderings.sql");
        Ok(Box::new(Partitioning {
            next: match self.by_entity {
                true => None,
                false => Some(inserter.client.prepare(next).await?),
            },
            inserter,
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

struct Partitioning {
    inserter: Inserter,
    /// Asks for positions; none if each entity has its own partitions.
    next: Option<Statement>,
    known: Known,
}

#[async_trait]
impl Session for Partitioning {
    async fn append(&mut self, append: &Append<'_>) -> Answer<()> {
        let Some(next) = &self.next else {
            let last = sequence(append.revision + append.events.len() as u64 - 1);
            for number in sequence(append.revision) / PARTITION..=last / PARTITION {
                let key = format!("{}/{number}", append.stream);
                if !self.known.has(&key) {
                    self.make_partition(append.stream, number).await?;
                    self.known.add(key);
                }
            }
            return self.inserter.insert(append, None).await;
        };
        let count = i64::try_from(append.events.len()).expect("few");
        let rows = query(&self.inserter.client, next, &[&count]).await?;
        let orderings: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let (from, to) = (orderings[0], orderings[orderings.len() - 1]);
        for number in from / PARTITION..=to / PARTITION {
            let name = number.to_string();
            if !self.known.has(&name) {
                let ddl = include_str!("../../sql/journals/partitioned/create_partition.sql");
                self.inserter.make(&ranged(ddl, number)).await?;
                self.known.add(name);
            }
        }
        self.inserter.insert(append, Some(&orderings)).await
    }
}

impl Partitioning {
    async fn make_partition(&self, stream: &str, number: i64) -> Answer<()> {
        let name = in_name(stream);
        let entity = include_str!("../../sql/journals/nested/create_entity_partition.sql");
        let entity = entity
            .replace("{name}", &name)
            .replace("{id}", &stream.replace('\'', "''"));
        self.inserter.make(&entity).await?;
        let range = include_str!("../../sql/journals/nested/create_range_partition.sql");
        let range = ranged(&range.replace("{name}", &name), number);
        self.inserter.make(&range).await
    }
}

/// What stands for an entity in the names of its tables: what is not a letter, a digit or `_` becomes `_`.
fn in_name(id: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    id.chars().map(word).collect()
}

/// The statement for the partition of this number.
fn ranged(ddl: &str, number: i64) -> String {
    ddl.replace("{number}", &number.to_string())
        .replace("{from}", &(number * PARTITION).to_string())
        .replace("{to}", &((number + 1) * PARTITION).to_string())
}
