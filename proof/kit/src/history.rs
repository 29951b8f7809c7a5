//! The checker of torture runs: compares what was asked and answered with what is stored and what readers have seen.
//!
//! Why: a run that only counts events proves little. Here every attempt to append is written down
//! before it starts, every answer when it comes, and every event that a tailing reader sees, in order.
//! In the end the whole store is read, and each promise that data can show is checked:
//! nothing acknowledged is lost or stored twice, nothing refused is stored, every append is whole or
//! absent, answers name the right places, revisions have no gaps, nothing ever appeared at or
//! below a position that a reader had passed, and the answers about each stream fit one order, in which nothing comes
//! before what had ended before it began (`order`).
//! Invariants: attempts with the same streams and event ids are one *request*, sent several times.
//! Not here: making load and faults (`gesta-lab`).

mod check;
mod file;
mod order;
mod report;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use gesta_core::{
    AllFrom, Append, Appended, ErrorKind, EventId, EventStore, ExpectedRevision, Filter, LogId,
    Position, ReadAll, ReadStream, RecordedEvent, Result, Revision, StreamId, Timestamp,
};

pub use report::{HistoryReport, Violation};

/// How an attempt to append has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The append is stored and durable, at these places.
    Acknowledged(Appended),
    /// The store has refused it, because this stream was not as expected: its last revision was this, or there was no
    /// such stream.
    Conflict(StreamId, Option<Revision>),
    /// The store has refused it for something else: a tombstone, an invalid or unstorable request.
    Refused,
    /// This attempt wrote nothing (overloaded, unavailable). This says nothing about earlier attempts.
    NotWritten,
    /// It is not known whether the append is stored.
    Unknown,
}

impl Outcome {
    fn is_refusal(&self) -> bool {
        matches!(self, Outcome::Refused | Outcome::Conflict(..))
    }
}

impl From<&Result<Appended>> for Outcome {
    fn from(answer: &Result<Appended>) -> Self {
        match answer {
            Ok(appended) => Outcome::Acknowledged(appended.clone()),
            Err(error) => match error.kind() {
                // It is stored, but what is deleted tells nobody where.
                ErrorKind::OutcomeUnknown(_) | ErrorKind::StoredAndDeleted { .. } => {
                    Outcome::Unknown
                }
                ErrorKind::Overloaded(_) | ErrorKind::Unavailable(_) => Outcome::NotWritten,
                ErrorKind::WrongExpectedRevision { stream, actual, .. } => {
                    Outcome::Conflict(stream.clone(), *actual)
                }
                _ => Outcome::Refused,
            },
        }
    }
}

/// An attempt that was begun.
#[derive(Debug, Clone, Copy)]
pub struct AttemptId {
    request: usize,
    attempt: usize,
}

/// A reader that follows all events.
#[derive(Debug, Clone, Copy)]
pub struct TailerId(usize);

/// The part of a request for one stream.
#[derive(Debug)]
struct AttemptPart {
    stream: StreamId,
    expected: ExpectedRevision,
    ids: Vec<EventId>,
}

#[derive(Debug)]
struct Attempt {
    /// Who made it.
    client: u64,
    /// When it began, as a number in the order of all that was recorded.
    began: u64,
    /// When and how it ended. `None` if it never did (its caller died), which counts as unknown.
    ended: Option<(u64, Outcome)>,
}

/// The attempts with the same streams and ids.
#[derive(Debug)]
struct Request {
    parts: Vec<AttemptPart>,
    attempts: Vec<Attempt>,
}

/// The end of a stream, as it was read.
#[derive(Debug)]
struct Look {
    client: u64,
    stream: StreamId,
    began: u64,
    ended: u64,
    /// How many events there were, and the ids of the last ones: none of a stream that does not exist.
    length: u64,
    last: Vec<EventId>,
}

