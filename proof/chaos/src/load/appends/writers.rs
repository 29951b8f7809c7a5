//! Writers: each appends in a closed loop, of several kinds, and never lets go of an append whose outcome it does not
//! know: it asks again with the same event ids.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gesta_core::{
    Append, ErrorKind, EventData, EventId, EventType, ExpectedRevision, Revision, StreamAppend,
    StreamId,
};
use gesta_load::machine::CurrentStore;
use gesta_load::machine::ask::{Answer, Attempt, ask};
use gesta_load::random::Random;
use tokio_util::sync::CancellationToken;

use super::record::Record;

/// Streams that a writer has for itself.
const OWN_STREAMS: usize = 20;
/// Streams that all writers share.
const SHARED_STREAMS: usize = 50;
/// Streams that all writers fight for with exact claims.
const CONTESTED_STREAMS: usize = 4;
/// Streams whose last event is the value of a register, which all writers write, compare and set, and read.
const REGISTERS: usize = 6;

/// What writers claim about streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claims {
    /// Exact revisions, that a stream does not exist, or nothing.
    Mixed,
    /// Nothing: a stream may lose events.
    Nothing,
    /// Nothing, of so many streams alone, which outlast the run: see [`work_stream`].
    Work(usize),
}

/// A stream whose events are work for consumers, run after run.
pub(crate) fn work_stream(number: usize) -> String {
    format!("work-{number}")
}

/// One writer.
pub(crate) struct Writer {
    /// Its number, over all ways to the store.
    pub(crate) number: usize,
    /// The way to the store that it uses, for people.
    pub(crate) way: String,
    /// The store.
    pub(crate) store: Arc<CurrentStore>,
    /// What it claims.
    pub(crate) claims: Claims,
    /// Pause between appends.
    pub(crate) pause: Duration,
    /// Its choices.
    pub(crate) random: Random,
    /// Tells this run's streams from those of others.
    pub(crate) run: String,
    /// Ends the run.
    pub(crate) over: CancellationToken,
    /// Where everything is written down.
    pub(crate) record: Arc<Record>,
    /// The last revision of each stream that it appends to with exact claims.
    pub(crate) known: HashMap<String, Revision>,
}

impl Writer {
    /// Appends until the run is over and the last append has its answer.
    pub(crate) async fn run(mut self) {
        for number in 0_u64.. {
            if self.over.is_cancelled() {
                return;
            }
            let shared = format!("shared-{}-{}", self.run, self.random.below(SHARED_STREAMS));
            let new = format!("new-{}-{}-{number}", self.run, self.number);
            match (self.claims, self.random.below(100)) {
                (Claims::Mixed, 0..40) => self.own(1).await,
                (Claims::Mixed, 40..50) => self.own(2).await,
                (Claims::Mixed, 50..65) => self.contested().await,
                (Claims::Mixed, 65..75) => self.free(new, ExpectedRevision::NoStream).await,
                (Claims::Mixed, 75..82) => self.look().await,
                (Claims::Mixed, 82..90) => self.register().await,
                (Claims::Work(streams), _) => {
                    let stream = work_stream(self.random.below(streams));
                    self.free(stream, ExpectedRevision::Any).await;
                }
                (Claims::Nothing, 0..50) => self.free(new, ExpectedRevision::Any).await,
                _ => self.free(shared, ExpectedRevision::Any).await,
            }
            self.over
                .run_until_cancelled(tokio::time::sleep(self.pause))
                .await;
        }
    }

    /// Streams of its own, one or two at once: nobody else writes there, so a refusal is wrong.
    async fn own(&mut self, count: usize) {
        let first = self.random.below(OWN_STREAMS);
        // The braces keep a writer's streams in one log, so that two of them can be appended to at once.
        let name = |i| format!("own-{{{}-{}}}-{}", self.run, self.number, i % OWN_STREAMS);
        let names: Vec<String> = (first..first + count).map(name).collect();
        if let Some(refused) = self.exact(&names).await {
            self.refused_wrongly(&refused);
        }
    }

    /// A stream that others append to as well: a refusal is right if the stream is elsewhere than was claimed.
    async fn contested(&mut self) {
        let i = self.random.below(CONTESTED_STREAMS);
        self.compete(format!("contested-{}-{i}", self.run)).await;
    }

    async fn compete(&mut self, name: String) {
        let Some(refused) = self.exact(std::slice::from_ref(&name)).await else {
            return;
        };
        match refused.kind() {
            ErrorKind::WrongExpectedRevision { actual, .. }
                if *actual != self.known.get(&name).copied() =>
            {
                match *actual {
                    Some(actual) => self.known.insert(name, actual),
                    None => self.known.remove(&name),
                };
            }
            _ => self.refused_wrongly(&refused),
        }
    }

