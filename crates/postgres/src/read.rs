//! Reads pages of events.
//!
//! One statement reads a page in the order of an index. Payloads above a share of the page's bytes are left out of it
//! and fetched afterwards, so that a page never moves gigabytes to show megabytes.
//! Invariants: the checksum of every row is verified before anybody sees it; the exact test of a filter is
//! [`Filter::matches`](gesta_core::Filter::matches), and the database only narrows the choice.
//! Not here: parts of many streams, or of many logs, in one statement (`streams`, `tail_pages`).

pub(crate) mod filter;
pub(crate) mod lookup;
pub(crate) mod name_reader;
pub(crate) mod streams;
pub(crate) mod tail_pages;
pub(crate) mod tails;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use gesta_core::backend::{LogSlice, Rows, StreamSlice, WriterEpoch};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{
    Direction, EVENT_OVERHEAD_BYTES, Error, EventId, EventType, LogId, RecordedEvent, Result,
    StreamId, Tag, Tags, Timestamp,
};
use gesta_sql::{RawRow, content_type_from_code, position_from_sql, revision_from_sql};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::compression::{length, unpack};
use crate::connect::pool::{PooledReader, Read, ReadResult};
use crate::error;
use crate::moment::Moment;
use crate::names::Names;
use crate::read::filter::Narrowing;
use crate::sql_numbers::{bound, log_number};

const READ_STREAM_FORWARDS: &str = include_str!("../sql/read_stream_forwards.sql");
const READ_STREAM_BACKWARDS: &str = include_str!("../sql/read_stream_backwards.sql");
const READ_LOG_FORWARDS: &str = include_str!("../sql/read_log_forwards.sql");
const READ_LOG_BACKWARDS: &str = include_str!("../sql/read_log_backwards.sql");
const READ_LOG_FILTERED_FORWARDS: &str = include_str!("../sql/read_log_filtered_forwards.sql");
const READ_LOG_FILTERED_BACKWARDS: &str = include_str!("../sql/read_log_filtered_backwards.sql");
const READ_LOG_TAGGED_FORWARDS: &str = include_str!("../sql/read_log_tagged_forwards.sql");
const READ_LOG_TAGGED_BACKWARDS: &str = include_str!("../sql/read_log_tagged_backwards.sql");
const READ_PAYLOADS: &str = include_str!("../sql/read_payloads.sql");

/// The largest payload that shares an allocation with its neighbours, in bytes.
const SHARED_BYTES_MAX: usize = 4 * 1_024;
const ARENA_BYTES: usize = 64 * 1_024;
/// A payload up to this size always comes with its row, in bytes.
const INLINE_BYTES_MIN: usize = 1_024;
/// The column with the place of the log, which only a page of many logs has.
const PLACE_COLUMN: usize = 13;

/// An event as it was read, before its names are known.
#[derive(Debug)]
pub(crate) struct Raw {
    /// In a page of many logs, the place of its log, from 1; else 0.
    pub(crate) place: i64,
    pub(crate) position: i64,
    /// The row of the interned stream. In a page of many streams it is the place of its slice, from 1, until the slice
    /// is found.
    pub(crate) stream: i64,
    pub(crate) revision: i64,
    pub(crate) event_type: i64,
    created: Timestamp,
    pub(crate) writer: i64,
    checksum: i64,
    id: Uuid,
    content_type: i16,
    tags: Tags,
    payload: Payload,
}

#[derive(Debug)]
enum Payload {
    Here {
        data: Bytes,
        metadata: Bytes,
    },
    /// The payload was left out because of its size.
    Large(usize),
}

impl Raw {
    /// Returns the memory that the event will hold, without its names, which events share. Data and metadata count by
    /// their stored size until they are read, and then by their size as they were appended.
    pub(crate) fn cost_bytes(&self) -> usize {
        let payload = match &self.payload {
            Payload::Here { data, metadata } => length(self.content_type, data) + metadata.len(),
            Payload::Large(bytes) => *bytes,
        };
        EVENT_OVERHEAD_BYTES + payload + self.tags.cost_bytes()
    }