/// An event, without what the checks do not need.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    log: LogId,
    position: Position,
    stream: StreamId,
    revision: Revision,
    id: EventId,
    created: Timestamp,
}

impl From<&RecordedEvent> for Seen {
    fn from(event: &RecordedEvent) -> Self {
        Self {
            log: event.log,
            position: event.position,
            stream: event.stream.clone(),
            revision: event.revision,
            id: event.id,
            created: event.created,
        }
    }
}

#[derive(Debug)]
struct Tailer {
    name: String,
    /// The position in each log after which it began. In a log that is not named here it began at the start.
    after: Vec<Position>,
    filter: Filter,
    seen: Vec<Seen>,
}

#[derive(Debug, Default)]
struct Records {
    order: u64,
    requests: Vec<Request>,
    by_first_id: HashMap<(StreamId, EventId), Vec<usize>>,
    looks: Vec<Look>,
    tailers: Vec<Tailer>,
}

/// What happened in a run. Clones are cheap, and all clones write into the same history.
#[derive(Debug, Clone, Default)]
pub struct RunHistory {
    records: Arc<Mutex<Records>>,
}

impl RunHistory {
    /// Makes an empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().expect("no panic while it is held")
    }

    /// Records that an append is about to be sent, for the first time or again.
    ///
    /// # Panics
    /// If an event has no id, since it could not be recognised and checked.
    #[must_use]
    pub fn begin(&self, append: &Append) -> AttemptId {
        self.begin_of(0, append)
    }

    /// The same for a client of this number.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    #[must_use]
    pub fn begin_of(&self, client: u64, append: &Append) -> AttemptId {
        let parts = append.streams.iter().map(|part| AttemptPart {
            stream: part.stream.clone(),
            expected: part.expected,
            ids: part
                .events
                .iter()
                .map(|event| event.id.expect("every event has an id"))
                .collect(),
        });
        self.lock().begin(client, parts.collect())
    }

    /// Records how an attempt has ended.
    pub fn end(&self, attempt: AttemptId, outcome: Outcome) {
        let mut records = self.lock();
        let order = records.next_order();
        records.requests[attempt.request].attempts[attempt.attempt].ended = Some((order, outcome));
    }

    /// Appends through a store and records the attempt with its answer. If the future is dropped, the outcome is
    /// unknown.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn append(&self, store: &dyn EventStore, append: Append) -> Result<Appended> {
        let attempt = self.begin(&append);
        let answer = store.append(append).await;
        self.end(attempt, Outcome::from(&answer));
        answer
    }

    /// Reads the last event of a stream and records the answer. Gives its revision; none if there is no such stream.
    ///
    /// # Errors
    /// Those of the store, which say nothing about the stream.
    pub async fn look(
        &self,
        client: u64,
        store: &dyn EventStore,
        stream: &StreamId,
    ) -> Result<Option<Revision>> {
        let began = self.lock().next_order();
        let request = ReadStream::backwards(stream.clone()).limit(1);
        let last = match store.read_stream(request).await {
            Ok(page) => page.events.into_iter().next(),
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => None,
            Err(error) => return Err(error),
        };
        let mut records = self.lock();
        let ended = records.next_order();
        records.looks.push(Look {
            client,
            stream: stream.clone(),
            began,
            ended,
            length: last.as_ref().map_or(0, |event| event.revision.next().0),
            last: last.iter().map(|event| event.id).collect(),
        });
        Ok(last.map(|event| event.revision))
    }

    /// Adds a reader that will see every event that passes `filter` after these positions (one per log; none: from the
    /// start). After a reconnect the same tailer goes on.
    #[must_use]
    pub fn tailer(&self, name: &str, after: Vec<Position>, filter: Filter) -> TailerId {
        let mut records = self.lock();
        records.tailers.push(Tailer {
            name: name.into(),
            after,
            filter,
            seen: Vec::new(),
        });
        TailerId(records.tailers.len() - 1)
    }

    /// Records that a tailer has seen an event.
    pub fn saw(&self, tailer: TailerId, event: &RecordedEvent) {
        self.lock().tailers[tailer.0].seen.push(Seen::from(event));
    }

    /// Tells whether a tailer has seen in each of these logs the given position or a later one.
    #[must_use]
    pub fn has_reached(&self, tailer: TailerId, ends: &HashMap<LogId, Position>) -> bool {
        let records = self.lock();
        let mut missing = ends.clone();
        for seen in records.tailers[tailer.0].seen.iter().rev() {
            if missing.is_empty() {
                break;
            }
            let has_come = |end: &Position| seen.position >= *end;
            if missing.get(&seen.log).is_some_and(has_come) {
                missing.remove(&seen.log);
            }
        }
        missing.is_empty()
    }

    /// Returns how many attempts have not ended yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let records = self.lock();
        let attempts = records
            .requests
            .iter()
            .flat_map(|request| &request.attempts);
        attempts.filter(|attempt| attempt.ended.is_none()).count()
    }

    /// Reads the whole store and compares it with this history. It is to be called when all writers and tailers have
    /// stopped.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn check(&self, store: &dyn EventStore) -> Result<HistoryReport> {
        let mut stored = Stored::default();
        let mut request = ReadAll::forwards().limit(gesta_core::limits::PAGE_EVENTS_MAX);
        loop {
            let page = store.read_all(request.clone()).await?;
            {
                let records = self.lock();
                page.events
                    .iter()
                    .for_each(|event| stored.push(event, &records));
            }
            if page.end {
                return Ok(check::check(&self.lock(), &stored));
            }
            request.from = AllFrom::Checkpoint(page.next);
        }
    }

    /// Compares this history with events that were read in another way, each log in its order.
    #[must_use]
    pub fn check_against(&self, events: &[RecordedEvent]) -> HistoryReport {
        let records = self.lock();
        let mut stored = Stored::default();
        events.iter().for_each(|event| stored.push(event, &records));
        check::check(&records, &stored)
    }
}

