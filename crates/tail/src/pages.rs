//! Reads for subscribers that catch up, whose position lies before the ring.
//!
//! Why: a thousand subscribers that come back after a restart must neither take a thousand connections nor a thousand
//! pages of memory. So at most `reads_max` reads run at once, the size of a page shrinks as more subscribers catch up,
//! and unfiltered pages, which begin at aligned places, are shared. A page that several want is read with the first
//! turn that one of them gets, not in the line of the one who asked first; so is each further try after one that
//! failed. Invariants: a read runs in a task of its own, so a subscriber that stops asking for messages half way holds
//! no connection and no permit. A database that is away for a while ends no subscription: subscribers that catch up
//! wait for it, as live ones do.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{BoxFuture, Shared};
use gesta_core::backend::{Backend, LoadRequest, Loaded, LogSlice, Purpose, Rows, StreamSlice};
use gesta_core::shares::{self, Share, Shares};
use gesta_core::{BackOff, Direction, Error, Filter, LogId, Position, Result, SharedEvent};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Pauses after a read of the database has failed.
pub(crate) const RETRY: BackOff = BackOff::new(Duration::from_millis(50), Duration::from_secs(5));
/// Largest number of shared pages that are kept for other subscribers.
const CACHED_MAX: usize = 16;
/// Largest number of subscribers that catch up for whom pages are read ahead. The pages that they are sent and the ones
/// after those are kept then.
const AHEAD_SUBSCRIBERS_MAX: usize = CACHED_MAX / 2;
/// Smallest bound on the page of one subscriber, in bytes.
const PAGE_BYTES_MIN: usize = 64 * 1024;
/// Largest bound on the page of one subscriber, in bytes. One event may be larger.
const PAGE_BYTES_MAX: usize = 1024 * 1024;
/// Smallest bound on the number of events of a page.
const PAGE_EVENTS_MIN: u64 = 16;
/// Largest bound on the number of events of a page, a power of two.
pub(crate) const PAGE_EVENTS_MAX: u64 = 1_024;
/// Assumed size of an event as long as none was seen, in bytes.
const FIRST_GUESS_BYTES: u64 = 1_024;

/// A page for catching up: every event of a log after some position and up to `covered` that passes the filter.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) events: Vec<SharedEvent>,
    pub(crate) covered: Position,
}

#[derive(PartialEq, Eq, Clone, Copy)]
struct Key {
    log: LogId,
    /// Generation of the lane. In another generation the same positions hold other events.
    generation: u64,
    after: Position,
    to: Position,
}

/// Whether a page was asked for before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    First,
    Later,
}

/// What to do while the database does not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The read fails, because somebody waits for the answer.
    No,
    /// The read is tried again until it succeeds, or until the hub is closed.
    Yes,
}

/// A page that is being read, or was.
#[derive(Clone)]
struct Reading {
    page: Shared<BoxFuture<'static, Result<Arc<Page>>>>,
    wanted: Arc<Wanted>,
}

/// The turn that a read needs, of anybody who wants its page.
#[derive(Default)]
struct Wanted {
    /// Takes the turn with which the read begins, or is tried again; `None` while it needs none.
    turn: Mutex<Option<oneshot::Sender<Share>>>,
    /// Is notified when it needs one.
    again: Notify,
}

impl Wanted {
    /// Asks all who want the page for a turn.
    fn ask(&self) -> oneshot::Receiver<Share> {
        let (turn, given) = oneshot::channel();
        *self.lock() = Some(turn);
        self.again.notify_waiters();
        given
    }

    /// Gives a turn, unless none is needed any more: then it is given back.
    fn give(&self, turn: Share) {
        let wanted = self.lock().take();
        if let Some(wanted) = wanted {
            let _ = wanted.send(turn);
        }
    }

    /// Notes that the read has its turn.
    fn has_turn(&self) {
        *self.lock() = None;
    }

