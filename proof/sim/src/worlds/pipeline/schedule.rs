//! One schedule: processes, callers and faults, in an order that the choices give; then peace, and the last checks.

mod callers;
mod calls;
mod clocks;
mod cluster;
mod emphasis;
mod faults;
mod peace;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gesta_append::core::{Command, Input};
use gesta_core::backend::{Batch, BatchOutcome, Signal, WriterEpoch};
use gesta_core::{
    After, Append, Appended, Attempt, Checkpoint, Condition, DeleteKind, DeleteStream, Error,
    ErrorKind, EventData, EventId, EventType, ExpectedRevision, Filter, Lifecycle, LifecycleChange,
    LogId, Moment, Now, Position, Query, Result, Revision, SetStreamMetadata, StreamAppend,
    StreamId, StreamMetadata, Tag, Tags, Timestamp,
};

use self::emphasis::{Emphasis, Faults};

use crate::choices::Choices;
use crate::driver::{Schedule, Trace};
use crate::worlds::pipeline::archive::{Archive, Former, Window, name};
use crate::worlds::pipeline::clock::Clock;
use crate::worlds::pipeline::database::{Database, incarnation};
use crate::worlds::pipeline::model::{
    About, Known, Model, NoMatch, Record, StreamClaim, StreamRequest, Way, is_not_stored,
};
use crate::worlds::pipeline::nodes::{Lane, Living, NODES, Node, Ticket};
use crate::worlds::pipeline::process::{
    Bounds, GIVE_UP_AFTER, NARROW_WINDOW, POISON, Process, WINDOW,
};

/// Number of processes that append to the log, if they are no nodes.
const PROCESSES: usize = 2;
/// Most steps before peace.
const STEPS_MAX: u32 = 160;
/// Most steps in which everything must be answered once there is peace.
const PEACE_STEPS_MAX: usize = 4_000;
/// The numbers of newest events that a process may keep for conditions. With the first ones most conditions ask the
/// database for a part of what has happened.
const NEWEST_MAX: [usize; 4] = [1, 3, 1_000, 1_000];
/// The numbers of values that a process may compare in one turn. With the first one conditions wait in between.
const COMPARED_MAX: [usize; 2] = [1, 10_000];
const STREAMS: [&str; 4] = ["a", "b", "c", "d"];
/// The faults in the table of [`World::step_of_processes`].
const FAULTS: Faults = Faults {
    all: &[
        70, 77, 81, 85, 89, 91, 93, 95, 96, 98, 99, 100, 103, 105, 106, 107,
    ],
    scavenging: 96,
    failing_read: 91,
    long_wait: 106,
    restart: 98,
    loss: 99,
};

/// A message under way to the process with this number.
type Message = (usize, Signal);

/// Everything on which one schedule acts and at which it looks. So it has more fields than most structs.
struct World<'a> {
    form: Form,
    choices: &'a mut Choices,
    database: Database,
    processes: Vec<Process>,
    /// Clocks of the processes.
    clocks: Vec<Clock>,
    /// How far the clocks were behind and ahead of the right time at most, in microseconds.
    clock_errors: (i64, i64),
    /// True if the database tells the processes what its clock shows.
    knows_database_time: bool,
    /// Bounds of the processes, with the deduplication window of the store.
    bounds: Bounds,
    /// The parts of the processes that make them nodes; empty if they are no nodes.
    nodes: Vec<Node>,
    /// All lanes that were ever opened.
    lanes: Vec<Lane>,
    /// Lease epoch of the newest ownership of which any node was told.
    epoch: u64,
    /// Answers to callers of nodes since the last look.
    settled: Vec<(usize, Result<Appended>)>,
    /// Violation of the rules of a lane that was found.
    violation: Option<String>,
    is_at_peace: bool,
    /// How many times each thing has happened to calls between nodes.
    reached: &'a mut BTreeMap<&'static str, u32>,
    /// Statements of connections that were cut. The database may still execute them.
    limbo: VecDeque<(Arc<Batch>, WriterEpoch)>,
    messages: Vec<Message>,
    model: Model,
    archive: Archive,
    /// Time since the start.
    time: Duration,
    epochs: i64,
    ids: u128,
    /// Requests of commands that can be repeated, by ticket.
    requests: Vec<Option<Request>>,
    /// What this schedule has more of than others.
    emphasis: Emphasis,
    trace: Trace,
}

/// Who makes the ids of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ids {
    OfTheCaller,
    OfTheStore,
}

/// What a schedule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The processes know nothing of each other.
    Processes,
    /// The processes are nodes, which forward calls to the node that they take for the owner of the log.
    Nodes,
}

