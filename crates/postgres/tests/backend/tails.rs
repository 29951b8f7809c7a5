//! Reads of the tails of several logs, which share statements.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use gesta_core::backend::{Backend, LogTail, Rows, Signal, Topic};
use gesta_core::{
    ErrorKind, EventData, EventId, EventStore, EventStoreExt, ExpectedRevision, Filter, LogId,
    Position, Result, Subscribe, SubscribeFrom, SubscribeTo, Subscription, SubscriptionMessage,
    SystemClock,
};
use gesta_postgres::PostgresBackend;
use gesta_rig::{Server, ServerConfig, shared};
use gesta_store::Store;

use crate::common::{
    Author, PATIENCE, config, direct, draft, fresh_logs, is_committed, open, schema_of,
};

const LOGS: u16 = 4;
/// The pause between two statements.
const PAUSE: Duration = Duration::from_millis(20);

/// The whole log, in one page if it fits.
fn tail(log: u16, after: u64) -> LogTail {
    LogTail {
        log: LogId(log),
        after: Position(after),
        to: None,
        limit: 256,
    }
}

/// Reads these tails at the same time.
async fn read(backend: &PostgresBackend, tails: &[LogTail]) -> Vec<Result<Rows>> {
    join_all(tails.iter().map(|tail| backend.read_tail(*tail))).await
}

/// A store whose logs hold so many events each, of `bytes` bytes.
async fn filled(server: &Server, counts: [usize; 4], bytes: usize) -> (PostgresBackend, String) {
    let (backend, url) = fresh_logs(server, LOGS).await;
    for (log, count) in (0..LOGS).map(LogId).zip(counts) {
        let mut writer = backend.open_writer(log).await.expect("opens");
        let mut author = Author::of(log);
        for n in 0..count {
            let name = format!("s-{log}-{}", n % 3);
            let mut draft = draft(&name, ["Added", "Removed"][n % 2]);
            // Some are left out of the statement because of their size.
            let of_this = if n % 5 == 4 {
                bytes.max(100_000)
            } else {
                bytes
            };
            draft.data = Bytes::from(vec![b'x'; of_this]);
            draft.tags = [&["red", "blue"][..], &[]][n % 2];
            assert!(is_committed(&author.append(&mut *writer, &[draft]).await));
        }
    }
    (backend, url)
}

/// Goal: a tail is the page that a read of the log alone gives, whatever is read with it.
#[tokio::test]
async fn tails_hold_what_pages_hold() {
    let Some(server) = shared() else { return };
    let (backend, url) = filled(server, [30, 0, 7, 12], 10).await;
    let limited = |log, after, to: Option<u64>, limit| LogTail {
        to: to.map(Position),
        limit,
        ..tail(log, after)
    };
    let rounds = [
        vec![tail(0, 0), tail(1, 0), tail(2, 0), tail(3, 0)],
        vec![tail(3, 11), tail(2, 7), tail(0, 29)],
        vec![
            limited(0, 0, Some(4), 3),
            limited(3, 2, Some(4), 3),
            limited(2, 0, Some(99), 7),
        ],
        vec![
            limited(2, 0, None, 7),
            limited(0, 3, None, 1),
            limited(0, 3, None, 27),
        ],
        vec![tail(1, 5)],
    ];
    // Of the second one the names are not in memory.
    for backend in [backend, open(&url).await] {
        for tails in &rounds {
            for (tail, found) in tails.iter().zip(read(&backend, tails).await) {
                let page = backend.read_log((*tail).into()).await.expect("reads");
                assert_eq!(found.expect("reads"), page, "{tail:?}");
            }
        }
    }
}

