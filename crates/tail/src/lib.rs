//! Tail hub: one reader per log serves any number of subscriptions.
//!
//! Why: N subscribers that poll cost N queries a round, busy or idle. Here a commit of this process reaches the
//! subscribers without any query, and one of another process with a single one. A log that is idle costs one look at
//! its end every few seconds, for one subscriber as for a thousand. Invariants: a subscriber gets every matching event
//! once, in the order of its log. It pulls, by position: from a bounded ring of the newest events, or, when its
//! position lies before the ring, from the database. A slow subscriber therefore holds one page and nothing else.
//! Events are made once and shared. Not here: reads of single pages (`gesta-store`), SQL (the backends).
//!
//! * `ring`: the newest events of a log; `lane`: what the hub knows of a log; `reader`: the tasks;
//! * `all`, `stream`: the two kinds of subscription; `pages`: their reads; `matcher`: filters.

mod all;
mod lane;
mod matcher;
mod pages;
mod reader;
mod ring;
mod stream;
#[cfg(test)]
mod testing;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gesta_core::backend::{Backend, Batch, CommitObserver, History};
use gesta_core::shares::{self, Holder};
use gesta_core::{
    Clock, Error, ErrorKind, KnownEnd, LogId, Position, Result, Subscribe, SubscribeTo,
    Subscription, SubscriptionMessage, log_of,
};
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::lane::{Interest, Lane};
use crate::pages::Pages;
use crate::reader::TailReader;

/// What the hub knows of a log, for simulations.
#[doc(hidden)]
pub mod core {
    pub use crate::lane::{Interest, Lane, Task, Work};
    pub use crate::ring::Taken;
}

/// Bounds and times of the hub.
#[derive(Debug, Clone)]
pub struct Config {
    /// Largest number of events of one log that are kept in memory, the newest ones, while anybody is subscribed.
    pub ring_events_max: usize,
    /// Largest memory of these events, of all logs together, in bytes.
    pub ring_bytes_max: usize,
    /// Time between two looks at the ends of all logs, in case a message of another process was lost. A look is one
    /// statement for each database. The time is at least 10 ms, whatever stands here.
    pub poll_interval: Duration,
    /// Shortest time between two messages to the other processes about one log.
    pub announce_interval: Duration,
    /// Largest number of reads that run at once for subscribers that catch up.
    pub catch_up_reads_max: usize,
    /// Largest size of the pages that subscribers hold while they catch up, together, in bytes. Each may hold at least
    /// 64 KiB, or one event.
    pub catch_up_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ring_events_max: 32_768,
            ring_bytes_max: 64 * 1024 * 1024,
            poll_interval: Duration::from_secs(5),
            announce_interval: Duration::from_millis(10),
            catch_up_reads_max: 4,
            catch_up_bytes_max: 64 * 1024 * 1024,
        }
    }
}

/// Number of attempts to begin a subscription, if the history of the store changes meanwhile.
const BEGINNINGS_MAX: u32 = 3;

/// A subscriber of the hub. It knows its position, and gives its messages one after the other.
pub(crate) trait Subscriber: Sized + Send + 'static {
    /// Waits for the next message. Returns `None` once the subscription has ended.
    fn next(&mut self) -> impl Future<Output = Option<Result<SubscriptionMessage>>> + Send;
}

/// Makes a subscription of a subscriber. `begin` finds where the subscriber begins, and gives `None` if the history has
/// changed meanwhile.
pub(crate) async fn subscription<S, F>(begin: impl Fn() -> F) -> Result<Subscription>
where
    S: Subscriber,
    F: Future<Output = Result<Option<S>>>,
{
    for _ in 0..BEGINNINGS_MAX {
        if let Some(subscriber) = begin().await? {
            // Boxed, so that each message moves a pointer and not the subscriber.
            let messages =
                futures::stream::unfold(Box::new(subscriber), |mut subscriber| async move {
                    let message = subscriber.next().await?;
                    Some((message, subscriber))
                });
            return Ok(Subscription::new(messages));
        }
    }
    Err(Error::unavailable(
        "the history of the store changes again and again",
    ))
}

