//! Consumer groups on the real binary: consumers that acknowledge, refuse, are silent and vanish, while the server is
//! killed twice.
//!
//! What holds: every event is finished by a consumer or parked, none is lost; whatever is delivered again is counted.
//! The deep form delivers 100,000 events, the quick one 3,000.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_client::{GroupConsumer, HttpGroups, HttpStore};
use gesta_core::{EventData, EventStoreExt, EventType, ExpectedRevision, Filter, StreamId};
use gesta_groups::{Action, Create, GroupId, Settings, Source, Strategy, Which};
use gesta_testkit::depth;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use support::{PATIENCE, Server, url_of};

const STREAM: &str = "orders";
const CONSUMERS: u64 = 10;
/// Events of one append.
const BATCH: usize = 500;
/// Pause before a consumer tries again to reach a server that is gone.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// What consumers have seen, whether the group has heard of it or not.
#[derive(Default)]
struct Seen {
    finished: Mutex<HashSet<u64>>,
    deliveries: AtomicU64,
    /// Deliveries of which the server said that they were not the first.
    redeliveries: AtomicU64,
    stop: AtomicBool,
}

impl Seen {
    fn finish(&self, revision: u64) {
        self.finished.lock().unwrap().insert(revision);
    }

    fn finished(&self) -> usize {
        self.finished.lock().unwrap().len()
    }
}

fn group() -> GroupId {
    let stream = StreamId::new(STREAM).unwrap();
    GroupId::new(Source::Stream(stream), "billing").unwrap()
}

/// A consumer that joins again and again.
async fn consume(url: String, seen: Arc<Seen>, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    while !seen.stop.load(Ordering::SeqCst) {
        let groups = HttpStore::connect(&url).unwrap().groups();
        let buffer = rng.random_range(1..50);
        match groups.join(&group(), buffer, "worker").await {
            Ok(mut consumer) => work(&mut consumer, &seen, &mut rng).await,
            Err(_) => tokio::time::sleep(TRY_AGAIN).await,
        }
    }
}

/// Works until the connection breaks, or until it occurs to the consumer to vanish.
async fn work(consumer: &mut GroupConsumer, seen: &Seen, rng: &mut StdRng) {
    while !seen.stop.load(Ordering::SeqCst) {
        let next = tokio::time::timeout(Duration::from_secs(1), consumer.next());
        let delivery = match next.await {
            Ok(Ok(delivery)) => delivery,
            Ok(Err(_)) => return,
            Err(_) => continue,
        };
        seen.deliveries.fetch_add(1, Ordering::SeqCst);
        if delivery.retries > 0 {
            seen.redeliveries.fetch_add(1, Ordering::SeqCst);
        }
        let which = [Which::Delivery(delivery.number)];
        let answered = match rng.random_range(0..1_000) {
            0..5 => return,
            // Nothing is said: its time runs out.
            5..15 => continue,
            15..60 => consumer.nack(&which, Action::Retry, "not now").await,
            60..80 => {
                consumer
                    .nack(&which, Action::Park, "cannot be billed")
                    .await
            }
            80..100 => {
                seen.finish(delivery.event.revision.0);
                consumer.nack(&which, Action::Skip, "").await
            }
            _ => {
                seen.finish(delivery.event.revision.0);
                consumer.ack(&which).await
            }
        };
        if answered.is_err() {
            return;
        }
    }
}

async fn append(store: &HttpStore, revisions: Range<usize>) {
    for from in revisions.clone().step_by(BATCH) {
        let until = revisions.end.min(from + BATCH);
        let event =
            |number: usize| EventData::json(EventType::new("ordered").unwrap(), number.to_string());
        let events = (from..until).map(event).collect();
        let appended = store.append_to(STREAM, ExpectedRevision::Any, events).await;
        appended.unwrap();
    }
}

fn settings() -> Settings {
    Settings {
        message_timeout_ms: 500,
        max_retry_count: 5,
        checkpoint_after_ms: 100,
        min_checkpoint_count: 1,
        max_checkpoint_count: 200,
        extra_statistics: true,
        strategy: Strategy::RoundRobin,
        ..Settings::default()
    }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let limit = PATIENCE * depth::count(2, 30);
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(TRY_AGAIN).await;
        }
    };
    let waited = tokio::time::timeout(limit, wait).await;
    assert!(waited.is_ok(), "never: {what}");
}

