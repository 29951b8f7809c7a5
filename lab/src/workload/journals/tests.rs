//! Every journal on a throw-away server: loaded and read back, refusing what does not follow, compressing as told,
//! removed.
//!
//! Each test has a database of its own. Without PostgreSQL they are skipped loudly, and fail where `CI` is set.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gesta_load::machine::postgres;
use gesta_load::sizes::Sizes;
use gesta_load::target::{
    self, Append, AppendError, Event, Events, GestaTarget, Load, Session, Stored,
};
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::*;

const ME: u32 = 9;
/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// URL of a new database on the server that all tests share; its name begins so. `None` if PostgreSQL is missing.
fn database(name: &str) -> Option<String> {
    let server = gesta_rig::shared()?;
    let name = format!("{name}_{}", gesta_rig::fresh_schema());
    Some(server.create_database(&name).unwrap())
}

fn new(name: &str, url: &str) -> Arc<dyn Target> {
    named(name, url, Duration::ZERO, None).unwrap()
}

/// All names, and the most events that an append is tried with.
fn all() -> impl Iterator<Item = (&'static str, usize)> {
    let names = NAMES.iter().copied().chain([SEPARATE]);
    names.map(|name| (name, if name.starts_with("eventstore") { 3 } else { 1 }))
}

fn events(bytes: usize) -> Arc<Events> {
    Arc::new(Events::new(Sizes::fixed(bytes).unwrap(), 3, 7))
}

async fn stored(target: &dyn Target, prefix: &str) -> Vec<Stored> {
    let mut all = Vec::new();
    let mut see = |stored| all.push(stored);
    target.read_back(prefix, &mut see).await.unwrap();
    all.sort_by(|a, b| (&a.stream, a.revision).cmp(&(&b.stream, b.revision)));
    all
}

