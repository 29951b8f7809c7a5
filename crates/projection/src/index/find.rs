//! Finds events by the values of an index.

use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{EventStore, LogId, Position, RecordedEvent};

use super::pick::{Path, Scalar, pick};
use super::work::{keep, text};
use super::{Index, IndexPath};
use crate::control::Control;
use crate::error::Error;
use crate::one_log::next_in_log;
use crate::target::Target;
use crate::value::{Kind, OwnedValue};

/// Largest number of events of a page.
pub const INDEX_PAGE_MAX: usize = 1_000;

/// What is asked of an index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Find {
    /// Paths and the texts of the values that they lead to: all must be so, at least one is given.
    pub values: Vec<(String, String)>,
    /// The place after which the page begins: that of the last event of the page before.
    pub after: Option<(LogId, Position)>,
    /// Largest number of events: 1 to [`INDEX_PAGE_MAX`].
    pub limit: usize,
}

/// A page of the events that an index finds.
#[derive(Clone, PartialEq, Debug)]
pub struct FoundEvents {
    /// The events, at most [`PAGE_BYTES_MAX`] bytes and one event more.
    ///
    /// [`PAGE_BYTES_MAX`]: gesta_core::limits::PAGE_BYTES_MAX
    pub events: Vec<RecordedEvent>,
    /// The place after which the next page begins; `None` if there is none.
    pub next: Option<(LogId, Position)>,
}

fn value(path: &IndexPath, given: &str) -> Result<OwnedValue, Error> {
    let wrong = |what: &str| {
        Error::Invalid(format!(
            "the values of {} are {what}, found {given:?}",
            path.path()
        ))
    };
    let scalar = match path.kind() {
        Kind::Bool => {
            let value = given.parse().map_err(|_| wrong("true or false"))?;
            Scalar::Bool(value)
        }
        Kind::Int => Scalar::Int(given.parse().map_err(|_| wrong("whole numbers"))?),
        Kind::Float => {
            let number: f64 = given.parse().map_err(|_| wrong("numbers"))?;
            Scalar::Float(number)
        }
        _ => return Ok(OwnedValue::Text(text(given.to_owned()))),
    };
    Ok(keep(path.kind(), scalar))
}

impl<T: Target> Control<T> {
    /// Returns the index of this name that readers see.
    ///
    /// # Errors
    /// `NotFound` if there is none of this name; `Invalid` if it is a projection with code; `Target` if the target does
    /// not answer.
    pub async fn index(&self, name: &str) -> Result<Index, Error> {
        let version = self.active(name).await?;
        Index::of_stored(&version)
            .ok_or_else(|| Error::Invalid(format!("{name} is no index: its rows are made by code")))
    }

    /// Finds the places of the events that have these values, in the order of log and position, as the rows of the
    /// index say. The index may be a moment behind the store. If the store was restored since, other events may have
    /// these places: [`find_events`](Self::find_events) leaves them out.
    ///
    /// # Errors
    /// As [`index`](Self::index); `Invalid` if a path is not one of the index, or a value not of its kind.
    pub async fn find(&self, name: &str, find: &Find) -> Result<Vec<(LogId, Position)>, Error> {
        let index = self.index(name).await?;
        let wanted = wanted(&index, find)?;
        self.places(&index, &wanted, find).await
    }

    /// Finds the events that have these values, in the order of log and position, a page at a time. The index may be a
    /// moment behind the store. An event that is stored no longer is left out, and so is one that has not these values:
    /// after a restore of the store other events may be in the places of those that the index was made of.
    ///
    /// # Errors
    /// As [`find`](Self::find); `Store` if the store does not answer.
    pub async fn find_events(
        &self,
        store: &dyn EventStore,
        name: &str,
        find: &Find,
    ) -> Result<FoundEvents, Error> {
        let index = self.index(name).await?;
        let wanted = wanted(&index, find)?;
        let places = self.places(&index, &wanted, find).await?;
        let (mut events, mut bytes, mut read) = (Vec::new(), 0, 0);
        for (log, position) in &places {
            if bytes >= PAGE_BYTES_MAX {
                break;
            }
            read += 1;
            let before = Position(position.0.saturating_sub(1));
            let event = next_in_log(store, *log, before).await?;
            let event = event.filter(|event| event.position == *position);
            if let Some(event) = event.filter(|event| has(&index, &wanted, event)) {
                bytes += event.data.len() + event.metadata.len();
                events.push(event);
            }
        }
        // A page that is full may have another one after it, in number or in bytes.
        let is_full = places.len() == find.limit || read < places.len();
        let next = places[..read].last().copied().filter(|_| is_full);
        Ok(FoundEvents { events, next })
    }

    async fn places(
        &self,
        index: &Index,
        wanted: &[(String, OwnedValue)],
        find: &Find,
    ) -> Result<Vec<(LogId, Position)>, Error> {
        let (table, target) = (index.table()?, self.target());
        Ok(target.find(&table, wanted, find.after, find.limit).await?)
    }
}

/// Returns the columns of an index and the values that are looked for in them.
fn wanted(index: &Index, find: &Find) -> Result<Vec<(String, OwnedValue)>, Error> {
    if find.values.is_empty() {
        let text = "say which value at which path is looked for, such as customer.id=7";
        return Err(Error::Invalid(text.to_owned()));
    }
    if !(1..=INDEX_PAGE_MAX).contains(&find.limit) {
        return Err(Error::Invalid(format!(
            "limit must be a number from 1 to {INDEX_PAGE_MAX}, found {}",
            find.limit
        )));
    }
    let mut wanted = Vec::with_capacity(find.values.len());
    for (path, given) in &find.values {
        let mut paths = index.paths().iter();
        let known = paths.find(|known| known.path() == *path).ok_or_else(|| {
            let paths: Vec<String> = index.paths().iter().map(IndexPath::path).collect();
            Error::Invalid(format!(
                "index {} has no path {path:?}, but {}",
                index.id().name,
                paths.join(", ")
            ))
        })?;
        wanted.push((known.column().to_owned(), value(known, given)?));
    }
    Ok(wanted)
}

/// Returns true if the index would have a row of this event with these values.
fn has(index: &Index, wanted: &[(String, OwnedValue)], event: &RecordedEvent) -> bool {
    if !index.of_filter().matches(event) {
        return false;
    }
    let paths: Vec<Path> = index
        .paths()
        .iter()
        .map(|path| path.names.clone())
        .collect();
    let Some(found) = pick(&event.data, &paths) else {
        return false;
    };
    let kept = index.paths().iter().zip(found);
    let kept: Vec<(&str, OwnedValue)> = kept
        .filter_map(|(path, scalar)| Some((path.column(), keep(path.kind(), scalar?))))
        .collect();
    wanted.iter().all(|(column, value)| {
        let mut of_column = kept.iter();
        of_column.any(|(kept, found)| kept == column && found == value)
    })
}
