//! Measures the append statement against a bare `INSERT` of the same rows, and reading by pages.
//!
//! `cargo run --release -p gesta-postgres --example append_statement [SECONDS]`: starts a throw-away server with
//! PostgreSQL's default configuration; each form runs SECONDS (default 0.4) per batch size, alternating, 15 times;
//! prints medians. `PLAN` as argument prints the plan, `READ` reads only. Not the lab: that measures the whole way of
//! an append.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measuring program for developers"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gesta_core::backend::{
    Backend, Batch, BatchOutcome, LogEnd, LogSlice, Row, RowId, WriterEpoch,
};
use gesta_core::{
    ContentType, Direction, EventId, EventType, Filter, LogId, Position, Revision, StreamId, Tags,
    Timestamp,
};
use gesta_postgres::{Config, PostgresBackend};
use gesta_rig::Server;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio_postgres::{Client, Statement};

const CHAINED: &str = include_str!("../sql/insert_events.sql");
const BARE: &str = "INSERT INTO events (position, stream, revision, type, created, writer, checksum, event_id, log,
        content_type, data, metadata)
    SELECT e.position, e.stream, e.revision, e.type, e.created, $1::bigint, e.checksum, e.event_id, 0, e.content_type,
        e.data, e.metadata
    FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[], $7::bigint[], $8::uuid[],
        $9::smallint[], $10::bytea[], $11::bytea[])
    AS e(position, stream, revision, type, created, checksum, event_id, content_type, data, metadata)";
const STREAMS: usize = 10_000;
const BATCHES: [usize; 4] = [1, 100, 200, 1_000];
const ROUNDS: usize = 15;
const DATA: &[u8] = &[b'x'; 50];
const METADATA: &[u8] = &[b'm'; 36];

/// Columns of one batch, made anew for each, as a client would.
#[derive(Default)]
struct Columns {
    positions: Vec<i64>,
    streams: Vec<i64>,
    revisions: Vec<i64>,
    types: Vec<i64>,
    created: Vec<std::time::SystemTime>,
    checksums: Vec<i64>,
    ids: Vec<uuid::Uuid>,
    content_types: Vec<i16>,
    data: Vec<&'static [u8]>,
    metadata: Vec<&'static [u8]>,
}

/// Where the log and each stream stand.
struct Heads {
    position: i64,
    writer: i64,
    revisions: Vec<i64>,
    random: StdRng,
}

impl Heads {
    fn next_stream(&mut self) -> usize {
        self.random.random_range(0..STREAMS)
    }

    fn columns(&mut self, events: usize) -> Columns {
        let mut columns = Columns::default();
        for _ in 0..events {
            let stream = self.next_stream();
            self.position += 1;
            self.revisions[stream] += 1;
            columns.positions.push(self.position);
            columns
                .streams
                .push(i64::try_from(stream).expect("small") + 1);
            columns.revisions.push(self.revisions[stream]);
            columns.types.push(1);
            columns
                .created
                .push(std::time::UNIX_EPOCH + Duration::from_secs(1_790_000_000));
            columns.checksums.push(self.position * 7);
            columns.ids.push(uuid::Uuid::new_v4());
            columns.content_types.push(0);
            columns.data.push(DATA);
            columns.metadata.push(METADATA);
        }
        columns
    }

    fn rows(&mut self, events: usize, names: &[StreamId], event_type: &EventType) -> Vec<Row> {
        let row = |_| {
            let stream = self.next_stream();
            self.position += 1;
            self.revisions[stream] += 1;
            Row {
                position: Position(self.position.unsigned_abs()),
                stream: names[stream].clone(),
                stream_row: RowId(stream as u64 + 1),
                revision: Revision(self.revisions[stream].unsigned_abs()),
                id: EventId::random(),
                event_type: event_type.clone(),
                type_row: RowId(1),
                created: Timestamp(1_790_000_000_000_000),
                content_type: ContentType::Json,
                data: Bytes::from_static(DATA),
                packed: None,
                metadata: Bytes::from_static(METADATA),
                tags: Tags::NONE,
            }
        };
        (0..events).map(row).collect()
    }
}

struct Bench {
    client: Client,
    backend: PostgresBackend,
    bare: Statement,
    chained: Statement,
    names: Vec<StreamId>,
    event_type: EventType,
    heads: Heads,
    time: Duration,
}

