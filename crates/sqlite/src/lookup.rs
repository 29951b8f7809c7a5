//! Look-ups without payload: heads of streams, event references, names.

use std::collections::{HashMap, HashSet};

use gesta_core::backend::{
    EventLookup, EventRef, LoadRequest, Loaded, LoadedMeta, LoadedStream, LogEnd, RowId, StoredId,
    StreamHead, WriterEpoch,
};
use gesta_core::{Error, EventId, Position, StreamId, Timestamp};
use gesta_sql::{position_from_sql, revision_from_sql, row_id_from_sql, to_sql};
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use crate::error::Outcome;
use crate::names::{Names, stream_row, type_row};
use crate::row::{event_at, event_id, int, row_to_sql};

/// Reads the end of the log.
pub(crate) fn log_end(conn: &Connection) -> Outcome<LogEnd> {
    let mut statement = conn.prepare_cached(include_str!("../sql/select_log_end.sql"))?;
    let mut rows = statement.query([])?;
    let Some(row) = rows.next()? else {
        return Ok(LogEnd::default());
    };
    Ok(LogEnd {
        position: position_from_sql(int(row, 0)?)?,
        writer: WriterEpoch(int(row, 1)?),
        created: Timestamp(int(row, 2)?),
    })
}

/// Looks up streams and types in the snapshot of the caller.
pub(crate) fn load(conn: &Connection, names: &mut Names, request: &LoadRequest) -> Outcome<Loaded> {
    let mut streams = Vec::with_capacity(request.streams.len());
    for stream in &request.streams {
        streams.push(load_stream(conn, names, stream)?);
    }
    let mut types = Vec::with_capacity(request.types.len());
    for event_type in &request.types {
        types.push(type_row(conn, event_type.as_str())?);
    }
    Ok(Loaded {
        end: log_end(conn)?,
        streams,
        types,
    })
}

fn load_stream(conn: &Connection, names: &mut Names, stream: &StreamId) -> Outcome<LoadedStream> {
    let head = match stream_row(conn, stream.as_str())? {
        Some(row) => head(conn, row)?,
        None => None,
    };
    let meta = match stream_row(conn, stream.metadata_stream().as_str())? {
        Some(row) => load_meta(conn, names, stream, row)?,
        None => None,
    };
    Ok(LoadedStream { head, meta })
}

fn load_meta(
    conn: &Connection,
    names: &mut Names,
    stream: &StreamId,
    row: RowId,
) -> Outcome<Option<LoadedMeta>> {
    let Some(head) = head(conn, row)? else {
        return Ok(None);
    };
    let event = event_at(conn, names, to_sql(head.position.0, "position")?)?.ok_or_else(|| {
        Error::corrupt(format!(
            "the last metadata event of stream {stream}, at position {}, is gone",
            head.position
        ))
    })?;
    Ok(Some(LoadedMeta {
        head,
        data: event.data,
        metadata: event.metadata,
    }))
}

/// Reads the last event of a stream, whether it is stored or was scavenged.
fn head(conn: &Connection, row: RowId) -> Outcome<Option<StreamHead>> {
    let stored = conn
        .prepare_cached(include_str!("../sql/select_stream_head.sql"))?
        .query_row([row_to_sql(row)?], |found| {
            Ok((found.get(0)?, found.get(1)?, Some(found.get(2)?)))
        })
        .optional()?;
    let last: Option<(i64, i64, Option<[u8; 16]>)> = match stored {
        Some(last) => Some(last),
        None => floor(conn, row)?.map(|(revision, position)| (revision - 1, position, None)),
    };
    let Some((revision, position, id)) = last else {
        return Ok(None);
    };
    Ok(Some(StreamHead {
        row,
        last: revision_from_sql(revision)?,
        position: position_from_sql(position)?,
        id: id.map(|id| EventId(Uuid::from_bytes(id))),
    }))
}

/// Reads the first revision that scavenging left, and the position of the last event that it removed; `None` if it
/// removed none.
pub(crate) fn floor(conn: &Connection, row: RowId) -> Outcome<Option<(i64, i64)>> {
    Ok(conn
        .prepare_cached(include_str!("../sql/select_scavenge.sql"))?
        .query_row([row_to_sql(row)?], |found| {
            Ok((found.get(0)?, found.get(1)?))
        })
        .optional()?)
}

/// Looks up events without payload, in order of position.
pub(crate) fn lookup(
    conn: &Connection,
    names: &mut Names,
    lookup: &EventLookup,
) -> Outcome<Vec<EventRef>> {
    match lookup {
        EventLookup::Revisions {
            stream,
            first,
            count,
        } => {
            let Ok(first) = to_sql(first.0, "revision") else {
                return Ok(Vec::new());
            };
            let limit = i64::try_from(*count).unwrap_or(i64::MAX);
            let sql = include_str!("../sql/select_refs_by_revision.sql");
            refs(
                conn,
                names,
                sql,
                params![row_to_sql(*stream)?, first, limit],
            )
        }
        EventLookup::Positions(positions) => at_positions(conn, names, positions),
        EventLookup::Ids {
            events,
            after,
            created_from,
            until,
        } => {
            let range = SearchRange {
                after: clamped(*after),
                created_from: created_from.0,
                until: clamped(*until),
            };
            with_ids(conn, names, events, &range)
        }
        EventLookup::After { position, limit } => {
            let Ok(after) = to_sql(position.0, "position") else {
                return Ok(Vec::new());
            };
            let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
            refs(
                conn,
                names,
                include_str!("../sql/select_refs_after.sql"),
                params![after, limit],
            )
        }
    }
}

