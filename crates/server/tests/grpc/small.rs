//! Searches at random for small messages that make much work: none makes the server hold much memory, or makes others
//! wait.
//!
//! `GESTA_SEED` repeats a run; the deep form makes 100,000 calls. Client and server are one process here, so what is
//! measured is more than what the server holds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gesta_grpc::messages::shared::Empty;
use gesta_grpc::messages::streams::read_req::Options;
use gesta_grpc::messages::streams::read_req::options::all_options::AllOption;
use gesta_grpc::messages::streams::read_req::options::filter_options::{
    Expression, Filter, Window,
};
use gesta_grpc::messages::streams::read_req::options::{
    AllOptions, CountOption, FilterOption, FilterOptions, StreamOption,
};
use gesta_testkit::depth;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::client::Client;
use crate::raw::Raw;
use crate::requests::{APPEND, READ, appending, read_of, reading};

/// Number of calls of the quick form, and of the deep form.
const CALLS: (usize, usize) = (300, 100_000);
/// Largest message.
const BYTES_MAX: usize = 64 * 1_000;
/// Most memory that a call may take beside its answer.
const MEMORY_MAX: usize = 64 * 1024 * 1024;
/// Longest time that others may wait for it.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// A call, as it can be repeated.
#[derive(Debug)]
enum Small {
    /// A read of all events with a filter, over gRPC.
    Filtered(Options),
    /// A request of HTTP.
    Http(&'static str, String, String),
}

fn repeated(rng: &mut StdRng, parts: &[&str], bytes_max: usize) -> String {
    let bytes_max = match rng.random_range(0..4) {
        0 => bytes_max,
        1 => bytes_max / 15,
        _ => rng.random_range(1..200),
    };
    let mut text = String::new();
    // Often the same part again and again.
    let fixed = rng
        .random_bool(0.5)
        .then(|| rng.random_range(0..parts.len()));
    loop {
        let part = parts[fixed.unwrap_or_else(|| rng.random_range(0..parts.len()))];
        let part = part.replace('N', &rng.random_range(1..90).to_string());
        if text.len() + part.len() > bytes_max {
            return text;
        }
        text.push_str(&part);
    }
}

/// Parts of expressions: those that look around, repeat, name large classes, refer back, call each other.
const EXPRESSIONS: [&str; 22] = [
    r"(?=\w{N}N)",
    r"(?<!N)\w{N}(?!N)",
    r"(?:\w{N}N|(?=N))",
    r"(?=[\p{L}\d]{N}N)",
    r"(?=a)",
    r"\w",
    r"(?i)\p{L}",
    r"(?<=\w{1,N})",
    "(",
    ")",
    r"(a|a)*",
    r"(\w+)*\1",
    ".*",
    r"[\w&&\p{L}]",
    "{N}",
    "a",
    "|",
    r"(?>a*)",
    "^",
    "$",
    r"(?!x)",
    r"(\w*)*",
];

fn filtered(rng: &mut StdRng) -> Small {
    let expression = match rng.random_bool(0.8) {
        true => Expression {
            regex: repeated(rng, &EXPRESSIONS, BYTES_MAX),
            prefix: Vec::new(),
        },
        false => Expression {
            regex: String::new(),
            prefix: (0..rng.random_range(1..20_000))
                .map(|n| format!("p{}", n % 997))
                .collect(),
        },
    };
    Small::Filtered(Options {
        stream_option: Some(StreamOption::All(AllOptions {
            all_option: Some(AllOption::Start(Empty {})),
        })),
        count_option: Some(CountOption::Count(rng.random_range(1..100_000))),
        filter_option: Some(FilterOption::Filter(FilterOptions {
            checkpoint_interval_multiplier: 1,
            filter: Some(match rng.random_bool(0.5) {
                true => Filter::StreamIdentifier(expression),
                false => Filter::EventType(expression),
            }),
            window: Some(Window::Max(32)),
        })),
        ..read_of("unused")
    })
}

fn http(rng: &mut StdRng) -> Small {
    let list = |rng: &mut StdRng, most: usize| {
        let values = (0..rng.random_range(0..most)).map(|n| format!("\"v{n}\""));
        format!("[{}]", values.collect::<Vec<_>>().join(","))
    };
    match rng.random_range(0..8) {
        0 => {
            let queries = (0..rng.random_range(1..101)).map(|_| {
                format!(
                    r#"{{"types":{},"tags":{},"stream_prefixes":{}}}"#,
                    list(rng, 20),
                    list(rng, 20),
                    list(rng, 20)
                )
            });
            let mut filter = format!("[{}]", queries.collect::<Vec<_>>().join(","));
            filter.truncate(30_000);
            let filter = filter
                .replace('"', "%22")
                .replace('{', "%7B")
                .replace('}', "%7D");
            let target = format!("/all?limit=10000&filter={filter}");
            Small::Http("GET", target, String::new())
        }
        1 => {
            let name = repeated(rng, &["a", "%F0%9F%A6%80", "$", "-"], 1_200);
            Small::Http(
                "GET",
                format!("/streams?limit=10000&prefix={name}"),
                String::new(),
            )
        }
        2 => {
            let data = repeated(
                rng,
                &["[", "{\"a\":", "\"\\u0041\"", "1e9", ",", "]"],
                BYTES_MAX,
            );
            let body = format!("{{\"events\":[{{\"type\":\"T\",\"data\":{data}}}]}}");
            Small::Http("POST", "/streams/nested".into(), body)
        }
        3 => {
            let events = vec![r#"{"type":"T","data":1}"#; rng.random_range(1..2_800)].join(",");
            Small::Http(
                "POST",
                "/streams/tiny".into(),
                format!("{{\"events\":[{events}]}}"),
            )
        }
        4 => {
            let streams = (0..rng.random_range(1..1_100))
                .map(|n| format!(r#"{{"stream":"s{n}","events":[{{"type":"T","data":1}}]}}"#));
            let streams = streams.collect::<Vec<_>>().join(",");
            Small::Http(
                "POST",
                "/append".into(),
                format!("{{\"streams\":[{streams}]}}"),
            )
        }
        5 => {
            let values = repeated(
                rng,
                &["\"a\":[", "{\"$acl\":", "\"$maxCount\":1,", "1,"],
                BYTES_MAX,
            );
            Small::Http("PUT", "/streams/a/metadata".into(), format!("{{{values}}}"))
        }
        6 => {
            let text = repeated(rng, &["AAAA", "====", "-_"], BYTES_MAX);
            let body = format!("{{\"events\":[{{\"type\":\"T\",\"data_base64\":\"{text}\"}}]}}");
            Small::Http("POST", "/streams/base64".into(), body)
        }
        _ => {
            let checkpoint = repeated(rng, &["0", "1-", "ffff", "."], 20_000);
            Small::Http("GET", format!("/all?from={checkpoint}"), String::new())
        }
    }
}

/// Resets the peak of the memory of this process, and returns what it holds now; `None` where the system does not tell.
fn reset_peak() -> Option<usize> {
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    memory("VmRSS:")
}

fn memory(line: &str) -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let found = status.lines().find_map(|it| it.strip_prefix(line))?;
    let kilobytes: usize = found.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Asks again and again whether the server lives, on one connection, and returns the longest wait.
async fn probe(address: SocketAddr, ended: Arc<AtomicBool>) -> Duration {
    let mut longest = Duration::ZERO;
    let mut raw = Raw::to(address, "").await;
    while !ended.load(Ordering::Relaxed) {
        let begun = Instant::now();
        raw.say("GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await;
        raw.until("\"live\"").await;
        longest = longest.max(begun.elapsed());
        raw.received.clear();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    longest
}

/// What happened: a filter of 8 KB took gigabytes and stopped the server for half a minute; each part of it was
/// bounded, and their number was not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_small_message_makes_much_work() {
    let seed = depth::seed();
    println!("GESTA_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let client = Client::start().await;
    let address = client.server.local_addr();
    for n in 0..20 {
        let stream = format!("{}-{n}", "a1b2".repeat(60));
        let ended = client.call(APPEND, &appending(&stream, 10)).await;
        assert_eq!(ended.code, 0, "{}", ended.message());
    }
    let mut longest = Duration::ZERO;
    for call in 0..depth::count(CALLS.0, CALLS.1) {
        let small = match rng.random_bool(0.5) {
            true => filtered(&mut rng),
            false => http(&mut rng),
        };
        let before = reset_peak();
        let ended = Arc::new(AtomicBool::new(false));
        let probing = tokio::spawn(probe(address, Arc::clone(&ended)));
        let answered = match &small {
            Small::Filtered(options) => {
                let ended = client.call(READ, &reading(options.clone())).await;
                ended.messages.iter().map(bytes::Bytes::len).sum()
            }
            Small::Http(method, target, body) => {
                let raw = Raw::call(address, (method, target), "", body).await;
                raw.rest().await.len()
            }
        };
        ended.store(true, Ordering::Relaxed);
        longest = longest.max(probing.await.expect("no panic"));
        if let (Some(before), Some(peak)) = (before, memory("VmHWM:")) {
            let more = peak.saturating_sub(before);
            // The answer is encoded, sent and received here.
            assert!(
                more <= MEMORY_MAX + answered * 8,
                "call {call} took {more} bytes for {answered}: {small:?}"
            );
        }
    }
    depth::in_time(
        "longest wait of others beside a small message",
        longest,
        WAIT_MAX,
    );
    client.server.shutdown().await;
}
