//! Processes at different distances from one database, with callers that never rest: nobody waits for ever, and one
//! that is alone sends large batches near the database and holds nobody back far from it.
//!
//! The clock is virtual. The database commits one batch after the other; every way takes its time. Only the processes
//! are real (`gesta_append::core`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use gesta_append::Config;
use gesta_append::core::{
    Answer, Command, Connected, Input, Job, JobId, Output, Sequencer, Setting, run_job,
};
use gesta_core::backend::{Batch, BatchOutcome, Signal, WriterEpoch};
use gesta_core::{
    Append, EventData, EventType, ExpectedRevision, Incarnation, LogId, Moment, Now, StreamId,
    Timestamp,
};
use gesta_sim::worlds::pipeline::database::Database;
use uuid::Uuid;

const LOG: LogId = LogId(0);
/// The moment at the start.
const START: Moment = Moment(Duration::from_secs(3_600));
const MS: Duration = Duration::from_millis(1);
/// How long the database works on a batch that it stores. [`MISS`] is the time for a batch that misses.
const COMMIT: Duration = Duration::from_millis(2);
const MISS: Duration = Duration::from_micros(200);
/// How long a read takes, without its rows. [`READ_ROW`] is the time for each row.
const READ: Duration = Duration::from_micros(300);
const READ_ROW: Duration = Duration::from_micros(3);
/// How long a message waits in the database.
const NOTIFY: Duration = Duration::from_millis(1);
/// How long a caller that was answered waits before its next call.
const CALLER: Duration = Duration::from_micros(100);

/// An event of the simulation.
enum Event {
    Connected(usize),
    /// A batch reaches the database.
    Arrives(usize, Arc<Batch>),
    /// The database has executed the batch at the head of its queue.
    Executed,
    Receives(usize, BatchOutcome),
    Reads(usize, JobId, Job),
    Read(usize, JobId, Answer),
    Hears(usize, Signal),
    Calls(usize, usize),
    Wakes(usize),
}

/// One process, and its callers.
struct Process {
    sequencer: Sequencer<usize>,
    /// How long a message to or from the database takes.
    way: Duration,
    /// How long the callers wait before their next call.
    pause: Duration,
    /// End of the log at the last read of the process.
    seen: u64,
    answered: u32,
    /// Its batches that were stored, and their rows.
    batches: u32,
    rows: u32,
    misses: u32,
    signals: u32,
    last_answer: Duration,
    /// Longest time without an answer.
    longest: Duration,
    wakes_at: Option<Moment>,
    is_dead: bool,
}

/// What things take beside the way.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// The database works so long on a batch that it stores, and so much longer for each row.
    commit: Duration,
    row: Duration,
    /// An answer is noticed up to this much later than it comes.
    late: Duration,
}

struct World {
    times: Times,
    time: Duration,
    events: Vec<Option<Event>>,
    agenda: BinaryHeap<Reverse<(Duration, usize)>>,
    database: Database,
    /// Batches that the database has received, in their order. It works on the first.
    queue: VecDeque<(usize, Arc<Batch>)>,
    processes: Vec<Process>,
    /// Percentage of messages that are lost.
    lost: u64,
    random: Random,
    /// Number of the process that dies when it asks for the first time, if one does.
    dies_when_it_asks: Option<usize>,
}

/// A generator of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        let multiplied = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = multiplied.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// What one process got done, and how long it waited.
#[derive(Debug)]
struct Report {
    per_second: u32,
    misses: u32,
    signals: u32,
    longest: Duration,
}

fn stream(process: usize, caller: usize) -> StreamId {
    StreamId::new(format!("s-{process}-{caller}")).expect("valid")
}

impl World {
    /// Makes processes with these round trips to the database, each with `callers` callers.
    fn new(distances: &[Duration], callers: usize) -> Self {
        let times = Times {
            commit: COMMIT,
            row: Duration::ZERO,
            late: Duration::ZERO,
        };
        let ways = distances.iter().map(|distance| *distance / 2 + MS / 10);
        Self::with(&ways.collect::<Vec<_>>(), callers, times)
    }