/// A request that a caller can repeat.
#[derive(Clone, Debug)]
enum Request {
    Append(Append),
    Delete(DeleteStream, EventId),
    Metadata(SetStreamMetadata, EventId),
}

/// Runs a schedule.
///
/// # Errors
/// The promise that was broken.
pub fn run(form: Form, schedule: &mut Schedule) -> std::result::Result<(), String> {
    let mut world = World::new(form, schedule);
    let outcome = world.run();
    if outcome.is_err() {
        world.note(|| format!("{:#?}", world.processes));
    }
    world.count_what_was_reached();
    outcome
}

impl<'a> World<'a> {
    fn new(form: Form, schedule: &'a mut Schedule) -> Self {
        let Schedule {
            choices,
            trace,
            reached,
        } = schedule;
        let (processes, nodes, faults) = match form {
            Form::Processes => (PROCESSES, 0, &FAULTS),
            Form::Nodes => (NODES, NODES, &cluster::FAULTS),
        };
        let emphasis = Emphasis::draw(choices, faults, processes);
        let bounds = Bounds {
            window: match emphasis.is_window_narrow {
                true => NARROW_WINDOW,
                false => WINDOW,
            },
            newest_events_max: match emphasis.loses {
                // So it is the database that says what conditions exclude, also of what is lost.
                true => NEWEST_MAX[0],
                false => NEWEST_MAX[choices.index(NEWEST_MAX.len())],
            },
            compared_values_max: COMPARED_MAX[choices.index(COMPARED_MAX.len())],
        };
        let knows_database_time = choices.chance(1, 2);
        let database = Database::default();
        let mut world = Self {
            form,
            choices,
            database,
            processes: Vec::new(),
            clocks: vec![Clock::right(Duration::ZERO); processes],
            clock_errors: (0, 0),
            knows_database_time,
            bounds,
            nodes: Vec::new(),
            lanes: Vec::new(),
            epoch: 0,
            settled: Vec::new(),
            violation: None,
            is_at_peace: false,
            reached,
            limbo: VecDeque::new(),
            messages: Vec::new(),
            model: Model::default(),
            archive: Archive::default(),
            time: Duration::ZERO,
            epochs: 0,
            ids: 0,
            requests: Vec::new(),
            emphasis,
            trace: *trace,
        };
        let start = |number| Process::start(&world.database, bounds, world.now_of(number));
        world.processes = (0..processes).map(start).collect();
        let start = |node| Node::start(Living { node, life: 0 }, clocks::START);
        world.nodes = (0..nodes).map(start).collect();
        world.begin_with_an_owner();
        world
    }