    /// Tells whether the payload was left out.
    fn is_large(&self) -> bool {
        matches!(self.payload, Payload::Large(_))
    }
}

/// Copies small payloads next to each other.
#[derive(Default)]
struct Arena(BytesMut);

impl Arena {
    fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            return Bytes::new();
        }
        if bytes.len() > SHARED_BYTES_MAX {
            return Bytes::copy_from_slice(bytes);
        }
        if self.0.capacity() < bytes.len() {
            self.0 = BytesMut::with_capacity(ARENA_BYTES);
        }
        self.0.extend_from_slice(bytes);
        self.0.split().freeze()
    }
}

fn raw_row(row: &Row, arena: &mut Arena) -> std::result::Result<Raw, tokio_postgres::Error> {
    let tags: Option<Vec<&str>> = row.try_get(9)?;
    let tags = tags.map_or(Tags::NONE, |tags| {
        Tags::from_stored(
            tags.into_iter()
                .map(|tag| Tag::from_stored(tag.into()))
                .collect(),
        )
    });
    let payload = match row.try_get::<_, Option<i32>>(10)? {
        Some(large) => Payload::Large(usize::try_from(large).unwrap_or(0)),
        None => Payload::Here {
            data: arena.copy(row.try_get(11)?),
            metadata: arena.copy(row.try_get(12)?),
        },
    };
    Ok(Raw {
        place: match row.len() > PLACE_COLUMN {
            true => row.try_get(PLACE_COLUMN)?,
            false => 0,
        },
        position: row.try_get(0)?,
        stream: row.try_get(1)?,
        revision: row.try_get(2)?,
        event_type: row.try_get(3)?,
        created: row.try_get::<_, Moment>(4)?.0,
        writer: row.try_get(5)?,
        checksum: row.try_get(6)?,
        id: row.try_get(7)?,
        content_type: row.try_get(8)?,
        tags,
        payload,
    })
}

/// Returns a payload that was left out of a page, and the place of its event among those that were asked for.
fn payload(row: &Row) -> Result<(usize, Payload)> {
    let decoded = || {
        let data = Bytes::copy_from_slice(row.try_get(1)?);
        let metadata = Bytes::copy_from_slice(row.try_get(2)?);
        Ok((row.try_get::<_, i64>(0)?, Payload::Here { data, metadata }))
    };
    let (ordinal, payload) =
        decoded().map_err(|error: tokio_postgres::Error| Error::corrupt(error::text(&error)))?;
    Ok((usize::try_from(ordinal - 1).unwrap_or(usize::MAX), payload))
}

/// Makes the error of a row, of which the first column is the position, that holds what no row of an event holds.
fn undecodable(row: &Row, error: &tokio_postgres::Error) -> Error {
    let text = error::text(error);
    match row.try_get::<_, i64>(0) {
        Ok(position) => Error::corrupt(format!("position {position}: {text}")),
        Err(_) => Error::corrupt(text),
    }
}

/// The rows that one statement returned.
pub(crate) struct Page {
    pub(crate) raws: Vec<Raw>,
    /// Whether there are no more rows than these; false if the limit of rows or bytes ended the page.
    pub(crate) exhausted: bool,
}

/// Runs the statement of a page, which returns at most `rows_max` rows, and stops when `bytes_left` are used up.
pub(crate) async fn fetch(
    reader: &mut PooledReader,
    sql: &'static str,
    params: &[&(dyn ToSql + Sync)],
    rows_max: usize,
    bytes_left: usize,
) -> ReadResult<Page> {
    let statement = reader.statement(sql).await?;
    let rows = reader
        .connection
        .client
        .query_raw(&statement, params.iter().copied())
        .await?;
    let mut rows = std::pin::pin!(rows);
    let mut arena = Arena::default();
    let mut raws: Vec<Raw> = Vec::with_capacity(rows_max.min(1_024));
    let mut bytes = 0;
    while let Some(row) = rows.next().await {
        let row = row?;
        let raw = raw_row(&row, &mut arena).map_err(|error| undecodable(&row, &error))?;
        bytes += raw.cost_bytes();
        raws.push(raw);
        if bytes > bytes_left {
            return Ok(Page {
                raws,
                exhausted: false,
            });
        }
    }
    let exhausted = raws.len() < rows_max;
    Ok(Page { raws, exhausted })
}

