//! Two servers on one PostgreSQL database: what one appends reaches the subscribers of the other.
#![cfg(feature = "postgres")]
#![expect(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use gesta::*;
use gesta_kit::depth;
use gesta_rig::{FaultProxy, Server, fresh_schema, shared};

/// No test waits longer for an event.
const PATIENCE: Duration = Duration::from_secs(60);

fn event() -> EventData {
    EventData::json(EventType::new("tested").expect("valid"), "{}")
}

fn url(server: &Server) -> String {
    let (server, schema) = (server.url(), fresh_schema());
    format!("{server}?schema={schema}&answer_timeout=60&connect_timeout=60")
}

/// Stores that give nothing up soon, however busy the machine is.
fn options(logs: u16) -> Options {
    Options::creating().logs(logs).config(config())
}

fn config() -> gesta::Config {
    let mut config = gesta::Config::default();
    config.append.give_up_after = PATIENCE * 5;
    config
}

async fn open(url: &str, logs: u16) -> Arc<DatabaseStore> {
    let opened = options(logs).open_database(url).await;
    opened.expect("opened")
}

async fn append(store: &DatabaseStore, stream: &str, count: usize) {
    let events: Vec<_> = (0..count).map(|_| event()).collect();
    store
        .append_to(stream, ExpectedRevision::Any, events)
        .await
        .expect("appended");
}

async fn subscribe(store: &DatabaseStore, from: SubscribeFrom) -> Subscription {
    let to = SubscribeTo::All(Filter::ALL);
    let subscription = store.subscribe(Subscribe { to, from }).await;
    subscription.expect("subscribed")
}

async fn next(subscription: &mut Subscription) -> SharedEvent {
    let event = tokio::time::timeout(PATIENCE, subscription.next_event());
    event.await.expect("in time").expect("going on")
}

/// The next events, each log's in order and without a hole.
async fn expect_all(subscription: &mut Subscription, count: u64) {
    let mut last: HashMap<LogId, Position> = HashMap::new();
    for _ in 0..count {
        let event = next(subscription).await;
        let before = last.insert(event.log, event.position).unwrap_or_default();
        assert_eq!(event.position, before.next(), "log {}", event.log);
    }
}

/// Goal: a subscriber of one server hears of the other's appends at once, not by the poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_wake_each_others_subscribers() {
    let Some(server) = shared() else { return };
    let url = url(server);
    // Who subscribes never polls while this test runs.
    let mut config = config();
    config.tail.poll_interval = Duration::from_secs(3_600);
    let options = options(1).config(config);
    let a = options.open_database(&url).await.expect("opened");
    let b = open(&url, 1).await;
    let mut subscription = subscribe(&a, SubscribeFrom::End).await;
    let mut fastest = Duration::MAX;
    for _ in 0..20 {
        let begun = tokio::time::Instant::now();
        append(&b, "cart-1", 1).await;
        next(&mut subscription).await;
        fastest = fastest.min(begun.elapsed());
    }
    let bound = Duration::from_secs(1);
    depth::in_time("an event of another server, at best", fastest, bound);
    a.shutdown().await.expect("shut down");
    b.shutdown().await.expect("shut down");
}

/// Goal: two busy servers, one log or several, connections cut under way: every subscriber of both
/// gets everything once and in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_servers_are_followed_in_order_through_cut_connections() {
    let Some(server) = shared() else { return };
    for logs in [1, 4] {
        let database = fresh_schema();
        let url = server.create_database(&database).expect("created");
        let cut = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        );
        let cut = cut.as_str();
        let stores = [open(&url, logs).await, open(&url, logs).await];
        let mut subscriptions = Vec::new();
        for store in &stores {
            subscriptions.push(subscribe(store, SubscribeFrom::Start).await);
        }
        let work = stores.iter().enumerate().map(|(number, store)| async move {
            for i in 0..100 {
                let stream = format!("cart-{}", i % 13);
                // A retry with the same ids is stored once.
                let events: Vec<_> = (0..5).map(|_| event().with_id(EventId::random())).collect();
                loop {
                    let again = events.clone();
                    match store.append_to(&stream, ExpectedRevision::Any, again).await {
                        Ok(_) => break,
                        Err(error) => assert!(error.is_retryable(), "{error}"),
                    }
                }
                if number == 0 && i % 33 == 20 {
                    tokio::task::block_in_place(|| server.execute(cut)).expect("cut");
                }
            }
        });
        let follow = subscriptions.iter_mut().map(|s| expect_all(s, 1_000));
        futures::future::join(join_all(work), join_all(follow)).await;
        for store in stores {
            store.shutdown().await.expect("shut down");
        }
    }
}

/// Goal: beside a server that never rests and is near the database, one that is far away gets its appends stored. Each
/// commit of the near one makes a batch of the far one miss, so without giving way the far one would wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_near_by_lets_a_far_one_through() {
    let Some(server) = shared() else { return };
    let url = url(server);
    let near = open(&url, 1).await;
    let proxy = FaultProxy::to_postgres(server.addr()).expect("listens");
    proxy.set_round_trip(Duration::from_millis(30));
    let far = open(&proxy.url(&url), 1).await;
    append(&far, "far", 1).await;
    let finished = Arc::new(AtomicBool::new(false));
    let near_count = Arc::new(AtomicU32::new(0));
    let busy = (0..4).map(|writer| {
        let (store, finished) = (Arc::clone(&near), Arc::clone(&finished));
        let near_count = Arc::clone(&near_count);
        tokio::spawn(async move {
            while !finished.load(Ordering::Relaxed) {
                append(&store, &format!("near-{writer}"), 1).await;
                near_count.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let busy: Vec<_> = busy.collect();
    let appends = async {
        for _ in 0..10 {
            append(&far, "far", 1).await;
        }
        while near_count.load(Ordering::Relaxed) <= 10 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let appended = tokio::time::timeout(PATIENCE * 5, appends).await;
    finished.store(true, Ordering::Relaxed);
    for ended in join_all(busy).await {
        ended.expect("no panic");
    }
    appended.expect("the far one is stored in time, and the near one goes on");
    far.shutdown().await.expect("shut down");
    near.shutdown().await.expect("shut down");
}
