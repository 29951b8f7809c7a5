//! A simulated cluster: cores with clocks of their own, against the tables of one simulated database.
//!
//! One thread, no real time: what happens next is the earliest of all events, and everything that is random comes from
//! one seed. After each event the promises are checked; a broken one is a panic that names the time.
#![allow(dead_code, reason = "each test crate uses a part")]

mod clock;
mod database;
mod process;
mod promises;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use gesta_cluster::core::Input;
use gesta_cluster::{Config, Note};
use gesta_core::LogId;
use gesta_core::registry::{NodeId, NodeState};
use gesta_kit::depth;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub(crate) use self::clock::Clock;
pub(crate) use self::database::Database;
pub(crate) use self::process::{Process, Run};
use self::process::{Request, Wait};
use self::promises::Promises;

pub(crate) const B: Duration = Duration::from_millis(1_500);
pub(crate) const D: Duration = Duration::from_secs(6);
/// The lease time: B with its jitter, D, and a round trip.
pub(crate) const LEASE_TIME: Duration = Duration::from_millis(7_700);

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Logs of most schedules.
pub(crate) const LOGS: u16 = 16;

/// Runs a schedule with several seeds; the one that fails is printed.
pub(crate) fn each_seed(schedule: impl Fn(u64)) {
    let first = depth::seed();
    for seed in (0..depth::count(6, 300)).map(|n| first.wrapping_add(n)) {
        println!("GESTA_SEED={seed}");
        schedule(seed);
    }
}

/// Three nodes that have shared the logs.
pub(crate) fn three(seed: u64) -> World {
    World::settled(seed, LOGS, 3)
}

pub(crate) fn default_config() -> Config {
    Config::default()
}

/// Something that happens at a moment.
#[derive(Debug)]
pub(crate) enum Event {
    /// A process looks at its clock.
    Wake { process: usize, token: u64 },
    /// A statement reaches the database.
    Reach {
        process: usize,
        life: u64,
        request: Request,
        wait: u64,
    },
    /// A statement whose answer is no longer awaited takes effect.
    Late { process: usize, request: Request },
    /// Something reaches a process.
    Arrive {
        process: usize,
        life: u64,
        wait: Wait,
        input: Input,
    },
}

struct Scheduled {
    at: Duration,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// How the network and the database behave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Roughness {
    /// Of 1,000 statements, so many get no answer and take effect, sooner or later, or not.
    pub(crate) lost: u32,
}

/// The simulated cluster.
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) processes: Vec<Process>,
    pub(crate) database: Database,
    pub(crate) random: SmallRng,
    pub(crate) roughness: Roughness,
    pub(crate) promises: Promises,
    /// Half of the messages between nodes are lost.
    pub(crate) loses_messages: bool,
    /// A node has been asked to be declared dead.
    pub(crate) is_declaring: bool,
    pub(crate) notes: Vec<(Duration, usize, Note)>,
    config: Config,
    events: BinaryHeap<Reverse<Scheduled>>,
    number: u64,
}

impl World {
    pub(crate) fn new(seed: u64, logs: u16, config: Config) -> Self {
        Self {
            now: Duration::ZERO,
            processes: Vec::new(),
            database: Database::new(logs),
            random: SmallRng::seed_from_u64(seed),
            roughness: Roughness::default(),
            promises: Promises::default(),
            loses_messages: false,
            is_declaring: false,
            notes: Vec::new(),
            config,
            events: BinaryHeap::new(),
            number: 0,
        }
    }

    /// So many nodes, started together, and left alone until all is settled.
    pub(crate) fn settled(seed: u64, logs: u16, nodes: usize) -> Self {
        let mut world = Self::new(seed, logs, Config::default());
        for _ in 0..nodes {
            world.start(Clock::default());
        }
        world.run(Duration::from_secs(90));
        world.assert_settled();
        world
    }

    // ---- nodes ----

    /// Starts a node with a new address.
    pub(crate) fn start(&mut self, clock: Clock) -> usize {
        self.start_build(clock, "1.0.0")
    }

    pub(crate) fn start_build(&mut self, clock: Clock, build: &str) -> usize {
        let process = self.processes.len();
        self.processes.push(Process::new(process, clock, build));
        self.restart(process);
        process
    }

    /// Starts the process again, at the same address.
    pub(crate) fn restart(&mut self, process: usize) {
        let (seed, config) = (self.random.random(), self.config);
        let node = &mut self.processes[process];
        node.begin(seed, config, self.now);
        self.step(process);
    }

    /// Starts a second process with the address of another one.
    pub(crate) fn start_at_address_of(&mut self, other: usize) -> usize {
        let process = self.processes.len();
        let mut node = Process::new(process, Clock::default(), "1.0.0");
        node.address.clone_from(&self.processes[other].address);
        self.processes.push(node);
        self.restart(process);
        process
    }

    pub(crate) fn restart_build(&mut self, process: usize, build: &str) {
        build.clone_into(&mut self.processes[process].build);
        self.restart(process);
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, process: usize) {
        self.processes[process].kill();
    }

    pub(crate) fn pause(&mut self, process: usize) {
        self.processes[process].run = Run::Paused;
    }

    pub(crate) fn resume(&mut self, process: usize) {
        if self.processes[process].run != Run::Paused {
            return;
        }
        self.processes[process].run = Run::Running;
        for event in std::mem::take(&mut self.processes[process].held) {
            self.schedule(self.now, event);
        }
        self.step(process);
    }

