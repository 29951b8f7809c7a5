//! The membership of nodes: cores with clocks of their own, against the tables of one simulated database.
//!
//! What happens next is the earliest of all events. Nodes die, sleep, start again, leave, drain and are cut off from
//! the database or from each other; their clocks run a tenth fast or slow; statements get no answer, and take effect
//! late or never; the database is away, fails over and loses leases, and its clock is set; people ask for moves, pin
//! logs and hold nodes.
//!
//! Checked after each event: a node that has beaten is not declared dead; no two nodes own a log in one epoch, whatever
//! they say; epochs never shrink but by a loss; nobody serves a log while it hands it over. After some quiet every log
//! has an owner that knows it, and nobody has more than its share. A broken promise is a panic that names the time.
//!
//! * `random`: schedules that nobody has thought of; `deaths`, `moves`: those that leases must survive, each by name;
//! * `process`, `clock`, `database`: the parts; `promises`: what must hold after every event.

mod clock;
mod database;
mod deaths;
mod moves;
mod process;
mod promises;
mod random;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use gesta_cluster::core::Input;
use gesta_cluster::{Config, Note};
use gesta_core::LogId;
use gesta_core::registry::{NodeId, NodeState};

use self::clock::Clock;
use self::database::Database;
use self::process::{Process, Request, Run, Wait};
use self::promises::Promises;
use crate::choices::Choices;
use crate::driver::{Form, Schedule, Trace, World};

/// Makes a form of each named schedule, of one turn in a round, and one of the random schedules, which get as many
/// turns as all others together.
macro_rules! forms {
    ($($module:ident { $($name:ident,)* })*) => {
        &[
            Form {
                name: "random",
                turns: [$($(stringify!($name),)*)*].len() as u64,
                run: |schedule| {
                    random::random(schedule);
                    Ok(())
                },
            },
            $($(Form {
                name: stringify!($name),
                turns: 1,
                run: |schedule| {
                    $module::$name(schedule);
                    Ok(())
                },
            },)*)*
        ]
    };
}

/// The world.
pub static WORLD: World = World {
    name: "membership",
    forms: forms! {
        deaths {
            logs_of_a_killed_node_are_claimed_within_the_lease_time,
            refused_connections_find_a_killed_node_sooner,
            a_node_that_beats_is_not_declared_dead_for_refused_connections,
            a_node_that_restarts_claims_its_old_logs_at_once,
            an_owner_that_sleeps_loses_its_logs_once_and_joins_again,
            a_short_sleep_moves_nothing,
            a_beat_that_comes_just_in_time_counts,
            an_observer_that_slept_declares_nobody_dead,
            an_observer_that_dozes_declares_nobody_dead,
            when_all_sleep_and_wake_each_log_moves_at_most_once,
            an_outage_of_the_database_moves_nothing,
            a_database_that_comes_and_goes_moves_nothing,
            a_node_that_dies_in_an_outage_is_found_a_lease_time_after_it,
            clocks_have_no_effect,
            a_node_that_is_cut_off_from_the_database_loses_its_logs,
            a_node_that_finds_most_others_dead_waits_longer,
            however_many_of_five_die_their_logs_are_claimed_within_ten_seconds,
            a_node_declares_one_other_dead_in_a_beat,
            of_two_claimers_each_log_gets_one,
            beats_go_on_while_changes_hang,
            a_fail_over_that_loses_leases_ends_with_one_owner_of_each_log,
            a_node_whose_row_was_lost_is_not_replaced_by_who_got_its_number,
            a_beat_after_a_fail_over_is_a_sign_of_life,
            an_epoch_that_went_back_is_raised_above_the_known_one,
            a_process_that_is_replaced_while_it_lives_stops,
            a_node_alone_owns_everything_at_once,
        }
        moves {
            a_node_that_others_cannot_call_gives_its_logs_away,
            a_node_that_others_cannot_call_and_that_keeps_its_logs_is_declared_dead,
            a_node_whose_links_heal_one_after_the_other_keeps_its_logs,
            a_node_that_leaves_looks_once_more_for_takers,
            a_node_that_nobody_can_take_logs_from_leaves_at_once,
            a_rolling_restart_moves_at_most_26_logs,
            a_node_that_joins_gets_its_share_one_log_at_a_time_after_settling,
            a_drain_that_is_held_outlasts_restarts,
            nothing_moves_for_balance_while_builds_differ,
            a_log_whose_pipeline_is_stuck_goes_alone,
            if_all_pipelines_are_stuck_all_logs_stay,
            a_node_that_drains_keeps_nothing_and_receives_nothing,
            requests_pins_and_freezing_are_followed,
        }
    },
};

const B: Duration = Duration::from_millis(1_500);
const D: Duration = Duration::from_secs(6);
/// The lease time: B with its jitter, D, and a round trip.
const LEASE_TIME: Duration = Duration::from_millis(7_700);

const SECOND: Duration = Duration::from_secs(1);
/// Logs of most schedules.
const LOGS: u16 = 16;

/// Three nodes that have shared the logs.
fn three(schedule: &mut Schedule) -> Cluster<'_> {
    Cluster::settled(schedule, LOGS, 3)
}