/// Goal: an answer is bounded over all logs together, and whoever goes on with a page where a tail was cut misses
/// nothing.
#[tokio::test]
async fn large_tails_are_cut_and_nothing_is_left_out() {
    let Some(server) = shared() else { return };
    let count = 14;
    let (backend, _) = filled(server, [count, count, count, 1], 1_000_000).await;
    // The first read goes alone.
    read(&backend, &[tail(3, 0)]).await;
    let tails = [tail(0, 0), tail(1, 0), tail(2, 0), tail(3, 0)];
    let answers = read(&backend, &tails).await;
    let answers: Vec<Rows> = answers.into_iter().collect::<Result<_>>().expect("reads");
    let events = answers.iter().flat_map(|rows| &rows.events);
    let bytes: usize = events.map(|event| event.data.len()).sum();
    assert!(bytes <= gesta_core::limits::PAGE_BYTES_MAX, "{bytes}");
    assert!(
        answers.iter().any(|rows| !rows.complete),
        "42 MB do not fit"
    );
    for (tail, mut rows) in tails.into_iter().zip(answers) {
        let mut positions = Vec::new();
        loop {
            positions.extend(rows.events.iter().map(|event| event.position.0));
            if rows.complete {
                break;
            }
            let after = Position(positions.last().copied().unwrap_or(0));
            let next = LogTail { after, ..tail };
            rows = backend.read_log(next.into()).await.expect("reads");
        }
        let last = if tail.log == LogId(3) {
            1
        } else {
            count as u64
        };
        assert_eq!(positions, (1..=last).collect::<Vec<u64>>(), "{tail:?}");
    }
}

/// Goal: what is wrong with a row or a name of one log fails the reads of that log, and of no other.
#[tokio::test]
async fn a_corrupt_row_fails_its_log_alone() {
    let Some(server) = shared() else { return };
    let (backend, url) = filled(server, [5, 5, 5, 5], 10).await;
    let tails = [tail(0, 0), tail(1, 0), tail(2, 0), tail(1, 3)];
    let row = "ALTER TABLE events DISABLE TRIGGER USER; UPDATE events SET data = 'y' WHERE log = 1 AND position = 3";
    let name = "ALTER TABLE streams DISABLE TRIGGER USER; UPDATE streams SET name = 'other' WHERE log = 2 AND id = 1";
    let client = direct(&url).await;
    client.batch_execute(row).await.expect("planted");
    for _ in 0..2 {
        let mut answers = read(&backend, &tails).await;
        let error = answers.remove(1).expect_err("corrupt");
        assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
        assert!(error.to_string().contains("log 1, position 3"), "{error}");
        assert_eq!(counts(answers), [5, 5, 2]);
    }
    client.batch_execute(name).await.expect("planted");
    // It has no name in memory.
    let fresh = open(&url).await;
    for _ in 0..2 {
        let mut answers = read(&fresh, &tails).await;
        let error = answers.remove(2).expect_err("corrupt");
        assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
        assert!(
            error
                .to_string()
                .contains("log 2: wrong checksum of its name"),
            "{error}"
        );
        assert!(answers.remove(1).is_err(), "as before");
        assert_eq!(counts(answers), [5, 2]);
    }
}

/// What happened: the database itself could not read a row, so it refused each statement in which that log was, and
/// the followers of all logs stood still. Goal: the other logs are read.
#[tokio::test]
async fn a_row_that_the_database_cannot_read_fails_its_log_alone() {
    let Some(server) = shared() else { return };
    let (backend, url) = filled(server, [5, 5, 5, 5], 10).await;
    let client = direct(&url).await;
    // A view takes the place of the table, and says of one row what PostgreSQL says of a damaged page.
    let plant = "CREATE FUNCTION readable(of_log smallint, at bigint, bytes bytea) RETURNS bytea
         STABLE LANGUAGE plpgsql AS $$
         BEGIN
             IF of_log = 1 AND at = 3 THEN
                 RAISE EXCEPTION 'invalid page in block 7' USING ERRCODE = 'data_corrupted';
             END IF;
             RETURN bytes;
         END $$;
         ALTER TABLE events RENAME TO stored;
         CREATE VIEW events AS
         SELECT log, position, stream, revision, type, created, writer, checksum, event_id, content_type, tags, packed,
                readable(log, position, data) AS data, metadata
         FROM stored";
    client.batch_execute(plant).await.expect("planted");
    let tails = [tail(0, 0), tail(1, 0), tail(2, 0), tail(3, 0)];
    for _ in 0..2 {
        let mut answers = read(&backend, &tails).await;
        let error = answers.remove(1).expect_err("unreadable");
        assert!(matches!(error.kind(), ErrorKind::Corrupt(_)), "{error}");
        assert!(error.to_string().contains("invalid page"), "{error}");
        assert_eq!(counts(answers), [5, 5, 5]);
    }
}

