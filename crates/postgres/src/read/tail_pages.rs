//! Reads what follows a position in each of several logs, in one statement.
//!
//! Why: a process that follows logs to which others append reads a few events of each, again and again, and most of the
//! cost of such a read is its statement.
//! Invariants: rows and bytes of one answer are bounded over all logs together; a log that was cut or left out because
//! of that is not `complete`. What is wrong with the rows of one log fails its answer alone, or the database refuses
//! the statement, and then each log is to be read by itself.
//! Not here: which reads go together, and when (`tails`); decoding and verifying rows (`read`).

use gesta_core::backend::{LogTail, Rows, WriterEpoch};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{Error, LogId, Result};
use gesta_sql::position_from_sql;
use tokio_postgres::types::ToSql;

use crate::connect::pool::{PooledReader, Read, ReadError, ReadResult};
use crate::error;
use crate::names::Names;
use crate::read::{Page, Raw, fetch, fill, inline_bytes, recorded};
use crate::sql_numbers::{CLOSED, bound, log_number};

const READ_TAILS: &str = include_str!("../../sql/read_tails.sql");

/// Reads the tails of logs.
pub(crate) struct ReadTails<'a> {
    pub(crate) names: &'a Names,
    pub(crate) tails: &'a [LogTail],
    /// Whether the database is one of several. Then a log may be closed in it, and what follows lies elsewhere.
    pub(crate) is_part: bool,
}

/// What a read of several tails gave.
pub(crate) enum Together {
    /// One answer per tail, in their order.
    Read(Vec<Result<Rows>>),
    /// The database answers, but what it says is no answer for any of the tails: it cannot read some row, or the
    /// statement took too long. Each tail by itself may be read.
    Refused(Error),
}

impl Read for ReadTails<'_> {
    type Answer = Together;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Together> {
        match self.read(reader).await {
            Ok(answers) => Ok(Together::Read(answers)),
            Err(ReadError::Driver(error)) if !error::is_lost(&error) => {
                Ok(Together::Refused(error::general(&error)))
            }
            Err(ReadError::Ours(error)) => Ok(Together::Refused(error)),
            Err(other) => Err(other),
        }
    }
}

impl ReadTails<'_> {
    /// Returns one answer per tail, in their order.
    async fn read(&self, reader: &mut PooledReader) -> ReadResult<Vec<Result<Rows>>> {
        let page = fetch_tails(reader, self.tails).await?;
        let mut parts = divide(self.tails, page)?;
        for part in &parts {
            if let Some(last) = part.raws.last() {
                let position = position_from_sql(last.position)?;
                reader.saw(part.log, position, WriterEpoch(last.writer));
            }
        }
        trim(&mut parts);
        let mut raws: Vec<_> = parts
            .iter_mut()
            .map(|part| (part.log, &mut part.raws))
            .collect();
        fill(reader, &mut raws).await?;
        // Compressed data was counted by its stored size, and becomes larger now.
        trim(&mut parts);
        self.names
            .prefetch_streams(reader, &streams_of(&parts))
            .await?;
        let mut answers = Vec::with_capacity(parts.len());
        for part in parts {
            let answer = match part.is_closed && self.is_part {
                true => Err(Error::log_closed(part.log).into()),
                false => rows_of(reader, self.names, part).await,
            };
            answers.push(match answer {
                Ok(rows) => Ok(rows),
                Err(ReadError::Ours(error)) => Err(error.during("read the tail of a log")),
                Err(other) => return Err(other),
            });
        }
        Ok(answers)
    }
}

async fn fetch_tails(reader: &mut PooledReader, tails: &[LogTail]) -> ReadResult<Page> {
    let logs = tails.iter().map(|tail| log_number(tail.log));
    let logs: Vec<i16> = logs.collect::<Result<_>>()?;
    let column = |value: fn(&LogTail) -> i64| tails.iter().map(value).collect::<Vec<i64>>();
    let after = column(|tail| bound(tail.after.0));
    // Without an end the row that closes the log is read as well.
    let to = column(|tail| tail.to.map_or(CLOSED, |to| bound(to.0).min(CLOSED - 1)));
    // One row more than wanted tells whether there is more.
    let limits = column(|tail| i64::try_from(rows_max(tail)).unwrap_or(i64::MAX));
    let sum = tails.iter().map(rows_max).fold(0, usize::saturating_add);
    let rows = i64::try_from(sum).unwrap_or(i64::MAX);
    let inline = inline_bytes(sum);
    let params: [&(dyn ToSql + Sync); 6] = [&logs, &after, &to, &limits, &rows, &inline];
    fetch(reader, READ_TAILS, &params, sum, PAGE_BYTES_MAX).await
}

fn rows_max(tail: &LogTail) -> usize {
    tail.limit.saturating_add(1)
}

/// The rows of one log.
struct Part {
    log: LogId,
    raws: Vec<Raw>,
    complete: bool,
    /// Whether the row that closes the log follows.
    is_closed: bool,
}

/// Divides a page among the tails, and leaves out the row beyond the limit of each.
fn divide(tails: &[LogTail], page: Page) -> Result<Vec<Part>> {
    let parts = tails.iter().map(|tail| Part {
        log: tail.log,
        raws: Vec::new(),
        complete: true,
        is_closed: false,
    });
    let mut parts: Vec<Part> = parts.collect();
    let mut reached = 0;
    for raw in page.raws {
        let place = usize::try_from(raw.place - 1).unwrap_or(usize::MAX);
        let (Some(part), Some(tail)) = (parts.get_mut(place), tails.get(place)) else {
            return Err(out_of_order(&raw));
        };
        let last = part.raws.last().map_or(0, |last| last.position);
        if place < reached || raw.position <= last {
            return Err(out_of_order(&raw));
        }
        reached = place;
        if raw.position == CLOSED {
            part.is_closed = true;
        } else if part.raws.len() < tail.limit {
            part.raws.push(raw);
        } else {
            part.complete = false;
        }
    }
    if !page.exhausted {
        // There may be more of the log at which the page ended, and of those after it.
        let cut = parts.iter_mut().skip(reached);
        cut.for_each(|part| part.complete = false);
    }
    Ok(parts)
}

/// Leaves out what exceeds the bytes of a page, of all logs together. The first row always stays.
fn trim(parts: &mut [Part]) {
    let (mut bytes, mut is_first, mut is_full) = (0_usize, true, false);
    for part in parts {
        let fitting = part.raws.iter().take_while(|raw| {
            bytes = bytes.saturating_add(raw.cost_bytes());
            is_full |= !is_first && bytes > PAGE_BYTES_MAX;
            is_first = false;
            !is_full
        });
        let fitting = fitting.count();
        if fitting < part.raws.len() {
            part.raws.truncate(fitting);
            part.complete = false;
            part.is_closed = false;
        }
    }
}

/// Returns the logs of all rows, each with the row of the interned stream.
fn streams_of(parts: &[Part]) -> Vec<(LogId, i64)> {
    let mut streams = Vec::new();
    for part in parts {
        streams.extend(part.raws.iter().map(|raw| (part.log, raw.stream)));
    }
    streams
}

async fn rows_of(reader: &mut PooledReader, names: &Names, part: Part) -> ReadResult<Rows> {
    let last_writer = part.raws.last().map(|raw| WriterEpoch(raw.writer));
    Ok(Rows {
        events: recorded(reader, names, part.log, part.raws).await?,
        complete: part.complete,
        last_writer,
    })
}

fn out_of_order(raw: &Raw) -> Error {
    Error::corrupt(format!(
        "events of logs do not come in order at position {}: an index is damaged",
        raw.position
    ))
}
