//! Values in PostgreSQL's binary format: parameters of statements, and columns of answers.
//!
//! Why by hand: a batch is sent column by column as arrays, without a value of the driver's types for each cell, and
//! the
//! bytes are the same for every driver. The formats are those of the `…send` functions of the types, which do not
//! change.

use gesta_core::Timestamp;
use gesta_projection::{Cells, Kind, OwnedValue, TargetError, TargetErrorKind, Value};
use uuid::Uuid;

use crate::failure::Failure;

/// Microseconds from 1970 to 2000, where PostgreSQL begins to count.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

const BOOL: u32 = 16;
const BYTEA: u32 = 17;
const JSON: u32 = 114;
const TIMESTAMPTZ: u32 = 1184;
const INT8: u32 = 20;
const FLOAT8: u32 = 701;
const TEXT: u32 = 25;
const UUID: u32 = 2950;
const INT8_ARRAY: u32 = 1016;
const TEXT_ARRAY: u32 = 1009;
const UUID_ARRAY: u32 = 2951;

/// A parameter of a statement: the number (OID) of its type, and its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// Number of the type in PostgreSQL's catalogue; those of built-in types never change.
    pub oid: u32,
    /// The value in binary format, or nothing.
    pub bytes: Option<Vec<u8>>,
}

impl Param {
    fn new(oid: u32, bytes: Vec<u8>) -> Self {
        let bytes = Some(bytes);
        Self { oid, bytes }
    }

    pub(crate) fn int(value: i64) -> Self {
        Self::new(INT8, value.to_be_bytes().to_vec())
    }

    pub(crate) fn boolean(value: bool) -> Self {
        Self::new(BOOL, vec![u8::from(value)])
    }

    /// Makes a parameter of a value, of the type that [`type_of`] says.
    pub(crate) fn value(value: &OwnedValue) -> Self {
        match value {
            OwnedValue::Null => Self::text_or_null(None),
            OwnedValue::Bool(value) => Self::boolean(*value),
            OwnedValue::Int(value) => Self::int(*value),
            OwnedValue::Float(value) => Self::new(FLOAT8, value.to_be_bytes().to_vec()),
            OwnedValue::Text(value) => Self::text(value),
            OwnedValue::Bytes(value) => Self::new(BYTEA, value.clone()),
            OwnedValue::Uuid(value) => Self::uuid(*value),
            OwnedValue::Timestamp(at) => Self::new(TIMESTAMPTZ, of_timestamp(*at).to_vec()),
            OwnedValue::Json(value) => Self::new(JSON, value.as_bytes().to_vec()),
        }
    }

    pub(crate) fn text(value: &str) -> Self {
        Self::new(TEXT, value.as_bytes().to_vec())
    }

    pub(crate) fn text_or_null(value: Option<&str>) -> Self {
        Self {
            oid: TEXT,
            bytes: value.map(|value| value.as_bytes().to_vec()),
        }
    }

    pub(crate) fn int_or_null(value: Option<i64>) -> Self {
        Self {
            oid: INT8,
            bytes: value.map(|value| value.to_be_bytes().to_vec()),
        }
    }

    pub(crate) fn uuid(value: Uuid) -> Self {
        Self::new(UUID, value.as_bytes().to_vec())
    }

    pub(crate) fn ints(values: impl ExactSizeIterator<Item = i64>) -> Self {
        let mut array = Array::new(INT8, values.len());
        values.for_each(|value| array.put(&value.to_be_bytes()));
        Self::new(INT8_ARRAY, array.finish())
    }

    pub(crate) fn uuids(values: impl ExactSizeIterator<Item = Uuid>) -> Self {
        let mut array = Array::new(UUID, values.len());
        values.for_each(|value| array.put(value.as_bytes()));
        Self::new(UUID_ARRAY, array.finish())
    }

    pub(crate) fn texts<'a>(values: impl ExactSizeIterator<Item = Option<&'a str>>) -> Self {
        let mut array = Array::new(TEXT, values.len());
        values.for_each(|value| match value {
            Some(text) => array.put(text.as_bytes()),
            None => array.put_null(),
        });
        Self::new(TEXT_ARRAY, array.finish())
    }

    /// Makes an array of a column of some rows.
    ///
    /// # Errors
    /// `Refused` if a cell holds another kind of value than the column.
    pub(crate) fn column(
        cells: &dyn Cells,
        rows: std::ops::Range<usize>,
        column: usize,
        kind: Kind,
    ) -> Result<Self, TargetError> {
        let wire = Wire::of(kind);
        let mut array = Array::new(wire.oid, rows.len());
        for row in rows {
            match (kind, cells.cell(row, column)) {
                (_, Value::Null) => array.put_null(),
                (Kind::Bool, Value::Bool(value)) => array.put(&[u8::from(value)]),
                (Kind::Int, Value::Int(value)) => array.put(&value.to_be_bytes()),
                (Kind::Float, Value::Float(value)) => array.put(&value.to_be_bytes()),
                (Kind::Text, Value::Text(text)) | (Kind::Json, Value::Json(text)) => {
                    array.put(text.as_bytes());
                }
                (Kind::Bytes, Value::Bytes(bytes)) => array.put(bytes),
                (Kind::Uuid, Value::Uuid(uuid)) => array.put(uuid.as_bytes()),
                (Kind::Timestamp, Value::Timestamp(at)) => {
                    array.put(&of_timestamp(at));
                }
                (kind, _) => {
                    let text = format!("a row holds another kind of value than {}", kind.name());
                    return Err(TargetError::new(TargetErrorKind::Refused, text));
                }
            }
        }
        Ok(Self::new(wire.array_oid, array.finish()))
    }
}

