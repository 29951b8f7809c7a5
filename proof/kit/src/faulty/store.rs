//! [`Faulty`], a process, and the methods that say what goes wrong for it.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use gesta_core::backend::{Backend, Row, Signal};
use gesta_core::{Error, EventData, Result, Revision};
use gesta_store::{Config, Store};

use super::backend::FaultyBackend;
use super::gate::Answers;
use super::plan::{Fault, LateCommit, RandomFaults, ReadFault};
use super::read::{Calls, Read};
use super::world::World;

/// A process that uses a [`World`], with its own connections and faults: a store, or another part that a test starts on
/// a backend. Must be made within a tokio runtime.
///
/// It dereferences to what was started. A clone is another handle of the same process.
#[derive(Debug, Clone)]
pub struct Faulty<S> {
    world: Arc<World>,
    backend: Arc<FaultyBackend>,
    started: S,
}

/// A process with a store; [`share`](Self::share) returns the store for other tasks.
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
    /// Starts a further process with its own store on this database.
    #[must_use]
    pub fn store(self: &Arc<Self>) -> FaultyStore {
        FaultyStore::on(self, Config::default())
    }
}

impl FaultyStore {
    /// Starts the first process of a new world of one log.
    #[must_use]
    pub fn new() -> Self {
        World::new(1).store()
    }

    /// Starts a further process of a world.
    #[must_use]
    pub fn on(world: &Arc<World>, config: Config) -> Self {
        Self::start(world, |backend| {
            let store = Store::open(backend, config, world.clock());
            store.expect("a world has a possible number of logs")
        })
    }

    /// Returns the store, to share it with tasks or to start entities on it.
    #[must_use]
    pub fn share(&self) -> Arc<Store> {
        Arc::clone(&self.started)
    }

    /// Starts a further process on the same database, without faults.
    #[must_use]
    pub fn second(&self) -> Self {
        self.world.store()
    }
}

impl<S> Faulty<S> {
    /// Starts a further process of a world. `start` makes what runs on its backend.
    pub fn start(world: &Arc<World>, start: impl FnOnce(Arc<dyn Backend>) -> S) -> Self {
        let backend = FaultyBackend::new(world);
        Self {
            world: Arc::clone(world),
            started: start(Arc::clone(&backend) as Arc<dyn Backend>),
            backend,
        }
    }

    /// Returns the database.
    #[must_use]
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Returns the backend by which the process uses the database.
    #[must_use]
    pub fn backend(&self) -> &Arc<FaultyBackend> {
        &self.backend
    }