/// What the hub and its subscriptions share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lanes: Vec<Arc<Lane>>,
    pub(crate) pages: Arc<Pages>,
    /// Changes whenever the head of any lane changes.
    pub(crate) pulse: Arc<watch::Sender<u64>>,
    pub(crate) closed: CancellationToken,
    subscribers: Arc<AtomicUsize>,
}

/// The tail hub of a store. Dropping it ends its tasks and subscriptions.
pub struct Hub {
    shared: Arc<Shared>,
    /// Tasks that have not ended yet. The lock is held while they are awaited, so that every caller of `shutdown`
    /// returns when all have ended.
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("logs", &self.shared.lanes.len())
            .field("subscribers", &self.subscribers())
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// Starts the hub. The caller must be in a tokio runtime.
    #[must_use]
    pub fn start(backend: Arc<dyn Backend>, config: Config, clock: Arc<dyn Clock>) -> Arc<Self> {
        let logs = backend.info().logs;
        let pulse = Arc::new(watch::Sender::new(0));
        let ring_bytes_max = config.ring_bytes_max / usize::from(logs).max(1);
        let lanes = (0..logs).map(|log| {
            Arc::new(Lane::new(
                LogId(log),
                config.ring_events_max,
                ring_bytes_max,
                Arc::clone(&pulse),
            ))
        });
        let lanes: Vec<Arc<Lane>> = lanes.collect();
        let closed = CancellationToken::new();
        let pages = Arc::new(Pages::new(
            Arc::clone(&backend),
            config.catch_up_reads_max,
            config.catch_up_bytes_max,
            closed.clone(),
        ));
        let shared = Arc::new(Shared {
            backend,
            clock,
            lanes,
            pages,
            pulse,
            closed,
            subscribers: Arc::new(AtomicUsize::new(0)),
        });
        let tasks = Mutex::new(shared.spawn_tasks(&config));
        Arc::new(Self { shared, tasks })
    }

