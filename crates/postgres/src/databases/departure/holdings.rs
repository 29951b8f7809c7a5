//! What a store that moves holds, and what it must hold to be closed and shut.

use gesta_core::Incarnation;
use tokio_postgres::{Client, Row};

use super::Driver;

const READ_STORE: &str = include_str!("../../../sql/read_store.sql");
const READ_STAND: &str = include_str!("../../../sql/read_stand.sql");
const READ_MARKS: &str = include_str!("../../../sql/read_marks.sql");
const READ_CHECKSUM: &str = include_str!("../../../sql/read_checksum.sql");
const READ_SCAVENGED: &str = include_str!("../../../sql/read_scavenged.sql");

/// A row of a log. Position 0 stands for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogMark {
    /// The position of the row.
    pub position: i64,
    /// Its checksum.
    pub checksum: i64,
}

/// What a store holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The incarnation.
    pub incarnation: Incarnation,
    /// The last row of each log.
    pub marks: Vec<LogMark>,
    /// How many events were scavenged.
    pub scavenged: u64,
    /// Whether virtual streams are switched on.
    pub virtual_streams: bool,
}

/// Why a store was not closed, or not shut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotClosed {
    /// Statements of others are under way that last (see [`Departure::blockers`](super::Departure::blockers)). Nothing
    /// is wrong.
    Busy,
    /// It has more than what was seen: newer events, or virtual streams were switched on or off.
    Changed,
    /// Events were scavenged since.
    Scavenged,
    /// The store does not have what was copied, or has another incarnation: commits were lost.
    OtherHistory,
}

pub(super) async fn ends(client: &Client, role: &str) -> Driver<Ends> {
    let store = client.query_one(READ_STORE, &[]).await?;
    let stand = client.query_one(READ_STAND, &[&role]).await?;
    let scavenged = client.query_one(READ_SCAVENGED, &[]).await?;
    let marks = client.query(READ_MARKS, &[]).await?;
    let mark = |row: &Row| {
        Ok(LogMark {
            position: row.try_get::<_, Option<i64>>(0)?.unwrap_or(0),
            checksum: row.try_get::<_, Option<i64>>(1)?.unwrap_or(0),
        })
    };
    Ok(Ends {
        incarnation: Incarnation(store.try_get(2)?),
        marks: marks.iter().map(mark).collect::<Driver<_>>()?,
        scavenged: scavenged.try_get::<_, i64>(0)?.unsigned_abs(),
        virtual_streams: stand.try_get("virtual_streams")?,
    })
}

pub(super) async fn has(client: &Client, log: i16, mark: LogMark) -> Driver<bool> {
    if mark.position == 0 {
        return Ok(true);
    }
    let row = client
        .query_opt(READ_CHECKSUM, &[&log, &mark.position])
        .await?;
    let found: Option<i64> = row.map(|row| row.try_get(0)).transpose()?;
    Ok(found == Some(mark.checksum))
}

/// Tells why a store must not be closed that was seen so; `Ok` if it has the same history, as far as that is known
/// without its rows. There may be more rows.
pub(super) fn has_same_history(found: &Ends, seen: &Ends) -> std::result::Result<(), NotClosed> {
    if found.incarnation != seen.incarnation || found.marks.len() != seen.marks.len() {
        return Err(NotClosed::OtherHistory);
    }
    if found.scavenged != seen.scavenged {
        return Err(NotClosed::Scavenged);
    }
    match found.virtual_streams == seen.virtual_streams {
        true => Ok(()),
        false => Err(NotClosed::Changed),
    }
}

/// Tells why a store must not be shut that was seen so; `Ok` if it holds exactly that.
pub(super) fn is_all(found: &Ends, seen: &Ends) -> std::result::Result<(), NotClosed> {
    has_same_history(found, seen)?;
    let mut is_more = false;
    for (found, seen) in found.marks.iter().zip(&seen.marks) {
        if found.position > seen.position {
            is_more = true;
        } else if found != seen {
            return Err(NotClosed::OtherHistory);
        }
    }
    match is_more {
        true => Err(NotClosed::Changed),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn seen() -> Ends {
        let mark = |position, checksum| LogMark { position, checksum };
        Ends {
            incarnation: Incarnation(Uuid::from_u128(1)),
            marks: vec![mark(7, 70), mark(0, 0)],
            scavenged: 2,
            virtual_streams: false,
        }
    }

    /// Goal: what was seen is compared whole, so a store is shut only with what was copied.
    #[test]
    fn whatever_is_otherwise_than_it_was_seen_stops_the_shutting() {
        type Change = fn(&mut Ends);
        let changes: [(Change, NotClosed); 8] = [
            (|ends| ends.scavenged = 3, NotClosed::Scavenged),
            (|ends| ends.virtual_streams = true, NotClosed::Changed),
            (|ends| ends.marks[0].position = 8, NotClosed::Changed),
            (|ends| ends.marks[1].position = 1, NotClosed::Changed),
            (|ends| ends.marks[0].position = 6, NotClosed::OtherHistory),
            (|ends| ends.marks[0].checksum = 71, NotClosed::OtherHistory),
            (|ends| ends.marks.truncate(1), NotClosed::OtherHistory),
            (
                |ends| ends.incarnation = Incarnation(Uuid::from_u128(2)),
                NotClosed::OtherHistory,
            ),
        ];
        assert_eq!(is_all(&seen(), &seen()), Ok(()));
        for (number, (change, why)) in changes.into_iter().enumerate() {
            let mut found = seen();
            change(&mut found);
            assert_eq!(is_all(&found, &seen()), Err(why), "change {number}");
        }
        // Lost rows count more than new ones.
        let mut found = seen();
        found.marks[0].position = 6;
        found.marks[1].position = 1;
        assert_eq!(is_all(&found, &seen()), Err(NotClosed::OtherHistory));
    }
}
