//! A TCP proxy that delays, cuts, freezes and loses: the network between Gesta and its database.
//!
//! Why own threads and `ppoll`: timers of an async runtime tick in milliseconds, and a delay of
//! 0.75 ms is among those worth measuring. One thread per connection waits for its two sockets and
//! for the next chunk that falls due, whichever is first, so a busy connection costs one wake-up
//! per burst and an idle one nothing.
//! Invariants: bytes of a direction keep their order, also when the delay changes; a chunk leaves
//! no earlier than it came in plus the delay; at most [`QUEUE_BYTES_MAX`] wait per direction.
//! Not here: which fault when (`torture`).

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

/// Most bytes that wait in one direction of one connection; beyond, the sender is not read.
const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Read size.
const CHUNK_BYTES: usize = 64 * 1024;
/// How often a connection that watches no socket looks for a change of the faults.
const LOOK: Duration = Duration::from_millis(5);

/// A running proxy. Dropping it closes every connection.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    delay_nanos: AtomicU64,
    frozen: AtomicBool,
    refusing: AtomicBool,
    swallowing: AtomicBool,
    swallowed_bytes: AtomicU64,
    accepted: AtomicU64,
    stopped: AtomicBool,
    connections: Mutex<HashMap<u64, Arc<Link>>>,
}

/// The two sockets of one connection, and whether it was cut.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: TcpStream,
    cut: AtomicBool,
}

impl Link {
    fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        // Wakes the thread that polls them. Already closed is as good.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl Proxy {
    /// Listens on a free loopback port and passes everything on to `target`, delayed by half of `round_trip` each way.
    pub(crate) fn start(target: SocketAddr, round_trip: Duration) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let proxy = Self {
            address,
            shared: Arc::clone(&shared),
        };
        proxy.set_round_trip(round_trip);
        std::thread::Builder::new()
            .name("proxy-accept".into())
            .spawn(move || accept(&listener, target, &shared))?;
        Ok(proxy)
    }

    /// Where to connect instead of to the target.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the delay for bytes that come in from now on.
    pub(crate) fn set_round_trip(&self, round_trip: Duration) {
        let nanos = u64::try_from(round_trip.as_nanos() / 2).unwrap_or(u64::MAX);
        self.shared.delay_nanos.store(nanos, Ordering::Release);
    }

    /// Closes all present connections; returns how many there were.
    pub(crate) fn cut(&self) -> usize {
        let connections = self.shared.connections.lock().unwrap();
        connections.values().for_each(|link| link.cut());
        connections.len()
    }

    /// Half-open: connections stay, also new ones are accepted, but no byte passes.
    pub(crate) fn freeze(&self, on: bool) {
        self.shared.frozen.store(on, Ordering::Release);
    }

    /// New connections are closed at once.
    pub(crate) fn refuse(&self, on: bool) {
        self.shared.refusing.store(on, Ordering::Release);
    }

    /// Requests pass, replies are thrown away: what was sent happens, and nobody hears of it.
    pub(crate) fn swallow_replies(&self, on: bool) {
        self.shared.swallowing.store(on, Ordering::Release);
    }

    /// Bytes of replies thrown away so far.
    pub(crate) fn swallowed_bytes(&self) -> u64 {
        self.shared.swallowed_bytes.load(Ordering::Acquire)
    }

    /// Connections that are open now.
    #[cfg(test)]
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.lock().unwrap().len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.cut();
        // Wakes the acceptor; it sees the flag and returns.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, target: SocketAddr, shared: &Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept() else {
            continue;
        };
        if shared.stopped.load(Ordering::Acquire) {
            return;
        }
        if shared.refusing.load(Ordering::Acquire) {
            continue;
        }
        let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new().name(format!("proxy-{number}"));
        // Without a thread the connection is dropped, as a full server would.
        let _ = thread.spawn(move || serve(client, target, number, &shared));
    }
}

fn serve(client: TcpStream, target: SocketAddr, number: u64, shared: &Shared) {
    let Ok(server) = TcpStream::connect_timeout(&target, Duration::from_secs(5)) else {
        return;
    };
    for socket in [&client, &server] {
        if socket
            .set_nodelay(true)
            .and(socket.set_nonblocking(true))
            .is_err()
        {
            return;
        }
    }
    let link = Arc::new(Link {
        client,
        server,
        cut: AtomicBool::new(false),
    });
    shared
        .connections
        .lock()
        .unwrap()
        .insert(number, Arc::clone(&link));
    // Registered first, then checked: a proxy dropped in between still closes this connection.
    if !shared.stopped.load(Ordering::Acquire) {
        Pump::new(&link, shared).run();
    }
    shared.connections.lock().unwrap().remove(&number);
    link.cut();
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    queue: VecDeque<Chunk>,
    queued_bytes: usize,
    last_due: Option<Instant>,
    read_done: bool,
    write_done: bool,
    write_blocked: bool,
}

/// Bytes with the moment at which they may leave; no bytes mean the end of the direction.
struct Chunk {
    due: Instant,
    bytes: Box<[u8]>,
    written: usize,
}

