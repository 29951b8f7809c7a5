//! A fail-over that loses commits, under load, with two servers of the real binary of which one is idle.
//!
//! What happened once: names of streams were remembered by numbers that the new primary used again. Appends
//! acknowledged for one stream were stored in another, reads named events wrongly, subscribers of an idle server
//! skipped thousands of events without an error, old checkpoints were accepted as soon as the log had grown past them,
//! and the servers kept the old incarnation. What holds now: what is checked in `Round::check`.
//!
//! The quick form plays one round, the deep one 20. In every second one the old primary is left running, out of
//! reach of the servers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    missing_docs,
    reason = "tests"
)]

mod support;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gesta_client::HttpStore;
use gesta_core::*;
use gesta_kit::depth;
use gesta_rig::{Cluster, FaultProxy, Replication, fresh_schema, shared};
use support::{PATIENCE, Server, patient, succeed, until};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// Callers that append through a server at once.
const CALLERS: usize = 6;
/// A new stream is begun after so many events.
const EVENTS_PER_STREAM: usize = 3;

/// An append that was answered.
struct Acknowledged {
    stream: String,
    id: EventId,
    revision: Revision,
    position: Position,
    incarnation: Incarnation,
    /// The request was sent after the new primary accepted writes.
    afterwards: bool,
}

#[derive(Default)]
struct Shared {
    acknowledged: Mutex<Vec<Acknowledged>>,
    failed_over: AtomicBool,
    stop: AtomicBool,
}

impl Shared {
    fn count(&self, counts: impl Fn(&Acknowledged) -> bool) -> usize {
        let acknowledged = self.acknowledged.lock().unwrap();
        acknowledged.iter().filter(|one| counts(one)).count()
    }
}

/// What a subscriber was given.
#[derive(Default)]
struct Seen {
    events: Mutex<Vec<SharedEvent>>,
    checkpoint: Mutex<Option<Checkpoint>>,
    end: Mutex<Option<Error>>,
}

/// An event whose data name its stream.
fn event(stream: &str, id: EventId) -> EventData {
    let mut event = EventData::json(
        EventType::new("tested").unwrap(),
        format!("{{\"stream\":\"{stream}\"}}"),
    );
    event.id = Some(id);
    event
}

/// The stream that an event was appended to, as its data say.
fn meant(event: &RecordedEvent) -> String {
    let data: serde_json::Value = serde_json::from_slice(&event.data).expect("JSON");
    data["stream"].as_str().expect("named").to_owned()
}

