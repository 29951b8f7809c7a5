//! Makes stores of every backend, and groups on them.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{EventStore, ExpectedRevision, Filter, StreamId};
use gesta_groups::{
    Config, Consumer, Create, Delivery, Error, GroupId, Groups, Identity, JoinGroup, Settings,
    Source, Which,
};
use gesta_kit::support::{append, events, within};

/// A store, and what keeps its data alive.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) store: Arc<dyn EventStore>,
    _home: Arc<dyn Any + Send + Sync>,
}

pub(crate) async fn memory() -> Option<Home> {
    let store = Arc::new(gesta_memory::MemoryStore::new());
    let _home = Arc::new(());
    Some(Home { store, _home })
}

pub(crate) async fn sqlite() -> Option<Home> {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}", directory.path().join("gesta.db").display());
    let store = gesta::open(&url).create().await.expect("opens").into();
    let _home = Arc::new(directory);
    Some(Home { store, _home })
}

pub(crate) async fn postgres() -> Option<Home> {
    let server = gesta_rig::shared()?;
    let schema = gesta_rig::fresh_schema();
    // Longer than a busy machine stands still.
    let times = "answer_timeout=60&connect_timeout=60";
    let url = format!("{}?schema={schema}&{times}", server.url());
    let store = gesta::open(&url).create().await.expect("opens").into();
    let _home = Arc::new(());
    Some(Home { store, _home })
}

/// Makes one test of each case for each backend.
macro_rules! on_every_backend {
    ($($case:ident),* $(,)?) => {
        on_every_backend!(@ memory: $($case),*);
        on_every_backend!(@ sqlite: $($case),*);
        on_every_backend!(@ postgres: $($case),*);
    };
    (@ $backend:ident: $($case:ident),*) => {
        mod $backend {
            $(
                #[tokio::test]
                async fn $case() {
                    if let Some(home) = crate::support::$backend().await {
                        super::$case(home).await;
                    }
                }
            )*
        }
    };
}
pub(crate) use on_every_backend;

/// Starts a process. When it stops, it stores how far its groups have come, however busy the machine is.
pub(crate) fn groups(home: &Home) -> Groups {
    let config = Config {
        last_checkpoint_max: Duration::from_secs(600),
        ..Config::default()
    };
    Groups::start(Arc::clone(&home.store), config)
}

pub(crate) fn on_stream(stream: &str) -> GroupId {
    let stream = StreamId::new(stream).expect("valid");
    GroupId::new(Source::Stream(stream), "mail").expect("valid")
}

/// Makes settings by which a consumer loses no event because the machine stands still.
pub(crate) fn patient() -> Settings {
    Settings {
        message_timeout_ms: 600_000,
        ..Settings::default()
    }
}

/// Makes patient settings that write a checkpoint for every event at once.
pub(crate) fn eager() -> Settings {
    Settings {
        checkpoint_after_ms: 0,
        min_checkpoint_count: 1,
        max_checkpoint_count: 1,
        ..patient()
    }
}

pub(crate) async fn create(groups: &Groups, group: &GroupId, settings: Settings) {
    let create = Create {
        group: group.clone(),
        settings,
        filter: Filter::ALL,
    };
    groups.create(create).await.expect("created");
}

pub(crate) async fn join(groups: &Groups, group: &GroupId, buffer: u32) -> Consumer {
    try_join(groups, group, buffer).await.expect("joined")
}

pub(crate) async fn try_join(
    groups: &Groups,
    group: &GroupId,
    buffer: u32,
) -> Result<Consumer, Error> {
    let join = JoinGroup {
        buffer,
        identity: Identity::default(),
        patience: Duration::ZERO,
    };
    within("a consumer joins", groups.join(group, join)).await
}

/// Joins a consumer for whose answers the group waits at least so long.
pub(crate) async fn join_patiently(
    groups: &Groups,
    group: &GroupId,
    buffer: u32,
    patience: Duration,
) -> Consumer {
    let join = JoinGroup {
        buffer,
        identity: Identity::default(),
        patience,
    };
    let joined = within("a consumer joins", groups.join(group, join)).await;
    joined.expect("joined")
}

pub(crate) async fn write(home: &Home, stream: &str, count: usize) {
    append(&*home.store, stream, ExpectedRevision::Any, events(count)).await;
}

pub(crate) async fn next(consumer: &mut Consumer) -> Delivery {
    within("an event is delivered", consumer.next())
        .await
        .expect("an event")
}

/// Takes the next `count` events, and returns their revisions.
pub(crate) async fn revisions(consumer: &mut Consumer, count: usize) -> Vec<u64> {
    let mut found = Vec::new();
    for _ in 0..count {
        found.push(next(consumer).await.event.revision.0);
    }
    found
}

/// Acknowledges the next `count` events, and returns their revisions.
pub(crate) async fn work_off(consumer: &mut Consumer, count: usize) -> Vec<u64> {
    let mut found = Vec::new();
    for _ in 0..count {
        let delivery = next(consumer).await;
        assert_eq!(ack(consumer, &delivery).await, 1);
        found.push(delivery.event.revision.0);
    }
    found
}

pub(crate) async fn ack(consumer: &Consumer, delivery: &Delivery) -> usize {
    let acked = consumer.ack(vec![Which::Delivery(delivery.number)]);
    acked.await.expect("answered")
}

/// Waits for the reason why the consumer is not in the group any more.
pub(crate) async fn end(consumer: &mut Consumer) -> Error {
    loop {
        let next = within("the consumer is told", consumer.next()).await;
        if let Err(error) = next {
            return error;
        }
    }
}
