//! The socket side of a connection. It sees what arrives and leaves, so that one slow timer per connection can find
//! connections that stall; and it gives a document to HTTP errors that hyper answers itself.
//!
//! Why there is no timer per request: at tens of thousands of requests a second it would cost more than it guards.
//! Why answers are substituted: hyper answers a request that is not valid HTTP with an empty 400, 414 or 431, to which
//! nothing can be added, but every error of this API is a problem document (`docs/decisions/0029`). Invariant: nothing
//! that a user has stored is taken for such an answer.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::config::Config;
use crate::shared::activity::Activity;
use crate::shared::body::Reservation;
use crate::shared::problem::{HEAD_TOO_LARGE, MALFORMED_REQUEST, Problem, URI_TOO_LONG};

/// First bytes of an HTTP/2 connection.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2";

/// What is to be done with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchVerdict {
    Keep,
    /// The connection has been idle for long. It takes no further request.
    Drain,
    /// The connection stalls in the middle of a request or an answer. It is closed.
    Close,
}

/// What the repeated looks at a connection remember.
#[derive(Debug)]
pub(crate) struct Watch {
    activity: Arc<Activity>,
    requests: usize,
    written: usize,
    idle_since: Instant,
    head_since: Option<Instant>,
    blocked_since: Option<Instant>,
    measured: Option<Measured>,
}

/// A time during which data waited for the client all the time.
#[derive(Debug)]
struct Measured {
    since: Instant,
    /// Number of bytes that the client had taken when the time began. In the first such time, bytes that the socket may
    /// hold unsent count as taken.
    written: usize,
    unsent: usize,
}

impl Watch {
    pub(crate) fn new(activity: Arc<Activity>, now: Instant) -> Self {
        Self {
            activity,
            requests: 0,
            written: 0,
            idle_since: now,
            head_since: None,
            blocked_since: None,
            measured: None,
        }
    }

    /// Returns the time between two looks.
    pub(crate) fn interval(config: &Config) -> Duration {
        let shortest = config
            .head_read_max
            .min(config.write_stall_max)
            .min(config.slow_reader_window)
            .min(config.idle_max);
        (shortest / 4).max(Duration::from_millis(10))
    }

    pub(crate) fn look(&mut self, config: &Config, now: Instant) -> WatchVerdict {
        let seen = self.activity.clone();
        let (written, waits) = (seen.written(), seen.data_waits());
        if !waits || written != self.written {
            self.blocked_since = None;
        }
        self.written = written;
        if waits {
            let since = *self.blocked_since.get_or_insert(now);
            if now - since >= config.write_stall_max || self.is_slow(config, now) {
                return WatchVerdict::Close;
            }
        } else {
            self.measured = None;
        }
        let requests = seen.requests.load(Relaxed);
        if seen.in_flight.load(Relaxed) > 0 || requests != self.requests {
            self.requests = requests;
            self.idle_since = now;
            self.head_since = None;
            return WatchVerdict::Keep;
        }
        let in_head = seen.head_bytes.load(Relaxed) > 0 && !seen.http2.load(Relaxed);
        if in_head {
            let since = *self.head_since.get_or_insert(now);
            if now - since >= config.head_read_max {
                return WatchVerdict::Close;
            }
        } else if now - self.idle_since >= config.idle_max {
            return WatchVerdict::Drain;
        }
        WatchVerdict::Keep
    }
}

impl Watch {
    /// Returns true if the client took too little over the last window, in which data waited for it all the time.
    fn is_slow(&mut self, config: &Config, now: Instant) -> bool {
        let written = self.written;
        let measured = self.measured.get_or_insert(Measured {
            since: now,
            written,
            unsent: UNSENT_BYTES_MAX,
        });
        let time = now - measured.since;
        if time < config.slow_reader_window {
            return false;
        }
        let taken = written.wrapping_sub(measured.written) + measured.unsent;
        let wanted = u128::from(config.slow_reader_bytes_per_second) * time.as_millis() / 1_000;
        *measured = Measured {
            since: now,
            written,
            unsent: 0,
        };
        (taken as u128) < wanted
    }
}