    pub(crate) fn input(&mut self, process: usize, input: Input) {
        let now = self.processes[process].clock.local(self.now);
        if let Some(core) = self.processes[process].core_if_running() {
            core.on(input, now);
            self.step(process);
        }
    }

    /// Drains and leaves, as a server that is told to stop.
    pub(crate) fn leave(&mut self, process: usize) {
        self.input(process, Input::Leave(Duration::from_secs(10)));
    }

    /// The id of a process' node.
    pub(crate) fn id(&self, process: usize) -> NodeId {
        self.processes[process].id.expect("has joined")
    }

    // ---- time ----

    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(Reverse(next)) = self.events.peek() {
            if next.at > until {
                break;
            }
            let Some(Reverse(next)) = self.events.pop() else {
                break;
            };
            self.advance(next.at);
            self.happen(next.event);
            self.check();
        }
        self.advance(until);
    }

    /// Runs until the condition holds, and tells how long that took.
    pub(crate) fn run_until(
        &mut self,
        what: &str,
        within: Duration,
        condition: impl Fn(&World) -> bool,
    ) -> Duration {
        let began = self.now;
        while !condition(self) {
            assert!(
                self.now < began + within,
                "not within {within:?}: {what}\n{self:?}"
            );
            self.run(Duration::from_millis(10));
        }
        self.now - began
    }

    fn advance(&mut self, to: Duration) {
        self.now = self.now.max(to);
        self.database.advance(self.now);
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.number += 1;
        let number = self.number;
        self.events.push(Reverse(Scheduled { at, number, event }));
    }

    fn happen(&mut self, event: Event) {
        let process = match &event {
            Event::Wake { process, .. } | Event::Arrive { process, .. } => Some(*process),
            Event::Reach { .. } | Event::Late { .. } => None,
        };
        if let Some(process) = process.filter(|at| self.processes[*at].run == Run::Paused) {
            self.processes[process].held.push(event);
            return;
        }
        match event {
            Event::Wake { process, token } if self.processes[process].token == token => {
                self.step(process);
            }
            Event::Wake { .. } => {}
            Event::Reach {
                process,
                life,
                request,
                wait,
            } => {
                self.reach(process, life, request, wait);
            }
            Event::Late { process, request } => {
                self.execute(process, &request);
            }
            Event::Arrive {
                process,
                life,
                wait,
                input,
            } => {
                if self.processes[process].takes(life, wait) {
                    self.input(process, input);
                }
            }
        }
    }

    fn check(&mut self) {
        self.promises
            .check(self.now, &self.database, &self.processes);
    }

    // ---- what tests ask ----

    pub(crate) fn logs_of(&self, process: usize) -> Vec<LogId> {
        let node = &self.processes[process];
        let look = self.database.tables.look();
        let holds = |log: &LogId| {
            let holder = look.holder(&look.leases[usize::from(log.0)]);
            holder.is_some_and(|holder| Some(holder.id) == node.id)
        };
        look.leases
            .iter()
            .map(|lease| lease.log)
            .filter(holds)
            .collect()
    }

    pub(crate) fn free(&self) -> usize {
        let look = self.database.tables.look();
        look.leases
            .iter()
            .filter(|lease| look.holder(lease).is_none())
            .count()
    }

    /// Every log is owned by a running node that knows it; nobody has more than its share.
    pub(crate) fn assert_settled(&self) {
        self.assert_owned();
        let logs = self.database.tables.look().leases.len();
        let takes_part = |node: &&Process| node.run == Run::Running && !node.is_cut;
        let up = self.processes.iter().filter(takes_part).count();
        for node in &self.processes {
            let count = self.logs_of(node.number).len();
            assert!(
                count <= logs.div_ceil(up),
                "node {} has {count} logs\n{self:?}",
                node.number
            );
        }
    }

    pub(crate) fn assert_owned(&self) {
        assert!(
            self.is_owned(),
            "a log is free, or its owner does not know it\n{self:?}"
        );
    }

    /// True if every log has an owner that knows it.
    pub(crate) fn is_owned(&self) -> bool {
        let look = self.database.tables.look();
        look.leases.iter().all(|lease| {
            let holder = look.holder(lease).map(|holder| holder.id);
            let mut owners = self
                .processes
                .iter()
                .filter(|node| holder.is_some() && node.id == holder);
            owners.any(|node| node.is_mine(lease.log))
        })
    }

    pub(crate) fn assert_nobody_declared_dead(&self) {
        assert_eq!(self.promises.deaths, [], "nobody has died");
    }

    /// Moves of leases since a number of them.
    pub(crate) fn moves(&self) -> usize {
        self.promises.moves
    }

    pub(crate) fn drain(&mut self, process: usize, state: NodeState) {
        self.input(process, Input::Drain(state));
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "at {:?}", self.now)?;
        for (at, process, note) in self.notes.iter().rev().take(60).rev() {
            writeln!(f, "{at:?} node {process}: {note}")?;
        }
        for node in &self.processes {
            writeln!(
                f,
                "{} is {:?}, {:?}, cut {}: {:?}",
                node.number,
                node.id,
                node.run,
                node.is_cut,
                self.logs_of(node.number)
            )?;
        }
        let look = self.database.tables.look();
        for node in &look.nodes {
            writeln!(f, "{node:?}")?;
        }
        for lease in &look.leases {
            let holder = look.holder(lease).map(|node| node.id);
            writeln!(f, "{} holder {holder:?} {lease:?}", lease.log)?;
        }
        Ok(())
    }
}
