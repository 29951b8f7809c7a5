//! SwissBorg's akka-persistence-postgres with partitions: by position, or a partition per entity and in it ranges of
//! sequence numbers. Its form with one table is one of `inserts`.
//!
//! Like the real one: columns, BRIN and GIN indexes, metadata as `jsonb`, positions of the partitioned form asked for
//! before the insert, partitions made on the way to an insert, by statements of their own, and remembered. Left out:
//! tags (the list is empty), the plugin's queue, and the table `journal_metadata` with its trigger, whose use is off by
//! default.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use gesta_load::target::{Append, Session};
use gesta_report::failure::Result;
use tokio_postgres::{Client, Statement};

use super::database::Database;
use super::inserts::{Bind, Inserter, Inserts, PLAIN};
use super::journal::{Design, Tables};
use super::rows::{Answer, prepare, query, sequence};

/// Positions, or sequence numbers, of a partition.
const PARTITION: i64 = 10_000_000;

static BY_POSITION: Inserts = Inserts {
    tables: Tables {
        name: "partitioned",
        title: "akka-persistence-postgres, partitioned",
        note: "untagged events; each append asks for its position first, makes the partition if it is not there, and inserts",
        create: sql!("partitioned/create_tables"),
        ..PLAIN.tables
    },
    insert: sql!("partitioned/insert_event"),
    binds: &[
        Bind::Stream,
        Bind::Sequence,
        Bind::Metadata,
        Bind::Data,
        Bind::Ordering,
    ],
    ..PLAIN
};

static BY_ENTITY: Inserts = Inserts {
    tables: Tables {
        name: "nested",
        title: "akka-persistence-postgres, nested partitions",
        note: "untagged events; each append is one INSERT, before which a new entity gets a table and in it a partition",
        create: sql!("nested/create_tables"),
        ..PLAIN.tables
    },
    ..PLAIN
};

/// A form with partitions.
pub(super) struct Partitions {
    by_entity: bool,
    known: Known,
}

/// Partitions that are there, as far as this process knows.
type Known = Arc<Mutex<HashSet<String>>>;

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
        match self.by_entity {
            true => &BY_ENTITY,
            false => &BY_POSITION,
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
        let beginning = format!("j_{}", in_name(prefix));
        let select = sql!("nested/select_partitions");
        let rows = client.query(select, &[&schema, &beginning]).await?;
        let of = |table: String| whole.replace("FROM journal\n", &format!("FROM {table}\n"));
        Ok(rows.iter().map(|row| of(row.get(0))).collect())
    }

    async fn session(&self, database: &Arc<Database>) -> Result<Box<dyn Session>> {
        let inserter = Inserter::open(database, self.inserts()).await?;
        let next = sql!("partitioned/next_orderings");
        let [next] = match self.by_entity {
            true => [None],
            false => prepare(&inserter.client, [next]).await?.map(Some),
        };
        Ok(Box::new(Partitioning {
            next,
            inserter,
            known: Arc::clone(&self.known),
        }))
    }

    async fn close(&self) {
        self.known.lock().unwrap().clear();
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
            let number = sequence(append.revision) / PARTITION;
            let key = format!("{}/{number}", append.stream);
            let (name, id) = (in_name(append.stream), append.stream.replace('\'', "''"));
            let named = |ddl: &str| ddl.replace("{name}", &name).replace("{id}", &id);
            let entity = named(sql!("nested/create_entity_partition"));
            let range = named(sql!("nested/create_range_partition"));
            self.make(key, &[entity, ranged(&range, number)]).await?;
            return self.inserter.insert(append, 0).await;
        };
        let rows = query(&self.inserter.client, next, &[&1_i64]).await?;
        let ordering: i64 = rows[0].get(0);
        let number = ordering / PARTITION;
        let ddl = ranged(sql!("partitioned/create_partition"), number);
        self.make(number.to_string(), &[ddl]).await?;
        self.inserter.insert(append, ordering).await
    }
}

impl Partitioning {
    /// Makes a partition by these statements, unless it is known to be there.
    async fn make(&self, key: String, statements: &[String]) -> Answer<()> {
        if self.known.lock().unwrap().contains(&key) {
            return Ok(());
        }
        for ddl in statements {
            self.inserter.make(ddl).await?;
        }
        self.known.lock().unwrap().insert(key);
        Ok(())
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
