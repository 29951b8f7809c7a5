//! Converts the numbers of logs and positions to those of SQL.

use gesta_core::{Error, LogId, Position, Result};

/// The position of the row that closes a log in a database. It is after every position that a log can have. While the
/// row is there it is the last row of the log, so no chained insert finds its predecessor to be the last, and none can
/// be chained to it.
pub(crate) const CLOSED: i64 = i64::MAX;

/// Converts the number of a log.
pub(crate) fn log_number(log: LogId) -> Result<i16> {
    i16::try_from(log.0)
        .map_err(|_| Error::invalid("log", format!("must be at most {}, found {log}", i16::MAX)))
}

/// Converts a bound. All values above the range of SQL mean the same.
pub(crate) fn bound(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Converts positions. Those out of range are left out, since they match nothing.
pub(crate) fn numbers(positions: &[Position]) -> Vec<i64> {
    positions
        .iter()
        .filter_map(|position| i64::try_from(position.0).ok())
        .collect()
}
