//! A store, a database, and processes that run projections.

use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    Appended, Checkpoint, EventStore, EventStoreExt, ExpectedRevision, LogId, Position,
};
use gesta_memory::{Config as MemoryConfig, MemoryStore};
use gesta_projection::testing::{Fate, Faulty};
use gesta_projection::{
    Config, Control, OnPoison, Parked, Phase, Progress, ProjectionId, Projections, Running, Stored,
    View,
};

use super::fixtures::{Balances, balances_of, event, seen};
use crate::flavour::{Database, END_LEASES, Target};

/// Time for what has to happen at all.
pub(crate) const AT_ALL: Duration = Duration::from_secs(60);

pub(crate) type Process = Running<Faulty<Target>>;

pub(crate) struct World {
    pub(crate) database: Database,
    pub(crate) store: Arc<dyn EventStore>,
    pub(crate) target: Target,
}

pub(crate) fn quick() -> Config {
    Config {
        lease: Duration::from_millis(100),
        look_every: Duration::from_millis(10),
        back_off: (Duration::from_millis(1), Duration::from_millis(20)),
        ..Config::default()
    }
}

/// As [`quick`], and events that cannot be applied are parked.
pub(crate) fn parking() -> Config {
    Config {
        on_poison: OnPoison::Park,
        ..quick()
    }
}

pub(crate) fn id(name: &str, version: u32) -> ProjectionId {
    ProjectionId {
        name: name.to_owned(),
        version,
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::of_logs(1).await
    }

    pub(crate) async fn of_logs(logs: u16) -> Self {
        Self::with(Arc::new(MemoryStore::with_config(MemoryConfig {
            logs,
            ..MemoryConfig::default()
        })))
        .await
    }

    pub(crate) async fn with(store: Arc<dyn EventStore>) -> Self {
        let database = Database::new().await;
        let target = database.target();
        Self {
            database,
            store,
            target,
        }
    }

    pub(crate) async fn append(&self, stream: &str, event_type: &str, amount: &str) -> Appended {
        let events = vec![event(event_type, amount)];
        self.store
            .append_to(stream, ExpectedRevision::Any, events)
            .await
            .expect("appended")
    }

    pub(crate) async fn append_many(&self, count: u32) {
        for n in 0..count {
            self.append(&format!("account-{}", n % 7), "added", &n.to_string())
                .await;
        }
    }

    /// Begins the definition of a process without faults.
    pub(crate) fn process(&self, config: Config) -> Projections<Faulty<Target>> {
        self.faulty(config, &Faulty::new(self.target.clone(), 0, Fate::None))
    }

    pub(crate) fn faulty(
        &self,
        config: Config,
        target: &Faulty<Target>,
    ) -> Projections<Faulty<Target>> {
        Projections::on(&self.store, target.clone()).config(config)
    }

    /// Starts a process without faults that runs a view.
    pub(crate) async fn started(&self, config: Config, view: impl View) -> Process {
        let process = self.process(config).view(view).start().await;
        process.expect("started")
    }

    /// Waits until a projection has applied everything that is there, or put it aside.
    pub(crate) async fn applies_all(&self, process: &Process, name: &str) {
        let head = self.head().await;
        loop {
            match process.wait_for(name, &head, AT_ALL).await {
                // The process has heard only now of a reset that was done before.
                Err(gesta_projection::Error::Reset(_)) => {}
                waited => break waited.expect("it comes to the end"),
            }
        }
    }

    /// What is stored of the active version of a projection.
    pub(crate) async fn row(&self, name: &str) -> Stored {
        self.control().active(name).await.expect("its row")
    }

    /// The first parked events of a version.
    pub(crate) async fn parked(&self, id: &ProjectionId) -> Vec<Parked> {
        let parked = self.control().parked(id, None, 99).await;
        parked.expect("parked")
    }

    pub(crate) fn control(&self) -> Control<Target> {
        Control::of(self.target.clone())
    }

    /// Ends the leases of all processes, as time would.
    pub(crate) async fn end_leases(&self) {
        self.database.execute(END_LEASES).await;
    }

    pub(crate) async fn head(&self) -> Checkpoint {
        let info = self.store.info().await.expect("info");
        Checkpoint::logs(info.incarnation, info.heads)
    }

    pub(crate) fn checkpoint_at(&self, at: &Checkpoint, position: u64) -> Checkpoint {
        Checkpoint::in_log(at.incarnation, 1, LogId(0), Position(position))
    }

    /// Waits until a version shows everything, then compares with a clean fold.
    pub(crate) async fn is_whole(&self, process: &Process, on_poison: OnPoison) {
        self.applies_all(process, "balances").await;
        self.is_equal(on_poison).await;
    }

    /// Compares with a clean fold of everything.
    pub(crate) async fn is_equal(&self, on_poison: OnPoison) {
        let events = self.store.read_everything().await.expect("read");
        let (_, rows) = seen(&self.database, "balances").await;
        assert_eq!(rows, balances_of(&events, on_poison));
    }

    /// Runs a process without faults to the end.
    pub(crate) async fn comes_right(&self, on_poison: OnPoison) {
        let config = Config {
            on_poison,
            ..quick()
        };
        let process = self.started(config, Balances).await;
        self.is_whole(&process, on_poison).await;
        process.shutdown().await;
    }
}

/// Waits until what a process knows of a version is so.
pub(crate) async fn until(
    process: &Process,
    id: &ProjectionId,
    is_so: impl FnMut(&Progress) -> bool,
) -> Progress {
    let mut progress = process.progress(id).expect("it runs here");
    let found = tokio::time::timeout(AT_ALL, progress.wait_for(is_so)).await;
    match found {
        Ok(found) => found.expect("its task runs").clone(),
        Err(_) => panic!("it did not come to it: {:?}", process.progress(id)),
    }
}

pub(crate) async fn until_phase(process: &Process, id: &ProjectionId, phase: Phase) -> Progress {
    until(process, id, |progress| progress.phase == phase).await
}

/// Waits until something is so.
pub(crate) async fn until_so(mut is_so: impl AsyncFnMut() -> bool, what: &str) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(AT_ALL, waiting).await;
    assert!(waited.is_ok(), "it did not come to it: {what}");
}
