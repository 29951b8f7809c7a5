//! Writers: each appends in a closed loop, of several kinds, and never lets go of an append whose
//! outcome it does not know: it asks again with the same event ids.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gesta_core::{
    Append, ErrorKind, EventData, EventId, EventType, ExpectedRevision, Revision, StreamAppend,
    StreamId,
};
use tokio_util::sync::CancellationToken;

use gesta_testkit::history::Outcome;

use super::record::SharedRecord;
use crate::faults::CurrentStore;
use crate::faults::ask::{Answer, Attempt, ask};
use crate::random::Random;

/// Streams that a writer has for itself.
const OWN_STREAMS: usize = 20;
/// Streams that all writers share.
const SHARED_STREAMS: usize = 50;
/// Streams that all writers fight for with exact claims.
const CONTESTED_STREAMS: usize = 4;

/// One writer.
pub(crate) struct Writer {
    /// Its number, over all entries.
    pub(crate) number: usize,
    /// Which entry to the store it uses.
    pub(crate) entry: usize,
    /// The store.
    pub(crate) store: Arc<CurrentStore>,
    /// Pause between appends.
    pub(crate) pause: Duration,
    /// Seed of its choices.
    pub(crate) seed: u64,
    /// Tells this run's streams from those of others.
    pub(crate) run: String,
    /// Ends the run.
    pub(crate) over: CancellationToken,
    /// Where everything is written down.
    pub(crate) record: SharedRecord,
    /// Microseconds since `epoch` at which the newest append that was acknowledged had begun.
    pub(crate) progress: Arc<AtomicU64>,
    /// Begin of the run.
    pub(crate) epoch: Instant,
}

/// What a writer remembers of streams.
struct Memory {
    random: Random,
    own: Vec<Option<Revision>>,
    contested: Vec<Option<Revision>>,
    new_streams: u64,
}

impl Writer {
    /// Appends until the run is over and the last append has its answer.
    pub(crate) async fn run(self) {
        let mut memory = Memory {
            random: Random::fork(self.seed, 10_000 + self.number as u64),
            own: vec![None; OWN_STREAMS],
            contested: vec![None; CONTESTED_STREAMS],
            new_streams: 0,
        };
        while !self.over.is_cancelled() {
            match memory.random.below(100) {
                0..40 => self.own(&mut memory, 1).await,
                40..65 => {
                    let stream = memory.random.below(SHARED_STREAMS);
                    let name = format!("shared-{}-{stream}", self.run);
                    self.free(&mut memory, name, ExpectedRevision::Any).await;
                }
                65..75 => {
                    memory.new_streams += 1;
                    let name = format!("new-{}-{}-{}", self.run, self.number, memory.new_streams);
                    self.free(&mut memory, name, ExpectedRevision::NoStream)
                        .await;
                }
                75..90 => self.contested(&mut memory).await,
                _ => self.own(&mut memory, 2).await,
            }
            tokio::select! {
                () = tokio::time::sleep(self.pause) => {}
                () = self.over.cancelled() => {}
            }
        }
    }

    /// Exact claims on streams of its own, one or two at once: nobody else writes there, so a refusal is wrong.
    async fn own(&self, memory: &mut Memory, count: usize) {
        let first = memory.random.below(OWN_STREAMS);
        let chosen = &[first, (first + 1) % OWN_STREAMS][..count];
        let streams = chosen.iter().map(|i| self.own_part(memory, *i)).collect();
        let answer = self.append(Append { streams }).await;
        self.learn_own(memory, chosen, &answer);
    }