    /// Processes whose way to the database takes this in one direction.
    fn with(ways: &[Duration], callers: usize, times: Times) -> Self {
        let now = Now {
            moment: START,
            wall: Timestamp(0),
            database: None,
        };
        let mut world = Self {
            times,
            time: Duration::ZERO,
            events: Vec::new(),
            agenda: BinaryHeap::new(),
            database: Database::default(),
            queue: VecDeque::new(),
            processes: Vec::new(),
            lost: 0,
            random: Random(1),
            dies_when_it_asks: None,
        };
        for way in ways {
            let setting = Setting {
                config: Config::default(),
                log: LOG,
                logs: 1,
                incarnation: Incarnation(Uuid::nil()),
                in_flight_max: 64,
            };
            world.processes.push(Process {
                sequencer: Sequencer::new(setting, Arc::default(), now),
                way: *way,
                pause: CALLER,
                seen: 0,
                answered: 0,
                batches: 0,
                rows: 0,
                misses: 0,
                signals: 0,
                last_answer: Duration::ZERO,
                longest: Duration::ZERO,
                wakes_at: None,
                is_dead: false,
            });
        }
        for process in 0..ways.len() {
            world.perform(process);
            for caller in 0..callers {
                world.after(CALLER, Event::Calls(process, caller));
            }
        }
        world
    }

    fn now(&self) -> Now {
        Now {
            moment: START + self.time,
            wall: Timestamp(i64::try_from(self.time.as_micros()).expect("short")),
            database: None,
        }
    }

    fn after(&mut self, wait: Duration, event: Event) {
        self.agenda
            .push(Reverse((self.time + wait, self.events.len())));
        self.events.push(Some(event));
    }

    fn run(&mut self, seconds: u64) -> Vec<Report> {
        self.run_until(Duration::from_secs(seconds));
        for process in &mut self.processes {
            process.longest = process.longest.max(self.time - process.last_answer);
        }
        let report = |process: &Process| Report {
            per_second: process.answered / u32::try_from(seconds).expect("short"),
            misses: process.misses,
            signals: process.signals,
            longest: process.longest,
        };
        let reports: Vec<Report> = self.processes.iter().map(report).collect();
        println!("{reports:?}");
        assert_eq!(self.database.violations(), [""; 0]);
        reports
    }

