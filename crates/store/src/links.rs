//! Many links are followed at once here, by two statements for each log.
//!
//! One statement looks up the streams that links name, the other reads the events that they lead to. Invariant: what is
//! shown is what a read of the stream would show. A page is bounded in bytes; links beyond the bound are left to the
//! next call.
//! Not here: what a link is (`gesta_core::LinkTarget`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gesta_core::backend::{Rows, StreamSlice};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{
    Direction, ErrorKind, LinkTarget, LogId, ReadStream, Resolved, Result, SharedEvent, StreamFrom,
    StreamId, Timestamp,
};

use crate::Store;
use crate::streams::StoredStream;

/// What was found where a link leads.
enum Found {
    /// The event is no link, or the link leads to nothing that can be read.
    Nothing,
    Event(SharedEvent),
    /// The page was full before the event was read.
    NotReached,
}

/// Events to read of one log, with the indexes of their links in the whole request.
#[derive(Default)]
struct SlicesOfLog {
    places: Vec<usize>,
    slices: Vec<StreamSlice>,
}

impl Store {
    /// Returns what each event leads to, in their order: as many as fit a page.
    pub(crate) async fn follow_links(&self, events: &[SharedEvent]) -> Result<Vec<Resolved>> {
        self.check_open()?;
        let mut found: Vec<Found> = events.iter().map(|_| Found::Nothing).collect();
        for (log, of_log) in self.slices_of(events).await? {
            let read = self.backend.read_streams(log, of_log.slices).await?;
            for (place, rows) in of_log.places.into_iter().zip(read) {
                if let Some(slot) = found.get_mut(place) {
                    *slot = found_in(rows);
                }
            }
        }
        let mut resolved = Vec::with_capacity(events.len());
        let mut bytes = 0_usize;
        for (event, found) in events.iter().zip(found) {
            let one = match found {
                Found::NotReached => break,
                Found::Nothing => Resolved::itself(Arc::clone(event)),
                Found::Event(target) => Resolved {
                    event: target,
                    link: Some(Arc::clone(event)),
                },
            };
            bytes = bytes.saturating_add(one.cost_bytes());
            if bytes > PAGE_BYTES_MAX && !resolved.is_empty() {
                break;
            }
            resolved.push(one);
        }
        Ok(resolved)
    }

    /// Returns what to read, by log. The first link of a log is the first that is read, so a page holds one event at
    /// least.
    async fn slices_of(&self, events: &[SharedEvent]) -> Result<BTreeMap<LogId, SlicesOfLog>> {
        let targets: Vec<(usize, LinkTarget)> = events
            .iter()
            .enumerate()
            .filter_map(|(place, event)| Some((place, LinkTarget::of(event)?)))
            .filter(|(_, target)| !target.stream.is_virtual())
            .collect();
        let mut streams: Vec<StreamId> = targets
            .iter()
            .map(|(_, target)| target.stream.clone())
            .collect();
        streams.sort_unstable();
        streams.dedup();
        let looked = self.look_up_all(&streams).await?;
        let looked: HashMap<&StreamId, StoredStream> = streams.iter().zip(looked).collect();
        let now = self.clock.now();
        let mut by_log: BTreeMap<LogId, SlicesOfLog> = BTreeMap::new();
        for (place, target) in &targets {
            let Some(looked) = looked.get(&target.stream) else {
                continue;
            };
            let log = self.log_of(&target.stream);
            if let Some(slice) = slice_of(looked, target, log, now)? {
                let of_log = by_log.entry(log).or_default();
                of_log.places.push(*place);
                of_log.slices.push(slice);
            }
        }
        Ok(by_log)
    }
}

/// Returns what to read of a stream; `None` if the stream shows no event there.
fn slice_of(
    looked: &StoredStream,
    target: &LinkTarget,
    log: LogId,
    now: Timestamp,
) -> Result<Option<StreamSlice>> {
    let readable = match looked.readable(&target.stream, now) {
        Ok(readable) => readable,
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::StreamNotFound(_) | ErrorKind::StreamTombstoned(_)
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let one = ReadStream {
        stream: target.stream.clone(),
        from: StreamFrom::Revision(target.revision),
        direction: Direction::Forwards,
        limit: 1,
    };
    let range = readable.forwards(&one).only(target.revision);
    Ok(readable.slice(log, &one, range))
}

fn found_in(rows: Rows) -> Found {
    match rows.events.into_iter().next() {
        Some(event) => Found::Event(Arc::new(event)),
        None if rows.complete => Found::Nothing,
        None => Found::NotReached,
    }
}