/// How PostgreSQL keeps a kind of values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) sql: &'static str,
    oid: u32,
    array_oid: u32,
}

impl Wire {
    pub(crate) fn of(kind: Kind) -> Self {
        let (sql, oid, array_oid) = match kind {
            Kind::Bool => ("boolean", BOOL, 1000),
            Kind::Int => ("bigint", INT8, INT8_ARRAY),
            Kind::Float => ("double precision", FLOAT8, 1022),
            Kind::Text => ("text", TEXT, TEXT_ARRAY),
            Kind::Bytes => ("bytea", BYTEA, 1001),
            Kind::Uuid => ("uuid", UUID, UUID_ARRAY),
            Kind::Timestamp => ("timestamptz", TIMESTAMPTZ, 1185),
            // Not jsonb: the document comes back as it was written.
            Kind::Json => ("json", JSON, 199),
        };
        Self {
            sql,
            oid,
            array_oid,
        }
    }
}

/// The type of a parameter that [`Param::value`] makes.
pub(crate) fn type_of(value: &OwnedValue) -> &'static str {
    match value {
        OwnedValue::Bool(_) => "boolean",
        OwnedValue::Int(_) => "bigint",
        OwnedValue::Float(_) => "double precision",
        OwnedValue::Null | OwnedValue::Text(_) => "text",
        OwnedValue::Bytes(_) => "bytea",
        OwnedValue::Uuid(_) => "uuid",
        OwnedValue::Timestamp(_) => "timestamptz",
        OwnedValue::Json(_) => "json",
    }
}

/// An array of one dimension: number of dimensions, whether it holds nulls, type of the elements, number of elements,
/// first index; then the elements, each with its length before it.
struct Array {
    bytes: Vec<u8>,
}

impl Array {
    fn new(oid: u32, length: usize) -> Self {
        let mut bytes = Vec::with_capacity(20 + length.saturating_mul(12));
        let length = i32::try_from(length).unwrap_or(i32::MAX);
        for header in [1, 0] {
            bytes.extend_from_slice(&i32::to_be_bytes(header));
        }
        bytes.extend_from_slice(&oid.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&1_i32.to_be_bytes());
        Self { bytes }
    }

    fn put(&mut self, element: &[u8]) {
        // A statement of more than 2 GiB is refused before it is sent.
        let length = i32::try_from(element.len()).unwrap_or(i32::MAX);
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(element);
    }

    fn put_null(&mut self) {
        self.bytes[7] = 1;
        self.bytes.extend_from_slice(&(-1_i32).to_be_bytes());
    }

    fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

fn unreadable(kind: &str) -> Failure {
    Failure::of_value(format!("a column holds something else than {kind}"))
}

fn fixed<const N: usize>(bytes: &[u8], kind: &str) -> Result<[u8; N], Failure> {
    bytes.try_into().map_err(|_| unreadable(kind))
}

pub(crate) fn int(bytes: &[u8]) -> Result<i64, Failure> {
    fixed(bytes, "bigint").map(i64::from_be_bytes)
}

pub(crate) fn boolean(bytes: &[u8]) -> Result<bool, Failure> {
    fixed(bytes, "boolean").map(|[byte]: [u8; 1]| byte != 0)
}

pub(crate) fn text(bytes: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(bytes).map_err(|_| unreadable("text"))
}

pub(crate) fn uuid(bytes: &[u8]) -> Result<Uuid, Failure> {
    fixed(bytes, "uuid").map(Uuid::from_bytes)
}

fn of_timestamp(at: Timestamp) -> [u8; 8] {
    let micros = at.as_micros().saturating_sub(EPOCH_MICROS);
    micros.to_be_bytes()
}

pub(crate) fn timestamp(bytes: &[u8]) -> Result<Timestamp, Failure> {
    int(bytes).map(|micros| Timestamp(micros.saturating_add(EPOCH_MICROS)))
}

/// Reads a column of a view.
pub(crate) fn value(kind: Kind, bytes: Option<&[u8]>) -> Result<OwnedValue, Failure> {
    let Some(bytes) = bytes else {
        return Ok(OwnedValue::Null);
    };
    Ok(match kind {
        Kind::Bool => OwnedValue::Bool(boolean(bytes)?),
        Kind::Int => OwnedValue::Int(int(bytes)?),
        Kind::Float => OwnedValue::Float(f64::from_be_bytes(fixed(bytes, kind.name())?)),
        Kind::Text => OwnedValue::Text(text(bytes)?.to_owned()),
        Kind::Bytes => OwnedValue::Bytes(bytes.to_vec()),
        Kind::Uuid => OwnedValue::Uuid(uuid(bytes)?),
        Kind::Timestamp => OwnedValue::Timestamp(timestamp(bytes)?),
        Kind::Json => OwnedValue::Json(text(bytes)?.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use gesta_projection::Keys;

    use super::*;

    #[test]
    fn an_array_with_a_null_says_so() {
        let array = Param::texts([Some("a"), None].into_iter());
        let mut expected = vec![0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 25, 0, 0, 0, 2, 0, 0, 0, 1];
        expected.extend([0, 0, 0, 1, b'a', 255, 255, 255, 255]);
        assert_eq!((array.oid, array.bytes), (TEXT_ARRAY, Some(expected)));
    }

    #[test]
    fn a_cell_of_another_kind_is_refused() {
        let cells = Keys(vec![7_i64]);
        let error = Param::column(&cells, 0..1, 0, Kind::Text).expect_err("an int");
        assert_eq!(error.kind(), TargetErrorKind::Refused);
        assert!(value(Kind::Int, Some(&[1])).is_err());
    }
}
