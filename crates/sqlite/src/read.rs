//! Pages of events: of a stream, and of the log.
//!
//! A page is decoded row by row while SQLite steps: payloads are copied once, names come from the cache, the checksum
//! of every row is checked. A page ends at its limit of events or bytes; the statement simply stops being stepped. Not
//! here: which rows a filter can leave out early (`filter`).

use gesta_core::backend::{LogSlice, RowId, Rows, StreamSlice, WriterEpoch};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{
    Direction, Error, EventId, LogId, Position, RecordedEvent, Revision, Tags, Timestamp,
};
use gesta_sql::{
    content_type_from_code, position_from_sql, recorded_checksum, revision_from_sql,
    row_id_from_sql, tags_from_text, to_sql,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use crate::error::Outcome;
use crate::filter::{self, Sieve};
use crate::names::Names;
use crate::payload::Payloads;

/// Most events for which a page takes memory before it has found any.
const PAGE_CAPACITY_MAX: usize = 1_024;
/// Most events in one answer about several streams.
const STREAMS_EVENTS_MAX: usize = 65_536;

/// A page being filled.
///
/// Rows must come in order, and inside the part asked for: what a damaged index gives back could otherwise lead a
/// caller, who goes on after the last event of a page, round in circles.
pub(crate) struct Page {
    direction: Direction,
    /// The last position taken, or the border of the part that is asked for.
    border: Option<Position>,
    limit: usize,
    bytes: usize,
    /// True if the first event is taken even if it is larger than what is left, so that the caller makes progress.
    takes_first: bool,
    payloads: Payloads,
    rows: Rows,
}

impl Page {
    pub(crate) fn new(limit: usize, direction: Direction, border: Option<Position>) -> Self {
        let events = Vec::with_capacity(limit.min(PAGE_CAPACITY_MAX));
        Self {
            direction,
            border,
            limit: limit.max(1),
            bytes: 0,
            takes_first: true,
            payloads: Payloads::default(),
            rows: Rows {
                events,
                complete: true,
                last_writer: None,
            },
        }
    }

    /// Takes an event; false if the page was full, and so is not complete.
    ///
    /// # Errors
    /// `Corrupt` if the event is out of order.
    pub(crate) fn push(&mut self, event: RecordedEvent) -> Outcome<bool> {
        let in_order = self.border.is_none_or(|border| match self.direction {
            Direction::Forwards => event.position > border,
            Direction::Backwards => event.position < border,
        });
        if !in_order {
            let position = event.position;
            return Err(out_of_order(position.0.cast_signed()).into());
        }
        self.border = Some(event.position);
        let bytes = self.bytes.saturating_add(event.cost_bytes());
        let full = self.rows.events.len() >= self.limit || bytes > PAGE_BYTES_MAX;
        if full && !(self.takes_first && self.rows.events.is_empty()) {
            self.rows.complete = false;
            return Ok(false);
        }
        self.bytes = bytes;
        self.rows.events.push(event);
        Ok(true)
    }

    /// True if no further event can be taken, so that the next one need not be decoded.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.events.len() >= self.limit
    }

    pub(crate) fn finish(self) -> Rows {
        self.rows
    }

    fn finish_incomplete(mut self) -> Rows {
        self.rows.complete = false;
        self.rows
    }
}

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

/// Reads a part of a stream.
pub(crate) fn stream_page(
    conn: &Connection,
    names: &mut Names,
    slice: &StreamSlice,
) -> Outcome<Rows> {
    let page = Page::new(slice.limit, slice.direction, None);
    fill_stream_page(conn, names, slice, page)
}

/// Reads parts of streams, one after the other, until they fill one page together.
pub(crate) fn streams_page(
    conn: &Connection,
    names: &mut Names,
    slices: &[StreamSlice],
) -> Outcome<Vec<Rows>> {
    let (mut events, mut bytes) = (0_usize, 0_usize);
    let mut full = false;
    let mut answer = Vec::with_capacity(slices.len());
    for slice in slices {
        let limit = wanted(slice).min(STREAMS_EVENTS_MAX.saturating_sub(events));
        let mut page = Page::new(limit, slice.direction, None);
        page.bytes = bytes;
        page.takes_first = events == 0;
        let rows = if full || limit == 0 {
            page.finish_incomplete()
        } else {
            fill_stream_page(conn, names, slice, page)?
        };
        let found = rows.events.len();
        // Ended by bytes, not by its own limit: then nothing after it is read.
        full |= !rows.complete && found < wanted(slice);
        events += found;
        bytes += rows
            .events
            .iter()
            .map(RecordedEvent::cost_bytes)
            .sum::<usize>();
        answer.push(rows);
    }
    Ok(answer)
}

