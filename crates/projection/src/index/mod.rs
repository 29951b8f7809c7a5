//! Indexes: the values of JSON paths of events, in a table, without code.
//!
//! Why: who looks for events by what is in them asks for a few fields, and should not have to write a view for that.
//! Invariants: a row for each event in which a path leads to a value, known by the event's place; so nothing is read
//! before it is written. What is no JSON has no row. An index never stops for an event.
//! Not here: how a database finds rows by a value (`Target::find`).

mod find;
mod pick;
mod work;

use std::fmt;
use std::str::FromStr;

use gesta_core::Filter;
use serde::{Deserialize, Serialize};

use crate::definition::{ProjectionId, Table, check_name};
use crate::error::Error;
use crate::value::{Column, Kind};

pub use find::{Find, FoundEvents, INDEX_PAGE_MAX};
pub(crate) use work::IndexUnit;

/// Largest number of paths of an index.
pub const INDEX_PATHS_MAX: usize = 16;
/// Longest text that is kept of a value, in bytes: databases cannot index longer ones. Longer texts are cut.
pub const INDEX_TEXT_BYTES_MAX: usize = 1_000;
/// Columns of every index, beside those of its paths.
pub(crate) const KEY: [&str; 2] = ["log", "position"];
pub(crate) const EVENT: [&str; 3] = ["stream", "revision", "event_type"];

/// A path of an index, and what its values are. Its text is `customer.id`, or with a kind `total:number`: `text`
/// (without one), `number`, `int` or `bool`. A path of which no name of a column can be made gets one:
/// `customer.e-mail=email`, or `größe:int=size`. What is in a list has no path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexPath {
    names: Vec<String>,
    column: String,
    kind: Kind,
}

impl IndexPath {
    /// Returns the path without its kind.
    #[must_use]
    pub fn path(&self) -> String {
        self.names.join(".")
    }

    /// Returns the name of the column that keeps its values: unless the text names one, the path, with `_` for the
    /// dots, and in lower case.
    #[must_use]
    pub fn column(&self) -> &str {
        &self.column
    }

    /// Returns what its values are.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

const KINDS: [(&str, Kind); 4] = [
    ("text", Kind::Text),
    ("number", Kind::Float),
    ("int", Kind::Int),
    ("bool", Kind::Bool),
];

impl FromStr for IndexPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (spec, named) = match text.split_once('=') {
            Some((spec, column)) => (spec, Some(column)),
            None => (text, None),
        };
        let (path, kind) = spec.split_once(':').unwrap_or((spec, "text"));
        let known = KINDS.iter().find(|(name, _)| *name == kind);
        let (_, kind) = known.ok_or_else(|| {
            Error::Invalid(format!(
                "the kind of a path must be text, number, int or bool, found {kind:?} in {text:?}"
            ))
        })?;
        let names: Vec<String> = path.split('.').map(str::to_owned).collect();
        let is_other_language = path.starts_with('$') || path.contains(['[', '/']);
        if names.iter().any(String::is_empty) || (is_other_language && named.is_none()) {
            return Err(Error::Invalid(format!(
                "a path must be names with dots between them, such as customer.id, found {path:?}; what is in a list has \
                 none"
            )));
        }
        let column = match named {
            Some(named) => {
                check_name(&format!("the column of path {path:?}"), named)?;
                named.to_owned()
            }
            None => {
                let column = column_of(path);
                check_name("a column", &column).map_err(|error| {
                    Error::Invalid(format!(
                        "of path {path:?} no name of a column can be made ({error}); name one: {spec}=COLUMN"
                    ))
                })?;
                column
            }
        };
        Ok(Self {
            names,
            column,
            kind: *kind,
        })
    }
}

impl fmt::Display for IndexPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = KINDS.iter().find(|(_, kind)| *kind == self.kind);
        let kind = kind.map_or("text", |(name, _)| name);
        let path = self.path();
        write!(f, "{path}:{kind}")?;
        // What was stored of an index before columns had names stays as it was.
        if self.column == column_of(&path) {
            return Ok(());
        }
        write!(f, "={}", self.column)
    }
}

/// Returns the name of a column that is made of a path.
fn column_of(path: &str) -> String {
    path.to_ascii_lowercase().replace('.', "_")
}

/// An index over the events of a store: for each event that has a value at one of its paths a row.
///
/// The rows are in the table `NAME_vVERSION`, which readers see as `NAME`: `log`, `position`, `stream`, `revision`,
/// `event_type`, and a column for each path, each with an index of the database.
#[derive(Clone, PartialEq, Debug)]
pub struct Index {
    name: String,
    version: u32,
    filter: Filter,
    paths: Vec<IndexPath>,
}

/// What is stored of an index.
#[derive(Serialize, Deserialize)]
struct Stored(Vec<String>);

