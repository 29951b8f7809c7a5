//! What the connections of a process share: its plan, how long calls take, and which commits are still on their way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use gesta_core::backend::*;
use gesta_core::*;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::gate::{Answers, Gate};
use super::plan::{LateCommit, Plan, ReadFault};
use super::read::{Calls, Read};
use super::world::{World, lock};

/// The commits of a dead connection that are still on their way.
struct Stalled {
    epoch: WriterEpoch,
    late: LateCommit,
    batches: Vec<Arc<Batch>>,
}

/// Whether a process can reach the database.
#[derive(Default)]
struct Reach {
    /// The moment until which the database does not answer.
    away_until: Option<Instant>,
    /// Whether the database does not answer at all.
    away: bool,
}

/// What the connections of a process share.
pub(super) struct Process {
    pub(super) world: Arc<World>,
    pub(super) number: usize,
    pub(super) history: CurrentHistory,
    plan: Mutex<Plan>,
    calls: Mutex<Calls>,
    gates: [Gate; Answers::KINDS],
    /// The connections for reads.
    pub(super) connections: Semaphore,
    reach: Mutex<Reach>,
    /// A number that grows when all connections die.
    connected: AtomicU64,
    stalled: Mutex<Vec<Stalled>>,
    /// How many commits are under way; the next field has the most so far.
    commits: AtomicU64,
    commits_most: AtomicU64,
    /// How many messages were sent.
    pub(super) messages: AtomicU64,
    pub(super) is_closed: AtomicBool,
}

impl Process {
    pub(super) fn new(world: &Arc<World>) -> Self {
        Self {
            number: world.join(),
            world: Arc::clone(world),
            history: CurrentHistory::new(world.incarnation()),
            plan: Mutex::default(),
            calls: Mutex::default(),
            gates: Default::default(),
            connections: Semaphore::new(Semaphore::MAX_PERMITS),
            reach: Mutex::default(),
            connected: AtomicU64::new(0),
            stalled: Mutex::default(),
            commits: AtomicU64::new(0),
            commits_most: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    pub(super) fn plan(&self) -> MutexGuard<'_, Plan> {
        lock(&self.plan)
    }

    pub(super) fn calls(&self) -> Calls {
        *lock(&self.calls)
    }

    pub(super) fn gate(&self, answers: Answers) -> &Gate {
        &self.gates[answers as usize]
    }

    // ---- commits under way ----

    pub(super) fn begin_commit(&self) {
        let under_way = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        self.commits_most.fetch_max(under_way, Ordering::SeqCst);
    }

    pub(super) fn end_commit(&self) {
        self.commits.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn commits_under_way(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    pub(super) fn commits_most(&self) -> u64 {
        self.commits_most.load(Ordering::SeqCst)
    }

    // ---- reachable or not ----

    pub(super) fn connected(&self) -> u64 {
        self.connected.load(Ordering::SeqCst)
    }

    /// Lets all connections die; no new one can be made for `time`.
    pub(super) fn go_away(&self, time: Duration) {
        lock(&self.reach).away_until = Some(Instant::now() + time);
        self.connected.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn set_away(&self, away: bool) {
        let mut reach = lock(&self.reach);
        reach.away = away;
        reach.away_until = None;
        if away {
            self.connected.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn check_reach(&self) -> Result<()> {
        let reach = lock(&self.reach);
        let later = reach.away_until.is_some_and(|until| Instant::now() < until);
        match later || reach.away {
            true => Err(Error::unavailable("the database is away, as planned")),
            false => Ok(()),
        }
    }

    /// Does a read: its way to the database and back, and the fault that the plan has for it. The answer is that of the
    /// moment between.
    pub(super) async fn read<T>(
        &self,
        read: Read<'_>,
        answer: impl FnOnce(&World) -> T,
    ) -> Result<T> {
        lock(&self.calls).count(read);
        // A connection that appends is not one of those for reads.
        let _connection = match read {
            Read::Connect => None,
            _ => self.connections.acquire().await.ok(),
        };
        let (fault, half) = {
            let mut plan = self.plan();
            (plan.next_read(), plan.round_trip / 2)
        };
        let (there, back) = match fault {
            Some(ReadFault::SlowRequest(longer)) => (half + longer, half),
            Some(ReadFault::SlowReply(longer)) => (half, half + longer),
            Some(ReadFault::Failed) | None => (half, half),
        };
        travel(there).await;
        self.check_reach()?;
        if fault == Some(ReadFault::Failed) {
            return Err(Error::unavailable("a read failed, as planned"));
        }
        if let Some(error) = self.plan().failure_of(read) {
            return Err(error);
        }
        let answer = answer(&self.world);
        if let Some(answers) = read.answers() {
            self.gate(answers).pass().await;
        }
        if !back.is_zero() {
            sleep(back).await;
        }
        Ok(answer)
    }

    /// Waits for half a round trip, if that takes time.
    pub(super) async fn half_a_round_trip(&self) {
        let half = self.plan().round_trip / 2;
        if !half.is_zero() {
            sleep(half).await;
        }
    }

    // ---- late commits ----

    pub(super) fn begin_stall(&self, epoch: WriterEpoch, late: LateCommit) {
        lock(&self.stalled).push(Stalled {
            epoch,
            late,
            batches: Vec::new(),
        });
    }

    pub(super) fn stall(&self, batch: Arc<Batch>, epoch: WriterEpoch) {
        let mut stalled = lock(&self.stalled);
        if let Some(stalled) = stalled.iter_mut().find(|s| s.epoch == epoch) {
            stalled.batches.push(batch);
        }
    }

    /// Executes what was sent on that connection.
    pub(super) fn commit_late(&self, epoch: WriterEpoch) {
        let due = lock(&self.stalled)
            .extract_if(.., |stalled| stalled.epoch == epoch)
            .collect();
        self.execute(due);
    }

    /// Executes all commits that are late in this way. Returns how many batches were stored.
    pub(super) fn commit_stalled(&self, late: LateCommit) -> usize {
        let due = lock(&self.stalled)
            .extract_if(.., |stalled| stalled.late == late)
            .collect();
        self.execute(due)
    }

    /// Returns how many batches reach the database when the test says so.
    pub(super) fn stalled(&self) -> usize {
        let stalled = lock(&self.stalled);
        let waiting = stalled.iter().filter(|s| s.late == LateCommit::WhenTold);
        waiting.map(|stalled| stalled.batches.len()).sum()
    }

    fn execute(&self, due: Vec<Stalled>) -> usize {
        let mut stored = 0;
        for stalled in due {
            for batch in stalled.batches {
                let outcome = self.world.commit(&batch, stalled.epoch);
                stored += usize::from(matches!(outcome, BatchOutcome::Committed));
            }
        }
        stored
    }
}

/// Waits for this time, and lets other tasks run in any case.
async fn travel(time: Duration) {
    if time.is_zero() {
        tokio::task::yield_now().await;
    } else {
        sleep(time).await;
    }
}
