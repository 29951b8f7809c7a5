//! A view, a projection with SQL of its own, and what a clean fold of events gives for each.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use gesta_core::{
    Checkpoint, EventData, EventStore, EventType, Filter, Query, RecordedEvent, StreamId,
};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::testing::{Faulty, Random, Subject, Through};
use gesta_projection::{
    ApplyError, Batch, OnPoison, Projection, ProjectionId, Projections, View, columns,
};
use gesta_projection_sqlite::{SqliteTarget, rusqlite};

use crate::common::Files;

columns! {
    /// What an account has.
    pub(crate) struct Balance {
        pub(crate) total: i64,
        pub(crate) events: i64,
        pub(crate) note: Option<String>,
    }
}

/// A row for each stream of category `account`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balances;

pub(crate) fn of_category(category: &str) -> Filter {
    Filter::query(Query {
        categories: vec![category.to_owned()],
        ..Query::default()
    })
}

pub(crate) fn number(event: &RecordedEvent) -> Result<i64, ApplyError> {
    Ok(std::str::from_utf8(&event.data)?.parse()?)
}

impl View for Balances {
    const NAME: &'static str = "balances";
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Balance;

    fn filter(&self) -> Filter {
        of_category("account")
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Some(event.stream.as_str().to_owned())
    }

    fn evolve(&self, row: &mut Option<Balance>, event: &RecordedEvent) -> Result<(), ApplyError> {
        match event.event_type.as_str() {
            "closed" => *row = None,
            "panic" => panic!("a mistake of the author"),
            _ => {
                let amount = number(event)?;
                let row = row.get_or_insert(Balance {
                    total: 0,
                    events: 0,
                    note: None,
                });
                row.total += amount;
                row.events += 1;
                row.note = (amount % 2 == 0).then(|| format!("even {amount}"));
            }
        }
        Ok(())
    }
}

/// Writes the position and the number of each event of category `account` into a table without a key: an event that
/// was applied twice, or out of order, is seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Journal;

impl Projection<SqliteTarget> for Journal {
    const NAME: &'static str = "journal";
    const VERSION: u32 = 1;
    const TABLES: &'static [&'static str] = &["journal"];

    fn filter(&self) -> Filter {
        of_category("account")
    }

    async fn create(&self, transaction: &mut rusqlite::Connection) -> Result<(), ApplyError> {
        let sql = "CREATE TABLE IF NOT EXISTS journal_v1 (n INTEGER PRIMARY KEY, position INTEGER, amount INTEGER)";
        transaction.execute_batch(sql)?;
        Ok(())
    }

    async fn clear(&self, transaction: &mut rusqlite::Connection) -> Result<(), ApplyError> {
        transaction.execute("DELETE FROM journal_v1", [])?;
        Ok(())
    }

    async fn apply(
        &self,
        transaction: &mut rusqlite::Connection,
        batch: &Batch,
    ) -> Result<(), ApplyError> {
        let sql = "INSERT INTO journal_v1 (position, amount) VALUES (?1, ?2)";
        let mut insert = transaction.prepare_cached(sql)?;
        for event in batch.events() {
            if event.event_type.as_str() == "panic" {
                panic!("a mistake of the author");
            }
            let position = i64::try_from(event.position.0)?;
            let amount = if event.event_type.as_str() == "closed" {
                0
            } else {
                number(event)?
            };
            insert.execute([position, amount])?;
        }
        Ok(())
    }
}

pub(crate) fn event(event_type: &str, amount: &str) -> EventData {
    let event_type = EventType::new(event_type).expect("valid");
    EventData::json(event_type, amount.to_owned()).without_id()
}

/// The checkpoint of a projection within a reader's transaction.
pub(crate) fn checkpoint(reader: &rusqlite::Connection, name: &str) -> Checkpoint {
    let sql = "SELECT checkpoint FROM gesta_projections WHERE name = ?1 ORDER BY version LIMIT 1";
    let text: String = reader
        .query_row(sql, [name], |row| row.get(0))
        .expect("registered");
    Checkpoint::from_str(&text).expect("a checkpoint")
}

