//! A [`Backend`] in memory for the tests of hub and store: a [`World`] is the database, each
//! [`MemoryBackend`] is what one process has of it. Counts its calls; messages between processes can be lost.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    reason = "test code, of which each test file uses a part"
)]

mod index;
mod world;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use gesta_core::backend::*;
use gesta_core::backend::{CurrentHistory, History, Purpose};
use gesta_core::*;
use gesta_store::{Config, Store};
use tokio::sync::mpsc;

pub use world::World;

/// One process's connections to a [`World`].
pub struct MemoryBackend {
    pub world: Arc<World>,
    info: Arc<BackendInfo>,
    history: CurrentHistory,
    number: usize,
    /// Messages from this process to others, and to it, are lost.
    pub deaf: AtomicBool,
    /// The database does not answer reads.
    pub away: AtomicBool,
    /// Commits take a while, and so do messages to others and closing.
    pub slow: Arc<AtomicBool>,
    /// Messages to others that were sent.
    pub told: AtomicU64,
    /// Commits under way.
    pub committing: Arc<AtomicU64>,
    pub closed: AtomicBool,
    /// The database finds what it holds of this stream corrupt, and says so instead of an answer.
    pub corrupt: OnceLock<StreamId>,
    pub calls: Calls,
}

/// How long a slow database takes to close, or to send a message; to commit, five times as long.
const SLOW: std::time::Duration = std::time::Duration::from_millis(20);

/// How often each kind of call was made.
#[derive(Default, Debug)]
pub struct Calls {
    pub log_end: AtomicU64,
    pub load: AtomicU64,
    pub lookup: AtomicU64,
    pub read_stream: AtomicU64,
    pub read_streams: AtomicU64,
    pub read_log: AtomicU64,
}

impl Calls {
    /// All of them.
    pub fn total(&self) -> u64 {
        [
            &self.log_end,
            &self.load,
            &self.lookup,
            &self.read_stream,
            &self.read_streams,
            &self.read_log,
        ]
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .sum()
    }

    pub fn read_log(&self) -> u64 {
        self.read_log.load(Ordering::Relaxed)
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl MemoryBackend {
    /// A further process.
    pub fn new(world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            number: world.join(),
            history: CurrentHistory::new(world.incarnation),
            info: Arc::new(BackendInfo {
                backend: "world",
                engine: "tests".into(),
                logs: world.logs,
                durability: Durability::None,
                capabilities: Capabilities {
                    persistent: true,
                    shared: true,
                    several_logs: true,
                    batches_in_flight_max: 4,
                },
            }),
            world: Arc::clone(world),
            deaf: AtomicBool::new(false),
            away: AtomicBool::new(false),
            slow: Arc::default(),
            told: AtomicU64::new(0),
            committing: Arc::default(),
            closed: AtomicBool::new(false),
            corrupt: OnceLock::new(),
            calls: Calls::default(),
        })
    }

    async fn answer(&self) -> Result<()> {
        tokio::task::yield_now().await;
        if self.away.load(Ordering::Relaxed) {
            return Err(Error::unavailable("away"));
        }
        Ok(())
    }

    /// This process finds that the history of the store has changed.
    pub fn begin_history(&self) {
        self.history.change(Incarnation::random());
        self.world.send(self.number, Signal::HistoryChanged);
    }

    /// Tells this process that messages may have been lost.
    pub fn interrupt(&self) {
        self.world.send(self.number, Signal::Interrupted);
    }
}

struct Writer {
    world: Arc<World>,
    epoch: WriterEpoch,
    slow: Arc<AtomicBool>,
    committing: Arc<AtomicU64>,
}

impl LogWriter for Writer {
    fn epoch(&self) -> WriterEpoch {
        self.epoch
    }

    fn is_gathered(&self) -> bool {
        false
    }

    fn submit(&mut self, batch: Arc<Batch>) -> BoxFuture<'static, BatchOutcome> {
        let outcome = self.world.commit(&batch, self.epoch);
        let slow = self.slow.load(Ordering::Relaxed);
        let committing = Arc::clone(&self.committing);
        committing.fetch_add(1, Ordering::Relaxed);
        // Other tasks get their turn before the answer is there.
        async move {
            tokio::task::yield_now().await;
            if slow {
                tokio::time::sleep(5 * SLOW).await;
            }
            committing.fetch_sub(1, Ordering::Relaxed);
            outcome
        }
        .boxed()
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn info(&self) -> Arc<BackendInfo> {
        Arc::clone(&self.info)
    }

    fn history(&self) -> History {
        self.history.get()
    }

    fn pack(&self, _: &StreamId, _: ContentType, _: &Bytes) -> Option<Bytes> {
        None
    }

    async fn open_writer(&self, _log: LogId) -> Result<Box<dyn LogWriter>> {
        Ok(Box::new(Writer {
            slow: Arc::clone(&self.slow),
            committing: Arc::clone(&self.committing),
            world: Arc::clone(&self.world),
            epoch: WriterEpoch(rand::random()),
        }))
    }

    async fn log_end(&self, log: LogId, _: Purpose) -> Result<LogEnd> {
        count(&self.calls.log_end);
        self.answer().await?;
        Ok(self.world.end(log))
    }

    async fn load(&self, log: LogId, request: LoadRequest, _: Purpose) -> Result<Loaded> {
        count(&self.calls.load);
        self.answer().await?;
        let corrupt = self.corrupt.get();
        if corrupt.is_some_and(|corrupt| request.streams.contains(corrupt)) {
            return Err(Error::corrupt("a row of a stream"));
        }
        Ok(self.world.load(log, &request))
    }