/// About how many bytes a socket may hold unsent. The other bytes are being sent or were taken.
const UNSENT_BYTES_MAX: usize = 96 * 1024;
/// How long a client leaves the socket full until it counts as slow.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// Number of bytes that a slow client is given at once, so that its progress is seen.
const SLOW_WRITE_BYTES: usize = 16 * 1024;

/// A socket that reports to an [`Activity`].
#[derive(Debug)]
pub(crate) struct Edge<S> {
    socket: S,
    activity: Arc<Activity>,
    /// A problem answer that takes the place of an empty one and must be sent first.
    substitute: Bytes,
    begun: bool,
    /// Time since which the client takes nothing.
    full_since: Option<Instant>,
    slow: bool,
    /// Bytes that a long head holds until it is whole.
    head: Option<Reservation>,
}

impl<S> Edge<S> {
    pub(crate) fn new(socket: S, activity: Arc<Activity>) -> Self {
        Self {
            socket,
            activity,
            substitute: Bytes::new(),
            begun: false,
            full_since: None,
            slow: false,
            head: None,
        }
    }

    /// Counts heads that are longer than [`HEAD_BYTES_FREE`] in this reservation. For whom there is no room the
    /// connection fails.
    pub(crate) fn counting(self, heads: Reservation) -> Self {
        Self {
            head: Some(heads),
            ..self
        }
    }

    /// Counts the bytes of a head that is not whole yet.
    fn count_head(&mut self, bytes: usize) -> io::Result<()> {
        let Some(head) = &mut self.head else {
            return Ok(());
        };
        let counted = match bytes > HEAD_BYTES_FREE {
            true => bytes,
            false => 0,
        };
        let held = head.set(counted);
        held.map_err(|problem| io::Error::other(problem.detail.clone()))
    }
}

/// Bytes of the head of a request that are not counted. Nearly all heads are shorter.
const HEAD_BYTES_FREE: usize = 16 * 1024;

