//! Reads the rows of a source in the order in which they are copied.
//!
//! The order: log by log, if the target has as many logs; else all logs together by time, then by the number of the
//! log. Within a log it is always that of the positions. It follows from the rows alone, so a copy that goes on finds
//! the same batches again.

use std::collections::VecDeque;

use gesta_core::{LogId, Result};
use gesta_sql::verify::{AuditRow, AuditSource};

/// How many rows are read at once.
const PAGE_ROWS: usize = 10_000;

/// In which order logs are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// One log after the other.
    ByLog,
    /// All logs together, by time.
    ByTime,
}

/// The rows of a source up to an end.
pub(crate) struct Reader {
    pub(crate) source: Box<dyn AuditSource>,
    order: Order,
    logs: Vec<Log>,
}

struct Log {
    /// The last position that was handed out.
    after: i64,
    /// The last position that was read.
    read: i64,
    end: i64,
    buffer: VecDeque<AuditRow>,
}

impl Log {
    fn is_over(&self) -> bool {
        self.buffer.is_empty() && self.read >= self.end
    }
}

impl Reader {
    /// Makes a reader of the rows after `after` and up to `ends`.
    pub(crate) fn new(
        source: Box<dyn AuditSource>,
        order: Order,
        after: &[i64],
        ends: &[i64],
    ) -> Self {
        let log = |(after, end): (&i64, &i64)| Log {
            after: *after,
            read: *after,
            end: *end,
            buffer: VecDeque::new(),
        };
        Self {
            source,
            order,
            logs: after.iter().zip(ends).map(log).collect(),
        }
    }

    /// Returns the last position of each log that was handed out.
    pub(crate) fn after(&self) -> Vec<i64> {
        self.logs.iter().map(|log| log.after).collect()
    }

    /// Reads the next rows, each with its log: as many as given, or fewer if they are large. None are left if there are
    /// none.
    pub(crate) async fn next(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<(u16, AuditRow)>> {
        let (mut rows, mut bytes) = (Vec::with_capacity(rows_max.min(100_000)), 0);
        while rows.len() < rows_max && bytes < bytes_max {
            let Some(at) = self.choose().await? else {
                break;
            };
            let log = &mut self.logs[at];
            let Some(row) = log.buffer.pop_front() else {
                break;
            };
            log.after = row.position;
            bytes += 200 + row.data.len() + row.metadata.len();
            rows.push((u16::try_from(at).unwrap_or(u16::MAX), row));
        }
        Ok(rows)
    }

    /// Returns the log whose row is next; `None` at the end.
    async fn choose(&mut self) -> Result<Option<usize>> {
        match self.order {
            Order::ByLog => {
                for at in 0..self.logs.len() {
                    self.fill(at).await?;
                    if !self.logs[at].is_over() {
                        return Ok(Some(at));
                    }
                }
                Ok(None)
            }
            Order::ByTime => {
                for at in 0..self.logs.len() {
                    self.fill(at).await?;
                }
                let first = |log: &Log| log.buffer.front().map(|row| row.created);
                let heads = self.logs.iter().enumerate();
                let heads = heads.filter_map(|(at, log)| Some((first(log)?, at)));
                Ok(heads.min().map(|(_, at)| at))
            }
        }
    }

    /// Reads rows of a log if none are buffered.
    async fn fill(&mut self, at: usize) -> Result<()> {
        let log = &mut self.logs[at];
        while log.buffer.is_empty() && log.read < log.end {
            let number = LogId(u16::try_from(at).unwrap_or(u16::MAX));
            let page = self.source.rows(number, log.read, PAGE_ROWS).await?;
            match page.last() {
                None => log.read = log.end,
                Some(last) => log.read = last.position,
            }
            let end = log.end;
            log.buffer
                .extend(page.into_iter().filter(|row| row.position <= end));
        }
        Ok(())
    }
}
