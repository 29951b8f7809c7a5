//! Tests two processes on one database that fails all the time, and that loses its newest events now and then, as in a
//! fail-over or after a restore. Both processes run the group whenever a consumer comes to them.
//!
//! Every event that is left is finished or parked in the end, and parked once, whichever process claims the group from
//! the other, whichever answers of the database are lost, late or never come, and whatever the database loses. If the
//! group is halted because its place was lost, somebody says where it goes on; from then on an event may be parked once
//! more. In the end what is parked is thrown away, the group is moved to the start, and every event is parked anew. The
//! tests control the time, so that a run takes no longer than its work.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gesta_core::{
    DeleteKind, DeleteStream, EventId, EventStore, EventStoreExt, ExpectedRevision, Filter, LogId,
    StreamId,
};
use gesta_groups::{
    Action, Config, Create, Delivery, Error, GroupId, Groups, Identity, JoinGroup, ResetTo,
    Settings, Source, Which,
};
use gesta_kit::depth;
use gesta_kit::faulty::{FaultyStore, World};
use gesta_kit::history::Deliveries;
use gesta_kit::judge::groups::{self as judge, Terms};
use gesta_kit::support::events;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const STREAM: &str = "cart-1";
const EVENTS: usize = 200;
const CONSUMERS: u64 = 4;
/// How long the database fails, in the time of the test.
const FAULTS: Duration = Duration::from_secs(60);
/// Most events that the database loses at once.
const LOST_MAX: u64 = 60;

/// Two processes, and what their consumers got and have finished.
#[derive(Clone)]
struct Everybody {
    world: Arc<World>,
    stores: Arc<[FaultyStore; 2]>,
    groups: [Groups; 2],
    group: GroupId,
    history: Deliveries<EventId>,
    /// How many times somebody may have moved the group.
    moves: Arc<AtomicUsize>,
}

impl Everybody {
    fn start(rng: &mut StdRng) -> Self {
        let world = World::new(rng.random_range(1..=2));
        let stores = [world.store(), world.store()];
        let groups = stores.each_ref().map(|store| {
            let store: Arc<dyn EventStore> = store.share();
            Groups::start(store, Config::default())
        });
        let stream = StreamId::new(STREAM).expect("valid");
        // A group on all events needs one log.
        let source = match world.logs() == 1 && rng.random_bool(0.5) {
            true => Source::All,
            false => Source::Stream(stream),
        };
        Self {
            world,
            stores: Arc::new(stores),
            groups,
            group: GroupId::new(source, "mail").expect("valid"),
            history: Deliveries::new(),
            moves: Arc::default(),
        }
    }

    /// Joins the group in one of the processes. If it is halted, somebody says where it goes on.
    async fn join(&self, process: usize, rng: &mut StdRng) -> Option<gesta_groups::Consumer> {
        let join = JoinGroup {
            buffer: 7,
            identity: Identity::default(),
            patience: Duration::ZERO,
        };
        let groups = &self.groups[process];
        match groups.join(&self.group, join).await {
            Ok(consumer) => return Some(consumer),
            Err(Error::Halted { halt, .. }) => {
                let to = match halt.surviving {
                    Some(_) if rng.random_bool(0.8) => ResetTo::Surviving,
                    _ => ResetTo::Start,
                };
                drop(self.reset(process, to).await);
            }
            Err(_) => {}
        }
        // Without a pause the time of the test would stand still.
        tokio::time::sleep(Duration::from_millis(100)).await;
        None
    }

    async fn reset(&self, process: usize, to: ResetTo) -> Result<u64, Error> {
        // It may be moved even if the answer is lost.
        self.moves.fetch_add(1, Ordering::Relaxed);
        self.groups[process].reset(&self.group, to).await
    }

    fn got(&self, consumer: u64, delivery: &Delivery) {
        let event = delivery.event.id;
        self.history.delivered(consumer, event, delivery.retries);
    }

    fn finish(&self, delivery: &Delivery) {
        self.history.finish(delivery.event.id);
    }

    /// Loses the newest events of a log, but not the group itself.
    fn lose(&self, keep: &[u64], rng: &mut StdRng) {
        let log = LogId(rng.random_range(0..self.world.logs()));
        let most = self
            .world
            .end(log)
            .position
            .0
            .saturating_sub(keep[usize::from(log.0)]);
        let lost = rng.random_range(0..=most.min(LOST_MAX));
        self.world
            .lose_newest(log, usize::try_from(lost).expect("small"));
        self.stores.iter().for_each(FaultyStore::begin_history);
    }

    /// Returns the events that can be read.
    async fn left(&self) -> Vec<EventId> {
        let events = self.stores[0].read_whole_stream(STREAM).await;
        let events = events.unwrap_or_default();
        events.iter().map(|event| event.id).collect()
    }

    /// Returns those of them that are neither finished nor parked.
    async fn unsettled(&self) -> Vec<EventId> {
        judge::unsettled(&self.history, &self.left().await, &self.parked())
    }

    /// Returns the ids of the events that are parked, with those that were parked twice.
    fn parked(&self) -> Vec<EventId> {
        let stream = self.group.parked_stream();
        let stored = self.world.stored().into_iter().map(|stored| stored.event);
        let links = stored.filter(|event| event.stream == stream);
        let id = |link: gesta_core::RecordedEvent| {
            let metadata: serde_json::Value = serde_json::from_slice(&link.metadata).expect("JSON");
            let id = metadata["eventId"].as_str().expect("an id");
            EventId(id.parse().expect("a UUID"))
        };
        links.map(id).collect()
    }
}