    fn own_part(&self, memory: &mut Memory, i: usize) -> StreamAppend {
        // The braces keep a writer's streams in one log, so that two of them can be appended to at once.
        let name = format!("own-{{{}-{}}}-{i}", self.run, self.number);
        let expected = memory.own[i].map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact);
        StreamAppend {
            stream: stream(name),
            expected,
            events: events(&mut memory.random),
        }
    }

    fn learn_own(&self, memory: &mut Memory, streams: &[usize], answer: &Answer) {
        match answer {
            Answer::Stored(appended) => {
                for (i, part) in streams.iter().zip(&appended.streams) {
                    let first = memory.own[*i].map_or(Revision(0), Revision::next);
                    if part.first_revision != first {
                        let found = part.first_revision;
                        self.record.violation(format!(
                            "{}: appended at {found}, expected {first}",
                            part.stream
                        ));
                    }
                    memory.own[*i] = Some(part.last_revision);
                }
            }
            Answer::Refused(error) => {
                self.record.violation(format!("refused wrongly: {error}"));
            }
            // Only when the run is over.
            Answer::Open => {}
        }
    }

    /// A stream that all share, without a claim, or one that must not exist yet: a refusal is wrong.
    async fn free(&self, memory: &mut Memory, name: String, expected: ExpectedRevision) {
        let append = Append::to(stream(name), expected, events(&mut memory.random));
        if let Answer::Refused(error) = self.append(append).await {
            self.record.violation(format!("refused wrongly: {error}"));
        }
    }

    /// An exact claim that others may have outdated: a refusal is right if it tells the actual revision.
    async fn contested(&self, memory: &mut Memory) {
        let i = memory.random.below(CONTESTED_STREAMS);
        let name = format!("contested-{}-{i}", self.run);
        let expected =
            memory.contested[i].map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact);
        let append = Append::to(stream(name), expected, events(&mut memory.random));
        match self.append(append).await {
            Answer::Stored(appended) => {
                memory.contested[i] = Some(appended.streams[0].last_revision)
            }
            Answer::Refused(error) => match error.kind() {
                ErrorKind::WrongExpectedRevision { actual, .. } => {
                    if *actual == memory.contested[i] {
                        self.record.violation(format!(
                            "refused {expected} although the stream is at {actual:?}"
                        ));
                    }
                    memory.contested[i] = *actual;
                }
                _ => self.record.violation(format!("refused wrongly: {error}")),
            },
            Answer::Open => {}
        }
    }

    /// Appends, as often as it takes to get an answer. Every attempt is written down.
    async fn append(&self, request: Append) -> Answer {
        let (record, mut begun, mut written) = (&self.record, Instant::now(), None);
        let answer = ask(&self.store, &request, &self.over, |attempt| match attempt {
            Attempt::Begins => {
                begun = Instant::now();
                written = Some(record.history.begin(&request));
            }
            Attempt::Ended(outcome) => {
                if let Some(written) = written.take() {
                    record.history.end(written, Outcome::from(outcome));
                }
                if let Err(error) = outcome
                    && error.is_retryable()
                {
                    record.attempt_failed(self.entry, error.kind(), begun);
                }
            }
        })
        .await;
        if let Answer::Stored(_) = answer {
            let micros = u64::try_from((begun - self.epoch).as_micros()).unwrap_or(u64::MAX);
            self.progress.fetch_max(micros, Ordering::AcqRel);
        }
        record.answered(self.entry, request.events(), &answer);
        answer
    }
}

fn stream(name: String) -> StreamId {
    StreamId::new(name).expect("a valid name")
}

/// One to four events; the type is one of a few, and now and then a new one.
fn events(random: &mut Random) -> Vec<EventData> {
    let count = 1 + random.below(4);
    (0..count)
        .map(|_| {
            let kind = match random.below(200) {
                0 => format!("rare-{:08x}", random.next() >> 32),
                n => format!("kind-{}", n % 5),
            };
            let bytes = [10, 50, 200, 3_000][random.below(4)];
            let data = format!("{{\"n\":\"{}\"}}", "x".repeat(bytes));
            EventData::json(EventType::new(kind).expect("a valid type"), data)
                .with_id(EventId(random.uuid()))
        })
        .collect()
}