/// Loads a journal and reads it back.
async fn carries(name: &str, url: &str, events_per_append: u64) {
    let target = new(name, url);
    target.prepare().await.unwrap();
    let facts = target.facts().await.unwrap();
    assert_eq!(facts.durability, "full", "{facts:?}");
    assert!(facts.engine.contains("SQL"), "{facts:?}");
    let (events, stop) = (events(300), CancellationToken::new());
    let load = Load {
        first_worker: 0,
        workers: 4,
        events: events_per_append,
        events_per_stream: 4 * events_per_append,
        streams: 2,
        warm_up: Duration::from_millis(20),
        duration: Duration::from_millis(300),
        rate: None,
    };
    let loaded = target::run(&target, &events, &load, &stop).await;
    let (run, claims) = loaded.unwrap();
    let found = target::check(target.as_ref(), &events, &claims).await;
    let found = found.unwrap();
    assert!(found.is_clean(), "{name}: {:?}", found.complaint());
    assert!(run.errors.is_empty(), "{name}: {:?}", run.errors);
    // On a busy machine the slowest journals store nothing while the clock runs, but something in the end.
    assert!(found.acknowledged > 0 && run.complete, "{name}: {run:?}");
    assert_eq!(run.events, run.appends * events_per_append);
    assert_eq!(found.acknowledged, found.found, "{name}");
    assert!(found.found >= run.events, "{name}: {found:?}");
    assert!(target.disk_bytes().await.unwrap() > Some(8_192), "{name}");
    assert_eq!(stored(target.as_ref(), "elsewhere").await, []);
    target.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_journal_carries_events_and_is_read_back() {
    let Some(url) = database("journals_carry") else {
        return;
    };
    for (name, most) in all() {
        for events_per_append in 1..=most as u64 {
            carries(name, &url, events_per_append).await;
        }
    }
    let client = postgres::connect(&url).await.unwrap();
    let left = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'gesta_lab_%'";
    let left: i64 = client.query_one(left, &[]).await.unwrap().get(0);
    assert_eq!(left, 0, "schemas are left");
}

/// Goal: an append with a wrong revision, and one that was made already, are refused and leave nothing.
#[tokio::test]
async fn every_journal_refuses_a_number_that_is_taken() {
    let Some(url) = database("journals_refuse") else {
        return;
    };
    for (name, most) in all() {
        let target = new(name, &url);
        target.prepare().await.unwrap();
        let mut session = target.connect().await.unwrap();
        let events = events(300);
        let stream = events.stream(ME, 0);
        let batch = stream.events(0..7);
        let mut at = 0;
        while at < 4 {
            let end = (at + most).min(4);
            let appended = append(&mut session, &stream.name, at as u64, &batch[at..end]).await;
            appended.unwrap();
            at = end;
        }
        let before = stored(target.as_ref(), "lab").await;
        assert_eq!(before.len(), 4, "{name}");
        // Other events with each number that is taken, new ids, so that only the number is wrong; and the first once
        // more, as a client does that has not heard the answer.
        let fresh: Vec<Event> = (0..3).map(|_| another()).collect();
        let taken = [(0, 1), (0, 3), (1, 2), (3, 1), (3, 3), (2, 3)];
        let taken = taken.map(|(revision, count)| (revision, &fresh[..count.min(most)]));
        for (revision, events) in taken.into_iter().chain([(0, &batch[..most])]) {
            let refused = append(&mut session, &stream.name, revision, events).await;
            let is_refused = matches!(refused, Err(AppendError::Failed(_)));
            assert!(is_refused, "{name}: {events:?} at {revision}: {refused:?}");
        }
        assert_eq!(stored(target.as_ref(), "lab").await, before, "{name}");
        // The session is of use afterwards.
        let more = append(&mut session, &stream.name, 4, &batch[4..4 + most]).await;
        more.unwrap();
        let after = stored(target.as_ref(), "lab").await;
        assert_eq!(after.len(), 4 + most, "{name}");
        drop(session);
        target.remove().await.unwrap();
    }
}

#[tokio::test]
async fn an_append_takes_as_many_round_trips_as_the_design_needs() {
    // A busy machine makes an append longer, never shorter: the best of many tells how many round trips it needs.
    const ROUND_TRIP: Duration = Duration::from_millis(100);
    let Some(url) = database("journals_trips") else {
        return;
    };
    for (name, most) in all() {
        let trips = match name {
            "partitioned" => 2,
            SEPARATE => 5,
            _ => 1,
        };
        let range = ROUND_TRIP * trips..ROUND_TRIP * (trips + 1);
        let target = named(name, &url, ROUND_TRIP, None).unwrap();
        target.prepare().await.unwrap();
        let mut session = target.connect().await.unwrap();
        for count in (1..=most as u64).step_by(2) {
            let stream = format!("cart-{count}");
            let (mut best, first) = (Duration::MAX, Instant::now());
            // The first makes partitions.
            for n in 0.. {
                let batch: Vec<Event> = (0..count).map(|_| another()).collect();
                let begin = Instant::now();
                let appended = append(&mut session, &stream, n * count, &batch).await;
                appended.unwrap();
                if n > 0 {
                    best = best.min(begin.elapsed());
                }
                if best < range.end || first.elapsed() > PATIENCE {
                    break;
                }
            }
            assert!(range.contains(&best), "{name}, {count} events: {best:?}");
        }
        drop(session);
        target.remove().await.unwrap();
    }
}

/// Appends one event of 6,000 bytes, and gives how it is stored.
async fn compressed(target: &dyn Target, url: &str, how: &str) -> (bool, Option<String>) {
    target.prepare().await.unwrap();
    let mut session = target.connect().await.unwrap();
    let batch = events(6_000).stream(ME, 0).events(0..1);
    append(&mut session, "cart-1", 0, &batch).await.unwrap();
    let client = postgres::connect(url).await.unwrap();
    let row = client.query_one(how, &[]).await.unwrap();
    drop(session);
    target.remove().await.unwrap();
    (row.get(0), row.get(1))
}

/// Goal: whoever compresses the data, the method is the one that was asked for.
#[tokio::test]
async fn data_are_compressed_as_told() {
    let Some(url) = database("journals_compression") else {
        return;
    };
    for (name, _) in all() {
        let (table, column) = match name {
            "jdbc" | "jdbc-batching" | "r2dbc" => ("event_journal", "event_payload"),
            "eventstore" | "eventstore-separate" => ("events", "data"),
            _ => ("journal", "message"),
        };
        let schema = format!("gesta_lab_{}", name.replace('-', "_"));
        let how = format!("SELECT false, pg_column_compression({column}) FROM {schema}.{table}");
        for (method, kept) in [(Some("lz4"), "lz4"), (None, "pglz")] {
            let target = named(name, &url, Duration::ZERO, method).unwrap();
            let (_, used) = compressed(target.as_ref(), &url, &how).await;
            assert_eq!(used.as_deref(), Some(kept), "{name}, {method:?}");
        }
    }
    let gesta = |method| GestaTarget::new(&url, Duration::ZERO, method);
    let how = "SELECT packed IS NOT NULL, pg_column_compression(coalesce(packed, data))
               FROM gesta_lab_gesta.events";
    for (target, by_gesta, by_database) in [
        (gesta(Some("lz4")).opaque(), true, None),
        (gesta(None).opaque(), true, None),
        (gesta(Some("lz4")).readable(), false, Some("lz4")),
    ] {
        let (packed, used) = compressed(&target, &url, how).await;
        assert_eq!((packed, used.as_deref()), (by_gesta, by_database));
    }
}

/// Goal: workers of `jdbc-batching` share transactions and eight connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_appends_share_transactions() {
    const WORKERS: usize = 200;
    let Some(url) = database("journals_queue") else {
        return;
    };
    let target = new("jdbc-batching", &url);
    target.prepare().await.unwrap();
    let mut tasks = Vec::new();
    let all_begin = Arc::new(Barrier::new(WORKERS));
    for worker in 0..WORKERS {
        let mut session = target.connect().await.unwrap();
        let all_begin = Arc::clone(&all_begin);
        tasks.push(tokio::spawn(async move {
            for n in 0..5 {
                // Together, so that there is a queue, however slow the machine is.
                let all = tokio::time::timeout(PATIENCE, all_begin.wait());
                all.await.expect("all go on");
                let stream = format!("cart-{worker}");
                let appended = append(&mut session, &stream, n, &[another()]).await;
                appended.unwrap();
            }
        }));
    }
    let client = postgres::connect(&url).await.unwrap();
    let number = async |sql: &str| -> i64 { client.query_one(sql, &[]).await.unwrap().get(0) };
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%event_journal%' AND pid <> pg_backend_pid()";
    let open = number(open).await;
    assert!(open <= 8, "{open} connections");
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(stored(target.as_ref(), "cart").await.len(), 1_000);
    let transactions =
        "SELECT count(DISTINCT xmin::text) FROM gesta_lab_jdbc_batching.event_journal";
    let transactions = number(transactions).await;
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
    for sql in ["SELECT pg_terminate_backend(pg_backend_pid())", "SELECT 1"] {
        let gone = rows::command(&client, sql).await;
        assert!(matches!(gone, Err(AppendError::Unknown(_))), "{gone:?}");
    }
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
