//! Writers that turn to another node when one fails, tails of each node, and probes of single logs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_client::HttpStore;
use gesta_core::{
    Append, Appended, Checkpoint, EventData, EventId, EventStore, EventType, ExpectedRevision,
    LogId, StreamId, log_of,
};
use gesta_kit::{Outer, Wrapper};
use gesta_load::event_ids::Run;
use gesta_load::machine::CurrentStore;
use gesta_report::failure::{Context, Result};

use super::crew::Crew;
use super::record::Record;
use super::tails::Manner;
use super::writers::Claims;
use crate::world::Way;

/// Pause before a probe is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// What the client says when it could not connect.
const NOT_CONNECTED: &str = "no server answers at";

/// The longest append, by the servers that were asked for it.
pub type Longest = BTreeMap<BTreeSet<usize>, Duration>;

/// An append that was acknowledged.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    /// When it was first asked for.
    pub begun: Instant,
    /// When the answer came.
    pub at: Instant,
    /// The log that it is stored in.
    pub log: LogId,
}

/// What all writers see.
#[derive(Default)]
struct Seen {
    longest: Mutex<Longest>,
    answered: Mutex<Vec<Answered>>,
    /// How often an append ended so, but for those that were not sent because nobody took the connection.
    errors: Mutex<BTreeMap<String, u64>>,
}

/// The servers as one writer sees them: one at a time.
struct Turning {
    stores: Vec<HttpStore>,
    at: AtomicUsize,
    /// Since when the present append is asked for, and of which servers.
    begun: Mutex<Option<(Instant, BTreeSet<usize>)>>,
    seen: Arc<Seen>,
}

#[async_trait]
impl Wrapper for Turning {
    fn inner(&self) -> &dyn EventStore {
        &self.stores[self.at.load(Ordering::Relaxed)]
    }

    async fn append(&self, request: Append) -> gesta_core::Result<Appended> {
        let node = self.at.load(Ordering::Relaxed);
        let (begun, asked) = {
            let mut present = self.begun.lock().unwrap();
            let (begun, asked) = present.get_or_insert((Instant::now(), BTreeSet::new()));
            asked.insert(node);
            (*begun, asked.clone())
        };
        let answer = self.stores[node].append(request).await;
        match &answer {
            Err(error) if error.is_retryable() => {
                let next = (node + 1) % self.stores.len();
                self.at.store(next, Ordering::Relaxed);
                let told = told(error);
                if !told.contains(NOT_CONNECTED) {
                    *self.seen.errors.lock().unwrap().entry(told).or_default() += 1;
                }
            }
            _ => {
                let at = Instant::now();
                if let Ok(appended) = &answer {
                    let log = appended.log;
                    let answered = Answered { begun, at, log };
                    self.seen.answered.lock().unwrap().push(answered);
                }
                *self.begun.lock().unwrap() = None;
                let mut longest = self.seen.longest.lock().unwrap();
                let longest = longest.entry(asked).or_default();
                *longest = (at - begun).max(*longest);
            }
        }
        answer
    }
}

/// Writers and tails of nodes.
pub struct NodeCrew {
    /// All of them.
    pub crew: Crew,
    seen: Arc<Seen>,
}

impl NodeCrew {
    /// Starts writers, shared equally among the servers, with this pause between two appends, and a tail at each
    /// server, from a place in the log.
    pub fn start(
        ways: &[Way],
        writers: usize,
        seed: u64,
        from: Option<&Checkpoint>,
        pause: Duration,
    ) -> Result<Self> {
        let mut crew = Crew::new(seed);
        for way in ways {
            let name = format!("subscriber of {}", way.name);
            crew.follow(name, Manner::Subscribe, way.client()?, from.cloned());
        }
        let seen: Arc<Seen> = Arc::default();
        for number in 0..writers {
            let turning = Turning {
                stores: ways.iter().map(Way::connect).collect::<Result<_>>()?,
                at: AtomicUsize::new(number % ways.len()),
                begun: Mutex::default(),
                seen: Arc::clone(&seen),
            };
            let store = CurrentStore::new(Arc::new(Outer(turning)), None);
            crew.write("any node", store, Claims::Mixed, pause);
        }
        Ok(Self { crew, seen })
    }

    /// The appends that were acknowledged, in the order of their answers.
    pub fn answered(&self) -> Vec<Answered> {
        self.seen.answered.lock().unwrap().clone()
    }

    /// How often an append ended with an error and was asked of another server, by the error. A connection that nobody
    /// took is no error: nothing was asked.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        self.seen.errors.lock().unwrap().clone()
    }

    /// The longest append, by the servers that were asked for it.
    pub fn longest(&self) -> Longest {
        self.seen.longest.lock().unwrap().clone()
    }
}

/// Appends to logs of its choice through every server; what it has stored is checked with the rest.
pub struct Prober {
    stores: Vec<HttpStore>,
    logs: u16,
    patience: Duration,
    record: Arc<Record>,
}

impl Prober {
    /// Beside a load on a store of so many logs. An append that was not answered is tried again for so long.
    pub fn new(crew: &NodeCrew, ways: &[Way], logs: u16, patience: Duration) -> Result<Self> {
        Ok(Self {
            stores: ways.iter().map(Way::connect).collect::<Result<_>>()?,
            logs,
            patience,
            record: Arc::clone(&crew.crew.record),
        })
    }

    /// Appends once through each server, to a log that is wanted; gives the longest time that one took.
    ///
    /// # Errors
    /// An append was not acknowledged.
    pub async fn append(&self, is_wanted: impl Fn(LogId) -> bool) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        for store in &self.stores {
            let stream = loop {
                let stream = StreamId::new(format!("probe-{}", Run::random()))?;
                if is_wanted(log_of(&stream, self.logs)) {
                    break stream;
                }
            };
            let event = EventData::json(EventType::new("probed")?, "{}");
            let event = event.with_id(EventId::random());
            let append = Append::to(stream, ExpectedRevision::NoStream, vec![event]);
            let begun = Instant::now();
            loop {
                let answer = self.record.history.append(store, append.clone()).await;
                let is_open = answer.as_ref().is_err_and(gesta_core::Error::is_retryable);
                if !is_open || begun.elapsed() >= self.patience {
                    answer.context("an append to a log of a database that lives")?;
                    break;
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            longest = longest.max(begun.elapsed());
        }
        Ok(longest)
    }
}

/// An error with its causes.
fn told(error: &gesta_core::Error) -> String {
    let first: Option<&dyn std::error::Error> = Some(error);
    let all = std::iter::successors(first, |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