    /// Reads the end of a stream, of any kind. Whether the answer was true then is judged in the end.
    async fn look(&mut self) {
        let (run, own) = (&self.run, self.number);
        let name = match self.random.below(4) {
            0 => format!("own-{{{run}-{own}}}-{}", self.random.below(OWN_STREAMS)),
            1 => format!("shared-{run}-{}", self.random.below(SHARED_STREAMS)),
            _ => format!("contested-{run}-{}", self.random.below(CONTESTED_STREAMS)),
        };
        self.look_at(&name).await;
    }

    /// The last revision, if there is an answer and a stream.
    async fn look_at(&self, name: &str) -> Option<Revision> {
        let (store, client) = (self.store.get(), self.number as u64);
        let history = &self.record.history;
        let looked = history.look(client, store.as_ref(), &stream(name)).await;
        looked.ok().flatten()
    }

    /// Reads a register; sometimes writes it, or compares it with what was read and sets it.
    async fn register(&mut self) {
        let name = format!("register-{}-{}", self.run, self.random.below(REGISTERS));
        let seen = self.look_at(&name).await;
        match self.random.below(4) {
            0 => {}
            1 => self.free(name, ExpectedRevision::Any).await,
            _ => {
                if let Some(seen) = seen {
                    self.known.insert(name.clone(), seen);
                }
                self.compete(name).await;
            }
        }
    }

    /// Appends with claims that name the revisions which the writer knows. Gives the refusal, if it is one.
    async fn exact(&mut self, names: &[String]) -> Option<gesta_core::Error> {
        let expected = |name| {
            let known = self.known.get(name).copied();
            known.map_or(ExpectedRevision::NoStream, ExpectedRevision::Exact)
        };
        let streams = names.iter().map(|name| StreamAppend {
            stream: stream(name),
            expected: expected(name),
            events: events(&mut self.random, name),
        });
        let request = Append {
            streams: streams.collect(),
            conditions: Vec::new(),
        };
        let appended = match self.append(request).await {
            Answer::Stored(appended) => appended,
            Answer::Refused(error) => return Some(error),
            // Only when the run is over.
            Answer::Open => return None,
        };
        for (name, part) in names.iter().zip(&appended.streams) {
            let before = self.known.insert(name.clone(), part.last_revision);
            let (due, found) = (
                before.map_or(Revision(0), Revision::next),
                part.first_revision,
            );
            if found != due {
                self.record
                    .violation(format!("{name}: appended at {found}, expected {due}"));
            }
        }
        None
    }

    /// A stream without a claim, or one that must not exist yet and is new: a refusal is wrong.
    async fn free(&mut self, name: String, expected: ExpectedRevision) {
        let events = events(&mut self.random, &name);
        let append = Append::to(stream(&name), expected, events);
        if let Answer::Refused(error) = self.append(append).await {
            self.refused_wrongly(&error);
        }
    }

    fn refused_wrongly(&self, error: &gesta_core::Error) {
        self.record.violation(format!("refused wrongly: {error}"));
    }

    /// Appends, as often as it takes to get an answer. Every attempt is written down.
    async fn append(&self, request: Append) -> Answer {
        let (record, mut begun, mut written) = (&self.record, Instant::now(), None);
        let answer = ask(&self.store, &request, &self.over, |attempt| match attempt {
            Attempt::Begins => {
                begun = Instant::now();
                written = Some(record.history.begin_of(self.number as u64, &request));
            }
            Attempt::Ended(outcome) => {
                if let Some(written) = written.take() {
                    record.history.answered(written, outcome);
                }
                if let Err(error) = outcome
                    && error.is_retryable()
                {
                    record.attempt_failed(&self.way, error.kind(), begun);
                }
            }
        })
        .await;
        record.answered(&self.way, &request, &answer);
        answer
    }
}

fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("a valid name")
}

/// One to four events, whose data name their stream; the type is one of a few, and now and then a new one.
fn events(random: &mut Random, stream: &str) -> Vec<EventData> {
    let count = 1 + random.below(4);
    let event = |_| {
        let kind = match random.below(200) {
            0 => format!("rare-{:08x}", random.next() >> 32),
            n => format!("kind-{}", n % 5),
        };
        let filling = "x".repeat([10, 50, 200, 3_000][random.below(4)]);
        let data = format!("{{\"stream\":\"{stream}\",\"n\":\"{filling}\"}}");
        EventData::json(EventType::new(kind).expect("a valid type"), data)
            .with_id(EventId(random.uuid()))
    };
    (0..count).map(event).collect()
}
