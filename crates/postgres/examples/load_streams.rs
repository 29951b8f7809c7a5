//! Measures how many streams a second are loaded: looked up and read, many in one call.
//!
//! `cargo run --release -p gesta-postgres --example load_streams [STREAMS]`: starts a throw-away server with
//! PostgreSQL's default configuration, stores ten events of 50 bytes in each of STREAMS (default 25,600) streams, so
//! that those of one stream lie apart, and loads all of them in batches, one and two batches at a time. `PLAN` as
//! argument prints the plan made while the tables were empty, and what it then does. Not the lab: that measures
//! entities, with all that is between them and this.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measuring program for developers"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use gesta_core::backend::{Backend, LoadRequest, Purpose, StreamSlice};
use gesta_core::{
    Append, ContentType, Direction, EventData, EventStore, EventType, ExpectedRevision, LoadFrom,
    LoadStream, LogId, OwnerStore, Revision, StreamAppend, StreamId, SystemClock,
};
use gesta_postgres::{Config, PostgresBackend};
use gesta_rig::{Server, procfs};
use gesta_store::Store;
use tokio_postgres::Client;

const READ_STREAMS: &str = include_str!("../sql/read_streams.sql");
const LOG: LogId = LogId(0);
const EVENTS: usize = 10;
const DATA: &[u8] = &[b'x'; 50];
/// Most streams in one append.
const APPEND: usize = 1_000;

fn name(number: usize) -> StreamId {
    StreamId::new(format!("seat-{number:08}")).expect("valid")
}

async fn fill(store: &Store, streams: usize) {
    let event_type = |n: usize| EventType::new(["Reserved", "Released"][n % 2]).expect("valid");
    for round in 0..EVENTS {
        for first in (0..streams).step_by(APPEND) {
            let event = EventData {
                content_type: ContentType::Binary,
                ..EventData::json(event_type(round), DATA)
            };
            let appends = (first..streams.min(first + APPEND)).map(|number| StreamAppend {
                stream: name(number),
                expected: ExpectedRevision::Any,
                events: vec![event.clone()],
            });
            let streams = appends.collect();
            let append = Append {
                streams,
                conditions: Vec::new(),
            };
            store.append(append).await.expect("stored");
        }
    }
}

/// Processor time used so far, by this process and by the server's, in µs. Other work on the machine does not change
/// it.
fn used(server: &Server) -> (u64, u64) {
    let micros = |busy: Duration| u64::try_from(busy.as_micros()).unwrap_or(u64::MAX);
    let of_server: Duration = procfs::pids()
        .filter_map(procfs::stat)
        .filter(|stat| i32::try_from(stat.parent).ok() == server.pid())
        .map(|stat| stat.busy)
        .sum();
    let own = procfs::stat(std::process::id()).map_or(Duration::ZERO, |stat| stat.busy);
    (micros(own), micros(of_server))
}

/// Runs a call for each batch of streams, `at_once` at a time; prints streams a second.
async fn measure<F: Future<Output = usize>>(
    server: &Server,
    what: &str,
    names: &[StreamId],
    (batch, at_once): (usize, usize),
    call: impl Fn(Vec<StreamId>) -> F,
) {
    let before = used(server);
    let began = Instant::now();
    stream::iter(names.chunks(batch))
        .map(|names| call(names.to_vec()))
        .buffer_unordered(at_once)
        .fold(0, async |sum, events| sum + events)
        .await;
    let seconds = began.elapsed().as_secs_f64();
    let after = used(server);
    let count = names.len() as f64;
    println!(
        "{what:<24} {batch:>4} streams a call, {at_once} at a time: {:>7.0} streams/s, processor time per stream: \
         here {:>5.1} µs, server {:>5.1} µs",
        count / seconds,
        (after.0 - before.0) as f64 / count,
        (after.1 - before.1) as f64 / count,
    );
}

fn slice(stream: StreamId, head: Option<gesta_core::backend::StreamHead>) -> StreamSlice {
    let head = head.expect("stored");
    StreamSlice {
        log: LOG,
        stream,
        stream_row: head.row,
        from: Revision(0),
        to: head.last,
        created_from: None,
        direction: Direction::Forwards,
        limit: 100,
    }
}