/// Consumes events, now in one process and now in the other one.
async fn consume(everybody: Everybody, number: u64, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    loop {
        let process = rng.random_range(0..2);
        let Some(mut consumer) = everybody.join(process, &mut rng).await else {
            continue;
        };
        for _ in 0..rng.random_range(1..40) {
            let next = tokio::time::timeout(Duration::from_secs(5), consumer.next());
            let Ok(Ok(delivery)) = next.await else { break };
            everybody.got(number, &delivery);
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..200))).await;
            let which = vec![Which::Delivery(delivery.number)];
            let answered = match rng.random_range(0..10) {
                0 => consumer.nack(which, Action::Retry, "").await,
                1 => consumer.nack(which, Action::Park, "").await,
                2 => Ok(0),
                _ => {
                    everybody.finish(&delivery);
                    consumer.ack(which).await
                }
            };
            if answered.is_err() {
                break;
            }
        }
    }
}

async fn write(store: &FaultyStore, count: usize) {
    for _ in 0..count / 10 {
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
async fn finish_the_rest(everybody: &Everybody, rng: &mut StdRng) {
    loop {
        let Some(mut consumer) = everybody.join(0, rng).await else {
            continue;
        };
        loop {
            let next = tokio::time::timeout(Duration::from_secs(1), consumer.next());
            match next.await {
                Ok(Ok(delivery)) => {
                    everybody.got(CONSUMERS, &delivery);
                    everybody.finish(&delivery);
                    drop(consumer.ack(vec![Which::Delivery(delivery.number)]).await);
                }
                Ok(Err(_)) => break,
                Err(_) if everybody.unsettled().await.is_empty() => return,
                Err(_) => {}
            }
        }
    }
}

/// Throws away what is parked, and moves the group to the start. Then parks whatever is delivered, until every event
/// that is left was parked anew.
async fn park_all_anew(everybody: &Everybody, rng: &mut StdRng) {
    let delete = DeleteStream {
        stream: everybody.group.parked_stream(),
        expected: ExpectedRevision::Any,
        kind: DeleteKind::Soft,
    };
    // There may be none.
    drop(everybody.stores[0].delete_stream(delete).await);
    let before = everybody.parked().len();
    while everybody.reset(0, ResetTo::Start).await.is_err() {}
    loop {
        let Some(mut consumer) = everybody.join(0, rng).await else {
            continue;
        };
        loop {
            match tokio::time::timeout(Duration::from_secs(1), consumer.next()).await {
                Ok(Ok(delivery)) => {
                    everybody.got(CONSUMERS, &delivery);
                    let which = vec![Which::Delivery(delivery.number)];
                    drop(consumer.nack(which, Action::Park, "").await);
                }
                Ok(Err(_)) => break,
                Err(_) => {
                    let anew: HashSet<EventId> = everybody.parked().drain(before..).collect();
                    if everybody.left().await.iter().all(|id| anew.contains(id)) {
                        return;
                    }
                }
            }
        }
    }
}

/// Does to the stream and to the database what happens in the life of a store, until the time is over.
async fn disasters(everybody: &Everybody, keep: &[u64], rng: &mut StdRng) {
    let until = tokio::time::Instant::now() + FAULTS;
    while tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..10_000))).await;
        match rng.random_range(0..10) {
            0..4 => everybody.lose(keep, rng),
            4 if rng.random_bool(0.2) => drop(everybody.reset(0, ResetTo::Start).await),
            4 => {
                let delete = DeleteStream {
                    stream: StreamId::new(STREAM).expect("valid"),
                    expected: ExpectedRevision::Any,
                    kind: DeleteKind::Soft,
                };
                drop(everybody.stores[0].delete_stream(delete).await);
            }
            _ => write(&everybody.stores[rng.random_range(0..2)], 30).await,
        }
    }
}

async fn nothing_is_lost(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let everybody = Everybody::start(&mut rng);
    let settings = Settings {
        message_timeout_ms: 1_000,
        max_retry_count: 3,
        checkpoint_after_ms: 100,
        min_checkpoint_count: 1,
        max_checkpoint_count: 20,
        ..Settings::default()
    };
    let create = Create {
        group: everybody.group.clone(),
        settings,
        filter: Filter::ALL,
    };
    everybody.groups[0].create(create).await.expect("created");
    let logs = (0..everybody.world.logs()).map(LogId);
    let keep: Vec<u64> = logs
        .map(|log| everybody.world.end(log).position.0)
        .collect();
    for (number, store) in (0..).zip(&*everybody.stores) {
        store.random_faults(seed.wrapping_add(number), 0.15);
    }
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|number| {
            let seed = seed.wrapping_add(number);
            tokio::spawn(consume(everybody.clone(), number, seed))
        })
        .collect();
    write(&everybody.stores[1], EVENTS).await;
    disasters(&everybody, &keep, &mut rng).await;
    everybody.stores.iter().for_each(FaultyStore::heal);
    consumers.iter().for_each(tokio::task::JoinHandle::abort);

    let last = finish_the_rest(&everybody, &mut rng);
    if tokio::time::timeout(Duration::from_secs(600), last)
        .await
        .is_err()
    {
        panic!("lost: {:?}", everybody.unsettled().await);
    }
    let again = park_all_anew(&everybody, &mut rng);
    let again = tokio::time::timeout(Duration::from_secs(600), again).await;
    assert!(again.is_ok(), "events are not parked after a move");
    let terms = Terms {
        parked_max: 1 + everybody.moves.load(Ordering::Relaxed),
        may_lose: true,
        in_order: None,
    };
    let (left, parked) = (everybody.left().await, everybody.parked());
    judge::judge(&everybody.history, &left, &parked, terms).assert_clean();
}

#[test]
fn two_processes_on_a_database_that_fails_and_loses_events_pass_over_nothing() {
    let first = depth::seed();
    let runs = if depth::seed_asked_for().is_some() {
        1
    } else {
        depth::count(20, 500)
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