fn counts(answers: Vec<Result<Rows>>) -> Vec<usize> {
    let counts = answers
        .into_iter()
        .map(|rows| rows.expect("whole").events.len());
    counts.collect()
}

/// Goal: a database that is one of several does not take the end of a copy that is closed for the end of the log. Where
/// there is only one, nothing lies elsewhere.
#[tokio::test]
async fn the_end_of_a_closed_copy_is_not_the_end_of_the_log() {
    let Some(server) = shared() else { return };
    let (alone, url) = filled(server, [5, 5, 5, 5], 10).await;
    let close = include_str!("../../sql/close_log.sql");
    let client = direct(&url).await;
    client.execute(close, &[&1_i16]).await.expect("closed");
    let mut config = config(&url);
    config.is_part = true;
    let part = PostgresBackend::open(config).await.expect("opens");
    let named = |to| LogTail {
        to: Some(to),
        ..tail(1, 2)
    };
    let cut = LogTail {
        limit: 2,
        ..tail(1, 2)
    };
    let tails = [
        tail(0, 0),
        tail(1, 2),
        named(Position(4)),
        named(Position::MAX),
        cut,
    ];
    for (backend, is_part) in [(&part, true), (&alone, false)] {
        let mut answers = read(backend, &tails).await;
        match answers.remove(1) {
            Ok(rows) => assert!(!is_part && rows.events.len() == 3),
            Err(error) => assert!(is_part && error.is_log_closed(), "{error}"),
        }
        let found = answers.into_iter().map(|rows| {
            let rows = rows.expect("open, or cut before the end");
            (rows.events.len(), rows.complete)
        });
        let expected = [(5, true), (2, true), (3, true), (2, false)];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
}

/// How many statements the server has executed whose text begins so.
fn executed(server: &Server, what: &str) -> usize {
    let log = server.log();
    let lines = log.lines();
    lines
        .filter(|line| line.contains("execute ") && line.contains(what))
        .count()
}

/// What happened: when messages may have been lost, the end of each log was asked for by a statement of its own. Goal:
/// one statement asks for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interruption_costs_one_statement_for_all_logs() {
    const END: &str = "-- The incarnation of the store and the last row of a log;";
    const ENDS: &str = "-- The incarnation of the store and the last row of each log,";
    let logging = ServerConfig::default().with("log_statement", "all");
    let Some(server) = Server::start_with(logging).expect("starts") else {
        return;
    };
    let (backend, url) = fresh_logs(&server, 16).await;
    let backend = Arc::new(backend);
    let mut store_config = gesta_store::Config::default();
    store_config.tail.poll_interval = Duration::from_secs(86_400);
    let store = Store::open(backend.clone(), store_config, Arc::new(SystemClock)).expect("starts");
    // Each pipeline begins by a look at the end of its log.
    let begun = async {
        while executed(&server, END) < 16 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.expect("begin");
    let subscription = follow(&store).await;
    let (one, all) = (executed(&server, END), executed(&server, ENDS));
    assert!(all > 0, "the statement is known by its first line");
    let mut signals = backend.signals(Topic::Appends);
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'",
        schema_of(&url)
    );
    server.execute(&end).expect("ended");
    let told = async { while signals.next().await != Some(Signal::Interrupted) {} };
    tokio::time::timeout(PATIENCE, told).await.expect("told");
    let looks = async {
        while executed(&server, ENDS) == all {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looks).await.expect("looks");
    drop(subscription);
    store.shutdown().await.expect("shuts down");
    let (one, all) = (executed(&server, END) - one, executed(&server, ENDS) - all);
    assert!(one + all < 8, "{one} and {all} statements");
}

fn store_of(backend: PostgresBackend) -> Arc<Store> {
    let (config, clock) = (gesta_store::Config::default(), Arc::new(SystemClock));
    Store::open(Arc::new(backend), config, clock).expect("starts")
}

async fn follow(store: &Store) -> Subscription {
    let subscribe = Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::End,
    };
    store.subscribe(subscribe).await.expect("subscribes")
}

