//! [`OwnerStore`]: appends that the owner of a stream hands over in order, and many streams loaded at once.
//!
//! A load costs two round trips per log, however many streams it names: one looks them all up, the other reads what of
//! them is visible. A few logs are asked side by side.
//! Invariants: a page is what [`EventStore::read_stream`](gesta_core::EventStore::read_stream) would have answered, but
//! may be shorter. A stream that cannot be read spoils only the answer about itself.
//! Not here: what is visible, and where a page goes on (`streams`); deciding (`gesta-append`).

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures::future::try_join_all;
use gesta_core::backend::{Rows, StreamSlice};
use gesta_core::limits::PAGE_BYTES_MAX;
use gesta_core::{
    Error, LoadFrom, LoadStream, LoadedPage, LogId, OwnerStore, Position, ReadStream,
    RecordedEvent, Result, StreamFrom, StreamId, Submission, Timestamp,
};

use gesta_append::Pipeline;

use crate::Store;
use crate::streams::{LOOK_UP_MAX, Readable, is_corrupt, no_rows};

/// Number of logs that are asked side by side. Others follow while the answer is below one page. So the answer never
/// holds more than one page beyond this number of pages.
const LOGS_AT_ONCE: usize = 4;

/// Requests about streams of one log, with their indexes in the whole request.
#[derive(Default)]
struct LoadsOfLog {
    places: Vec<usize>,
    loads: Vec<LoadStream>,
}

/// What a load reads of the logs that are asked next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// The load reads events.
    Events,
    /// The answer is full: the load tells only which streams exist.
    Heads,
}

#[async_trait]
impl OwnerStore for Store {
    fn submit(&self, submission: Submission) {
        match self.pipeline_of(self.log_of(&submission.stream)) {
            Ok(pipeline) => pipeline.submit(submission),
            Err(error) => (submission.on_outcome)(Err(error.during("append"))),
        }
    }

    fn known_end(&self, stream: &StreamId) -> Position {
        let pipeline = self.pipeline_of(self.log_of(stream));
        pipeline.map_or(Position::START, Pipeline::known_end)
    }

    async fn read_streams(&self, requests: Vec<LoadStream>) -> Result<Vec<LoadedPage>> {
        let pages = self.in_one_history(|_| self.stream_pages(requests.clone()));
        let pages = pages.await;
        pages.map_err(|error| error.during("read streams"))
    }
}

/// Makes the read of one stream that is equal to this part of a load.
fn read_of(load: LoadStream, readable: Option<Readable>) -> ReadStream {
    let from = match (load.from, readable) {
        (LoadFrom::Start, _) => StreamFrom::Start,
        (LoadFrom::Revision(revision), _) => StreamFrom::Revision(revision),
        (LoadFrom::Last, Some(readable)) => StreamFrom::Revision(readable.head.last),
        (LoadFrom::Last, None) => StreamFrom::End,
    };
    ReadStream::forwards(load.stream)
        .from(from)
        .limit(load.limit)
}

fn validate(loads: &[LoadStream]) -> Result<()> {
    if loads.len() > LOOK_UP_MAX {
        return Err(Error::invalid(
            "streams",
            format!("must be at most {LOOK_UP_MAX}, found {}", loads.len()),
        ));
    }
    loads
        .iter()
        .try_for_each(|load| read_of(load.clone(), None).validate())
}

