//! Every journal on a throw-away server: loaded and read back, refusing what does not follow, compressing as told, removed.
//!
//! Each test has a database of its own. Without PostgreSQL they are skipped loudly, and fail where `CI` is set.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::*;
use crate::postgres;
use crate::sizes::Sizes;
use crate::target::{
    self, Append, AppendError, Event, Events, GestaTarget, Load, PhaseRun, ReadBack, Session,
    Stored,
};

const ME: u32 = 9;

/// URL of a new database on the server that all tests share; `None` if PostgreSQL is missing.
fn database(name: &str) -> Option<String> {
    let server = gesta_pgtest::shared()?;
    Some(server.create_database(name).unwrap())
}

fn new(name: &str, url: &str) -> Arc<dyn Target> {
    named(name, url, Duration::ZERO, None).unwrap()
}

fn events(bytes: usize) -> Arc<Events> {
    Arc::new(Events::new(Sizes::fixed(bytes).unwrap(), 3, 7))
}

async fn load(
    target: &Arc<dyn Target>,
    events: &Arc<Events>,
    events_per_append: u64,
) -> (PhaseRun, ReadBack) {
    let load = Load {
        first_worker: 0,
        workers: 4,
        events: events_per_append,
        events_per_stream: 10,
        streams: 2,
        warm_up: Duration::from_millis(20),
        duration: Duration::from_millis(300),
        rate: None,
    };
    let stop = CancellationToken::new();
    let (run, claims) = target::run(target, events, &load, &stop).await.unwrap();
    let found = target::check(target.as_ref(), events, &claims)
        .await
        .unwrap();
    (run, found)
}

async fn stored(target: &dyn Target, prefix: &str) -> Vec<Stored> {
    let mut all = Vec::new();
    let mut see = |stored| all.push(stored);
    target.read_back(prefix, &mut see).await.unwrap();
    all.sort_by(|a, b| (&a.stream, a.revision).cmp(&(&b.stream, b.revision)));
    all
}

