//! What happens on a connection: requests in flight, bytes that arrive and leave, answers that wait for the client.
//!
//! Why a module of its own: the socket, the answers and the requests write it, and what watches the connection reads
//! it.
//! Not here: what follows from it (`edge`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// What happens on a connection. One task looks at it now and then.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Requests whose answer is not finished.
    pub(crate) in_flight: AtomicUsize,
    /// Requests so far.
    pub(crate) requests: AtomicUsize,
    /// Bytes that arrived while no request was in flight: the head of the next one.
    pub(crate) head_bytes: AtomicUsize,
    /// Bytes that the socket took.
    pub(crate) written: AtomicUsize,
    /// The client does not take what was written.
    pub(crate) blocked: AtomicBool,
    /// Answers that have more to give than the connection has room for.
    waiting: AtomicUsize,
    pub(crate) http2: AtomicBool,
    /// The server stops.
    ending: AtomicBool,
}

impl Activity {
    /// A request has arrived; it is over when the ticket is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> Running {
        self.in_flight.fetch_add(1, Relaxed);
        self.requests.fetch_add(1, Relaxed);
        self.head_bytes.store(0, Relaxed);
        Running {
            activity: self.clone(),
            waiting: false,
        }
    }

    /// Bytes that the socket took so far.
    pub(crate) fn written(&self) -> usize {
        self.written.load(Relaxed)
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.http2.load(Relaxed)
    }

    /// From now on each answer says that it is the last one of the connection.
    pub(crate) fn set_ending(&self) {
        self.ending.store(true, Relaxed);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }

    /// True while a request is in flight.
    pub(crate) fn is_running(&self) -> bool {
        self.in_flight.load(Relaxed) > 0
    }

    /// True if the client could have more than it takes.
    pub(crate) fn data_waits(&self) -> bool {
        self.blocked.load(Relaxed) || self.waiting.load(Relaxed) > 0
    }
}

/// A request that is not over yet.
#[derive(Debug)]
pub(crate) struct Running {
    activity: Arc<Activity>,
    waiting: bool,
}

impl Running {
    /// Tells whether the answer has more to give than the connection has room for.
    pub(crate) fn set_waiting(&mut self, waiting: bool) {
        match (self.waiting, waiting) {
            (false, true) => self.activity.waiting.fetch_add(1, Relaxed),
            (true, false) => self.activity.waiting.fetch_sub(1, Relaxed),
            _ => return,
        };
        self.waiting = waiting;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.set_waiting(false);
        self.activity.in_flight.fetch_sub(1, Relaxed);
    }
}
