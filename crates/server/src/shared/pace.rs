//! The pace of what is made for one caller at length: the parts of an answer that is made on the way, and what
//! subscriptions get.
//!
//! Why: a caller who reads everything on many connections at once has as many tasks that always have something to do,
//! and a short call of somebody else waits behind all of them each time that it has to wait for anything. So the tasks
//! of one caller stand in a line of their own, and in each round of the runtime a few of them make one part: as many as
//! there are processors but one. A round ends when every other task that could do something has been given the chance.
//! So nothing is slower while the server has time, and nobody holds anything while a client is slow.
//! Invariants: whoever waits is let go on in the order of the line, after at most as many rounds as others stand before
//! it; a line that nobody stands in costs nothing.
//! Not here: how much one caller may have at once (`gate`), and answers that are whole.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use gesta_core::shares::Holder;

/// The lines of all callers.
#[derive(Debug)]
pub(crate) struct Paces {
    lines: Mutex<HashMap<Holder, Weak<Line>>>,
    in_a_round: usize,
}

/// The line of one caller.
#[derive(Debug)]
struct Line {
    in_a_round: usize,
    state: Mutex<LineState>,
}

#[derive(Debug, Default)]
struct LineState {
    /// How many were let go on in this round.
    gone_on: usize,
    waiting: VecDeque<Arc<Waiting>>,
    /// True while a task ends the rounds of this line.
    is_watched: bool,
}

/// An answer that stands in the line.
#[derive(Debug, Default)]
struct Waiting {
    goes_on: AtomicBool,
    waker: AtomicWaker,
}

/// The place of one answer in the line of its caller.
#[derive(Debug)]
pub(crate) struct Paced {
    line: Arc<Line>,
    waiting: Option<Arc<Waiting>>,
}

impl Default for Paces {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            lines: Mutex::default(),
            in_a_round: (processors - 1).max(1),
        }
    }
}

impl Paces {
    /// Returns a place in the line of a caller; `None` for callers who are not told apart.
    pub(crate) fn of(&self, holder: &Holder) -> Option<Paced> {
        if *holder == Holder::Everybody {
            return None;
        }
        let mut lines = lock(&self.lines);
        let line = lines.get(holder).and_then(Weak::upgrade);
        let line = line.unwrap_or_else(|| {
            if lines.len() == lines.capacity() {
                lines.retain(|_, line| line.strong_count() > 0);
            }
            let line = Arc::new(Line {
                in_a_round: self.in_a_round,
                state: Mutex::default(),
            });
            lines.insert(holder.clone(), Arc::downgrade(&line));
            line
        });
        Some(Paced {
            line,
            waiting: None,
        })
    }
}

impl Paced {
    /// Waits until one part may be made.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(waiting) = &self.waiting else {
            return self.begin(cx);
        };
        waiting.waker.register(cx.waker());
        if waiting.goes_on.load(Ordering::Acquire) {
            self.waiting = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.line.state);
        if !std::mem::replace(&mut state.is_watched, true) {
            tokio::spawn(end_rounds(Arc::clone(&self.line)));
        }
        if state.waiting.is_empty() && state.gone_on < self.line.in_a_round {
            state.gone_on += 1;
            return Poll::Ready(());
        }
        let waiting = Arc::new(Waiting::default());
        waiting.waker.register(cx.waker());
        state.waiting.push_back(Arc::clone(&waiting));
        drop(state);
        self.waiting = Some(waiting);
        Poll::Pending
    }
}

impl Drop for Paced {
    /// Leaves the line, so that it holds nobody who is gone.
    fn drop(&mut self) {
        if let Some(gone) = self.waiting.take() {
            let mut state = lock(&self.line.state);
            state.waiting.retain(|waiting| !Arc::ptr_eq(waiting, &gone));
        }
    }
}

/// Ends the rounds of a line, and lets the next ones go on in each, until a round in which nobody wanted to.
async fn end_rounds(line: Arc<Line>) {
    loop {
        // It goes on when the other tasks have been given the chance.
        tokio::task::yield_now().await;
        let mut state = lock(&line.state);
        if state.gone_on == 0 && state.waiting.is_empty() {
            state.is_watched = false;
            return;
        }
        let next = state.waiting.len().min(line.in_a_round);
        state.gone_on = next;
        let next: Vec<_> = state.waiting.drain(..next).collect();
        drop(state);
        for waiting in next {
            waiting.goes_on.store(true, Ordering::Release);
            waiting.waker.wake();
        }
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn paces(in_a_round: usize) -> Paces {
        Paces {
            in_a_round,
            ..Paces::default()
        }
    }

    fn holder(name: &str) -> Holder {
        Holder::User(name.into())
    }

    /// Makes `parts` parts one after the other, and notes each in `made`.
    async fn make(mut paced: Paced, parts: usize, name: &'static str, made: Made) {
        for _ in 0..parts {
            poll_fn(|cx| paced.poll(cx)).await;
            lock(&made).push(name);
        }
    }

    type Made = Arc<Mutex<Vec<&'static str>>>;

    /// Goal: however many answers are made for one caller, another one gets a part for each of theirs.
    #[tokio::test]
    async fn callers_make_parts_by_turns() {
        let (paces, made) = (paces(1), Made::default());
        let mut tasks = Vec::new();
        for _ in 0..100 {
            let paced = paces.of(&holder("many")).expect("is paced");
            tasks.push(tokio::spawn(make(paced, 10, "many", made.clone())));
        }
        let paced = paces.of(&holder("one")).expect("is paced");
        tasks.push(tokio::spawn(make(paced, 10, "one", made.clone())));
        for task in tasks {
            task.await.expect("it ends");
        }
        let made = lock(&made);
        assert_eq!(made.len(), 1_010);
        let last_of_one = made.iter().rposition(|name| *name == "one");
        // A round may begin with either.
        assert!(last_of_one.expect("it made some") < 24, "{made:?}");
    }

    /// Goal: a task that is ready anyhow waits behind a few parts of another caller, and not behind all.
    #[tokio::test]
    async fn others_wait_behind_few_parts() {
        let (paces, made) = (paces(1), Made::default());
        let mut tasks = Vec::new();
        for _ in 0..100 {
            let paced = paces.of(&holder("many")).expect("is paced");
            tasks.push(tokio::spawn(make(paced, 10, "many", made.clone())));
        }
        let noted = made.clone();
        let short = tokio::spawn(async move {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            lock(&noted).len()
        });
        let made_before = short.await.expect("it ends");
        assert!(
            made_before < 24,
            "{made_before} parts were made before ten short steps"
        );
        for task in tasks {
            task.await.expect("it ends");
        }
        assert_eq!(lock(&made).len(), 1_000);
    }

    /// Goal: whoever goes while they wait does not stop those behind them, and lines of callers who are gone are
    /// forgotten.
    #[tokio::test]
    async fn who_goes_stops_nobody() {
        let paces = paces(1);
        let mut first = paces.of(&holder("a")).expect("is paced");
        let mut second = paces.of(&holder("a")).expect("is paced");
        let third = paces.of(&holder("a")).expect("is paced");
        poll_fn(|cx| first.poll(cx)).await;
        let is_pending = poll_fn(|cx| Poll::Ready(second.poll(cx).is_pending())).await;
        assert!(is_pending, "one goes on in a round");
        drop(second);
        make(third, 1, "third", Made::default()).await;
        drop(first);
        for number in 0..10_000 {
            paces.of(&holder(&number.to_string())).expect("is paced");
        }
        assert!(lock(&paces.lines).capacity() < 100);
        assert!(paces.of(&Holder::Everybody).is_none());
    }
}
