//! Makes bad calls of every kind: nothing panics, every answer has a precise status, and the server works as before.
//!
//! `GESTA_SEED` repeats a run; the deep form makes 200,000 calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gesta_grpc::frame;
use gesta_kit::depth;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::attacks::attack;
use crate::client::Client;
use crate::requests::{APPEND, READ, appending, following, read_of, reading};

const CALLS: (usize, usize) = (10_000, 200_000);
const CALLERS: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_calls_get_precise_statuses() {
    let seed = depth::seed();
    let calls = depth::count(CALLS.0, CALLS.1);
    println!("GESTA_SEED={seed}");
    let panics = Arc::new(AtomicUsize::new(0));
    let (count, show) = (panics.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        count.fetch_add(1, Ordering::SeqCst);
        show(info);
    }));
    let client = Client::start().await;
    let callers: Vec<_> = (0..CALLERS as u64)
        .map(|caller| {
            let server = client.server.clone();
            tokio::spawn(async move {
                let client = Client::to(server).await;
                let mut rng = StdRng::seed_from_u64(seed ^ caller);
                // Random calls seldom come to this one: a good subscription, which its deadline ends. They do not name
                // its stream.
                let subscription = frame::framed(&reading(following("late"))[0]);
                let deadline = [("grpc-timeout", "50m")];
                let ended = client.call_bytes(READ, &deadline, subscription).await;
                assert_eq!(ended.code, 4, "{}", ended.message());
                let mut codes: BTreeMap<i32, usize> = BTreeMap::new();
                for _ in 0..calls / CALLERS {
                    // Without users nobody has a password to change.
                    let code = attack(&client, &mut rng, &[7]).await;
                    *codes.entry(code).or_default() += 1;
                }
                codes
            })
        })
        .collect();
    let mut codes: BTreeMap<i32, usize> = BTreeMap::new();
    for caller in callers {
        for (code, count) in caller.await.expect("no failed check") {
            *codes.entry(code).or_default() += count;
        }
    }
    println!("calls by status: {codes:?}");
    for code in [0, 3, 8, 9, 12] {
        assert!(codes.contains_key(&code), "{code} never came: {codes:?}");
    }
    assert_eq!(panics.load(Ordering::SeqCst), 0, "panics");
    let ended = client.call(APPEND, &appending("afterwards", 10)).await;
    assert_eq!(ended.code, 0, "{}", ended.message());
    let ended = client.call(READ, &reading(read_of("afterwards"))).await;
    assert_eq!(ended.messages.len(), 1);
    client.server.shutdown().await;
}
