//! Events that a filter cannot want are left out early here.
//!
//! Leaving out is always conservative: whatever passes here is checked again with `Filter::matches`, on the decoded
//! event.
//! * If every query names a tag, only the positions that the tag index gives are looked at.
//! * Otherwise the log is scanned, and a row is decoded only if one of the queries can want its stream, its type, and
//!   the presence of tags. That is decided once per stream and type: each has a set of queries that accept it.

use std::collections::{BTreeSet, HashMap};

use gesta_core::backend::{LogSlice, Rows};
use gesta_core::{Direction, Filter, Query, Tag};
use rusqlite::{Connection, Row, params};

use crate::error::Outcome;
use crate::names::Names;
use crate::page::log_page_of;
use crate::row::{event_at, int, out_of_order};

/// A set of queries, one bit for each. With more queries than bits every query counts as accepting.
type Queries = u128;
/// Largest number of streams whose answer is kept during one page.
const STREAMS_REMEMBERED_MAX: usize = 100_000;
/// Number of candidates fetched from the tag index at once, per query.
const CANDIDATES: usize = 1_000;

/// Decides which rows of a scan can match a filter.
pub(crate) struct Sieve<'a> {
    queries: &'a [Query],
    /// Queries that accept events without tags.
    untagged: Queries,
    streams: HashMap<i64, Queries>,
    types: HashMap<i64, Queries>,
}

impl<'a> Sieve<'a> {
    /// Makes the sieve of a filter; `None` if every event passes the filter.
    pub(crate) fn new(filter: &'a Filter) -> Option<Self> {
        if filter.is_all() {
            return None;
        }
        let queries = filter.any_of.as_slice();
        Some(Self {
            queries,
            untagged: accepting(queries, |query| query.tags.is_empty()),
            streams: HashMap::new(),
            types: HashMap::new(),
        })
    }

    /// Returns true if a query can want this row. It reads only the small columns.
    pub(crate) fn may_pass(
        &mut self,
        conn: &Connection,
        names: &mut Names,
        row: &Row<'_>,
    ) -> Outcome<bool> {
        let stream = int(row, 1)?;
        let mut left = match self.streams.get(&stream) {
            Some(known) => *known,
            None => {
                let name = names.stream(conn, stream)?;
                let known = accepting(self.queries, |query| query.matches_stream(&name));
                if self.streams.len() >= STREAMS_REMEMBERED_MAX {
                    self.streams.clear();
                }
                self.streams.insert(stream, known);
                known
            }
        };
        if left == 0 {
            return Ok(false);
        }
        let event_type = int(row, 4)?;
        left &= match self.types.get(&event_type) {
            Some(known) => *known,
            None => {
                let name = names.event_type(conn, event_type)?;
                let known = accepting(self.queries, |query| {
                    query.types.is_empty() || query.types.contains(&name)
                });
                self.types.insert(event_type, known);
                known
            }
        };
        if left & self.untagged != 0 {
            return Ok(true);
        }
        // Only queries with tags are left.
        Ok(left != 0 && row.get_ref(9)? != rusqlite::types::ValueRef::Null)
    }
}

fn accepting(queries: &[Query], accepts: impl Fn(&Query) -> bool) -> Queries {
    let bits = (0..Queries::BITS)
        .zip(queries)
        .fold(0, |set, (bit, query)| {
            if accepts(query) {
                set | (1 << bit)
            } else {
                set
            }
        });
    // More queries than bits: never leave anything out for them.
    if queries.len() > 128 {
        Queries::MAX
    } else {
        bits
    }
}

/// Reads a part of the log through the tag index. Every query of the filter must name at least one tag.
pub(crate) fn tagged_page(
    conn: &Connection,
    names: &mut Names,
    slice: &LogSlice,
    after: i64,
    to: i64,
) -> Outcome<Rows> {
    let forwards = slice.direction == Direction::Forwards;
    let mut page = log_page_of(slice);
    let (mut after, mut to) = (after, to);
    loop {
        let (candidates, horizon) =
            candidates(conn, &slice.filter.any_of, slice.direction, after, to)?;
        let in_order: Box<dyn Iterator<Item = &i64>> = if forwards {
            Box::new(candidates.iter())
        } else {
            Box::new(candidates.iter().rev())
        };
        for position in in_order {
            let Some(event) = event_at(conn, names, *position)? else {
                continue;
            };
            if slice.filter.matches(&event) && !page.push(event)? {
                return Ok(page.finish());
            }
        }
        match horizon {
            None => return Ok(page.finish()),
            Some(seen) if seen <= after || seen > to => return Err(out_of_order(seen).into()),
            Some(seen) if forwards => after = seen,
            Some(seen) => to = seen.saturating_sub(1),
        }
    }
}

/// Finds the positions after `after` and up to `to` that one of the queries can want. The second part of the answer is
/// the last position up to which the first part is complete; `None` if it is complete to the end.
fn candidates(
    conn: &Connection,
    queries: &[Query],
    direction: Direction,
    after: i64,
    to: i64,
) -> Outcome<(BTreeSet<i64>, Option<i64>)> {
    let forwards = direction == Direction::Forwards;
    let mut found = BTreeSet::new();
    let mut horizon: Option<i64> = None;
    for query in queries {
        let (positions, cut) = query_candidates(conn, &query.tags, direction, after, to)?;
        found.extend(positions);
        horizon = match (horizon, cut) {
            (Some(a), Some(b)) => Some(if forwards { a.min(b) } else { a.max(b) }),
            (a, b) => a.or(b),
        };
    }
    if let Some(seen) = horizon {
        found.retain(|position| {
            if forwards {
                *position <= seen
            } else {
                *position >= seen
            }
        });
    }
    Ok((found, horizon))
}

/// Finds the next positions that carry all of `tags`. The second part of the answer is the last position looked at, if
/// there may be more.
fn query_candidates(
    conn: &Connection,
    tags: &[Tag],
    direction: Direction,
    after: i64,
    to: i64,
) -> Outcome<(Vec<i64>, Option<i64>)> {
    let Some((first, others)) = tags.split_first() else {
        return Ok((Vec::new(), None));
    };
    let sql = match direction {
        Direction::Forwards => include_str!("../sql/select_tag_positions_forwards.sql"),
        Direction::Backwards => include_str!("../sql/select_tag_positions_backwards.sql"),
    };
    let mut statement = conn.prepare_cached(sql)?;
    let mut carries = conn.prepare_cached(include_str!("../sql/select_tag_at_position.sql"))?;
    let mut rows = statement.query(params![first.as_str(), after, to])?;
    let mut found = Vec::new();
    let mut looked_at = 0;
    while let Some(row) = rows.next()? {
        let position = int(row, 0)?;
        let mut all = true;
        for tag in others {
            all = all && carries.exists(params![tag.as_str(), position])?;
        }
        if all {
            found.push(position);
        }
        looked_at += 1;
        if found.len() == CANDIDATES || looked_at == CANDIDATES * 50 {
            return Ok((found, Some(position)));
        }
    }
    Ok((found, None))
}
