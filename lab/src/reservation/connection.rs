//! One non-blocking keep-alive connection with at most one request under way.
//!
//! Invariant: what is left of an input is kept per connection only when an answer came in pieces; whole answers are
//! judged in the generator's one read buffer.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::reservation::judge::judge;
use crate::reservation::model::{Call, Op, Shows, Verdict};
use crate::reservation::wire;

/// Size of the generator's read buffer.
pub(crate) const READ_BYTES: usize = 64 * 1024;

/// A request under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    /// Who waits for it.
    pub(crate) user: u32,
    /// What.
    pub(crate) op: Op,
    /// Which phase it belongs to.
    pub(crate) phase: u32,
    /// When it was to start.
    pub(crate) intended: u64,
    /// When it was sent.
    pub(crate) sent: u64,
    /// Its place in the order of all starts and ends.
    pub(crate) begin: u32,
}

/// What a connection is doing.
#[derive(Debug)]
pub(crate) enum State {
    /// Not connected; to be tried again at this time.
    Down {
        /// Nanoseconds.
        retry_at: u64,
    },
    /// Connecting since then.
    Connecting {
        /// Nanoseconds.
        since: u64,
    },
    /// Ready.
    Free,
    /// Waiting for the answer to this.
    Busy(Job),
}

/// A connection of the pool.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Which server it goes to.
    pub(crate) target: usize,
    /// What it does.
    pub(crate) state: State,
    stream: Option<TcpStream>,
    /// The beginning of an answer.
    held: Vec<u8>,
    /// The rest of a request.
    rest: Vec<u8>,
}

/// What reading came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// No whole answer yet.
    Nothing,
    /// An answer; the connection may be used again or not.
    Answer {
        /// What it means.
        verdict: Verdict,
        /// True if it may.
        keep: bool,
    },
    /// The connection is of no use any more.
    Broken(&'static str),
}

/// Buffers that all connections share.
#[derive(Debug)]
pub(crate) struct Buffers {
    input: Vec<u8>,
    chunks: Vec<u8>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            input: vec![0; READ_BYTES],
            chunks: Vec::new(),
        }
    }
}

impl Connection {
    /// A connection that is still to be made.
    pub(crate) fn new(target: usize) -> Self {
        Self {
            target,
            state: State::Down { retry_at: 0 },
            stream: None,
            held: Vec::new(),
            rest: Vec::new(),
        }
    }

    /// Begins to connect.
    pub(crate) fn connect(
        &mut self,
        address: SocketAddr,
        registry: &Registry,
        token: Token,
        now: u64,
    ) -> io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        // Edge-triggered: one registration serves for life.
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        self.stream = Some(stream);
        self.state = State::Connecting { since: now };
        self.held.clear();
        self.rest.clear();
        Ok(())
    }

    /// True once the connection stands; an error if it cannot.
    pub(crate) fn connected(&mut self) -> io::Result<bool> {
        let Some(stream) = &self.stream else {
            return Ok(false);
        };
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        match stream.peer_addr() {
            Ok(_) => {
                stream.set_nodelay(true)?;
                self.state = State::Free;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Forgets the socket.
    pub(crate) fn close(&mut self, retry_at: u64) {
        self.stream = None;
        self.state = State::Down { retry_at };
    }

    /// Sends a request; what the socket does not take at once follows when it is writable.
    pub(crate) fn send(&mut self, request: &[u8]) -> io::Result<()> {
        let Some(stream) = &mut self.stream else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        match stream.write(request) {
            Ok(written) if written == request.len() => Ok(()),
            Ok(written) => {
                self.rest.extend_from_slice(&request[written..]);
                self.flush()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.rest.extend_from_slice(request);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Sends the rest of a request, if there is one.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        while !self.rest.is_empty() {
            match stream.write(&self.rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.rest.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what there is. `closing`: the event told that the server has closed its side.
    pub(crate) fn receive(
        &mut self,
        buffers: &mut Buffers,
        shows: &Shows,
        closing: bool,
    ) -> Received {
        let call = match &self.state {
            State::Busy(job) => Some(job.op.call),
            _ => None,
        };
        loop {
            let Some(stream) = &mut self.stream else {
                return Received::Nothing;
            };
            let count = match stream.read(&mut buffers.input) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Received::Nothing;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Received::Broken("connection reset"),
            };
            let Some(call) = call else {
                // Nothing was asked: the end, or a complaint.
                return Received::Broken("closed while idle");
            };
            let found = self.digest(buffers, count, call, shows);
            match found {
                Received::Answer { verdict, keep } => {
                    let keep = keep && !closing && self.rest.is_empty();
                    return Received::Answer { verdict, keep };
                }
                Received::Broken(_) => return found,
                // Less than asked for: nothing is left, and news will make an event of its own.
                Received::Nothing if count < READ_BYTES && !closing => return found,
                Received::Nothing => {}
            }
        }
    }

    /// Looks for an answer in what was held and what has just been read.
    fn digest(
        &mut self,
        buffers: &mut Buffers,
        count: usize,
        call: Call,
        shows: &Shows,
    ) -> Received {
        let Buffers { input, chunks } = buffers;
        let new = &input[..count];
        let whole = self.held.is_empty();
        if !whole {
            self.held.extend_from_slice(new);
        }
        let bytes = if whole { new } else { self.held.as_slice() };
        match wire::parse(bytes, count == 0, chunks) {
            Ok(Some(answer)) => {
                let verdict = judge(call, answer.status, answer.body, shows);
                // More than was asked for: whatever it is, it answers nothing of ours.
                let keep = answer.keep && answer.length == bytes.len();
                self.held.clear();
                Received::Answer { verdict, keep }
            }
            Ok(None) if count == 0 => Received::Broken("closed before the answer"),
            Ok(None) => {
                if whole {
                    self.held.extend_from_slice(new);
                }
                Received::Nothing
            }
            Err(wire::Malformed) => Received::Broken("not HTTP"),
        }
    }
}
