//! Compares the rows of a log with a copy of them in another database.
//!
//! Invariant: a row is told by its position and its writer, never by its position alone, since positions are used again
//! after commits were lost. A row that only a copy has counts as scavenged only if the database says that it has
//! scavenged that revision of that stream. Before a row that both have, that is proven, since batches are chained;
//! after the last of these, it may be a row of another history. Not here: copying (`relocation`), which therefore
//! begins at the last row that both have.

use gesta_core::backend::WriterEpoch;
use gesta_core::{LogId, Position, Result};
use gesta_sql::position_from_sql;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use crate::connect::pool::ReadError;
use crate::error;
use crate::log_map::RowMark;
use crate::map;
use crate::map::SoughtRow;
use crate::sql_numbers::{CLOSED, bound, log_number};

const READ_COPIED_ROWS: &str = include_str!("../../sql/read_copied_rows.sql");
const READ_HELD: &str = include_str!("../../sql/read_held.sql");

/// How many rows are compared at once.
pub(crate) const COMPARED_ROWS: i64 = 10_000;

type Driver<T> = std::result::Result<T, tokio_postgres::Error>;

/// What is compared of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopiedRow {
    pub(crate) position: i64,
    writer: i64,
    stream: i64,
    revision: i64,
}

impl CopiedRow {
    fn of(row: &Row) -> Driver<Self> {
        Ok(Self {
            position: row.try_get(0)?,
            writer: row.try_get(1)?,
            stream: row.try_get(2)?,
            revision: row.try_get(3)?,
        })
    }

    fn asked(&self, log: LogId) -> SoughtRow {
        SoughtRow {
            log,
            mark: RowMark {
                position: Position(self.position.unsigned_abs()),
                writer: WriterEpoch(self.writer),
            },
            event: Some((self.stream, self.revision)),
        }
    }
}

/// How a copy differs from what was copied.
#[derive(PartialEq, Eq, Debug)]
struct Differences {
    /// The first position at which the copy holds another row, or none.
    first: Option<i64>,
    /// The rows that only the copy has. They were scavenged since, or were never there.
    surplus: Vec<CopiedRow>,
}

/// Compares rows of a log with those of a copy; both are ordered by position.
fn differences(here: &[CopiedRow], there: &[CopiedRow]) -> Differences {
    let find = |rows: &[CopiedRow], position: i64| {
        let at = rows.binary_search_by_key(&position, |row| row.position);
        at.ok().map(|at| rows[at])
    };
    let other = here
        .iter()
        .find(|row| find(there, row.position) != Some(**row));
    let only_there = there
        .iter()
        .filter(|row| find(here, row.position).is_none());
    Differences {
        first: other.map(|row| row.position),
        surplus: only_there.copied().collect(),
    }
}

/// Reads rows of a log after a position and up to another one, without the row that closes the log.
pub(crate) async fn rows(
    client: &Client,
    log: LogId,
    after: Position,
    to: Position,
    rows: i64,
) -> Result<Vec<CopiedRow>> {
    let number = log_number(log)?;
    let (after, to) = (bound(after.0), bound(to.0).min(CLOSED - 1));
    let binds: [&(dyn ToSql + Sync); 4] = [&number, &after, &to, &rows];
    let found = client.query(READ_COPIED_ROWS, &binds).await;
    let found = found.map_err(|error| error::general(&error))?;
    let rows = found.iter().map(CopiedRow::of).collect::<Driver<_>>();
    rows.map_err(|error| error::general(&error))
}

/// Returns the last position of a log, without the row that closes it.
pub(crate) async fn last_position(client: &Client, log: LogId) -> Result<Position> {
    let held = client.query(READ_HELD, &[]).await;
    let held = held.map_err(|error| error::general(&error))?;
    let last = held.get(usize::from(log.0)).map(map::held_row);
    let last = last.transpose().map_err(ReadError::into_error)?;
    Ok(last
        .flatten()
        .map_or(Position::START, |row| row.mark.position))
}

/// Returns the first position at which a copy of these rows differs by more than what was scavenged by `client`.
pub(crate) async fn first_difference(
    client: &Client,
    log: LogId,
    here: &[CopiedRow],
    there: &[CopiedRow],
) -> Result<Option<i64>> {
    let Differences { first, surplus } = differences(here, there);
    let never_here = never_had(client, log, &surplus).await?;
    Ok([first, never_here].into_iter().flatten().min())
}

/// Returns the first position of a row that a database neither has nor has scavenged.
async fn never_had(client: &Client, log: LogId, rows: &[CopiedRow]) -> Result<Option<i64>> {
    if rows.is_empty() {
        return Ok(None);
    }
    let asked: Vec<SoughtRow> = rows.iter().map(|row| row.asked(log)).collect();
    let shown = map::shows(client, &asked).await;
    let shown = shown.map_err(ReadError::into_error)?;
    let mut never = rows.iter().zip(shown).filter(|(_, shown)| !shown.shows);
    Ok(never.next().map(|(row, _)| row.position))
}

/// Returns the first position, up to `up_to`, at which `copy` has a row that `home` neither has nor has scavenged.
pub(crate) async fn first_unknown(
    home: &Client,
    copy: &Client,
    log: LogId,
    up_to: Position,
) -> Result<Option<Position>> {
    let mut after = Position::START;
    loop {
        let there = rows(copy, log, after, up_to, COMPARED_ROWS).await?;
        let Some(last) = there.last() else {
            return Ok(None);
        };
        let end = position_from_sql(last.position)?;
        let here = rows(home, log, after, end, i64::MAX).await?;
        let is_other = |row: &&CopiedRow| {
            here.binary_search_by_key(&row.position, |one| one.position)
                .map(|at| here[at])
                != Ok(**row)
        };
        let others: Vec<CopiedRow> = there.iter().filter(is_other).copied().collect();
        if let Some(first) = never_had(home, log, &others).await? {
            return position_from_sql(first).map(Some);
        }
        after = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(of: &[(i64, i64)]) -> Vec<CopiedRow> {
        let row = |(position, writer): &(i64, i64)| CopiedRow {
            position: *position,
            writer: *writer,
            stream: 1,
            revision: *position,
        };
        of.iter().map(row).collect()
    }

    /// Goal: a copy that has the same positions by other writers is another history.
    #[test]
    fn copies_are_compared_by_position_and_writer() {
        let here = rows(&[(1, 7), (3, 7), (4, 8)]);
        let same = differences(&here, &here);
        assert_eq!((same.first, same.surplus.len()), (None, 0));
        let other = differences(&here, &rows(&[(1, 7), (3, 9), (4, 9)]));
        assert_eq!((other.first, other.surplus.len()), (Some(3), 0));
        let scavenged = differences(&here, &rows(&[(1, 7), (2, 7), (3, 7), (4, 8)]));
        assert_eq!(scavenged.first, None);
        assert_eq!(scavenged.surplus, rows(&[(2, 7)]));
        let gap = differences(&here, &rows(&[(1, 7), (4, 8)]));
        assert_eq!(gap.first, Some(3));
    }
}
