//! Tests processes that die at any moment: their tasks are dropped wherever they wait, and the next process goes on.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

#[allow(dead_code, reason = "shared with other tests, which use more of it")]
mod support;

use std::time::Duration;

use gesta_core::EventStoreExt;
use gesta_groups::{Action, GroupId, Groups, Settings, Which};
use gesta_kit::depth;
use gesta_kit::history::Deliveries;
use gesta_kit::judge::groups::{self as judge, Terms};
use gesta_kit::support::within;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Runtime;

use support::{Home, create, groups, join, on_every_backend, on_stream, try_join, write};

const STREAM: &str = "cart-1";
const CONSUMERS: u64 = 4;

on_every_backend!(a_process_that_dies_loses_nothing);

fn settings() -> Settings {
    Settings {
        message_timeout_ms: 200,
        max_retry_count: 2,
        checkpoint_after_ms: 10,
        min_checkpoint_count: 1,
        max_checkpoint_count: 5,
        ..Settings::default()
    }
}

/// Runs a consumer that does random things until its process dies.
async fn consume(groups: Groups, group: GroupId, history: Deliveries<u64>, number: u64, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    loop {
        let Ok(mut consumer) = try_join(&groups, &group, rng.random_range(1..8)).await else {
            continue;
        };
        for _ in 0..rng.random_range(1..30) {
            let Ok(delivery) = consumer.next().await else {
                break;
            };
            let revision = delivery.event.revision.0;
            history.delivered(number, revision, delivery.retries);
            let which = vec![Which::Delivery(delivery.number)];
            let answer = match rng.random_range(0..10) {
                0 => consumer.nack(which, Action::Retry, "").await,
                1 => consumer.nack(which, Action::Park, "").await,
                2 => Ok(0),
                _ => {
                    history.finish(revision);
                    consumer.ack(which).await
                }
            };
            if answer.is_err() {
                break;
            }
        }
    }
}

/// Starts a process with consumers, which die with its runtime.
fn start_process(home: &Home, group: &GroupId, history: &Deliveries<u64>, seed: u64) -> Runtime {
    let process = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let guard = process.enter();
    let groups = groups(home);
    drop(guard);
    for number in 0..CONSUMERS {
        let consumer = consume(
            groups.clone(),
            group.clone(),
            history.clone(),
            number,
            seed.wrapping_add(number),
        );
        process.spawn(consumer);
    }
    process
}

/// Goal: however many processes die, every event is finished or parked.
async fn a_process_that_dies_loses_nothing(home: Home) {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let group = on_stream(STREAM);
    let history = Deliveries::new();
    create(&groups(&home), &group, settings()).await;
    let rounds = depth::count(6, 100);
    let mut dying = Vec::new();
    for _ in 0..rounds {
        write(&home, STREAM, 40).await;
        let process = start_process(&home, &group, &history, seed);
        // It lives for a while, and is killed wherever it is.
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..60_000))).await;
        // The next one begins while it dies.
        let death = move || process.shutdown_timeout(Duration::from_secs(90));
        dying.push(tokio::task::spawn_blocking(death));
    }
    for death in dying {
        death.await.expect("dead");
    }
    let groups = groups(&home);
    let mut last = join(&groups, &group, 100).await;
    let rest = async {
        loop {
            let settled = groups.info(&group).await.expect("known").checkpoint;
            if settled == Some(u64::try_from(rounds * 40).expect("small")) {
                return;
            }
            let delivery = tokio::time::timeout(Duration::from_millis(20), last.next());
            if let Ok(delivery) = delivery.await {
                let delivery = delivery.expect("it runs on");
                let revision = delivery.event.revision.0;
                history.delivered(CONSUMERS, revision, delivery.retries);
                history.finish(revision);
                let acked = last.ack(vec![Which::Delivery(delivery.number)]);
                acked.await.expect("answered");
            }
        }
    };
    within("all is finished", rest).await;
    let parked = home
        .store
        .read_whole_stream(group.parked_stream().as_str())
        .await;
    let parked: Vec<u64> = parked
        .unwrap_or_default()
        .iter()
        .map(|link| judge::linked(&link.data).expect("a link"))
        .map(|(revision, stream)| {
            assert_eq!(stream.as_str(), STREAM);
            revision.0
        })
        .collect();
    let wanted: Vec<u64> = (0..).take(rounds * 40).collect();
    judge::judge(&history, &wanted, &parked, Terms::default()).assert_clean();
    groups.shutdown().await;
}
