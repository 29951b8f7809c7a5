//! [`FaultyStore`]: a process, and the switches for what goes wrong for it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::backend::{Backend, Row, Signal};
use gesta_core::{EventData, Result, Revision};
use gesta_store::{Config, Store};

use super::backend::{Calls, FaultyBackend};
use super::plan::{Fault, RandomFaults, ReadFault};
use super::world::World;

/// A store on a [`World`], with its own connections and faults. Must be made within a tokio runtime.
///
/// It derefs to the [`Store`]; [`share`](Self::share) gives one to hand over. Cloning gives another handle of the same
/// process.
#[derive(Debug, Clone)]
pub struct FaultyStore {
    world: Arc<World>,
    backend: Arc<FaultyBackend>,
    store: Arc<Store>,
}

impl Default for FaultyStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for FaultyStore {
    type Target = Arc<Store>;

    fn deref(&self) -> &Self::Target {
        &self.store
    }
}

impl FaultyStore {
    /// The first process of a new world of one log.
    #[must_use]
    pub fn new() -> Self {
        World::new(1).store()
    }

    /// A further process of a world.
    #[must_use]
    pub fn on(world: &Arc<World>, config: Config) -> Self {
        let backend = Arc::new(FaultyBackend::new(world));
        let store = Store::open(
            Arc::clone(&backend) as Arc<dyn Backend>,
            config,
            world.clock(),
        );
        Self {
            world: Arc::clone(world),
            backend,
            store: store.expect("a world has a possible number of logs"),
        }
    }

    /// The store, to share with tasks or to start entities on.
    #[must_use]
    pub fn share(&self) -> Arc<Store> {
        Arc::clone(&self.store)
    }

    /// The database.
    #[must_use]
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// What the process has of the database.
    #[must_use]
    pub fn backend(&self) -> &Arc<FaultyBackend> {
        &self.backend
    }

    /// A further process on the same database, without faults.
    #[must_use]
    pub fn second(&self) -> Self {
        self.world.store()
    }

    /// How often the process has called the database.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.backend.process.calls()
    }

    /// The most commits that were ever under way at once.
    #[must_use]
    pub fn commits_under_way_most(&self) -> u64 {
        self.backend.process.commits_most()
    }

    // ---- faults, one by one ----

    /// The next commit with events meets this fault. Called again before that: the commit after it, and so on.
    pub fn fail_next_commit(&self, fault: Fault) {
        self.backend.process.plan().commits.push_back(fault);
    }

    /// The next read, or attempt to connect, meets this fault. Called again before that: the one after it, and so on.
    pub fn fail_next_read(&self, fault: ReadFault) {
        self.backend.process.plan().reads.push_back(fault);
    }

    /// From now on the database refuses every commit that holds such a row.
    pub fn refuse_rows(&self, refused: impl Fn(&Row) -> bool + Send + 'static) {
        self.backend.process.plan().refuses = Some(Box::new(refused));
    }

    /// The database goes away: connections die, and nothing answers for this time.
    pub fn go_away_for(&self, time: Duration) {
        self.backend.process.go_away(time);
    }

    /// The database goes away until [`come_back`](Self::come_back).
    pub fn go_away(&self) {
        self.backend.process.set_away(true);
    }

    /// The database answers again.
    pub fn come_back(&self) {
        self.backend.process.set_away(false);
    }

    /// Another process appends events, and nobody is asked. Returns the revision of the first one.
    ///
    /// # Errors
    /// `InvalidArgument`, as of [`World::foreign_append`].
    pub fn foreign_append(&self, stream: &str, events: Vec<EventData>) -> Result<Revision> {
        self.world.foreign_append(stream, events)
    }

    // ---- for all calls ----

    /// Every call takes this long, half of it on the way to the database.
    pub fn set_round_trip(&self, time: Duration) {
        self.backend.process.plan().round_trip = time;
    }

    /// Pages end after this many bytes, though each holds at least one event: for reads in many small pages.
    pub fn set_page_bytes_max(&self, bytes: usize) {
        self.backend.process.plan().page_bytes_max = bytes;
    }

    /// No message of this process reaches another one any more.
    pub fn lose_messages(&self) {
        self.backend.process.plan().mute = true;
    }

    /// Tells the process that messages may have been lost.
    pub fn interrupt(&self) {
        let number = self.backend.number();
        self.world.tell(number, Signal::Interrupted);
    }

    /// From now on this share of commits and reads goes wrong, in ways that the seed determines: see
    /// [`RandomFaults::new`].
    pub fn random_faults(&self, seed: u64, share: f64) {
        self.random_faults_of(RandomFaults::new(seed, share));
    }

    /// From now on faults come by themselves.
    pub fn random_faults_of(&self, faults: RandomFaults) {
        self.backend.process.plan().randomly(faults);
    }

    /// No more faults, neither random ones nor those that were still to come, and the database answers. Commits on dead
    /// connections may still commit.
    pub fn heal(&self) {
        self.backend.process.plan().heal();
        self.come_back();
    }
}
