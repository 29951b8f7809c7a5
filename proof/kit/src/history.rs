//! What happened in a run: who asked for what and was answered what, what tailers saw, what groups delivered.
//!
//! Why: a run that only counts events proves little. Here every attempt is written down before it starts, every answer
//! when it comes, and everything that a tailer or a consumer sees, in order. In the end judges compare all of it with
//! each other and with what is stored (`judge`).
//! * [`RunHistory`]: appends, looks at the ends of streams, and tailers;
//! * [`Seats`]: reservations and cancellations, and reads of many seats at once, 16 bytes each;
//! * [`Claims`]: appends to streams of one client each, in a few bytes per stream;
//! * [`Deliveries`]: what a group delivered, and what its consumers did with it;
//! * [`payments`]: seats that must be paid in time, as a log tells them.
//!
//! Invariants: beginnings and ends are numbers of one counter, [`Ticks`], which recorders of one run can share, so that
//! what they have written can be compared. A beginning is numbered before something is sent, an end after its answer
//! has come. Nothing here waits for a judge or reads what was recorded: that costs a run little. Attempts with the same
//! streams and event ids are one *request*, sent several times.
//! Not here: making load and faults; what must hold (`judge`); histories as files (`operations`).

mod claims;
mod deliveries;
mod file;
pub mod payments;
mod seats;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use gesta_core::{
    Append, Appended, Checkpoint, Condition, ErrorKind, EventId, EventStore, ExpectedRevision,
    Filter, LogId, Position, ReadStream, RecordedEvent, Result, Revision, StreamId, Timestamp,
};

pub use crate::verdict::Violation;
pub(crate) use claims::digest;
pub use claims::{Claims, StoredAt};
pub use deliveries::Deliveries;
pub(crate) use file::records_of;
pub use seats::{Creation, Entry, NEVER, Reading, SeatEvent, Seats};

/// The counter of a run, which orders all that is recorded. Clones count on together.
#[derive(Debug, Clone, Default)]
pub struct Ticks(Arc<AtomicU64>);

impl Ticks {
    /// The next number: of a beginning or an end. The first is 1.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Where the counter stands: what is recorded from now on is after it.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

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
    pub(crate) fn is_refusal(&self) -> bool {
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

/// An append that was acknowledged, whatever has become of it.
#[derive(Debug, Clone)]
pub struct Acknowledged {
    /// Who made it.
    pub client: u64,
    /// Its events.
    pub ids: Vec<EventId>,
    /// When the attempt began that was acknowledged first.
    pub begun: Instant,
    /// When its answer came.
    pub answered: Instant,
    /// The checkpoint of the answer.
    pub checkpoint: Checkpoint,
}

/// An attempt whose outcome was unknown when it ended.
#[derive(Debug, Clone)]
pub struct UnknownOutcome {
    /// Who made it.
    pub client: u64,
    /// When it began.
    pub begun: Instant,
    /// When it ended.
    pub ended: Instant,
    /// What the store said, if that was recorded.
    pub text: String,
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
pub(crate) struct AttemptPart {
    pub(crate) stream: StreamId,
    pub(crate) expected: ExpectedRevision,
    pub(crate) ids: Vec<EventId>,
}

#[derive(Debug)]
pub(crate) struct Attempt {
    /// Who made it.
    pub(crate) client: u64,
    /// When it began, as a number in the order of all that was recorded.
    pub(crate) began: u64,
    /// The time of that.
    begun: Instant,
    /// When and how it ended. `None` if it never did (its caller died), which counts as unknown.
    pub(crate) ended: Option<(u64, Outcome)>,
    /// The time of that.
    answered: Option<Instant>,
    /// Why the outcome is unknown.
    text: String,
}

/// The attempts with the same streams and ids.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) parts: Vec<AttemptPart>,
    /// Streams to which nothing is appended, and about which something is claimed.
    pub(crate) conditions: Vec<StreamId>,
    pub(crate) attempts: Vec<Attempt>,
}

/// The end of a stream, as it was read.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) client: u64,
    pub(crate) stream: StreamId,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// How many events there were, and the ids of the last ones: none of a stream that does not exist.
    pub(crate) length: u64,
    pub(crate) last: Vec<EventId>,
}

/// An event, without what the checks do not need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) log: LogId,
    pub(crate) position: Position,
    pub(crate) stream: StreamId,
    pub(crate) revision: Revision,
    pub(crate) id: EventId,
    pub(crate) created: Timestamp,
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
pub(crate) struct Tailer {
    pub(crate) name: String,
    /// The position in each log after which it began. In a log that is not named here it began at the start.
    pub(crate) after: Vec<Position>,
    pub(crate) filter: Filter,
    pub(crate) seen: Vec<Seen>,
}

#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) requests: Vec<Request>,
    by_first_id: HashMap<(StreamId, EventId), Vec<usize>>,
    pub(crate) looks: Vec<Look>,
    pub(crate) tailers: Vec<Tailer>,
    /// When the newest append of each client had begun that was acknowledged.
    newest: HashMap<u64, Instant>,
}

/// Appends, looks and tailers of a run. Clones are cheap, and all clones write into the same history.
#[derive(Debug, Clone, Default)]
pub struct RunHistory {
    ticks: Ticks,
    records: Arc<Mutex<Records>>,
}

