//! The load of one round: writers that turn to another server when one fails, and tails.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use gesta_client::{Config, HttpStore};
use gesta_core::{AllFrom, Append, Appended, Checkpoint, EventStore, ReadAll, RecordedEvent};
use gesta_testkit::{Around, Outer};

use crate::failure::Result;
use crate::faults::tails::Manner;
use crate::faults::writers::Claims;
use crate::faults::{CurrentStore, load};

/// Pause of a writer between two appends.
const PAUSE: Duration = Duration::from_millis(10);
/// Events per page of the check.
const PAGE: usize = 5_000;

/// A server that serves the store.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    /// For people.
    pub(crate) name: String,
    /// Where clients reach it.
    pub(crate) url: String,
}

/// The longest append, by the servers that were asked for it.
pub(crate) type Longest = BTreeMap<BTreeSet<usize>, Duration>;

/// The servers as one writer sees them: one at a time.
struct Turning {
    stores: Vec<HttpStore>,
    at: AtomicUsize,
    /// Since when the present append is asked for, and of which servers.
    begun: Mutex<Option<(Instant, BTreeSet<usize>)>>,
    longest: Arc<Mutex<Longest>>,
}

#[async_trait]
impl Around for Turning {
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
            }
            _ => {
                *self.begun.lock().unwrap() = None;
                let mut longest = self.longest.lock().unwrap();
                let longest = longest.entry(asked).or_default();
                *longest = begun.elapsed().max(*longest);
            }
        }
        answer
    }
}

/// Writers and tails of one round.
pub(crate) struct Load {
    load: load::Load,
    longest: Arc<Mutex<Longest>>,
}

impl std::ops::Deref for Load {
    type Target = load::Load;

    fn deref(&self) -> &load::Load {
        &self.load
    }
}

impl Load {
    /// Starts writers, shared equally among the servers that are written to, and a tail at each server that is followed,
    /// from a place in the log.
    pub(crate) fn start(
        written: &[Way],
        followed: &[Way],
        writers: usize,
        seed: u64,
        from: Option<&Checkpoint>,
    ) -> Result<Self> {
        let mut load = load::Load::new(seed);
        for way in followed {
            let store = CurrentStore::new(Arc::new(connect(way)?), None);
            let name = format!("subscriber of {}", way.name);
            load.follow(name, Manner::Subscribe, store, from.cloned());
        }
        let longest = Arc::default();
        for number in 0..writers {
            let turning = Turning {
                stores: written.iter().map(connect).collect::<Result<_>>()?,
                at: AtomicUsize::new(number % written.len()),
                begun: Mutex::default(),
                longest: Arc::clone(&longest),
            };
            let store = CurrentStore::new(Arc::new(Outer(turning)), None);
            load.write("any node", store, Claims::Mixed, PAUSE);
        }
        Ok(Self { load, longest })
    }

    /// The longest append, by the servers that were asked for it.
    pub(crate) fn longest(&self) -> Longest {
        self.longest.lock().unwrap().clone()
    }

    /// Ends the writers, each after the answer to its last append.
    pub(crate) async fn end_writers(&mut self) -> Result<()> {
        self.load.end_writers().await
    }

    /// Ends the tails when they have seen all of these events, and checks everything.
    pub(crate) async fn judge(
        self,
        stored: &[RecordedEvent],
    ) -> Result<gesta_testkit::history::Report> {
        self.load.judge(stored).await
    }
}

/// A client of a server.
pub(crate) fn connect(way: &Way) -> Result<HttpStore> {
    let config = Config {
        connect_max: Duration::from_secs(1),
        answer_max: Duration::from_secs(40),
        ..Config::default()
    };
    Ok(HttpStore::with_config(&way.url, config)?)
}

/// What is stored after a place in the log, which moves to the end.
pub(crate) async fn read_on(way: &Way, at: &mut Option<Checkpoint>) -> Result<Vec<RecordedEvent>> {
    let (store, mut events) = (connect(way)?, Vec::new());
    loop {
        let from = at.clone().map_or(AllFrom::Start, AllFrom::Checkpoint);
        let page = store
            .read_all(ReadAll::forwards().from(from).limit(PAGE))
            .await?;
        events.extend(page.events);
        *at = Some(page.next);
        if page.end {
            return Ok(events);
        }
    }
}