    fn is_open(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<oneshot::Sender<Share>>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    /// Waits for the page, in the line of the caller too. The read begins, and is tried again, with the first turn that
    /// anybody gets.
    async fn wait(self, reads: Arc<Shares>) -> Result<Arc<Page>> {
        let mut page = self.page;
        let holder = shares::current();
        loop {
            let mut again = pin!(self.wanted.again.notified());
            // Whoever asks from now on is heard.
            again.as_mut().enable();
            if self.wanted.is_open() {
                tokio::select! {
                    biased;
                    page = &mut page => return page,
                    turn = reads.turn(&holder) => self.wanted.give(turn),
                }
            } else {
                tokio::select! {
                    biased;
                    page = &mut page => return page,
                    () = again => {}
                }
            }
        }
    }
}

pub(crate) struct Pages {
    backend: Arc<dyn Backend>,
    /// Turns of the callers whose subscribers catch up.
    reads: Arc<Shares>,
    bytes_max: usize,
    /// Number of subscribers that catch up now.
    catching_up: AtomicUsize,
    /// Running mean of the size of events, in bytes.
    event_bytes: Arc<AtomicU64>,
    cached: Mutex<VecDeque<(Key, Reading)>>,
    closed: CancellationToken,
}

impl Pages {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        reads_max: usize,
        bytes_max: usize,
        closed: CancellationToken,
    ) -> Self {
        Self {
            backend,
            reads: Shares::of_few(reads_max),
            bytes_max,
            catching_up: AtomicUsize::new(0),
            event_bytes: Arc::new(AtomicU64::new(FIRST_GUESS_BYTES)),
            cached: Mutex::new(VecDeque::new()),
            closed,
        }
    }

    /// Counts a subscriber that begins to catch up, until the answer is dropped.
    pub(crate) fn begin_catch_up(self: &Arc<Self>) -> CatchUp {
        self.catching_up.fetch_add(1, Ordering::Relaxed);
        CatchUp {
            pages: Arc::clone(self),
        }
    }

    /// Returns the largest size of a page now, in bytes, and about how many events that is: a power of two.
    fn page_size(&self) -> (usize, u64) {
        let share = self.bytes_max / self.catching_up.load(Ordering::Relaxed).max(1);
        let bytes = share.clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        let each = self.event_bytes.load(Ordering::Relaxed).max(1);
        let events = (bytes as u64 / each).clamp(PAGE_EVENTS_MIN, PAGE_EVENTS_MAX);
        (bytes, 1 << events.ilog2())
    }

    /// Reads all events after `after`, up to `to` or to an earlier position. Begins to read the page after it too, so
    /// that the database works while the subscriber does.
    pub(crate) async fn all(
        &self,
        log: LogId,
        generation: u64,
        after: Position,
        to: Position,
    ) -> Result<Arc<Page>> {
        let (bytes, events) = self.page_size();
        // Aligned ends bring subscribers from different places onto the same pages.
        let end_after = |after: Position| Position((after.0 / events + 1).saturating_mul(events));
        let begin = |after, to| {
            let key = Key {
                log,
                generation,
                after,
                to,
            };
            let reading = self.cached_or(key, || {
                let slice = slice(log, after, to, Filter::ALL, events);
                let wanted = Arc::new(Wanted::default());
                let read = self.read_page(slice, bytes, Some(Arc::clone(&wanted)));
                Reading {
                    page: read.boxed().shared(),
                    wanted,
                }
            });
            (key, reading)
        };
        let (key, reading) = begin(after, end_after(after).min(to));
        let page = match reading {
            (reading, Turn::First) => reading.page.await,
            (reading, Turn::Later) => reading.wait(Arc::clone(&self.reads)).await,
        };
        match &page {
            Err(_) => self.lock().retain(|(cached, _)| *cached != key),
            Ok(page) => {
                let next = end_after(page.covered);
                if next <= to && self.catching_up.load(Ordering::Relaxed) <= AHEAD_SUBSCRIBERS_MAX {
                    // It is read by a task, and kept for whoever asks for it.
                    drop(begin(page.covered, next));
                }
            }
        }
        page
    }

    /// Reads the events after `after` that pass `filter`, up to `to` or to an earlier position.
    pub(crate) async fn matching(
        &self,
        log: LogId,
        after: Position,
        to: Position,
        filter: &Filter,
    ) -> Result<Arc<Page>> {
        let (bytes, events) = self.page_size();
        let to = to.min(after.plus(filter.scan_max()));
        self.read_page(slice(log, after, to, filter.clone(), events), bytes, None)
            .await
    }

