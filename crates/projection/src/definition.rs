//! What a projection is, as it is registered: its name and version, its table, what its rows were made with.

use std::borrow::Cow;
use std::fmt;

use gesta_core::{Checkpoint, Filter, Query};

use crate::error::Error;
use crate::row::{Key, Row};
use crate::value::Column;
use crate::view::View;

/// Longest name of a projection, in bytes.
pub const NAME_BYTES_MAX: usize = 40;

/// A version of a projection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProjectionId {
    /// Name of the projection.
    pub name: String,
    /// Version of its code.
    pub version: u32,
}

impl fmt::Display for ProjectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} v{}", self.name, self.version)
    }
}

impl ProjectionId {
    /// Returns the name of the stored table of this version, for a name that readers use.
    #[must_use]
    pub fn stored_table(&self, name: &str) -> String {
        format!("{name}_v{}", self.version)
    }
}

/// Checks a name of a projection, a table or a column: it goes into SQL, so it has to be plain.
///
/// # Errors
/// `Invalid` if it is not a lower-case letter followed by lower-case letters, digits and `_`, or longer than 40 bytes.
pub fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let mut bytes = name.bytes();
    let plain = bytes.next().is_some_and(|first| first.is_ascii_lowercase())
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if plain && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{what} must be a lower-case letter and then lower-case letters, digits and _, at most {NAME_BYTES_MAX} \
         bytes, found {name:?}"
    )))
}

/// The table of a view, of one version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// The name that readers use, that of the view.
    pub name: String,
    /// The name of the stored table.
    pub stored: String,
    /// The columns of the key.
    pub key: Vec<Column>,
    /// The other columns.
    pub columns: Vec<Column>,
    /// Names of columns by whose values rows are found: each gets an index of the database.
    pub indexed: Vec<String>,
}

impl Table {
    /// Returns the table of a view.
    ///
    /// # Errors
    /// `Invalid` if a name is not plain, comes twice, or the key has other names than columns.
    pub fn of<V: View>() -> Result<Self, Error> {
        Self::named::<V>(V::NAME)
    }

    /// Returns the table of a view under another name than its own.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub(crate) fn named<V: View>(name: &str) -> Result<Self, Error> {
        check_name("the name of a view", name)?;
        let kinds = <V::Key as Key>::KINDS;
        if kinds.len() != V::KEY.len() {
            return Err(Error::Invalid(format!(
                "view {name} must name the {} columns of its key, found {:?}",
                kinds.len(),
                V::KEY
            )));
        }
        let named = V::KEY.iter().zip(kinds);
        let key: Vec<Column> = named
            .map(|(name, kind)| Column {
                name: Cow::Borrowed(*name),
                kind: *kind,
                nullable: false,
            })
            .collect();
        let columns = <V::Row as Row>::COLUMNS.to_vec();
        let all: Vec<&str> = key.iter().chain(&columns).map(|c| &*c.name).collect();
        for (at, column) in all.iter().enumerate() {
            check_name("the name of a column", column)?;
            if all[..at].contains(column) {
                let text = format!("view {name} has two columns {column:?}");
                return Err(Error::Invalid(text));
            }
        }
        let name = name.to_owned();
        let stored = format!("{name}_v{}", V::VERSION);
        Ok(Self {
            name,
            stored,
            key,
            columns,
            indexed: Vec::new(),
        })
    }
}

/// What a process registers before it runs a projection.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Name and version.
    pub id: ProjectionId,
    /// The table of a view, which the target makes; `None` for a projection that makes its tables itself.
    pub table: Option<Table>,
    /// The names that readers use, for which the target keeps SQL views: those of the table, or those of the
    /// projection.
    pub read_as: Vec<String>,
    /// What the rows are made with: a hash of filter and columns. Another one under the same version is refused.
    pub made_with: i64,
    /// Which events the rows are made of. It is stored for whoever looks at the version.
    pub filter: Filter,
    /// What the rows of an index are made of, as JSON; `None` for code.
    pub definition: Option<String>,
    /// The place to begin at: the start of all logs, or the floor.
    pub start: Checkpoint,
}

