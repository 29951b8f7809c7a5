//! Moves the bytes of one connection, and applies the faults to them.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use super::replies::Replies;
use super::weather::Dice;
use super::{Link, Shared};

/// The most bytes that wait in one direction of one connection. When there are more, the sender is not read.
const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How many bytes are read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// How often a connection that waits for the end of a fault looks for it.
const LOOK: Duration = Duration::from_millis(5);

/// The index of the direction to the server; that of the other direction is 1.
const TO_SERVER: usize = 0;

/// Moves the bytes of one connection.
pub(super) struct Pump<'a> {
    link: &'a Link,
    shared: &'a Shared,
    /// The direction from client to server, and that from server to client.
    ways: [Way; 2],
    replies: Replies,
    /// Whether a reply was lost. The connection then ends when the replies before it have left.
    lost: bool,
    dice: Dice,
    buffer: Vec<u8>,
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

/// Bytes with the moment at which they may leave. A chunk without bytes is the end of the direction.
struct Chunk {
    due: Instant,
    bytes: Box<[u8]>,
    written: usize,
}

/// The connection is over.
struct Closed;

fn is_on(fault: &AtomicBool) -> bool {
    fault.load(Ordering::Acquire)
}

impl<'a> Pump<'a> {
    /// `number`: that of the connection.
    pub(super) fn new(link: &'a Link, shared: &'a Shared, number: u64) -> Self {
        Self {
            link,
            shared,
            ways: [Way::default(), Way::default()],
            replies: Replies::default(),
            lost: false,
            dice: Dice::new(number),
            buffer: vec![0; CHUNK_BYTES],
        }
    }

    /// Runs until both directions have ended or the connection is cut.
    pub(super) fn run(mut self) {
        while !is_on(&self.link.cut) {
            if is_on(&self.shared.frozen) {
                std::thread::sleep(LOOK);
                continue;
            }
            let [up, down] = &self.ways;
            let over = down.write_done && (up.write_done || self.lost);
            if over || self.step().is_err() {
                return;
            }
        }
    }