impl Store {
    async fn stream_pages(&self, loads: Vec<LoadStream>) -> Result<Vec<LoadedPage>> {
        self.check_open()?;
        validate(&loads)?;
        let now = self.clock.now();
        let count = loads.len();
        let mut by_log: BTreeMap<LogId, LoadsOfLog> = BTreeMap::new();
        for (place, load) in loads.into_iter().enumerate() {
            let of_log = by_log.entry(self.log_of(&load.stream)).or_default();
            of_log.places.push(place);
            of_log.loads.push(load);
        }
        let by_log: Vec<(LogId, LoadsOfLog)> = by_log.into_iter().collect();
        let mut pages: Vec<(usize, LoadedPage)> = Vec::with_capacity(count);
        let mut bytes = 0;
        for logs in by_log.chunks(LOGS_AT_ONCE) {
            let reach = if bytes < PAGE_BYTES_MAX {
                Reach::Events
            } else {
                Reach::Heads
            };
            let reads = logs.iter().map(|(log, of_log)| async move {
                let pages = self.pages_of_log(*log, &of_log.loads, now, reach).await?;
                Ok::<_, Error>(of_log.places.iter().copied().zip(pages))
            });
            for (place, page) in try_join_all(reads).await?.into_iter().flatten() {
                let read = page.page.as_ref();
                bytes += read.map_or(0, |page| cost_bytes(&page.events));
                pages.push((place, page));
            }
        }
        pages.sort_unstable_by_key(|(place, _)| *place);
        Ok(pages.into_iter().map(|(_, page)| page).collect())
    }

    /// Reads pages of streams of one log.
    async fn pages_of_log(
        &self,
        log: LogId,
        loads: &[LoadStream],
        now: Timestamp,
        reach: Reach,
    ) -> Result<Vec<LoadedPage>> {
        let streams: Vec<_> = loads.iter().map(|load| &load.stream).collect();
        let looked = self.look_up_in(log, &streams).await?;
        let mut slices = Vec::with_capacity(loads.len());
        let mut parts = Vec::with_capacity(loads.len());
        for (load, looked) in loads.iter().zip(looked) {
            let readable = looked.readable(&load.stream, now);
            let part = readable.map(|readable| {
                let request = read_of(load.clone(), Some(readable));
                let slice = readable.slice(log, &request, readable.forwards(&request));
                let is_read = slice.is_some();
                slices.extend(slice);
                (readable, request, is_read)
            });
            parts.push((part, looked.deleted_before(), looked.changed_at));
        }
        let read = match reach {
            Reach::Events => self.read_slices(log, slices).await?,
            Reach::Heads => slices.iter().map(|_| Ok(not_reached())).collect(),
        };
        let mut read = read.into_iter();
        let mut page = |part: Result<(Readable, ReadStream, bool)>| {
            let (readable, request, is_read) = part?;
            let rows = if is_read {
                let no_answer = || Err(Error::corrupt("the backend answered too little"));
                read.next().unwrap_or_else(no_answer)?
            } else {
                no_rows()
            };
            Ok(readable.page_forwards(&request, rows))
        };
        let pages = parts
            .into_iter()
            .map(|(part, deleted_before, changed_at)| LoadedPage {
                page: page(part),
                deleted_before,
                changed_at,
            });
        Ok(pages.collect())
    }

    /// Reads slices together. If one of them is corrupt, it reads them one by one, to answer about the others.
    async fn read_slices(&self, log: LogId, slices: Vec<StreamSlice>) -> Result<Vec<Result<Rows>>> {
        if slices.is_empty() {
            return Ok(Vec::new());
        }
        match self.backend.read_streams(log, slices.clone()).await {
            Ok(rows) => return Ok(rows.into_iter().map(Ok).collect()),
            Err(error) if !is_corrupt(&error) => return Err(error),
            Err(_) => {}
        }
        let mut answers = Vec::with_capacity(slices.len());
        let mut bytes = 0;
        for slice in slices {
            if bytes >= PAGE_BYTES_MAX {
                answers.push(Ok(not_reached()));
                continue;
            }
            let rows = match self.backend.read_stream(slice).await {
                Err(error) if !is_corrupt(&error) => return Err(error),
                rows => rows,
            };
            bytes += rows.as_ref().map_or(0, |rows| cost_bytes(&rows.events));
            answers.push(rows);
        }
        Ok(answers)
    }
}

/// Makes the answer about a range of which no events were read.
fn not_reached() -> Rows {
    Rows {
        complete: false,
        ..no_rows()
    }
}

fn cost_bytes(events: &[RecordedEvent]) -> usize {
    events.iter().map(RecordedEvent::cost_bytes).sum()
}