impl<S: AsyncRead + Unpin> AsyncRead for Edge<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // What came before and was no whole head yet waits for its rest. (What comes now may be the rest, and a body.)
        let in_head = self.activity.in_flight.load(Relaxed) == 0;
        let waiting = match in_head && !self.activity.http2.load(Relaxed) {
            true => self.activity.head_bytes.load(Relaxed),
            false => 0,
        };
        self.count_head(waiting)?;
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
        let new = &buf.filled()[before..];
        if !self.begun && !new.is_empty() {
            self.begun = true;
            let http2 = new.len() >= 3 && HTTP2_PREFACE.starts_with(&new[..new.len().min(12)]);
            self.activity.http2.store(http2, Relaxed);
        }
        if self.activity.in_flight.load(Relaxed) == 0 {
            self.activity.head_bytes.fetch_add(new.len(), Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Edge<S> {
    /// Returns true if the client left the socket full for long, the last time or now.
    fn is_slow(&self) -> bool {
        match self.full_since {
            Some(since) => since.elapsed() >= SLOW_AFTER,
            None => self.slow,
        }
    }

    /// Notes whether the client takes what is written.
    fn noted(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Pending => {
                self.activity.blocked.store(true, Relaxed);
                self.full_since.get_or_insert_with(Instant::now);
            }
            Poll::Ready(taken) => {
                if let Some(since) = self.full_since.take() {
                    self.slow = since.elapsed() >= SLOW_AFTER;
                    self.activity.blocked.store(false, Relaxed);
                }
                let taken = taken.as_ref().map_or(0, |taken| *taken);
                self.activity.written.fetch_add(taken, Relaxed);
            }
        }
        written
    }

    /// Finds an empty error answer of hyper at the end of what is written.
    fn bare_error(&self, buf: &[u8]) -> Option<BareError> {
        let may_be = !self.activity.is_http2() && !self.activity.is_verbatim();
        may_be.then(|| bare_error(buf)).flatten()
    }

    fn write_substitute(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.substitute.is_empty() {
            let written = Pin::new(&mut self.socket).poll_write(cx, &self.substitute);
            match ready!(self.noted(written))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.substitute.advance(n),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Edge<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.write_substitute(cx))?;
        let part = match self.bare_error(buf) {
            None => buf,
            Some(error) if error.from > 0 => &buf[..error.from],
            Some(error) => {
                self.substitute = substitute(error.status);
                // Whatever does not fit now leaves with the next write or flush.
                if let Poll::Ready(Err(error)) = self.write_substitute(cx) {
                    return Poll::Ready(Err(error));
                }
                return Poll::Ready(Ok(buf.len()));
            }
        };
        let part = match part.get(..SLOW_WRITE_BYTES) {
            Some(beginning) if self.is_slow() => beginning,
            _ => part,
        };
        let written = Pin::new(&mut self.socket).poll_write(cx, part);
        self.noted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.write_substitute(cx))?;
        let mut filled = bufs.iter().filter(|buf| !buf.is_empty());
        let last = filled.next_back();
        let is_bare = |buf: &IoSlice<'_>| self.bare_error(buf).is_some();
        if self.is_slow() || last.is_some_and(is_bare) {
            // One by one: rare, and the last one is seen again when its turn comes.
            let first = filled.next().or(last).map_or(&[][..], |buf| buf);
            return self.poll_write(cx, first);
        }
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_substitute(cx))?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_substitute(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// An empty error answer at the end of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BareError {
    from: usize,
    status: u16,
}

/// Longest empty error answer of hyper, in bytes.
const BARE_ERROR_BYTES_MAX: usize = 256;

/// Finds an empty 4xx answer at the end of what is written. No answer of this server is empty, and its bodies cannot
/// look like an empty answer: JSON has no line break inside a text, and nothing but texts could hold these lines. A
/// copy of the store can, so nothing is looked for on a connection that has sent one.
fn bare_error(buf: &[u8]) -> Option<BareError> {
    let body = buf.strip_suffix(b"\r\n\r\n")?;
    let from = body.len().saturating_sub(BARE_ERROR_BYTES_MAX);
    let tail = body.get(from..)?;
    let at = tail
        .windows(10)
        .rposition(|w| w == b"HTTP/1.1 4" || w == b"HTTP/1.0 4")?;
    let head = std::str::from_utf8(&tail[at..]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.get(9..12)?.parse().ok()?;
    let mut empty = false;
    for line in lines {
        match line.split_once(": ")? {
            ("content-length", length) => empty = length == "0",
            ("connection", "close") | ("date", _) => {}
            _ => return None,
        }
    }
    empty.then_some(BareError {
        from: from + at,
        status,
    })
}

/// Makes the problem answer that takes the place of an empty one. The connection closes after it.
fn substitute(status: u16) -> Bytes {
    let (kind, detail) = match status {
        414 => (URI_TOO_LONG, "the address must be at most 65,534 bytes"),
        431 => (
            HEAD_TOO_LARGE,
            "the head of the request has too many or too long fields",
        ),
        _ => (
            MALFORMED_REQUEST,
            "the head of the request is not valid HTTP/1.1",
        ),
    };
    let problem = Problem::new(kind, detail);
    let document = problem.to_body();
    let mut answer = format!(
        "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        problem.status(),
        document.len()
    )
    .into_bytes();
    answer.extend_from_slice(&document);
    answer.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    const BARE: &[u8] =
        b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: Sat, 21 Nov 2026 01:46:16 GMT\r\n\r\n";

    #[test]
    fn only_an_empty_error_at_the_end_is_found() {
        assert_eq!(bare_error(BARE).map(|e| (e.from, e.status)), Some((0, 400)));
        let two = [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", BARE].concat();
        assert_eq!(bare_error(&two).map(|e| e.from), Some(40));
        for other in [
            &b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n"[..],
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n{}",
            b"{\"a\":\"HTTP/1.1 404 content-length: 0\"}\r\n\r\n",
            b"\r\n\r\n",
            b"",
        ] {
            assert_eq!(bare_error(other), None);
        }
    }

    #[tokio::test]
    async fn an_empty_error_leaves_as_a_problem_after_what_came_before() {
        for split in [false, true] {
            let (ours, mut theirs) = tokio::io::duplex(64);
            let mut edge = Edge::new(ours, Arc::default());
            let reader = tokio::spawn(async move {
                let mut got = String::new();
                tokio::io::AsyncReadExt::read_to_string(&mut theirs, &mut got)
                    .await
                    .expect("read");
                got
            });
            if split {
                edge.write_all(b"before ").await.expect("write");
                edge.write_all(BARE).await.expect("write");
            } else {
                edge.write_all(&[b"before ", BARE].concat())
                    .await
                    .expect("write");
            }
            edge.shutdown().await.expect("shutdown");
            drop(edge);
            let got = reader.await.expect("task");
            let rest = got
                .strip_prefix("before HTTP/1.1 400 Bad Request\r\n")
                .expect(&got);
            assert!(
                rest.ends_with("}\n") && rest.contains("urn:gesta:problem:malformed_request"),
                "{got}"
            );
        }
    }

    #[test]
    fn a_watch_tells_idle_from_stalled() {
        let config = Config::default();
        let (activity, start) = (Arc::new(Activity::default()), Instant::now());
        let mut watch = Watch::new(activity.clone(), start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(watch.look(&config, after(299)), WatchVerdict::Keep);
        let running = activity.request();
        assert_eq!(watch.look(&config, after(400)), WatchVerdict::Keep);
        drop(running);
        assert_eq!(watch.look(&config, after(500)), WatchVerdict::Keep);
        activity.head_bytes.store(3, Relaxed);
        assert_eq!(watch.look(&config, after(501)), WatchVerdict::Keep);
        assert_eq!(watch.look(&config, after(516)), WatchVerdict::Close);
        activity.head_bytes.store(0, Relaxed);
        assert_eq!(watch.look(&config, after(801)), WatchVerdict::Drain);
        activity.blocked.store(true, Relaxed);
        assert_eq!(watch.look(&config, after(802)), WatchVerdict::Drain);
        assert_eq!(watch.look(&config, after(862)), WatchVerdict::Close);
    }

    /// What happened: the connection of a reader of 800 bytes a second was never closed, because each byte that the
    /// reader took counted as a sign of life.
    #[test]
    fn a_watch_tells_slow_from_stalled_and_idle() {
        let config = Config::default();
        let looked = |bytes_per_second: usize, waits: bool| {
            let (activity, start) = (Arc::new(Activity::default()), Instant::now());
            let mut watch = Watch::new(activity.clone(), start);
            let mut running = activity.request();
            running.set_waiting(waits);
            let closed = (0..600).step_by(4).find(|second| {
                activity.written.store(second * bytes_per_second, Relaxed);
                let now = start + Duration::from_secs(*second as u64);
                watch.look(&config, now) == WatchVerdict::Close
            });
            drop(running);
            assert!(!activity.data_waits());
            closed
        };
        assert_eq!(looked(0, true), Some(60), "stalled");
        assert_eq!(looked(800, true), Some(120), "slow");
        assert_eq!(looked(2_048, true), None, "a slow network");
        assert_eq!(looked(1, false), None, "a silent subscription");
    }

    #[tokio::test]
    async fn what_a_slow_client_takes_is_seen_in_small_steps() {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        let activity = Arc::new(Activity::default());
        let mut edge = Edge::new(ours, activity.clone());
        let data = vec![0; 64 * 1024];
        assert_eq!(edge.write(&data).await.expect("room"), data.len());
        assert!(futures::poll!(Box::pin(edge.write(&data))).is_pending());
        assert!(activity.data_waits());
        edge.full_since = edge.full_since.map(|since| since - SLOW_AFTER);
        let mut taken = vec![0; 64 * 1024];
        tokio::io::AsyncReadExt::read_exact(&mut theirs, &mut taken)
            .await
            .expect("read");
        assert_eq!(edge.write(&data).await.expect("room"), SLOW_WRITE_BYTES);
        assert!(!activity.data_waits());
        assert_eq!(activity.written(), 80 * 1024);
    }
}
