//! The load generator: one thread, one event loop, all connections.
//!
//! Why so: it shares the machine with what it measures. Nothing is spawned, armed or allocated per request. The closed
//! loop wakes when an answer comes; the open loop wakes by a tick and then takes all answers that have come and sends all
//! that is due, because a wake-up costs more than a request. So its latencies are up to two ticks too long, never too short.
//! What is left is the kernel's: of its time some 80 % are one `send` and one `recv` per request.
//! Invariants: a connection has at most one request under way; every request that was intended ends in the figures, as
//! answered, failed or unsent.
//! Not here: who sends what and when (`drive`), preparation and final reads (`batch`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio_util::sync::CancellationToken;

use crate::failure::{Context, Result, fail};
use crate::random::Random;
use crate::reservation::batch::BatchQueue;
use crate::reservation::connection::{Buffers, Connection, Job, Received, State};
use crate::reservation::drive::{Course, Rider};
use crate::reservation::ledger::Ledger;
use crate::reservation::model::{Call, Op, Outcome, Shows, Verdict};
use crate::reservation::script::Script;
use crate::reservation::wire;

/// How often time-outs, lost connections and the wish to stop are looked at.
const LOOK_NANOS: u64 = 10_000_000;
/// Pause before a connection is tried again.
const RETRY_NANOS: u64 = 20_000_000;
/// Connections that are begun at once, so that no backlog overflows.
const CONNECTS_AT_ONCE: usize = 64;
/// How long the first connections may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Events taken per wake-up.
const EVENTS: usize = 1_024;

/// What a generator is told.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The servers.
    pub(crate) targets: Vec<SocketAddr>,
    /// When a request without an answer has failed.
    pub(crate) timeout: Duration,
    /// How often the open loop wakes.
    pub(crate) tick: Duration,
    /// Seed of choices.
    pub(crate) seed: u64,
}

/// One of the servers.
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) host: Vec<u8>,
    /// Connections ready for use; the last used first, because it is warm.
    pub(crate) free: Vec<usize>,
    /// Who waits for one.
    pub(crate) waiting: VecDeque<Wish>,
    /// Of the batch under way.
    pub(crate) batch: BatchQueue,
}

/// A request that could be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// Whose.
    pub(crate) user: u32,
    /// A read of this show instead of the user's next command.
    pub(crate) read: Option<u32>,
    /// When it was to start.
    pub(crate) intended: u64,
    /// From when on it could.
    pub(crate) ready: u64,
}

/// The generator.
pub(crate) struct Generator {
    poll: Poll,
    timer: TimerFd,
    tick: Duration,
    ticking: bool,
    epoch: Instant,
    timeout: u64,
    looked: u64,
    pub(crate) targets: Vec<Target>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) riders: Vec<Rider>,
    pub(crate) script: Script,
    /// Everything that was asked and answered.
    pub(crate) ledger: Ledger,
    pub(crate) courses: Vec<Course>,
    pub(crate) random: Random,
    /// Shows of the last acknowledged commands, and who acknowledged them.
    pub(crate) recent: Vec<(u32, usize)>,
    pub(crate) recent_next: usize,
    /// True while users may begin new requests.
    pub(crate) issuing: bool,
    /// Requests whose connection broke while they were sent.
    broken: Vec<(Job, usize)>,
    buffers: Buffers,
    request: Vec<u8>,
    /// Commands acknowledged so far, for those who watch.
    pub(crate) acknowledged: Arc<AtomicU64>,
}

impl Generator {
    /// A generator without connections.
    pub(crate) fn new(settings: &Settings, shows: Shows, script: Script) -> Result<Self> {
        let poll = Poll::new().context("epoll")?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::empty())?;
        let targets = settings.targets.iter().map(|address| Target {
            address: *address,
            host: address.to_string().into_bytes(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            batch: BatchQueue::default(),
        });
        Ok(Self {
            poll,
            timer,
            tick: settings.tick,
            ticking: false,
            epoch: Instant::now(),
            timeout: nanos(settings.timeout),
            looked: 0,
            targets: targets.collect(),
            connections: Vec::new(),
            riders: Vec::new(),
            script,
            ledger: Ledger::new(shows),
            courses: Vec::new(),
            random: Random::fork(settings.seed, 4),
            recent: Vec::new(),
            recent_next: 0,
            issuing: false,
            broken: Vec::new(),
            buffers: Buffers::default(),
            request: Vec::with_capacity(512),
            acknowledged: Arc::default(),
        })
    }