    fn run_until(&mut self, end: Duration) {
        while let Some(Reverse((at, number))) = self.agenda.peek().copied()
            && at <= end
        {
            self.agenda.pop();
            self.time = at;
            let event = self.events[number].take().expect("once");
            self.happens(event);
        }
        self.time = end;
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Connected(process) => {
                let epoch = WriterEpoch(i64::try_from(process).expect("few") + 1);
                let connected = Connected {
                    epoch,
                    is_gathered: false,
                };
                self.input(process, Input::Connected(Ok(connected)));
            }
            Event::Arrives(process, batch) => {
                self.queue.push_back((process, batch));
                if self.queue.len() == 1 {
                    self.begin_batch();
                }
            }
            Event::Executed => self.executed(),
            Event::Receives(process, outcome) => {
                let missed = matches!(outcome, BatchOutcome::Missed);
                self.processes[process].misses += u32::from(missed);
                self.input(process, Input::Outcome(outcome));
            }
            Event::Reads(process, id, job) => {
                let answer = run_job(job, &self.database, LOG).now_or_never();
                let answer = answer.expect("at once");
                let end = self.database.end().position.0;
                let seen = std::mem::replace(&mut self.processes[process].seen, end);
                let rows = u32::try_from(end - seen).expect("few");
                let takes = self.processes[process].way + READ + READ_ROW * rows;
                self.after(takes, Event::Read(process, id, answer));
            }
            Event::Read(process, id, answer) => self.input(process, Input::Read(id, answer)),
            Event::Hears(process, signal) => self.input(process, Input::Signal(signal)),
            Event::Calls(process, caller) => {
                let event_type = EventType::new("e").expect("valid");
                let events = vec![EventData::json(event_type, "{}").without_id()];
                let to = stream(process, caller);
                let append = Append::to(to, ExpectedRevision::Any, events);
                let command = Command::append(caller, append, self.now().moment);
                self.input(process, Input::Command(command.expect("valid")));
            }
            Event::Wakes(process) => {
                self.processes[process].wakes_at = None;
                self.perform(process);
            }
        }
    }

    /// The database has worked off the batch at the front of its queue, and its answer goes back.
    fn executed(&mut self) {
        let (process, batch) = self.queue.pop_front().expect("works on it");
        let epoch = WriterEpoch(i64::try_from(process).expect("few") + 1);
        let outcome = match self.database.insert(&batch, epoch) {
            true => BatchOutcome::Committed,
            false => BatchOutcome::Missed,
        };
        let rows = u32::try_from(batch.rows.len()).expect("few");
        let sender = &mut self.processes[process];
        sender.batches += u32::from(rows > 0);
        sender.rows += rows;
        let takes = sender.way + self.lateness();
        self.after(takes, Event::Receives(process, outcome));
        self.begin_batch();
    }

    /// Lets the database begin to work on the next batch.
    fn begin_batch(&mut self) {
        if let Some((_, batch)) = self.queue.front() {
            let end = self.database.end();
            let hits = (end.position, end.writer) == (batch.after.position, batch.after.writer);
            let rows = u32::try_from(batch.rows.len()).expect("few");
            let commit = self.times.commit + self.times.row * rows;
            self.after(if hits { commit } else { MISS }, Event::Executed);
        }
    }

    /// How late the next answer is noticed.
    fn lateness(&mut self) -> Duration {
        let most = u64::try_from(self.times.late.as_micros()).expect("short");
        Duration::from_micros(self.random.below(most + 1))
    }

    fn input(&mut self, process: usize, input: Input<usize>) {
        if self.processes[process].is_dead {
            return;
        }
        let now = self.now();
        self.processes[process].sequencer.on(input, now);
        self.perform(process);
    }

    fn perform(&mut self, number: usize) {
        let now = self.now();
        let process = &mut self.processes[number];
        if process.is_dead {
            return;
        }
        process.sequencer.work(now);
        let (way, pause) = (process.way, process.pause);
        for output in process.sequencer.take_outputs() {
            match output {
                Output::Connect => self.after(way * 2, Event::Connected(number)),
                Output::Send(batch) => self.after(way, Event::Arrives(number, batch)),
                Output::Read(id, job) => self.after(way, Event::Reads(number, id, job)),
                Output::Answer(caller, result) => {
                    result.expect("stored");
                    self.answered(number);
                    self.after(pause, Event::Calls(number, caller));
                }
                Output::Signal(signal) => {
                    self.processes[number].signals += 1;
                    self.processes[number].is_dead = self.dies_when_it_asks == Some(number);
                    for other in (0..self.processes.len()).filter(|other| *other != number) {
                        if self.random.below(100) >= self.lost {
                            let takes = way + NOTIFY + self.processes[other].way;
                            self.after(takes, Event::Hears(other, signal));
                        }
                    }
                }
                Output::Committed(_) | Output::ReadLogEnd => {}
                Output::Disconnect | Output::Stopped => panic!("nothing fails here"),
            }
        }
        let process = &mut self.processes[number];
        if let Some(at) = process.sequencer.wake_at()
            && process.wakes_at.is_none_or(|known| at < known)
        {
            assert!(at > now.moment, "a time that has passed");
            process.wakes_at = Some(at);
            self.after(at.since(now.moment), Event::Wakes(number));
        }
    }

    fn answered(&mut self, number: usize) {
        let process = &mut self.processes[number];
        process.answered += 1;
        process.longest = process.longest.max(self.time - process.last_answer);
        process.last_answer = self.time;
    }
}

fn millis(distances: &[u64]) -> Vec<Duration> {
    let distances = distances.iter();
    distances.map(|ms| Duration::from_millis(*ms)).collect()
}

const CALLERS: usize = 10;
const SECONDS: u64 = 20;