/// Takes so many events, and returns their ids, in order of log and position.
async fn taken(subscription: &mut Subscription, count: usize) -> Vec<EventId> {
    let mut events = Vec::new();
    let all = async {
        while events.len() < count {
            let message = subscription.next().await.expect("goes on");
            if let SubscriptionMessage::Event { event, .. } = message.expect("goes on") {
                events.push((event.log, event.position, event.id));
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("in time");
    events.sort_unstable_by_key(|(log, position, _)| (*log, *position));
    events.into_iter().map(|(.., id)| id).collect()
}

/// What happened: of three nodes on sixteen logs those that do not own a log read a page of it for almost every commit,
/// each log by itself: 430 statements for 1,000 requests, beside as many inserts. Goal: the statements by which
/// processes follow what another one appends are bounded by time, whatever the number of commits and logs; and nothing
/// is missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_read_all_logs_together() {
    let logging = ServerConfig::default().with("log_statement", "all");
    let Some(server) = Server::start_with(logging).expect("starts") else {
        return;
    };
    let (backend, url) = fresh_logs(&server, 16).await;
    let owner = store_of(backend);
    let begun = Instant::now();
    let mut followers = Vec::new();
    for _ in 0..2 {
        let store = store_of(open(&url).await);
        let subscription = follow(&store).await;
        followers.push((store, subscription));
    }
    let count = 1_000;
    let append = async |n: usize| {
        let event = EventData::json("Added".parse().expect("valid"), "{}");
        let stream = format!("cart-{}", n % 100);
        let appended = owner.append_to(&*stream, ExpectedRevision::Any, vec![event]);
        appended.await.expect("appended");
    };
    let appended = async {
        for some in 0..count / 10 {
            join_all((0..10).map(|n| append(some * 10 + n))).await;
        }
    };
    let taken = followers
        .iter_mut()
        .map(|(_, subscription)| taken(subscription, count));
    let ((), taken) = tokio::join!(appended, join_all(taken));
    let elapsed = begun.elapsed();
    assert_eq!(taken[0], taken[1]);
    let log = server.log();
    let executed = |what: &str| {
        let executed = log
            .lines()
            .filter(|line| line.contains("execute ") && line.contains(what));
        executed.count()
    };
    let tails = executed("-- Events of several logs, of each between two positions");
    let pages = executed("-- Events of a log between two positions, forwards");
    let names =
        executed("-- Names of interned streams.") + executed("-- Names of streams of several logs");
    eprintln!(
        "{count} appends in {elapsed:?}: {tails} reads of tails, {pages} of pages, {names} of names"
    );
    let pauses = usize::try_from(elapsed.as_millis() / PAUSE.as_millis()).expect("small");
    assert!(tails > 0, "the statement is known by its first line");
    assert!(
        tails <= 2 * (pauses + 2),
        "{tails} reads of tails in {elapsed:?}"
    );
    assert_eq!(pages, 0, "nobody is so far behind");
    assert!(
        names <= tails,
        "{names} reads of names for {tails} of tails"
    );
    for (store, subscription) in followers {
        drop(subscription);
        store.shutdown().await.expect("shut down");
    }
    owner.shutdown().await.expect("shut down");
}