fn refs(
    conn: &Connection,
    names: &mut Names,
    sql: &str,
    binds: impl rusqlite::Params,
) -> Outcome<Vec<EventRef>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(binds)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(event_ref(conn, names, row)?);
    }
    Ok(found)
}

fn at_positions(
    conn: &Connection,
    names: &mut Names,
    positions: &[Position],
) -> Outcome<Vec<EventRef>> {
    let mut sorted = positions.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut found = Vec::new();
    for position in sorted {
        let Ok(position) = to_sql(position.0, "position") else {
            continue;
        };
        found.extend(refs(
            conn,
            names,
            include_str!("../sql/select_ref_at_position.sql"),
            [position],
        )?);
    }
    Ok(found)
}

/// Looks for ids from the end of each stream backwards until the range is passed. That is enough because positions and
/// times decrease together.
fn with_ids(
    conn: &Connection,
    names: &mut Names,
    events: &[(RowId, EventId)],
    range: &SearchRange,
) -> Outcome<Vec<EventRef>> {
    let mut wanted: HashMap<RowId, HashSet<EventId>> = HashMap::new();
    for (stream, id) in events {
        wanted.entry(*stream).or_default().insert(*id);
    }
    let mut statement =
        conn.prepare_cached(include_str!("../sql/select_refs_of_stream_backwards.sql"))?;
    let mut found = Vec::new();
    for (stream, ids) in wanted {
        let mut rows = statement.query([row_to_sql(stream)?])?;
        while let Some(row) = rows.next()? {
            let position = int(row, 0)?;
            if position <= range.after && int(row, 2)? < range.created_from {
                break;
            }
            if position <= range.until && ids.contains(&EventId(event_id(row, 5)?)) {
                found.push(event_ref(conn, names, row)?);
            }
        }
    }
    found.sort_unstable_by_key(|event| event.position);
    Ok(found)
}

/// The range of the log that is searched: up to the position `until`, and after the position `after` or not older than
/// `created_from`.
struct SearchRange {
    after: i64,
    created_from: i64,
    until: i64,
}

/// Reads the ids of a part of the log.
pub(crate) fn ids(conn: &Connection, after: Position, to: Position) -> Outcome<Vec<StoredId>> {
    let mut statement = conn.prepare_cached(include_str!("../sql/select_ids.sql"))?;
    let mut rows = statement.query([clamped(after), clamped(to)])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(StoredId {
            stream: row_id_from_sql(int(row, 0)?)?,
            id: EventId(event_id(row, 1)?),
            position: position_from_sql(int(row, 2)?)?,
            created: Timestamp(int(row, 3)?),
        });
    }
    Ok(found)
}

/// Converts a position to what SQL keeps. A position that is too large becomes the largest number, after which there is
/// no event.
fn clamped(position: Position) -> i64 {
    i64::try_from(position.0).unwrap_or(i64::MAX)
}

fn event_ref(conn: &Connection, names: &mut Names, row: &Row<'_>) -> Outcome<EventRef> {
    let (stream, event_type) = (int(row, 3)?, int(row, 6)?);
    Ok(EventRef {
        position: position_from_sql(int(row, 0)?)?,
        writer: WriterEpoch(int(row, 1)?),
        created: Timestamp(int(row, 2)?),
        stream: names.stream(conn, stream)?,
        stream_row: row_id_from_sql(stream)?,
        revision: revision_from_sql(int(row, 4)?)?,
        id: EventId(event_id(row, 5)?),
        event_type: names.event_type(conn, event_type)?,
        type_row: row_id_from_sql(event_type)?,
    })
}

/// The first text after all names that start with `$`.
const AFTER_SYSTEM_NAMES: &str = "%";

/// Lists names of streams with a prefix, in binary order.
pub(crate) fn list_streams(
    conn: &Connection,
    prefix: &str,
    after: Option<&StreamId>,
    limit: usize,
) -> Outcome<Vec<StreamId>> {
    let system = prefix.starts_with('$');
    let after = after.map(StreamId::as_str);
    let mut from = after.unwrap_or(prefix).max(prefix).to_owned();
    let mut found = Vec::new();
    let mut statement = conn.prepare_cached(include_str!("../sql/select_stream_names.sql"))?;
    loop {
        let mut rows = statement.query([&from])?;
        let mut skip = false;
        while let Some(row) = rows.next()? {
            let name = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
            if !system && name.starts_with('$') {
                skip = true;
                break;
            }
            if found.len() >= limit || !name.starts_with(prefix) {
                break;
            }
            if after.is_none_or(|after| name > after) {
                found.push(StreamId::from_stored(name.into()));
            }
        }
        if !skip {
            return Ok(found);
        }
        // Without this jump a page would step through the names of all metadata streams.
        from = AFTER_SYSTEM_NAMES.into();
    }
}
