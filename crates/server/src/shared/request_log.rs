//! The lines of the log that tell of requests: each request, if the log is asked for them (`gesta::request=debug`), and
//! slow ones always.
//!
//! Why slow ones are told one a second at most ([`LinePace`]): when a database stands still, every request is slow.
//! Invariant: a line has neither payload nor secret; of an address it has the path, without the parameters.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gesta_core::shares::Holder;
use gesta_wire::shortened;
use hyper::header::HeaderMap;
use tokio::time::Instant;

/// Name of the header by which clients and proxies name a request.
const ID: &str = "x-request-id";
/// Longest id and longest path in a line, in bytes.
const ID_BYTES_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 300;
/// Shortest time between two lines about slow requests.
const PAUSE: Duration = Duration::from_secs(1);

/// A request that was answered.
pub(crate) struct Answered<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) status: u16,
    pub(crate) took: Duration,
    pub(crate) from: IpAddr,
    pub(crate) holder: Option<&'a Holder>,
    /// True if the request is known to take long, such as a copy of the store.
    pub(crate) may_last: bool,
}

/// Tells the log about requests.
#[derive(Debug)]
pub(crate) struct RequestLog {
    slow: Duration,
    pace: LinePace,
}

/// Lets one line a second through, and counts those that do not come through.
#[derive(Debug)]
pub(crate) struct LinePace {
    begun: Instant,
    /// When there may be a line next, in milliseconds since `begun`.
    next: AtomicU64,
    /// Number of lines that were left out since the last one.
    untold: AtomicU64,
}

impl RequestLog {
    /// Makes a log in which requests are slow from this time on.
    pub(crate) fn new(slow: Duration) -> Self {
        Self {
            slow,
            pace: LinePace::begin(),
        }
    }

    /// Tells of a request whose answer begins now.
    pub(crate) fn answered(&self, request: &Answered<'_>) {
        if tracing::enabled!(target: "gesta::request", tracing::Level::DEBUG) {
            let line = Line::of(request);
            tracing::debug!(
                target: "gesta::request",
                method = request.method,
                path = %line.path,
                status = request.status,
                ms = line.ms,
                from = %request.from,
                user = line.user,
                id = %line.id,
                "request"
            );
        }
        if request.took < self.slow || request.may_last {
            return;
        }
        let Some(others) = self.pace.turn(Instant::now()) else {
            return;
        };
        let line = Line::of(request);
        tracing::warn!(
            target: "gesta::request",
            method = request.method,
            path = %line.path,
            status = request.status,
            ms = line.ms,
            from = %request.from,
            user = line.user,
            id = %line.id,
            others,
            "slow request"
        );
    }
}

impl LinePace {
    /// Begins now. The first line comes through.
    pub(crate) fn begin() -> Self {
        Self {
            begun: Instant::now(),
            next: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// Returns how many lines were left out since the last one, if there may be another one now.
    pub(crate) fn turn(&self, now: Instant) -> Option<u64> {
        let now = millis(now.duration_since(self.begun));
        let next = self.next.load(Ordering::Relaxed);
        let after = now.saturating_add(millis(PAUSE));
        let is_mine = now >= next
            && self
                .next
                .compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_mine {
            return Some(self.untold.swap(0, Ordering::Relaxed));
        }
        self.untold.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// What a line shows.
struct Line<'a> {
    path: String,
    ms: u64,
    user: &'a str,
    id: String,
}

impl<'a> Line<'a> {
    fn of(request: &Answered<'a>) -> Self {
        let id = request.headers.get(ID).map_or(&b""[..], |id| id.as_bytes());
        let id = String::from_utf8_lossy(id);
        Self {
            path: gesta_core::printable(&shortened(request.path, PATH_BYTES_MAX)).into_owned(),
            ms: millis(request.took),
            user: match request.holder {
                Some(Holder::User(user)) => user,
                _ => "",
            },
            id: gesta_core::printable(&shortened(&id, ID_BYTES_MAX)).into_owned(),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: however many requests are slow at once, one line a second tells of them, and how many there were.
    #[test]
    fn slow_requests_are_told_one_a_second() {
        let log = LinePace::begin();
        let start = log.begun;
        assert_eq!(log.turn(start), Some(0));
        for _ in 0..7 {
            assert_eq!(log.turn(start + PAUSE / 2), None);
        }
        assert_eq!(log.turn(start + PAUSE), Some(7));
        assert_eq!(log.turn(start + PAUSE * 9), Some(0));
    }

    /// Goal: nobody hides what the log says by an address. A line break cannot come in one.
    #[test]
    fn paths_have_no_unprintable_characters() {
        let headers = HeaderMap::new();
        let request = Answered {
            method: "GET",
            path: "/streams/a\u{2028}b\u{1b}[2Jc",
            headers: &headers,
            status: 404,
            took: Duration::ZERO,
            from: [127, 0, 0, 1].into(),
            holder: None,
            may_last: false,
        };
        let path = Line::of(&request).path;
        assert!(
            path.chars().all(|c| !c.is_control() && c != '\u{2028}'),
            "{path:?}"
        );
        assert!(
            path.starts_with("/streams/a") && path.ends_with('c'),
            "{path:?}"
        );
    }
}