/// Loads a journal, with single events and with five, and reads it back.
async fn carries(target: Arc<dyn Target>) {
    let name = target.name().to_owned();
    for events_per_append in [1, 5] {
        target.prepare().await.unwrap();
        let facts = target.facts().await.unwrap();
        assert_eq!(facts.durability, "full", "{facts:?}");
        assert!(facts.engine.contains("SQL"), "{facts:?}");
        let events = events(300);
        let (run, found) = load(&target, &events, events_per_append).await;
        assert!(found.is_clean(), "{name}: {:?}", found.complaint());
        assert!(run.errors.is_empty(), "{name}: {:?}", run.errors);
        // On a busy machine the slowest journals store nothing while the clock runs, but something in the end.
        assert!(found.acknowledged > 0 && run.complete, "{name}: {run:?}");
        assert_eq!(run.events, run.appends * events_per_append);
        assert_eq!(found.acknowledged, found.found, "{name}");
        assert!(found.found >= run.events, "{name}: {found:?}");
        assert!(target.disk_bytes().await.unwrap() > Some(8_192), "{name}");
        assert_eq!(stored(target.as_ref(), "elsewhere").await, []);
    }
    target.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_journal_carries_events_and_is_read_back() {
    let Some(url) = database("journals_carry") else {
        return;
    };
    for name in NAMES {
        carries(new(name, &url)).await;
    }
    let client = postgres::connect(&url).await.unwrap();
    let left = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'gesta_lab_%'";
    let left: i64 = client.query_one(left, &[]).await.unwrap().get(0);
    assert_eq!(left, 0, "schemas are left");
}

/// An append with a wrong revision, and one that was made already, are refused and leave nothing.
async fn refuses(target: Arc<dyn Target>) {
    let name = target.name().to_owned();
    target.prepare().await.unwrap();
    let events = events(300);
    let mut session = target.connect().await.unwrap();
    let stream = events.stream(ME, 0);
    let batch = stream.events(0..7);
    append(&mut session, &stream.name, 0, &batch[..3])
        .await
        .unwrap();
    append(&mut session, &stream.name, 3, &batch[3..4])
        .await
        .unwrap();
    let before = stored(target.as_ref(), "lab").await;
    assert_eq!(before.len(), 4, "{name}");
    // Another event with each number that is taken; new ids, so that only the number is wrong.
    let fresh: Vec<Event> = (0..3).map(|_| another()).collect();
    for (revision, count) in [(0, 1), (0, 3), (1, 2), (3, 1), (3, 3), (2, 3)] {
        let refused = append(&mut session, &stream.name, revision, &fresh[..count]).await;
        assert!(
            matches!(refused, Err(AppendError::Failed(_))),
            "{name}: {count} at {revision}: {refused:?}"
        );
    }
    // The same once more, as a client does that has not heard the answer.
    let doubled = append(&mut session, &stream.name, 0, &batch[..3]).await;
    assert!(
        matches!(doubled, Err(AppendError::Failed(_))),
        "{name}: {doubled:?}"
    );
    assert_eq!(stored(target.as_ref(), "lab").await, before, "{name}");
    // The session is of use afterwards.
    append(&mut session, &stream.name, 4, &batch[4..7])
        .await
        .unwrap();
    assert_eq!(stored(target.as_ref(), "lab").await.len(), 7, "{name}");
    drop(session);
    target.remove().await.unwrap();
}

#[tokio::test]
async fn every_journal_refuses_a_number_that_is_taken() {
    let Some(url) = database("journals_refuse") else {
        return;
    };
    for name in NAMES {
        refuses(new(name, &url)).await;
    }
}

#[tokio::test]
async fn an_append_takes_as_many_round_trips_as_the_design_needs() {
    const ROUND_TRIP: Duration = Duration::from_millis(60);
    // A busy machine makes an append longer, never shorter: the best of many tells how many round trips it needs.
    const TRIES: u64 = 50;
    let Some(url) = database("journals_trips") else {
        return;
    };
    for (name, one, three) in [
        ("jdbc", 1, 1),
        ("jdbc-batching", 1, 1),
        ("plain", 1, 1),
        ("partitioned", 2, 2),
        ("nested", 1, 1),
        ("r2dbc", 1, 1),
        ("akka-net-tags", 1, 1),
        ("akka-net-csv", 1, 1),
        ("eventstore", 1, 1),
        ("eventstore-separate", 5, 5),
        ("message-db", 1, 5),
    ] {
        let target = named(name, &url, ROUND_TRIP, None).unwrap();
        target.prepare().await.unwrap();
        let mut session = target.connect().await.unwrap();
        for (count, trips) in [(1, one), (3, three)] {
            let stream = format!("cart-{count}");
            let range = ROUND_TRIP * trips..ROUND_TRIP * (trips + 1);
            let mut best = Duration::MAX;
            // The first makes partitions.
            for n in 0..TRIES {
                let batch: Vec<Event> = (0..count).map(|_| another()).collect();
                let begin = Instant::now();
                append(&mut session, &stream, n * count, &batch)
                    .await
                    .unwrap();
                if n > 0 {
                    best = best.min(begin.elapsed());
                }
                if best < range.end {
                    break;
                }
            }
            assert!(range.contains(&best), "{name}, {count} events: {best:?}");
        }
        drop(session);
        target.remove().await.unwrap();
    }
}

#[tokio::test]
async fn data_are_compressed_as_told() {
    let Some(url) = database("journals_compression") else {
        return;
    };
    let json = events(6_000);
    let batch = json.stream(ME, 0).events(0..1);
    for name in NAMES {
        for (method, kept) in [(Some("lz4"), "lz4"), (None, "pglz")] {
            let target = named(name, &url, Duration::ZERO, method).unwrap();
            target.prepare().await.unwrap();
            let mut session = target.connect().await.unwrap();
            append(&mut session, "cart-1", 0, &batch).await.unwrap();
            let client = postgres::connect(&url).await.unwrap();
            let schema = format!("gesta_lab_{}", name.replace('-', "_"));
            client
                .batch_execute(&format!("SET search_path TO {schema}"))
                .await
                .unwrap();
            let (table, column) = payload_of(name);
            let used = format!("SELECT pg_column_compression({column}) FROM {table}");
            let used: Option<String> = client.query_one(&used, &[]).await.unwrap().get(0);
            assert_eq!(used.as_deref(), Some(kept), "{name}, {method:?}");
            drop(session);
            target.remove().await.unwrap();
        }
    }
}

/// Goal: whoever compresses Gesta's data, the method is that of the others.
#[tokio::test]
async fn data_of_gesta_are_compressed_as_told() {
    let Some(url) = database("gesta_compression") else {
        return;
    };
    let json = events(6_000);
    let batch = json.stream(ME, 0).events(0..1);
    let gesta = |method| GestaTarget::new(&url, Duration::ZERO, method);
    for (target, by_gesta, by_database) in [
        (gesta(Some("lz4")).opaque(), true, None),
        (gesta(None).opaque(), true, None),
        (gesta(Some("lz4")).readable(), false, Some("lz4")),
    ] {
        target.prepare().await.unwrap();
        let mut session = target.connect().await.unwrap();
        append(&mut session, "cart-1", 0, &batch).await.unwrap();
        let client = postgres::connect(&url).await.unwrap();
        let stored = "SELECT packed IS NOT NULL, pg_column_compression(coalesce(packed, data))
                      FROM gesta_lab_gesta.events";
        let row = client.query_one(stored, &[]).await.unwrap();
        assert_eq!((row.get(0), row.get(1)), (by_gesta, by_database));
        drop(session);
        target.remove().await.unwrap();
    }
}

fn payload_of(name: &str) -> (&'static str, &'static str) {
    match name {
        "jdbc" | "jdbc-batching" | "r2dbc" => ("event_journal", "event_payload"),
        "eventstore" | "eventstore-separate" => ("events", "data"),
        "message-db" => ("messages", "data"),
        _ => ("journal", "message"),
    }
}

/// Goal: workers of `jdbc-batching` share transactions and eight connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_appends_share_transactions() {
    const WORKERS: u64 = 200;
    let Some(url) = database("journals_queue") else {
        return;
    };
    let target = new("jdbc-batching", &url);
    target.prepare().await.unwrap();
    let mut tasks = Vec::new();
    for worker in 0..WORKERS {
        let mut session = target.connect().await.unwrap();
        tasks.push(tokio::spawn(async move {
            for n in 0..5 {
                let stream = format!("cart-{worker}");
                append(&mut session, &stream, n, &[another()])
                    .await
                    .unwrap();
            }
        }));
    }
    let client = postgres::connect(&url).await.unwrap();
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%event_journal%' AND pid <> pg_backend_pid()";
    let open: i64 = client.query_one(open, &[]).await.unwrap().get(0);
    assert!(open <= 8, "{open} connections");
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(stored(target.as_ref(), "cart").await.len(), 1_000);
    let transactions =
        "SELECT count(DISTINCT xmin::text) FROM gesta_lab_jdbc_batching.event_journal";
    let transactions: i64 = client.query_one(transactions, &[]).await.unwrap().get(0);
    assert!(transactions < 500, "{transactions} for 1,000 appends");
    target.remove().await.unwrap();
}

