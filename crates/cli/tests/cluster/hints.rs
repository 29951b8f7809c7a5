//! The Rust client goes straight to the owners of logs.

use std::time::{Duration, Instant};

use gesta_client::{Config, HttpStore};
use gesta_core::{Append, EventData, EventId, EventStore, EventType, ExpectedRevision, StreamId};

use crate::nodes::Nodes;
use crate::support::{self, PATIENCE};
use crate::{LOGS, NODES};

/// Streams that are appended to, some in each log.
const STREAMS: usize = 32;
/// Pause after an append that has failed, and between rounds: it leaves processors to other tests.
const PAUSE: Duration = Duration::from_millis(100);

struct Caller {
    client: HttpStore,
    /// Appends that were acknowledged.
    rounds: usize,
}

impl Caller {
    /// Appends to every stream, each time with the same event until that is acknowledged.
    async fn round(&mut self) {
        for number in 0..STREAMS {
            let stream = StreamId::new(format!("hinted-{number}")).unwrap();
            let event = EventData::json(EventType::new("happened").unwrap(), "{}");
            let events = vec![event.with_id(EventId::random())];
            let append = Append::to(stream, ExpectedRevision::Any, events);
            let begun = Instant::now();
            let appended = loop {
                match self.client.append(append.clone()).await {
                    Ok(appended) => break appended,
                    Err(error) if error.is_retryable() && begun.elapsed() < PATIENCE => {
                        tokio::time::sleep(PAUSE).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            let last = appended.streams[0].last_revision;
            assert_eq!(last.0, self.rounds as u64, "nothing is lost or doubled");
        }
        self.rounds += 1;
    }

    /// Appends until a whole round is forwarded by no node.
    async fn until_direct(&mut self, nodes: &Nodes) {
        let begun = Instant::now();
        loop {
            let before = forwarded(nodes);
            self.round().await;
            if forwarded(nodes) == before {
                return;
            }
            let is_over = begun.elapsed() > PATIENCE * 2;
            assert!(!is_over, "changes are still forwarded");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The changes that the nodes that live have forwarded.
fn forwarded(nodes: &Nodes) -> u64 {
    let name = "gesta_cluster_forwarded_calls_total{result=\"answered\"} ";
    let live = nodes.all.iter().filter(|node| node.is_alive());
    let counts = live.map(|node| {
        let metrics = support::get(&node.listen.to_string(), "/metrics");
        let found = metrics.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or("0").trim().parse::<u64>().unwrap()
    });
    counts.sum()
}

/// Goal: a client of the cluster learns who owns which log and goes there; when an owner dies, it goes on through the
/// others, loses and doubles nothing, and learns the new owners.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_goes_to_the_owners_and_goes_on_when_one_dies() {
    let Some(mut nodes) = Nodes::start(NODES, LOGS).await else {
        return;
    };
    let urls: Vec<String> = nodes.all.iter().map(|node| node.url()).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let client = HttpStore::connect_to_cluster(&urls, Config::default()).unwrap();
    let mut caller = Caller { client, rounds: 0 };
    caller.until_direct(&nodes).await;
    let victim = nodes.busiest();
    nodes.all[victim].kill();
    caller.round().await;
    nodes
        .owned("others own all logs", |owned| owned[victim] == 0)
        .await;
    caller.until_direct(&nodes).await;
    nodes.all[victim].launch();
    nodes.all[victim].ready().await;
    nodes
        .owned("it has logs again", |owned| owned[victim] > 0)
        .await;
    caller.until_direct(&nodes).await;
}
