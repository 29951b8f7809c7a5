//! Tests two processes on one database that fails all the time. Both run the group whenever a consumer comes to them.
//!
//! Every event is finished or parked in the end, whichever process claims the group from the other, and whichever
//! answers of the database are lost, late or never come. The tests control the time, so that a run takes no longer than
//! its work.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_core::{EventStore, EventStoreExt, ExpectedRevision, Filter, StreamId};
use gesta_groups::{
    Action, Config, Create, Error, GroupId, Groups, Identity, JoinGroup, Settings, Source, Which,
};
use gesta_testkit::depth;
use gesta_testkit::faulty::{FaultyStore, World};
use gesta_testkit::support::events;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const STREAM: &str = "cart-1";
const EVENTS: usize = 200;
const CONSUMERS: u64 = 4;
/// How long the database fails, in the time of the test.
const FAULTS: Duration = Duration::from_secs(60);

type Finished = Arc<Mutex<HashSet<u64>>>;

fn group() -> GroupId {
    let stream = StreamId::new(STREAM).expect("valid");
    GroupId::new(Source::Stream(stream), "mail").expect("valid")
}

async fn join(groups: &Groups) -> Result<gesta_groups::Consumer, Error> {
    let join = JoinGroup {
        buffer: 7,
        identity: Identity::default(),
    };
    groups.join(&group(), join).await
}

/// Consumes events, now in one process and now in the other one.
async fn consume(processes: [Groups; 2], finished: Finished, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    loop {
        let groups = &processes[rng.random_range(0..2)];
        let Ok(mut consumer) = join(groups).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        for _ in 0..rng.random_range(1..40) {
            let next = tokio::time::timeout(Duration::from_secs(5), consumer.next());
            let Ok(Ok(delivery)) = next.await else { break };
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..200))).await;
            let which = vec![Which::Delivery(delivery.number)];
            let answered = match rng.random_range(0..10) {
                0 => consumer.nack(which, Action::Retry, "").await,
                1 => consumer.nack(which, Action::Park, "").await,
                2 => Ok(0),
                _ => {
                    finished
                        .lock()
                        .expect("lock")
                        .insert(delivery.event.revision.0);
                    consumer.ack(which).await
                }
            };
            if answered.is_err() {
                break;
            }
        }
    }
}

async fn write(store: &FaultyStore) {
    for _ in 0..EVENTS / 10 {
        let events = events(10);
        loop {
            let append = store.append_to(STREAM, ExpectedRevision::Any, events.clone());
            // The same ids until it is stored.
            if append.await.is_ok() {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Finishes events until the group has nothing left.
async fn finish_the_rest(groups: &Groups, finished: &Finished) {
    loop {
        let Ok(mut consumer) = join(groups).await else {
            // Without a pause the time of the test would stand still.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        while let Ok(delivery) = next_or_settled(&mut consumer, groups).await {
            let Some(delivery) = delivery else { return };
            finished
                .lock()
                .expect("lock")
                .insert(delivery.event.revision.0);
            drop(consumer.ack(vec![Which::Delivery(delivery.number)]).await);
        }
    }
}

/// Returns the revisions of the events that are parked.
async fn parked(store: &FaultyStore) -> Vec<u64> {
    let stream = group().parked_stream();
    let parked = store.read_whole_stream(stream.as_str()).await;
    let links = parked.unwrap_or_default().into_iter().map(|link| {
        let link = String::from_utf8(link.data.to_vec()).expect("text");
        let revision = link.strip_suffix("@cart-1").expect("a link to the stream");
        revision.parse().expect("a revision")
    });
    links.collect()
}

async fn nothing_is_lost(seed: u64) {
    let world = World::new(1);
    let stores = [world.store(), world.store()];
    let processes = stores.each_ref().map(|store| {
        let store: Arc<dyn EventStore> = store.share();
        Groups::start(store, Config::default())
    });
    let settings = Settings {
        message_timeout_ms: 1_000,
        max_retry_count: 3,
        checkpoint_after_ms: 100,
        min_checkpoint_count: 1,
        max_checkpoint_count: 20,
        ..Settings::default()
    };
    let create = Create {
        group: group(),
        settings,
        filter: Filter::ALL,
    };
    processes[0].create(create).await.expect("created");
    for (number, store) in (0..).zip(&stores) {
        store.random_faults(seed.wrapping_add(number), 0.15);
    }
    let finished = Finished::default();
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|number| {
            let (processes, finished) = (processes.clone(), Arc::clone(&finished));
            tokio::spawn(consume(processes, finished, seed.wrapping_add(number)))
        })
        .collect();
    write(&stores[1]).await;
    tokio::time::sleep(FAULTS).await;
    stores.iter().for_each(FaultyStore::heal);
    consumers.iter().for_each(tokio::task::JoinHandle::abort);

    let last = finish_the_rest(&processes[0], &finished);
    let settled = tokio::time::timeout(Duration::from_secs(600), last).await;
    settled.expect("all is settled in time");
    let mut settled = finished.lock().expect("lock").clone();
    settled.extend(parked(&stores[0]).await);
    let all = 0..u64::try_from(EVENTS).expect("small");
    let lost: Vec<u64> = all.filter(|event| !settled.contains(event)).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
}

/// Returns the next delivery; `None` once everything is finished.
async fn next_or_settled(
    consumer: &mut gesta_groups::Consumer,
    groups: &Groups,
) -> Result<Option<gesta_groups::Delivery>, Error> {
    loop {
        let next = tokio::time::timeout(Duration::from_secs(1), consumer.next());
        match next.await {
            Ok(next) => return next.map(Some),
            Err(_) if groups.info(&group()).await?.checkpoint == u64::try_from(EVENTS).ok() => {
                return Ok(None);
            }
            Err(_) => {}
        }
    }
}

#[test]
fn two_processes_on_a_failing_database_lose_nothing() {
    let first = depth::seed();
    let runs = if depth::seed_asked_for().is_some() {
        1
    } else {
        depth::count(10, 500)
    };
    for run in 0..runs {
        let seed = first.wrapping_add(run);
        println!("GESTA_SEED={seed}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(nothing_is_lost(seed));
    }
}