/// Something that happens at a moment.
#[derive(Debug)]
enum Event {
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
struct Roughness {
    /// Of 1,000 statements, so many get no answer and take effect, sooner or later, or not.
    lost: u32,
}

/// The simulated cluster.
struct Cluster<'a> {
    now: Duration,
    processes: Vec<Process>,
    database: Database,
    choices: &'a mut Choices,
    reached: &'a mut BTreeMap<&'static str, u32>,
    trace: Trace,
    roughness: Roughness,
    promises: Promises,
    /// Half of the messages between nodes are lost.
    loses_messages: bool,
    /// A node has been asked to be declared dead.
    is_declaring: bool,
    notes: Vec<(Duration, usize, Note)>,
    config: Config,
    events: BinaryHeap<Reverse<Scheduled>>,
    number: u64,
}

impl<'a> Cluster<'a> {
    fn new(schedule: &'a mut Schedule, logs: u16, config: Config) -> Self {
        Self {
            now: Duration::ZERO,
            processes: Vec::new(),
            database: Database::new(logs),
            choices: &mut schedule.choices,
            reached: &mut schedule.reached,
            trace: schedule.trace,
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
    fn settled(schedule: &'a mut Schedule, logs: u16, nodes: usize) -> Self {
        let mut world = Self::new(schedule, logs, Config::default());
        for _ in 0..nodes {
            world.start(Clock::default());
        }
        world.run(Duration::from_secs(90));
        world.assert_settled();
        world
    }

    fn reach(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    // ---- nodes ----

    /// Starts a node with a new address.
    fn start(&mut self, clock: Clock) -> usize {
        self.start_build(clock, "1.0.0")
    }

    fn start_build(&mut self, clock: Clock, build: &str) -> usize {
        let process = self.processes.len();
        self.processes.push(Process::new(process, clock, build));
        self.restart(process);
        process
    }

    /// Starts the process again, at the same address.
    fn restart(&mut self, process: usize) {
        let seed = [(); 2].map(|()| u64::from(self.choices.pick(u32::MAX)));
        let (seed, config) = (seed[0] << 32 | seed[1], self.config);
        let node = &mut self.processes[process];
        node.begin(seed, config, self.now);
        self.step(process);
    }

    /// Starts a second process with the address of another one.
    fn start_at_address_of(&mut self, other: usize) -> usize {
        let process = self.processes.len();
        let mut node = Process::new(process, Clock::default(), "1.0.0");
        node.address.clone_from(&self.processes[other].address);
        self.processes.push(node);
        self.restart(process);
        process
    }

    fn restart_build(&mut self, process: usize, build: &str) {
        build.clone_into(&mut self.processes[process].build);
        self.restart(process);
    }

    /// `kill -9`.
    fn kill(&mut self, process: usize) {
        self.processes[process].kill();
    }

    fn pause(&mut self, process: usize) {
        self.processes[process].run = Run::Paused;
    }

    fn resume(&mut self, process: usize) {
        if self.processes[process].run != Run::Paused {
            return;
        }
        self.processes[process].run = Run::Running;
        for event in std::mem::take(&mut self.processes[process].held) {
            self.schedule(self.now, event);
        }
        self.step(process);
    }

    fn input(&mut self, process: usize, input: Input) {
        let now = self.processes[process].clock.local(self.now);
        if let Some(core) = self.processes[process].core_if_running() {
            core.on(input, now);
            self.step(process);
        }
    }

    /// Drains and leaves, as a server that is told to stop.
    fn leave(&mut self, process: usize) {
        self.input(process, Input::Leave(Duration::from_secs(10)));
    }

    /// The id of a process' node.
    fn id(&self, process: usize) -> NodeId {
        self.processes[process].id.expect("has joined")
    }

    // ---- time ----

    fn run(&mut self, time: Duration) {
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
    fn run_until(
        &mut self,
        what: &str,
        within: Duration,
        condition: impl Fn(&Self) -> bool,
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
                self.arrive(process, life, request, wait);
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

    fn logs_of(&self, process: usize) -> Vec<LogId> {
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

    fn free(&self) -> usize {
        let look = self.database.tables.look();
        look.leases
            .iter()
            .filter(|lease| look.holder(lease).is_none())
            .count()
    }

    /// Every log is owned by a running node that knows it; nobody has more than its share.
    fn assert_settled(&self) {
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

    fn assert_owned(&self) {
        assert!(
            self.is_owned(),
            "a log is free, or its owner does not know it\n{self:?}"
        );
    }

    /// True if every log has an owner that knows it.
    fn is_owned(&self) -> bool {
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

    fn assert_nobody_declared_dead(&self) {
        assert_eq!(self.promises.deaths, [], "nobody has died");
    }

    /// Moves of leases since a number of them.
    fn moves(&self) -> usize {
        self.promises.moves
    }

    fn drain(&mut self, process: usize, state: NodeState) {
        self.input(process, Input::Drain(state));
    }
}

impl std::fmt::Debug for Cluster<'_> {
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
