//! Values of columns, on their way to SQLite and back.

use gesta_core::Timestamp;
use gesta_projection::{Kind, OwnedValue, Value};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Row, Statement, ToSql};
use uuid::Uuid;

use crate::error::{OrTarget, Result, unreadable};

/// Returns the type of a column. The tables are `STRICT`: SQLite refuses other values.
pub(crate) fn sql_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool | Kind::Int | Kind::Timestamp => "INTEGER",
        Kind::Float => "REAL",
        Kind::Text | Kind::Json => "TEXT",
        Kind::Bytes | Kind::Uuid => "BLOB",
    }
}

/// Binds a value to the parameter of this number, from 1.
pub(crate) fn bind(statement: &mut Statement<'_>, at: usize, value: Value<'_>) -> Result<()> {
    statement.raw_bind_parameter(at, Bound(value)).or_target()
}

struct Bound<'a>(Value<'a>);

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match &self.0 {
            Value::Null => ToSqlOutput::Owned(rusqlite::types::Value::Null),
            Value::Bool(value) => ToSqlOutput::from(i64::from(*value)),
            Value::Int(value) => ToSqlOutput::from(*value),
            Value::Float(value) => ToSqlOutput::from(*value),
            Value::Text(text) | Value::Json(text) => ToSqlOutput::from(*text),
            Value::Bytes(bytes) => ToSqlOutput::from(*bytes),
            Value::Uuid(uuid) => ToSqlOutput::Borrowed(ValueRef::Blob(uuid.as_bytes())),
            Value::Timestamp(at) => ToSqlOutput::from(at.as_micros()),
        })
    }
}

/// Reads the value of a column.
pub(crate) fn read(row: &Row<'_>, at: usize, kind: Kind) -> Result<OwnedValue> {
    let stored = row.get_ref(at).or_target()?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    Ok(match (kind, stored) {
        (_, ValueRef::Null) => OwnedValue::Null,
        (Kind::Bool, ValueRef::Integer(value)) => OwnedValue::Bool(value != 0),
        (Kind::Int, ValueRef::Integer(value)) => OwnedValue::Int(value),
        (Kind::Timestamp, ValueRef::Integer(value)) => OwnedValue::Timestamp(Timestamp(value)),
        (Kind::Float, ValueRef::Real(value)) => OwnedValue::Float(value),
        (Kind::Text, ValueRef::Text(bytes)) => {
            OwnedValue::Text(text(bytes).map_err(|error| unreadable("a text", error))?)
        }
        (Kind::Json, ValueRef::Text(bytes)) => {
            OwnedValue::Json(text(bytes).map_err(|error| unreadable("a text", error))?)
        }
        (Kind::Bytes, ValueRef::Blob(bytes)) => OwnedValue::Bytes(bytes.to_vec()),
        (Kind::Uuid, ValueRef::Blob(bytes)) => {
            OwnedValue::Uuid(Uuid::from_slice(bytes).map_err(|error| unreadable("a UUID", error))?)
        }
        (kind, other) => {
            let found = format!("found {}", other.data_type());
            return Err(unreadable(
                &format!("a value of kind {}", kind.name()),
                found,
            ));
        }
    })
}