struct Pump<'a> {
    link: &'a Link,
    shared: &'a Shared,
    /// Client to server, server to client.
    ways: [Way; 2],
    buffer: Vec<u8>,
}

/// The connection is over.
struct Closed;

impl<'a> Pump<'a> {
    fn new(link: &'a Link, shared: &'a Shared) -> Self {
        Self {
            link,
            shared,
            ways: [Way::default(), Way::default()],
            buffer: vec![0; CHUNK_BYTES],
        }
    }

    fn run(mut self) {
        while !self.link.cut.load(Ordering::Acquire) {
            if self.shared.frozen.load(Ordering::Acquire) {
                std::thread::sleep(LOOK);
                continue;
            }
            if self.ways.iter().all(|way| way.write_done) || self.step().is_err() {
                return;
            }
        }
    }

    /// Waits for the next thing to do, and does it.
    fn step(&mut self) -> Result<(), Closed> {
        let [client, server] = self.wait()?;
        if self.shared.frozen.load(Ordering::Acquire) {
            return Ok(());
        }
        let link = self.link;
        for (way, from, to, ready_from, ready_to) in [
            (0, &link.client, &link.server, client, server),
            (1, &link.server, &link.client, server, client),
        ] {
            if ready_from.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
                self.read(way, from)?;
            }
            if ready_to.intersects(PollFlags::POLLOUT | PollFlags::POLLHUP | PollFlags::POLLERR) {
                self.ways[way].write_blocked = false;
            }
            self.ways[way].write(to)?;
        }
        Ok(())
    }

    /// Waits until a socket is ready or a chunk falls due; returns what the client and the server socket are ready for.
    fn wait(&self) -> Result<[PollFlags; 2], Closed> {
        let interest = [
            self.ways[0].reading() | self.ways[1].writing(),
            self.ways[1].reading() | self.ways[0].writing(),
        ];
        let sockets = [&self.link.client, &self.link.server];
        // A socket that is not of interest must stay out: a hang-up is reported even unasked, and would spin.
        let watched: Vec<usize> = (0..2).filter(|i| !interest[*i].is_empty()).collect();
        let mut fds: Vec<PollFd<'_>> = watched
            .iter()
            .map(|i| PollFd::new(sockets[*i].as_fd(), interest[*i]))
            .collect();
        let due = self.ways.iter().filter_map(Way::due).min();
        let mut timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
        if watched.len() < 2 {
            timeout = Some(timeout.map_or(LOOK, |t| t.min(LOOK)));
        }
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return Err(Closed),
        }
        let mut ready = [PollFlags::empty(); 2];
        for (i, fd) in watched.into_iter().zip(&fds) {
            ready[i] = fd.revents().unwrap_or(PollFlags::empty());
        }
        Ok(ready)
    }

    fn read(&mut self, way: usize, from: &TcpStream) -> Result<(), Closed> {
        let (swallow, replies) = (self.shared.swallowing.load(Ordering::Acquire), way == 1);
        let delay = Duration::from_nanos(self.shared.delay_nanos.load(Ordering::Acquire));
        let way = &mut self.ways[way];
        if way.read_done || way.queued_bytes >= QUEUE_BYTES_MAX {
            return Ok(());
        }
        let mut from = from;
        match from.read(&mut self.buffer) {
            Ok(0) => {
                way.read_done = true;
                way.push(delay, &[]);
            }
            Ok(n) if swallow && replies => {
                self.shared
                    .swallowed_bytes
                    .fetch_add(n as u64, Ordering::AcqRel);
            }
            Ok(n) => way.push(delay, &self.buffer[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return Err(Closed),
        }
        Ok(())
    }
}

impl Way {
    fn reading(&self) -> PollFlags {
        if self.read_done || self.queued_bytes >= QUEUE_BYTES_MAX {
            PollFlags::empty()
        } else {
            PollFlags::POLLIN
        }
    }

    fn writing(&self) -> PollFlags {
        if self.write_blocked {
            PollFlags::POLLOUT
        } else {
            PollFlags::empty()
        }
    }

    /// When the next chunk may leave; `None` if there is none or the receiver is not ready for it.
    fn due(&self) -> Option<Instant> {
        self.queue
            .front()
            .filter(|_| !self.write_blocked)
            .map(|chunk| chunk.due)
    }

    fn push(&mut self, delay: Duration, bytes: &[u8]) {
        let due = Instant::now() + delay;
        let due = self.last_due.map_or(due, |last| last.max(due));
        self.last_due = Some(due);
        self.queued_bytes += bytes.len();
        self.queue.push_back(Chunk {
            due,
            bytes: bytes.into(),
            written: 0,
        });
    }

    /// Writes what is due, as far as the receiver takes it.
    fn write(&mut self, to: &TcpStream) -> Result<(), Closed> {
        let now = Instant::now();
        let mut to_writer = to;
        while let Some(chunk) = self.queue.front_mut().filter(|chunk| chunk.due <= now) {
            if self.write_blocked {
                return Ok(());
            }
            if chunk.bytes.is_empty() {
                let _ = to.shutdown(Shutdown::Write);
                self.write_done = true;
                self.queue.pop_front();
                return Ok(());
            }
            match to_writer.write(&chunk.bytes[chunk.written..]) {
                Ok(n) => {
                    chunk.written += n;
                    if chunk.written == chunk.bytes.len() {
                        self.queued_bytes -= chunk.bytes.len();
                        self.queue.pop_front();
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.write_blocked = true,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Closed),
            }
        }
        Ok(())
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> nix::Result<i32> {
    nix::poll::ppoll(fds, timeout.map(Into::into), None)
}

/// Without `ppoll` the delay is rounded up to milliseconds.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> nix::Result<i32> {
    use nix::poll::PollTimeout;
    let timeout = timeout.map_or(PollTimeout::NONE, |t| {
        let millis = t.as_nanos().div_ceil(1_000_000);
        PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
    });
    nix::poll::poll(fds, timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    let mut socket = socket;
                    while let Ok(n @ 1..) = socket.read(&mut buffer) {
                        if socket.write_all(&buffer[..n]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let socket = TcpStream::connect(proxy.address()).unwrap();
        socket.set_nodelay(true).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        socket
    }

    #[test]
    fn a_round_trip_takes_the_delay_and_hardly_more() {
        let proxy = Proxy::start(echo(), Duration::from_millis(20)).unwrap();
        let mut socket = connect(&proxy);
        let mut fastest = Duration::MAX;
        for _ in 0..10 {
            let start = Instant::now();
            socket.write_all(b"x").unwrap();
            socket.read_exact(&mut [0]).unwrap();
            let took = start.elapsed();
            assert!(took >= Duration::from_millis(20), "{took:?}");
            fastest = fastest.min(took);
        }
        assert!(fastest < Duration::from_millis(30), "{fastest:?}");
    }

    #[test]
    fn delayed_bytes_overlap_and_keep_their_order() {
        let proxy = Proxy::start(echo(), Duration::from_millis(20)).unwrap();
        let mut socket = connect(&proxy);
        let start = Instant::now();
        let mut reader = socket.try_clone().unwrap();
        let reading = std::thread::spawn(move || {
            let mut got = vec![0; 400_000];
            reader.read_exact(&mut got).unwrap();
            got
        });
        let sent: Vec<u8> = (0..100_000_u32).flat_map(u32::to_be_bytes).collect();
        for (i, part) in sent.chunks(4_000).enumerate() {
            if i == 50 {
                proxy.set_round_trip(Duration::ZERO);
            }
            socket.write_all(part).unwrap();
        }
        assert!(reading.join().unwrap() == sent, "order was lost");
        // A hundred chunks, one after the other, would take two seconds.
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "{:?}",
            start.elapsed()
        );
    }

    #[test]
    fn a_cut_ends_connections_and_new_ones_work() {
        let proxy = Proxy::start(echo(), Duration::ZERO).unwrap();
        let mut socket = connect(&proxy);
        socket.write_all(b"x").unwrap();
        socket.read_exact(&mut [0]).unwrap();
        assert_eq!(proxy.cut(), 1);
        assert!(matches!(socket.read(&mut [0]), Ok(0) | Err(_)));
        let mut socket = connect(&proxy);
        socket.write_all(b"x").unwrap();
        socket.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn a_frozen_connection_passes_nothing_until_it_thaws() {
        let proxy = Proxy::start(echo(), Duration::ZERO).unwrap();
        let mut socket = connect(&proxy);
        socket.write_all(b"x").unwrap();
        socket.read_exact(&mut [0]).unwrap();
        proxy.freeze(true);
        socket.write_all(b"y").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        assert!(socket.read(&mut [0]).is_err());
        proxy.freeze(false);
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut got = [0];
        socket.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"y");
    }

    #[test]
    fn swallowed_replies_were_asked_for_and_never_come() {
        let proxy = Proxy::start(echo(), Duration::ZERO).unwrap();
        let mut socket = connect(&proxy);
        socket.write_all(b"x").unwrap();
        socket.read_exact(&mut [0]).unwrap();
        proxy.swallow_replies(true);
        socket.write_all(b"lost").unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while proxy.swallowed_bytes() < 4 {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        proxy.swallow_replies(false);
        socket.write_all(b"z").unwrap();
        let mut got = [0];
        socket.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"z");
    }

    #[test]
    fn an_end_of_input_is_passed_on_and_frees_the_connection() {
        let proxy = Proxy::start(echo(), Duration::from_millis(2)).unwrap();
        let mut socket = connect(&proxy);
        socket.write_all(b"last words").unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut got = Vec::new();
        socket.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"last words");
        let deadline = Instant::now() + Duration::from_secs(10);
        while proxy.connections() > 0 {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_refusing_proxy_closes_new_connections() {
        let proxy = Proxy::start(echo(), Duration::ZERO).unwrap();
        proxy.refuse(true);
        let mut socket = connect(&proxy);
        assert!(matches!(socket.read(&mut [0]), Ok(0) | Err(_)));
    }
}