    /// Returns how often the process has called the database.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.backend.process.calls()
    }

    /// Returns how many commits are under way.
    #[must_use]
    pub fn commits_under_way(&self) -> u64 {
        self.backend.process.commits_under_way()
    }

    /// Returns the most commits that were ever under way at once.
    #[must_use]
    pub fn commits_under_way_most(&self) -> u64 {
        self.backend.process.commits_most()
    }

    /// Returns how many messages to others the process has sent, lost ones included.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.backend.process.messages.load(Ordering::SeqCst)
    }

    /// Tells whether the process has closed its connections.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.backend.process.is_closed.load(Ordering::SeqCst)
    }

    // ---- faults, one by one ----

    /// Lets the next commit with events meet this fault. A second call before that is for the commit after it, and so
    /// on.
    pub fn fail_next_commit(&self, fault: Fault) {
        self.backend.process.plan().commits.push_back(fault);
    }

    /// Lets the next read, or attempt to connect, meet this fault. A second call before that is for the one after it,
    /// and so on.
    pub fn fail_next_read(&self, fault: ReadFault) {
        self.backend.process.plan().reads.push_back(fault);
    }

    /// Lets the database refuse every commit from now on that holds such a row.
    pub fn refuse_rows(&self, refused: impl Fn(&Row) -> bool + Send + 'static) {
        self.backend.process.plan().refuses = Some(Box::new(refused));
    }

    /// Lets every read, and every attempt to connect, from now on fail with the error that `fails` returns for it, if
    /// any.
    pub fn fail_reads(&self, fails: impl FnMut(Read<'_>) -> Option<Error> + Send + 'static) {
        self.backend.process.plan().fails = Some(Box::new(fails));
    }

    /// Ends the effect of [`fail_reads`](Self::fail_reads).
    pub fn let_reads_succeed(&self) {
        self.backend.process.plan().fails = None;
    }

    /// Lets the database go away for this time: connections die, and nothing answers.
    pub fn go_away_for(&self, time: Duration) {
        self.backend.process.go_away(time);
    }

    /// Lets the database go away until [`come_back`](Self::come_back).
    pub fn go_away(&self) {
        self.backend.process.set_away(true);
    }

    /// Lets the database answer again.
    pub fn come_back(&self) {
        self.backend.process.set_away(false);
    }

    /// Appends events as another process, without announcing them. Returns the revision of the first event.
    ///
    /// # Errors
    /// Those of [`World::foreign_append`].
    pub fn foreign_append(&self, stream: &str, events: Vec<EventData>) -> Result<Revision> {
        self.world.foreign_append(stream, events)
    }

    /// Returns how many commits wait for [`commit_lost`](Self::commit_lost).
    #[must_use]
    pub fn lost(&self) -> usize {
        self.backend.process.stalled()
    }

    /// Executes what was lost with [`LateCommit::WhenTold`]. Returns how many batches were stored.
    pub fn commit_lost(&self) -> usize {
        self.backend.process.commit_stalled(LateCommit::WhenTold)
    }

    /// Begins another history of the store for this process, as after a fail-over that lost commits: the one that
    /// another process has begun since, or else a new one.
    pub fn begin_history(&self) {
        let process = &self.backend.process;
        let incarnation = self
            .world
            .incarnation_after(process.history.get().incarnation);
        process.history.change(incarnation);
        self.world.tell(process.number, Signal::HistoryChanged);
    }

    // ---- answers held back ----

    /// Holds all answers of this kind until they are [released](Self::release). The database still does its work.
    pub fn hold(&self, answers: Answers) {
        self.release_only(answers, 0);
    }

    /// Lets all answers of this kind through.
    pub fn release(&self, answers: Answers) {
        self.backend.process.gate(answers).let_through(None);
    }

    /// Lets `count` more answers of this kind through, and then no more.
    pub fn release_only(&self, answers: Answers, count: usize) {
        self.backend.process.gate(answers).let_through(Some(count));
    }

    /// Returns how many more answers of this kind are let through.
    #[must_use]
    pub fn left(&self, answers: Answers) -> usize {
        self.backend.process.gate(answers).left()
    }

    /// Returns how many answers of this kind are held.
    #[must_use]
    pub fn held(&self, answers: Answers) -> usize {
        self.backend.process.gate(answers).held()
    }

    // ---- for all calls ----

    /// Gives the process `count` connections for reads. A read that finds none free waits.
    pub fn limit_connections(&self, count: usize) {
        let connections = &self.backend.process.connections;
        connections.forget_permits(usize::MAX);
        connections.add_permits(count);
    }

    /// From now on this makes the form of the data of each event; `None` leaves them as they are.
    pub fn on_packing(&self, pack: impl Fn(&Bytes) -> Option<Bytes> + Send + Sync + 'static) {
        self.backend.process.plan().packing = Some(Arc::new(pack));
    }

    /// Sets how long every call takes, half of it on the way to the database. A message, and closing, take half of it.
    pub fn set_round_trip(&self, time: Duration) {
        self.backend.process.plan().round_trip = time;
    }

    /// Lets pages end after this many bytes, with at least one event each, so that reads take many small pages.
    pub fn set_page_bytes_max(&self, bytes: usize) {
        self.backend.process.plan().page_bytes_max = bytes;
    }

    /// Loses all messages of this process from now on.
    pub fn lose_messages(&self) {
        self.backend.process.plan().mute = true;
    }

    /// Tells the process that messages may have been lost.
    pub fn interrupt(&self) {
        let number = self.backend.process.number;
        self.world.tell(number, Signal::Interrupted);
    }

    /// Lets this share of commits and reads go wrong from now on, in ways that the seed determines: see
    /// [`RandomFaults::new`].
    pub fn random_faults(&self, seed: u64, share: f64) {
        self.random_faults_of(RandomFaults::new(seed, share));
    }

    /// Lets these random faults happen from now on.
    pub fn random_faults_of(&self, faults: RandomFaults) {
        self.backend.process.plan().randomly(faults);
    }

    /// Ends all faults, both random ones and those that were still to come, and lets the database answer. Commits on
    /// dead connections may still commit.
    pub fn heal(&self) {
        self.backend.process.plan().heal();
        self.come_back();
    }
}