    fn reach(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    fn note(&self, what: impl FnOnce() -> String) {
        self.trace.note(self.time, what);
    }

    /// Counts what shows only at the end.
    fn count_what_was_reached(&mut self) {
        let mut times: Vec<(&'static str, u32)> = Vec::new();
        for process in &self.processes {
            let (resumed, begun_anew) = process.hub.resumed;
            let stats = process.stats();
            let asked = u32::try_from(stats.condition_lookups).unwrap_or(u32::MAX);
            let turns = u32::try_from(stats.condition_turns).unwrap_or(u32::MAX);
            times.extend([
                ("subscriber resumed", resumed),
                ("subscriber began anew", begun_anew),
                ("look overtaken by a commit", process.hub.overtaken_looks),
                ("condition asked the database", asked),
                ("condition took turns", turns),
            ]);
        }
        times.extend(self.archive.doubles().iter().filter_map(|double| {
            let what = match double.former {
                Former::InWindow => return None,
                Former::OutOfWindow => "stored again after the window",
                Former::Removed => "stored again after it was scavenged",
            };
            Some((what, 1))
        }));
        for (what, times) in times.into_iter().filter(|(_, times)| *times > 0) {
            *self.reached.entry(what).or_default() += times;
        }
    }

    fn run(&mut self) -> std::result::Result<(), String> {
        let steps = match self.form {
            Form::Processes => self.choices.pick(STEPS_MAX),
            Form::Nodes => self.choices.pick(cluster::STEPS_MAX),
        };
        for _ in 0..steps {
            self.step();
            self.pump();
            self.look()?;
        }
        self.end_in_peace()
    }

    /// Takes the outputs of the processes, and checks them.
    fn look(&mut self) -> std::result::Result<(), String> {
        self.update_archive();
        let fresh = self.archive.take_fresh();
        self.model.check_stored(&fresh, &self.database)?;
        if let Some(violation) = self.database.violations().into_iter().next() {
            return Err(violation);
        }
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        for (number, process) in self.processes.iter().enumerate() {
            let now = self.now_of(number).moment;
            let is_working = !process.is_stopped() && !self.is_asleep(number);
            if process.wake_at().is_some_and(|at| at <= now) && is_working {
                return Err(format!(
                    "process {number} wants to be woken at a time that has passed"
                ));
            }
        }
        for number in 0..self.processes.len() {
            for (ticket, result) in std::mem::take(&mut self.processes[number].answers) {
                self.note(|| format!("process {number} answers {ticket:?}: {result:?}"));
                let of_this_process = match &ticket {
                    Ticket::Own(record) => Some(record),
                    Ticket::Returned(record, here, known) => {
                        let is_later = here.attempt(*known) != Attempt::Only;
                        let is_gone = is_later && self.may_be_gone(*record, *known);
                        Some(record).filter(|_| !is_gone)
                    }
                    Ticket::Taken(_) => None,
                };
                if let Some(record) = of_this_process {
                    let troubles = self.processes[number].troubles();
                    let (record, stored) = (*record, &self.archive);
                    self.model
                        .check_certainty(record, &result, troubles, stored)?;
                }
                if let Ticket::Own(record) | Ticket::Returned(record, ..) = &ticket {
                    let history = self.processes[number].history();
                    self.model
                        .check_history(*record, &result, history, &self.archive)?;
                }
                match ticket {
                    Ticket::Own(record) => self.settled.push((record, result)),
                    Ticket::Returned(record, here, _) => {
                        self.settled.push((record, here.answer(result)));
                    }
                    Ticket::Taken(taken) => self.answer_call(taken, result),
                }
            }
            let left_behind = std::mem::take(&mut self.processes[number].left_behind);
            self.limbo.extend(left_behind);
            self.processes[number].hub.check(&self.database, false)?;
            for signal in std::mem::take(&mut self.processes[number].signals) {
                let others = (0..self.processes.len()).filter(|other| *other != number);
                self.messages.extend(others.map(|other| (other, signal)));
            }
        }
        let refused = self.settle()?;
        for (number, process) in self.processes.iter().enumerate() {
            let waits = process.waits_for_connection() && !self.is_asleep(number);
            if self.form == Form::Processes && waits {
                let now = self.clocks[number].shows(self.time);
                self.model.check_ages(number, now, GIVE_UP_AFTER)?;
            }
        }
        self.check_unstored(&refused)
    }

    fn update_archive(&mut self) {
        let window = self.window();
        let seen_after = |epoch| {
            let mut processes = self.processes.iter();
            processes
                .find(|process| process.was_writer(epoch))
                .map(Process::seen_after)
        };
        self.archive
            .update(&self.database, self.time, window, seen_after);
    }

    /// Checks the answers that callers were given. Returns the commands whose callers were told that nothing was
    /// stored.
    fn settle(&mut self) -> std::result::Result<Vec<usize>, String> {
        let mut refused = Vec::new();
        for (record, result) in std::mem::take(&mut self.settled) {
            if is_not_stored(&result) {
                refused.push(record);
            }
            self.note(|| format!("{record} is answered: {result:?}"));
            let error = result.as_ref().err().map(Error::kind);
            if matches!(error, Some(ErrorKind::InvalidCheckpoint(_))) {
                self.reach("refused for a checkpoint");
            }
            let known = Known {
                database: &self.database,
                stored: &self.archive,
                window: self.window(),
                now: self.time,
            };
            self.model.answered(record, result, &known)?;
        }
        Ok(refused)
    }

    /// Checks the commands whose callers were told that nothing was stored. No lost statement that the database may
    /// still execute must prove that wrong. The promise is broken as soon as the database may execute one that does,
    /// whether it then executes the statement or not.
    fn check_unstored(&self, refused: &[usize]) -> std::result::Result<(), String> {
        let mut end = self.database.end();
        for (batch, epoch) in &self.limbo {
            let follows = (batch.after.position, batch.after.writer) == (end.position, end.writer);
            let Some(last) = batch.rows.last().filter(|_| follows) else {
                continue;
            };
            (end.position, end.writer) = (last.position, *epoch);
            for &ticket in refused
                .iter()
                .filter(|ticket| self.model.is_only_attempt(**ticket))
            {
                let record = &self.model.records[ticket];
                let mut ids = record.asked.iter().flat_map(|asked| &asked.ids);
                if ids.any(|id| batch.rows.iter().any(|row| name(row) == *id)) {
                    return Err(format!(
                        "command {ticket} was refused, but may yet be stored: {record:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    // ---- what may happen ----

    fn step(&mut self) {
        let kind = self.emphasis.step(self.choices);
        match (kind, self.form) {
            (100..=101, _) => self.fall_asleep(),
            (102, _) => self.wake_one(),
            (103..=104, _) => self.set_clock(),
            (105, _) => self.lose_unseen(),
            (106, _) => self.wait_long(),
            (107.., _) => self.move_subscribers(),
            (_, Form::Processes) => self.step_of_processes(kind),
            (_, Form::Nodes) => self.step_of_nodes(kind),
        }
    }

    fn step_of_processes(&mut self, kind: u32) {
        match kind {
            0..=39 => self.go_on(),
            40..=69 => self.submit(),
            70..=76 => self.pass_time(),
            77..=80 => self.deliver_message(),
            81..=84 => self.execute_lost(),
            85..=88 => self.cut(),
            89..=90 => self.give_up(),
            91..=92 => self.fail_read(),
            93..=94 => self.fail_batch(),
            95 => self.refuse_connection(),
            96..=97 => self.scavenge(),
            98 => self.restart(),
            _ => self.lose_commits(),
        }
    }

    /// Chooses a process that is awake.
    fn pick_process(&mut self) -> usize {
        let count = self.processes.len();
        let number = self.emphasis.process(self.choices, count);
        let mut after = (0..count).map(|step| (number + step) % count);
        after
            .find(|number| !self.is_asleep(*number))
            .unwrap_or(number)
    }

    /// Chooses one of the processes that are awake and to which this can happen.
    fn pick_process_that(&mut self, can: impl Fn(&Process) -> bool) -> Option<usize> {
        let can = |number: &usize| can(&self.processes[*number]) && !self.is_asleep(*number);
        let possible: Vec<usize> = (0..self.processes.len()).filter(can).collect();
        (!possible.is_empty()).then(|| possible[self.choices.index(possible.len())])
    }

    /// Lets something that is under way go on: a connection, a batch, an answer, a read.
    fn go_on(&mut self) {
        let count = self.processes.len();
        let number = self.emphasis.process(self.choices, count);
        if self.is_asleep(number) {
            // The database works all the same.
            return self.processes[number].execute(&self.database, None);
        }
        let now = self.now_of(number);
        let process = &mut self.processes[number];
        let mut possible: Vec<usize> = Vec::new();
        let reads = process.reads();
        possible.extend(process.is_connecting().then_some(0));
        possible.extend(process.has_sent().then_some(1));
        possible.extend(process.has_answer().then_some(2));
        possible.extend(process.hub.is_reading().then_some(3));
        let is_idle = possible.is_empty() && reads == 0;
        if self.form == Form::Processes || process.wants_turn() || is_idle {
            possible.push(4);
        }
        // A look may take longer than much else, so that its answer is old when it arrives.
        let looks_on = process.hub.is_looking() && self.choices.chance(1, 12);
        possible.extend(looks_on.then_some(5));
        possible.extend((0..reads).map(|read| 6 + read));
        let which = possible[self.choices.index(possible.len())];
        let end = self.database.end().position;
        let what = [
            "connects",
            "has a batch executed",
            "receives an outcome",
            "reads for its hub",
            "lets its hub work",
            "looks at the end for its hub",
        ];
        let what = what.get(which).copied().unwrap_or("goes on reading");
        if self.trace == Trace::On {
            eprintln!("process {number} {what}; the log ends with {end}");
        }
        match which {
            0 => {
                self.epochs += 1;
                let epoch = WriterEpoch(self.epochs);
                process.connected(epoch, self.database.history(), now);
            }
            1 => process.execute(&self.database, None),
            2 => process.receive(now),
            3 => process.go_on_with_hub(&self.database, now),
            4 => {
                let history = process.history();
                process.hub.work(history);
                process.work(now);
            }
            5 => process.go_on_looking_with_hub(&self.database, now),
            read => process.go_on_reading(read - 6, &self.database, None, now),
        }
    }

    fn pass_time(&mut self) {
        let number = self.pick_process();
        self.processes[number].hub.poll();
        let wait = match self.choices.pick(8) {
            0..=3 => Duration::from_millis(1),
            4..=5 => Duration::from_millis(100),
            6 => Duration::from_secs(1),
            _ => Duration::from_secs(11),
        };
        self.wait(wait);
    }

    fn deliver_message(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let which = self.choices.index(self.messages.len());
        if self.is_asleep(self.messages[which].0) {
            return;
        }
        // Some come twice, some never.
        let (to, signal) = match self.choices.chance(1, 8) {
            true => self.messages[which],
            false => self.messages.swap_remove(which),
        };
        if !self.choices.chance(1, 4) {
            self.tell(to, signal);
        }
    }

    fn tell(&mut self, to: usize, signal: Signal) {
        let now = self.now_of(to);
        if let Signal::Appended { position, .. } = signal {
            self.processes[to].hub.heard(position);
        }
        self.processes[to].input(Input::Signal(signal), now);
    }
}