    /// Waits for the next thing to do, and does it.
    fn step(&mut self) -> Result<(), Closed> {
        let [client, server] = self.wait()?;
        if is_on(&self.shared.frozen) {
            return Ok(());
        }
        let link = self.link;
        for (way, from, to, ready_from, ready_to) in [
            (TO_SERVER, &link.client, &link.server, client, server),
            (1, &link.server, &link.client, server, client),
        ] {
            if ready_from.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
                self.read(way, from);
            }
            if ready_to.intersects(PollFlags::POLLOUT | PollFlags::POLLHUP | PollFlags::POLLERR) {
                self.ways[way].write_blocked = false;
            }
            if !self.holds(way) {
                self.ways[way].write(to, is_on(&self.shared.half_open));
            }
        }
        Ok(())
    }

    /// Tells whether the bytes of this direction are kept back.
    fn holds(&self, way: usize) -> bool {
        way == TO_SERVER && is_on(&self.shared.hold_requests)
    }

    /// Waits until a socket is ready or a chunk falls due. Returns what the client and the server socket are ready for.
    fn wait(&self) -> Result<[PollFlags; 2], Closed> {
        let interest = [
            self.ways[0].reading() | self.ways[1].writing(),
            self.ways[1].reading() | self.ways[0].writing(),
        ];
        let sockets = [&self.link.client, &self.link.server];
        // A socket without interest must stay out: a hang-up is reported even unasked, and the loop would spin.
        let watched: Vec<usize> = (0..2).filter(|i| !interest[*i].is_empty()).collect();
        let mut fds: Vec<PollFd<'_>> = watched
            .iter()
            .map(|i| PollFd::new(sockets[*i].as_fd(), interest[*i]))
            .collect();
        let free = (0..2).filter(|way| !self.holds(*way));
        let due = free.filter_map(|way| self.ways[way].due()).min();
        let mut timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
        let is_held = self.holds(TO_SERVER) && !self.ways[TO_SERVER].queue.is_empty();
        if watched.len() < 2 || is_held {
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

    /// Reads what has arrived. A sender that is gone ends its direction only, since what it has sent may still have to
    /// arrive.
    fn read(&mut self, way: usize, mut from: &TcpStream) {
        if self.ways[way].read_done || self.ways[way].queued_bytes >= QUEUE_BYTES_MAX {
            return;
        }
        match from.read(&mut self.buffer) {
            Ok(count @ 1..) => self.received(way, count),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            _ => self.end(way),
        }
    }

    fn received(&mut self, way: usize, count: usize) {
        let shared = self.shared;
        let is_reply = way != TO_SERVER;
        if is_on(&shared.half_open) || (is_reply && is_on(&shared.swallow_replies)) {
            let count = count as u64;
            shared.swallowed_bytes.fetch_add(count, Ordering::AcqRel);
            return;
        }
        let delay = self.delay(way, count);
        if !(is_reply && shared.is_postgres) {
            return self.ways[way].push(delay, &self.buffer[..count]);
        }
        let mut forward = Vec::with_capacity(count);
        let bytes = &self.buffer[..count];
        self.lost = self.replies.take(bytes, &mut forward, shared);
        if !forward.is_empty() {
            self.ways[way].push(delay, &forward);
        }
        if self.lost {
            self.end(way);
            shared.lost.send_modify(|lost| *lost += 1);
        }
    }

    /// The delay of so many bytes that have arrived.
    fn delay(&mut self, way: usize, bytes: usize) -> Duration {
        let weather = &self.shared.weather;
        let delay = Duration::from_nanos(self.shared.delays[way].load(Ordering::Acquire));
        let line = weather.on_the_line(way, bytes, Instant::now());
        let late = weather.lateness(bytes, &mut self.dice);
        delay.saturating_add(line).saturating_add(late)
    }

    /// Notes that nothing more comes in this direction.
    fn end(&mut self, way: usize) {
        let delay = self.delay(way, 0);
        self.ways[way].read_done = true;
        self.ways[way].push(delay, &[]);
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

    /// Returns when the next chunk may leave; `None` if there is none or the receiver is not ready for it.
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

    /// Writes the chunks that are due, as far as the receiver takes them, or throws them away.
    fn write(&mut self, mut to: &TcpStream, swallow: bool) {
        let now = Instant::now();
        while let Some(chunk) = self.queue.front_mut().filter(|chunk| chunk.due <= now) {
            if chunk.bytes.is_empty() {
                return self.finish(to);
            }
            if self.write_blocked {
                return;
            }
            let written = match swallow {
                true => Ok(chunk.bytes.len() - chunk.written),
                false => to.write(&chunk.bytes[chunk.written..]),
            };
            match written {
                Ok(count) => {
                    chunk.written += count;
                    if chunk.written == chunk.bytes.len() {
                        self.queued_bytes -= chunk.bytes.len();
                        self.queue.pop_front();
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.write_blocked = true,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // The receiver is gone, and so there is no reason to read the sender.
                Err(_) => return self.finish(to),
            }
        }
    }

    fn finish(&mut self, to: &TcpStream) {
        let _ = to.shutdown(Shutdown::Write);
        self.queue.clear();
        self.queued_bytes = 0;
        (self.read_done, self.write_done, self.write_blocked) = (true, true, false);
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> nix::Result<i32> {
    nix::poll::ppoll(fds, timeout.map(Into::into), None)
}

/// Polls where there is no `ppoll`: the delay is rounded up to milliseconds.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> nix::Result<i32> {
    use nix::poll::PollTimeout;
    let timeout = timeout.map_or(PollTimeout::NONE, |t| {
        let millis = t.as_nanos().div_ceil(1_000_000);
        PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
    });
    nix::poll::poll(fds, timeout)
}
