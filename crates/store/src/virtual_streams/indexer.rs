//! The indexer: a task that looks at new events and writes the entries of virtual streams.
//!
//! Why a task: appends must not wait for entries, so an append does nothing for them but wake the task. It is woken by
//! commits of this process and by readers, never by time: an idle store costs nothing, and in a cluster the process
//! that appends does the work. Commits are answered late and together ([`Config::linger`]), readers at once.
//! Invariants: a page is written whole or not at all, after the one before it, by whichever process comes first; the
//! write finds out what another process has written meanwhile. So the task may be dropped at any point, and two of
//! them, in one process or in several, do no harm. What the task remembers is a hint: the database checks every page.
//! Not here: which entries an event has (`gesta_core::backend::IndexPage`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gesta_core::backend::{
    Backend, Batch, CommitObserver, EventLookup, IndexPage, IndexState, IndexWrite, Purpose,
    VirtualIndex,
};
use gesta_core::{BackOff, Error, LastingFault, LogId, Position, Result, warn_once};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// The log of a store that has virtual streams.
pub(crate) const LOG: LogId = LogId(0);
/// Shortest pause after a failure.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Number of misses in a row after which the task fails, and pauses.
const MISSES_MAX: u32 = 16;

/// Outcome of one page.
enum Step {
    /// Nothing more can be looked at for now.
    Done,
    /// The page is written, and there may be more.
    Written,
    /// What the task believed did not hold.
    Missed,
}

/// Bounds and times of virtual streams.
#[derive(Debug, Clone)]
pub struct Config {
    /// Largest number of events whose entries are written in one transaction.
    pub page_events_max: usize,
    /// Time between a commit and the writing of its entries, so that many commits share a transaction. A reader does
    /// not wait for that.
    pub linger: Duration,
    /// Longest time that a read waits until the entries of everything are written that was committed when it began.
    pub wait_max: Duration,
    /// Number of events that are not looked at yet, above which a read fails at once instead of waiting. There are so
    /// many after virtual streams were switched on, or when appends are faster. So readers do not pile up.
    pub backlog_max: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            page_events_max: 1_000,
            linger: Duration::from_millis(50),
            wait_max: Duration::from_secs(10),
            backlog_max: 100_000,
        }
    }
}

/// What the indexer has found out last.
#[derive(Clone, Debug, Default)]
struct Known {
    /// State of the index; `None` before the first look, and after it may have changed.
    state: Option<IndexState>,
    /// Position up to which the log had been looked at when that was found out last. Only people use it.
    at: Position,
    /// Error of the last attempt, if it failed.
    failure: Option<Error>,
    /// Number of attempts that failed.
    failures: u64,
}

/// Writes entries. Its task, the readers that wait for it, and the pipeline that wakes it share it.
pub(crate) struct Indexer {
    backend: Arc<dyn Backend>,
    pub(crate) index: Arc<dyn VirtualIndex>,
    pub(super) config: Config,
    known: watch::Sender<Known>,
    /// Wakes the task when there may be something to do.
    wake: Notify,
    /// Wakes the task when somebody waits for it.
    urgent: Notify,
    waiting: AtomicUsize,
    closed: CancellationToken,
}