/// Appends one event after the other, each until it is answered, to streams that it begins itself and to `given` ones.
async fn appending(store: HttpStore, caller: String, given: Vec<String>, shared: Arc<Shared>) {
    for number in 0.. {
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let own = format!("{caller}-{}", number / EVENTS_PER_STREAM);
        let stream = given.get(number % (given.len() + 1)).unwrap_or(&own);
        let id = EventId::random();
        loop {
            let afterwards = shared.failed_over.load(Ordering::SeqCst);
            let events = vec![event(stream, id)];
            let answer = store.append_to(stream, ExpectedRevision::Any, events).await;
            match answer {
                Ok(appended) => {
                    let mut acknowledged = shared.acknowledged.lock().unwrap();
                    acknowledged.push(Acknowledged {
                        stream: stream.clone(),
                        id,
                        revision: appended.streams[0].first_revision,
                        position: appended.position,
                        incarnation: appended.checkpoint.incarnation,
                        afterwards,
                    });
                    break;
                }
                Err(error) => assert!(error.is_retryable(), "{stream}: {error}"),
            }
            if shared.stop.load(Ordering::SeqCst) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Follows all events, going on after a broken connection, until it is told that the history is another one.
async fn following(store: HttpStore, seen: Arc<Seen>) {
    let mut from = SubscribeFrom::Start;
    loop {
        let to = SubscribeTo::All(Filter::ALL);
        let error = match store
            .subscribe(Subscribe {
                to,
                from: from.clone(),
            })
            .await
        {
            Ok(mut subscription) => loop {
                match subscription.next().await {
                    Some(Ok(message)) => {
                        let checkpoint = match message {
                            SubscriptionMessage::Event { event, checkpoint } => {
                                seen.events.lock().unwrap().push(event);
                                checkpoint
                            }
                            SubscriptionMessage::Checkpoint(checkpoint)
                            | SubscriptionMessage::CaughtUp(checkpoint)
                            | SubscriptionMessage::FellBehind(checkpoint) => checkpoint,
                        };
                        *seen.checkpoint.lock().unwrap() = Some(checkpoint.clone());
                        from = SubscribeFrom::Checkpoint(checkpoint);
                    }
                    Some(Err(error)) => break error,
                    None => break Error::unavailable("ended"),
                }
            },
            Err(error) => error,
        };
        if !error.is_retryable() {
            *seen.end.lock().unwrap() = Some(error);
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Two servers on a cluster of two.
struct Round {
    cluster: Cluster,
    proxies: [FaultProxy; 2],
    store_url: String,
    _servers: [Server; 2],
    busy: HttpStore,
    idle: HttpStore,
    shared: Arc<Shared>,
    work: Vec<JoinHandle<()>>,
}

impl Round {
    async fn begin() -> Option<Self> {
        let cluster = Cluster::start(1, Replication::Asynchronous).unwrap()?;
        let proxies = [
            FaultProxy::start(cluster.server(0).addr()).unwrap(),
            FaultProxy::start(cluster.server(1).addr()).unwrap(),
        ];
        let hosts = [proxies[0].addr(), proxies[1].addr()];
        let store_url = format!("{}?schema={}", cluster.url_through(&hosts), fresh_schema());
        let servers = [Server::start(&store_url), Server::start(&store_url)];
        let connect = |server: &Server| HttpStore::connect(&server.url).unwrap();
        Some(Self {
            busy: connect(&servers[0]),
            idle: connect(&servers[1]),
            cluster,
            proxies,
            store_url,
            _servers: servers,
            shared: Arc::default(),
            work: Vec::new(),
        })
    }

    fn load(&mut self, store: &HttpStore, name: &str, given: &[String]) {
        for caller in 0..CALLERS {
            let caller = format!("{name}_{caller}");
            let task = appending(
                store.clone(),
                caller,
                given.to_vec(),
                Arc::clone(&self.shared),
            );
            self.work.push(tokio::spawn(task));
        }
    }

    async fn acknowledged(&self, count: usize, counts: impl Fn(&Acknowledged) -> bool) {
        let enough = async || self.shared.count(&counts) >= count;
        until("appends are acknowledged", enough).await;
    }

    async fn fail_over(&mut self, old_primary_runs: bool) {
        if old_primary_runs {
            self.proxies[0].refuse_connections(true);
            self.proxies[0].cut_all();
        } else {
            self.cluster.server_mut(0).kill_9().unwrap();
        }
        self.cluster.promote(1).unwrap();
        self.shared.failed_over.store(true, Ordering::SeqCst);
    }

    async fn play(mut self, old_primary_runs: bool) {
        let old = self.busy.info().await.unwrap().incarnation;
        let seen: Vec<Arc<Seen>> = (0..2).map(|_| Arc::default()).collect();
        for (store, seen) in [&self.busy, &self.idle].into_iter().zip(&seen) {
            self.work
                .push(tokio::spawn(following(store.clone(), Arc::clone(seen))));
        }
        let (busy, idle) = (self.busy.clone(), self.idle.clone());
        self.load(&busy, "busy", &["shared-1".into(), "shared-2".into()]);
        self.acknowledged(50, |_| true).await;
        // The standby replays nothing from here on; both servers get to know streams that will be lost.
        self.cluster.hold_replication(1).unwrap();
        let kept = self.shared.count(|_| true);
        self.acknowledged(kept + 200, |_| true).await;
        let all = self.shared.count(|_| true);
        let both = async || {
            seen.iter()
                .all(|seen| seen.events.lock().unwrap().len() >= all)
        };
        until("subscribers follow", both).await;
        let checkpoint = seen[1]
            .checkpoint
            .lock()
            .unwrap()
            .clone()
            .expect("followed");

        self.fail_over(old_primary_runs).await;
        let given = ["shared-1".into(), "shared-2".into(), "busy_0-0".into()];
        self.load(&idle, "idle", &given);
        self.acknowledged(200, |one| one.afterwards && one.stream.starts_with("busy"))
            .await;
        self.acknowledged(200, |one| one.afterwards && one.stream.starts_with("idle"))
            .await;
        self.is_refused(&checkpoint).await;
        self.acknowledged(900, |one| one.afterwards).await;
        self.is_refused(&checkpoint).await;
        self.shared.stop.store(true, Ordering::SeqCst);
        for task in self.work.drain(2..) {
            timeout(PATIENCE, task)
                .await
                .expect("ends")
                .expect("no surprise");
        }
        self.check(old, &seen).await;
        self.work.iter().for_each(JoinHandle::abort);
    }

    /// Both servers refuse a checkpoint of the lost history, unless they have just lost a connection: then once more.
    async fn is_refused(&self, checkpoint: &Checkpoint) {
        for store in [&self.busy, &self.idle] {
            let refuses = async || {
                let to = SubscribeTo::All(Filter::ALL);
                let from = SubscribeFrom::Checkpoint(checkpoint.clone());
                let subscribed = store.subscribe(Subscribe { to, from }).await.map(drop);
                let read = ReadAll::forwards().from(AllFrom::Checkpoint(checkpoint.clone()));
                let read = store.read_all(read).await.map(drop);
                let errors = [subscribed, read]
                    .map(|outcome| outcome.expect_err("of a history that was lost"));
                let is_away = errors.iter().any(Error::is_retryable);
                for error in &errors {
                    assert!(
                        is_away || matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
                        "{error}"
                    );
                }
                !is_away
            };
            until("the server refuses the checkpoint", refuses).await;
        }
    }

    async fn check(&self, old: Incarnation, seen: &[Arc<Seen>]) {
        let (busy, idle) = (
            self.busy.info().await.unwrap(),
            self.idle.info().await.unwrap(),
        );
        assert_ne!(
            busy.incarnation, old,
            "a new incarnation, without a restart"
        );
        assert_eq!(
            busy.incarnation, idle.incarnation,
            "the same on both servers"
        );
        let events = read_all(&self.busy).await;
        assert_eq!(
            events,
            read_all(&self.idle).await,
            "both servers read the same"
        );
        let mut next: HashMap<StreamId, u64> = HashMap::new();
        let mut ids = HashSet::new();
        for (event, position) in events.iter().zip(1..) {
            assert_eq!(
                event.stream.as_str(),
                meant(event),
                "under its own name: {event:?}"
            );
            assert_eq!(event.position, Position(position), "no hole");
            let next = next.entry(event.stream.clone()).or_default();
            assert_eq!(
                event.revision,
                Revision(*next),
                "revisions without gaps: {event:?}"
            );
            *next += 1;
            assert!(ids.insert(event.id), "stored twice: {event:?}");
        }
        for store in [&self.busy, &self.idle] {
            for stream in next.keys().take(50) {
                for event in store.read_stream_to_end(stream).await {
                    assert_eq!(event.stream.as_str(), meant(&event), "{event:?}");
                }
            }
        }
        let lost = self.check_acknowledged(&events, busy.incarnation);
        self.check_subscribers(&events, seen).await;
        succeed(&["--store", &patient(&self.store_url), "verify"]);
        eprintln!("{} events, {lost} acknowledged ones lost", events.len());
    }

    /// Every event acknowledged after the fail-over is where its answer says. Gives how many of the others were lost.
    fn check_acknowledged(&self, events: &[RecordedEvent], new: Incarnation) -> usize {
        let by_id: HashMap<EventId, &RecordedEvent> =
            events.iter().map(|event| (event.id, event)).collect();
        let mut lost = 0;
        for one in self.shared.acknowledged.lock().unwrap().iter() {
            let place = by_id
                .get(&one.id)
                .map(|event| (event.stream.as_str(), event.revision, event.position));
            let told = (one.stream.as_str(), one.revision, one.position);
            match place {
                Some(place) => assert_eq!(place, told, "acknowledged at another place"),
                None if one.afterwards || one.incarnation == new => {
                    panic!("acknowledged after the fail-over, and not stored: {told:?}")
                }
                None => lost += 1,
            }
        }
        assert!(lost > 0, "the fail-over has lost nothing: it tests nothing");
        lost
    }

    /// A subscriber was told that the history is another one, or has seen everything; and nothing under another name.
    async fn check_subscribers(&self, events: &[RecordedEvent], seen: &[Arc<Seen>]) {
        let stored: Vec<EventId> = events.iter().map(|event| event.id).collect();
        for (seen, name) in seen.iter().zip(["busy", "idle"]) {
            let is_done = async || {
                let all = seen.events.lock().unwrap().len() >= stored.len();
                all || seen.end.lock().unwrap().is_some()
            };
            until("the subscriber ends or sees everything", is_done).await;
            let given = seen.events.lock().unwrap().clone();
            for event in &given {
                assert_eq!(event.stream.as_str(), meant(event), "given to {name}");
            }
            match &*seen.end.lock().unwrap() {
                Some(error) => {
                    assert!(
                        matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
                        "{name}: {error}"
                    );
                }
                None => {
                    let given: Vec<EventId> = given.iter().map(|event| event.id).collect();
                    assert_eq!(given, stored, "{name} was given another history");
                }
            }
        }
    }
}

async fn read_all(store: &HttpStore) -> Vec<RecordedEvent> {
    let mut events = Vec::new();
    let mut from = AllFrom::Start;
    loop {
        let page = ReadAll::forwards().from(from).limit(1_000);
        let page = store.read_all(page).await.expect("readable");
        events.extend(page.events);
        if page.end {
            return events;
        }
        from = AllFrom::Checkpoint(page.next);
    }
}

trait ReadToEnd {
    async fn read_stream_to_end(&self, stream: &StreamId) -> Vec<RecordedEvent>;
}

impl ReadToEnd for HttpStore {
    async fn read_stream_to_end(&self, stream: &StreamId) -> Vec<RecordedEvent> {
        let request = ReadStream::forwards(stream.clone()).limit(10_000);
        self.read_stream(request).await.expect("readable").events
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_that_loses_commits_under_load() {
    for round in 0..depth::count(1, 20) {
        let Some(it) = Round::begin().await else {
            return;
        };
        let old_primary_runs = round % 2 == 1;
        eprintln!("round {round}, the old primary runs on: {old_primary_runs}");
        it.play(old_primary_runs).await;
    }
}

/// Goal: `gesta schema new-incarnation` reaches servers that run, a busy and an idle one. They went on with the old
/// incarnation, and handed out checkpoints that were refused after their restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_incarnation_reaches_servers_that_run() {
    let Some(postgres) = shared() else { return };
    let store_url = patient(&format!("{}?schema={}", postgres.url(), fresh_schema()));
    let servers = [Server::start(&store_url), Server::start(&store_url)];
    let stores = servers
        .each_ref()
        .map(|server| HttpStore::connect(&server.url).unwrap());
    let append = async |store: &HttpStore| {
        let events = vec![event("a", EventId::random())];
        let appended = store.append_to("a", ExpectedRevision::Any, events).await;
        appended.expect("stored").checkpoint
    };
    let old = append(&stores[0]).await;
    succeed(&["--store", &store_url, "schema", "new-incarnation", "--yes"]);
    let begun = Instant::now();
    for store in &stores {
        let knows = async || {
            let info = store.info().await;
            info.is_ok_and(|info| info.incarnation != old.incarnation)
        };
        until("the server knows the new incarnation", knows).await;
    }
    let (took, bound) = (begun.elapsed(), Duration::from_secs(2));
    depth::in_time("servers know a new incarnation", took, bound);
    for store in &stores {
        let read = ReadAll::forwards().from(AllFrom::Checkpoint(old.clone()));
        let error = store.read_all(read).await.expect_err("of the old life");
        assert!(
            matches!(error.kind(), ErrorKind::InvalidCheckpoint(_)),
            "{error}"
        );
        let new = append(store).await;
        assert_ne!(new.incarnation, old.incarnation);
        let read = ReadAll::forwards().from(AllFrom::Checkpoint(new));
        assert_eq!(store.read_all(read).await.expect("of this life").events, []);
    }
}

/// Goal: after a step back to the primary before, a server that has seen the newer one refuses everything, since it
/// cannot tell that primary from one that was replaced; what the guide says lets the store go on: a new incarnation,
/// and servers that were started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_came_back_is_taken_by_new_servers() {
    let Some(mut cluster) = Cluster::start(1, Replication::Asynchronous).unwrap() else {
        return;
    };
    let store_url = format!("{}?schema={}", cluster.url(), fresh_schema());
    let server = Server::start(&store_url);
    let store = HttpStore::connect(&server.url).unwrap();
    let append = async |store: &HttpStore, stream: &str| {
        let events = vec![event(stream, EventId::random())];
        let request = store.append_to(stream, ExpectedRevision::Any, events);
        request
            .await
            .map(|appended| appended.checkpoint.incarnation)
    };
    let old = append(&store, "before").await.expect("stored");
    cluster.wait_for_standby(1).unwrap();
    cluster.promote(1).unwrap();
    let mut newer = old;
    until("the server goes on at the new primary", async || {
        newer = append(&store, "between").await.unwrap_or(old);
        newer != old
    })
    .await;
    cluster.server_mut(1).kill_9().unwrap();
    cluster.return_to(0).unwrap();
    until("the server tells why it refuses", async || {
        let refused = append(&store, "between").await;
        refused.is_err_and(|error| {
            error
                .to_string()
                .contains("was replaced by one on timeline")
        })
    })
    .await;

    succeed(&["--store", &store_url, "schema", "new-incarnation", "--yes"]);
    server.stop();
    let server = Server::start(&store_url);
    let store = HttpStore::connect(&server.url).unwrap();
    let last = append(&store, "after").await.expect("stored");
    assert!(last != old && last != newer, "{old} {newer} {last}");
    let read = store.read_all(ReadAll::forwards()).await.expect("readable");
    let streams: HashSet<&str> = read
        .events
        .iter()
        .map(|event| event.stream.as_str())
        .collect();
    assert!(streams.contains("before"), "{streams:?}");
    assert!(streams.contains("after"), "{streams:?}");
}
