//! Two servers, one of which dies or hangs under load: its logs stop and come back, those of the other go on.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use gesta_core::backend::Purpose;
use gesta_core::{
    AllFrom, EventData, EventId, EventStore, EventStoreExt, EventType, ExpectedRevision, ReadAll,
    Result, StreamId, Subscribe, SubscribeFrom, SubscribeTo, SystemClock, log_of,
};
use gesta_kit::depth;
use gesta_rig::Server;
use gesta_store::Store;

use crate::support::{create, several};

const LOGS: u16 = 4;
/// What an append to a server that is up, and reading it, take at most on a machine that is not busy.
const PROMPT: Duration = Duration::from_secs(5);
/// Between two appends of a writer.
const PAUSE: Duration = Duration::from_millis(2);
/// For whatever must come back.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an append is repeated. Meanwhile its server is away for a while.
const APPENDED_WITHIN: Duration = Duration::from_secs(300);

/// A stream of each log.
fn streams() -> Vec<StreamId> {
    let name = |n| StreamId::new(format!("cart-{n}")).expect("valid");
    let of_log = |log| (0..).map(name).find(|name| log_of(name, LOGS).0 == log);
    (0..LOGS).filter_map(of_log).collect()
}

struct Two {
    servers: Vec<Server>,
    urls: Vec<String>,
    store: Arc<Store>,
}

/// The URLs of a store, of which the second server will be away, and is soon given up. The first one is waited for,
/// however busy the machine is.
fn hasty(urls: &[String]) -> [String; 2] {
    let hasty = format!("{}?answer_timeout=2&connect_timeout=2", urls[1]);
    [urls[0].clone(), hasty]
}

async fn two_servers() -> Option<Two> {
    let start = || Server::start().expect("starts");
    let servers = vec![start()?, start()?];
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    create(&urls, LOGS).await;
    let store = open(&hasty(&urls)).await;
    Some(Two {
        servers,
        urls,
        store,
    })
}

/// Asks again while a database does not answer in its short time.
async fn until_answered<T, F: Future<Output = Result<T>>>(ask: impl Fn() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Err(error) if error.is_retryable() && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer.expect("answers"),
        }
    }
}

async fn open(urls: &[String]) -> Arc<Store> {
    let databases = until_answered(|| several(urls)).await;
    let mut config = gesta_store::Config::default();
    config.append.give_up_after = Duration::from_secs(3);
    Store::open(databases.backend(), config, Arc::new(SystemClock)).expect("starts")
}