/// Notes that what rests on these rows will be handed over.
pub(crate) fn saw(reader: &mut PooledReader, log: LogId, page: &Page) -> Result<()> {
    if let Some(last) = page.raws.iter().max_by_key(|raw| raw.position) {
        reader.saw(
            log,
            position_from_sql(last.position)?,
            WriterEpoch(last.writer),
        );
    }
    Ok(())
}

/// Fetches the payloads that were left out of pages of some logs, in one statement. Rows that were scavenged meanwhile
/// are dropped.
pub(crate) async fn fill(
    reader: &mut PooledReader,
    parts: &mut [(LogId, &mut Vec<Raw>)],
) -> ReadResult<()> {
    let (mut logs, mut positions) = (Vec::new(), Vec::new());
    for (log, raws) in parts.iter() {
        for raw in raws.iter().filter(|raw| raw.is_large()) {
            logs.push(log_number(*log)?);
            positions.push(raw.position);
        }
    }
    if positions.is_empty() {
        return Ok(());
    }
    let statement = reader.statement(READ_PAYLOADS).await?;
    let params: [&(dyn ToSql + Sync); 2] = [&logs, &positions];
    let rows = reader
        .connection
        .client
        .query_raw(&statement, params)
        .await?;
    let mut rows = std::pin::pin!(rows);
    let mut found: Vec<Option<Payload>> = positions.iter().map(|_| None).collect();
    while let Some(row) = rows.next().await {
        let (place, payload) = payload(&row?)?;
        if let Some(found) = found.get_mut(place) {
            *found = Some(payload);
        }
    }
    let mut found = found.into_iter();
    for (_, raws) in parts {
        for raw in raws.iter_mut().filter(|raw| raw.is_large()) {
            if let Some(payload) = found.next().flatten() {
                raw.payload = payload;
            }
        }
        raws.retain(|raw| !raw.is_large());
    }
    Ok(())
}

/// Verifies rows and adds their names.
pub(crate) async fn recorded(
    reader: &mut PooledReader,
    names: &Names,
    log: LogId,
    raws: Vec<Raw>,
) -> ReadResult<Vec<RecordedEvent>> {
    let streams = names
        .streams
        .resolve(reader, log, raws.iter().map(|raw| raw.stream))
        .await?;
    let types = names
        .types
        .resolve(reader, log, raws.iter().map(|raw| raw.event_type))
        .await?;
    let mut events = Vec::with_capacity(raws.len());
    for ((raw, stream), event_type) in raws.into_iter().zip(streams).zip(types) {
        events.push(event_of(raw, log, stream, event_type)?);
    }
    Ok(events)
}

