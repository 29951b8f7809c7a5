//! Scavenging: the events of a stream that its metadata hide are removed.
//!
//! Invariants: what is removed is always the beginning of a stream. The table `scavenges` says up to where, in the same
//! transaction, so revisions are not used again and the audit can tell a removed event from a lost one. The last row of
//! the log stays, because appends are chained to it. Each transaction removes a bounded number of events, so that
//! appends get their turn between them.

use gesta_core::backend::{Removed, RowId};
use gesta_core::{Position, Revision, Timestamp, Visibility};
use gesta_sql::{position_from_sql, revision_from_sql};
use rusqlite::{Connection, params};

use crate::append::{commit, end_transaction};
use crate::error::Outcome;
use crate::lookup::log_end;
use crate::row::{int, out_of_order, row_to_sql};

/// Largest number of events removed in one transaction.
const EVENTS_PER_TRANSACTION: usize = 1_000;

/// An event that is to be removed.
struct Hidden {
    position: i64,
    revision: i64,
    tags: Option<String>,
    payload_bytes: u64,
}

/// Finds the hidden events at the beginning of a stream, at most `limit`.
fn hidden(
    conn: &Connection,
    stream: RowId,
    visibility: Visibility,
    limit: usize,
) -> Outcome<Vec<Hidden>> {
    let last: Position = log_end(conn)?.position;
    let mut statement = conn.prepare_cached(include_str!("../sql/select_stream_sizes.sql"))?;
    let mut rows = statement.query([row_to_sql(stream)?])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let (position, revision) = (int(row, 0)?, int(row, 1)?);
        let shown = visibility.shows(revision_from_sql(revision)?, Timestamp(int(row, 2)?));
        if found.len() == limit || shown || position_from_sql(position)? == last {
            break;
        }
        let tags = row.get(3)?;
        let payload_bytes = u64::try_from(int(row, 4)?).unwrap_or(0);
        found.push(Hidden {
            position,
            revision,
            tags,
            payload_bytes,
        });
    }
    Ok(found)
}

fn sum(hidden: &[Hidden]) -> Removed {
    Removed {
        events: u64::try_from(hidden.len()).unwrap_or(u64::MAX),
        payload_bytes: hidden.iter().map(|event| event.payload_bytes).sum(),
    }
}

/// Counts what would be removed, and removes nothing.
pub(crate) fn count(conn: &Connection, stream: RowId, visibility: Visibility) -> Outcome<Removed> {
    Ok(sum(&hidden(conn, stream, visibility, usize::MAX)?))
}

/// Removes the next events in one transaction. The answer counts zero events once none is left.
pub(crate) fn remove_some(
    conn: &Connection,
    stream: RowId,
    visibility: Visibility,
) -> Outcome<Removed> {
    let result = remove_in_transaction(conn, stream, visibility);
    let ended = end_transaction(conn);
    let removed = result?;
    ended?;
    Ok(removed)
}

fn remove_in_transaction(
    conn: &Connection,
    stream: RowId,
    visibility: Visibility,
) -> Outcome<Removed> {
    conn.prepare_cached(include_str!("../sql/begin_write.sql"))?
        .execute([])?;
    let gone = hidden(conn, stream, visibility, EVENTS_PER_TRANSACTION)?;
    let Some(last) = gone.last() else {
        return Ok(Removed::default());
    };
    conn.prepare_cached(include_str!("../sql/insert_retention.sql"))?
        .execute([])?;
    let mut delete_event = conn.prepare_cached(include_str!("../sql/delete_event.sql"))?;
    let mut delete_tag = conn.prepare_cached(include_str!("../sql/delete_tag.sql"))?;
    for event in &gone {
        if delete_event.execute([event.position])? != 1 {
            return Err(out_of_order(event.position).into());
        }
        for tag in event.tags.iter().flat_map(|tags| tags.split('\n')) {
            delete_tag.execute(params![tag, event.position])?;
        }
    }
    let floor = Revision(revision_from_sql(last.revision)?.0.saturating_add(1));
    conn.prepare_cached(include_str!("../sql/upsert_scavenge.sql"))?
        .execute(params![
            row_to_sql(stream)?,
            gesta_sql::to_sql(floor.0, "revision")?,
            last.position
        ])?;
    conn.prepare_cached(include_str!("../sql/delete_retention.sql"))?
        .execute([])?;
    commit(conn)?;
    Ok(sum(&gone))
}
