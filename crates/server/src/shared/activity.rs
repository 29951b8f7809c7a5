//! What happens on a connection: requests in flight, bytes that arrive and leave, answers that wait for the client.
//!
//! Why this is a module of its own: the socket, the answers and the requests write it, and the task that watches the
//! connection reads it.
//! Not here: what follows from it (`edge`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::shared::gate::{GaveWay, Ticket};
use crate::shared::problem::Problem;

/// Requests in flight on an HTTP/2 connection beyond which it is closed, if there is no room any more for answers that
/// nobody takes. A client with an account may have sent many at once, which are refused at once.
pub(crate) const CROWDED_MAX: usize = 4_096;
/// The same for callers of whom nobody knows who they are.
pub(crate) const CROWDED_BY_STRANGERS_MAX: usize = 100;

/// What happens on a connection. One task reads it from time to time.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Number of requests whose answer is not finished.
    pub(crate) in_flight: AtomicUsize,
    /// Number of requests since the connection began.
    pub(crate) requests: AtomicUsize,
    /// Number of bytes that arrived since the last request while no request was in flight: they belong to the head of
    /// the next request.
    pub(crate) head_bytes: AtomicUsize,
    /// Number of bytes that the socket has taken.
    pub(crate) written: AtomicUsize,
    /// True while the socket takes nothing, because the client does not take what was written.
    pub(crate) blocked: AtomicBool,
    /// Number of answers that have more data than the connection has room for.
    waiting: AtomicUsize,
    pub(crate) http2: AtomicBool,
    /// True once an answer on the connection holds bytes as they are stored.
    verbatim: AtomicBool,
    /// True once the server stops.
    ending: AtomicBool,
    /// Number of requests in flight that the connection may have. The client keeps further ones to itself.
    in_flight_max: usize,
    /// Number of connections of the server that have as many.
    full: Arc<AtomicUsize>,
    /// Is cancelled when the connection is to be closed at once.
    abandoned: CancellationToken,
    /// Is cancelled when the connection gives up its place: what has no end on it ends.
    giving_way: CancellationToken,
    /// The place of the connection.
    place: Mutex<Option<Ticket>>,
    /// True once somebody on the connection has proved who they are.
    proved: AtomicBool,
}

impl Activity {
    /// Makes the activity of a connection that has this place, and may have this number of requests in flight. It
    /// counts in `full` while it has as many.
    pub(crate) fn bounded(in_flight_max: usize, full: Arc<AtomicUsize>, place: Ticket) -> Self {
        Self {
            in_flight_max,
            full,
            place: Mutex::new(Some(place)),
            ..Self::default()
        }
    }

    /// Counts a request that has arrived. It counts as in flight until the return value is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> Running {
        if self.in_flight.fetch_add(1, Relaxed) + 1 == self.in_flight_max {
            self.full.fetch_add(1, Relaxed);
        }
        self.requests.fetch_add(1, Relaxed);
        self.head_bytes.store(0, Relaxed);
        Running {
            activity: self.clone(),
            waiting: false,
        }
    }

    /// Returns how many bytes the socket has taken so far.
    pub(crate) fn written(&self) -> usize {
        self.written.load(Relaxed)
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.http2.load(Relaxed)
    }

    /// Notes that an answer holds bytes as they are stored, which may look like anything, such as an answer of its own.
    pub(crate) fn set_verbatim(&self) {
        self.verbatim.store(true, Relaxed);
    }

    pub(crate) fn is_verbatim(&self) -> bool {
        self.verbatim.load(Relaxed)
    }

    /// Makes each further answer say that it is the last one of the connection.
    pub(crate) fn set_ending(&self) {
        self.ending.store(true, Relaxed);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }

    /// Gives up a connection with more than this number of requests in flight, whose client does not take the answers
    /// that say that the server takes no more. Returns true if that is so.
    pub(crate) fn abandon_beyond(&self, in_flight_max: usize) -> bool {
        let is_crowded = self.is_crowded(in_flight_max);
        if is_crowded {
            self.abandoned.cancel();
        }
        is_crowded
    }

    /// Returns true if the connection has more than this number of requests in flight.
    pub(crate) fn is_crowded(&self, in_flight_max: usize) -> bool {
        self.in_flight.load(Relaxed) > in_flight_max
    }

    /// Notes that the connection gives up its place.
    pub(crate) fn give_way(&self) {
        self.giving_way.cancel();
    }

    /// Is cancelled when the connection gives up its place.
    pub(crate) fn giving_way(&self) -> &CancellationToken {
        &self.giving_way
    }

    /// Waits until the connection gives up its place: then what has no end on it is to end, with this problem.
    pub(crate) fn gave_way(&self) -> GaveWay {
        let giving_way = self.giving_way.clone().cancelled_owned();
        giving_way.map(|()| of_connection()).boxed()
    }

    /// Notes that somebody on the connection has proved who they are. From then on it gives way to few strangers.
    pub(crate) fn prove(&self) {
        if !self.proved.swap(true, Relaxed) {
            let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(place) = &mut *place {
                place.prove();
            }
        }
    }

    /// Waits until the connection was given up.
    pub(crate) async fn abandoned(&self) {
        self.abandoned.cancelled().await;
    }

    /// Returns true if the connection has as many requests in flight as it may have.
    pub(crate) fn is_full(&self) -> bool {
        self.in_flight.load(Relaxed) == self.in_flight_max
    }

    /// Returns true while a request is in flight.
    pub(crate) fn is_running(&self) -> bool {
        self.in_flight.load(Relaxed) > 0
    }

    /// Returns true if the client could have more data than it takes.
    pub(crate) fn data_waits(&self) -> bool {
        self.blocked.load(Relaxed) || self.waiting.load(Relaxed) > 0
    }
}

/// Makes the problem with which a subscription ends because its connection gives up its place.
fn of_connection() -> Problem {
    Problem::overloaded(
        "all connections were taken when another address with fewer of them asked for one, and the address of this one, which had most, gave up the newest of its connections: have fewer at once, or subscribe again later",
    )
}

/// A request that is in flight. Dropping it ends the count.
#[derive(Debug)]
pub(crate) struct Running {
    activity: Arc<Activity>,
    waiting: bool,
}

impl Running {
    /// Notes whether the answer has more data than the connection has room for.
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
        let activity = &self.activity;
        if activity.in_flight.fetch_sub(1, Relaxed) == activity.in_flight_max {
            activity.full.fetch_sub(1, Relaxed);
        }
    }
}