    /// Nanoseconds since the generator began.
    pub(crate) fn now(&self) -> u64 {
        nanos(self.epoch.elapsed())
    }

    /// Opens connections until there are `count`, shared by the servers, and waits until all stand.
    pub(crate) fn connect(&mut self, count: usize) -> Result<()> {
        let servers = self.targets.len();
        while self.connections.len() < count {
            let target = self.connections.len() % servers;
            self.connections.push(Connection::new(target));
        }
        let deadline = Instant::now() + CONNECT_WITHIN;
        let mut events = Events::with_capacity(EVENTS);
        let ready =
            |connection: &Connection| matches!(connection.state, State::Free | State::Busy(_));
        while !self.connections.iter().all(ready) {
            if Instant::now() > deadline {
                let missing = self.connections.iter().filter(|c| !ready(c)).count();
                return fail(format!("{missing} of {count} connections cannot be made"));
            }
            self.looked = 0;
            self.turn(&mut events)?;
        }
        Ok(())
    }

    /// Ticks, or stops ticking.
    pub(crate) fn tick(&mut self, ticking: bool) -> Result<()> {
        self.ticking = ticking;
        if ticking {
            let interval = Expiration::Interval(TimeSpec::from_duration(self.tick));
            self.timer.set(interval, TimerSetTimeFlags::empty())?;
        } else {
            self.timer.unset()?;
        }
        Ok(())
    }

