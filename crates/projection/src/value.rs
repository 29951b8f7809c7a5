//! Values of rows: what a column holds, and how a Rust type is kept in one.
//!
//! Why: a target writes the rows of any view in bulk, column by column, without knowing the type of the row, and
//! without a text or an allocation per cell.
//! Not here: keys and rows (`row`), SQL types (the targets).

use std::borrow::Cow;

use gesta_core::Timestamp;
use uuid::Uuid;

use crate::error::ApplyError;

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// True or false.
    Bool,
    /// A whole number of 64 bits.
    Int,
    /// A floating-point number of 64 bits.
    Float,
    /// Text.
    Text,
    /// Bytes.
    Bytes,
    /// A UUID.
    Uuid,
    /// A moment in UTC, to the microsecond.
    Timestamp,
    /// A JSON document.
    Json,
}

impl Kind {
    /// Returns the name of the kind, which is part of the hash by which a changed table is noticed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bool => "bool",
            Kind::Int => "int",
            Kind::Float => "float",
            Kind::Text => "text",
            Kind::Bytes => "bytes",
            Kind::Uuid => "uuid",
            Kind::Timestamp => "timestamp",
            Kind::Json => "json",
        }
    }
}

/// A column of a table of a view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Name of the column.
    pub name: Cow<'static, str>,
    /// What the column holds.
    pub kind: Kind,
    /// Whether the column may hold nothing.
    pub nullable: bool,
}

/// A value on its way to a target. It borrows from the row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value<'a> {
    /// Nothing.
    Null,
    /// A value of [`Kind::Bool`].
    Bool(bool),
    /// A value of [`Kind::Int`].
    Int(i64),
    /// A value of [`Kind::Float`].
    Float(f64),
    /// A value of [`Kind::Text`].
    Text(&'a str),
    /// A value of [`Kind::Bytes`].
    Bytes(&'a [u8]),
    /// A value of [`Kind::Uuid`].
    Uuid(Uuid),
    /// A value of [`Kind::Timestamp`].
    Timestamp(Timestamp),
    /// The text of a value of [`Kind::Json`].
    Json(&'a str),
}

impl Value<'_> {
    /// Returns the memory that the value takes beside its fixed part, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::Text(text) | Value::Json(text) => text.len(),
            Value::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// A value that comes from a target.
#[derive(Clone, PartialEq, Debug)]
pub enum OwnedValue {
    /// Nothing.
    Null,
    /// A value of [`Kind::Bool`].
    Bool(bool),
    /// A value of [`Kind::Int`].
    Int(i64),
    /// A value of [`Kind::Float`].
    Float(f64),
    /// A value of [`Kind::Text`].
    Text(String),
    /// A value of [`Kind::Bytes`].
    Bytes(Vec<u8>),
    /// A value of [`Kind::Uuid`].
    Uuid(Uuid),
    /// A value of [`Kind::Timestamp`].
    Timestamp(Timestamp),
    /// The text of a value of [`Kind::Json`].
    Json(String),
}

impl OwnedValue {
    /// Returns the value, borrowed.
    #[must_use]
    pub fn value(&self) -> Value<'_> {
        match self {
            OwnedValue::Null => Value::Null,
            OwnedValue::Bool(value) => Value::Bool(*value),
            OwnedValue::Int(value) => Value::Int(*value),
            OwnedValue::Float(value) => Value::Float(*value),
            OwnedValue::Text(value) => Value::Text(value),
            OwnedValue::Bytes(value) => Value::Bytes(value),
            OwnedValue::Uuid(value) => Value::Uuid(*value),
            OwnedValue::Timestamp(value) => Value::Timestamp(*value),
            OwnedValue::Json(value) => Value::Json(value),
        }
    }
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Null => OwnedValue::Null,
            Value::Bool(value) => OwnedValue::Bool(value),
            Value::Int(value) => OwnedValue::Int(value),
            Value::Float(value) => OwnedValue::Float(value),
            Value::Text(value) => OwnedValue::Text(value.to_owned()),
            Value::Bytes(value) => OwnedValue::Bytes(value.to_owned()),
            Value::Uuid(value) => OwnedValue::Uuid(value),
            Value::Timestamp(value) => OwnedValue::Timestamp(value),
            Value::Json(value) => OwnedValue::Json(value.to_owned()),
        }
    }
}

/// A type that one column can keep.
pub trait Cell: Sized {
    /// What the column holds.
    const KIND: Kind;
    /// Whether the column may hold nothing.
    const NULLABLE: bool = false;

    /// Returns the value that the column keeps.
    fn value(&self) -> Value<'_>;

    /// Makes the value again of what the column holds.
    ///
    /// # Errors
    /// If the column holds another kind of value, or one out of range.
    fn read(stored: OwnedValue) -> Result<Self, ApplyError>;
}

fn unexpected(kind: Kind, found: &OwnedValue) -> ApplyError {
    // The value itself is not shown: errors hold no payload.
    let found = match found {
        OwnedValue::Null => "nothing",
        OwnedValue::Bool(_) => "bool",
        OwnedValue::Int(_) => "int",
        OwnedValue::Float(_) => "float",
        OwnedValue::Text(_) => "text",
        OwnedValue::Bytes(_) => "bytes",
        OwnedValue::Uuid(_) => "uuid",
        OwnedValue::Timestamp(_) => "timestamp",
        OwnedValue::Json(_) => "json",
    };
    ApplyError::text(format!(
        "the table holds {found} where the row has {}",
        kind.name()
    ))
}

macro_rules! cell {
    ($type:ty, $kind:ident, $self:ident => $value:expr, $found:ident => $read:expr) => {
        impl Cell for $type {
            const KIND: Kind = Kind::$kind;

            fn value(&self) -> Value<'_> {
                let $self = self;
                Value::$kind($value)
            }

            fn read(stored: OwnedValue) -> Result<Self, ApplyError> {
                match stored {
                    OwnedValue::$kind($found) => $read,
                    other => Err(unexpected(Kind::$kind, &other)),
                }
            }
        }
    };
}

cell!(bool, Bool, v => *v, found => Ok(found));
cell!(i64, Int, v => *v, found => Ok(found));
cell!(i32, Int, v => i64::from(*v), found => i32::try_from(found).map_err(ApplyError::from));
cell!(u32, Int, v => i64::from(*v), found => u32::try_from(found).map_err(ApplyError::from));
cell!(f64, Float, v => *v, found => Ok(found));
cell!(String, Text, v => v.as_str(), found => Ok(found));
cell!(Vec<u8>, Bytes, v => v.as_slice(), found => Ok(found));
cell!(Uuid, Uuid, v => *v, found => Ok(found));
cell!(Timestamp, Timestamp, v => *v, found => Ok(found));
cell!(Json, Json, v => v.0.as_str(), found => Ok(Json(found)));

impl<C: Cell> Cell for Option<C> {
    const KIND: Kind = C::KIND;
    const NULLABLE: bool = true;

    fn value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Null, Cell::value)
    }

    fn read(stored: OwnedValue) -> Result<Self, ApplyError> {
        match stored {
            OwnedValue::Null => Ok(None),
            some => C::read(some).map(Some),
        }
    }
}

/// The text of a JSON document, as a column keeps it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Json(pub String);
