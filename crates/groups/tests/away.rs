//! Tests a store that takes no writes for long: what callers are told, and that a group that runs goes on afterwards.
//!
//! The tests control the time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use gesta_core::{
    Append, Appended, DeleteStream, Deleted, ErrorKind, EventStore, EventStoreExt,
    ExpectedRevision, Filter, Result as StoreResult, StreamId,
};
use gesta_groups::{
    Config, Create, Error, GroupId, Groups, Identity, JoinGroup, Settings, Source, Which,
};
use gesta_kit::support::events;
use gesta_kit::{Outer, Wrapper};
use gesta_memory::MemoryStore;
use tokio::time::Instant;

/// Longest time that a caller waits: the 30 seconds of the other calls, and one attempt.
const ANSWER_MAX: Duration = Duration::from_secs(31);

/// A store whose writes fail while the test asks for it.
struct ReadOnly {
    inner: MemoryStore,
    is_away: AtomicBool,
    attempts: AtomicUsize,
    /// Errors that the next attempts get. Once the list is empty, they are told that the store is away.
    answers: Mutex<Vec<ErrorKind>>,
}

impl ReadOnly {
    fn check(&self) -> StoreResult<()> {
        if !self.is_away.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.attempts.fetch_add(1, Ordering::SeqCst);
        let answer = self.answers.lock().expect("lock").pop();
        Err(answer
            .unwrap_or_else(|| ErrorKind::Unavailable("no database".into()))
            .into())
    }
}

#[async_trait]
impl Wrapper for ReadOnly {
    fn inner(&self) -> &dyn EventStore {
        &self.inner
    }

    async fn append(&self, request: Append) -> StoreResult<Appended> {
        self.check()?;
        self.inner.append(request).await
    }

    async fn delete_stream(&self, request: DeleteStream) -> StoreResult<Deleted> {
        self.check()?;
        self.inner.delete_stream(request).await
    }
}

fn store() -> Arc<Outer<ReadOnly>> {
    Arc::new(Outer(ReadOnly {
        inner: MemoryStore::new(),
        is_away: AtomicBool::new(false),
        attempts: AtomicUsize::new(0),
        answers: Mutex::default(),
    }))
}

fn group(name: &str) -> GroupId {
    let stream = StreamId::new("cart-1").expect("valid");
    GroupId::new(Source::Stream(stream), name).expect("valid")
}

fn create(name: &str) -> Create {
    Create {
        group: group(name),
        settings: Settings {
            checkpoint_after_ms: 0,
            min_checkpoint_count: 1,
            max_checkpoint_count: 1,
            ..Settings::default()
        },
        filter: Filter::ALL,
    }
}

fn as_anybody() -> JoinGroup {
    JoinGroup {
        buffer: 10,
        identity: Identity::default(),
        patience: Duration::ZERO,
    }
}

/// Returns the error of a call, which must end by itself, and in time.
async fn told<T>(call: impl Future<Output = Result<T, Error>>) -> ErrorKind {
    let begun = Instant::now();
    let answer = tokio::time::timeout(Duration::from_secs(600), call).await;
    let Err(Error::Store(error)) = answer.expect("it is answered").map(drop) else {
        panic!("the store takes no writes");
    };
    assert!(begun.elapsed() <= ANSWER_MAX, "{:?}", begun.elapsed());
    error.kind().clone()
}

/// Goal: whoever changes or joins a group while the database is away is told so, by the bound that other calls have.
#[tokio::test(start_paused = true)]
async fn callers_do_not_wait_for_ever() {
    let store = store();
    let groups = Groups::start(Arc::clone(&store) as Arc<dyn EventStore>, Config::default());
    groups.create(create("mail")).await.expect("created");
    store.is_away.store(true, Ordering::SeqCst);

    let mail = group("mail");
    let kinds = [
        told(groups.create(create("other"))).await,
        told(groups.update(&mail, Settings::default())).await,
        told(groups.delete(&mail)).await,
        told(groups.join(&mail, as_anybody())).await,
        told(groups.replay_parked(&mail, None)).await,
    ];
    for kind in kinds {
        assert!(matches!(kind, ErrorKind::Unavailable(_)), "{kind:?}");
    }
    // None of them gave up at the first failure.
    assert!(store.attempts.load(Ordering::SeqCst) > 5 * 10);

    store.is_away.store(false, Ordering::SeqCst);
    groups.join(&mail, as_anybody()).await.expect("joined");
    groups.create(create("other")).await.expect("created");
}

/// Goal: an outage that ends in time is not noticed.
#[tokio::test(start_paused = true)]
async fn a_short_outage_is_waited_for() {
    let store = store();
    let groups = Groups::start(Arc::clone(&store) as Arc<dyn EventStore>, Config::default());
    store.is_away.store(true, Ordering::SeqCst);
    let back = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        store.is_away.store(false, Ordering::SeqCst);
    };
    let (created, ()) = tokio::join!(groups.create(create("mail")), back);
    created.expect("created");
}

/// Goal: *unavailable* says that nothing was written, so it is not said after an attempt that may have been stored.
#[tokio::test(start_paused = true)]
async fn what_may_be_stored_is_not_called_unavailable() {
    let store = store();
    let groups = Groups::start(Arc::clone(&store) as Arc<dyn EventStore>, Config::default());
    store.is_away.store(true, Ordering::SeqCst);
    let unknown = ErrorKind::OutcomeUnknown("the answer was lost".into());
    store.answers.lock().expect("lock").push(unknown);
    let kind = told(groups.create(create("mail"))).await;
    assert!(matches!(kind, ErrorKind::OutcomeUnknown(_)), "{kind:?}");
}

/// Goal: a group that runs waits for its database as long as it takes, and delivers meanwhile.
#[tokio::test(start_paused = true)]
async fn a_group_that_runs_outlives_a_long_outage() {
    let store = store();
    let groups = Groups::start(Arc::clone(&store) as Arc<dyn EventStore>, Config::default());
    store
        .append_to("cart-1", ExpectedRevision::Any, events(3))
        .await
        .expect("stored");
    groups.create(create("mail")).await.expect("created");
    let mail = group("mail");
    let mut consumer = groups.join(&mail, as_anybody()).await.expect("joined");
    store.is_away.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let delivery = consumer.next().await.expect("delivered");
        let which = vec![Which::Delivery(delivery.number)];
        assert_eq!(consumer.ack(which).await.expect("answered"), 1);
    }
    tokio::time::sleep(Duration::from_secs(300)).await;
    store.is_away.store(false, Ordering::SeqCst);
    let stored = async {
        while stored_checkpoint(&store, &mail).await != "3" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), stored)
        .await
        .expect("the checkpoint is stored");
}

/// Returns the last checkpoint that is stored, whatever the group that runs believes.
async fn stored_checkpoint(store: &Arc<Outer<ReadOnly>>, group: &GroupId) -> String {
    let stream = group.checkpoint_stream();
    let events = store.read_whole_stream(stream.as_str()).await;
    let last = events.expect("it is there").pop().expect("a checkpoint");
    let document: serde_json::Value = serde_json::from_slice(&last.data).expect("JSON");
    document["next"].to_string()
}
