//! [`FaultyBackend`]: what one process has of a [`World`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use gesta_core::backend::*;
use gesta_core::*;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::plan::{LateCommit, Plan, ReadFault};
use super::world::{World, lock};
use super::writer::Writer;

/// How often a process has made each kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Calls {
    /// The end of a log.
    pub log_end: u64,
    /// Streams and types looked up.
    pub load: u64,
    /// Events looked up.
    pub lookup: u64,
    /// Parts of one stream.
    pub read_stream: u64,
    /// Parts of several streams.
    pub read_streams: u64,
    /// Parts of a log.
    pub read_log: u64,
}

impl Calls {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        let streams = self.read_stream + self.read_streams;
        self.log_end + self.load + self.lookup + streams + self.read_log
    }
}

/// Commits of a dead connection that are still on their way.
struct Stalled {
    epoch: WriterEpoch,
    late: LateCommit,
    batches: Vec<Arc<Batch>>,
}

/// Where the database is for a process.
#[derive(Default)]
struct Reach {
    /// It does not answer until then …
    away_until: Option<Instant>,
    /// … or at all.
    away: bool,
}

/// What the connections of a process share.
pub(super) struct Process {
    pub(super) world: Arc<World>,
    number: usize,
    plan: Mutex<Plan>,
    calls: Mutex<Calls>,
    reach: Mutex<Reach>,
    /// Grows when all connections die.
    connected: AtomicU64,
    stalled: Mutex<Vec<Stalled>>,
    /// Commits under way, and the most of them so far.
    commits: AtomicU64,
    commits_most: AtomicU64,
}

impl Process {
    pub(super) fn plan(&self) -> MutexGuard<'_, Plan> {
        lock(&self.plan)
    }

    pub(super) fn calls(&self) -> Calls {
        *lock(&self.calls)
    }

    // ---- commits under way ----

    pub(super) fn begin_commit(&self) {
        let under_way = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        self.commits_most.fetch_max(under_way, Ordering::SeqCst);
    }

    pub(super) fn end_commit(&self) {
        self.commits.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn commits_most(&self) -> u64 {
        self.commits_most.load(Ordering::SeqCst)
    }

    // ---- reachable or not ----

    pub(super) fn connected(&self) -> u64 {
        self.connected.load(Ordering::SeqCst)
    }

    /// All connections die, and no new one can be made for a while.
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

    /// A call: its way to the database and back, and what the plan has for it. The answer is as of the moment between.
    pub(super) async fn read<T>(&self, answer: impl FnOnce(&World) -> T) -> Result<T> {
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
        let answer = answer(&self.world);
        travel(back).await;
        Ok(answer)
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

    /// Executes all that was to reach the database then.
    pub(super) fn commit_stalled(&self, late: LateCommit) {
        let due = lock(&self.stalled)
            .extract_if(.., |stalled| stalled.late == late)
            .collect();
        self.execute(due);
    }

    fn execute(&self, due: Vec<Stalled>) {
        for stalled in due {
            for batch in stalled.batches {
                self.world.commit(&batch, stalled.epoch);
            }
        }
    }
}

/// Takes that time, and lets others have their turn in any case.
async fn travel(time: Duration) {
    if time.is_zero() {
        tokio::task::yield_now().await;
    } else {
        sleep(time).await;
    }
}

/// A [`Backend`] on a [`World`], with the faults of one process.
pub struct FaultyBackend {
    info: Arc<BackendInfo>,
    history: CurrentHistory,
    pub(super) process: Arc<Process>,
}

impl std::fmt::Debug for FaultyBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyBackend")
            .field("process", &self.process.number)
            .finish_non_exhaustive()
    }
}

impl FaultyBackend {
    pub(super) fn new(world: &Arc<World>) -> Self {
        let capabilities = Capabilities {
            persistent: true,
            shared: true,
            several_logs: true,
            batches_in_flight_max: 64,
        };
        let info = BackendInfo {
            backend: "faulty",
            engine: "in memory".into(),
            logs: world.logs,
            durability: Durability::None,
            capabilities,
        };
        let process = Process {
            number: world.join(),
            world: Arc::clone(world),
            plan: Mutex::default(),
            calls: Mutex::default(),
            reach: Mutex::default(),
            connected: AtomicU64::new(0),
            stalled: Mutex::default(),
            commits: AtomicU64::new(0),
            commits_most: AtomicU64::new(0),
        };
        Self {
            info: Arc::new(info),
            history: CurrentHistory::new(world.incarnation),
            process: Arc::new(process),
        }
    }

