//! Rows of events: each is decoded, and its checksum is checked.

use gesta_core::backend::{RowId, WriterEpoch};
use gesta_core::{Error, EventId, LogId, RecordedEvent, Tags, Timestamp};
use gesta_sql::{
    content_type_from_code, position_from_sql, recorded_checksum, revision_from_sql,
    row_id_from_sql, tags_from_text, to_sql,
};
use rusqlite::{Connection, Row};
use uuid::Uuid;

use crate::error::Outcome;
use crate::names::Names;
use crate::payload::Payloads;

/// Decodes a row of `COLUMNS` and checks its checksum.
pub(crate) fn decode(
    conn: &Connection,
    names: &mut Names,
    payloads: &mut Payloads,
    row: &Row<'_>,
) -> Outcome<RecordedEvent> {
    let (position, stream, revision) = (int(row, 0)?, int(row, 1)?, int(row, 2)?);
    let name = names.stream(conn, stream)?;
    let bad = |error: Error| {
        corrupt(position, name.as_str(), revision, "cannot be read").caused_by(error)
    };
    let event_type = int(row, 4)?;
    let tags = match row
        .get_ref(9)?
        .as_str_or_null()
        .map_err(rusqlite::Error::from)?
    {
        Some(text) => tags_from_text(text),
        None => Tags::NONE,
    };
    let event = RecordedEvent {
        revision: revision_from_sql(revision).map_err(bad)?,
        log: LogId(0),
        position: position_from_sql(position).map_err(bad)?,
        id: EventId(event_id(row, 3)?),
        event_type: names.event_type(conn, event_type)?,
        created: Timestamp(int(row, 5)?),
        content_type: content_type_from_code(int(row, 6)?).map_err(bad)?,
        metadata: payloads.copy(blob(row, 10)?),
        data: payloads.copy(blob(row, 11)?),
        tags,
        stream: name,
    };
    let (stream_row, type_row) = (row_id_from_sql(stream)?, row_id_from_sql(event_type)?);
    let writer = WriterEpoch(int(row, 7)?);
    if recorded_checksum(&event, stream_row, type_row, writer) != int(row, 8)? {
        return Err(corrupt(
            position,
            event.stream.as_str(),
            revision,
            "has a wrong checksum",
        )
        .into());
    }
    Ok(event)
}

fn corrupt(position: i64, stream: &str, revision: i64, what: &str) -> Error {
    Error::corrupt(format!(
        "the event at log 0, position {position} (stream {stream}, revision {revision}) {what}"
    ))
}

pub(crate) fn out_of_order(position: i64) -> Error {
    Error::corrupt(format!(
        "events do not come in order at log 0, position {position}: an index or the file is damaged, run `gesta verify`"
    ))
}

pub(crate) fn int(row: &Row<'_>, column: usize) -> Outcome<i64> {
    Ok(row
        .get_ref(column)?
        .as_i64()
        .map_err(rusqlite::Error::from)?)
}

fn blob<'r>(row: &'r Row<'_>, column: usize) -> Outcome<&'r [u8]> {
    Ok(row
        .get_ref(column)?
        .as_blob()
        .map_err(rusqlite::Error::from)?)
}

pub(crate) fn event_id(row: &Row<'_>, column: usize) -> Outcome<Uuid> {
    let blob = row
        .get_ref(column)?
        .as_blob()
        .map_err(rusqlite::Error::from)?;
    Ok(Uuid::from_slice(blob).map_err(|error| Error::corrupt("event id").caused_by(error))?)
}

/// Reads one event by its position; `None` if there is none, such as after scavenging.
pub(crate) fn event_at(
    conn: &Connection,
    names: &mut Names,
    position: i64,
) -> Outcome<Option<RecordedEvent>> {
    let mut statement = conn.prepare_cached(include_str!("../sql/select_event.sql"))?;
    let mut rows = statement.query([position])?;
    match rows.next()? {
        Some(row) => Ok(Some(decode(conn, names, &mut Payloads::default(), row)?)),
        None => Ok(None),
    }
}

/// Converts a row id to what SQL keeps. Callers check the names that belong to it.
pub(crate) fn row_to_sql(row: RowId) -> Outcome<i64> {
    Ok(to_sql(row.0, "row id")?)
}