impl Bench {
    async fn bare(&mut self, events: usize) -> f64 {
        let started = Instant::now();
        let mut stored = 0;
        while started.elapsed() < self.time {
            let c = self.heads.columns(events);
            stored += self
                .client
                .execute(
                    &self.bare,
                    &[
                        &self.heads.writer,
                        &c.positions,
                        &c.streams,
                        &c.revisions,
                        &c.types,
                        &c.created,
                        &c.checksums,
                        &c.ids,
                        &c.content_types,
                        &c.data,
                        &c.metadata,
                    ],
                )
                .await
                .expect("stored");
        }
        rate(stored, started)
    }

    async fn chained(&mut self, events: usize) -> f64 {
        let started = Instant::now();
        let mut stored = 0;
        while started.elapsed() < self.time {
            let after = self.heads.position;
            let c = self.heads.columns(events);
            let writer = self.heads.writer;
            let count = self
                .client
                .execute(
                    &self.chained,
                    &[
                        &0_i16,
                        &after,
                        &writer,
                        &writer,
                        &c.positions,
                        &c.streams,
                        &c.revisions,
                        &c.types,
                        &c.created,
                        &c.checksums,
                        &c.ids,
                        &c.content_types,
                        &c.data,
                        &c.metadata,
                    ],
                )
                .await
                .expect("stored");
            assert_eq!(count, events as u64, "missed");
            stored += count;
        }
        rate(stored, started)
    }

    async fn writer(&mut self, events: usize, in_flight: usize) -> f64 {
        let mut writer = self.backend.open_writer(LogId(0)).await.expect("opens");
        let mut after = LogEnd {
            position: Position(self.heads.position.unsigned_abs()),
            writer: WriterEpoch(self.heads.writer),
            created: Timestamp(0),
        };
        let started = Instant::now();
        let mut stored = 0;
        let mut waiting = std::collections::VecDeque::new();
        while started.elapsed() < self.time || !waiting.is_empty() {
            if started.elapsed() < self.time && waiting.len() < in_flight {
                let rows = self.heads.rows(events, &self.names, &self.event_type);
                let batch = Batch {
                    log: LogId(0),
                    after,
                    rows,
                    new_streams: Vec::new(),
                    new_types: Vec::new(),
                };
                after.position = Position(self.heads.position.unsigned_abs());
                after.writer = writer.epoch();
                waiting.push_back(writer.submit(Arc::new(batch)));
                if waiting.len() < in_flight {
                    continue;
                }
            }
            if let Some(answer) = waiting.pop_front() {
                let outcome = answer.await;
                assert!(matches!(outcome, BatchOutcome::Committed), "{outcome:?}");
                stored += events as u64;
            }
        }
        self.heads.writer = writer.epoch().0;
        rate(stored, started)
    }

    /// The next rows continue whatever was stored last.
    async fn adopt(&mut self) {
        self.heads.writer = self
            .client
            .query_one(
                "SELECT writer FROM events ORDER BY position DESC LIMIT 1",
                &[],
            )
            .await
            .expect("read")
            .get(0);
    }

    async fn read(&mut self, limit: usize) -> f64 {
        let started = Instant::now();
        let mut after = Position::START;
        let mut count = 0;
        loop {
            let slice = LogSlice {
                log: LogId(0),
                after,
                to: Position::MAX,
                direction: Direction::Forwards,
                filter: Filter::ALL,
                limit,
            };
            let page = self.backend.read_log(slice).await.expect("reads");
            count += page.events.len() as u64;
            match page.events.last() {
                Some(last) if !page.complete => after = last.position,
                _ => return rate(count, started),
            }
        }
    }
}

fn rate(count: u64, started: Instant) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let count = count as f64;
    count / started.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

async fn start(server: &Server, schema: &str, time: Duration) -> Bench {
    let url = format!("{}?schema={schema}", server.url());
    let backend = PostgresBackend::open(Config::parse(&url).expect("valid"))
        .await
        .expect("opens");
    let client = gesta_rig::connect(&server.url()).await.expect("connects");
    client
        .batch_execute(&format!(
            "SET search_path = {schema}; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;
             SET jit = off; SET work_mem = '32MB';"
        ))
        .await
        .expect("set");
    let mut bench = Bench {
        bare: client.prepare(BARE).await.expect("prepared"),
        chained: client.prepare(CHAINED).await.expect("prepared"),
        client,
        names: (0..STREAMS)
            .map(|_| StreamId::new(format!("show-{}", uuid::Uuid::new_v4())).expect("valid"))
            .collect(),
        event_type: EventType::new("SeatReserved").expect("valid"),
        heads: Heads {
            position: 0,
            writer: 1,
            revisions: vec![-1; STREAMS],
            random: StdRng::seed_from_u64(7),
        },
        backend,
        time,
    };
    bench.seed().await;
    bench
}

