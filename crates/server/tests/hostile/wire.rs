//! A client that can send anything: raw bytes out, just enough HTTP/1.1 in.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::generate::{Attempt, Expect};

/// Longest time that an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// How long a client waits before it gives up a request that was never whole.
const PATIENCE: Duration = Duration::from_millis(20);

/// An answer of the server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) body: Vec<u8>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        write!(f, "{} {} {body}", self.status, self.content_type)
    }
}

/// A connection for several requests, until either side closes it.
pub(crate) struct Connection {
    socket: TcpStream,
    received: Vec<u8>,
    closed: bool,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("the server lives");
        socket.set_nodelay(true).expect("TCP_NODELAY");
        Self {
            socket,
            received: Vec::new(),
            closed: false,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Sends a request and takes its answer; returns `None` if the server closed without one.
    pub(crate) async fn exchange(&mut self, attempt: &Attempt) -> Option<Answer> {
        let answer = tokio::time::timeout(ANSWER_MAX, self.send_and_take(attempt)).await;
        answer.unwrap_or_else(|_| panic!("no answer to {attempt}"))
    }

    async fn send_and_take(&mut self, attempt: &Attempt) -> Option<Answer> {
        // The server may refuse and close before it has read everything.
        let sent = self.socket.write_all(&attempt.bytes).await;
        self.closed |= sent.is_err();
        let head_end = if attempt.expect == Expect::Garbage {
            self.head_end_or_give_up().await
        } else {
            self.head_end().await
        };
        let answer = match head_end {
            Some(end) => Some(self.take(end, attempt.is_head()).await),
            None => None,
        };
        self.closed |= attempt.expect == Expect::Garbage || answer.is_none();
        answer
    }

    async fn more(&mut self) -> bool {
        match self.socket.read_buf(&mut self.received).await {
            Ok(0) | Err(_) => {
                self.closed = true;
                false
            }
            Ok(_) => true,
        }
    }

    async fn head_end(&mut self) -> Option<usize> {
        loop {
            if let Some(at) = find(&self.received, b"\r\n\r\n") {
                return Some(at + 4);
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// Waits for the end of the head of an answer. Garbage may look like the beginning of a request whose rest the
    /// server waits for: then the client ends it, as a program that breaks does.
    async fn head_end_or_give_up(&mut self) -> Option<usize> {
        if let Ok(end) = tokio::time::timeout(PATIENCE, self.head_end()).await {
            return end;
        }
        self.closed |= self.socket.shutdown().await.is_err();
        self.head_end().await
    }

    async fn take(&mut self, head_end: usize, head_only: bool) -> Answer {
        let head = String::from_utf8_lossy(&self.received[..head_end]).into_owned();
        self.received.drain(..head_end);
        let header = |name: &str| {
            head.lines().find_map(|line| {
                let (n, value) = line.split_once(": ")?;
                n.eq_ignore_ascii_case(name).then(|| value.to_owned())
            })
        };
        let content_type = header("content-type").unwrap_or_default();
        let length = header("content-length").map(|l| l.parse().expect("a length"));
        self.closed |= header("connection").as_deref() == Some("close");
        let mut body = Vec::new();
        if content_type == "text/event-stream" {
            self.closed = true;
        } else if head_only {
        } else if let Some(length) = length {
            while self.received.len() < length && self.more().await {}
            let length = length.min(self.received.len());
            body = self.received.drain(..length).collect();
        } else if header("transfer-encoding").is_some() {
            // Nothing here asks for chunks that hold these bytes themselves.
            let end = loop {
                if let Some(at) = find(&self.received, b"0\r\n\r\n") {
                    break at + 5;
                }
                assert!(self.more().await, "an answer broke off: {head}");
            };
            body = self.received.drain(..end).collect();
        }
        let status = head.get(9..12).and_then(|s| s.parse().ok());
        Answer {
            status: status.expect("a status"),
            content_type,
            body,
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}
