//! A log moves from one database to another while processes append to it and follow it; whoever moves it dies at every
//! step. Nothing is lost or doubled, positions and revisions stay, and the log is never open in two places.
#![cfg(feature = "postgres")]
#![expect(clippy::expect_used, reason = "test code: a panic is how a test fails")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gesta::databases::{self, Loss, MoveTo, Mover, Step};
use gesta::*;
use gesta_kit::depth;
use gesta_rig::{Server, fresh_schema, shared};
use tokio::task::JoinHandle;

const LOGS: u16 = 4;
const LOG: LogId = LogId(1);
const PATIENCE: Duration = Duration::from_secs(120);
/// Options of URLs, for whatever is not to be given up, however busy the machine is.
const PATIENT: &str = "answer_timeout=60&connect_timeout=60";

/// Pause of a writer between two appends. Each move copies all that was stored before, so the time of a test grows with
/// the square of the rate.
fn writer_pause() -> Duration {
    Duration::from_millis(depth::count(20, 2))
}

fn urls(server: &Server, count: usize) -> Vec<String> {
    (0..count).map(|_| fresh_url(server)).collect()
}

fn fresh_url(server: &Server) -> String {
    let (server, schema) = (server.url(), fresh_schema());
    format!("{server}?schema={schema}&readers=2&{PATIENT}")
}

/// Streams of the log that moves.
fn streams(count: usize) -> Vec<StreamId> {
    let name = |n| StreamId::new(format!("cart-{n}")).expect("valid");
    let all = (0..).map(name).filter(|name| log_of(name, LOGS) == LOG);
    all.take(count).collect()
}

