//! Consumers that do whatever comes to their mind, and what is left of the events in the end.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_client::{HttpGroups, HttpStore};
use gesta_core::{EventData, EventStoreExt, EventType, ExpectedRevision, Filter, StreamId};
use gesta_groups::{
    Action, ConsumerGroups, Create, Error, GroupConsumer, GroupId, Settings, Source,
};
use gesta_kit::depth;
use gesta_kit::history::Deliveries;
use gesta_kit::judge::groups::{self as judge, Terms};
use gesta_kit::verdict::Verdict;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

use crate::support::PATIENCE;

const STREAM: &str = "orders";
const CONSUMERS: u64 = 10;
/// Events of one append.
const BATCH: usize = 500;
/// Of so many events one is not answered for when it is delivered first, one is refused then, and one is parked.
const CHOSEN_EVERY: u64 = 50;
/// Pause before a consumer tries again to reach a server that is gone.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// What a consumer does with an event that it was given.
#[derive(Clone, Copy)]
enum Deed {
    Vanish,
    /// Nothing is said, and its time runs out.
    Silence,
    Retry,
    Park,
    Skip,
    Finish,
}

impl Deed {
    fn random(rng: &mut StdRng) -> Self {
        match rng.random_range(0..1_000) {
            0..5 => Self::Vanish,
            // Also an event that was not answered for before may time out, until it is parked.
            5..15 => Self::Silence,
            15..60 => Self::Retry,
            60..80 => Self::Park,
            80..100 => Self::Skip,
            _ => Self::Finish,
        }
    }
}

/// What consumers have seen, whether the group has heard of it or not.
#[derive(Default)]
pub(crate) struct Seen {
    /// By revision.
    pub(crate) history: Deliveries<u64>,
    /// Revisions of events with which something was done on purpose. The retries do not tell: silence counts against
    /// the consumer first.
    chosen: Mutex<HashSet<u64>>,
    pub(crate) stop: AtomicBool,
}

impl Seen {
    /// What must happen after the last kill is not left to chance.
    fn chosen(&self, revision: u64) -> Option<Deed> {
        let deed = match revision % CHOSEN_EVERY {
            7 => Deed::Silence,
            17 => Deed::Retry,
            27 => Deed::Park,
            _ => return None,
        };
        let is_first = self.chosen.lock().unwrap().insert(revision);
        is_first.then_some(deed)
    }

    pub(crate) fn finished(&self) -> usize {
        self.history.finished()
    }
}

pub(crate) fn group() -> GroupId {
    let stream = StreamId::new(STREAM).unwrap();
    GroupId::new(Source::Stream(stream), "billing").unwrap()
}

/// A consumer that joins again and again.
async fn consume(urls: Vec<String>, seen: Arc<Seen>, number: u64, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut servers = urls.iter().cycle();
    let mut url = servers.next().unwrap();
    while !seen.stop.load(Ordering::SeqCst) {
        let groups = HttpStore::connect(url).unwrap().groups();
        let buffer = rng.random_range(1..50);
        match groups.join(&group(), buffer, "worker").await {
            Ok(mut consumer) => work(&mut consumer, &seen, number, &mut rng).await,
            // It is gone, or another one runs the group.
            Err(_) => {
                url = servers.next().unwrap();
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }
}

/// Works until the connection breaks, or until it occurs to the consumer to vanish.
async fn work(consumer: &mut GroupConsumer, seen: &Seen, number: u64, rng: &mut StdRng) {
    while !seen.stop.load(Ordering::SeqCst) {
        let next = tokio::time::timeout(Duration::from_secs(1), consumer.next());
        let delivery = match next.await {
            Ok(Some(Ok(delivery))) => delivery,
            Ok(_) => return,
            Err(_) => continue,
        };
        let revision = delivery.event.revision.0;
        seen.history.delivered(number, revision, delivery.retries);
        let deed = seen.chosen(revision).unwrap_or_else(|| Deed::random(rng));
        if matches!(deed, Deed::Skip | Deed::Finish) {
            seen.history.finish(revision);
        }
        let answered = match deed {
            Deed::Vanish => return,
            Deed::Silence => continue,
            Deed::Retry => consumer.nack(&delivery, Action::Retry, "not now").await,
            Deed::Park => {
                consumer
                    .nack(&delivery, Action::Park, "cannot be billed")
                    .await
            }
            Deed::Skip => consumer.nack(&delivery, Action::Skip, "").await,
            Deed::Finish => consumer.ack(&delivery).await,
        };
        if answered.is_err() {
            return;
        }
    }
}

pub(crate) async fn append(store: &HttpStore, revisions: Range<usize>) {
    for from in revisions.clone().step_by(BATCH) {
        let until = revisions.end.min(from + BATCH);
        let event =
            |number: usize| EventData::json(EventType::new("ordered").unwrap(), number.to_string());
        let events: Vec<_> = (from..until).map(event).collect();
        let appended = store.append_to(STREAM, ExpectedRevision::Any, events).await;
        appended.unwrap();
    }
}

/// Starts the consumers, each of which knows these servers.
pub(crate) fn start(urls: &[String], seen: &Arc<Seen>, seed: u64) -> Vec<JoinHandle<()>> {
    let consumer = |number| {
        let (urls, seen) = (urls.to_vec(), Arc::clone(seen));
        tokio::spawn(consume(urls, seen, number, seed.wrapping_add(number)))
    };
    (0..CONSUMERS).map(consumer).collect()
}

pub(crate) async fn create(groups: &HttpGroups) {
    let mut is_in_doubt = false;
    until("the group is created", async || {
        try_create(groups, &mut is_in_doubt).await
    })
    .await;
}

/// Creates the group, if this server is to run it, and knows that it is. Notes whether the group may have been created
/// though the answer was an error: then a later try may find it.
pub(crate) async fn try_create(groups: &HttpGroups, is_in_doubt: &mut bool) -> bool {
    let create = Create {
        group: group(),
        settings: settings(),
        filter: Filter::ALL,
    };
    match groups.create(&create).await {
        Ok(_) => true,
        Err(Error::NotHere { .. }) => false,
        Err(Error::Exists(_)) if *is_in_doubt => true,
        Err(Error::Store(error)) if error.is_retryable() => {
            eprintln!("the group is created again: {error}");
            *is_in_doubt = true;
            false
        }
        Err(error) => panic!("{error}"),
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
        ..Settings::default()
    }
}

pub(crate) async fn until(what: &str, is_so: impl AsyncFnMut() -> bool) {
    gesta_kit::support::until(what, PATIENCE * depth::count(2, 30), is_so).await;
}

/// Judges what has become of so many events, and prints what was counted; something was delivered again.
pub(crate) async fn judged(store: &HttpStore, seen: &Seen, events: usize) -> Verdict {
    let stream = group().parked_stream();
    let links = store.read_whole_stream(stream.as_str()).await.unwrap();
    let links = links.iter().map(|link| judge::linked(&link.data).unwrap());
    let parked = links.map(|(revision, stream)| {
        assert_eq!(stream.as_str(), STREAM);
        revision.0
    });
    let (parked, wanted): (Vec<u64>, Vec<u64>) = (parked.collect(), (0..).take(events).collect());
    let verdict = judge::judge(&seen.history, &wanted, &parked, Terms::default());
    println!("{events} events: {verdict}");
    assert!(verdict.redeliveries > 0);
    verdict
}