    /// The number of the process in its world.
    pub(super) fn number(&self) -> usize {
        self.process.number
    }

    fn count(&self, count: impl FnOnce(&mut Calls) -> &mut u64) {
        *count(&mut lock(&self.process.calls)) += 1;
    }
}

#[async_trait]
impl Backend for FaultyBackend {
    fn info(&self) -> Arc<BackendInfo> {
        Arc::clone(&self.info)
    }

    fn history(&self) -> History {
        self.history.get()
    }

    fn pack(&self, _: &StreamId, _: ContentType, _: &Bytes) -> Option<Bytes> {
        None
    }

    async fn open_writer(&self, _: LogId) -> Result<Box<dyn LogWriter>> {
        self.process.read(|_| ()).await?;
        Ok(Box::new(Writer::open(Arc::clone(&self.process))))
    }

    async fn log_end(&self, log: LogId, _: Purpose) -> Result<LogEnd> {
        self.count(|calls| &mut calls.log_end);
        let end = |world: &World| world.with(log, |rows| rows.end());
        self.process.read(end).await
    }

    async fn load(&self, log: LogId, request: LoadRequest, _: Purpose) -> Result<Loaded> {
        self.count(|calls| &mut calls.load);
        let load = |world: &World| world.with(log, |rows| rows.load(&request));
        self.process.read(load).await
    }

    async fn lookup(&self, log: LogId, lookup: EventLookup, _: Purpose) -> Result<Vec<EventRef>> {
        self.count(|calls| &mut calls.lookup);
        let look_up = |world: &World| world.with(log, |rows| rows.lookup(&lookup));
        self.process.read(look_up).await
    }

    async fn read_ids(&self, log: LogId, after: Position, to: Position) -> Result<Vec<StoredId>> {
        let range = EventLookup::After {
            position: after,
            limit: usize::MAX,
        };
        let mut found = self.lookup(log, range, Purpose::Read).await?;
        found.retain(|event| event.position <= to);
        Ok(found.iter().map(EventRef::stored_id).collect())
    }

    async fn read_stream(&self, slice: StreamSlice) -> Result<Rows> {
        self.count(|calls| &mut calls.read_stream);
        let bytes_max = self.process.plan().page_bytes_max;
        let read =
            |world: &World| world.with(slice.log, |rows| rows.read_stream(&slice, bytes_max));
        self.process.read(read).await
    }

    async fn read_streams(&self, log: LogId, slices: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        self.count(|calls| &mut calls.read_streams);
        let bytes_max = self.process.plan().page_bytes_max;
        let read = |world: &World| world.with(log, |rows| rows.read_streams(&slices, bytes_max));
        self.process.read(read).await
    }

    async fn read_log(&self, slice: LogSlice) -> Result<Rows> {
        self.count(|calls| &mut calls.read_log);
        let bytes_max = self.process.plan().page_bytes_max;
        let read = |world: &World| world.with(slice.log, |rows| rows.read_log(&slice, bytes_max));
        self.process.read(read).await
    }

    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        let list = |world: &World| world.list(prefix, after, limit);
        self.process.read(list).await
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.process.world.listen(self.number(), sender);
        stream::unfold(receiver, |mut receiver| async move {
            match receiver.recv().await {
                Some(signal) => Some((signal, receiver)),
                None => std::future::pending().await,
            }
        })
        .boxed()
    }

    async fn send_signal(&self, signal: Signal) {
        if !self.process.plan().loses_message() {
            self.process.world.tell_others(self.number(), signal);
        }
    }

    async fn remove_hidden(
        &self,
        log: LogId,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Result<Removed> {
        let remove =
            |world: &World| world.with(log, |rows| rows.remove_hidden(stream, visibility, mode));
        self.process.read(remove).await
    }

    fn registry(&self) -> Option<Arc<dyn registry::Registry>> {
        None
    }

    async fn close(&self) {}
}
