//! Fail-overs of a store's database that lose commits, under read models with two processes each: one that uses the
//! store as a library, and one that uses it over a server. The rows are in a file, in a database apart, and in the
//! database that fails over; of one of them the version is reset by itself.
//!
//! What holds: rows of the lost history are never told to be those of the new one. A version stops and says why, and is
//! whole after what the guide says, a reset; one that is to reset itself is whole without anybody.
//!
//! The quick form makes two fail-overs, the deep one 25. In every second one the old primary is left running, out of
//! reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gesta::projection::{Control, OnRestore, Projections, Running, State, Stored, Target};
use gesta::projection_postgres::PostgresTarget;
use gesta::projection_sqlite::SqliteTarget;
use gesta::{Checkpoint, EventStore, EventStoreExt};
use gesta_client::HttpStore;
use gesta_core::{EventId, Incarnation};
use gesta_kit::depth;
use gesta_rig::{Cluster, FaultProxy, Replication, fresh_schema, shared};
use tokio::time::sleep;

use crate::support::{PATIENCE, Server, patient, succeed, until, url_of};
use crate::{Chains, append, append_many, clean_rows, in_schema, quick, rows_of};

/// Events before each fail-over that are kept, and that are lost; and at least so many after it, so that each position
/// that was lost is given to another event.
const EVENTS: [usize; 3] = [15, 25, 60];

/// A read model in a target, run by two processes.
struct ReadModel<T: Target> {
    name: &'static str,
    target: T,
    on_restore: OnRestore,
    /// What `gesta projection reset` is told of the target.
    flags: Vec<String>,
    processes: Vec<Running<T>>,
}

impl<T: Target> ReadModel<T> {
    fn new(name: &'static str, target: T, on_restore: OnRestore, flags: &[&str]) -> Self {
        Self {
            name,
            target,
            on_restore,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            processes: Vec::new(),
        }
    }

    async fn start(&mut self, stores: &[Arc<dyn EventStore>; 2]) {
        for store in stores {
            let process = Projections::on(store, self.target.clone())
                .config(quick())
                .on_restore(self.on_restore)
                .view(Chains);
            self.processes.push(process.start().await.expect("started"));
        }
    }

    /// Waits until both processes say that everything is there, then looks whether it is.
    async fn is_whole(&self, store: &dyn EventStore) {
        loop {
            let events = store.read_everything().await.expect("readable");
            let info = store.info().await.expect("known");
            let head = Checkpoint::logs(info.incarnation, info.heads);
            for process in &self.processes {
                let begun = Instant::now();
                // The process may hear only now of a reset that was done, or that the target is back.
                while let Err(error) = process.wait_for("chains", &head, PATIENCE).await {
                    assert!(begun.elapsed() < PATIENCE, "{}: {error}", self.name);
                    sleep(Duration::from_millis(20)).await;
                }
            }
            let found = rows_of(self.target.clone()).await.expect("readable");
            // An append that was given up may have been stored meanwhile.
            if store.read_everything().await.expect("readable") == events {
                assert_eq!(found, clean_rows(&events), "{}", self.name);
                break;
            }
        }
        let row = self.row().await.expect("known");
        assert_eq!(row.state, State::Running, "{}: {row:?}", self.name);
    }

    async fn row(&self) -> Option<Stored> {
        Control::of(self.target.clone()).active("chains").await.ok()
    }

    /// Until a version was reset it stays in the history that was lost, and nobody is told that what was stored after
    /// the fail-over is among its rows.
    async fn tells_the_truth(&self, resets_before: i64, acknowledged: &Checkpoint) {
        for process in &self.processes {
            let waited = process
                .wait_for("chains", acknowledged, Duration::ZERO)
                .await;
            // The target may be away.
            let Some(row) = self.row().await else {
                continue;
            };
            let is_new = row.checkpoint.incarnation == acknowledged.incarnation;
            assert!(
                !is_new || row.resets > resets_before,
                "{}: {row:?}",
                self.name
            );
            assert!(is_new || waited.is_err(), "{}: {row:?}", self.name);
            let stays = row.resets == resets_before;
            assert!(stays || self.on_restore == OnRestore::Reset, "{row:?}");
        }
    }

