//! Reads parts of many streams in one statement.
//!
//! Why: a caller that loads thousands of streams would otherwise wait for a round trip for each, and most of the cost
//! of a short stream is its statement, not its events.
//! Invariants: rows and bytes of one answer are bounded over all streams together; a stream that was cut or left out
//! because of that is not `complete`. The names of the streams come from the slices; the checksum of each row proves
//! that it is of that stream.
//! Not here: decoding and verifying rows (`read`).

use gesta_core::backend::{Rows, StreamSlice};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{Error, LogId};
use tokio_postgres::types::ToSql;

use crate::connect::pool::{PooledReader, Read, ReadResult};
use crate::moment::Moment;
use crate::names::Names;
use crate::read::{Page, Raw, event_of, fetch, fill, inline_bytes, saw};
use crate::sql_numbers::{bound, log_number};

const READ_STREAMS: &str = include_str!("../../sql/read_streams.sql");

/// The most rows of one answer.
const ROWS_MAX: usize = 65_536;

/// Reads parts of streams, all forwards.
pub(crate) struct ReadStreamsPage<'a> {
    pub(crate) names: &'a Names,
    pub(crate) log: LogId,
    pub(crate) slices: &'a [StreamSlice],
}

impl Read for ReadStreamsPage<'_> {
    type Answer = Vec<Rows>;

    async fn run(&self, reader: &mut PooledReader) -> ReadResult<Vec<Rows>> {
        if self.slices.is_empty() {
            return Ok(Vec::new());
        }
        let log = log_number(self.log)?;
        let page = fetch_slices(reader, log, self.slices).await?;
        saw(reader, self.log, &page)?;
        let Parts {
            mut raws,
            mut answer,
        } = Parts::of(self.slices, page)?;
        fill(reader, &mut [(self.log, &mut raws)]).await?;
        // Compressed data was counted by its stored size, and becomes larger now.
        let filled = Page {
            raws,
            exhausted: true,
        };
        let Parts {
            raws,
            answer: fitting,
        } = Parts::of(self.slices, filled)?;
        for (rows, fitting) in answer.iter_mut().zip(fitting) {
            rows.complete &= fitting.complete;
        }
        let types = raws.iter().map(|raw| raw.event_type);
        let types = self.names.types.resolve(reader, self.log, types).await?;
        for (mut raw, event_type) in raws.into_iter().zip(types) {
            let place = place_of(&raw);
            if let (Some(slice), Some(rows)) = (self.slices.get(place), answer.get_mut(place)) {
                raw.stream = bound(slice.stream_row.0);
                let event = event_of(raw, self.log, slice.stream.clone(), event_type)?;
                rows.events.push(event);
            }
        }
        Ok(answer)
    }
}

async fn fetch_slices(
    reader: &mut PooledReader,
    log: i16,
    slices: &[StreamSlice],
) -> ReadResult<Page> {
    let column = |value: fn(&StreamSlice) -> i64| slices.iter().map(value).collect::<Vec<i64>>();
    let streams = column(|slice| bound(slice.stream_row.0));
    let from = column(|slice| bound(slice.from.0));
    let to = column(|slice| bound(slice.to.0));
    // One row more than wanted tells whether there is more.
    let limits = column(|slice| i64::try_from(slice.limit.saturating_add(1)).unwrap_or(i64::MAX));
    let created_from: Vec<Option<Moment>> = slices
        .iter()
        .map(|slice| slice.created_from.map(Moment))
        .collect();
    let rows_max = slices
        .iter()
        .fold(0_usize, |sum, slice| {
            sum.saturating_add(slice.limit.saturating_add(1))
        })
        .min(ROWS_MAX);
    let rows = i64::try_from(rows_max).unwrap_or(i64::MAX);
    let inline = inline_bytes(rows_max);
    let params: [&(dyn ToSql + Sync); 8] = [
        &log,
        &streams,
        &from,
        &to,
        &limits,
        &created_from,
        &rows,
        &inline,
    ];
    fetch(reader, READ_STREAMS, &params, rows_max, PAGE_BYTES_MAX).await
}

/// Returns the index of the slice to which a row belongs.
fn place_of(raw: &Raw) -> usize {
    usize::try_from(raw.stream - 1).unwrap_or(usize::MAX)
}

/// A page divided among its slices.
struct Parts {
    /// The rows that belong to the answer.
    raws: Vec<Raw>,
    /// The answer for each slice, still without events.
    answer: Vec<Rows>,
}

impl Parts {
    /// Drops rows beyond the limits of their slices and beyond the bytes of a page, before their payloads are fetched.
    fn of(slices: &[StreamSlice], page: Page) -> ReadResult<Self> {
        let mut taken = vec![0_usize; slices.len()];
        let mut over = vec![false; slices.len()];
        let mut raws = Vec::with_capacity(page.raws.len());
        let mut bytes = 0_usize;
        let mut last: Option<(usize, i64)> = None;
        // The index of the first slice that was cut or not reached.
        let mut cut = None;
        for raw in page.raws {
            let place = place_of(&raw);
            let here = Some((place, raw.revision));
            let (Some(slice), Some(count)) = (slices.get(place), taken.get_mut(place)) else {
                return Err(out_of_order(&raw).into());
            };
            if here <= last {
                return Err(out_of_order(&raw).into());
            }
            last = here;
            if *count >= slice.limit {
                if let Some(over) = over.get_mut(place) {
                    *over = true;
                }
                continue;
            }
            if !raws.is_empty() && bytes + raw.cost_bytes() > PAGE_BYTES_MAX {
                cut = Some(place);
                break;
            }
            bytes += raw.cost_bytes();
            *count += 1;
            raws.push(raw);
        }
        let cut = match (cut, page.exhausted) {
            (Some(place), _) => place,
            (None, true) => slices.len(),
            (None, false) => last.map_or(0, |(place, _)| place),
        };
        let answer = taken.into_iter().zip(over).enumerate();
        let answer = answer.map(|(place, (count, over))| Rows {
            events: Vec::with_capacity(count),
            complete: place < cut && !over,
            last_writer: None,
        });
        Ok(Self {
            answer: answer.collect(),
            raws,
        })
    }
}

fn out_of_order(raw: &Raw) -> Error {
    Error::corrupt(format!(
        "events of streams do not come in order at revision {}: an index is damaged",
        raw.revision
    ))
}