fn event() -> (EventId, EventData) {
    let id = EventId::random();
    let event = EventData::json(EventType::new("added").expect("valid"), r#"{"a":1}"#);
    (
        id,
        EventData {
            id: Some(id),
            ..event
        },
    )
}

/// Appends one event, again with the same id until it is stored.
async fn append(store: &DatabaseStore, stream: &StreamId) -> (EventId, Revision) {
    let (id, event) = event();
    let begun = Instant::now();
    loop {
        let appended = store.append_to(stream.as_str(), ExpectedRevision::Any, vec![event.clone()]);
        match appended.await {
            Ok(appended) => {
                let last = appended.streams[0].last_revision;
                return (id, last);
            }
            Err(error) if error.is_retryable() && begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

type Acknowledged = Vec<(StreamId, EventId, Revision)>;

/// Processes that append to the log until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Acknowledged>>,
}

impl Load {
    fn begin(stores: &[Arc<DatabaseStore>]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let writers = stores.iter().flat_map(|store| {
            let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
            streams(3).into_iter().map(move |stream| {
                let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
                tokio::spawn(async move {
                    let mut done = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let (id, revision) = append(&store, &stream).await;
                        done.push((stream.clone(), id, revision));
                        tokio::time::sleep(writer_pause()).await;
                    }
                    done
                })
            })
        });
        let writers = writers.collect();
        Self { stop, writers }
    }

    async fn end(self) -> Acknowledged {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for writer in self.writers {
            all.extend(writer.await.expect("ends"));
        }
        all
    }
}

type Seen = Arc<Mutex<Vec<RecordedEvent>>>;

/// Follows the log.
async fn follow(store: &Arc<DatabaseStore>) -> Seen {
    let subscribe = Subscribe {
        to: SubscribeTo::All(Filter::ALL),
        from: SubscribeFrom::Start,
    };
    let mut events = store.subscribe(subscribe).await.expect("follows");
    let seen = Seen::default();
    let following = Arc::clone(&seen);
    tokio::spawn(async move {
        loop {
            match events.next_event().await {
                Ok(event) if event.log == LOG => {
                    let mut seen = following.lock().expect("whole");
                    seen.push(RecordedEvent::clone(&event));
                }
                Ok(_) => {}
                Err(error) => {
                    eprintln!("the subscription ended: {error:?}");
                    return;
                }
            }
        }
    });
    seen
}

/// Waits until all of these events were seen, each once and in order.
async fn sees_all(seen: &Seen, events: &[RecordedEvent]) {
    let begun = Instant::now();
    loop {
        let now = seen.lock().expect("whole").clone();
        assert_eq!(now[..], events[..now.len()], "each once, in order");
        if now.len() == events.len() {
            return;
        }
        let found = (now.len(), events.len());
        assert!(begun.elapsed() < PATIENCE, "seen {found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn open(urls: &[String]) -> Arc<DatabaseStore> {
    open_database(&urls.join(" ")).await.expect("opens")
}

/// Opens a store that gives databases up so soon that a busy machine may exceed it.
async fn open_hasty(urls: &[String]) -> Arc<DatabaseStore> {
    let begun = Instant::now();
    loop {
        match open_database(&urls.join(" ")).await {
            Err(error) if error.is_retryable() && begun.elapsed() < PATIENCE => {}
            opened => return opened.expect("opens"),
        }
    }
}

/// All events of the log, as a fresh process reads them.
async fn stored(store: &DatabaseStore) -> Vec<RecordedEvent> {
    let mut request = ReadAll::forwards();
    let mut events = Vec::new();
    loop {
        let page = store.read_all(request.clone()).await.expect("reads");
        events.extend(page.events.into_iter().filter(|event| event.log == LOG));
        if page.end {
            return events;
        }
        request.from = AllFrom::Checkpoint(page.next);
    }
}

fn check(events: &[RecordedEvent], acknowledged: &Acknowledged) {
    let mut by_id = HashMap::new();
    for (expected, event) in (1..).zip(events) {
        assert_eq!(event.position, Position(expected), "no gap, none twice");
        assert!(
            by_id.insert(event.id, event).is_none(),
            "{} twice",
            event.id
        );
    }
    for stream in streams(3) {
        let of_stream = events.iter().filter(|event| event.stream == stream);
        for (expected, event) in (0..).zip(of_stream) {
            assert_eq!(event.revision, Revision(expected), "{stream}");
        }
    }
    for (stream, id, revision) in acknowledged {
        let found = by_id.get(id).expect("kept");
        assert_eq!((&found.stream, found.revision), (stream, *revision));
    }
}

/// In how many databases the log holds rows and is open.
async fn open_places(urls: &[String]) -> usize {
    let mut open = 0;
    for url in urls {
        let config = gesta_postgres::Config::parse(url).expect("valid");
        let database = gesta_postgres::Relocation::open(&config).await;
        let look = database.expect("there").look(LOG).await.expect("looks");
        if look.held.last.is_some() && !look.held.closed {
            open += 1;
        }
    }
    open
}

/// Does so many steps and dies: between two steps, or at a random moment within the next. What has been begun may still
/// be stored; the next mover waits for that. Returns whether the log had been moved before.
async fn dies_after(urls: &[String], goal: MoveTo<'_>, steps: usize, within: bool) -> bool {
    let mut mover = Mover::open(&urls.join(" "), LOG, goal)
        .await
        .expect("opens");
    let mut is_done = false;
    for _ in 0..steps {
        match mover.step().await {
            Ok(Step::Done) => {
                is_done = true;
                break;
            }
            Ok(_) => {}
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
    if within && !is_done {
        let moment = Duration::from_micros(u64::from(uuid_bits() % 6_000));
        let _ = tokio::time::timeout(moment, mover.step()).await;
    }
    is_done
}

/// A random number.
fn uuid_bits() -> u16 {
    let [a, b, ..] = *EventId::random().0.as_bytes();
    u16::from_be_bytes([a, b])
}

async fn finish(urls: &[String], goal: MoveTo<'_>) {
    let begun = Instant::now();
    while let Err(error) = databases::move_log(&urls.join(" "), LOG, goal, |_| {}).await {
        let late = begun.elapsed() > PATIENCE;
        assert!(error.is_retryable() && !late, "{error:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn settled(stores: Vec<Arc<DatabaseStore>>) {
    for store in stores {
        store.shutdown().await.expect("shuts down");
    }
}

/// Goal: whoever moves a log may die before and within each step; the next one finishes, or undoes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_moves_under_load_whoever_dies() {
    let Some(server) = shared() else { return };
    let mut urls = urls(server, 2);
    schema::create(&urls.join(" "), LOGS).await.expect("made");
    let third = fresh_url(server);
    databases::add(&urls.join(" "), &third)
        .await
        .expect("added");
    databases::add(&urls.join(" "), &third)
        .await
        .expect_err("not all are named");
    urls.push(third);
    let stores = vec![open(&urls).await, open(&urls).await, open(&urls).await];
    let incarnation = stores[0].info().await.expect("whole").incarnation;
    let seen = follow(&stores[2]).await;
    let load = Load::begin(&stores[..2]);
    for stream in streams(3) {
        append(&stores[0], &stream).await;
    }
    for round in 0..30 {
        let goal = MoveTo::Database(&urls[round % 3]);
        let is_done = dies_after(&urls, goal, round / 2, round % 2 == 0).await;
        assert!(open_places(&urls).await <= 1, "round {round}");
        let undo = round % 5 == 4 && !is_done;
        finish(&urls, if undo { MoveTo::Back } else { goal }).await;
        assert_eq!(open_places(&urls).await, 1, "round {round}");
        // Each process appends before the next move.
        for store in &stores[..2] {
            append(store, &streams(1)[0]).await;
        }
    }
    let acknowledged = load.end().await;
    let after = stores[0].info().await.expect("whole").incarnation;
    assert_eq!(after, incarnation, "checkpoints live on");
    let fresh = open(&urls).await;
    let events = stored(&fresh).await;
    check(&events, &acknowledged);
    for store in &stores {
        assert_eq!(stored(store).await, events, "no process reads an old copy");
    }
    sees_all(&seen, &events).await;
    settled(stores).await;
    let database = Database::open(&urls.join(" "), &Options::default())
        .await
        .expect("opens");
    let report = database.verify(|_| {}).await.expect("read");
    assert!(report.is_healthy(), "{:?}", report.findings);
    database.close().await;
    settled(vec![fresh]).await;
}

/// Goal: the servers themselves may die while a log moves between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_moves_between_servers_that_die() {
    let start = || Server::start().expect("starts");
    let (Some(one), Some(other)) = (start(), start()) else {
        return;
    };
    let mut servers = [one, other];
    let with = |options: &str| -> Vec<String> {
        let urls = servers.iter().map(Server::url);
        urls.map(|url| format!("{url}?{options}")).collect()
    };
    let (urls, hasty) = (with(PATIENT), with("answer_timeout=2&connect_timeout=2"));
    schema::create(&urls.join(" "), LOGS).await.expect("made");
    let stores = vec![open_hasty(&hasty).await, open_hasty(&hasty).await];
    let seen = follow(&stores[1]).await;
    let load = Load::begin(&stores[..1]);
    append(&stores[0], &streams(1)[0]).await;
    for round in 0..8 {
        let goal = MoveTo::Database(&urls[round % 2]);
        dies_after(&urls, goal, round, true).await;
        let victim = &mut servers[(round / 2) % 2];
        victim.kill_9().expect("killed");
        victim.restart().expect("restarted");
        let undo = round % 4 == 3;
        finish(&urls, if undo { MoveTo::Back } else { goal }).await;
        assert_eq!(open_places(&urls).await, 1, "round {round}");
        append(&stores[0], &streams(1)[0]).await;
    }
    let acknowledged = load.end().await;
    let fresh = open(&urls).await;
    let events = stored(&fresh).await;
    check(&events, &acknowledged);
    sees_all(&seen, &events).await;
    settled(stores).await;
    settled(vec![fresh]).await;
}

/// Goal: a mover whose session still lives is waited for, so that the next one never meets what it stores late.
#[tokio::test]
async fn two_movers_are_never_at_work() {
    let Some(server) = shared() else { return };
    let urls = urls(server, 2);
    schema::create(&urls.join(" "), LOGS).await.expect("made");
    let goal = MoveTo::Database(&urls[0]);
    let first = Mover::open(&urls.join(" "), LOG, goal).await.expect("free");
    let refused = Mover::open(&urls.join(" "), LOG, MoveTo::Back).await;
    let error = refused.expect_err("the first one lives");
    assert!(error.is_retryable(), "{error:?}");
    assert!(
        error.to_string().contains("another process moves logs"),
        "{error}"
    );
    drop(first);
    finish(&urls, MoveTo::Back).await;
}

/// Waits until nobody is connected to a database, which is then copied, or replaced by a copy.
async fn copy_database(server: &Server, from: &str, to: &str) {
    let begun = Instant::now();
    let copy = format!("CREATE DATABASE {to} TEMPLATE {from}");
    while let Err(error) = server.execute(&copy) {
        assert!(begun.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Appends until that fails because the log is lost.
async fn is_told_of_the_loss(store: &DatabaseStore, stream: &StreamId) {
    let begun = Instant::now();
    loop {
        let appended = store.append_to(stream.as_str(), ExpectedRevision::Any, vec![event().1]);
        let error = appended.await.expect_err("the log is lost");
        if error.to_string().contains("is lost") {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What happened: the home of a log was restored to an earlier stay of the log. Readers saw the old events, appends
/// used revisions again, and the next move replaced what had been acknowledged since by what had been lost. Now no
/// process goes on, nor starts, before the log is recovered from the copy in the other database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_that_was_restored_is_refused_until_the_log_is_recovered() {
    let Some(server) = shared() else { return };
    let names = [fresh_schema(), fresh_schema()];
    let url = |name: &String| {
        let url = server.create_database(name).expect("made");
        format!("{url}?readers=2&{PATIENT}")
    };
    let urls: Vec<String> = names.iter().map(url).collect();
    schema::create(&urls.join(" "), LOGS).await.expect("made");
    let stream = &streams(1)[0];
    let store = open(&urls).await;
    append(&store, stream).await;
    append(&store, stream).await;
    store.shutdown().await.expect("shuts down");
    let backup = fresh_schema();
    copy_database(server, &names[1], &backup).await;
    let store = open(&urls).await;
    append(&store, stream).await;
    finish(&urls, MoveTo::Database(&urls[0])).await;
    append(&store, stream).await;
    finish(&urls, MoveTo::Database(&urls[1])).await;
    append(&store, stream).await;
    let before = stored(&store).await;
    let drop_it = format!("DROP DATABASE {} WITH (FORCE)", names[1]);
    server.execute(&drop_it).expect("dropped");
    copy_database(server, &backup, &names[1]).await;
    is_told_of_the_loss(&store, stream).await;
    let all = urls.join(" ");
    let error = open_database(&all).await.expect_err("refused");
    assert!(error.to_string().contains("recover-log 1"), "{error}");
    for goal in [MoveTo::Back, MoveTo::Database(&urls[0])] {
        let moved = databases::move_log(&all, LOG, goal, |_| {}).await;
        assert!(
            moved
                .expect_err("lost")
                .to_string()
                .contains("recover-log 1")
        );
    }
    let recover = |from| MoveTo::Recovered {
        from,
        loss: Loss::Refused,
    };
    let refused = databases::move_log(&all, LOG, recover(Some(&urls[1])), |_| {}).await;
    assert!(
        refused
            .expect_err("it has less")
            .to_string()
            .contains("--accept-loss")
    );
    finish(&urls, recover(None)).await;
    append(&store, stream).await;
    let fresh = open(&urls).await;
    let now = stored(&fresh).await;
    assert_eq!(now[..4], before[..4], "all that had moved is back");
    assert_eq!(now.len(), 5, "the last event before the restore is gone");
    finish(&urls, MoveTo::Database(&urls[1])).await;
    append(&store, stream).await;
    assert_eq!(stored(&fresh).await.len(), 6);
    settled(vec![store, fresh]).await;
    let database = Database::open(&all, &Options::default())
        .await
        .expect("opens");
    let report = database.verify(|_| {}).await.expect("read");
    assert!(report.is_healthy(), "{:?}", report.findings);
    database.close().await;
}