/// Appends one event, repeated with the same id until it is stored; gives the id.
async fn append(store: &Store, stream: &StreamId) -> EventId {
    let event = EventData::json(EventType::new("added").expect("valid"), "{}");
    let id = EventId::random();
    let event = EventData {
        id: Some(id),
        ..event
    };
    let deadline = Instant::now() + APPENDED_WITHIN;
    loop {
        let expected = ExpectedRevision::Any;
        let appended = store.append_to(stream.as_str(), expected, vec![event.clone()]);
        match appended.await {
            Ok(_) => return id,
            Err(error) if error.is_retryable() && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Appends to each stream until told to stop; gives what was acknowledged, in order.
fn load(
    store: &Arc<Store>,
    stop: &Arc<AtomicBool>,
) -> Vec<tokio::task::JoinHandle<(StreamId, Vec<EventId>)>> {
    let writer = |stream: StreamId| {
        let (store, stop) = (Arc::clone(store), Arc::clone(stop));
        tokio::spawn(async move {
            let mut done = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                done.push(append(&store, &stream).await);
                // Leaves the processor to the other tests: how many events there are makes no difference.
                tokio::time::sleep(PAUSE).await;
            }
            (stream, done)
        })
    };
    streams().into_iter().map(writer).collect()
}

/// The ids of each stream, as they are stored.
async fn stored(store: &Store) -> BTreeMap<String, Vec<EventId>> {
    let mut found = BTreeMap::new();
    for stream in streams() {
        let events = until_answered(|| store.read_whole_stream(stream.as_str())).await;
        let ids = events.iter().map(|event| event.id).collect();
        found.insert(stream.to_string(), ids);
    }
    found
}

/// Reads all events, page by page.
async fn all_events(store: &Store) -> Result<usize> {
    let mut request = ReadAll::forwards();
    let mut count = 0;
    loop {
        let page = store.read_all(request.clone()).await?;
        count += page.events.len();
        if page.end {
            return Ok(count);
        }
        request.from = AllFrom::Checkpoint(page.next);
    }
}

/// What must hold while the second server is away.
async fn only_its_logs_stop(store: &Arc<Store>) {
    let all = streams();
    let ours = SubscribeTo::Stream(all[2].clone());
    let mut followed = store
        .subscribe(Subscribe {
            to: ours,
            from: SubscribeFrom::End,
        })
        .await
        .expect("its database is there");
    for stream in [&all[0], &all[2]] {
        let begun = Instant::now();
        let appended = tokio::time::timeout(PATIENCE, append(store, stream)).await;
        let id = appended.expect("goes on");
        let read = store
            .read_whole_stream(stream.as_str())
            .await
            .expect("read");
        assert!(read.iter().any(|event| event.id == id));
        let took = begun.elapsed();
        depth::in_time("an append beside a server that is away", took, PROMPT);
    }
    let next = tokio::time::timeout(PATIENCE, followed.next_event()).await;
    next.expect("is told").expect("an event");
    let event = EventData::json(EventType::new("added").expect("valid"), "{}");
    let refused = store
        .append_to(all[1].as_str(), ExpectedRevision::Any, vec![event])
        .await
        .expect_err("its database is away");
    assert!(refused.is_retryable(), "{refused:?}");
    let (not_ready, not_all, not_read) = tokio::join!(
        store.ready(),
        all_events(store),
        store.read_whole_stream(all[3].as_str()),
    );
    for error in [
        not_ready.expect_err("not whole"),
        not_all.expect_err("not whole"),
        not_read.expect_err("its database is away"),
    ] {
        let text = error.to_string();
        assert!(
            text.contains("database 2 of 2") && text.contains("logs 1, 3"),
            "{text}"
        );
        assert!(!text.contains("database 1 of 2"), "{text}");
    }
}

async fn comes_back(store: &Arc<Store>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = store.ready().await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn survives(mut two: Two, away: impl FnOnce(&mut Server), back: impl FnOnce(&mut Server)) {
    let stop = Arc::new(AtomicBool::new(false));
    let writers = load(&two.store, &stop);
    for stream in streams() {
        append(&two.store, &stream).await;
    }
    let incarnation = until_answered(|| two.store.info()).await.incarnation;
    away(&mut two.servers[1]);
    only_its_logs_stop(&two.store).await;
    back(&mut two.servers[1]);
    comes_back(&two.store).await;
    for stream in streams() {
        append(&two.store, &stream).await;
    }
    stop.store(true, Ordering::Relaxed);
    let found = {
        let mut acknowledged = Vec::new();
        for writer in writers {
            acknowledged.push(writer.await.expect("ends"));
        }
        let found = stored(&two.store).await;
        for (stream, ids) in acknowledged {
            let stored = &found[stream.as_str()];
            let known: HashSet<&EventId> = ids.iter().collect();
            let mut kept = stored.iter().filter(|id| known.contains(id));
            assert!(
                ids.iter().all(|id| kept.next() == Some(id)) && kept.next().is_none(),
                "{stream}: each acknowledged event is there once, in order"
            );
        }
        found
    };
    let after = until_answered(|| two.store.info()).await.incarnation;
    assert_eq!(after, incarnation, "nothing was lost");
    two.store.shutdown().await.expect("shuts down");
    let again = open(&two.urls).await;
    assert_eq!(stored(&again).await, found);
    again.shutdown().await.expect("shuts down");
}

/// What happened: while one server was away, the look at the ends of all logs failed, or came after 40 s, and the
/// reader of each log asked for its own. Goal: the server that is away takes only the ends of its own logs away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ends_of_the_other_logs_are_told_while_a_server_is_away() {
    let Some(mut two) = two_servers().await else {
        return;
    };
    two.store.shutdown().await.expect("shuts down");
    let urls = hasty(&two.urls);
    let backend = until_answered(|| several(&urls)).await.backend();
    let told = async || {
        let each = backend.each_log_end(Purpose::Read).collect::<Vec<_>>();
        let mut each = tokio::time::timeout(PATIENCE, each).await.expect("in time");
        if let Some(error) = each.iter().find_map(|(_, end)| end.as_ref().err()) {
            assert!(error.is_retryable(), "{error:?}");
        }
        each.sort_by_key(|(log, _)| *log);
        let logs: Vec<_> = each.iter().map(|(log, _)| *log).collect();
        assert_eq!(logs, [0, 1, 2, 3].map(gesta_core::LogId), "each once");
        each.iter().map(|(_, end)| end.is_ok()).collect::<Vec<_>>()
    };
    let is_whole = async || {
        let deadline = Instant::now() + PATIENCE;
        while told().await != [true; 4] {
            assert!(Instant::now() < deadline, "not all ends are told");
        }
    };
    is_whole().await;
    two.servers[1].freeze().expect("stopped");
    assert_eq!(told().await, [true, false, true, false]);
    two.servers[1].thaw().expect("continued");
    is_whole().await;
    two.servers[1].kill_9().expect("killed");
    assert_eq!(told().await, [true, false, true, false]);
    backend.log_ends(Purpose::Read).await.expect_err("not all");
    two.servers[1].restart().expect("restarted");
    is_whole().await;
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_stops_only_its_logs() {
    let Some(two) = two_servers().await else {
        return;
    };
    survives(
        two,
        |server| server.kill_9().expect("killed"),
        |server| server.restart().expect("restarted"),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_stops_only_its_logs() {
    let Some(two) = two_servers().await else {
        return;
    };
    survives(
        two,
        |server| server.freeze().expect("stopped"),
        |server| server.thaw().expect("continued"),
    )
    .await;
}
