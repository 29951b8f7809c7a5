//! [`Faulty`]: a process, and the switches for what goes wrong for it.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use gesta_core::backend::{Backend, Row, Signal};
use gesta_core::{Error, EventData, Incarnation, Result, Revision};
use gesta_store::{Config, Store};

use super::backend::FaultyBackend;
use super::gate::Answers;
use super::plan::{Fault, LateCommit, RandomFaults, ReadFault};
use super::read::{Calls, Read};
use super::world::World;

/// A process that uses a [`World`], with its own connections and faults: a store, or whatever else a test starts on a
/// backend. Must be made within a tokio runtime.
///
/// It derefs to what was started. Cloning gives another handle of the same process.
#[derive(Debug, Clone)]
pub struct Faulty<S> {
    world: Arc<World>,
    backend: Arc<FaultyBackend>,
    started: S,
}

/// A process with a store; [`share`](Self::share) gives one to hand over.
pub type FaultyStore = Faulty<Arc<Store>>;

impl<S> Deref for Faulty<S> {
    type Target = S;

    fn deref(&self) -> &Self::Target {
        &self.started
    }
}

impl Default for FaultyStore {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// A further process with its own store on this database.
    #[must_use]
    pub fn store(self: &Arc<Self>) -> FaultyStore {
        FaultyStore::on(self, Config::default())
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
        Self::start(world, |backend| {
            let store = Store::open(backend, config, world.clock());
            store.expect("a world has a possible number of logs")
        })
    }

    /// The store, to share with tasks or to start entities on.
    #[must_use]
    pub fn share(&self) -> Arc<Store> {
        Arc::clone(&self.started)
    }

    /// A further process on the same database, without faults.
    #[must_use]
    pub fn second(&self) -> Self {
        self.world.store()
    }
}

impl<S> Faulty<S> {
    /// A further process of a world, which starts this on its backend.
    pub fn start(world: &Arc<World>, start: impl FnOnce(Arc<dyn Backend>) -> S) -> Self {
        let backend = FaultyBackend::new(world);
        Self {
            world: Arc::clone(world),
            started: start(Arc::clone(&backend) as Arc<dyn Backend>),
            backend,
        }
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

    /// How often the process has called the database.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.backend.process.calls()
    }

    /// Commits that are under way.
    #[must_use]
    pub fn commits_under_way(&self) -> u64 {
        self.backend.process.commits_under_way()
    }

    /// The most commits that were ever under way at once.
    #[must_use]
    pub fn commits_under_way_most(&self) -> u64 {
        self.backend.process.commits_most()
    }

    /// How many messages to others the process has sent, lost ones included.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.backend.process.messages.load(Ordering::SeqCst)
    }

    /// True if the process has closed its connections.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.backend.process.is_closed.load(Ordering::SeqCst)
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

    /// From now on every read, and every attempt to connect, for which this gives an error fails with it.
    pub fn fail_reads(&self, fails: impl FnMut(Read<'_>) -> Option<Error> + Send + 'static) {
        self.backend.process.plan().fails = Some(Box::new(fails));
    }

    /// No read fails because of [`fail_reads`](Self::fail_reads) any more.
    pub fn let_reads_succeed(&self) {
        self.backend.process.plan().fails = None;
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

    /// How many commits wait for [`commit_lost`](Self::commit_lost).
    #[must_use]
    pub fn lost(&self) -> usize {
        self.backend.process.stalled()
    }

    /// Executes what was lost with [`LateCommit::WhenTold`]. Returns how many batches were stored.
    pub fn commit_lost(&self) -> usize {
        self.backend.process.commit_stalled(LateCommit::WhenTold)
    }

    /// Another history of the store begins for this process, as after a fail-over that lost commits.
    pub fn begin_history(&self) {
        let process = &self.backend.process;
        process.history.change(Incarnation::random());
        self.world.tell(process.number, Signal::HistoryChanged);
    }

    // ---- answers held back ----

    /// No more answers of this kind come until they are [released](Self::release). The database does its work.
    pub fn hold(&self, answers: Answers) {
        self.release_only(answers, 0);
    }

    /// All answers of this kind come.
    pub fn release(&self, answers: Answers) {
        self.backend.process.gate(answers).let_through(None);
    }

    /// So many more answers of this kind come, and then no more.
    pub fn release_only(&self, answers: Answers, count: usize) {
        self.backend.process.gate(answers).let_through(Some(count));
    }

    /// How many more answers of this kind come.
    #[must_use]
    pub fn left(&self, answers: Answers) -> usize {
        self.backend.process.gate(answers).left()
    }

    /// How many answers of this kind are held.
    #[must_use]
    pub fn held(&self, answers: Answers) -> usize {
        self.backend.process.gate(answers).held()
    }

    // ---- for all calls ----

    /// The process has so many connections for reads; a read that finds none waits.
    pub fn limit_connections(&self, count: usize) {
        let connections = &self.backend.process.connections;
        connections.forget_permits(usize::MAX);
        connections.add_permits(count);
    }

    /// From now on this makes the form of the data of each event; `None` leaves them as they are.
    pub fn on_packing(&self, pack: impl Fn(&Bytes) -> Option<Bytes> + Send + Sync + 'static) {
        self.backend.process.plan().packing = Some(Arc::new(pack));
    }

    /// Every call takes this long, half of it on the way to the database; a message, and closing, take half of it.
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
        let number = self.backend.process.number;
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