/// Verifies a row and adds its names.
pub(crate) fn event_of(
    raw: Raw,
    log: LogId,
    stream: StreamId,
    event_type: EventType,
) -> Result<RecordedEvent> {
    let corrupt = |what: &str| {
        let (position, revision) = (raw.position, raw.revision);
        Error::corrupt(format!(
            "log {log}, position {position}, stream {stream}, revision {revision}: {what}"
        ))
    };
    let Payload::Here { data, metadata } = &raw.payload else {
        return Err(corrupt("its payload is missing"));
    };
    let (content_type, data) =
        unpack(raw.content_type, data).map_err(|problem| corrupt(&problem))?;
    let row = RawRow {
        log,
        position: raw.position,
        stream: raw.stream,
        revision: raw.revision,
        event_id: raw.id.as_bytes(),
        event_type: raw.event_type,
        created: raw.created.0,
        content_type,
        writer: raw.writer,
        data: &data,
        metadata,
    };
    if row.checksum(raw.tags.as_slice().iter().map(Tag::as_str)) != raw.checksum {
        return Err(corrupt("its checksum is wrong"));
    }
    let content_type =
        content_type_from_code(content_type).map_err(|error| corrupt(&error.to_string()))?;
    let metadata = metadata.clone();
    Ok(RecordedEvent {
        stream,
        revision: revision_from_sql(raw.revision)?,
        log,
        position: position_from_sql(raw.position)?,
        id: EventId(raw.id),
        event_type,
        created: raw.created,
        content_type,
        data,
        metadata,
        tags: raw.tags,
    })
}

/// Returns the size above which payloads are left out of a statement for `rows` rows. The statement then moves at most
/// the bytes of two pages.
pub(crate) fn inline_bytes(rows: usize) -> i32 {
    let share = (2 * PAGE_BYTES_MAX / rows.max(1)).max(INLINE_BYTES_MIN);
    i32::try_from(share).unwrap_or(i32::MAX)
}

/// Fills a page until there are too many events or too many bytes.
struct Filling {
    limit: usize,
    events: Vec<RecordedEvent>,
    bytes: usize,
    complete: bool,
    last_writer: Option<WriterEpoch>,
}

impl Filling {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            events: Vec::new(),
            bytes: 0,
            complete: true,
            last_writer: None,
        }
    }

    /// Adds the next event. Returns false if the page was full already.
    fn take(&mut self, event: RecordedEvent) -> bool {
        let bytes = event.cost_bytes();
        let full = self.events.len() >= self.limit
            || (!self.events.is_empty() && self.bytes + bytes > PAGE_BYTES_MAX);
        if full {
            self.complete = false;
            return false;
        }
        self.bytes += bytes;
        self.events.push(event);
        true
    }

    /// Drops rows that cannot be part of the page any more: before their payloads are fetched, and once more before
    /// they are unpacked. One row beyond the end stays, to tell that there is more.
    fn trim(&self, raws: &mut Vec<Raw>) {
        let mut bytes = self.bytes;
        let mut held = !self.events.is_empty();
        let end = raws.iter().position(|raw| {
            let full = held && bytes + raw.cost_bytes() > PAGE_BYTES_MAX;
            bytes += raw.cost_bytes();
            held = true;
            full
        });
        if let Some(end) = end {
            raws.truncate(end + 1);
        }
    }

    fn finish(self) -> Rows {
        Rows {
            events: self.events,
            complete: self.complete,
            last_writer: self.last_writer,
        }
    }
}

/// Reads a part of a stream.
pub(crate) struct ReadStreamPage<'a> {
    pub(crate) names: &'a Names,
    pub(crate) slice: &'a StreamSlice,
}

impl Read for ReadStreamPage<'_> {
    type Answer = Rows;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Rows> {
        stream_page(reader, self.names, self.slice).await
    }
}

