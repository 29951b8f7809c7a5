//! The tasks of the hub: one tail reader and one announcer per log, one listener and one poller for all logs.
//!
//! The reader does what the lane asks for: it fills gaps, follows hints, and looks at the end of the log if the lane
//! doubts it. It also wakes subscribers, so that a commit costs its caller the same with one subscriber as with a
//! thousand, and commits that come while subscribers are being woken are told together. A few events that others have
//! committed are read together with those of other logs (`Backend::read_tail`), for which the backend may hold the read
//! back; a lane that is further behind than that reads pages of its own, one after the other. Not here: what is in the
//! ring and what is pending (`lane`).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use gesta_core::backend::{Backend, History, LogTail, Purpose, Signal, Topic};
use gesta_core::{KnownEnd, LastingFault, Position, Result, warn_once};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::lane::{Lane, Task, Work};
use crate::pages::{Pages, RETRY};

/// Shortest time between two looks at the ends of all logs.
const POLL_MIN: Duration = Duration::from_millis(10);
/// How long a look at the ends of all logs waits for the other ends once one is known.
const OTHERS_WITHIN: Duration = Duration::from_secs(5);
/// Largest number of events that the tail reader asks for at once while it follows the log.
const TAIL_EVENTS_MAX: usize = 256;
/// Largest number of events that the tail reader asks for at once while it is further behind.
const FILL_EVENTS_MAX: usize = 1_000;

/// The task that reads one log for its lane.
pub(crate) struct TailReader {
    pub(crate) lane: Arc<Lane>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) closed: CancellationToken,
    /// Whether the last page did not come to the end of the log.
    pub(crate) is_behind: bool,
}

impl TailReader {
    /// Reads until the hub is closed.
    pub(crate) async fn run(self) {
        let closed = self.closed.clone();
        // Reads are cancel safe.
        closed.run_until_cancelled(self.follow()).await;
    }

    async fn follow(mut self) {
        let mut retry = RETRY;
        let mut told = LastingFault::default();
        loop {
            self.keep_up();
            let work = self.lane.next_work();
            self.lane.publish();
            if let Some(work) = work {
                match self.publishing(self.work(&work)).await {
                    Ok(has_ended) => {
                        self.is_behind = !has_ended;
                        retry.reset();
                        if told.ends() {
                            tracing::info!(log = %self.lane.log, "the log is followed again");
                        }
                    }
                    Err(error) => {
                        warn_once!(told, log = %self.lane.log, %error, "cannot follow the log; trying again");
                        self.lane.unfinished(&work);
                        self.publishing(tokio::time::sleep(retry.pause())).await;
                    }
                }
                continue;
            }
            self.lane.wake.notified().await;
        }
    }

    /// Drops work of an old history, if the history has changed.
    fn keep_up(&self) {
        self.lane.keep_up(self.backend.history().number);
    }

    /// Waits until this is done, and wakes subscribers of what this process commits meanwhile.
    async fn publishing<T>(&self, what: impl Future<Output = T>) -> T {
        let mut done = pin!(what);
        loop {
            tokio::select! {
                biased;
                done = &mut done => return done,
                () = self.lane.wake.notified() => self.lane.publish(),
            }
        }
    }

    /// Does the work. Returns false if the log holds more than one page of what was asked for.
    async fn work(&self, work: &Work) -> Result<bool> {
        let history = self.backend.history();
        match work.task {
            Task::Check { end } => {
                let found = self.backend.log_end(self.lane.log, Purpose::Read).await?;
                self.keep_up();
                note_end(&self.lane, &*self.backend, history, found.position);
                self.lane.checked(work.generation, end, &found);
                Ok(true)
            }
            Task::Read { after, to } => {
                let tail = LogTail {
                    log: self.lane.log,
                    after,
                    to,
                    limit: TAIL_EVENTS_MAX,
                };
                let page = LogTail {
                    limit: FILL_EVENTS_MAX,
                    ..tail
                };
                let rows = match self.is_behind {
                    true => self.backend.read_log(page.into()).await?,
                    false => self.backend.read_tail(tail).await?,
                };
                let complete = rows.complete;
                self.keep_up();
                if let Some(last) = rows.events.last() {
                    note_end(&self.lane, &*self.backend, history, last.position);
                }
                self.lane.filled(work.generation, after, to, rows);
                if !complete {
                    self.lane.unfinished(work);
                }
                Ok(complete)
            }
        }
    }
}

/// Notes that a read which began in this history has found the log to reach up to this position. If the history has
/// changed meanwhile, nobody can tell to which one the position belongs.
fn note_end(lane: &Lane, backend: &dyn Backend, begun_in: History, position: Position) {
    if backend.history() == begun_in {
        lane.note_end(KnownEnd {
            incarnation: begun_in.incarnation,
            position,
        });
    }
}

