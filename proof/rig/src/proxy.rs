//! A TCP proxy that delays, cuts, freezes and loses: a network between two programs with faults that a test chooses.
//!
//! Why own threads and `ppoll`: timers of an async runtime tick in milliseconds, and a delay of 0.75 ms is among those
//! worth measuring. One thread per connection waits for its two sockets and for the next chunk that falls due, so a
//! busy connection costs one wake-up per burst and an idle one nothing.
//! Invariants: the bytes of a direction keep their order, also when the delay changes; a chunk leaves no earlier than
//! its arrival plus the delay; a bounded number of bytes waits per direction.

mod pump;
mod replies;
mod weather;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use pump::Pump;
pub use replies::LoseReply;
use weather::Weather;

/// The longest time in which a connection to the target must be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The proxy. Dropping it ends the proxy and cuts all connections.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

/// What the proxy, the thread that accepts, and the connections share.
#[derive(Debug)]
struct Shared {
    /// The delays in nanoseconds, to the server and to the client.
    delays: [AtomicU64; 2],
    /// Jitter, loss and bandwidth.
    weather: Weather,
    frozen: AtomicBool,
    half_open: AtomicBool,
    hold_requests: AtomicBool,
    refuse: AtomicBool,
    swallow_replies: AtomicBool,
    swallowed_bytes: AtomicU64,
    /// Whether the target is a PostgreSQL server, whose replies are then parsed.
    is_postgres: bool,
    lose: Mutex<Option<LoseReply>>,
    lost: watch::Sender<u64>,
    accepted: AtomicU64,
    stopped: AtomicBool,
    open: Mutex<HashMap<u64, Arc<Link>>>,
}

/// The two sockets of one connection, and whether the connection was cut.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: TcpStream,
    cut: AtomicBool,
}

impl Link {
    fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        // This wakes the thread that polls the sockets. If a socket is closed already, that is as good.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `target`, without any fault yet.
    ///
    /// # Errors
    /// If no port can be bound or no thread started.
    pub fn start(target: SocketAddr) -> std::io::Result<Self> {
        Self::listen(target, false)
    }

    /// Listens and forwards to a PostgreSQL server, so that [`lose_reply`](Self::lose_reply) can tell its replies
    /// apart.
    ///
    /// # Errors
    /// If no port can be bound or no thread started.
    pub fn to_postgres(target: SocketAddr) -> std::io::Result<Self> {
        Self::listen(target, true)
    }

