//! Seeks the first event of a part of the log that passes the filter of a condition.
//!
//! A query with tags is answered from the index of tags, by its first tag; the events that carry it are compared here.
//! A query without a tag has no index: the part is looked through, and so it must be short.

use gesta_core::backend::{Backend, LogSlice};
use gesta_core::limits::PAGE_SCAN_MAX;
use gesta_core::{Direction, Error, Filter, LogId, Position, Query, RecordedEvent, Result};

use crate::sequencer::job::MatchSearch;

/// The greatest number of events that are read at once.
const PAGE: usize = 256;
/// The greatest number of positions that are looked through for a query without a tag.
const UNTAGGED_MAX: u64 = 2 * PAGE_SCAN_MAX;
/// The greatest number of events with the first tag of a query that are compared with the query.
const CANDIDATES_MAX: usize = 100_000;

/// Returns the position of the first event that passes.
///
/// # Errors
/// `InvalidArgument` if a query without a tag is about too long a part of the log; the errors of the backend.
pub(super) async fn first_match(
    backend: &dyn Backend,
    log: LogId,
    search: &MatchSearch,
) -> Result<Option<Position>> {
    let (tagged, untagged): (Vec<&Query>, Vec<&Query>) = search
        .filter
        .any_of
        .iter()
        .partition(|query| !query.tags.is_empty());
    let length = search.until.0.saturating_sub(search.after.0);
    if !untagged.is_empty() && length > UNTAGGED_MAX {
        let rule = format!(
            "must name a tag in each query, or begin at most {UNTAGGED_MAX} positions before the end of the log: \
             without a tag all {length} events after the checkpoint would have to be looked through"
        );
        return Err(Error::invalid("conditions.no_match", rule));
    }
    let mut first: Option<Position> = None;
    for query in tagged {
        let indexed = Query {
            tags: query.tags.iter().take(1).cloned().collect(),
            ..Query::default()
        };
        let until = before(first, search.until);
        let found = seek(
            backend,
            log,
            Filter::query(indexed),
            search.after,
            until,
            |event| query.matches(event),
        );
        first = found.await?.or(first);
    }
    if !untagged.is_empty() {
        let any_of = Filter {
            any_of: untagged.into_iter().cloned().collect(),
        };
        let mut after = search.after;
        let until = before(first, search.until);
        while after < until {
            let to = until.min(after.plus(PAGE_SCAN_MAX));
            let found = seek(backend, log, any_of.clone(), after, to, |_| true).await?;
            if found.is_some() {
                return Ok(found);
            }
            after = to;
        }
    }
    Ok(first)
}

/// Returns the last position that is still to be looked at, if an event was found already.
fn before(first: Option<Position>, until: Position) -> Position {
    first.map_or(until, |first| Position(first.0.saturating_sub(1)))
}

/// Reads the events that pass `filter` in the order of the log, until one passes `is_it` as well.
async fn seek(
    backend: &dyn Backend,
    log: LogId,
    filter: Filter,
    mut after: Position,
    to: Position,
    is_it: impl Fn(&RecordedEvent) -> bool,
) -> Result<Option<Position>> {
    let mut looked_at = 0;
    while after < to {
        let slice = LogSlice {
            log,
            after,
            to,
            direction: Direction::Forwards,
            filter: filter.clone(),
            limit: PAGE,
        };
        let rows = backend.read_log(slice).await?;
        let mut events = rows.events.iter();
        let found = events.find(|event| !event.stream.is_system() && is_it(event));
        if let Some(event) = found {
            return Ok(Some(event.position));
        }
        match rows.events.last() {
            Some(last) if !rows.complete => {
                after = last.position;
                looked_at += rows.events.len();
                if looked_at > CANDIDATES_MAX {
                    let rule = format!(
                        "must begin later, or name a rarer tag first in each query: more than {CANDIDATES_MAX} events \
                         carry the first one"
                    );
                    return Err(Error::invalid("conditions.no_match", rule));
                }
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}
