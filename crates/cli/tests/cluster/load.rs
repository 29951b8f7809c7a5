//! Callers that append through all nodes, turn to the next one after an error, and never let go of an append before it
//! is acknowledged.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta_client::{Config, HttpStore};
use gesta_core::{Append, Appended, EventData, EventId, EventType, ExpectedRevision, StreamId};
use gesta_kit::depth;
use gesta_kit::history::RunHistory;
use gesta_kit::verdict::Verdict;
use tokio::task::JoinSet;

use crate::nodes::Nodes;
use crate::support::PATIENCE;

/// Callers that begin at each node.
const CALLERS: usize = 4;
/// Streams that all callers append to.
const SHARED_STREAMS: usize = 16;
/// Appends of every caller that are waited for.
const APPENDS: usize = 10;
/// Pause of a caller after an append, and after an error: in the quick form so long that the load leaves processors to
/// the nodes and to other tests.
fn pause() -> Duration {
    Duration::from_millis(depth::count(60, 5))
}

/// One append, from its first attempt to its acknowledgement.
#[derive(Debug, Clone)]
struct Call {
    begun: Instant,
    ended: Instant,
    caller: usize,
    /// The nodes that were asked.
    asked: BTreeSet<usize>,
}

/// All that callers have seen.
#[derive(Default)]
struct Seen {
    calls: Mutex<Vec<Call>>,
    /// Of each attempt that failed: the node, and the error.
    errors: Mutex<Vec<(usize, String)>>,
    stop: AtomicBool,
    history: RunHistory,
}

/// The callers.
pub(crate) struct Load {
    seen: Arc<Seen>,
    callers: JoinSet<()>,
    count: usize,
}

impl Load {
    pub(crate) fn start(nodes: &Nodes) -> Self {
        let seen = Arc::new(Seen::default());
        let mut callers = JoinSet::new();
        let count = nodes.all.len() * CALLERS;
        // Errors are those of servers and of connections, and not of callers who had no patience.
        let config = Config {
            connect_max: PATIENCE,
            answer_max: PATIENCE * 2,
            ..Config::default()
        };
        for number in 0..count {
            let connect = |node: &crate::nodes::Node| {
                HttpStore::with_config(&node.url(), config.clone()).unwrap()
            };
            let caller = Caller {
                number,
                stores: nodes.all.iter().map(connect).collect(),
                node: number % nodes.all.len(),
                seen: Arc::clone(&seen),
            };
            callers.spawn(caller.run());
        }
        Self {
            seen,
            callers,
            count,
        }
    }

    /// One more append, which must be acknowledged and is checked with the others.
    pub(crate) async fn append(
        &self,
        store: &HttpStore,
        request: Append,
    ) -> gesta_core::Result<Appended> {
        self.seen.history.append(store, request).await
    }

    /// Waits until every caller has had some appends acknowledged that it began from now on.
    pub(crate) async fn goes_on(&self) {
        let begun = Instant::now();
        loop {
            let mut counts = vec![0; self.count];
            for call in self
                .calls_since(begun)
                .iter()
                .filter(|call| call.begun >= begun)
            {
                counts[call.caller] += 1;
            }
            if counts.iter().all(|count| *count >= APPENDS) {
                return;
            }
            let elapsed = begun.elapsed();
            assert!(
                elapsed < PATIENCE * 3,
                "appends stand still: {counts:?}, {:?}",
                self.errors()
            );
            tokio::time::sleep(pause()).await;
        }
    }

    /// The appends that ended after this moment.
    fn calls_since(&self, since: Instant) -> Vec<Call> {
        let calls = self.seen.calls.lock().unwrap();
        calls
            .iter()
            .filter(|call| call.ended >= since)
            .cloned()
            .collect()
    }

    /// The longest append that ended after this moment and was never asked of this node.
    pub(crate) fn longest_elsewhere(&self, since: Instant, node: usize) -> Duration {
        let calls = self
            .calls_since(since)
            .into_iter()
            .filter(|call| !call.asked.contains(&node));
        calls
            .map(|call| call.ended - call.begun)
            .max()
            .unwrap_or_default()
    }

    /// The errors so far: the node that was asked, and what it or the connection to it said.
    pub(crate) fn errors(&self) -> Vec<(usize, String)> {
        self.seen.errors.lock().unwrap().clone()
    }

    /// Ends the callers, each after its last append was acknowledged, and checks what is stored.
    pub(crate) async fn check(mut self, nodes: &Nodes) -> Verdict {
        self.seen.stop.store(true, Ordering::SeqCst);
        let ended = async {
            while let Some(ended) = self.callers.join_next().await {
                ended.expect("no caller is refused");
            }
        };
        let in_time = tokio::time::timeout(PATIENCE * 3, ended).await;
        in_time.expect("the last appends are acknowledged");
        let store = nodes
            .all
            .iter()
            .find(|node| node.is_alive())
            .unwrap()
            .store();
        let report = self.seen.history.check(&store).await.unwrap();
        eprintln!("{report}");
        report.assert_clean();
        assert_eq!(report.acknowledged, report.requests);
        assert_eq!(report.events_stored, report.events_acknowledged);
        tokio::task::block_in_place(|| nodes.verify());
        report
    }
}

struct Caller {
    number: usize,
    stores: Vec<HttpStore>,
    /// The node that is asked now.
    node: usize,
    seen: Arc<Seen>,
}

impl Caller {
    /// Appends by turns to a stream of its own, with an exact claim that nobody else can outdate, and to shared ones.
    async fn run(mut self) {
        let mut expected = ExpectedRevision::NoStream;
        let mut turn = self.number;
        while !self.seen.stop.load(Ordering::SeqCst) {
            let own = self.append(&format!("own-{}", self.number), expected).await;
            expected = ExpectedRevision::Exact(own.streams[0].last_revision);
            let shared = format!("shared-{}", turn % SHARED_STREAMS);
            self.append(&shared, ExpectedRevision::Any).await;
            turn += 1;
        }
    }

    /// Appends, with the same event ids until the append is acknowledged.
    async fn append(&mut self, stream: &str, expected: ExpectedRevision) -> Appended {
        let event = EventData::json(EventType::new("happened").unwrap(), "{}");
        let events = [EventId::random(), EventId::random()].map(|id| event.clone().with_id(id));
        let request = Append::to(StreamId::new(stream).unwrap(), expected, events.to_vec());
        let (begun, mut asked) = (Instant::now(), BTreeSet::new());
        loop {
            let store = &self.stores[self.node];
            asked.insert(self.node);
            let answer = self.seen.history.append(store, request.clone()).await;
            match answer {
                Ok(appended) => {
                    let ended = Instant::now();
                    let call = Call {
                        begun,
                        ended,
                        caller: self.number,
                        asked,
                    };
                    self.seen.calls.lock().unwrap().push(call);
                    tokio::time::sleep(pause()).await;
                    return appended;
                }
                Err(error) if error.is_retryable() => {
                    let failed = (self.node, causes(&error));
                    self.seen.errors.lock().unwrap().push(failed);
                    self.node = (self.node + 1) % self.stores.len();
                    tokio::time::sleep(pause()).await;
                }
                Err(error) => panic!("{stream} at node {}: {error}", self.node),
            }
        }
    }
}

/// An error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let first = Some(error);
    let all = std::iter::successors(first, |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
