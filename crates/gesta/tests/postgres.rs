//! Two servers on one PostgreSQL database: what one appends reaches the subscribers of the other.
#![cfg(feature = "postgres")]
#![expect(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use gesta::*;
use gesta_pgtest::{FaultProxy, Server, fresh_schema, shared};

fn event() -> EventData {
    EventData::json(EventType::new("tested").expect("valid"), "{}")
}

fn url(server: &Server) -> String {
    format!("{}?schema={}", server.url(), fresh_schema())
}

async fn open(url: &str, logs: u16) -> Arc<Store> {
    let options = Options {
        logs,
        ..Options::creating()
    };
    options.open_database(url).await.expect("opened")
}

async fn append(store: &Store, stream: &str, count: usize) {
    let events = (0..count).map(|_| event()).collect();
    store
        .append_to(stream, ExpectedRevision::Any, events)
        .await
        .expect("appended");
}

async fn subscribe(store: &Store, from: SubscribeFrom) -> Subscription {
    let to = SubscribeTo::All(Filter::ALL);
    let subscription = store.subscribe(Subscribe { to, from }).await;
    subscription.expect("subscribed")
}

/// The next events, each log's in order and without a hole.
async fn expect_all(subscription: &mut Subscription, count: u64) {
    let mut last: HashMap<LogId, Position> = HashMap::new();
    for _ in 0..count {
        let event = tokio::time::timeout(Duration::from_secs(60), subscription.next_event());
        let event = event.await.expect("in time").expect("going on");
        let before = last.insert(event.log, event.position).unwrap_or_default();
        assert_eq!(event.position, before.next(), "log {}", event.log);
    }
}

/// Goal: a subscriber of one server hears of the other's appends at once, not by the poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_wake_each_others_subscribers() {
    let Some(server) = shared() else { return };
    let url = url(server);
    let (a, b) = (open(&url, 1).await, open(&url, 1).await);
    let mut subscription = subscribe(&a, SubscribeFrom::End).await;
    let mut fastest = Duration::MAX;
    for _ in 0..20 {
        let begun = tokio::time::Instant::now();
        append(&b, "cart-1", 1).await;
        subscription.next_event().await.expect("going on");
        fastest = fastest.min(begun.elapsed());
    }
    // The poll comes every five seconds; twenty in a row by chance are out of the question.
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
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
    let busy = (0..4).map(|writer| {
        let (store, finished) = (Arc::clone(&near), Arc::clone(&finished));
        tokio::spawn(async move {
            let mut count = 0_u32;
            while !finished.load(Ordering::Relaxed) {
                append(&store, &format!("near-{writer}"), 1).await;
                count += 1;
            }
            count
        })
    });
    let busy: Vec<_> = busy.collect();
    let appends = async {
        for _ in 0..10 {
            append(&far, "far", 1).await;
        }
    };
    let appended = tokio::time::timeout(Duration::from_secs(60), appends).await;
    finished.store(true, Ordering::Relaxed);
    let near_count: u32 = join_all(busy)
        .await
        .into_iter()
        .map(|count| count.expect("no panic"))
        .sum();
    appended.expect("the far one is stored in time");
    assert!(near_count > 10, "the near one goes on: {near_count}");
    far.shutdown().await.expect("shut down");
    near.shutdown().await.expect("shut down");
}
