//! What is asked for by a reader that follows a log.

use crate::backend::LogSlice;
use crate::filter::Filter;
use crate::ids::{LogId, Position};
use crate::request::Direction;

/// Request to read what follows a position of a log, for a reader that follows the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogTail {
    /// Log to read.
    pub log: LogId,
    /// Position after which events are wanted, not included.
    pub after: Position,
    /// Highest position wanted, included; `None` if there is none.
    pub to: Option<Position>,
    /// Largest number of events in the answer.
    pub limit: usize,
}

impl From<LogTail> for LogSlice {
    fn from(tail: LogTail) -> Self {
        Self {
            log: tail.log,
            after: tail.after,
            to: tail.to.unwrap_or(Position::MAX),
            direction: Direction::Forwards,
            filter: Filter::ALL,
            limit: tail.limit,
        }
    }
}