    /// Reads events of one stream. This function sets the limit of the slice.
    pub(crate) async fn stream(&self, mut slice: StreamSlice) -> Result<Rows> {
        let (bytes, events) = self.page_size();
        slice.limit = usize::try_from(events).unwrap_or(usize::MAX);
        let backend = Arc::clone(&self.backend);
        let read = move || {
            let (backend, slice) = (Arc::clone(&backend), slice.clone());
            async move { backend.read_stream(slice).await }
        };
        let mut rows = self.run(Patience::Yes, None, read).await?;
        let mut used = 0;
        let fitting = rows.events.iter().take_while(|event| {
            used += event.cost_bytes();
            used <= bytes
        });
        let fitting = fitting.count().max(1);
        if fitting < rows.events.len() {
            rows.events.truncate(fitting);
            rows.complete = false;
        }
        Ok(rows)
    }

    /// Looks up streams and event types.
    pub(crate) async fn load(
        &self,
        log: LogId,
        request: LoadRequest,
        patience: Patience,
    ) -> Result<Loaded> {
        let backend = Arc::clone(&self.backend);
        let read = move || {
            let (backend, request) = (Arc::clone(&backend), request.clone());
            async move { backend.load(log, request, Purpose::Read).await }
        };
        self.run(patience, None, read).await
    }

    /// Drops the pages that are kept.
    pub(crate) fn forget(&self) {
        let forgotten = std::mem::take(&mut *self.lock());
        drop(forgotten);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(Key, Reading)>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the page of this key that is kept or being read, or begins to read it.
    fn cached_or(&self, key: Key, begin: impl FnOnce() -> Reading) -> (Reading, Turn) {
        let mut cached = self.lock();
        if let Some((_, reading)) = cached.iter().find(|(other, _)| *other == key) {
            return (reading.clone(), Turn::Later);
        }
        let reading = begin();
        cached.push_back((key, reading.clone()));
        let oldest = (cached.len() > CACHED_MAX).then(|| cached.pop_front());
        drop(cached);
        drop(oldest);
        (reading, Turn::First)
    }

    fn read_page(
        &self,
        slice: LogSlice,
        bytes_max: usize,
        wanted: Option<Arc<Wanted>>,
    ) -> impl Future<Output = Result<Arc<Page>>> + Send + 'static {
        let backend = Arc::clone(&self.backend);
        let event_bytes = Arc::clone(&self.event_bytes);
        let (after, to) = (slice.after, slice.to);
        let rows = self.run(Patience::Yes, wanted, move || {
            let (backend, slice) = (Arc::clone(&backend), slice.clone());
            async move { backend.read_log(slice).await }
        });
        async move {
            let page = page_of(rows.await?, after, to, bytes_max, &event_bytes);
            Ok(Arc::new(page))
        }
    }

    /// Runs a read in a task of its own, when its turn comes, or when somebody who wants it too gives it one. Dropping
    /// the future ends the task.
    fn run<T: Send + 'static, R: Future<Output = Result<T>> + Send>(
        &self,
        patience: Patience,
        wanted: Option<Arc<Wanted>>,
        read: impl Fn() -> R + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send + 'static {
        let (reads, closed) = (Arc::clone(&self.reads), self.closed.clone());
        let holder = shares::current();
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut retry = RETRY;
            loop {
                let found = {
                    let turn = own_or_given(reads.turn(&holder), wanted.as_deref()).await;
                    shares::act(turn.holder(), read()).await
                };
                match found {
                    Err(error)
                        if patience == Patience::Yes
                            && error.is_retryable()
                            && !closed.is_cancelled() =>
                    {
                        tracing::debug!(%error, "a subscriber waits for the database");
                        let pause = tokio::time::sleep(retry.pause());
                        closed.run_until_cancelled(pause).await;
                    }
                    found => return found,
                }
            }
        }));
        async move {
            task.await.unwrap_or_else(|error| {
                Err(Error::unavailable("a read ended early").caused_by(error))
            })
        }
    }
}