#[tokio::test]
async fn errors_say_whether_to_try_again() {
    let Some(url) = database("journals_errors") else {
        return;
    };
    let client = postgres::connect(&url).await.unwrap();
    for (code, wanted) in [
        ("40001", "Retry(\"40001\")"),
        ("40P01", "Retry(\"40P01\")"),
        ("55P03", "Retry(\"55P03\")"),
        ("23505", "Failed(\"23505: no\")"),
        ("57P01", "Unknown(\"57P01: no\")"),
    ] {
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$");
        let error = rows::command(&client, &raise).await.unwrap_err();
        assert!(format!("{error:?}").contains(wanted), "{code}: {error:?}");
    }
    let gone = rows::command(&client, "SELECT pg_terminate_backend(pg_backend_pid())").await;
    assert!(matches!(gone, Err(AppendError::Unknown(_))), "{gone:?}");
    let gone = rows::command(&client, "SELECT 1").await;
    assert!(matches!(gone, Err(AppendError::Unknown(_))), "{gone:?}");
}

async fn append(
    session: &mut Box<dyn Session>,
    stream: &str,
    revision: u64,
    events: &[Event],
) -> std::result::Result<(), AppendError> {
    let append = Append {
        stream,
        revision,
        events,
    };
    session.append(&append).await
}

/// An event of nobody's stream.
fn another() -> Event {
    Event {
        id: Uuid::new_v4(),
        data: Bytes::from_static(br#"{"mark":"none"}"#),
    }
}