    async fn lookup(&self, log: LogId, lookup: EventLookup, _: Purpose) -> Result<Vec<EventRef>> {
        count(&self.calls.lookup);
        self.answer().await?;
        Ok(self.world.lookup(log, &lookup))
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
        count(&self.calls.read_stream);
        self.answer().await?;
        Ok(self.world.read_stream(&slice))
    }

    async fn read_streams(&self, _: LogId, slices: Vec<StreamSlice>) -> Result<Vec<Rows>> {
        count(&self.calls.read_streams);
        self.answer().await?;
        Ok(self.world.read_streams(&slices))
    }

    async fn read_log(&self, slice: LogSlice) -> Result<Rows> {
        count(&self.calls.read_log);
        self.answer().await?;
        Ok(self.world.read_log(&slice))
    }

    async fn list_streams(
        &self,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
    ) -> Result<Vec<StreamId>> {
        Ok(self.world.list(prefix, after, limit))
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.world.listen(self.number, sender);
        stream::unfold(receiver, |mut receiver| async move {
            match receiver.recv().await {
                Some(signal) => Some((signal, receiver)),
                None => std::future::pending().await,
            }
        })
        .boxed()
    }

    async fn send_signal(&self, signal: Signal) {
        if self.slow.load(Ordering::Relaxed) {
            tokio::time::sleep(SLOW).await;
        }
        self.told.fetch_add(1, Ordering::Relaxed);
        if !self.deaf.load(Ordering::Relaxed) {
            self.world.send_to_others(self.number, signal);
        }
    }

    async fn remove_hidden(
        &self,
        log: LogId,
        stream: RowId,
        visibility: Visibility,
        mode: RunMode,
    ) -> Result<Removed> {
        Ok(self.world.remove_hidden(log, stream, visibility, mode))
    }

    fn registry(&self) -> Option<Arc<dyn gesta_core::registry::Registry>> {
        None
    }

    fn virtual_index(&self) -> Option<Arc<dyn VirtualIndex>> {
        Some(Arc::new(self.world.index()))
    }

    async fn close(&self) {
        if self.slow.load(Ordering::Relaxed) {
            tokio::time::sleep(SLOW).await;
        }
        self.closed.store(true, Ordering::Relaxed);
    }
}

/// A process: a store, and its backend to look at.
pub struct Process {
    pub store: Arc<Store>,
    pub backend: Arc<MemoryBackend>,
}

/// Starts a process on a world.
pub fn process(world: &Arc<World>, config: Config) -> Process {
    let backend = MemoryBackend::new(world);
    let store = Store::open(
        Arc::clone(&backend) as Arc<dyn Backend>,
        config,
        Arc::new(SystemClock),
    );
    Process {
        store: store.expect("opened"),
        backend,
    }
}

impl Process {
    /// Appends `count` events, one by one.
    pub async fn append(&self, stream: &str, count: usize) {
        for _ in 0..count {
            self.append_together(stream, 1).await;
        }
    }

    /// Appends `count` events at once.
    pub async fn append_together(&self, stream: &str, count: usize) {
        let events = (0..count).map(|_| event("tested")).collect();
        let appended = self
            .store
            .append_to(stream, ExpectedRevision::Any, events)
            .await;
        appended.expect("appended");
    }

    pub async fn subscribe(&self, filter: Filter, from: SubscribeFrom) -> Subscription {
        let to = SubscribeTo::All(filter);
        let subscription = self.store.subscribe(Subscribe { to, from }).await;
        subscription.expect("subscribed")
    }

    pub async fn subscribe_stream(&self, stream: &str, from: SubscribeFrom) -> Subscription {
        let to = SubscribeTo::Stream(self::stream(stream));
        let subscription = self.store.subscribe(Subscribe { to, from }).await;
        subscription.expect("subscribed")
    }
}

pub fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

pub fn event(event_type: &str) -> EventData {
    EventData::json(EventType::new(event_type).expect("valid"), "{}")
}

pub fn category(name: &str) -> Filter {
    Filter::query(Query {
        categories: vec![name.into()],
        ..Query::default()
    })
}

/// The next message, soon.
pub async fn next(subscription: &mut Subscription) -> Result<SubscriptionMessage> {
    let next = tokio::time::timeout(std::time::Duration::from_secs(60), subscription.next());
    let message = next.await.expect("a message in time");
    message.expect("not ended")
}

/// Positions of the next `count` events; other messages are skipped.
pub async fn positions(subscription: &mut Subscription, count: usize) -> Vec<u64> {
    let mut positions = Vec::new();
    while positions.len() < count {
        if let SubscriptionMessage::Event { event, .. } =
            next(subscription).await.expect("going on")
        {
            positions.push(event.position.0);
        }
    }
    positions
}

/// The events up to the next `caught up`, and its checkpoint.
pub async fn until_caught_up(subscription: &mut Subscription) -> (Vec<SharedEvent>, Checkpoint) {
    let mut events = Vec::new();
    loop {
        match next(subscription).await.expect("going on") {
            SubscriptionMessage::Event { event, .. } => events.push(event),
            SubscriptionMessage::CaughtUp(checkpoint) => return (events, checkpoint),
            SubscriptionMessage::Checkpoint(_) => {}
        }
    }
}

/// Ids of events, to compare what was delivered with what is stored.
pub fn ids(events: &[RecordedEvent]) -> HashSet<EventId> {
    events.iter().map(|event| event.id).collect()
}