/// Looks at the ends of all logs, with one statement for each database, while anybody is subscribed: from time to time,
/// because a message of another process may have been lost, and when `look` says that one may.
pub(crate) async fn poll_ends(
    lanes: Vec<Arc<Lane>>,
    backend: Arc<dyn Backend>,
    interval: Duration,
    look: Arc<Notify>,
    closed: CancellationToken,
) {
    let polling = async {
        loop {
            tokio::time::sleep(POLL_MIN).await;
            tokio::select! {
                () = tokio::time::sleep(interval.saturating_sub(POLL_MIN)) => {}
                () = look.notified() => {}
            }
            let places: Vec<Option<(u64, Position)>> =
                lanes.iter().map(|lane| lane.place()).collect();
            if places.iter().any(Option::is_some) {
                tokio::select! {
                    () = look_at_ends(&lanes, &places, &*backend) => {}
                    // What this look has been told may be older than what was missed: the next one begins at once.
                    () = look.notified() => look.notify_one(),
                }
            }
        }
    };
    closed.run_until_cancelled(polling).await;
}

/// Looks at the ends of all logs.
async fn look_at_ends(
    lanes: &[Arc<Lane>],
    places: &[Option<(u64, Position)>],
    backend: &dyn Backend,
) {
    let begun_in = backend.history();
    let mut answers = backend.each_log_end(Purpose::Read);
    let mut is_known = vec![false; lanes.len()];
    let mut until = None;
    loop {
        let answer = match until {
            None => answers.next().await,
            Some(until) => timeout_at(until, answers.next()).await.unwrap_or_default(),
        };
        let Some((log, end)) = answer else { break };
        let at = usize::from(log.0);
        let (Some(lane), Some(place), Ok(end)) = (lanes.get(at), places.get(at), end) else {
            continue;
        };
        is_known[at] = true;
        until.get_or_insert_with(|| Instant::now() + OTHERS_WITHIN);
        lane.keep_up(backend.history().number);
        note_end(lane, backend, begun_in, end.position);
        if let Some((generation, asked_at)) = place {
            lane.checked(*generation, *asked_at, &end);
            lane.wake.notify_one();
        }
    }
    // Their readers look for themselves, and try again until they succeed.
    let unknown = lanes.iter().zip(is_known).filter(|(_, is_known)| !is_known);
    unknown.for_each(|(lane, _)| lane.doubt());
}

/// Tells the other processes up to where this one has committed since the call, also before the future is polled. At
/// most one message is in flight, it names the latest position, and messages are never more frequent than `interval`.
pub(crate) fn announce(
    lane: Arc<Lane>,
    backend: Arc<dyn Backend>,
    interval: Duration,
    closed: CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let mut announced = lane.announced.subscribe();
    let mut told = *announced.borrow_and_update();
    async move {
        loop {
            let changed = closed.run_until_cancelled(announced.changed()).await;
            let position = *announced.borrow_and_update();
            if position != told {
                told = position;
                let log = lane.log;
                backend
                    .send_signal(Signal::Appended { log, position })
                    .await;
            }
            // The sender lives in the lane, so only the hub's end ends this.
            let Some(Ok(())) = changed else { return };
            closed
                .run_until_cancelled(tokio::time::sleep(interval))
                .await;
        }
    }
}

/// Passes the messages of other processes on to the lanes, until the hub is closed. If messages may have been lost,
/// `look` is notified.
pub(crate) async fn listen(
    lanes: Vec<Arc<Lane>>,
    pages: Arc<Pages>,
    backend: Arc<dyn Backend>,
    look: Arc<Notify>,
    closed: CancellationToken,
) {
    let mut signals = backend.signals(Topic::Appends);
    while let Some(Some(signal)) = closed.run_until_cancelled(signals.next()).await {
        match signal {
            Signal::Appended { log, position } => {
                if let Some(lane) = lanes.get(usize::from(log.0)) {
                    lane.heard(position);
                }
            }
            Signal::Interrupted => {
                // A lane without a place will take one of an end that may be older than what was lost.
                let without_place = lanes.iter().filter(|lane| lane.place().is_none());
                without_place.for_each(|lane| lane.doubt());
                look.notify_one();
            }
            Signal::HistoryChanged => {
                let history = backend.history().number;
                lanes.iter().for_each(|lane| lane.keep_up(history));
                pages.forget();
            }
            // Not of this topic.
            Signal::GiveWay { .. } => {}
        }
    }
}
