//! The columns of a batch as arrays for the driver.
//!
//! A batch is sent as one array per column, a single event as one value per column. Each column writes itself straight
//! into the message buffer: there are no intermediate vectors, and payloads are copied this one time only.

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut, BytesMut};
use gesta_sql::{content_type_code, tags_to_text};
use tokio_postgres::types::{IsNull, Kind, ToSql, Type, to_sql_checked};

use crate::append::gather::StatementPart;
use crate::append::prepared::Prepared;
use crate::compression::PACKED;
use crate::moment::{Failure, to_postgres_time};

/// A column of the events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Field {
    Position,
    Stream,
    Revision,
    EventType,
    Created,
    Writer,
    Checksum,
    EventId,
    Log,
    ContentType,
    Data,
    Metadata,
    Packed,
    Tags,
}

/// One column of the events of a statement, written as an array; or as a single value, if the statement takes one and
/// there is one event.
pub(crate) struct Column<'a> {
    pub(crate) parts: &'a [StatementPart<Arc<Prepared>>],
    pub(crate) field: Field,
}

impl Column<'_> {
    /// Returns for each event its batch, and its index in the batch.
    fn rows(&self) -> impl Iterator<Item = (&Prepared, usize)> {
        let batches = self.parts.iter().flat_map(|part| &part.batches);
        batches.flat_map(|batch| (0..batch.events()).map(|number| (&**batch, number)))
    }

    fn len(&self) -> usize {
        let batches = self.parts.iter().flat_map(|part| &part.batches);
        batches.map(|batch| batch.events()).sum()
    }
}

impl fmt::Debug for Column<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} × {}", self.field, self.len())
    }
}

impl ToSql for Column<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Failure> {
        let Kind::Array(element) = ty.kind() else {
            let mut rows = self.rows();
            let (Some((batch, number)), None) = (rows.next(), rows.next()) else {
                return Err("one value for several rows".into());
            };
            return self.put(batch, number, out);
        };
        out.put_i32(1);
        out.put_i32(i32::from(matches!(self.field, Field::Packed | Field::Tags)));
        out.put_u32(element.oid());
        out.put_i32(i32::try_from(self.len())?);
        out.put_i32(1);
        for (batch, number) in self.rows() {
            let start = out.len();
            out.put_i32(-1);
            if let IsNull::No = self.put(batch, number, out)? {
                let length = i32::try_from(out.len() - start - 4)?;
                out[start..start + 4].copy_from_slice(&length.to_be_bytes());
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        let values = [
            Type::INT2,
            Type::INT8,
            Type::TIMESTAMPTZ,
            Type::UUID,
            Type::BYTEA,
        ];
        matches!(ty.kind(), Kind::Array(_)) || values.contains(ty)
    }

    to_sql_checked!();
}

impl Column<'_> {
    /// Writes the value of one event, without its length.
    fn put(&self, batch: &Prepared, number: usize, out: &mut BytesMut) -> Result<IsNull, Failure> {
        let row = &batch.batch.rows[number];
        match self.field {
            Field::Position => out.put_i64(i64::try_from(row.position.0)?),
            Field::Stream => out.put_i64(i64::try_from(row.stream_row.0)?),
            Field::Revision => out.put_i64(i64::try_from(row.revision.0)?),
            Field::EventType => out.put_i64(i64::try_from(row.type_row.0)?),
            Field::Created => out.put_i64(to_postgres_time(row.created)),
            Field::Writer => out.put_i64(batch.epoch),
            Field::Checksum => out.put_i64(batch.checksums[number]),
            Field::EventId => out.put_slice(row.id.0.as_bytes()),
            Field::Log => out.put_i16(batch.log),
            Field::ContentType => {
                let code = i16::try_from(content_type_code(row.content_type))?;
                let packed = if row.packed.is_some() { PACKED } else { 0 };
                out.put_i16(code + packed);
            }
            Field::Data if row.packed.is_some() => {}
            Field::Data => out.put_slice(&row.data),
            Field::Metadata => out.put_slice(&row.metadata),
            Field::Packed => match &row.packed {
                Some(packed) => out.put_slice(packed),
                None => return Ok(IsNull::Yes),
            },
            Field::Tags => match tags_to_text(&row.tags) {
                Some(text) => out.put_slice(text.as_bytes()),
                None => return Ok(IsNull::Yes),
            },
        }
        Ok(IsNull::No)
    }
}
