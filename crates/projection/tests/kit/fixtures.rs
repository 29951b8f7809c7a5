//! A view, what a projection with SQL of its own needs, events, and what a clean fold of them gives for each.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::str::FromStr;

use gesta_core::{
    Checkpoint, EventData, EventId, EventType, Filter, Incarnation, Position, Query, RecordedEvent,
    StreamId,
};
use gesta_projection::testing::Random;
use gesta_projection::{ApplyError, Batch, OnPoison, Projections, View, columns};

use crate::flavour::Database;

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

fn amount(event: &RecordedEvent) -> Result<i64, ApplyError> {
    match event.event_type.as_str() {
        "closed" => Ok(0),
        "panic" => panic!("a mistake of the author"),
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
    EventData::json(event_type, amount.to_owned()).without_id()
}

/// A place in a store of one log that nobody has.
pub(crate) fn place_at(position: u64) -> Checkpoint {
    let incarnation = Incarnation(uuid::Uuid::from_u128(7));
    Checkpoint::logs(incarnation, vec![Position(position)])
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

const BALANCES: (&str, &str) = (
    "balances",
    "SELECT id, total, events, coalesce(note, '-') FROM balances",
);
const PARKED: (&str, &str) = (
    "gesta_projections_parked",
    "SELECT coalesce(key, '-'), position FROM gesta_projections_parked WHERE name = 'balances' ORDER BY log, position",
);
const ROWS_OF_JOURNAL: (&str, &str) = (
    "journal_v1",
    "SELECT position, amount FROM journal_v1 ORDER BY n",
);

/// Checkpoint and rows of a projection, in one snapshot, as a reader sees them.
pub(crate) async fn seen(database: &Database, name: &str) -> (Checkpoint, String) {
    let sql = format!(
        "SELECT checkpoint FROM gesta_projections WHERE name = '{name}' ORDER BY version LIMIT 1"
    );
    let checkpoint = ("gesta_projections", sql.as_str());
    let found = match name {
        "balances" => database.snapshot(&[checkpoint, BALANCES, PARKED]).await,
        _ => database.snapshot(&[checkpoint, ROWS_OF_JOURNAL]).await,
    };
    let text = found[0].first().expect("registered");
    let rows = match name {
        "balances" => shown(found[1].clone(), &found[2]),
        _ => found[1].join("\n"),
    };
    (Checkpoint::from_str(text).expect("a checkpoint"), rows)
}

fn shown(mut rows: Vec<String>, parked: &[String]) -> String {
    rows.sort();
    format!("{}\nparked\n{}", rows.join("\n"), parked.join("\n"))
}

/// What a clean fold of events gives for the view, as [`seen`] shows it.
pub(crate) fn balances_of(events: &[RecordedEvent], on_poison: OnPoison) -> String {
    balances_without(events, on_poison, &HashSet::new())
}

/// As [`balances_of`], where deadly events cannot be applied either.
pub(crate) fn balances_without(
    events: &[RecordedEvent],
    on_poison: OnPoison,
    deadly: &HashSet<EventId>,
) -> String {
    let filter = Balances.filter();
    let mut rows: BTreeMap<String, Option<Balance>> = BTreeMap::new();
    let (mut blocked, mut parked) = (BTreeSet::new(), Vec::new());
    for event in events.iter().filter(|event| filter.matches(event)) {
        let key = event.stream.as_str().to_owned();
        let at = (event.log, event.position);
        if blocked.contains(&key) {
            parked.push((at, key));
            continue;
        }
        let mut row = rows.get(&key).cloned().flatten();
        let is_poison = event.event_type.as_str() == "panic" || deadly.contains(&event.id);
        if is_poison || Balances.evolve(&mut row, event).is_err() {
            match on_poison {
                OnPoison::Park => {
                    parked.push((at, key.clone()));
                    blocked.insert(key);
                }
                OnPoison::Skip => parked.push((at, "-".to_owned())),
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
    parked.sort();
    let parked = parked
        .iter()
        .map(|((_, position), key)| format!("{key} {position}"));
    shown(rows.collect(), &parked.collect::<Vec<String>>())
}

/// What a clean fold of events gives for the journal, where deadly events cannot be applied.
pub(crate) fn journal_of(events: &[RecordedEvent], deadly: &HashSet<EventId>) -> String {
    let filter = of_category("account");
    let rows = events.iter().filter(|event| filter.matches(event));
    let is_poison =
        |event: &RecordedEvent| event.event_type.as_str() == "panic" || deadly.contains(&event.id);
    let rows = rows.filter(|event| !is_poison(event));
    let rows = rows.filter_map(|event| {
        let amount = amount(event).ok()?;
        Some(format!("{} {amount}", event.position.0))
    });
    rows.collect::<Vec<String>>().join("\n")
}

/// Adds [`Balances`] so many times, under the names `n0`, `n1` and so on.
pub(crate) fn numbered<T: gesta_projection::Target>(
    to: Projections<T>,
    count: usize,
) -> Projections<T> {
    (0..count).fold(to, |to, n| to.view_as(&format!("n{n}"), Balances))
}