impl Records {
    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    fn begin(&mut self, client: u64, parts: Vec<AttemptPart>) -> AttemptId {
        let began = self.next_order();
        self.begin_at(began, client, parts)
    }

    fn begin_at(&mut self, began: u64, client: u64, parts: Vec<AttemptPart>) -> AttemptId {
        let key = (parts[0].stream.clone(), parts[0].ids[0]);
        let candidates = self.by_first_id.entry(key).or_default();
        let same = |request: &Request| {
            request.parts.len() == parts.len()
                && request
                    .parts
                    .iter()
                    .zip(&parts)
                    .all(|(a, b)| a.stream == b.stream && a.ids == b.ids)
        };
        let known = candidates.iter().find(|at| same(&self.requests[**at]));
        let request = match known {
            Some(at) => *at,
            None => {
                self.requests.push(Request {
                    parts,
                    attempts: Vec::new(),
                });
                candidates.push(self.requests.len() - 1);
                self.requests.len() - 1
            }
        };
        let attempts = &mut self.requests[request].attempts;
        let ended = None;
        attempts.push(Attempt {
            client,
            began,
            ended,
        });
        AttemptId {
            request,
            attempt: attempts.len() - 1,
        }
    }
}

/// What the store holds in the end, in the order of each log.
#[derive(Debug, Default)]
struct Stored {
    events: Vec<Seen>,
    /// For each tailer, the indices of the events that it should have seen by its filter.
    wanted: Vec<Vec<usize>>,
}

impl Stored {
    fn push(&mut self, event: &RecordedEvent, records: &Records) {
        self.wanted.resize_with(records.tailers.len(), Vec::new);
        for (tailer, wanted) in records.tailers.iter().zip(&mut self.wanted) {
            if tailer.filter.matches(event) {
                wanted.push(self.events.len());
            }
        }
        self.events.push(Seen::from(event));
    }
}
