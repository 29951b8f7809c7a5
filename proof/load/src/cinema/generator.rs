//! The load generator: one thread, a task for each user, connections that the tasks share.
//!
//! It shares the machine with what it measures, so nothing moves between threads and nothing is locked.
//! Closed loop: a user asks again as soon as it is answered, after a pause if that was a refusal. Open loop: command
//! `c` belongs to user `c` modulo users and is intended at its place in the schedule; while the user's request before
//! is under way it waits, and waiting counts. Reads have a schedule of their own and wait for nobody.
//! Invariant: every request that was intended ends in the figures, as answered, failed or unsent.
//! Not here: what users ask (`script`), what figures are (`measure`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use gesta_report::failure::{Failure, Result, fail};

use crate::pool::{Pool, Taken};
use crate::schedule::{self, Stretch};
use futures::stream::{self, StreamExt as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::measure::PhaseResult;
use super::model::{Answer, Call, Op, Outcome, Shows};
use super::routes::{Arrival, Routes};
use super::script::{Script, User};
use crate::machine::http::Connection;
use crate::random::Random;
use crate::schedule::PAUSE_OF_CLOSED;

/// A request without an answer has failed. So long that a machine that stands still fails none.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Pause before a connection or a request of a batch is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long the first connections may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);
/// Requests of a batch under way at once.
const BATCH: usize = 64;
/// A batch in which nothing succeeds for so long is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// Shows of so many acknowledged commands are kept in mind for reads.
const RECENT: usize = 64;

pub use crate::schedule::Drive;

/// A stretch of load.
#[derive(Debug, Clone, Copy)]
pub struct Phase {
    /// How requests come.
    pub drive: Drive,
    /// Share of reads among requests.
    pub reads: f64,
    /// The first part, kept apart.
    pub warm_up: Duration,
    /// The part that counts.
    pub duration: Duration,
    /// Answers slower than this are marked in the time line.
    pub slow: Duration,
}

/// A phase with its times.
pub type Window = schedule::Window<Phase>;

/// The times of phases without pauses between them.
pub fn windows(phases: &[Phase], begin: Instant) -> Vec<Window> {
    schedule::windows(phases, begin, |phase| Stretch {
        drive: phase.drive,
        warm_up: phase.warm_up,
        duration: phase.duration,
    })
}

/// A server, and the connections to it.
struct Server {
    address: SocketAddr,
    pool: Pool<Connection>,
}

impl Server {
    /// The next free place, in turn, once its connection can take a request.
    async fn take(&self) -> Taken<'_, Connection> {
        let mut taken = self.pool.take().await;
        loop {
            if let Some(connection) = &mut taken.connection
                && connection.is_ready().await
            {
                return taken;
            }
            taken.connection = Connection::open(self.address).await.ok();
            if taken.connection.is_none() {
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

struct State {
    script: Script,
    users: Vec<User>,
    ledger: Ledger,
    random: Random,
    /// Shows of the last acknowledged commands, and who acknowledged them.
    recent: VecDeque<(u32, usize)>,
    phases: Vec<(Window, PhaseResult)>,
}

/// Users who ask, and what they were told.
pub struct Generator {
    /// What is asked about.
    pub shows: Shows,
    servers: Vec<Server>,
    routes: Routes,
    state: RefCell<State>,
}

impl Generator {
    /// A generator with so many connections, on the shows of a script that are there already, which it has created.
    pub async fn begin(
        targets: &[SocketAddr],
        connections: usize,
        seed: u64,
        script: Script,
    ) -> Result<Rc<Self>> {
        Self::begin_routed(targets, connections, seed, script, Routes::default()).await
    }

    /// The same, where it is known which node owns which show.
    pub async fn begin_routed(
        targets: &[SocketAddr],
        connections: usize,
        seed: u64,
        script: Script,
        routes: Routes,
    ) -> Result<Rc<Self>> {
        let (shows, existing) = (script.shows, script.next_show);
        let servers = targets.iter().map(|address| Server {
            address: *address,
            pool: Pool::new(),
        });
        let generator = Rc::new(Self {
            shows,
            servers: servers.collect(),
            routes,
            state: RefCell::new(State {
                script,
                users: Vec::new(),
                ledger: Ledger::new(shows),
                random: Random::fork(seed, 4),
                recent: VecDeque::new(),
                phases: Vec::new(),
            }),
        });
        generator.connect(connections).await?;
        let creations = (0..existing).map(|show| Op::of_show(Call::Create, show));
        generator.batch(creations.collect(), 0).await;
        let created = generator.with_ledger(|ledger| ledger.created().count());
        match (existing as usize).saturating_sub(created) {
            0 => Ok(generator),
            missing => fail(format!(
                "{missing} of {existing} shows could not be created"
            )),
        }
    }

    /// Works on the ledger.
    pub fn with_ledger<T>(&self, work: impl FnOnce(&mut Ledger) -> T) -> T {
        work(&mut self.state.borrow_mut().ledger)
    }

    /// The ledger of a generator that is done.
    pub fn into_ledger(self: Rc<Self>) -> Ledger {
        let empty = Ledger::new(self.shows);
        self.with_ledger(|ledger| std::mem::replace(ledger, empty))
    }

    /// How many servers are asked.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Users go on in another way; they finish what they have begun.
    pub fn switch(&self, scenario: super::script::Scenario) {
        self.state.borrow_mut().script.switch(scenario);
    }

    /// Opens connections until there are `count`, shared by the servers, and waits until all stand.
    pub async fn connect(&self, count: usize) -> Result<()> {
        for server in &self.servers {
            let wanted = count.div_ceil(self.servers.len());
            let more = wanted.saturating_sub(server.pool.size());
            let mut opened = Vec::new();
            let open = async {
                for _ in 0..more {
                    opened.push(Some(Connection::open(server.address).await?));
                }
                Ok::<_, Failure>(())
            };
            let in_time = timeout(CONNECT_WITHIN, open).await;
            in_time.unwrap_or_else(|_| fail(format!("{} takes no connections", server.address)))?;
            server.pool.add(opened);
        }
        Ok(())
    }

    /// Runs phases without a pause between them, and waits until everything has ended.
    pub async fn run(
        self: &Rc<Self>,
        windows: &[Window],
        stop: &CancellationToken,
    ) -> Vec<PhaseResult> {
        let users = |window: &Window| match window.phase.drive {
            Drive::Closed(users) | Drive::Open { users, .. } => users,
        };
        let most = windows.iter().map(users).max().unwrap_or(0);
        {
            let state = &mut *self.state.borrow_mut();
            while state.users.len() < most {
                state.users.push(state.script.user());
            }
            let fresh = |window: &Window| (*window, PhaseResult::new(self.servers()));
            state.phases = windows.iter().map(fresh).collect();
        }
        let mut tasks = JoinSet::new();
        for user in 0..most {
            let (generator, stop) = (Rc::clone(self), stop.clone());
            let own = windows.iter().filter(|window| user < users(window));
            let own: Vec<Window> = own.copied().collect();
            tasks.spawn_local(async move {
                for window in own {
                    generator.run_user(user, &window, &stop).await;
                }
            });
        }
        for window in windows.iter().copied() {
            let (generator, stop) = (Rc::clone(self), stop.clone());
            if let Drive::Open { rate, .. } = window.phase.drive {
                let rate = rate * window.phase.reads;
                tasks.spawn_local(generator.scheduled_reads(window, rate, stop));
            }
        }
        let last = windows.last().map(|window| window.end);
        tokio::select! {
            () = sleep_until(last.unwrap_or_else(Instant::now)) => {}
            () = stop.cancelled() => {}
        }
        let now = Instant::now();
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no user panics");
        }
        let phases = std::mem::take(&mut self.state.borrow_mut().phases);
        let results = phases.into_iter().map(|(window, mut result)| {
            let end = window.end.min(now);
            result.seconds = end.saturating_duration_since(window.from).as_secs_f64();
            result.complete = now >= window.end;
            result
        });
        results.collect()
    }

    /// A user through a phase.
    async fn run_user(&self, user: usize, window: &Window, stop: &CancellationToken) {
        if let Drive::Open { rate, users } = window.phase.drive {
            let rate = rate * (1.0 - window.phase.reads);
            return self.keep_schedule(user, users, rate, window, stop).await;
        }
        sleep_until(window.begin).await;
        while !stop.is_cancelled() && Instant::now() < window.end {
            let op = self.chosen(user, window.phase.reads);
            let now = Instant::now();
            let Some(outcome) = self.once(op, user, window, now, now, stop).await else {
                return;
            };
            if matches!(outcome, Outcome::Refused | Outcome::Failed) {
                stop.run_until_cancelled(sleep(PAUSE_OF_CLOSED)).await;
            }
        }
    }

    async fn keep_schedule(
        &self,
        user: usize,
        users: usize,
        rate: f64,
        window: &Window,
        stop: &CancellationToken,
    ) {
        let mut freed = window.begin;
        let turns = (user as u64..).step_by(users.max(1));
        let mut starts = turns.map_while(|number| window.start(number, rate));
        while let Some(intended) = starts.next() {
            tokio::select! {
                () = sleep_until(intended) => {}
                () = stop.cancelled() => return,
            }
            let (op, ready) = (self.command(user), intended.max(freed));
            let ended = self.once(op, user, window, intended, ready, stop).await;
            if ended.is_none() {
                // The rest comes too late too.
                if !stop.is_cancelled() {
                    starts.for_each(|intended| self.unsent(window, intended));
                }
                return;
            }
            freed = Instant::now();
        }
    }

    async fn scheduled_reads(self: Rc<Self>, window: Window, rate: f64, stop: CancellationToken) {
        let mut reads = JoinSet::new();
        let starts = (0..).map_while(|number| window.start(number, rate));
        for intended in starts {
            tokio::select! {
                () = sleep_until(intended) => {}
                () = stop.cancelled() => break,
            }
            if let Some(show) = self.recent_show() {
                let (generator, stop) = (Rc::clone(&self), stop.clone());
                reads.spawn_local(async move {
                    let read = Op::of_show(Call::Read, show);
                    let done = generator.once(read, 0, &window, intended, intended, &stop);
                    done.await
                });
            }
            while reads.try_join_next().is_some() {}
        }
        reads.join_all().await;
    }

    /// The user's next command; the same again if it is not sent.
    fn command(&self, user: usize) -> Op {
        let state = &mut *self.state.borrow_mut();
        state.script.next(&mut state.users[user])
    }

    /// Closed loop: the user's next command, or by chance a read.
    fn chosen(&self, user: usize, reads: f64) -> Op {
        let is_read = reads > 0.0 && self.state.borrow_mut().random.fraction() < reads;
        match is_read.then(|| self.recent_show()).flatten() {
            Some(show) => Op::of_show(Call::Read, show),
            None => self.command(user),
        }
    }

    /// The show of a command that was acknowledged a moment ago.
    fn recent_show(&self) -> Option<u32> {
        let state = &mut *self.state.borrow_mut();
        let count = state.recent.len();
        (count > 0).then(|| state.recent[state.random.below(count)].0)
    }

    /// Users keep to one server unless the routes say another; reads go where the show was not changed last.
    fn server_of(&self, op: Op, user: usize) -> usize {
        if let Some(server) = self.routes.server(&self.shows, op.show, user) {
            return server;
        }
        let state = self.state.borrow();
        let changed = state.recent.iter().rev().find(|(show, _)| *show == op.show);
        match changed.filter(|_| op.call == Call::Read) {
            Some((_, server)) => (server + 1) % self.servers(),
            None => user % self.servers(),
        }
    }

    /// One request, as soon as a connection is free, and how it ended; none if it was never sent. `ready`: from when on
    /// it could be sent.
    async fn once(
        &self,
        op: Op,
        user: usize,
        window: &Window,
        intended: Instant,
        ready: Instant,
        stop: &CancellationToken,
    ) -> Option<Outcome> {
        let server = self.server_of(op, user);
        let asked = Instant::now();
        let mut taken = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            () = sleep_until(window.until) => {
                self.unsent(window, intended);
                return None;
            }
            taken = self.servers[server].take() => taken,
        };
        let sent = Instant::now();
        if let Some((_, result)) = self.state.borrow_mut().phases.get_mut(window.number) {
            if intended >= window.from {
                result.lag.record(asked.saturating_duration_since(ready));
                result.connection_wait.record(sent - asked);
            }
            result.sent += u64::from(sent >= window.from && sent < window.end);
        }
        let (answer, error) = self.ask(&mut taken, server, op).await;
        drop(taken);
        let state = &mut *self.state.borrow_mut();
        if op.call != Call::Read {
            state.script.settle(&mut state.users[user], answer.outcome);
        }
        let arrival = self.routes.arrival(&self.shows, op.show, server);
        state.account(
            window,
            intended,
            (op, arrival),
            server,
            answer.outcome,
            error,
        );
        Some(answer.outcome)
    }

    fn unsent(&self, window: &Window, intended: Instant) {
        let mut state = self.state.borrow_mut();
        let (_, result) = &mut state.phases[window.number];
        if intended >= window.from {
            result.unsent.record(intended.elapsed());
        }
        result.slot(intended - window.begin).intended += 1;
    }

    /// Sends a request and writes down what came of it; also the cause of a failure.
    async fn ask(
        &self,
        taken: &mut Taken<'_, Connection>,
        server: usize,
        op: Op,
    ) -> (Answer, Option<String>) {
        let begin = self.with_ledger(Ledger::tick);
        let (method, path, body) = op.request(&self.shows);
        let connection = taken.connection.as_mut().expect("taken with a connection");
        let asked = timeout(TIMEOUT, connection.ask(method, &path, body)).await;
        let (answer, error) = match asked {
            Ok(Ok((status, body))) => {
                let answer = Answer::of(op.call, status, &body, &self.shows);
                let failed = answer.outcome == Outcome::Failed;
                let error = failed.then(|| format!("{} answered {status}", op.call.name()));
                (answer, error)
            }
            Ok(Err(failure)) => (Answer::NONE, Some(failure.0)),
            Err(_) => (Answer::NONE, Some("time-out".into())),
        };
        if answer.status == 0 {
            taken.connection = None;
        }
        let state = &mut *self.state.borrow_mut();
        state.ledger.record(op, begin, answer);
        if answer.outcome == Outcome::Accepted && op.call != Call::Read {
            if state.recent.len() == RECENT {
                state.recent.pop_front();
            }
            state.recent.push_back((op.show, server));
        }
        (answer, error)
    }

    /// Runs requests that must all succeed on a server, some at a time; returns how many did not.
    pub async fn batch(&self, ops: Vec<Op>, server: usize) -> usize {
        let progress = Cell::new(Instant::now());
        let asked = stream::iter(ops).map(|op| self.insist(op, server, &progress));
        let asked = asked.buffer_unordered(BATCH);
        asked.filter(|done| std::future::ready(!done)).count().await
    }

    async fn insist(&self, op: Op, server: usize, progress: &Cell<Instant>) -> bool {
        while progress.get().elapsed() < PATIENCE {
            let Ok(mut taken) = timeout(PATIENCE, self.servers[server].take()).await else {
                return false;
            };
            let (answer, _) = self.ask(&mut taken, server, op).await;
            // What was rejected or cannot be read stays so: the ledger knows whether that is wrong.
            let again = match answer.outcome {
                Outcome::Accepted | Outcome::Rejected => false,
                Outcome::Refused => true,
                Outcome::Failed => op.call != Call::Read || !(200..300).contains(&answer.status),
            };
            if !again {
                progress.set(Instant::now());
                return true;
            }
            drop(taken);
            sleep(RETRY_PAUSE).await;
        }
        false
    }
}

impl State {
    /// Puts the end of a request into the figures.
    fn account(
        &mut self,
        window: &Window,
        intended: Instant,
        (op, arrival): (Op, Option<Arrival>),
        server: usize,
        outcome: Outcome,
        error: Option<String>,
    ) {
        let now = Instant::now();
        let latency = now - intended;
        let (_, result) = &mut self.phases[window.number];
        if let Some(error) = error {
            *result.errors.entry(error).or_default() += 1;
        }
        if intended >= window.from {
            result.record(op.call, outcome, latency);
            if matches!(outcome, Outcome::Accepted | Outcome::Rejected) {
                result.record_arrival(arrival, latency);
            }
        }
        let slot = result.slot(intended - window.begin);
        slot.intended += 1;
        let in_time = outcome == Outcome::Accepted && latency <= window.phase.slow;
        slot.good += u64::from(in_time);
        // Goodput is what is answered in the time of a phase, whichever phase it was asked in.
        let mut phases = self.phases.iter_mut();
        if let Some((_, current)) = phases.find(|(w, _)| w.from <= now && now < w.end) {
            current.answered[outcome as usize] += 1;
            if outcome == Outcome::Accepted {
                current.by_server[server][usize::from(op.call == Call::Read)] += 1;
            }
        }
    }
}
