//! What an owner sends without being asked, such as committed events: queues that never make the owner wait.
//!
//! Invariant: when something was left out, a gap is delivered before anything that was pushed after it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use gesta_core::LogId;
use tokio::sync::Notify;
use tokio_util::sync::DropGuard;

/// What a subscriber gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pushed {
    /// Something that the owner pushed.
    Body(Bytes),
    /// Something may have been left out before what comes next. It comes first, when the owner changes, when a link was
    /// broken, and when the subscriber was too slow. Whatever the owner pushes after the gap comes after it: who reads
    /// the log from where it stood misses nothing.
    Gap,
}

/// A bounded queue. When it is full, everything in it is dropped for a gap: who falls behind has to read the log
/// anyway, and the newest pushes are those that it does not have to read.
#[derive(Debug)]
pub(crate) struct PushQueue {
    bytes_max: usize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    bodies: VecDeque<Bytes>,
    bytes: usize,
    /// A gap goes before the bodies.
    has_gap: bool,
    is_closed: bool,
}

/// What a body takes beside its bytes.
const OVERHEAD_BYTES: usize = 64;

impl PushQueue {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, body: Bytes) {
        let bytes = body.len() + OVERHEAD_BYTES;
        self.change(|state| {
            if state.bytes + bytes > self.bytes_max {
                state.make_gap();
            }
            // A body that is larger than the queue is a part of the gap.
            if state.bytes + bytes <= self.bytes_max {
                state.bytes += bytes;
                state.bodies.push_back(body);
            }
        });
    }

    pub(crate) fn push_gap(&self) {
        self.change(State::make_gap);
    }

    pub(crate) fn close(&self) {
        self.change(|state| state.is_closed = true);
    }

    /// The next item; `None` once the queue is closed. For one reader. Cancel safe.
    pub(crate) async fn next(&self) -> Option<Pushed> {
        loop {
            {
                let mut state = self.lock();
                if state.is_closed {
                    return None;
                }
                if let Some(pushed) = state.take() {
                    return Some(pushed);
                }
            }
            self.changed.notified().await;
        }
    }
}

impl State {
    fn make_gap(&mut self) {
        self.bodies.clear();
        (self.bytes, self.has_gap) = (0, true);
    }

    fn take(&mut self) -> Option<Pushed> {
        if std::mem::take(&mut self.has_gap) {
            return Some(Pushed::Gap);
        }
        let body = self.bodies.pop_front()?;
        self.bytes -= body.len() + OVERHEAD_BYTES;
        Some(Pushed::Body(body))
    }
}

/// The queues of all subscribers of a node.
#[derive(Debug, Default)]
pub(crate) struct Subscribers(Mutex<HashMap<LogId, Vec<Weak<PushQueue>>>>);

impl Subscribers {
    /// A new subscriber. It begins with a gap: what was pushed before is left out.
    pub(crate) fn add(&self, log: LogId, bytes_max: usize) -> Arc<PushQueue> {
        let queue = Arc::new(PushQueue::new(bytes_max));
        queue.push_gap();
        let mut logs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = logs.entry(log).or_default();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        queue
    }

    pub(crate) fn push(&self, log: LogId, body: &Bytes) {
        let logs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = logs.get(&log).into_iter().flatten();
        for queue in queues.filter_map(Weak::upgrade) {
            queue.push(body.clone());
        }
    }
}

/// A subscription to what the owner of a log pushes. Dropping it ends it.
#[derive(Debug)]
pub struct Pushes {
    pub(crate) queue: Arc<PushQueue>,
    pub(crate) _ends: DropGuard,
}

impl Pushes {
    /// What comes next; `None` once the forwarder is shut down.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<Pushed> {
        self.queue.next().await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn taken(queue: &PushQueue) -> Vec<Pushed> {
        std::iter::from_fn(|| queue.next().now_or_never().flatten()).collect()
    }

    fn body(bytes: usize) -> Bytes {
        Bytes::from(vec![0; bytes])
    }

    #[test]
    fn a_full_queue_becomes_a_gap_before_the_newest() {
        let queue = PushQueue::new(2 * (OVERHEAD_BYTES + 10));
        queue.push(body(10));
        queue.push(body(9));
        assert_eq!(
            taken(&queue),
            [Pushed::Body(body(10)), Pushed::Body(body(9))]
        );
        (1..=3).for_each(|bytes| queue.push(body(bytes)));
        assert_eq!(taken(&queue), [Pushed::Gap, Pushed::Body(body(3))]);
        queue.push(body(1));
        queue.push(body(1_000));
        queue.push(body(2));
        assert_eq!(taken(&queue), [Pushed::Gap, Pushed::Body(body(2))]);
    }

    #[test]
    fn only_subscribers_of_the_log_get_what_is_pushed() {
        let subscribers = Subscribers::default();
        let (first, other) = (
            subscribers.add(LogId(1), 1_000),
            subscribers.add(LogId(2), 1_000),
        );
        subscribers.push(LogId(1), &body(1));
        assert_eq!(taken(&first), [Pushed::Gap, Pushed::Body(body(1))]);
        assert_eq!(taken(&other), [Pushed::Gap]);
        first.push(body(1));
        first.close();
        assert_eq!(taken(&first), []);
    }
}
