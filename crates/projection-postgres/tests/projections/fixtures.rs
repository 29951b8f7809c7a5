//! A view, what a projection with SQL of its own needs, and what a clean fold of events gives for each.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use gesta_core::{Checkpoint, EventData, EventType, Filter, Query, RecordedEvent, StreamId};
use gesta_projection::testing::Random;
use gesta_projection::{ApplyError, Batch, OnPoison, View, columns};
use tokio_postgres::Client;

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

/// Makes the table of the projection `journal`.
pub(crate) const JOURNAL: &str =
    "CREATE TABLE IF NOT EXISTS journal_v1 (n bigserial, position bigint, amount bigint)";
/// Fills it: `$1` positions, `$2` amounts.
pub(crate) const INSERT_JOURNAL: &str = "INSERT INTO journal_v1 (position, amount) \
     SELECT e.position, e.amount FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS e (position, amount, n) \
     ORDER BY e.n";

fn amount(event: &RecordedEvent) -> Result<i64, ApplyError> {
    match event.event_type.as_str() {
        "closed" => Ok(0),
        "panic" => Err(ApplyError::text("an event without a number")),
        _ => number(event),
    }
}

/// Position and number of each event of a batch.
pub(crate) fn amounts(batch: &Batch) -> Result<(Vec<i64>, Vec<i64>), ApplyError> {
    let mut columns = (Vec::new(), Vec::new());
    for event in batch.events() {
        columns.0.push(i64::try_from(event.position.0)?);
        columns.1.push(amount(event)?);
    }
    Ok(columns)
}

pub(crate) fn event(event_type: &str, amount: &str) -> EventData {
    let event_type = EventType::new(event_type).expect("valid");
    EventData::json(event_type, amount.to_owned())
}

/// Makes an event of one of six streams, a quarter of them of no interest. With `poison` one in thirty cannot be
/// applied.
pub(crate) fn random_event(random: &mut Random, poison: bool) -> (StreamId, EventData) {
    let category = if random.one_in(4) { "other" } else { "account" };
    let name = format!("{category}-{}", random.below(6));
    let amount = random.below(100).to_string();
    let event = match random.below(if poison { 60 } else { 20 }) {
        0 | 1 => event("closed", ""),
        58 => event("added", "no number"),
        59 => event("panic", ""),
        _ => event("added", &amount),
    };
    (StreamId::new(name).expect("valid"), event)
}

const CHECKPOINT: &str =
    "SELECT checkpoint FROM gesta_projections WHERE name = $1 ORDER BY version LIMIT 1";
const BALANCES: &str = "SELECT concat_ws(' ', id, total, events, coalesce(note, '-')) FROM balances \
                        ORDER BY id COLLATE \"C\"";
const PARKED: &str = "SELECT concat_ws(' ', coalesce(key, '-'), position) FROM gesta_projections_parked \
                      WHERE name = 'balances' ORDER BY position";
const ROWS_OF_JOURNAL: &str = "SELECT concat_ws(' ', position, amount) FROM journal_v1 ORDER BY n";

async fn lines(reader: &impl tokio_postgres::GenericClient, sql: &str) -> Vec<String> {
    let rows = reader.query(sql, &[]).await.expect("rows");
    rows.iter().map(|row| row.get(0)).collect()
}

/// Checkpoint and rows of a projection, in one snapshot, as a reader sees them.
pub(crate) async fn seen(mut reader: Client, name: &str) -> (Checkpoint, String) {
    let builder = reader.build_transaction();
    let level = tokio_postgres::IsolationLevel::RepeatableRead;
    let reader = builder.isolation_level(level).start().await.expect("begun");
    let row = reader.query_one(CHECKPOINT, &[&name]).await;
    let text: String = row.expect("registered").get(0);
    let checkpoint = Checkpoint::from_str(&text).expect("a checkpoint");
    let rows = match name {
        "balances" => {
            let (rows, parked) = (lines(&reader, BALANCES).await, lines(&reader, PARKED).await);
            format!("{}\nparked\n{}", rows.join("\n"), parked.join("\n"))
        }
        _ => {
            let exists = "SELECT to_regclass('journal_v1')::text WHERE to_regclass('journal_v1') IS NOT NULL";
            match lines(&reader, exists).await.is_empty() {
                true => String::new(),
                false => lines(&reader, ROWS_OF_JOURNAL).await.join("\n"),
            }
        }
    };
    (checkpoint, rows)
}

/// What a clean fold of events gives for the view, as [`seen`] shows it.
pub(crate) fn balances_of(events: &[RecordedEvent], on_poison: OnPoison) -> String {
    let filter = Balances.filter();
    let mut rows: BTreeMap<String, Option<Balance>> = BTreeMap::new();
    let (mut blocked, mut parked) = (BTreeSet::new(), Vec::new());
    for event in events.iter().filter(|event| filter.matches(event)) {
        let key = event.stream.as_str().to_owned();
        let position = event.position.0;
        if blocked.contains(&key) {
            parked.push(format!("{key} {position}"));
            continue;
        }
        let mut row = rows.get(&key).cloned().flatten();
        if event.event_type.as_str() == "panic" || Balances.evolve(&mut row, event).is_err() {
            match on_poison {
                OnPoison::Park => {
                    parked.push(format!("{key} {position}"));
                    blocked.insert(key);
                }
                OnPoison::Skip => parked.push(format!("- {position}")),
                OnPoison::Stop => panic!("no poison is among these events"),
            }
            continue;
        }
        rows.insert(key, row);
    }
    let rows = rows.into_iter().filter_map(|(key, row)| {
        let row = row?;
        let note = row.note.as_deref().unwrap_or("-").to_owned();
        Some(format!("{key} {} {} {note}", row.total, row.events))
    });
    let rows: Vec<String> = rows.collect();
    format!("{}\nparked\n{}", rows.join("\n"), parked.join("\n"))
}

/// What a clean fold of events gives for the journal.
pub(crate) fn journal_of(events: &[RecordedEvent]) -> String {
    let filter = of_category("account");
    let rows = events.iter().filter(|event| filter.matches(event));
    let rows = rows.filter_map(|event| {
        let amount = amount(event).ok()?;
        Some(format!("{} {amount}", event.position.0))
    });
    rows.collect::<Vec<String>>().join("\n")
}
