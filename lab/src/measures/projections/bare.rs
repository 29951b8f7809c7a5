//! What bounds a projection, and what it replaces: rows in bulk without a store, and a loop written by hand.

use std::sync::Arc;
use std::time::Instant;

use gesta_core::{AllFrom, EventStore, ReadAll, RecordedEvent};
use gesta_report::failure::{Context, Result};
use serde::Deserialize;
use tokio_postgres::Client;

use super::places::Place;

/// Rows of a statement and a transaction, as of a batch of a projection.
const BATCH: u64 = 10_000;
/// Events of a page of the loop by hand.
const PAGE: usize = 1_000;

const CREATE: &str = "CREATE TABLE items (id bigint PRIMARY KEY, events bigint NOT NULL, amount bigint NOT NULL, \
                      name text NOT NULL)";
const POSTGRES_BULK: &str = include_str!("../../../sql/projections/upsert_items.sql");
const POSTGRES_ONE: &str = include_str!("../../../sql/projections/add_to_item.sql");
const SQLITE_ONE: &str = include_str!("../../../sql/projections/add_to_item_sqlite.sql");
const PLACE: &str = "CREATE TABLE place (position bigint NOT NULL)";

#[derive(Deserialize)]
struct Data {
    item: i64,
    amount: i64,
    name: String,
}

fn data(event: &RecordedEvent) -> Result<Data> {
    serde_json::from_slice(&event.data).context("data of an event")
}

/// Writes one row for each event, thousands in a statement and a transaction: the best that a projection could do.
pub(super) async fn in_bulk(place: &Place, events: u64, keys: u64) -> Result<f64> {
    let batches: Vec<(Vec<i64>, Vec<i64>, Vec<String>)> = (0..events)
        .step_by(usize::try_from(BATCH.min(keys))?)
        .map(|first| {
            let numbers = first..(first + BATCH.min(keys)).min(events);
            let items: Vec<i64> = numbers
                .map(|number| i64::try_from(number % keys).unwrap_or(0))
                .collect();
            let amounts = items.iter().map(|item| item % 97).collect();
            let names = items.iter();
            let names = names.map(|item| format!("item number {item} of many"));
            let names = names.collect();
            (items, amounts, names)
        })
        .collect();
    let begin;
    match place {
        Place::Postgres { url } => {
            let client = Place::connect(url).await?;
            client.batch_execute(CREATE).await.context(CREATE)?;
            let statement = client.prepare(POSTGRES_BULK).await?;
            begin = Instant::now();
            for (items, amounts, names) in &batches {
                client.execute(&statement, &[items, amounts, names]).await?;
            }
        }
        Place::Sqlite { folder } => {
            let mut connection = sqlite(folder)?;
            begin = Instant::now();
            for (items, amounts, names) in &batches {
                let transaction = connection.transaction()?;
                let mut statement = transaction.prepare_cached(SQLITE_ONE)?;
                for ((item, amount), name) in items.iter().zip(amounts).zip(names) {
                    statement.execute((item, amount, name))?;
                }
                drop(statement);
                transaction.commit()?;
            }
        }
    }
    Ok(events as f64 / begin.elapsed().as_secs_f64())
}

fn sqlite(folder: &std::path::Path) -> Result<rusqlite::Connection> {
    let connection = rusqlite::Connection::open(Place::rows_file(folder))?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(CREATE)?;
    connection.execute_batch(PLACE)?;
    connection.execute("INSERT INTO place VALUES (0)", [])?;
    Ok(connection)
}

/// Reads pages, and applies each event in a transaction with its position, as is written by hand.
pub(super) async fn by_hand(
    place: &Place,
    store: &Arc<dyn EventStore>,
    events: u64,
) -> Result<f64> {
    let mut writer = Writer::open(place).await?;
    let (begin, mut applied) = (Instant::now(), 0);
    let mut from = AllFrom::Start;
    while applied < events {
        let limit = PAGE.min(usize::try_from(events - applied)?);
        let request = ReadAll::forwards().from(from).limit(limit);
        let page = store.read_all(request).await?;
        for event in &page.events {
            writer.apply(event).await?;
            applied += 1;
        }
        if page.end {
            break;
        }
        from = AllFrom::Checkpoint(page.next);
    }
    Ok(applied as f64 / begin.elapsed().as_secs_f64())
}

enum Writer {
    Postgres(Box<(Client, tokio_postgres::Statement, tokio_postgres::Statement)>),
    Sqlite(rusqlite::Connection),
}

impl Writer {
    async fn open(place: &Place) -> Result<Self> {
        match place {
            Place::Postgres { url } => {
                let client = Place::connect(url).await?;
                client.batch_execute(CREATE).await.context(CREATE)?;
                client.batch_execute(PLACE).await.context(PLACE)?;
                client.batch_execute("INSERT INTO place VALUES (0)").await?;
                let add = client.prepare(POSTGRES_ONE).await?;
                let moved = client.prepare("UPDATE place SET position = $1").await?;
                Ok(Self::Postgres(Box::new((client, add, moved))))
            }
            Place::Sqlite { folder } => Ok(Self::Sqlite(sqlite(folder)?)),
        }
    }

    async fn apply(&mut self, event: &RecordedEvent) -> Result<()> {
        let data = data(event)?;
        let position = i64::try_from(event.position.0)?;
        match self {
            Self::Postgres(open) => {
                let (client, add, moved) = &mut **open;
                let transaction = client.transaction().await?;
                transaction
                    .execute(add, &[&data.item, &data.amount, &data.name])
                    .await?;
                transaction.execute(moved, &[&position]).await?;
                transaction.commit().await?;
            }
            Self::Sqlite(connection) => {
                let transaction = connection.transaction()?;
                transaction.prepare_cached(SQLITE_ONE)?.execute((
                    data.item,
                    data.amount,
                    data.name,
                ))?;
                transaction
                    .prepare_cached("UPDATE place SET position = ?1")?
                    .execute([position])?;
                transaction.commit()?;
            }
        }
        Ok(())
    }
}