impl Index {
    /// Begins an index of this name, version 1, of all events, without paths.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: 1,
            filter: Filter::ALL,
            paths: Vec::new(),
        }
    }

    /// Sets the version: another one is needed for other paths, or another filter.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Sets of which events it is.
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Adds a path.
    ///
    /// # Errors
    /// `Invalid` if it is no path, as [`IndexPath`] says.
    pub fn path(mut self, path: &str) -> Result<Self, Error> {
        self.paths.push(path.parse()?);
        Ok(self)
    }

    /// Returns the paths.
    #[must_use]
    pub fn paths(&self) -> &[IndexPath] {
        &self.paths
    }

    /// Returns name and version.
    #[must_use]
    pub fn id(&self) -> ProjectionId {
        ProjectionId {
            name: self.name.clone(),
            version: self.version,
        }
    }

    pub(crate) fn of_filter(&self) -> &Filter {
        &self.filter
    }

    /// Returns the text that is stored of its paths.
    pub(crate) fn definition(&self) -> String {
        let paths = self.paths.iter().map(IndexPath::to_string).collect();
        // A list of texts is always JSON.
        serde_json::to_string(&Stored(paths)).unwrap_or_default()
    }

    /// Makes an index again of what is stored of it; `None` if that is not an index, or one of a later program.
    #[must_use]
    pub fn of_stored(version: &crate::target::Stored) -> Option<Self> {
        let Stored(paths) = serde_json::from_str(version.definition.as_deref()?).ok()?;
        let paths = paths.iter().map(|path| path.parse().ok());
        Some(Self {
            name: version.id.name.clone(),
            version: version.id.version,
            filter: version.filter.clone()?,
            paths: paths.collect::<Option<_>>()?,
        })
    }

    /// Returns its table.
    ///
    /// # Errors
    /// `Invalid` if the name is not plain, there are no paths or too many, or two of them have the same column.
    pub fn table(&self) -> Result<Table, Error> {
        check_name("the name of an index", &self.name)?;
        if !(1..=INDEX_PATHS_MAX).contains(&self.paths.len()) {
            return Err(Error::Invalid(format!(
                "index {} must have 1 to {INDEX_PATHS_MAX} paths, found {}",
                self.name,
                self.paths.len()
            )));
        }
        let mut taken: Vec<&str> = [&KEY[..], &EVENT].concat();
        for path in &self.paths {
            if taken.contains(&path.column()) {
                return Err(Error::Invalid(format!(
                    "index {} has two columns {:?}: that of path {:?} is one of them",
                    self.name,
                    path.column(),
                    path.path()
                )));
            }
            taken.push(path.column());
        }
        let column = |name: &str, kind, nullable| Column {
            name: name.to_owned().into(),
            kind,
            nullable,
        };
        let kinds = [Kind::Text, Kind::Int, Kind::Text];
        let events = EVENT.iter().zip(kinds);
        let events = events.map(|(name, kind)| column(name, kind, false));
        let paths = self.paths.iter();
        let paths = paths.map(|path| column(path.column(), path.kind, true));
        Ok(Table {
            name: self.name.clone(),
            stored: self.id().stored_table(&self.name),
            key: KEY.map(|name| column(name, Kind::Int, false)).to_vec(),
            columns: events.chain(paths).collect(),
            indexed: self.paths.iter().map(|path| path.column.clone()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_and_written() {
        let path: IndexPath = "Customer.Id".parse().expect("a path");
        assert_eq!((path.column(), path.kind()), ("customer_id", Kind::Text));
        assert_eq!(path.to_string(), "Customer.Id:text");
        for (wrong, why) in [
            ("a:date", "found \"date\""),
            ("a..b", "found \"a..b\""),
            ("", "names with dots"),
            ("größe", "of path \"größe\" no name of a column can be made"),
            ("a b:int", "name one: a b:int=COLUMN"),
            ("$.a", "such as customer.id, found \"$.a\""),
            ("items[0].id", "what is in a list has none"),
            (
                "e-mail=E-Mail",
                "the column of path \"e-mail\" must be a lower-case",
            ),
        ] {
            let error = wrong.parse::<IndexPath>().expect_err("refused").to_string();
            assert!(error.contains(why), "{error}");
        }
        // Any name of a member can be indexed, under the name of a column of one's own.
        for (text, path, column, kind) in [
            ("customer.e-mail=email", "customer.e-mail", "email", "text"),
            ("größe:int=size", "größe", "size", "int"),
            ("$.a=a", "$.a", "a", "text"),
        ] {
            let read: IndexPath = text.parse().expect(text);
            assert_eq!((&*read.path(), read.column()), (path, column));
            assert_eq!(read.to_string(), format!("{path}:{kind}={column}"));
            assert_eq!(read.to_string().parse::<IndexPath>().expect(text), read);
        }
        let same: IndexPath = "a.b=a_b".parse().expect("a path");
        assert_eq!(same.to_string(), "a.b:text");
    }

    #[test]
    fn an_index_has_a_table_of_plain_columns() {
        let index = Index::new("orders").path("customer.id").expect("a path");
        let index = index.path("total:number").expect("a path");
        let table = index.table().expect("a table");
        let names: Vec<&str> = table.columns.iter().map(|c| &*c.name).collect();
        assert_eq!(
            names,
            ["stream", "revision", "event_type", "customer_id", "total"]
        );
        assert_eq!(table.indexed, ["customer_id", "total"]);
        assert_eq!(index.definition(), r#"["customer.id:text","total:number"]"#);
        let twice = index.path("customer_id").expect("a path").table();
        assert!(
            twice
                .expect_err("refused")
                .to_string()
                .contains("two columns")
        );
        let none = Index::new("orders").table().expect_err("refused");
        assert!(
            none.to_string().contains("1 to 16 paths, found 0"),
            "{none}"
        );
        let taken = Index::new("orders")
            .path("position")
            .expect("a path")
            .table();
        taken.expect_err("every index has this column");
    }
}
