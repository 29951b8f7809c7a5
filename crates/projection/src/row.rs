//! Keys and rows of a view, and how a target sees many of them.

use std::hash::Hash;

use gesta_core::Timestamp;
use uuid::Uuid;

use crate::error::ApplyError;
use crate::value::{Cell, Kind, OwnedValue, Value};

/// What tells the rows of a view apart: one value, or a tuple of up to three.
pub trait Key: Clone + Eq + Ord + Hash + Send + Sync + 'static {
    /// What each column of the key holds, in order.
    const KINDS: &'static [Kind];

    /// Returns the value of a column of the key.
    fn value(&self, column: usize) -> Value<'_>;

    /// Makes the key again of what its columns hold.
    ///
    /// # Errors
    /// If a column holds another kind of value, or one out of range.
    fn read(stored: &mut dyn Iterator<Item = OwnedValue>) -> Result<Self, ApplyError>;

    /// Returns a text that tells this key from all others of the view. People see it, and parked events are kept by it.
    fn text(&self) -> String {
        let mut text = String::new();
        for column in 0..Self::KINDS.len() {
            if column > 0 {
                text.push('|');
            }
            match self.value(column) {
                // A separator within a text is doubled by an escape, so that two keys never look the same.
                Value::Text(part) | Value::Json(part) => {
                    let part = part.replace('\\', "\\\\").replace('|', "\\|");
                    // PostgreSQL has no text with it.
                    text.push_str(&part.replace('\0', "\\0"));
                }
                Value::Bytes(bytes) => bytes
                    .iter()
                    .for_each(|byte| text.push_str(&format!("{byte:02x}"))),
                Value::Null => {}
                Value::Bool(value) => text.push_str(if value { "true" } else { "false" }),
                Value::Int(value) => text.push_str(&value.to_string()),
                Value::Float(value) => text.push_str(&value.to_string()),
                Value::Uuid(value) => text.push_str(&value.to_string()),
                Value::Timestamp(value) => text.push_str(&value.to_string()),
            }
        }
        text
    }
}

fn next<C: Cell>(stored: &mut dyn Iterator<Item = OwnedValue>) -> Result<C, ApplyError> {
    let value = stored.next();
    let value =
        value.ok_or_else(|| ApplyError::text("the table has fewer columns than the row"))?;
    C::read(value)
}

/// Reads one column. For [`columns!`](crate::columns).
#[doc(hidden)]
pub fn read_cell<C: Cell>(stored: &mut dyn Iterator<Item = OwnedValue>) -> Result<C, ApplyError> {
    next(stored)
}

macro_rules! one_column {
    ($($type:ty),+) => {
        $(impl Key for $type {
            const KINDS: &'static [Kind] = &[<$type as Cell>::KIND];

            fn value(&self, _: usize) -> Value<'_> {
                Cell::value(self)
            }

            fn read(stored: &mut dyn Iterator<Item = OwnedValue>) -> Result<Self, ApplyError> {
                next(stored)
            }
        })+
    };
}

one_column!(bool, i64, i32, u32, String, Vec<u8>, Uuid, Timestamp);

