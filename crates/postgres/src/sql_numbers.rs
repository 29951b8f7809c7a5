//! Numbers of logs and positions as SQL keeps them.

use gesta_core::{Error, LogId, Position, Result};

/// Where the row stands that closes a log in a database: above every position that a log can have. While it is there it
/// is the last row of the log, so no chained insert finds its predecessor to be the last, and none can be chained to it.
pub(crate) const CLOSED: i64 = i64::MAX;

/// A log as SQL keeps it.
pub(crate) fn log_number(log: LogId) -> Result<i16> {
    i16::try_from(log.0)
        .map_err(|_| Error::invalid("log", format!("must be at most {}, found {log}", i16::MAX)))
}

/// A bound as SQL keeps it: above its range everything is the same.
pub(crate) fn bound(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Positions as SQL keeps them; those out of range match nothing.
pub(crate) fn numbers(positions: &[Position]) -> Vec<i64> {
    positions
        .iter()
        .filter_map(|position| i64::try_from(position.0).ok())
        .collect()
}