/// The rows of a query as text, a line for each.
pub(crate) fn lines(reader: &rusqlite::Connection, sql: &str) -> Vec<String> {
    let mut statement = reader.prepare(sql).expect("prepared");
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let cell = |at| {
            row.get::<_, rusqlite::types::Value>(at)
                .map(|v| format!("{v:?}"))
        };
        let cells: Result<Vec<String>, _> = (0..columns).map(cell).collect();
        Ok(cells?.join(" "))
    });
    let rows: Result<Vec<String>, _> = rows.expect("rows").collect();
    rows.expect("rows")
}

const BALANCES: &str = "SELECT id, total, events, coalesce(note, '-') FROM balances ORDER BY id";
const PARKED: &str = "SELECT key, position FROM gesta_projections_parked \
                      WHERE name = 'balances' ORDER BY log, position";

/// The view, tested by the kit; some events cannot be applied, and are parked with the later ones of their stream.
#[derive(Debug)]
pub(crate) struct ViewSubject {
    pub(crate) files: Files,
    pub(crate) on_poison: OnPoison,
}

fn text(value: &str) -> String {
    format!("{:?}", rusqlite::types::Value::Text(value.to_owned()))
}

fn integer(value: i64) -> String {
    format!("{:?}", rusqlite::types::Value::Integer(value))
}

/// What a clean fold of events gives, as [`ViewSubject::read`] shows it.
pub(crate) fn balances_of(events: &[RecordedEvent], on_poison: OnPoison) -> String {
    let filter = Balances.filter();
    let mut rows: BTreeMap<String, Option<Balance>> = BTreeMap::new();
    let (mut blocked, mut parked) = (std::collections::BTreeSet::new(), Vec::new());
    for event in events.iter().filter(|event| filter.matches(event)) {
        let key = event.stream.as_str().to_owned();
        let mut park = |key: String| {
            let position = i64::try_from(event.position.0).expect("small");
            parked.push((event.log, position, format!("{key} {}", integer(position))));
        };
        if blocked.contains(&key) {
            park(text(&key));
            continue;
        }
        let mut row = rows.get(&key).cloned().flatten();
        if event.event_type.as_str() == "panic" || Balances.evolve(&mut row, event).is_err() {
            match on_poison {
                OnPoison::Park => {
                    park(text(&key));
                    blocked.insert(key);
                }
                OnPoison::Skip => park(format!("{:?}", rusqlite::types::Value::Null)),
                OnPoison::Stop => panic!("no poison is among these events"),
            }
            continue;
        }
        rows.insert(key, row);
    }
    parked.sort();
    let parked: Vec<String> = parked.into_iter().map(|(_, _, line)| line).collect();
    let rows = rows.into_iter().filter_map(|(key, row)| {
        let row = row?;
        let note = text(row.note.as_deref().unwrap_or("-"));
        let (total, events) = (integer(row.total), integer(row.events));
        Some(format!("{} {total} {events} {note}", text(&key)))
    });
    let rows: Vec<String> = rows.collect();
    format!("{}\nparked\n{}", rows.join("\n"), parked.join("\n"))
}

/// Rows and parked events, as a reader sees them.
pub(crate) fn balances(reader: &rusqlite::Connection) -> String {
    let (rows, parked) = (lines(reader, BALANCES), lines(reader, PARKED));
    format!("{}\nparked\n{}", rows.join("\n"), parked.join("\n"))
}

impl Subject for ViewSubject {
    type Target = SqliteTarget;

    async fn target(&self) -> SqliteTarget {
        self.files.make()
    }

    fn store(&self) -> Arc<dyn EventStore> {
        // Several logs: a checkpoint is a place in each, and the rows of a stream are of one log.
        Arc::new(MemoryStore::with_config(MemoryConfig {
            logs: 3,
            ..MemoryConfig::default()
        }))
    }

    fn add(&self, to: Projections<Faulty<SqliteTarget>>) -> Projections<Faulty<SqliteTarget>> {
        to.view(Balances)
    }

    fn id(&self) -> ProjectionId {
        ProjectionId {
            name: "balances".to_owned(),
            version: 1,
        }
    }

    fn event(&self, random: &mut Random) -> (StreamId, EventData) {
        let category = if random.one_in(4) { "other" } else { "account" };
        let name = format!("{category}-{}", random.below(6));
        let amount = random.below(100).to_string();
        let event = match random.below(if self.on_poison == OnPoison::Stop {
            20
        } else {
            60
        }) {
            0 | 1 => event("closed", ""),
            58 => event("added", "no number"),
            59 => event("panic", ""),
            _ => event("added", &amount),
        };
        (StreamId::new(name).expect("valid"), event)
    }

