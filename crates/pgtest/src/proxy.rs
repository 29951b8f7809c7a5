//! A TCP proxy between a client and PostgreSQL that delays, cuts, swallows and holds back bytes.
//!
//! Each direction of a connection is a reader and a writer with a bounded queue between them, so
//! a delay does not limit throughput. Bytes from the server pass whole messages at a time, because
//! one fault is told in messages: *lose the reply of a commit*. Encrypted connections cannot be
//! looked into; for them that one fault does nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Chunks of at most 64 KiB that may wait in one direction of one connection.
const CHUNKS_MAX: usize = 1_024;
const CHUNK_BYTES: usize = 64 * 1_024;

/// Lose the answer of one commit: the request reaches the server, the reply does not come back, the connection is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoseReply {
    /// Counts only replies whose command tag starts with this, for example `INSERT`.
    pub tag_prefix: String,
    /// Which one is lost, over all connections: 1 is the next.
    pub nth: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Faults {
    delay_to_server: Duration,
    delay_to_client: Duration,
    half_open: bool,
    hold_requests: bool,
    refuse: bool,
    /// Connections with a number below this are cut.
    cut_below: u64,
}

#[derive(Debug)]
struct Shared {
    faults: watch::Sender<Faults>,
    lose: Mutex<Option<LoseReply>>,
    connections: watch::Sender<u64>,
    lost: watch::Sender<u64>,
}

/// The proxy. Dropping it ends it; connections are cut.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: JoinHandle<()>,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `upstream`, without any fault yet.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(upstream: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            faults: watch::Sender::new(Faults {
                delay_to_server: Duration::ZERO,
                delay_to_client: Duration::ZERO,
                half_open: false,
                hold_requests: false,
                refuse: false,
                cut_below: 0,
            }),
            lose: Mutex::new(None),
            connections: watch::Sender::new(0),
            lost: watch::Sender::new(0),
        });
        let acceptor = tokio::spawn(accept(listener, upstream, Arc::clone(&shared)));
        Ok(Self {
            addr,
            shared,
            acceptor,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `url` with its first `host:port` replaced by the proxy's.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let user = authority
            .rsplit_once('@')
            .map(|(user, _)| format!("{user}@"));
        format!(
            "{scheme}://{}{}/{path}",
            user.unwrap_or_default(),
            self.addr
        )
    }

    fn set(&self, change: impl FnOnce(&mut Faults)) {
        self.shared.faults.send_modify(change);
    }

    /// Delays each direction by this much; a round trip takes the sum longer.
    pub fn set_delay(&self, to_server: Duration, to_client: Duration) {
        self.set(|faults| {
            faults.delay_to_server = to_server;
            faults.delay_to_client = to_client;
        });
    }

    /// Cuts all connections that exist now.
    pub fn cut_all(&self) {
        let next = *self.shared.connections.borrow();
        self.set(|faults| faults.cut_below = next);
    }

    /// While on, all connections stay open but every byte of either direction is swallowed, as when a firewall forgets them.
    pub fn set_half_open(&self, on: bool) {
        self.set(|faults| faults.half_open = on);
    }

    /// While on, bytes from clients are kept; they reach the server when it is turned off, even if
    /// the client has gone meanwhile. This makes a statement that lands late.
    pub fn hold_requests(&self, on: bool) {
        self.set(|faults| faults.hold_requests = on);
    }

    /// While on, new connections are closed at once.
    pub fn refuse_connections(&self, on: bool) {
        self.set(|faults| faults.refuse = on);
    }

    /// Arms the loss of one reply; see [`LoseReply`].
    pub fn lose_reply(&self, what: LoseReply) {
        *self
            .shared
            .lose
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    /// Number of connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        *self.shared.connections.borrow()
    }

    /// Waits until `count` replies were lost.
    pub async fn replies_lost(&self, count: u64) {
        // The sender lives as long as `self`.
        let _ = self
            .shared
            .lost
            .subscribe()
            .wait_for(|lost| *lost >= count)
            .await;
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.cut_all();
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        if shared.faults.borrow().refuse {
            continue;
        }
        let mut number = 0;
        shared.connections.send_modify(|count| {
            number = *count;
            *count += 1;
        });
        tokio::spawn(connection(client, upstream, number, Arc::clone(&shared)));
    }
}