async fn stream_page(
    reader: &mut PooledReader,
    names: &Names,
    slice: &StreamSlice,
) -> ReadResult<Rows> {
    let sql = match slice.direction {
        Direction::Forwards => READ_STREAM_FORWARDS,
        Direction::Backwards => READ_STREAM_BACKWARDS,
    };
    // One row more than wanted tells whether there is more.
    let rows_max = slice.limit.saturating_add(1);
    let log = log_number(slice.log)?;
    let (mut from, mut to) = (bound(slice.from.0), bound(slice.to.0));
    let (rows, inline) = (
        i64::try_from(rows_max).unwrap_or(i64::MAX),
        inline_bytes(rows_max),
    );
    let stream = bound(slice.stream_row.0);
    let created_from = slice.created_from.map(Moment);
    let mut filling = Filling::new(slice.limit);
    loop {
        let params: [&(dyn ToSql + Sync); 7] =
            [&log, &from, &to, &rows, &inline, &stream, &created_from];
        let mut page = fetch(reader, sql, &params, rows_max, PAGE_BYTES_MAX).await?;
        saw(reader, slice.log, &page)?;
        filling.trim(&mut page.raws);
        let last = page.raws.last().map(|raw| raw.revision);
        fill(reader, &mut [(slice.log, &mut page.raws)]).await?;
        filling.trim(&mut page.raws);
        let events = recorded(reader, names, slice.log, page.raws).await?;
        let all_taken = events.into_iter().all(|event| filling.take(event));
        // Another round is needed only if rows vanished between the statements.
        let Some(last) = last.filter(|_| all_taken && !page.exhausted) else {
            return Ok(filling.finish());
        };
        match slice.direction {
            Direction::Forwards => from = last.saturating_add(1),
            Direction::Backwards => to = last - 1,
        }
    }
}

/// Reads a part of a log.
pub(crate) struct ReadLogPage<'a> {
    pub(crate) names: &'a Names,
    pub(crate) slice: &'a LogSlice,
}

impl Read for ReadLogPage<'_> {
    type Answer = Rows;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Rows> {
        log_page(reader, self.names, self.slice).await
    }
}

async fn log_page(reader: &mut PooledReader, names: &Names, slice: &LogSlice) -> ReadResult<Rows> {
    let narrowing = Narrowing::of(&slice.filter);
    let sql = match (&narrowing, slice.direction) {
        (Narrowing::Nothing, Direction::Forwards) => READ_LOG_FORWARDS,
        (Narrowing::Nothing, Direction::Backwards) => READ_LOG_BACKWARDS,
        (Narrowing::To(to), Direction::Forwards) if to.tags_any.is_some() => {
            READ_LOG_TAGGED_FORWARDS
        }
        (Narrowing::To(to), Direction::Backwards) if to.tags_any.is_some() => {
            READ_LOG_TAGGED_BACKWARDS
        }
        (Narrowing::To(_), Direction::Forwards) => READ_LOG_FILTERED_FORWARDS,
        (Narrowing::To(_), Direction::Backwards) => READ_LOG_FILTERED_BACKWARDS,
    };
    let rows_max = slice.limit.saturating_add(1);
    let log = log_number(slice.log)?;
    let (mut after, mut to) = (bound(slice.after.0), bound(slice.to.0));
    let (rows, inline) = (
        i64::try_from(rows_max).unwrap_or(i64::MAX),
        inline_bytes(rows_max),
    );
    let mut filling = Filling::new(slice.limit);
    loop {
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&log, &after, &to, &rows, &inline];
        if let Narrowing::To(conditions) = &narrowing {
            params.extend(conditions.params());
        }
        let left = PAGE_BYTES_MAX.saturating_sub(filling.bytes);
        let mut page = fetch(reader, sql, &params, rows_max, left).await?;
        saw(reader, slice.log, &page)?;
        filling.trim(&mut page.raws);
        let last = page.raws.last().map(|raw| raw.position);
        fill(reader, &mut [(slice.log, &mut page.raws)]).await?;
        filling.trim(&mut page.raws);
        let writers: Vec<i64> = page.raws.iter().map(|raw| raw.writer).collect();
        let events = recorded(reader, names, slice.log, page.raws).await?;
        let mut matching = events
            .into_iter()
            .zip(writers)
            .filter(|(event, _)| slice.filter.matches(event));
        let all_taken = matching.all(|(event, writer)| {
            let taken = filling.take(event);
            if taken {
                filling.last_writer = Some(WriterEpoch(writer));
            }
            taken
        });
        let Some(last) = last.filter(|_| all_taken && !page.exhausted) else {
            return Ok(filling.finish());
        };
        match slice.direction {
            Direction::Forwards => after = last,
            Direction::Backwards => to = last - 1,
        }
    }
}