impl Bench {
    /// One event with the names of all streams, so that every later batch is a plain one.
    async fn seed(&mut self) {
        let mut writer = self.backend.open_writer(LogId(0)).await.expect("opens");
        let mut rows = self.heads.rows(1, &self.names, &self.event_type);
        rows[0].stream = self.names[0].clone();
        let names = self.names.iter().enumerate();
        let batch = Batch {
            log: LogId(0),
            after: LogEnd::default(),
            rows,
            new_streams: names
                .map(|(row, name)| (RowId(row as u64 + 1), name.clone()))
                .collect(),
            new_types: vec![(RowId(1), self.event_type.clone())],
        };
        let outcome = writer.submit(Arc::new(batch)).await;
        assert!(matches!(outcome, BatchOutcome::Committed), "{outcome:?}");
        self.heads.writer = writer.epoch().0;
    }
}

async fn plans(server: &Server) {
    let mut bench = start(server, "plans", Duration::from_millis(500)).await;
    bench.chained(100).await;
    let typed = CHAINED
        .lines()
        .filter(|line| !line.starts_with("--"))
        .collect::<Vec<_>>()
        .join("\n");
    let types = "smallint, bigint, bigint, bigint, bigint[], bigint[], bigint[], bigint[], timestamptz[], bigint[], uuid[], smallint[], bytea[], bytea[]";
    let prepare = format!("PREPARE chained({types}) AS {typed}");
    bench
        .client
        .batch_execute(&prepare)
        .await
        .expect("prepared");
    let explain = "BEGIN; EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) EXECUTE chained(0::smallint, 0, 0, 0, '{1}', '{1}', '{1}', '{1}', '{now}', '{1}',
        '{00000000-0000-0000-0000-000000000000}', '{0}', '{x}', '{m}'); ROLLBACK";
    for message in bench.client.simple_query(explain).await.expect("explained") {
        if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
            println!("{}", row.get(0).unwrap_or_default());
        }
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // On a worker thread, as in a server.
    tokio::spawn(run()).await.expect("ran");
}

async fn run() {
    let argument = std::env::args().nth(1);
    let server = Server::start()
        .expect("starts")
        .expect("PostgreSQL is installed");
    if argument.as_deref() == Some("PLAN") {
        return plans(&server).await;
    }
    if argument.as_deref() == Some("READ") {
        return reading(&server).await;
    }
    let seconds = argument.map_or(0.4, |text| text.parse().expect("a number of seconds"));
    let time = Duration::from_secs_f64(seconds);
    println!(
        "| batch | bare INSERT | chained statement | share | writer, 1 in flight | writer, 4 in flight |"
    );
    println!("|---:|---:|---:|---:|---:|---:|");
    for events in BATCHES {
        // One table for all forms: each meets the same indexes, in turn.
        let mut bench = start(&server, &format!("batch_{events}"), time).await;
        let mut rates: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(bench.bare(events).await);
            bench.adopt().await;
            rates[1].push(bench.chained(events).await);
            rates[2].push(bench.writer(events, 1).await);
            rates[3].push(bench.writer(events, 4).await);
        }
        let [bare, chained, one, four] = rates.map(median);
        println!(
            "| {events} | {bare:.0} | {chained:.0} | {:.0} % | {one:.0} | {four:.0} |",
            100.0 * chained / bare
        );
    }
    reading(&server).await;
}

async fn reading(server: &Server) {
    let mut bench = start(server, "reading", Duration::from_secs(1)).await;
    while bench.heads.position < 600_000 {
        bench.writer(1_000, 4).await;
    }
    println!(
        "\n| page | events/s read, of {} |\n|---:|---:|",
        bench.heads.position
    );
    for limit in [100, 500, 5_000] {
        let mut rates = Vec::new();
        for _ in 0..ROUNDS {
            rates.push(bench.read(limit).await);
        }
        println!("| {limit} | {:.0} |", median(rates));
    }
}