macro_rules! tuple {
    ($($type:ident $at:tt),+) => {
        impl<$($type: Cell + Clone + Eq + Ord + Hash + Send + Sync + 'static),+> Key for ($($type,)+) {
            const KINDS: &'static [Kind] = &[$($type::KIND),+];

            fn value(&self, column: usize) -> Value<'_> {
                match column {
                    $($at => self.$at.value(),)+
                    _ => Value::Null,
                }
            }

            fn read(stored: &mut dyn Iterator<Item = OwnedValue>) -> Result<Self, ApplyError> {
                Ok(($(next::<$type>(stored)?,)+))
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);

/// A row of a view without its key. The macro [`columns!`](crate::columns) makes one.
pub trait Row: Clone + PartialEq + Send + Sync + 'static {
    /// The columns, in order.
    const COLUMNS: &'static [crate::value::Column];

    /// Returns the value of a column.
    fn value(&self, column: usize) -> Value<'_>;

    /// Makes the row again of what its columns hold.
    ///
    /// # Errors
    /// If a column holds another kind of value, or one out of range.
    fn read(stored: &mut dyn Iterator<Item = OwnedValue>) -> Result<Self, ApplyError>;

    /// Returns the memory that the row takes, roughly, in bytes.
    fn cost_bytes(&self) -> usize {
        let columns = 0..Self::COLUMNS.len();
        let heap: usize = columns.map(|column| self.value(column).heap_bytes()).sum();
        std::mem::size_of::<Self>() + heap
    }
}

/// Defines the row of a view: a struct whose fields are the columns of its table.
///
/// A field is of a type that implements [`Cell`](crate::Cell), or an `Option` of one.
///
/// ```
/// gesta_projection::columns! {
///     /// One row per show.
///     pub struct SeatsRow {
///         /// The film.
///         pub title: String,
///         /// Seats that nobody has reserved.
///         pub free: i64,
///     }
/// }
/// let row = SeatsRow { title: "Metropolis".into(), free: 100 };
/// assert_eq!(<SeatsRow as gesta_projection::Row>::COLUMNS[1].name, "free");
/// # let _ = row;
/// ```
#[macro_export]
macro_rules! columns {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Debug)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type),+
        }

        impl $crate::Row for $name {
            const COLUMNS: &'static [$crate::Column] = &[$($crate::Column {
                name: ::std::borrow::Cow::Borrowed(stringify!($field)),
                kind: <$type as $crate::Cell>::KIND,
                nullable: <$type as $crate::Cell>::NULLABLE,
            }),+];

            fn value(&self, column: usize) -> $crate::Value<'_> {
                let mut at = 0;
                $(if column == at {
                    return $crate::Cell::value(&self.$field);
                }
                at += 1;)+
                let _ = at;
                $crate::Value::Null
            }

            fn read(
                stored: &mut dyn Iterator<Item = $crate::OwnedValue>,
            ) -> ::core::result::Result<Self, $crate::ApplyError> {
                Ok(Self { $($field: $crate::read_cell(stored)?),+ })
            }
        }
    };
}

/// Many rows of values, as a target sees them.
pub trait Cells: Send + Sync {
    /// Returns the number of rows.
    fn rows(&self) -> usize;

    /// Returns a value. Of rows to write, the columns of the key come first; of keys, there are no others.
    fn cell(&self, row: usize, column: usize) -> Value<'_>;
}

/// Keys and rows, each key once.
#[derive(Clone, Debug)]
pub struct KeyedRows<K, R>(pub Vec<(K, R)>);

impl<K: Key, R: Row> Cells for KeyedRows<K, R> {
    fn rows(&self) -> usize {
        self.0.len()
    }

    fn cell(&self, row: usize, column: usize) -> Value<'_> {
        let (key, rest) = &self.0[row];
        match column.checked_sub(K::KINDS.len()) {
            None => key.value(column),
            Some(column) => rest.value(column),
        }
    }
}

/// Keys, each once.
#[derive(Clone, Debug)]
pub struct Keys<K>(pub Vec<K>);

impl<K: Key> Cells for Keys<K> {
    fn rows(&self) -> usize {
        self.0.len()
    }

    fn cell(&self, row: usize, column: usize) -> Value<'_> {
        self.0[row].value(column)
    }
}

/// The rows that a target has found for some keys.
#[derive(Debug, Default)]
pub struct Found {
    at: Vec<usize>,
    values: Vec<OwnedValue>,
}

impl Found {
    /// Says that what is pushed next is the row of the key of this number, in [`Cells`]. Rows may come in any order.
    pub fn row_of(&mut self, key: usize) {
        self.at.push(key);
    }

    /// Adds the next value of the row, without the columns of the key.
    pub fn push(&mut self, value: OwnedValue) {
        self.values.push(value);
    }

    /// Makes rows of what was found, each with the number of its key.
    ///
    /// # Errors
    /// If a column holds another kind of value than the row has.
    pub(crate) fn into_rows<R: Row>(self) -> Result<Vec<(usize, R)>, ApplyError> {
        let mut values = self.values.into_iter();
        let rows = self.at.into_iter();
        rows.map(|key| Ok((key, R::read(&mut values)?))).collect()
    }
}
