//! Reads what the append pipeline asks for (ends, heads, events without payload), and lists streams.
//!
//! Each read is one statement, so each answer belongs to one snapshot of the primary.

use gesta_core::backend::{
    EventLookup, EventRef, LoadRequest, Loaded, LoadedMeta, LoadedStream, LogEnd, RowId, StoredId,
    StreamHead, WriterEpoch,
};
use gesta_core::limits::STREAM_NAME_BYTES_MAX;
use gesta_core::{Error, EventId, Incarnation, LogId, Position, Revision, StreamId};
use gesta_sql::{position_from_sql, revision_from_sql, row_id_from_sql};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::connect::history::Ledger;
use crate::connect::pool::{PooledReader, Read, ReadError, ReadResult};
use crate::map::open_position;
use crate::moment::Moment;
use crate::names::Names;
use crate::sql_numbers::{bound, log_number, numbers};

const READ_LOG_END: &str = include_str!("../../sql/read_log_end.sql");
const READ_LOG_ENDS: &str = include_str!("../../sql/read_log_ends.sql");
const LOAD_HEADS: &str = include_str!("../../sql/load_heads.sql");
const LOOKUP_REVISIONS: &str = include_str!("../../sql/lookup_revisions.sql");
const LOOKUP_POSITIONS: &str = include_str!("../../sql/lookup_positions.sql");
const LOOKUP_AFTER: &str = include_str!("../../sql/lookup_after.sql");
const LOOKUP_IDS: &str = include_str!("../../sql/lookup_ids.sql");
const READ_IDS: &str = include_str!("../../sql/read_ids.sql");
const LIST_STREAMS: &str = include_str!("../../sql/list_streams.sql");
const LIST_SYSTEM_STREAMS: &str = include_str!("../../sql/list_system_streams.sql");

/// Reads the end of a log. The answer comes with the incarnation, so that a caller that only asks for ends notices
/// another one.
pub(crate) struct ReadLogEnd<'a> {
    pub(crate) log: LogId,
    pub(crate) ledger: &'a Ledger,
}

impl Read for ReadLogEnd<'_> {
    type Answer = LogEnd;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<LogEnd> {
        let known = self.ledger.position_of(self.log);
        let rows = query(reader, READ_LOG_END, &[&log_number(self.log)?]).await?;
        let row = rows
            .first()
            .ok_or_else(|| Error::corrupt("the table store is empty"))?;
        current_end(row, (self.log, known), self.ledger, reader)
    }
}

/// Reads the last rows of all logs.
pub(crate) struct ReadLogEnds<'a> {
    /// Whether the database is one of several. The caller that routes by log then knows what a closed log is.
    pub(crate) is_part: bool,
    pub(crate) ledger: &'a Ledger,
}

impl Read for ReadLogEnds<'_> {
    type Answer = Vec<LogEnd>;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Vec<LogEnd>> {
        let known = self.ledger.positions();
        let rows = query(reader, READ_LOG_ENDS, &[]).await?;
        let ends = (0..).map(LogId).zip(&rows);
        ends.map(|(log, row)| {
            let known = known.get(&log).copied().unwrap_or_default();
            match current_end(row, (log, known), self.ledger, reader) {
                Err(ReadError::Ours(error)) if self.is_part && error.is_log_closed() => {
                    Ok(LogEnd::CLOSED)
                }
                end => end,
            }
        })
        .collect()
    }
}

/// Returns the end of a log, if it is of the present incarnation. `known` is the last position of the log that this
/// process knew when it began to read: rows that were seen before are never missing.
fn current_end(
    row: &Row,
    (log, known): (LogId, Position),
    ledger: &Ledger,
    reader: &mut PooledReader,
) -> ReadResult<LogEnd> {
    if ledger.history().incarnation != Incarnation(row.try_get(3)?) {
        return Err(ReadError::OtherIncarnation);
    }
    let end = match row.try_get(0)? {
        Some(position) => LogEnd {
            position: open_position(log, position)?,
            writer: WriterEpoch(row.try_get(1)?),
            created: row.try_get::<_, Moment>(2)?.0,
        },
        None => LogEnd::default(),
    };
    if end.position < known {
        return Err(ReadError::RowsAreGone);
    }
    reader.saw(log, end.position, end.writer);
    Ok(end)
}

/// Reads streams and types in one snapshot.
pub(crate) struct Load<'a> {
    pub(crate) log: LogId,
    pub(crate) request: &'a LoadRequest,
}

impl Read for Load<'_> {
    type Answer = Loaded;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Loaded> {
        let loaded = load_heads(reader, self.log, self.request).await?;
        reader.saw(self.log, loaded.end.position, loaded.end.writer);
        Ok(loaded)
    }
}