    /// After the fail-over: it stops and says why, or is reset by itself.
    async fn notices(&self, resets_before: i64) {
        until(self.name, async || {
            match (self.row().await, self.on_restore) {
                (Some(row), OnRestore::Stop) => {
                    let why = row.error.unwrap_or_default();
                    let is_told = why.contains("the store was restored or replaced");
                    row.state == State::Stopped && is_told
                }
                (Some(row), OnRestore::Reset) => row.resets > resets_before,
                (None, _) => false,
            }
        })
        .await;
    }

    /// Does what the guide says.
    fn reset(&self) {
        if self.on_restore == OnRestore::Stop {
            let mut arguments = vec!["projection", "reset", "chains", "--yes"];
            arguments.extend(self.flags.iter().map(String::as_str));
            succeed(&arguments);
        }
    }
}

/// Callers that append until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    /// How many appends were acknowledged.
    count: Arc<AtomicUsize>,
    callers: Vec<tokio::task::JoinHandle<Vec<(EventId, Checkpoint)>>>,
}

impl Load {
    fn start(stores: &[Arc<dyn EventStore>; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let count = Arc::new(AtomicUsize::new(0));
        let callers = stores.iter().map(|store| {
            let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                let stops = || stop.load(Ordering::SeqCst);
                while !stops() {
                    if let Some((id, answer)) = append(&*store, acknowledged.len(), stops).await {
                        acknowledged.push((id, answer.checkpoint));
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                }
                acknowledged
            })
        });
        Self {
            callers: callers.collect(),
            stop,
            count,
        }
    }

    async fn stop(self) -> Vec<(EventId, Checkpoint)> {
        self.stop.store(true, Ordering::SeqCst);
        let mut acknowledged = Vec::new();
        for caller in self.callers {
            let ended = tokio::time::timeout(PATIENCE, caller).await;
            acknowledged.extend(ended.expect("the last append ends").unwrap());
        }
        acknowledged
    }
}

struct World {
    cluster: Cluster,
    proxies: [FaultProxy; 2],
    stores: [Arc<dyn EventStore>; 2],
    file: ReadModel<SqliteTarget>,
    apart: ReadModel<PostgresTarget>,
    beside: ReadModel<PostgresTarget>,
}

/// The same for each read model.
macro_rules! each {
    ($world:expr, $model:ident => $what:expr) => {{
        {
            let $model = &$world.file;
            $what
        }
        {
            let $model = &$world.apart;
            $what
        }
        {
            let $model = &$world.beside;
            $what
        }
    }};
}

impl World {
    async fn incarnation(&self) -> Incarnation {
        self.stores[1].info().await.expect("known").incarnation
    }

    async fn fail_over(&mut self, old_primary_runs: bool) {
        let (old, new) = (self.cluster.primary(), 1 - self.cluster.primary());
        self.cluster.wait_for_standby(new).unwrap();
        // What is committed from here on is lost, rows of the read model beside the store among it.
        self.cluster.hold_replication(new).unwrap();
        append_many(&*self.stores[0], EVENTS[1]).await;
        each!(self, model => model.is_whole(&*self.stores[1]).await);
        let mut resets = Vec::new();
        each!(self, model => resets.push(model.row().await.expect("known").resets));
        let before = self.incarnation().await;
        let load = Load::start(&self.stores);
        let acknowledged = async || load.count.load(Ordering::SeqCst) >= EVENTS[0];
        until("callers append", acknowledged).await;
        if old_primary_runs {
            self.proxies[old].refuse_connections(true);
            self.proxies[old].cut_all();
        } else {
            self.cluster.server_mut(old).kill_9().unwrap();
        }
        self.cluster.promote(new).unwrap();
        let is_another = async || {
            let info = self.stores[1].info().await;
            info.is_ok_and(|info| info.incarnation != before)
        };
        until("another incarnation", is_another).await;
        for number in 0..EVENTS[2] {
            let (_, answer) = append(&*self.stores[number % 2], number, || false)
                .await
                .expect("appended");
            if answer.checkpoint.incarnation != before {
                let mut resets = resets.iter();
                each!(self, model => {
                    let before = *resets.next().unwrap();
                    model.tells_the_truth(before, &answer.checkpoint).await;
                });
            }
        }
        let mut resets = resets.into_iter();
        each!(self, model => model.notices(resets.next().unwrap()).await);
        let acknowledged = load.stop().await;
        self.has_lost_some(before, &acknowledged).await;
        each!(self, model => model.reset());
        each!(self, model => model.is_whole(&*self.stores[0]).await);
        append_many(&*self.stores[1], EVENTS[0]).await;
        each!(self, model => model.is_whole(&*self.stores[1]).await);
    }