async fn connection(client: TcpStream, upstream: SocketAddr, number: u64, shared: Arc<Shared>) {
    let mut faults = shared.faults.subscribe();
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (requests, held) = mpsc::channel(CHUNKS_MAX);
    let (replies, delayed) = mpsc::channel(CHUNKS_MAX);
    let up = async {
        tokio::join!(
            read_requests(from_client, requests, Arc::clone(&shared)),
            write(to_server, held, Direction::ToServer, Arc::clone(&shared)),
        )
    };
    let down = async {
        let reading = read_replies(from_server, replies, Arc::clone(&shared));
        let writing = write(to_client, delayed, Direction::ToClient, Arc::clone(&shared));
        tokio::join!(reading, writing).0
    };
    let both = async {
        let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
        tokio::select! {
            end = &mut down => {
                // A lost reply cuts the connection, after the replies before it have gone.
                if end == End::Closed {
                    up.await;
                }
            }
            _ = &mut up => {
                down.await;
            }
        }
    };
    tokio::select! {
        () = both => {}
        _ = faults.wait_for(|faults| number < faults.cut_below) => {}
    }
}

/// Why the server's bytes end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    ReplyLost,
}

struct Chunk {
    read_at: Instant,
    bytes: Vec<u8>,
}

impl Chunk {
    fn now(bytes: Vec<u8>) -> Self {
        Self {
            read_at: Instant::now(),
            bytes,
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    ToServer,
    ToClient,
}

async fn read_requests(mut from: OwnedReadHalf, queue: mpsc::Sender<Chunk>, shared: Arc<Shared>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if shared.faults.borrow().half_open {
            continue;
        }
        if queue
            .send(Chunk::now(buffer[..count].to_vec()))
            .await
            .is_err()
        {
            break;
        }
    }
}

async fn write(
    mut to: OwnedWriteHalf,
    mut queue: mpsc::Receiver<Chunk>,
    direction: Direction,
    shared: Arc<Shared>,
) {
    let mut faults = shared.faults.subscribe();
    while let Some(chunk) = queue.recv().await {
        let (delay, may_hold) = {
            let faults = faults.borrow();
            match direction {
                Direction::ToServer => (faults.delay_to_server, true),
                Direction::ToClient => (faults.delay_to_client, false),
            }
        };
        tokio::time::sleep_until(chunk.read_at + delay).await;
        if may_hold
            && faults
                .wait_for(|faults| !faults.hold_requests)
                .await
                .is_err()
        {
            return;
        }
        if faults.borrow().half_open {
            continue;
        }
        if to.write_all(&chunk.bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

async fn read_replies(
    mut from: OwnedReadHalf,
    queue: mpsc::Sender<Chunk>,
    shared: Arc<Shared>,
) -> End {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut replies = Replies::default();
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let mut forward = Vec::with_capacity(count);
        let lost = replies.take(&buffer[..count], &mut forward, &shared);
        let swallowed = shared.faults.borrow().half_open;
        if !swallowed && !forward.is_empty() && queue.send(Chunk::now(forward)).await.is_err() {
            break;
        }
        if lost {
            shared.lost.send_modify(|lost| *lost += 1);
            return End::ReplyLost;
        }
    }
    End::Closed
}

/// Cuts the server's bytes into messages (kind, length, body) and finds the reply to lose.
#[derive(Default)]
struct Replies {
    rest: Vec<u8>,
    /// The answer to a request for encryption is a single byte without a length.
    started: bool,
    opaque: bool,
    /// The reply to lose has begun; it ends with `ReadyForQuery`, after the commit.
    losing: bool,
}

impl Replies {
    /// Moves what may pass to `forward`. True once the reply to lose is complete.
    fn take(&mut self, bytes: &[u8], forward: &mut Vec<u8>, shared: &Shared) -> bool {
        if !self.started {
            // `S`: encrypted from here on. `N`: a plain start-up follows.
            self.opaque = bytes.first() == Some(&b'S') && bytes.len() == 1;
            self.started = self.opaque || bytes != b"N";
            if self.opaque || !self.started {
                forward.extend_from_slice(bytes);
                return false;
            }
        }
        if self.opaque {
            forward.extend_from_slice(bytes);
            return false;
        }
        self.rest.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(message) = next_message(&self.rest[at..]) {
            at += message.len();
            self.losing = self.losing || is_reply_to_lose(message, shared);
            if self.losing && message[0] == b'Z' {
                return true;
            }
            if !self.losing {
                forward.extend_from_slice(message);
            }
        }
        self.rest.drain(..at);
        false
    }
}

fn next_message(bytes: &[u8]) -> Option<&[u8]> {
    let length = u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?);
    bytes.get(..1 + usize::try_from(length).ok()?)
}

fn is_reply_to_lose(message: &[u8], shared: &Shared) -> bool {
    if message[0] != b'C' {
        return false;
    }
    let mut armed = shared.lose.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(lose) = armed.as_mut() else {
        return false;
    };
    if !message[5..].starts_with(lose.tag_prefix.as_bytes()) {
        return false;
    }
    if lose.nth > 1 {
        lose.nth -= 1;
        return false;
    }
    *armed = None;
    true
}