/// Waits for the turn of one's own line, or for one that is given by somebody else.
async fn own_or_given(own: impl Future<Output = Share>, wanted: Option<&Wanted>) -> Share {
    let Some(wanted) = wanted else {
        return own.await;
    };
    let given = wanted.ask();
    let mut own = pin!(own);
    let turn = tokio::select! {
        biased;
        turn = &mut own => turn,
        Ok(turn) = given => turn,
    };
    wanted.has_turn();
    turn
}

fn slice(log: LogId, after: Position, to: Position, filter: Filter, events: u64) -> LogSlice {
    LogSlice {
        log,
        after,
        to,
        direction: Direction::Forwards,
        filter,
        limit: usize::try_from(events).unwrap_or(usize::MAX),
    }
}

/// Keeps the events that fit, at least one, and updates the mean size of events.
fn page_of(
    rows: Rows,
    after: Position,
    to: Position,
    bytes_max: usize,
    event_bytes: &AtomicU64,
) -> Page {
    let found = rows.events.len();
    let mut used = 0;
    let mut events: Vec<SharedEvent> = Vec::with_capacity(found);
    for event in rows.events {
        let event = Arc::new(event);
        used += event.cost_bytes();
        if used > bytes_max && !events.is_empty() {
            break;
        }
        events.push(event);
    }
    if !events.is_empty() {
        let seen = (used / events.len()) as u64;
        let known = event_bytes.load(Ordering::Relaxed);
        event_bytes.store((known + seen) / 2, Ordering::Relaxed);
    }
    let whole = rows.complete && events.len() == found;
    let last = events.last().map_or(after, |event| event.position);
    Page {
        covered: if whole { to } else { last },
        events,
    }
}

/// Counts one subscriber that catches up, until it is dropped.
pub(crate) struct CatchUp {
    pages: Arc<Pages>,
}

impl Drop for CatchUp {
    fn drop(&mut self) {
        self.pages.catching_up.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use gesta_core::shares::Holder;

    use super::*;
    use crate::testing::tagged;

    /// What happened: a page that several wanted waited in the line of the caller who had asked first, who may wait
    /// long, or did so after the first try had failed. Goal: each try begins with the first turn that any of them gets.
    #[tokio::test]
    async fn a_shared_page_is_read_in_the_line_of_whoever_comes_first() {
        let reads = Shares::of_few(2);
        let [busy, other] = ["busy", "other"].map(|name| Holder::User(name.into()));
        let turn = || reads.turn(&busy).now_or_never();
        let _held = turn().expect("free");
        assert!(turn().is_none(), "one is left for others");
        let wanted = Arc::new(Wanted::default());
        let (lines, first, asks) = (Arc::clone(&reads), busy.clone(), Arc::clone(&wanted));
        let page = async move {
            // The second time the read is tried again: then too, the other one gives a turn.
            for _ in 0..2 {
                let turn = own_or_given(lines.turn(&first), Some(&*asks)).await;
                assert_eq!(*turn.holder(), Holder::User("other".into()));
                drop(turn);
                assert!(!asks.is_open(), "the read has its turn");
                tokio::task::yield_now().await;
            }
            let (events, covered) = (Vec::new(), Position(7));
            Ok(Arc::new(Page { events, covered }))
        };
        let reading = Reading {
            page: page.boxed().shared(),
            wanted,
        };
        assert!(reading.page.clone().now_or_never().is_none());
        let later = shares::act(&other, reading.wait(Arc::clone(&reads)));
        let page = tokio::time::timeout(Duration::from_secs(60), later).await;
        let page = page.expect("its turn").expect("read");
        assert_eq!(page.covered, Position(7));
        assert_eq!((reads.taken(), reads.load().waiting), (1, 0));
    }

    /// Tags were free of charge: a page of events with small data could hold many times its bytes.
    #[test]
    fn tags_count_against_the_bytes_of_a_page() {
        let rows = Rows {
            events: (1..=100).map(|p| Arc::unwrap_or_clone(tagged(p))).collect(),
            complete: true,
            last_writer: None,
        };
        let event_bytes = AtomicU64::new(0);
        let page = page_of(rows, Position(0), Position(100), 100_000, &event_bytes);
        assert!(
            (8..=12).contains(&page.events.len()),
            "{}",
            page.events.len()
        );
        assert_eq!(page.covered, Position(page.events.len() as u64));
        assert!(event_bytes.into_inner() > 4_096, "the size is learnt");
    }
}
