//! Sends bad input of every kind, tens of thousands of requests over keep-alive connections. Nothing panics, nothing
//! answers 5xx but a declared overload, every refusal is a problem document that names the field where there is one,
//! and the server works as before afterwards.
//!
//! `GESTA_SEED` repeats a run; the deep form makes 200,000 requests.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "test code: a panic is how a test fails"
)]

mod check;
mod generate;
mod parameters;
mod protocol;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gesta_kit::depth;
use gesta_memory::MemoryStore;
use gesta_server::{Config, Registry};
use rand::SeedableRng;
use rand::rngs::StdRng;

use check::check;
use generate::Attempt;
use wire::Connection;

/// Number of requests of the quick form, and of the deep form.
const REQUESTS: (usize, usize) = (25_000, 200_000);
const CONNECTIONS: usize = 8;

/// Largest body of the server. It is small, so that bodies that are too large need not be huge.
const BODY_BYTES_MAX: usize = 64 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_always_refused_and_named() {
    let seed = depth::seed();
    let requests = depth::count(REQUESTS.0, REQUESTS.1);
    println!("GESTA_SEED={seed}");
    let panics = count_panics();
    let config = Config {
        listen: ([127, 0, 0, 1], 0).into(),
        body_bytes_max: BODY_BYTES_MAX,
        ..Config::default()
    };
    let server = gesta_server::start(config, Arc::new(MemoryStore::new()), Registry::default())
        .await
        .expect("a free port");
    let address = server.local_addr();

    let workers: Vec<_> = (0..CONNECTIONS)
        .map(|worker| {
            let rng = StdRng::seed_from_u64(seed ^ u64::try_from(worker).expect("small"));
            tokio::spawn(attack(address, rng, requests / CONNECTIONS))
        })
        .collect();
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    for worker in workers {
        for (status, count) in worker.await.expect("no failed check") {
            *statuses.entry(status).or_default() += count;
        }
    }
    println!("answers by status (0: closed without one): {statuses:?}");
    for status in [200, 201, 400, 404, 405, 409, 410, 413, 414, 415, 421, 431] {
        assert!(
            statuses.contains_key(&status),
            "{status} never came: {statuses:?}"
        );
    }
    assert_eq!(panics.load(Ordering::SeqCst), 0, "panics");
    works_as_before(address).await;
    server.shutdown().await;
}

fn count_panics() -> Arc<AtomicUsize> {
    let panics = Arc::new(AtomicUsize::new(0));
    let (count, show) = (panics.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        count.fetch_add(1, Ordering::SeqCst);
        show(info);
    }));
    panics
}

async fn attack(address: SocketAddr, mut rng: StdRng, requests: usize) -> BTreeMap<u16, usize> {
    let mut statuses = BTreeMap::new();
    let mut connection = Connection::open(address).await;
    for _ in 0..requests {
        let attempt = generate::attempt(&mut rng, BODY_BYTES_MAX);
        if connection.is_closed() {
            connection = Connection::open(address).await;
        }
        let answer = connection.exchange(&attempt).await;
        check(&attempt, answer.as_ref(), &["overloaded"]);
        *statuses.entry(answer.map_or(0, |a| a.status)).or_default() += 1;
    }
    statuses
}

/// Checks that the server takes and gives events, and holds nothing of all those requests.
async fn works_as_before(address: SocketAddr) {
    let mut connection = Connection::open(address).await;
    let append = Attempt::json(
        "POST",
        "/streams/after-all",
        r#"{"expected":"no_stream","events":[{"type":"T","data":{}}]}"#,
    );
    assert_eq!(
        connection
            .exchange(&append)
            .await
            .expect("an answer")
            .status,
        201
    );
    let read = Attempt::get("/streams/after-all");
    let answer = connection.exchange(&read).await.expect("an answer");
    assert!(
        answer.status == 200 && answer.to_string().contains("\"end\":true"),
        "{answer}"
    );
    // Connections that were closed in the middle are noticed a moment later.
    let metrics = Attempt::get("/metrics");
    let settled = async {
        loop {
            let text = connection
                .exchange(&metrics)
                .await
                .expect("an answer")
                .to_string();
            let idle = [
                "gesta_http_requests_in_flight 0\n",
                "gesta_http_in_flight_bytes 0\n",
                "gesta_subscriptions 0\n",
                "gesta_http_connections 1\n",
            ];
            if idle.iter().all(|line| text.contains(line)) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), settled)
        .await
        .expect("nothing stays in flight");
}