    /// Waits for something to happen, and deals with it.
    pub(crate) fn turn(&mut self, events: &mut Events) -> Result<()> {
        let mut patience = Duration::from_nanos(LOOK_NANOS);
        if self.ticking {
            self.timer.wait()?;
            patience = Duration::ZERO;
        }
        match self.poll.poll(events, Some(patience)) {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                return Err(error).context("epoll");
            }
            _ => {}
        }
        for event in events.iter() {
            let closing = event.is_read_closed() || event.is_error();
            self.ready(event.token().0, event.is_writable(), closing);
        }
        let now = self.now();
        if now - self.looked >= LOOK_NANOS || self.looked == 0 {
            self.looked = now.max(1);
            self.look(now);
        }
        while let Some((job, target)) = self.broken.pop() {
            self.error("connection reset while sending");
            self.finish(job, target, Verdict::NO_ANSWER);
        }
        Ok(())
    }

    /// Runs turns until `over` says so or the wish to stop comes; true unless it came.
    pub(crate) fn turns(
        &mut self,
        events: &mut Events,
        stop: &CancellationToken,
        mut over: impl FnMut(&mut Self, u64) -> bool,
    ) -> Result<bool> {
        loop {
            let now = self.now();
            if over(self, now) {
                return Ok(true);
            }
            if stop.is_cancelled() {
                return Ok(false);
            }
            self.turn(events)?;
        }
    }

    /// Number of requests under way.
    pub(crate) fn under_way(&self) -> usize {
        let busy = |c: &&Connection| matches!(c.state, State::Busy(_));
        self.connections.iter().filter(busy).count()
    }

    /// Something happened on a connection.
    fn ready(&mut self, index: usize, writable: bool, closing: bool) {
        if let State::Connecting { .. } = self.connections[index].state {
            match self.connections[index].connected() {
                Ok(true) => self.release(index),
                Ok(false) => {}
                Err(_) => self.drop_connection(index),
            }
            return;
        }
        let shows = self.ledger.shows;
        let connection = &mut self.connections[index];
        if writable && connection.flush().is_err() {
            return self.break_off(index, "connection reset while sending");
        }
        match connection.receive(&mut self.buffers, &shows, closing) {
            Received::Nothing => {}
            Received::Broken(cause) => self.break_off(index, cause),
            Received::Answer { verdict, keep } => {
                let target = connection.target;
                let State::Busy(job) = std::mem::replace(&mut connection.state, State::Free) else {
                    return;
                };
                if keep {
                    self.release(index);
                } else {
                    self.drop_connection(index);
                    // As fast as a client that reconnects at once.
                    self.connections[index].state = State::Down { retry_at: 0 };
                }
                self.finish(job, target, verdict);
            }
        }
    }

    /// The connection can take the next request.
    fn release(&mut self, index: usize) {
        let target = self.connections[index].target;
        if let Some(op) = self.next_of_batch(target) {
            return self.send_batch(index, op);
        }
        match self.targets[target].waiting.pop_front() {
            Some(wish) => self.send_wish(index, wish, true),
            None => self.targets[target].free.push(index),
        }
    }

    /// Sends a request on a connection that is free and in no list.
    pub(crate) fn send(&mut self, index: usize, mut job: Job) {
        let connection = &mut self.connections[index];
        let target = connection.target;
        job.begin = self.ledger.tick();
        self.request.clear();
        let host = &self.targets[target].host;
        wire::write_request(&mut self.request, host, job.op, &self.ledger.shows);
        connection.state = State::Busy(job);
        if connection.send(&self.request).is_err() {
            self.drop_connection(index);
            self.broken.push((job, target));
        }
    }

    /// The connection is gone; so is the answer that it owed.
    fn break_off(&mut self, index: usize, cause: &str) {
        let connection = &mut self.connections[index];
        let target = connection.target;
        let state = std::mem::replace(&mut connection.state, State::Free);
        self.drop_connection(index);
        match state {
            State::Busy(job) => {
                self.error(cause);
                self.finish(job, target, Verdict::NO_ANSWER);
            }
            // A server may close idle connections; the next use opens it again at once.
            State::Free => self.connections[index].state = State::Down { retry_at: 0 },
            _ => {}
        }
    }

    fn drop_connection(&mut self, index: usize) {
        let target = self.connections[index].target;
        let free = &mut self.targets[target].free;
        if let Some(at) = free.iter().rposition(|other| *other == index) {
            free.remove(at);
        }
        let retry_at = self.now() + RETRY_NANOS;
        self.connections[index].close(retry_at);
    }

    /// Connects what is not connected, and gives up what takes too long.
    fn look(&mut self, now: u64) {
        let mut begun = 0;
        for index in 0..self.connections.len() {
            match self.connections[index].state {
                State::Down { retry_at } if retry_at <= now && begun < CONNECTS_AT_ONCE => {
                    begun += 1;
                    let address = self.targets[self.connections[index].target].address;
                    let registry = self.poll.registry();
                    let connection = &mut self.connections[index];
                    if connection
                        .connect(address, registry, Token(index), now)
                        .is_err()
                    {
                        connection.close(now + RETRY_NANOS);
                    }
                }
                State::Connecting { since } if now - since > self.timeout => {
                    self.drop_connection(index);
                }
                State::Busy(job) if now.saturating_sub(job.sent) > self.timeout => {
                    self.break_off(index, "time-out");
                }
                _ => {}
            }
        }
    }

    /// A request has ended.
    fn finish(&mut self, job: Job, target: usize, verdict: Verdict) {
        self.ledger.record(job.op, job.begin, verdict);
        if verdict.status != 0 && verdict.outcome == Outcome::Failed {
            let what = format!("{} answered {}", job.op.call.name(), verdict.status);
            self.error(&what);
        }
        if verdict.outcome == Outcome::Accepted && job.op.call != Call::Read {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            self.remember(job.op, target);
        }
        if job.user == super::batch::BATCH {
            self.batch_answered(job.op, target, verdict);
        } else {
            self.account(&job, target, verdict.outcome);
            self.advance(&job, verdict.outcome);
        }
    }

    /// Keeps the show in mind for reads.
    fn remember(&mut self, op: Op, target: usize) {
        const RECENT: usize = 64;
        if self.recent.len() < RECENT {
            self.recent.push((op.show, target));
        } else {
            self.recent[self.recent_next % RECENT] = (op.show, target);
            self.recent_next += 1;
        }
    }

    /// Counts a failure of the current phase.
    fn error(&mut self, cause: &str) {
        if let Some(course) = self.courses.last_mut() {
            *course.result.errors.entry(cause.to_owned()).or_default() += 1;
        }
    }
}

/// A duration as nanoseconds.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