/// Runs processes with these distances, in milliseconds of a round trip, and reports what each of them got done.
fn run(distances: &[u64]) -> Vec<Report> {
    World::new(&millis(distances), CALLERS).run(SECONDS)
}

/// When callers come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// Some time after the connection is there: until then the distance is measured.
    Idle,
    /// All of them while it is being made, as after a fail-over.
    Busy,
}

/// What a lone process gets done: mean rows of a batch, and events a second as a share of what they would be if all
/// callers went together in one batch, one after the other.
fn alone(begin: Begin, distance: Duration, callers: u32, late: Duration) -> (u32, f64) {
    let times = Times {
        commit: MS / 2,
        row: Duration::from_micros(4),
        late,
    };
    let way = distance / 2 + Duration::from_micros(10);
    let together = times.row * callers;
    let turn = way * 2 + CALLER + times.commit + together + late / 2;
    // The first turns are not measured; with few callers a turn says little.
    let turns = (1_000 / callers).clamp(4, 100);
    let mut world = World::with(&[way], 0, times);
    if begin == Begin::Idle {
        world.run_until(way * 8 + MS * 20);
    }
    for caller in 0..callers as usize {
        world.after(CALLER, Event::Calls(0, caller));
    }
    world.run_until(world.time + turn * 3);
    let process = &mut world.processes[0];
    (process.answered, process.batches, process.rows) = (0, 0, 0);
    let begun = world.time;
    world.run_until(begun + turn * turns);
    assert_eq!(world.database.violations(), [""; 0]);
    let process = &world.processes[0];
    let per_turn = f64::from(process.answered) / f64::from(turns);
    let rows = process.rows / process.batches.max(1);
    let share = per_turn / f64::from(callers);
    (rows, share)
}

/// Goal: near the database batches are large, for small ones only cost more; far from it nobody is held back until a
/// batch is large. Answers that are noticed late, for the processor is busy, do not look like distance.
///
/// What happened: latency under load was taken for distance, so with 1,000 callers beside the database 53 to 59 rows
/// went in a batch, where 431 to 456 were 40 % quicker, and it stayed so.
#[test]
fn a_lone_process_sends_large_batches_near_and_holds_nobody_back_far() {
    for late in [Duration::ZERO, MS] {
        for tenths in [0, 3, 10, 50, 500] {
            for callers in [1, 10, 1_000] {
                check_alone(Begin::Idle, MS / 10 * tenths, callers, late);
            }
        }
        for tenths in [0, 50] {
            check_alone(Begin::Idle, MS / 10 * tenths, 4_000, late);
        }
    }
}

/// What happened: the first batch of a connection held a thousand rows, and the time that the database worked on them
/// was taken for the distance. What holds now: it does not matter whether callers wait already when the connection is
/// made.
#[test]
fn a_connection_that_is_made_under_load_learns_the_distance_too() {
    for late in [Duration::ZERO, MS] {
        for tenths in [0, 3, 50] {
            check_alone(Begin::Busy, MS / 10 * tenths, 1_000, late);
        }
    }
}

fn check_alone(begin: Begin, distance: Duration, callers: u32, late: Duration) {
    let (rows, share) = alone(begin, distance, callers, late);
    let told = format!(
        "{begin:?}, {distance:?}, {callers} callers, {late:?} late: {rows} rows, {share:.2} of a turn"
    );
    // Few who come one after the other beside the database wait for each other's commits; far away that is nothing.
    let least = match callers {
        1 => 0.95,
        10 if distance < MS * 5 => 0.5,
        10 => 0.95,
        _ => 0.75,
    };
    assert!(share >= least, "{told}");
    if distance < MS && callers >= 1_000 {
        assert!(rows >= callers / 5, "{told}");
    }
}

/// Goal: a process that is alone pays nothing: it asks for nothing, and nobody else does.
#[test]
fn a_lone_process_says_nothing() {
    for distance in [0, 30, 100] {
        let alone = &run(&[distance])[0];
        assert_eq!((alone.signals, alone.misses), (0, 0));
        let round_trip = Duration::from_millis(distance) + COMMIT + MS;
        assert!(alone.longest < round_trip * 8, "{alone:?}");
    }
}