async fn load_heads(
    reader: &mut PooledReader,
    log: LogId,
    request: &LoadRequest,
) -> ReadResult<Loaded> {
    let streams: Vec<&str> = request.streams.iter().map(StreamId::as_str).collect();
    let types: Vec<&str> = request
        .types
        .iter()
        .map(gesta_core::EventType::as_str)
        .collect();
    let statement = reader.statement(LOAD_HEADS).await?;
    let rows = reader
        .connection
        .client
        .query(&statement, &[&log_number(log)?, &streams, &types])
        .await?;
    let mut loaded = Loaded {
        end: LogEnd::default(),
        streams: vec![LoadedStream::default(); streams.len()],
        types: vec![None; types.len()],
    };
    for row in &rows {
        let kind: i32 = row.try_get(0)?;
        let ordinal: i64 = row.try_get(1)?;
        let index = usize::try_from(ordinal - 1).unwrap_or(usize::MAX);
        match kind {
            0 => loaded.end = end_of(log, row)?,
            1 => {
                if let Some(place) = loaded.streams.get_mut(index) {
                    *place = stream_of(row)?;
                }
            }
            _ => {
                if let Some(place) = loaded.types.get_mut(index) {
                    *place = row
                        .try_get::<_, Option<i64>>(2)?
                        .map(row_id_from_sql)
                        .transpose()?;
                }
            }
        }
    }
    Ok(loaded)
}

fn end_of(log: LogId, row: &Row) -> ReadResult<LogEnd> {
    Ok(LogEnd {
        position: open_position(log, row.try_get(2)?)?,
        writer: WriterEpoch(row.try_get(3)?),
        created: row.try_get::<_, Moment>(5)?.0,
    })
}

fn stream_of(row: &Row) -> ReadResult<LoadedStream> {
    let id = row.try_get::<_, Option<Uuid>>(11)?.map(EventId);
    let meta = match head_of(row, [6, 7, 8])? {
        Some(head) => Some(LoadedMeta {
            head,
            data: row.try_get::<_, Vec<u8>>(9)?.into(),
            metadata: row.try_get::<_, Vec<u8>>(10)?.into(),
        }),
        None => None,
    };
    Ok(LoadedStream {
        head: head_of(row, [2, 3, 4])?.map(|head| StreamHead { id, ..head }),
        meta,
    })
}

/// Reads a row id, a last revision and its position; `None` unless all three are there. The id of the event comes from
/// another column.
fn head_of(row: &Row, columns: [usize; 3]) -> ReadResult<Option<StreamHead>> {
    let [id, last, position] = columns;
    let id: Option<i64> = row.try_get(id)?;
    let last: Option<i64> = row.try_get(last)?;
    let position: Option<i64> = row.try_get(position)?;
    match (id, last, position) {
        (Some(id), Some(last), Some(position)) => Ok(Some(StreamHead {
            row: row_id_from_sql(id)?,
            last: revision_from_sql(last)?,
            position: position_from_sql(position)?,
            id: None,
        })),
        (None, ..) => Ok(None),
        (Some(id), ..) => Err(Error::corrupt(format!("stream row {id} has no event")).into()),
    }
}

/// Reads events without payload.
pub(crate) struct Lookup<'a> {
    pub(crate) names: &'a Names,
    pub(crate) log: LogId,
    pub(crate) what: &'a EventLookup,
}

impl Read for Lookup<'_> {
    type Answer = Vec<EventRef>;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Vec<EventRef>> {
        let found = find(reader, self.names, self.log, self.what).await?;
        if let Some(last) = found.iter().max_by_key(|event| event.position) {
            reader.saw(self.log, last.position, last.writer);
        }
        Ok(found)
    }
}

async fn find(
    reader: &mut PooledReader,
    names: &Names,
    log: LogId,
    what: &EventLookup,
) -> ReadResult<Vec<EventRef>> {
    let number = log_number(log)?;
    let rows = match what {
        EventLookup::Revisions { count: 0, .. } => Vec::new(),
        EventLookup::Revisions {
            stream,
            first,
            count,
        } => {
            let last = u64::try_from(*count)
                .unwrap_or(u64::MAX)
                .saturating_add(first.0)
                - 1;
            let (stream, first, last) = (bound(stream.0), bound(first.0), bound(last));
            query(reader, LOOKUP_REVISIONS, &[&number, &stream, &first, &last]).await?
        }
        EventLookup::Positions(positions) => {
            query(reader, LOOKUP_POSITIONS, &[&number, &numbers(positions)]).await?
        }
        EventLookup::Ids {
            events,
            after,
            created_from,
            until,
        } => {
            let (streams, ids): (Vec<i64>, Vec<Uuid>) = events
                .iter()
                .map(|(stream, id)| (bound(stream.0), id.0))
                .unzip();
            let (after, from, until) = (bound(after.0), Moment(*created_from), bound(until.0));
            let binds: [&(dyn ToSql + Sync); 6] = [&number, &streams, &ids, &after, &from, &until];
            query(reader, LOOKUP_IDS, &binds).await?
        }
        EventLookup::After { position, limit } => {
            let (after, limit) = (bound(position.0), i64::try_from(*limit).unwrap_or(i64::MAX));
            query(reader, LOOKUP_AFTER, &[&number, &after, &limit]).await?
        }
    };
    for row in &rows {
        open_position(log, row.try_get(0)?)?;
    }
    let column = |index: usize| rows.iter().map(move |row| row.try_get::<_, i64>(index));
    let streams = column(3).collect::<std::result::Result<Vec<_>, _>>()?;
    let types = column(6).collect::<std::result::Result<Vec<_>, _>>()?;
    let stream_names = names
        .streams
        .resolve(reader, log, streams.into_iter())
        .await?;
    let type_names = names.types.resolve(reader, log, types.into_iter()).await?;
    let named = rows.iter().zip(stream_names).zip(type_names);
    named
        .map(|((row, stream), event_type)| event_ref(row, stream, event_type))
        .collect()
}

