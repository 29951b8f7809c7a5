//! Finds events by the values of an index.

use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{EventStore, LogId, Position, RecordedEvent};

use super::pick::Scalar;
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

    /// Finds the places of the events that have these values, in the order of log and position. The index may be a
    /// moment behind the store.
    ///
    /// # Errors
    /// As [`index`](Self::index); `Invalid` if a path is not one of the index, or a value not of its kind.
    pub async fn find(&self, name: &str, find: &Find) -> Result<Vec<(LogId, Position)>, Error> {
        let index = self.index(name).await?;
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
                    "index {name} has no path {path:?}, but {}",
                    paths.join(", ")
                ))
            })?;
            wanted.push((known.column().to_owned(), value(known, given)?));
        }
        let table = index.table()?;
        let target = self.target();
        Ok(target.find(&table, &wanted, find.after, find.limit).await?)
    }
}

/// Reads the events at these places, in order; those that are stored no longer are left out. Returns also of how many
/// places they are: of fewer than were given if the events have more than [`PAGE_BYTES_MAX`] bytes.
///
/// # Errors
/// `Store` if the store does not answer.
///
/// [`PAGE_BYTES_MAX`]: gesta_core::limits::PAGE_BYTES_MAX
pub async fn events_at(
    store: &dyn EventStore,
    places: &[(LogId, Position)],
) -> Result<(Vec<RecordedEvent>, usize), Error> {
    let (mut events, mut bytes) = (Vec::new(), 0);
    for (read, (log, position)) in places.iter().enumerate() {
        if bytes >= PAGE_BYTES_MAX {
            return Ok((events, read));
        }
        let before = Position(position.0.saturating_sub(1));
        let event = next_in_log(store, *log, before).await?;
        if let Some(event) = event.filter(|event| event.position == *position) {
            bytes += event.data.len() + event.metadata.len();
            events.push(event);
        }
    }
    Ok((events, places.len()))
}