/// Goal: two that are equally near get equally much, and together no less than half of what one gets alone.
#[test]
fn two_that_are_near_share() {
    let alone = run(&[0])[0].per_second;
    let both = run(&[0, 0]);
    let (less, more) = (both[0].per_second, both[1].per_second);
    let (less, more) = (less.min(more), less.max(more));
    assert!(more < less * 2 && less + more > alone / 2, "{alone}");
}

/// Goal: nobody waits for ever beside others that never rest, whatever the distances.
#[test]
fn nobody_waits_for_ever() {
    for distances in [
        &[0, 30][..],
        &[0, 100],
        &[0, 200],
        &[30, 30],
        &[30, 100],
        &[0, 0, 0],
        &[0, 0, 100],
        &[0, 30, 100],
        &[0, 0, 0, 0, 100],
    ] {
        for report in run(distances) {
            assert!(report.longest < MS * 3_000, "{distances:?}: {report:?}");
        }
    }
}

/// Goal: the same at any distances, and if many messages are lost.
#[test]
fn nobody_waits_for_ever_though_messages_are_lost() {
    for seed in 1..=20 {
        let mut random = Random(seed);
        let count = 2 + random.below(3);
        let distances: Vec<u64> = (0..count).map(|_| random.below(150)).collect();
        let mut world = World::new(&millis(&distances), CALLERS);
        world.lost = random.below(30);
        world.random = random;
        for report in world.run(SECONDS) {
            assert!(
                report.longest < MS * 12_000,
                "{seed}: {distances:?}: {report:?}"
            );
        }
    }
}

/// Goal: the tests above can fail: if no message arrives, the far one gets nothing done.
#[test]
fn without_messages_a_far_one_waits_for_ever() {
    let mut world = World::new(&millis(&[0, 30]), CALLERS);
    world.lost = 100;
    let far = &world.run(SECONDS)[1];
    assert!(far.longest > Duration::from_secs(SECONDS) / 2, "{far:?}");
}

/// Goal: a process that dies after it has asked stops the others for the time that it has named, once.
#[test]
fn one_that_dies_stops_the_others_for_the_time_that_it_has_named() {
    let alone = run(&[0])[0].per_second;
    let mut world = World::new(&millis(&[0, 30]), CALLERS);
    world.dies_when_it_asks = Some(1);
    let near = &world.run(SECONDS)[0];
    assert!(world.processes[1].is_dead);
    let named = MS * 30 * 3 + MS * 50;
    assert!(
        near.longest > named && near.longest < named + MS * 40,
        "{near:?}"
    );
    assert!(near.per_second > alone * 9 / 10, "{alone}: {near:?}");
}

/// Goal: messages that nobody has sent for a reason take no more than half of the time, and no more than a second and a
/// half in a row.
#[test]
fn messages_that_are_made_up_leave_half_of_the_time() {
    let alone = run(&[0])[0].per_second;
    let mut world = World::new(&millis(&[0]), CALLERS);
    for millis in 0..SECONDS * 1_000 {
        let signal = Signal::GiveWay {
            log: LOG,
            by: Uuid::from_u128(u128::from(millis % 7)),
            needed: Duration::MAX,
            waited: Duration::MAX,
        };
        world.after(Duration::from_millis(millis), Event::Hears(0, signal));
    }
    let report = &world.run(SECONDS)[0];
    assert!(report.per_second > alone * 2 / 5, "{alone}: {report:?}");
    assert!(report.longest < MS * 1_520, "{report:?}");
}

/// Goal: a near process that appends now and then costs a busy one little, and waits for no more than a moment.
#[test]
fn who_appends_now_and_then_takes_little() {
    let alone = run(&[0])[0].per_second;
    let mut world = World::new(&millis(&[0, 0]), CALLERS);
    world.processes[1].pause = MS * 1_000;
    let reports = world.run(SECONDS);
    assert!(reports[0].per_second > alone * 4 / 5, "{alone}");
    assert!(reports[1].longest < MS * 1_200);
}