/// Most events that a part of a stream can give.
fn wanted(slice: &StreamSlice) -> usize {
    let revisions = slice.to.0.saturating_sub(slice.from.0).saturating_add(1);
    slice
        .limit
        .min(usize::try_from(revisions).unwrap_or(usize::MAX))
}

fn fill_stream_page(
    conn: &Connection,
    names: &mut Names,
    slice: &StreamSlice,
    mut page: Page,
) -> Outcome<Rows> {
    let stream = to_sql(slice.stream_row.0, "stream")?;
    let to = to_sql(slice.to.0.min(Revision::MAX.0), "revision")?;
    let Ok(from) = to_sql(slice.from.0, "revision") else {
        return Ok(page.finish());
    };
    let from = match slice.created_from {
        None => from,
        Some(created_from) => match first_created(conn, stream, from, to, created_from)? {
            Some(from) => from,
            None => return Ok(page.finish()),
        },
    };
    let sql = match slice.direction {
        Direction::Forwards => include_str!("../sql/select_stream_forwards.sql"),
        Direction::Backwards => include_str!("../sql/select_stream_backwards.sql"),
    };
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params![stream, from, to])?;
    while let Some(row) = rows.next()? {
        if page.is_full() {
            return Ok(page.finish_incomplete());
        }
        let event = decode(conn, names, &mut page.payloads, row)?;
        if !(slice.from..=slice.to).contains(&event.revision) {
            return Err(out_of_order(int(row, 0)?).into());
        }
        if !page.push(event)? {
            break;
        }
    }
    Ok(page.finish())
}

/// The first revision of a stream between `from` and `to` that is not older than `created_from`, by bisection:
/// `created` never decreases along revisions.
fn first_created(
    conn: &Connection,
    stream: i64,
    from: i64,
    to: i64,
    created_from: Timestamp,
) -> Outcome<Option<i64>> {
    let mut statement =
        conn.prepare_cached(include_str!("../sql/select_created_from_revision.sql"))?;
    let mut probe = |revision: i64| -> rusqlite::Result<Option<(i64, i64)>> {
        let found = statement.query_row([stream, revision], |row| Ok((row.get(0)?, row.get(1)?)));
        Ok(found
            .optional()?
            .filter(|(revision, _): &(i64, i64)| *revision <= to))
    };
    // Invariant: everything below `low` is too old; `found` is new enough, or there is none at or above `high`.
    let (mut low, mut high, mut found) = (from, to.saturating_add(1), None);
    while low < high {
        let middle = low + (high - low) / 2;
        match probe(middle)? {
            Some((revision, created)) if created < created_from.0 => {
                low = revision.max(middle).saturating_add(1)
            }
            Some((revision, _)) => {
                found = Some(revision);
                high = middle;
            }
            None => high = middle,
        }
    }
    Ok(found)
}

/// An empty page for a part of the log.
pub(crate) fn log_page_of(slice: &LogSlice) -> Page {
    let border = match slice.direction {
        Direction::Forwards => slice.after,
        Direction::Backwards => slice.to.next(),
    };
    Page::new(slice.limit, slice.direction, Some(border))
}

/// Reads a part of the log.
pub(crate) fn log_page(conn: &Connection, names: &mut Names, slice: &LogSlice) -> Outcome<Rows> {
    let after = to_sql(slice.after.0.min(i64::MAX.cast_unsigned()), "position")?;
    let to = to_sql(slice.to.0.min(i64::MAX.cast_unsigned()), "position")?;
    if !slice.filter.is_all()
        && slice
            .filter
            .any_of
            .iter()
            .all(|query| !query.tags.is_empty())
    {
        return filter::tagged_page(conn, names, slice, after, to);
    }
    let mut sieve = Sieve::new(&slice.filter);
    let mut page = log_page_of(slice);
    let sql = match slice.direction {
        Direction::Forwards => include_str!("../sql/select_log_forwards.sql"),
        Direction::Backwards => include_str!("../sql/select_log_backwards.sql"),
    };
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([after, to])?;
    while let Some(row) = rows.next()? {
        if let Some(sieve) = &mut sieve {
            if !sieve.may_pass(conn, names, row)? {
                continue;
            }
            let event = decode(conn, names, &mut page.payloads, row)?;
            if slice.filter.matches(&event) && !page.push(event)? {
                break;
            }
            continue;
        }
        if page.is_full() {
            return Ok(page.finish_incomplete());
        }
        let event = decode(conn, names, &mut page.payloads, row)?;
        if !page.push(event)? {
            break;
        }
    }
    Ok(page.finish())
}

/// One event by its position; `None` if it was scavenged.
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

/// Row ids of a stream and its names are checked by their callers; this only spells a row id for SQL.
pub(crate) fn row_to_sql(row: RowId) -> Outcome<i64> {
    Ok(to_sql(row.0, "row id")?)
}