/// Done-when: ten consumers, random refusals, time-outs and disconnects, two kills of the server.
async fn every_event_is_finished_or_parked(store: &str) {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let events: usize = depth::count(3_000, 100_000);
    let address = gesta_pgtest::free_address().unwrap().to_string();
    let start = || Server::start_with(store, &["--listen", &address]);
    let mut server = start();
    let client = HttpStore::connect(&server.url).unwrap();
    let groups = client.groups();
    let create = Create {
        group: group(),
        settings: settings(),
        filter: Filter::ALL,
    };
    groups.create(&create).await.unwrap();

    let seen = Arc::new(Seen::default());
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|number| {
            let seen = Arc::clone(&seen);
            tokio::spawn(consume(server.url.clone(), seen, seed.wrapping_add(number)))
        })
        .collect();
    // A part before each kill, and the last one while nothing is killed any more.
    let parts = [0, events / 3, events * 2 / 3, events];
    for part in parts.windows(2) {
        append(&client, part[0]..part[1]).await;
        let half = part[0] + (part[1] - part[0]) / 2;
        until("half of the part is finished", async || {
            seen.finished() >= half * 9 / 10
        })
        .await;
        if part[1] < events {
            server.kill();
            server = start();
        }
    }
    let last = u64::try_from(events).unwrap() - 1;
    let is_settled = async || {
        let info = groups.info(&group()).await;
        info.is_ok_and(|info| info.checkpoint == Some(last))
    };
    until("all is settled", is_settled).await;
    seen.stop.store(true, Ordering::SeqCst);
    check_counts(&groups, &server, &seen).await;
    for consumer in consumers {
        consumer.await.unwrap();
    }
    let lost = lost(&client, &seen, events).await;
    assert!(lost.is_empty(), "lost: {lost:?}");
    let deliveries = seen.deliveries.load(Ordering::SeqCst);
    let redeliveries = seen.redeliveries.load(Ordering::SeqCst);
    println!(
        "{events} events, {deliveries} deliveries, of which {redeliveries} are counted as redeliveries"
    );
    assert!(redeliveries > 0);
    server.stop();
}

/// What the server tells of the time since it was started last.
async fn check_counts(groups: &HttpGroups, server: &Server, seen: &Seen) {
    let info = groups.info(&group()).await.unwrap();
    let counts = info.running.expect("consumers are there").counts;
    assert!(
        counts.redelivered > 0 && counts.redelivered < counts.delivered,
        "{counts:?}"
    );
    assert!(
        counts.parked > 0 && counts.timed_out > 0 && counts.refused > 0,
        "{counts:?}"
    );
    // What was told to consumers was counted, though not all that was counted had to reach them.
    assert!(seen.deliveries.load(Ordering::SeqCst) > 0);
    let metrics = support::get(server.address(), "/metrics");
    let total = metrics
        .lines()
        .find_map(|line| line.strip_prefix("gesta_group_redeliveries_total "))
        .expect("a metric");
    assert!(
        total.parse::<u64>().unwrap() >= counts.redelivered,
        "{total} {counts:?}"
    );
}

/// Events that nobody has finished and that are not parked.
async fn lost(store: &HttpStore, seen: &Seen, events: usize) -> Vec<u64> {
    let mut settled = seen.finished.lock().unwrap().clone();
    let parked = group().parked_stream();
    for link in store.read_whole_stream(parked.as_str()).await.unwrap() {
        let link = String::from_utf8(link.data.to_vec()).unwrap();
        let revision = link.strip_suffix("@orders").expect("a link to the stream");
        settled.insert(revision.parse().unwrap());
    }
    let all = 0..u64::try_from(events).unwrap();
    all.filter(|event| !settled.contains(event)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_loses_nothing_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let store = url_of(&directory.path().join("gesta.db"));
    every_event_is_finished_or_parked(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_loses_nothing_on_postgresql() {
    let Some(server) = gesta_pgtest::shared() else {
        return;
    };
    let store = format!("{}?schema={}", server.url(), gesta_pgtest::fresh_schema());
    every_event_is_finished_or_parked(&store).await;
}