impl Indexer {
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        index: Arc<dyn VirtualIndex>,
        config: Config,
    ) -> Self {
        Self {
            backend,
            index,
            config,
            known: watch::Sender::default(),
            wake: Notify::new(),
            urgent: Notify::new(),
            waiting: AtomicUsize::new(0),
            closed: CancellationToken::new(),
        }
    }

    /// Works until it is closed. The future may be dropped at any point.
    pub(crate) async fn run(self: Arc<Self>) {
        let closed = self.closed.clone();
        closed.run_until_cancelled(self.work()).await;
    }

    /// Returns the token that ends the task, and everything that waits for it, when it is cancelled.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    async fn work(&self) {
        let mut back_off = BackOff::new(PAUSE_MIN, PAUSE_MAX);
        let mut told = LastingFault::default();
        loop {
            self.wake.notified().await;
            if self.waiting.load(Ordering::Acquire) == 0 {
                // Cut short by the first who waits.
                let _ = tokio::time::timeout(self.config.linger, self.urgent.notified()).await;
            }
            while let Err(error) = self.catch_up().await {
                warn_once!(told, %error, "entries of virtual streams could not be written; trying again");
                self.known.send_modify(|known| {
                    known.state = None;
                    known.failure = Some(error);
                    known.failures += 1;
                });
                tokio::time::sleep(back_off.pause()).await;
            }
            back_off.reset();
            if told.ends() {
                tracing::info!("entries of virtual streams are written again");
            }
        }
    }

    /// Writes pages until there is nothing left to look at, or virtual streams are off.
    ///
    /// # Errors
    /// Those of the backend; `Unavailable` if other processes are faster again and again.
    ///
    /// # Cancel safety
    /// Dropping the future leaves each page stored whole or not at all.
    pub(super) async fn catch_up(&self) -> Result<()> {
        let mut missed = 0;
        loop {
            match self.write_page().await? {
                Step::Done => return Ok(()),
                Step::Written => missed = 0,
                Step::Missed => missed += 1,
            }
            if missed >= MISSES_MAX {
                return Err(Error::unavailable("others write them at the same time"));
            }
        }
    }

    async fn write_page(&self) -> Result<Step> {
        // What is remembered is of the history in which it was read.
        let history = self.backend.history();
        let known = self.known.borrow().state;
        let state = match known {
            Some(state) if state.on => state,
            _ => self.index.state().await?,
        };
        if !state.on {
            self.learn(state);
            return Ok(Step::Done);
        }
        let limit = self.config.page_events_max.max(1);
        let next = EventLookup::After {
            position: state.position,
            limit,
        };
        let events = self.backend.lookup(LOG, next, Purpose::Read).await?;
        if self.backend.history() != history {
            self.forget();
            return Ok(Step::Missed);
        }
        let Some(page) = IndexPage::of(state.position, &events) else {
            return self.look_again(known, state).await;
        };
        let through = page.through;
        if self.index.write(page).await? == IndexWrite::Missed {
            self.forget();
            return Ok(Step::Missed);
        }
        self.learn(IndexState {
            on: true,
            position: through,
        });
        Ok(if events.len() < limit {
            Step::Done
        } else {
            Step::Written
        })
    }

    /// Looks again, when nothing was found after what was believed to be the end of what was looked at.
    async fn look_again(&self, known: Option<IndexState>, state: IndexState) -> Result<Step> {
        let found = match known {
            // Another process may have switched them off, or the history may have changed.
            Some(_) => self.index.state().await?,
            None => state,
        };
        self.learn(found);
        Ok(if found == state {
            Step::Done
        } else {
            Step::Missed
        })
    }

    /// Remembers the state, and tells it to those who wait.
    pub(crate) fn learn(&self, state: IndexState) {
        self.known.send_modify(|known| {
            known.state = Some(state);
            known.at = state.position;
            known.failure = None;
        });
    }

    fn forget(&self) {
        self.known.send_modify(|known| known.state = None);
    }

    /// Returns true unless it is known that the log was not looked at up to `position`.
    pub(super) fn may_reach(&self, position: Position) -> bool {
        let known = self.known.borrow();
        known
            .state
            .is_none_or(|state| !state.on || state.position >= position)
    }

    /// Wakes the task, which then does not wait for further commits.
    pub(super) fn hurry(&self) {
        self.urgent.notify_one();
        self.wake.notify_one();
    }

    /// Waits until the log was looked at up to `position`, or until virtual streams are off. The answer is a hint: the
    /// reader asks the database next.
    ///
    /// # Errors
    /// `Unavailable` after [`Config::wait_max`], or when an attempt has failed meanwhile.
    pub(crate) async fn reach(&self, position: Position) -> Result<()> {
        let _waiting = Waiting::new(&self.waiting);
        let mut known = self.known.subscribe();
        let failures = known.borrow().failures;
        self.hurry();
        let reached = |known: &Known| {
            let state = known.state.as_ref();
            state.is_some_and(|state| !state.on || state.position >= position)
        };
        let waited = async {
            // The sender lives in `self`.
            let told = known.wait_for(|known| reached(known) || known.failures > failures);
            told.await.is_ok_and(|known| reached(&known))
        };
        let waited = tokio::time::timeout(self.config.wait_max, waited);
        match self.closed.run_until_cancelled(waited).await {
            Some(Ok(true)) => Ok(()),
            Some(_) => Err(self.not_up_to_date(position)),
            None => Err(Error::unavailable("the store was shut down")),
        }
    }

    /// Makes the error for a reader that has waited for entries which were not written in time.
    pub(super) fn not_up_to_date(&self, wanted: Position) -> Error {
        let known = self.known.borrow().clone();
        let at = known.at;
        let error = Error::unavailable(format!(
            "the virtual streams are not up to date: the log was looked at up to position {at}, and its end was {wanted}"
        ));
        match known.failure {
            Some(failure) => error.caused_by(failure),
            None => error,
        }
    }
}

impl CommitObserver for Indexer {
    fn committed(&self, _: &Arc<Batch>) {
        if self.known.borrow().state.is_none_or(|state| state.on) {
            self.wake.notify_one();
        }
    }

    fn read_log_end(&self, _: LogId) {
        self.wake.notify_one();
    }
}

/// Counts one reader that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
