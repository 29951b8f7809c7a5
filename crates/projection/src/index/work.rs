//! How an index is kept: its rows are made in memory, and written as those of a view are.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use gesta_core::{Filter, RecordedEvent};

use super::pick::{Path, Scalar, pick};
use super::{INDEX_TEXT_BYTES_MAX, Index};
use crate::batch::Batch;
use crate::config::{Config, OnPoison};
use crate::definition::{ProjectionId, Table};
use crate::drive::{Context, drive};
use crate::error::Error;
use crate::fault::{Fault, at};
use crate::row::Cells;
use crate::target::{Session, Target};
use crate::unit::Unit;
use crate::value::{Kind, OwnedValue, Value};
use crate::work::{Fold, Folded, Work, Writer, parked};

/// An index, as a process runs it.
pub(crate) struct IndexUnit(pub(crate) Index);

impl<T: Target> Unit<T> for IndexUnit {
    fn definition(&self) -> Result<(ProjectionId, Option<Table>, Vec<String>), Error> {
        let table = self.0.table()?;
        let name = table.name.clone();
        Ok((self.0.id(), Some(table), vec![name]))
    }

    fn filter(&self) -> Filter {
        self.0.of_filter().clone()
    }

    fn stored_definition(&self) -> Option<String> {
        Some(self.0.definition())
    }

    fn run(self: Arc<Self>, mut context: Context<T>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // The table was made when the index was registered.
            let Ok(table) = self.0.table() else { return };
            // Nobody can put the code right: what the database refuses is recorded, and left out.
            let mut config = Config::clone(&context.config);
            config.on_poison = OnPoison::Skip;
            context.config = Arc::new(config);
            let (table, paths) = (Arc::new(table), self.0.paths());
            let kinds: Arc<[Kind]> = paths.iter().map(|path| path.kind).collect();
            let paths: Arc<[Path]> = paths.iter().map(|path| path.names.clone()).collect();
            let make = || IndexWork {
                table: Arc::clone(&table),
                paths: Arc::clone(&paths),
                kinds: Arc::clone(&kinds),
            };
            drive(&context, make).await;
        })
    }
}

struct IndexWork {
    table: Arc<Table>,
    paths: Arc<[Path]>,
    kinds: Arc<[Kind]>,
}

/// The rows of a batch, each with the values of all columns.
pub(crate) struct Rows(Vec<Vec<OwnedValue>>);

impl Cells for Rows {
    fn rows(&self) -> usize {
        self.0.len()
    }

    fn cell(&self, row: usize, column: usize) -> Value<'_> {
        self.0[row][column].value()
    }
}

/// Makes of a value what its column keeps; nothing if it is of another kind.
pub(super) fn keep(kind: Kind, value: Scalar) -> OwnedValue {
    match (kind, value) {
        (Kind::Bool, Scalar::Bool(value)) => OwnedValue::Bool(value),
        (Kind::Int, Scalar::Int(value)) => OwnedValue::Int(value),
        (Kind::Float, Scalar::Int(value)) => OwnedValue::Float(value as f64),
        (Kind::Float, Scalar::Float(value)) => OwnedValue::Float(value),
        (Kind::Text, Scalar::Text(value)) => OwnedValue::Text(text(value)),
        (Kind::Text, Scalar::Int(value)) => OwnedValue::Text(value.to_string()),
        (Kind::Text, Scalar::Float(value)) => OwnedValue::Text(value.to_string()),
        (Kind::Text, Scalar::Bool(value)) => OwnedValue::Text(value.to_string()),
        _ => OwnedValue::Null,
    }
}

/// Makes a text that every database keeps and indexes.
pub(super) fn text(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(INDEX_TEXT_BYTES_MAX));
    match text.contains('\0') {
        // PostgreSQL has no text with it.
        true => text.replace('\0', "\u{fffd}"),
        false => text,
    }
}

impl IndexWork {
    fn row(&self, event: &RecordedEvent) -> Option<Vec<OwnedValue>> {
        let found = pick(&event.data, &self.paths)?;
        if found.iter().all(Option::is_none) {
            return None;
        }
        let int = |number: u64| OwnedValue::Int(i64::try_from(number).unwrap_or(i64::MAX));
        let text = |text: &str| OwnedValue::Text(text.to_owned());
        let mut row = Vec::with_capacity(5 + found.len());
        row.extend([
            OwnedValue::Int(i64::from(event.log.0)),
            int(event.position.0),
            text(event.stream.as_str()),
            int(event.revision.0),
            text(event.event_type.as_str()),
        ]);
        let values = self.kinds.iter().zip(found);
        row.extend(values.map(|(kind, value)| value.map_or(OwnedValue::Null, |v| keep(*kind, v))));
        Some(row)
    }
}

impl<T: Target> Work<T> for IndexWork {
    type Output = Rows;
    type Writer = IndexWriter;

    fn writer(&self) -> IndexWriter {
        IndexWriter(Arc::clone(&self.table))
    }

    fn begin(&mut self, _: HashSet<String>, _: bool) {}

    fn is_full(&self) -> bool {
        false
    }

    fn forget(&mut self) {}

    async fn fold(&mut self, batch: Batch, how: Fold<'_>) -> Result<Folded<Rows>, Fault> {
        let (mut rows, mut aside) = (Vec::with_capacity(batch.len()), Vec::new());
        for event in batch.events() {
            match how {
                Fold::InOrder(verdicts) if verdicts.contains_key(&at(event)) => {
                    aside.push(parked(event, None, verdicts.get(&at(event))));
                }
                _ => rows.extend(self.row(event)),
            }
        }
        let events = batch.len() - aside.len();
        Ok(Folded {
            to: batch.to.clone(),
            span: batch.len(),
            first: batch.first(),
            events: u64::try_from(events).unwrap_or(u64::MAX),
            caught_up: batch.caught_up,
            parked: aside,
            hidden_fronts: 0,
            output: Rows(rows),
        })
    }
}

#[derive(Clone)]
pub(crate) struct IndexWriter(Arc<Table>);

/// No rows.
struct Nothing;

impl Cells for Nothing {
    fn rows(&self) -> usize {
        0
    }

    fn cell(&self, _: usize, _: usize) -> Value<'_> {
        Value::Null
    }
}

impl<T: Target> Writer<T> for IndexWriter {
    type Output = Rows;
    const CREATES: bool = false;

    /// The target has made the table when it registered the index.
    async fn create(&self, _: &mut T::Session) -> Result<(), Fault> {
        Ok(())
    }

    async fn write(&self, session: &mut T::Session, rows: &Rows) -> Result<(), Fault> {
        if rows.0.is_empty() {
            return Ok(());
        }
        let written = session.write(&self.0, rows, &Nothing);
        written.await.map_err(Fault::of_writing)
    }

    async fn clear(&self, session: &mut T::Session) -> Result<(), Fault> {
        let cleared = session.clear(Some(&self.0)).await;
        cleared.map_err(Fault::of_writing)
    }
}
