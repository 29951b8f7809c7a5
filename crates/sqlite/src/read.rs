//! Pages of events are read here: of a stream, of several streams, and of the log.
//!
//! A page is decoded row by row while SQLite steps: payloads are copied once, names come from the cache, the checksum
//! of every row is checked. A page ends at its limit of events or bytes; the statement is then not stepped any further.
//! Not here: which rows a filter can leave out early (`filter`).

use gesta_core::backend::{LogSlice, Rows, StreamSlice};
use gesta_core::{Direction, RecordedEvent, Revision, Timestamp};
use gesta_sql::to_sql;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Outcome;
use crate::filter::{self, Sieve};
use crate::names::Names;
use crate::page::{Page, log_page_of};
use crate::row::{decode, int, out_of_order};

/// Largest number of events in one answer about several streams.
const STREAMS_EVENTS_MAX: usize = 65_536;

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

/// Returns the largest number of events that a part of a stream can give.
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

/// Finds the first revision of a stream between `from` and `to` that was not stored before `created_from`. It bisects,
/// because `created` never decreases along revisions.
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
