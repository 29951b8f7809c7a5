//! Searches at random for small calls that make much work: none makes the server hold much memory, or others wait.
//!
//! The server is the real one, with users. One of them calls: every route and every method, with values of every kind.
//! Another one reads meanwhile, and asks whether the server lives. `GESTA_SEED` repeats a run. The deep form makes
//! 100,000 calls, and holds the whole promise, that of time too; the machine must have nothing else to do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "tests"
)]

mod grpc;
mod http;
#[path = "../support/mod.rs"]
mod support;
mod values;
mod watched;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use gesta_kit::depth;

use crate::grpc::{GrpcCall, Protocol};
use crate::http::{Api, HttpCall};
use crate::values::Maker;
use crate::watched::{Cost, Watched};

/// Number of calls of the quick form, and of the deep form.
const CALLS: (u64, u64) = (200, 100_000);
/// Largest call.
const BYTES_MAX: usize = 64 * 1_000;
/// Most memory that a call may take beside its answer: in the quick form, in which what the allocator keeps of the call
/// before is not told apart, and in the deep one.
const MEMORY_MAX: (usize, usize) = (128 * 1024 * 1024, 64 * 1024 * 1024);
/// Longest time that others may wait for it.
const WAIT_MAX: Duration = Duration::from_millis(250);
/// After so many calls the store gets again what they have deleted.
const CALLS_OF_A_SEEDING: u64 = 2_000;

/// A call, as it can be repeated.
pub(crate) enum Call {
    Grpc(GrpcCall),
    Http(HttpCall),
    /// Frames of HTTP/2.
    Frames(Vec<u8>),
}

impl Call {
    fn random(api: &Api, protocol: &Protocol, seed: u64) -> Self {
        let mut maker = Maker::new(seed, BYTES_MAX - 6_000);
        for left in [BYTES_MAX - 6_000, 30_000, 10_000, 1_000, 0] {
            maker.left = left;
            let call = match maker.below(200) {
                0 => Self::Frames(watched::many_headers(&mut maker)),
                1..100 => Self::Grpc(protocol.call(&mut maker)),
                _ => Self::Http(api.call(&mut maker)),
            };
            if call.len() <= BYTES_MAX {
                return call;
            }
        }
        Self::random(api, protocol, !seed)
    }

    fn len(&self) -> usize {
        match self {
            Self::Grpc(call) => call.path.len() + call.body.len(),
            Self::Http(call) => call.head.len() + call.body.len(),
            Self::Frames(bytes) => bytes.len(),
        }
    }

    fn route(&self) -> &str {
        match self {
            Self::Grpc(call) => &call.path,
            Self::Http(call) => &call.route,
            Self::Frames(_) => "headers of HTTP/2",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |bytes: &[u8]| {
            let bytes = &bytes[..bytes.len().min(1_500)];
            String::from_utf8_lossy(bytes).escape_debug().to_string()
        };
        write!(f, "{} bytes, ", self.len())?;
        match self {
            Self::Grpc(call) => write!(f, "{} {}", call.path, shown(&call.body)),
            Self::Http(call) => {
                write!(f, "{} {}", shown(call.head.as_bytes()), shown(&call.body))
            }
            Self::Frames(bytes) => write!(f, "frames {}", shown(bytes)),
        }
    }
}

/// What calls of one route took at most, and how they ended.
#[derive(Default)]
struct Most {
    memory: usize,
    wait: Duration,
    took: Duration,
    ends: BTreeMap<String, usize>,
}

/// What happened: a filter of 8 KB took gigabytes and stopped the server for half a minute; each part of it was
/// bounded, and their number was not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_small_call_makes_much_work() {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let (api, protocol) = (Api::read(), Protocol::read());
    let watched = Watched::start();
    let (mut most, mut findings): (BTreeMap<String, Most>, Vec<String>) = Default::default();
    let mut last: Option<Call> = None;
    let mut first = http::largest_reads().into_iter().map(Call::Http);
    for number in 0..depth::count(CALLS.0, CALLS.1) {
        if number % CALLS_OF_A_SEEDING == 0 {
            watched.seed().await;
        }
        let mixed = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (call, mixed) = match first.next() {
            // The administrator calls.
            Some(call) => (call, u64::MAX),
            None => (Call::random(&api, &protocol, mixed), mixed),
        };
        let cost = watched.cost(&call, mixed).await;
        let of_route = most.entry(call.route().to_owned()).or_default();
        of_route.memory = of_route.memory.max(cost.beyond_the_answer());
        of_route.wait = of_route.wait.max(cost.wait);
        of_route.took = of_route.took.max(cost.took);
        *of_route.ends.entry(cost.end.clone()).or_default() += 1;
        if cost.beyond_the_answer() > depth::count(MEMORY_MAX.0, MEMORY_MAX.1) {
            findings.push(format!("call {number}, {cost:?}: {call}"));
        }
        if depth::count(false, true) && cost.wait > WAIT_MAX {
            // What the call before it left behind is looked at too.
            for suspect in [Some(&call), last.as_ref()].into_iter().flatten() {
                if let Some(cost) = waits_again(&watched, suspect, mixed).await {
                    findings.push(format!("call {number}, {cost:?}: {suspect}"));
                }
            }
        }
        if let Some(finding) = findings.last().filter(|_| findings.len() > 20) {
            panic!("and many more: {finding}");
        }
        last = Some(call);
    }
    for (route, most) in &most {
        println!(
            "{route}: {} bytes, others waited {:?}, took {:?}, {:?}",
            most.memory, most.wait, most.took, most.ends
        );
    }
    assert!(findings.is_empty(), "{}", findings.join("\n\n"));
    watched.stop();
}

/// Whether others wait each of three times that this call is made alone, while no wait for a call that does nothing
/// shows that the machine stands still; what the quickest of them cost.
async fn waits_again(watched: &Watched, call: &Call, seed: u64) -> Option<Cost> {
    let mut quickest: Option<Cost> = None;
    for _ in 0..3 {
        tokio::time::sleep(WAIT_MAX).await;
        let cost = watched.cost(call, seed).await;
        if cost.wait <= WAIT_MAX {
            return None;
        }
        if quickest.as_ref().is_none_or(|it| cost.wait < it.wait) {
            quickest = Some(cost);
        }
    }
    quickest
}