async fn query(
    reader: &mut PooledReader,
    sql: &'static str,
    params: &[&(dyn ToSql + Sync)],
) -> ReadResult<Vec<Row>> {
    let statement = reader.statement(sql).await?;
    Ok(reader.connection.client.query(&statement, params).await?)
}

fn event_ref(
    row: &Row,
    stream: StreamId,
    event_type: gesta_core::EventType,
) -> ReadResult<EventRef> {
    let revision: Revision = revision_from_sql(row.try_get(4)?)?;
    let stream_row: RowId = row_id_from_sql(row.try_get(3)?)?;
    Ok(EventRef {
        position: position_from_sql(row.try_get(0)?)?,
        writer: WriterEpoch(row.try_get(1)?),
        created: row.try_get::<_, Moment>(2)?.0,
        stream,
        stream_row,
        revision,
        id: EventId(row.try_get(5)?),
        event_type,
        type_row: row_id_from_sql(row.try_get(6)?)?,
    })
}

/// Reads the ids of a part of a log.
pub(crate) struct ReadIds {
    pub(crate) log: LogId,
    pub(crate) after: Position,
    pub(crate) to: Position,
}

impl Read for ReadIds {
    type Answer = Vec<StoredId>;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Vec<StoredId>> {
        let (log, after, to) = (log_number(self.log)?, bound(self.after.0), bound(self.to.0));
        let rows = query(reader, READ_IDS, &[&log, &after, &to]).await?;
        rows.iter().map(stored_id).collect()
    }
}

fn stored_id(row: &Row) -> ReadResult<StoredId> {
    Ok(StoredId {
        stream: row_id_from_sql(row.try_get(0)?)?,
        id: EventId(row.try_get(1)?),
        position: position_from_sql(row.try_get(2)?)?,
        created: row.try_get::<_, Moment>(3)?.0,
    })
}

/// Lists the names of streams in binary order.
pub(crate) struct List<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) after: Option<&'a StreamId>,
    pub(crate) limit: usize,
}

impl Read for List<'_> {
    type Answer = Vec<StreamId>;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Vec<StreamId>> {
        // No name holds a NUL, and PostgreSQL refuses one in a bind.
        if self.prefix.contains('\0') {
            return Ok(Vec::new());
        }
        let sql = if self.prefix.starts_with('$') {
            LIST_SYSTEM_STREAMS
        } else {
            LIST_STREAMS
        };
        // Names are not empty, so each of them is after the empty text.
        let after = self.after.map_or("", StreamId::as_str);
        let end = end_of_prefix(self.prefix).unwrap_or_else(above_all_names);
        let limit = i64::try_from(self.limit).unwrap_or(i64::MAX);
        let rows = query(reader, sql, &[&self.prefix, &after, &end, &limit]).await?;
        let name = |row: &Row| {
            row.try_get::<_, &str>(0)
                .map(|name| StreamId::from_stored(name.into()))
        };
        Ok(rows
            .iter()
            .map(name)
            .collect::<std::result::Result<_, _>>()?)
    }
}

/// Returns the first text after all that begin with `prefix`, in the order of code points, which is that of the bytes
/// of UTF-8.
fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        let mut following = (last..=char::MAX).skip(1);
        if let Some(next) = following.next() {
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// Returns a text after every name: more of the last character than a name can hold.
fn above_all_names() -> String {
    let characters = (STREAM_NAME_BYTES_MAX + "$$".len()) / char::MAX.len_utf8() + 1;
    std::iter::repeat_n(char::MAX, characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_its_successor() {
        assert_eq!(end_of_prefix("cart-").as_deref(), Some("cart."));
        assert_eq!(end_of_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(end_of_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(end_of_prefix(""), None);
        assert_eq!(end_of_prefix("\u{10ffff}"), None);
    }
}
