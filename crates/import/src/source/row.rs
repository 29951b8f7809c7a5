//! Makes an event of a row of PostgreSQL.

use bytes::Bytes;
use gesta_core::{Error, Result, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::field::Field;
use crate::event::{Place, Role, SourceEvent};

/// Makes an event of a row.
///
/// # Errors
/// `Corrupt` if a column has not the type or range that it must have.
pub(super) fn event(row: &Row) -> Result<SourceEvent> {
    let number: i64 = get(row, Field::Number)?;
    let minor: i64 = get(row, Field::Minor)?;
    let sequence: i64 = get(row, Field::Sequence)?;
    let place = Place {
        major: u64::try_from(number).unwrap_or(0),
        minor: u64::try_from(minor).unwrap_or(0),
    };
    let Some(key) = get::<Option<&str>>(row, Field::Key)? else {
        return Err(Error::corrupt(format!(
            "the event at place {place} of the source has no key"
        )));
    };
    let sequence = u64::try_from(sequence).map_err(|_| {
        let text = format!("{key:?} of the source has an event with number {sequence}");
        Error::corrupt(text)
    })?;
    let bytes = |field| -> Result<Bytes> {
        let bytes: Option<&[u8]> = get(row, field)?;
        Ok(bytes.map(Bytes::copy_from_slice).unwrap_or_default())
    };
    let text = |field| get::<Option<String>>(row, field);
    Ok(SourceEvent {
        key: key.into(),
        sequence,
        place,
        id: get(row, Field::Id)?,
        event_type: text(Field::Type)?,
        manifest: text(Field::Manifest)?,
        adapter_manifest: text(Field::Adapter)?,
        serializer: get(row, Field::Serializer)?,
        writer: text(Field::Writer)?,
        data: bytes(Field::Data)?,
        metadata: bytes(Field::Metadata)?,
        metadata_serializer: get(row, Field::MetadataSerializer)?,
        metadata_manifest: text(Field::MetadataManifest)?,
        tags: get::<Option<Vec<String>>>(row, Field::Tags)?.unwrap_or_default(),
        time: get::<Option<i64>>(row, Field::Time)?.map(Timestamp),
        deleted: get::<Option<bool>>(row, Field::Deleted)?.unwrap_or(false),
        category: text(Field::Category)?,
        ident: text(Field::Ident)?,
        tenant: text(Field::Tenant)?,
        correlation: text(Field::Correlation)?,
        causation: text(Field::Causation)?,
        role: get::<Option<&str>>(row, Field::LeftOut)?.map_or(Role::Event, left_out),
        ..SourceEvent::default()
    })
}

fn get<'a, T: FromSql<'a>>(row: &'a Row, field: Field) -> Result<T> {
    row.try_get(field.at())
        .map_err(|error| Error::corrupt(format!("{field:?} of an event of the source: {error}")))
}

/// Returns the role of an event that a statement says is left out.
pub(super) fn left_out(why: &str) -> Role {
    Role::LeftOut(match why {
        "tombstones" => "place holders of failed appends",
        "commands" => "commands",
        _ => "others",
    })
}