impl RunHistory {
    /// Makes an empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an empty history that counts on with other recorders of the run.
    #[must_use]
    pub fn counting(ticks: &Ticks) -> Self {
        Self {
            ticks: ticks.clone(),
            ..Self::default()
        }
    }

    /// The counter, for other recorders of the run.
    #[must_use]
    pub fn ticks(&self) -> Ticks {
        self.ticks.clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Records> {
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
        let parts = parts.collect();
        let conditions = append.conditions.iter().filter_map(|one| match one {
            Condition::Stream { stream, .. } => Some(stream.clone()),
            Condition::NoMatch { .. } => None,
        });
        let asked = (parts, conditions.collect());
        self.lock().begin_at(self.ticks.next(), client, asked)
    }

    /// Records how an attempt has ended.
    pub fn end(&self, attempt: AttemptId, outcome: Outcome) {
        self.end_with(attempt, outcome, String::new());
    }

    /// Records the answer to an attempt, with what the store says of an unknown outcome.
    pub fn answered(&self, attempt: AttemptId, answer: &Result<Appended>) {
        let outcome = Outcome::from(answer);
        let text = match (&outcome, answer) {
            (Outcome::Unknown, Err(error)) => error.to_string(),
            _ => String::new(),
        };
        self.end_with(attempt, outcome, text);
    }

    fn end_with(&self, attempt: AttemptId, outcome: Outcome, text: String) {
        let mut records = self.lock();
        let ended = self.ticks.next();
        let is_acknowledged = matches!(outcome, Outcome::Acknowledged(_));
        let of = &mut records.requests[attempt.request].attempts[attempt.attempt];
        of.ended = Some((ended, outcome));
        of.answered = Some(Instant::now());
        of.text = text;
        let (client, begun) = (of.client, of.begun);
        if is_acknowledged {
            let newest = records.newest.entry(client).or_insert(begun);
            *newest = begun.max(*newest);
        }
    }

    /// Appends through a store and records the attempt with its answer. If the future is dropped, the outcome is
    /// unknown.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn append(&self, store: &dyn EventStore, append: Append) -> Result<Appended> {
        let attempt = self.begin(&append);
        let answer = store.append(append).await;
        self.answered(attempt, &answer);
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
        let began = self.ticks.next();
        let request = ReadStream::backwards(stream.clone()).limit(1);
        let last = match store.read_stream(request).await {
            Ok(page) => page.events.into_iter().next(),
            Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => None,
            Err(error) => return Err(error),
        };
        let ended = self.ticks.next();
        self.lock().looks.push(Look {
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

    /// The appends that were acknowledged so far.
    #[must_use]
    pub fn acknowledged(&self) -> Vec<Acknowledged> {
        let records = self.lock();
        let all = records.requests.iter().filter_map(|request| {
            let ids = request.parts.iter().flat_map(|part| part.ids.iter());
            request
                .attempts
                .iter()
                .find_map(|attempt| match &attempt.ended {
                    Some((_, Outcome::Acknowledged(appended))) => Some(Acknowledged {
                        client: attempt.client,
                        ids: ids.clone().copied().collect(),
                        begun: attempt.begun,
                        answered: attempt.answered?,
                        checkpoint: appended.checkpoint.clone(),
                    }),
                    _ => None,
                })
        });
        all.collect()
    }

    /// When the newest append of a client had begun that was acknowledged; none if there is none.
    #[must_use]
    pub fn newest(&self, client: u64) -> Option<Instant> {
        self.lock().newest.get(&client).copied()
    }

    /// Those of some clients who had no append acknowledged that began after a moment.
    #[must_use]
    pub fn behind(&self, clients: impl IntoIterator<Item = u64>, since: Instant) -> Vec<u64> {
        let records = self.lock();
        let is_behind = |client: &u64| {
            let newest = records.newest.get(client);
            newest.is_none_or(|begun| *begun <= since)
        };
        clients.into_iter().filter(is_behind).collect()
    }

    /// The attempts whose outcome was unknown.
    #[must_use]
    pub fn unknown(&self) -> Vec<UnknownOutcome> {
        let records = self.lock();
        let attempts = records.requests.iter().flat_map(|one| &one.attempts);
        let unknown = attempts.filter_map(|attempt| match (&attempt.ended, attempt.answered) {
            (Some((_, Outcome::Unknown)), Some(ended)) => Some(UnknownOutcome {
                client: attempt.client,
                begun: attempt.begun,
                ended,
                text: attempt.text.clone(),
            }),
            _ => None,
        });
        unknown.collect()
    }
}

impl Records {
    /// Writes down that an attempt began then: what it appends, and of which other streams it claims something.
    pub(crate) fn begin_at(
        &mut self,
        began: u64,
        client: u64,
        (parts, conditions): (Vec<AttemptPart>, Vec<StreamId>),
    ) -> AttemptId {
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
                    conditions,
                    attempts: Vec::new(),
                });
                candidates.push(self.requests.len() - 1);
                self.requests.len() - 1
            }
        };
        let attempts = &mut self.requests[request].attempts;
        attempts.push(Attempt {
            client,
            began,
            begun: Instant::now(),
            ended: None,
            answered: None,
            text: String::new(),
        });
        AttemptId {
            request,
            attempt: attempts.len() - 1,
        }
    }

    /// How an attempt ended, if it did.
    pub(crate) fn ended(&mut self, attempt: AttemptId) -> &mut Option<(u64, Outcome)> {
        &mut self.requests[attempt.request].attempts[attempt.attempt].ended
    }
}