    /// Begins a subscription.
    ///
    /// For [`SubscribeFrom::End`](gesta_core::SubscribeFrom::End) the positions are taken before this method returns.
    ///
    /// # Errors
    /// Those of [`gesta_core::EventStore::subscribe`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt; nothing is left behind.
    pub async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        request.validate()?;
        self.shared.check_open()?;
        match request.to {
            SubscribeTo::All(filter) => all::subscribe(&self.shared, filter, request.from).await,
            SubscribeTo::Stream(stream) => {
                stream::subscribe(&self.shared, stream, request.from).await
            }
        }
    }

    /// Takes the message of another process that it has committed up to this position of a log. The message is a hint,
    /// like one that comes by way of the database: while anybody is subscribed, the log is read.
    pub fn heard(&self, log: LogId, position: Position) {
        if let Some(lane) = self.shared.lanes.get(usize::from(log.0)) {
            lane.heard(position);
        }
    }

    /// Returns the last position up to which reads of the hub have found a log to reach, with the history to which it
    /// belongs. While anybody is subscribed to any log, this is at most [`Config::poll_interval`] old, of every log.
    #[must_use]
    pub fn read_end(&self, log: LogId) -> KnownEnd {
        let lane = self.shared.lanes.get(usize::from(log.0));
        lane.map_or(KnownEnd::NOTHING, |lane| lane.read_end())
    }

    /// Returns the number of subscriptions.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.shared.subscribers.load(Ordering::Relaxed)
    }

    /// Ends all subscriptions with `Unavailable`, tells the other processes of the last commits, and ends the tasks.
    ///
    /// A call that is made while another one runs returns when that one does.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the hub from shutting down. A further call waits for the end.
    pub async fn shutdown(&self) {
        self.shared.close();
        let mut tasks = self.tasks.lock().await;
        while let Some(task) = tasks.last_mut() {
            // A task that failed has nothing left to end.
            let _ = task.await;
            tasks.pop();
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl CommitObserver for Hub {
    fn committed(&self, batch: &Arc<Batch>) {
        if let Some(lane) = self.shared.lanes.get(usize::from(batch.log.0)) {
            lane.committed(self.shared.backend.history().number, batch);
        }
    }

    fn read_log_end(&self, log: LogId) {
        if let Some(lane) = self.shared.lanes.get(usize::from(log.0)) {
            lane.doubt();
        }
    }
}

/// Starts a task that reads for the server itself.
fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(shares::act_as(Holder::Server, task))
}

impl Shared {
    /// Starts a reader for each lane. If other processes append to the store too, it also starts the tasks that send
    /// them messages and receive theirs.
    fn spawn_tasks(&self, config: &Config) -> Vec<JoinHandle<()>> {
        let is_shared = self.backend.info().capabilities.shared;
        let mut tasks = Vec::new();
        for lane in &self.lanes {
            let reader = TailReader {
                lane: Arc::clone(lane),
                backend: Arc::clone(&self.backend),
                closed: self.closed.clone(),
                is_behind: false,
            };
            tasks.push(spawn(reader.run()));
            if is_shared {
                tasks.push(spawn(reader::announce(
                    Arc::clone(lane),
                    Arc::clone(&self.backend),
                    config.announce_interval,
                    self.closed.clone(),
                )));
            }
        }
        if is_shared {
            let look = Arc::new(Notify::new());
            tasks.push(spawn(reader::poll_ends(
                self.lanes.clone(),
                Arc::clone(&self.backend),
                config.poll_interval,
                Arc::clone(&look),
                self.closed.clone(),
            )));
            tasks.push(spawn(reader::listen(
                self.lanes.clone(),
                Arc::clone(&self.pages),
                Arc::clone(&self.backend),
                look,
                self.closed.clone(),
            )));
        }
        tasks
    }

    fn close(&self) {
        self.closed.cancel();
        self.lanes.iter().for_each(|lane| lane.alarm());
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.is_cancelled() {
            return Err(Error::unavailable("the store is shutting down"));
        }
        Ok(())
    }

    /// Checks that the history of the store is still this one.
    ///
    /// # Errors
    /// `InvalidCheckpoint` if the store has another history now.
    pub(crate) fn check_history(&self, history: History) -> Result<()> {
        let now = self.backend.history();
        if now == history {
            return Ok(());
        }
        let text = format!(
            "it is of incarnation {}, the store is now {}: the database has lost commits, was restored or replaced",
            history.incarnation, now.incarnation
        );
        Err(ErrorKind::InvalidCheckpoint(text).into())
    }

    pub(crate) fn lane_of(&self, stream: &gesta_core::StreamId) -> Option<&Arc<Lane>> {
        let logs = u16::try_from(self.lanes.len()).unwrap_or(u16::MAX);
        self.lanes.get(usize::from(log_of(stream, logs).0))
    }

    /// Counts a subscriber and keeps these lanes awake for it.
    pub(crate) fn enter<'a>(&self, lanes: impl IntoIterator<Item = &'a Arc<Lane>>) -> Membership {
        self.subscribers.fetch_add(1, Ordering::Relaxed);
        Membership {
            _interests: lanes.into_iter().map(Lane::interest).collect(),
            pages: Arc::clone(&self.pages),
            subscribers: Arc::clone(&self.subscribers),
        }
    }
}

/// What a subscription holds of the hub. Dropping it frees that.
pub(crate) struct Membership {
    _interests: Vec<Interest>,
    pages: Arc<Pages>,
    subscribers: Arc<AtomicUsize>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.subscribers.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.pages.forget();
        }
    }
}