    async fn read(&self, _: &SqliteTarget) -> (Checkpoint, String) {
        let mut reader = self.files.open();
        let reader = reader.transaction().expect("begun");
        (checkpoint(&reader, "balances"), balances(&reader))
    }

    fn fold(&self, events: &[RecordedEvent]) -> String {
        balances_of(events, self.on_poison)
    }

    fn on_poison(&self) -> OnPoison {
        self.on_poison
    }
}

/// The projection with SQL of its own, tested by the kit.
#[derive(Debug)]
pub(crate) struct JournalSubject(pub(crate) Files);

impl Subject for JournalSubject {
    type Target = SqliteTarget;

    async fn target(&self) -> SqliteTarget {
        self.0.make()
    }

    fn store(&self) -> Arc<dyn EventStore> {
        Arc::new(MemoryStore::new())
    }

    fn add(&self, to: Projections<Faulty<SqliteTarget>>) -> Projections<Faulty<SqliteTarget>> {
        to.projection(Through(Journal))
    }

    fn id(&self) -> ProjectionId {
        ProjectionId {
            name: "journal".to_owned(),
            version: 1,
        }
    }

    fn event(&self, random: &mut Random) -> (StreamId, EventData) {
        let category = if random.one_in(4) { "other" } else { "account" };
        let name = format!("{category}-{}", random.below(6));
        let event = match random.below(40) {
            0 => event("closed", ""),
            1 => event("added", "no number"),
            2 => event("panic", ""),
            _ => event("added", &random.below(100).to_string()),
        };
        (StreamId::new(name).expect("valid"), event)
    }

    async fn read(&self, _: &SqliteTarget) -> (Checkpoint, String) {
        let mut reader = self.0.open();
        let reader = reader.transaction().expect("begun");
        let exists = "SELECT 1 FROM sqlite_schema WHERE name = 'journal_v1'";
        let rows = if lines(&reader, exists).is_empty() {
            Vec::new()
        } else {
            lines(
                &reader,
                "SELECT position, amount FROM journal_v1 ORDER BY n",
            )
        };
        (checkpoint(&reader, "journal"), rows.join("\n"))
    }

    fn fold(&self, events: &[RecordedEvent]) -> String {
        let filter = of_category("account");
        let rows = events.iter().filter(|event| filter.matches(event));
        let rows = rows.filter_map(|event| {
            let amount = match event.event_type.as_str() {
                "panic" => return None,
                "closed" => 0,
                _ => number(event).ok()?,
            };
            let position = i64::try_from(event.position.0).expect("small");
            Some(format!("{} {}", integer(position), integer(amount)))
        });
        rows.collect::<Vec<String>>().join("\n")
    }

    fn on_poison(&self) -> OnPoison {
        OnPoison::Skip
    }
}

/// [`Balances`] under other names, to have many projections.
struct Numbered<const N: usize>;

/// The names of [`Numbered`].
const NAMES: [&str; 20] = [
    "n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9", "n10", "n11", "n12", "n13", "n14",
    "n15", "n16", "n17", "n18", "n19",
];

impl<const N: usize> View for Numbered<N> {
    const NAME: &'static str = NAMES[N];
    const VERSION: u32 = 1;
    type Key = String;
    type Row = Balance;

    fn filter(&self) -> Filter {
        Balances.filter()
    }

    fn key(&self, event: &RecordedEvent) -> Option<String> {
        Balances.key(event)
    }

    fn evolve(&self, row: &mut Option<Balance>, event: &RecordedEvent) -> Result<(), ApplyError> {
        Balances.evolve(row, event)
    }
}

/// Adds one or twenty views.
pub(crate) fn numbered<T: gesta_projection::Target>(
    to: Projections<T>,
    count: usize,
) -> Projections<T> {
    let mut to = to.view(Numbered::<0>);
    if count > 1 {
        macro_rules! add {
            ($($n:literal)+) => {
                $(to = to.view(Numbered::<$n>);)+
            };
        }
        add!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    }
    to
}