/// Returns a hash of the filter and the columns: FNV-1a with 64 bits, over texts that never change.
#[must_use]
pub fn made_with(filter: &Filter, table: Option<&Table>) -> i64 {
    let mut text = String::new();
    let mut put = |kind: &str, value: &str| {
        text.push_str(&format!("{kind}{}:{value}", value.len()));
    };
    for query in &filter.any_of {
        put("query", "");
        query.types.iter().for_each(|t| put("type", t.as_str()));
        query.tags.iter().for_each(|t| put("tag", t.as_str()));
        query.stream_prefixes.iter().for_each(|p| put("prefix", p));
        query.categories.iter().for_each(|c| put("category", c));
    }
    for column in table.iter().flat_map(|t| t.key.iter().chain(&t.columns)) {
        put("column", &column.name);
        put(
            column.kind.name(),
            if column.nullable { "null" } else { "" },
        );
    }
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash.cast_signed()
}

/// Makes the filter of the events of the streams of one category: of streams `category-…`.
#[must_use]
pub fn category(category: &str) -> Filter {
    Filter::query(Query {
        categories: vec![category.to_owned()],
        ..Query::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApplyError;
    use gesta_core::{EventType, RecordedEvent};

    crate::columns! {
        struct Pair {
            title: String,
            note: Option<i64>,
        }
    }

    macro_rules! view {
        ($name:ident, $view:literal, $key:expr) => {
            struct $name;

            impl View for $name {
                const NAME: &'static str = $view;
                const VERSION: u32 = 3;
                const KEY: &'static [&'static str] = $key;
                type Key = (String, i64);
                type Row = Pair;

                fn filter(&self) -> Filter {
                    Filter::ALL
                }

                fn key(&self, _: &RecordedEvent) -> Option<(String, i64)> {
                    None
                }

                fn evolve(
                    &self,
                    _: &mut Option<Pair>,
                    _: &RecordedEvent,
                ) -> Result<(), ApplyError> {
                    Ok(())
                }
            }
        };
    }

    view!(Good, "good", &["tenant", "id"]);
    view!(Odd, "Drop table", &["tenant", "id"]);
    view!(Short, "short", &["id"]);
    view!(Twice, "twice", &["tenant", "title"]);
    view!(Quoted, "quoted", &["tenant", "id\""]);

    #[test]
    fn wrong_names_are_refused() {
        let table = Table::of::<Good>().expect("plain");
        assert_eq!(
            (table.stored.as_str(), table.columns[1].nullable),
            ("good_v3", true)
        );
        let other = Table::named::<Good>("other").expect("plain");
        assert_eq!(
            (other.name, other.stored),
            ("other".into(), "other_v3".into())
        );
        Table::named::<Good>("Other").expect_err("not plain");
        for (wrong, why) in [
            (Table::of::<Odd>(), "found \"Drop table\""),
            (Table::of::<Short>(), "must name the 2 columns of its key"),
            (Table::of::<Twice>(), "two columns \"title\""),
            (Table::of::<Quoted>(), "found \"id\\\"\""),
        ] {
            let error = wrong.expect_err("refused").to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    /// Goal: the hash never changes, for it is stored: another one would refuse every projection after an upgrade.
    #[test]
    fn what_rows_are_made_with_is_fixed_for_ever() {
        let table = Table::of::<Good>().expect("plain");
        let typed = Filter::query(Query {
            types: vec![EventType::new("noted").expect("valid")],
            ..Query::default()
        });
        let hashes = [
            made_with(&Filter::ALL, None),
            made_with(&category("show"), Some(&table)),
            made_with(&typed, Some(&table)),
        ];
        let expected = [
            -3_750_763_034_362_895_579,
            -3_934_324_142_714_035_965,
            -7_979_994_833_524_223_453,
        ];
        assert_eq!(hashes, expected);
    }

    /// Goal: two keys never have the same text, for parked events are found by it.
    #[test]
    fn texts_of_keys_differ() {
        let keys = [("a|b", 1), ("a", 1), ("a\\", 1), ("a\\|b", 1), ("", 1)];
        let mut texts: Vec<String> = keys
            .iter()
            .map(|(a, n)| ((*a).to_owned(), *n).text())
            .collect();
        assert_eq!(texts[0], "a\\|b|1");
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), keys.len());
    }
}