    /// A fail-over that has lost nothing tests nothing; what was acknowledged afterwards is there.
    async fn has_lost_some(&self, before: Incarnation, acknowledged: &[(EventId, Checkpoint)]) {
        let events = self.stores[0].read_everything().await.expect("readable");
        let is_stored = |id: &EventId| events.iter().any(|event| event.id == *id);
        let (old, new): (Vec<_>, Vec<_>) = acknowledged
            .iter()
            .partition(|(_, checkpoint)| checkpoint.incarnation == before);
        assert!(new.iter().all(|(id, _)| is_stored(id)), "one is missing");
        let lost = old.iter().filter(|(id, _)| !is_stored(id)).count();
        assert!(lost > 0, "the fail-over has lost nothing: it tests nothing");
        eprintln!("{} events, {lost} of the callers' lost", events.len());
    }

    /// Makes the old primary a standby of the new one.
    fn heal(&mut self) {
        let old = 1 - self.cluster.primary();
        self.cluster.follow(old).unwrap();
        self.proxies[old].refuse_connections(false);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedule_23_a_fail_over_of_the_store_loses_commits() {
    let Some(cluster) = Cluster::start(1, Replication::Asynchronous).unwrap() else {
        return;
    };
    let proxies = [0, 1].map(|member| FaultProxy::start(cluster.server(member).addr()).unwrap());
    let hosts = proxies.each_ref().map(FaultProxy::addr);
    let (cluster_url, schema) = (cluster.url_through(&hosts), fresh_schema());
    let store_url = format!("{cluster_url}?schema={schema}");
    let server = Server::start(&store_url);
    let opened = gesta::open(&store_url).await.expect("opened");
    let stores: [Arc<dyn EventStore>; 2] = [
        opened.event_store(),
        Arc::new(HttpStore::connect(&server.url).unwrap()),
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("read.db");
    let postgres = shared().expect("it is installed");
    let (apart_url, apart_schema) = (postgres.url(), fresh_schema());
    let made = postgres.execute(&format!("CREATE SCHEMA {apart_schema}"));
    made.expect("made");
    let beside_url = patient(&cluster_url);
    let mut world = World {
        file: ReadModel::new(
            "in a file",
            SqliteTarget::at(&file),
            OnRestore::Stop,
            &["--target", &url_of(&file)],
        ),
        apart: ReadModel::new(
            "in a database apart",
            in_schema(&apart_url, &apart_schema),
            OnRestore::Reset,
            &[],
        ),
        beside: ReadModel::new(
            "beside the store",
            in_schema(&cluster_url, &schema),
            OnRestore::Stop,
            &["--target", &beside_url, "--schema", &schema],
        ),
        cluster,
        proxies,
        stores,
    };
    let stores = world.stores.clone();
    world.file.start(&stores).await;
    world.apart.start(&stores).await;
    world.beside.start(&stores).await;
    append_many(&*stores[0], EVENTS[0]).await;
    for round in 0..depth::count(2, 25) {
        let old_primary_runs = round % 2 == 1;
        eprintln!("round {round}, the old primary runs on: {old_primary_runs}");
        world.fail_over(old_primary_runs).await;
        world.heal();
    }
    succeed(&["--store", &patient(&store_url), "verify"]);
}