    fn listen(target: SocketAddr, is_postgres: bool) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            delays: [AtomicU64::new(0), AtomicU64::new(0)],
            weather: Weather::default(),
            frozen: AtomicBool::new(false),
            half_open: AtomicBool::new(false),
            hold_requests: AtomicBool::new(false),
            refuse: AtomicBool::new(false),
            swallow_replies: AtomicBool::new(false),
            swallowed_bytes: AtomicU64::new(0),
            is_postgres,
            lose: Mutex::new(None),
            lost: watch::Sender::new(0),
            accepted: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let proxy = Self {
            addr,
            shared: Arc::clone(&shared),
        };
        std::thread::Builder::new()
            .name("proxy-accept".into())
            .spawn(move || accept(&listener, target, &shared))?;
        Ok(proxy)
    }

    /// Returns the address at which the proxy listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns `url` with its first `host:port` replaced by that of the proxy.
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

    /// Delays bytes that arrive from now on by this much in each direction. A round trip takes the sum longer.
    pub fn set_delay(&self, to_server: Duration, to_client: Duration) {
        for (delay, duration) in self.shared.delays.iter().zip([to_server, to_client]) {
            let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            delay.store(nanos, Ordering::Release);
        }
    }

    /// Delays each direction by half of `round_trip`.
    pub fn set_round_trip(&self, round_trip: Duration) {
        self.set_delay(round_trip / 2, round_trip / 2);
    }

    /// Delays what arrives from now on by a random time up to this much more, in each direction.
    pub fn set_jitter(&self, jitter: Duration) {
        self.shared.weather.set_jitter(jitter);
    }

    /// Loses this share of the packets that arrive from now on, 0 to 1, in each direction. As a connection sends again
    /// what is lost, the bytes arrive later by `retransmission`, and those behind them wait.
    pub fn set_loss(&self, share: f64, retransmission: Duration) {
        self.shared.weather.set_loss(share, retransmission);
    }

    /// Lets so many bytes a second through in each direction, of all connections together, of what arrives from now on;
    /// 0 lets all of them through.
    pub fn set_bandwidth(&self, bytes_per_second: u64) {
        self.shared.weather.set_bandwidth(bytes_per_second);
    }

    /// Cuts all connections that exist now. Returns how many there were.
    pub fn cut_all(&self) -> usize {
        let open = self.shared.open();
        open.values().for_each(|link| link.cut());
        open.len()
    }

    /// While this is on, connections stay and new ones are accepted, but no byte passes; when it ends, all of them do.
    pub fn freeze(&self, on: bool) {
        self.shared.frozen.store(on, Ordering::Release);
    }

    /// While this is on, all connections stay open but every byte of either direction is thrown away, as when a
    /// firewall forgets them.
    pub fn set_half_open(&self, on: bool) {
        self.shared.half_open.store(on, Ordering::Release);
    }

    /// While this is on, bytes from clients are kept. They reach the server when it is turned off, even if the client
    /// has gone meanwhile. This makes a late commit.
    pub fn hold_requests(&self, on: bool) {
        self.shared.hold_requests.store(on, Ordering::Release);
    }

    /// While this is on, new connections are closed at once.
    pub fn refuse_connections(&self, on: bool) {
        self.shared.refuse.store(on, Ordering::Release);
    }

    /// While this is on, requests pass and replies are thrown away: the server does what it was sent, and nobody learns
    /// of it.
    pub fn swallow_replies(&self, on: bool) {
        self.shared.swallow_replies.store(on, Ordering::Release);
    }

    /// Returns how many bytes were thrown away so far.
    #[must_use]
    pub fn swallowed_bytes(&self) -> u64 {
        self.shared.swallowed_bytes.load(Ordering::Acquire)
    }

    /// Makes the proxy lose one reply; see [`LoseReply`].
    ///
    /// # Panics
    /// If the proxy was not started by [`to_postgres`](Self::to_postgres).
    pub fn lose_reply(&self, what: LoseReply) {
        assert!(
            self.shared.is_postgres,
            "only replies of PostgreSQL are told apart"
        );
        *lock(&self.shared.lose) = Some(what);
    }

    /// Waits until `count` replies were lost.
    pub async fn replies_lost(&self, count: u64) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self
            .shared
            .lost
            .subscribe()
            .wait_for(|lost| *lost >= count)
            .await;
    }

    /// Returns how many connections were accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::Acquire)
    }

    /// Returns how many connections are open now.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.shared.open().len()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.cut_all();
        // This wakes the thread that accepts. It sees the flag and returns.
        let _ = TcpStream::connect(self.addr);
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Link>>> {
        lock(&self.open)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, target: SocketAddr, shared: &Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept() else {
            continue;
        };
        if shared.stopped.load(Ordering::Acquire) {
            return;
        }
        if shared.refuse.load(Ordering::Acquire) {
            continue;
        }
        let number = shared.accepted.fetch_add(1, Ordering::AcqRel);
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new().name(format!("proxy-{number}"));
        // Without a thread the connection is dropped, as by a full server.
        let _ = thread.spawn(move || serve(client, target, number, &shared));
    }
}

fn serve(client: TcpStream, target: SocketAddr, number: u64, shared: &Shared) {
    let Ok(server) = TcpStream::connect_timeout(&target, CONNECT_WITHIN) else {
        return;
    };
    for socket in [&client, &server] {
        let ready = socket.set_nodelay(true).and(socket.set_nonblocking(true));
        if ready.is_err() {
            return;
        }
    }
    let link = Arc::new(Link {
        client,
        server,
        cut: AtomicBool::new(false),
    });
    shared.open().insert(number, Arc::clone(&link));
    // The connection is registered first and the flag is read then, so a proxy that is dropped in between still closes
    // it.
    if !shared.stopped.load(Ordering::Acquire) {
        Pump::new(&link, shared, number).run();
    }
    shared.open().remove(&number);
    link.cut();
}