async fn slices(backend: &PostgresBackend, streams: Vec<StreamId>) -> Vec<StreamSlice> {
    let request = LoadRequest {
        streams: streams.clone(),
        types: Vec::new(),
    };
    let loaded = backend
        .load(LOG, request, Purpose::Read)
        .await
        .expect("loaded")
        .streams;
    let heads = loaded.into_iter().map(|stream| stream.head);
    streams
        .into_iter()
        .zip(heads)
        .map(|(s, h)| slice(s, h))
        .collect()
}

async fn speed(server: &Server, backend: &PostgresBackend, store: &Store, streams: usize) {
    // In an order that has nothing to do with how they were stored.
    let names: Vec<StreamId> = (0..streams).map(|n| name(n * 7_919 % streams)).collect();
    let all = slices(backend, names.clone()).await;
    for (batch, at_once) in [(256, 1), (256, 2), (500, 2), (32, 2)] {
        let names = &names[..names.len().min(batch * 200)];
        measure(
            server,
            "look up",
            names,
            (batch, at_once),
            async |names: Vec<_>| slices(backend, names).await.len(),
        )
        .await;
        let read = async |names: Vec<StreamId>| {
            let first = &names[0];
            let at = all.iter().position(|slice| slice.stream == *first);
            let part = all[at.expect("known")..][..names.len()].to_vec();
            let rows = backend.read_streams(LOG, part).await.expect("read");
            rows.iter().map(|rows| rows.events.len()).sum()
        };
        measure(server, "read", names, (batch, at_once), read).await;
        let load = async |names: Vec<StreamId>| {
            let loads = names.into_iter().map(|stream| LoadStream {
                stream,
                from: LoadFrom::Start,
                limit: 100,
            });
            let pages = store.read_streams(loads.collect()).await.expect("read");
            pages
                .into_iter()
                .map(|loaded| loaded.page.expect("exists").events.len())
                .sum()
        };
        measure(
            server,
            "both, as the store does",
            names,
            (batch, at_once),
            load,
        )
        .await;
    }
}

async fn explain(client: &Client, options: &str, streams: &[i64]) {
    let count = streams.len();
    let list = |value: &str| vec![value; count].join(",");
    let numbers: Vec<String> = streams.iter().map(i64::to_string).collect();
    let query = format!(
        "EXPLAIN {options} EXECUTE load (0, '{{{}}}', '{{{}}}', '{{{}}}', '{{{}}}', '{{{}}}', 65536, 1024)",
        numbers.join(","),
        list("0"),
        list("9"),
        list("101"),
        list("NULL"),
    );
    for row in client.query(&query, &[]).await.expect("explained") {
        println!("  {}", row.get::<_, &str>(0));
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let argument = std::env::args().nth(1);
    let plan = argument.as_deref() == Some("PLAN");
    let streams = argument
        .and_then(|text| text.parse().ok())
        .unwrap_or(25_600);
    let Some(server) = Server::start().expect("starts") else {
        return;
    };
    let url = format!("{}?schema=load", server.url());
    let config = Config::parse(&url).expect("valid");
    let backend = Arc::new(PostgresBackend::open(config).await.expect("opens"));
    let clock = Arc::new(SystemClock);
    let store = Store::open(
        Arc::clone(&backend) as _,
        gesta_store::Config::default(),
        clock,
    );
    let store = store.expect("starts");

    let client = gesta_rig::connect(&server.url()).await.expect("connects");
    let prepare = format!(
        "SET search_path = load; SET plan_cache_mode = force_generic_plan; PREPARE load AS {READ_STREAMS}"
    );
    client.batch_execute(&prepare).await.expect("prepared");
    if plan {
        println!("planned on empty tables:");
        explain(&client, "", &[1]).await;
    }
    let began = Instant::now();
    fill(&store, streams).await;
    println!(
        "{} events stored in {:.1?}",
        streams * EVENTS,
        began.elapsed()
    );
    if plan {
        let rows = client.query("SELECT id FROM streams ORDER BY id LIMIT 256", &[]);
        let rows = rows.await.expect("listed");
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        println!("and executed for {} streams:", ids.len());
        explain(&client, "(ANALYZE, BUFFERS)", &ids).await;
    } else {
        for round in ["as stored", "after VACUUM ANALYZE"] {
            println!("{round}:");
            speed(&server, &backend, &store, streams).await;
            client.batch_execute("VACUUM ANALYZE").await.expect("done");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    store.shutdown().await.expect("closed");
}
