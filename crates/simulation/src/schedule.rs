//! One schedule: processes, callers and faults, in an order that the choices give; then peace, and the last checks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gesta_append::command::Command;
use gesta_append::sequencer::{Input, Now};
use gesta_core::backend::{Batch, Signal, WriterEpoch};
use gesta_core::{
    After, Append, DeleteKind, DeleteStream, Error, ErrorKind, EventData, EventId, EventType,
    ExpectedRevision, LogId, Position, Revision, SetStreamMetadata, StreamAppend, StreamId,
    StreamMetadata, Timestamp,
};
use tokio::time::Instant;

use crate::choices::Choices;
use crate::database::Database;
use crate::model::{Archive, Asked, Claim, Model, Record};
use crate::process::{POISON, Process, setting};

/// Processes that append to the log.
const PROCESSES: usize = 2;
/// Steps before peace.
const STEPS_MAX: u32 = 160;
/// Steps in which everything must be answered once there is peace.
const PEACE_STEPS_MAX: usize = 4_000;
const STREAMS: [&str; 4] = ["a", "b", "c", "d"];

/// A message under way to a process.
type Message = (usize, Signal);

struct World {
    choices: Choices,
    database: Database,
    processes: Vec<Process>,
    /// Statements of connections that were cut, which the database may still execute.
    limbo: VecDeque<(Arc<Batch>, WriterEpoch)>,
    messages: Vec<Message>,
    model: Model,
    archive: Archive,
    start: Instant,
    /// Since the start.
    time: Duration,
    epochs: i64,
    ids: u128,
    /// Requests of commands, to be repeated.
    requests: Vec<Option<Append>>,
    trace: Trace,
}

/// Whether a schedule tells what happens in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// It runs silently.
    Off,
    /// It prints each step to standard error.
    On,
}

/// Runs a schedule.
///
/// # Errors
/// The promise that was broken.
pub fn run(choices: Choices, trace: Trace) -> (Result<(), String>, Vec<u32>) {
    let mut world = World::new(choices, trace);
    let outcome = world.run();
    if outcome.is_err() {
        world.note(|| format!("{:#?}", world.processes));
    }
    (outcome, world.choices.into_made())
}

impl World {
    fn new(choices: Choices, trace: Trace) -> Self {
        let database = Database::default();
        let start = Instant::now();
        let mut world = Self {
            choices,
            database,
            processes: Vec::new(),
            limbo: VecDeque::new(),
            messages: Vec::new(),
            model: Model::default(),
            archive: Archive::default(),
            start,
            time: Duration::ZERO,
            epochs: 0,
            ids: 0,
            requests: Vec::new(),
            trace,
        };
        for _ in 0..PROCESSES {
            world
                .processes
                .push(Process::start(&world.database, world.now()));
        }
        world
    }

    fn note(&self, what: impl FnOnce() -> String) {
        if self.trace == Trace::On {
            eprintln!("{:>10.3} {}", self.time.as_secs_f64(), what());
        }
    }

    fn now(&self) -> Now {
        let micros = i64::try_from(self.time.as_micros()).unwrap_or(i64::MAX);
        Now {
            instant: self.start + self.time,
            wall: Timestamp(1_700_000_000_000_000 + micros),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let steps = self.choices.pick(STEPS_MAX);
        for _ in 0..steps {
            self.step();
            self.look()?;
        }
        self.end_in_peace()
    }

    /// Takes what has come out of the processes, and checks it.
    fn look(&mut self) -> Result<(), String> {
        self.archive.update(&self.database);
        if let Some(violation) = self.database.violations().into_iter().next() {
            return Err(violation);
        }
        let now = self.now();
        for (number, process) in self.processes.iter().enumerate() {
            if process.wake_at().is_some_and(|at| at <= now.instant) && !process.is_stopped() {
                return Err(format!(
                    "process {number} wants to be woken at a time that has passed"
                ));
            }
        }
        for number in 0..self.processes.len() {
            let answers = std::mem::take(&mut self.processes[number].answers);
            for (ticket, result) in answers {
                self.note(|| format!("process {number} answers {ticket}: {result:?}"));
                self.model
                    .answered(ticket, result, &self.database, &self.archive)?;
            }
            self.processes[number].hub.check(&self.database, false)?;
            for signal in std::mem::take(&mut self.processes[number].signals) {
                let others = (0..self.processes.len()).filter(|other| *other != number);
                self.messages.extend(others.map(|other| (other, signal)));
            }
        }
        for (number, process) in self.processes.iter().enumerate() {
            if process.waits_for_connection() {
                let oldest = setting().config.give_up_after;
                self.model.check_ages(number, self.time, oldest)?;
            }
        }
        Ok(())
    }

    // ---- what may happen ----

    fn step(&mut self) {
        match self.choices.pick(100) {
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

    fn pick_process(&mut self) -> usize {
        self.choices.index(PROCESSES)
    }

    /// Something that is under way goes on: a connection, a batch, an answer, a read.
    fn go_on(&mut self) {
        let number = self.pick_process();
        let now = self.now();
        let process = &mut self.processes[number];
        let mut possible: Vec<usize> = Vec::new();
        let reads = process.reads();
        possible.extend(process.is_connecting().then_some(0));
        possible.extend(process.has_sent().then_some(1));
        possible.extend(process.has_answer().then_some(2));
        possible.extend(process.hub.is_reading().then_some(3));
        possible.push(4);
        possible.extend((0..reads).map(|read| 5 + read));
        let which = possible[self.choices.index(possible.len())];
        let end = self.database.end().position;
        let what = [
            "connects",
            "has a batch executed",
            "receives an outcome",
            "reads for its hub",
            "lets its hub work",
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
            read => process.go_on_reading(read - 5, &self.database, false, now),
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
        self.time += wait;
        self.note(|| "time passes".to_owned());
        let now = self.now();
        for process in &mut self.processes {
            process.work(now);
        }
    }

    fn deliver_message(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let which = self.choices.index(self.messages.len());
        let (to, signal) = self.messages.swap_remove(which);
        if !self.choices.chance(1, 4) {
            self.tell(to, signal);
        }
    }

    fn tell(&mut self, to: usize, signal: Signal) {
        let now = self.now();
        if let Signal::Appended { position, .. } = signal {
            self.processes[to].hub.heard(position);
        }
        self.processes[to].input(Input::Signal(signal), now);
    }

    /// The database executes a statement whose connection was lost, or never sees it.
    fn execute_lost(&mut self) {
        if let Some((batch, epoch)) = self.limbo.pop_front()
            && !self.choices.chance(1, 4)
        {
            let is_stored = self.database.insert(&batch, epoch);
            self.note(|| format!("a lost statement is executed, stored: {is_stored}"));
        }
    }

    fn cut(&mut self) {
        let number = self.pick_process();
        let lost = self.processes[number].cut();
        self.note(|| format!("the connection of process {number} is cut"));
        self.limbo.extend(lost);
    }

    fn give_up(&mut self) {
        let number = self.pick_process();
        if self.processes[number].can_give_up() {
            self.note(|| format!("process {number} gives up waiting for its oldest batch"));
            self.processes[number].give_up();
        }
    }

    fn fail_read(&mut self) {
        let number = self.pick_process();
        let reads = self.processes[number].reads();
        if reads > 0 {
            let which = self.choices.index(reads);
            self.note(|| format!("a read of process {number} fails, or ends"));
            let now = self.now();
            self.processes[number].go_on_reading(which, &self.database, true, now);
        }
    }

    fn fail_batch(&mut self) {
        let number = self.pick_process();
        if !self.processes[number].has_sent() {
            return;
        }
        let error = match self.choices.pick(3) {
            0..=1 => Error::unavailable("a lock was not had in time"),
            _ => ErrorKind::Unsupported("the disk is full".into()).into(),
        };
        self.note(|| format!("a batch of process {number} fails: {error}"));
        // What was sent after it finds that the row before it is missing, as a real database does.
        self.processes[number].execute(&self.database, Some(error));
    }

    fn refuse_connection(&mut self) {
        let number = self.pick_process();
        if !self.processes[number].is_connecting() {
            return;
        }
        let error = match self.choices.pick(4) {
            0..=2 => Error::unavailable("the database does not answer"),
            _ => ErrorKind::Unsupported("the database is read only".into()).into(),
        };
        let now = self.now();
        self.processes[number].not_connected(error, now);
    }

    fn scavenge(&mut self) {
        let stream = self.pick_stream();
        let truth = self.database.truth(&stream);
        let Some(last) = truth.last else {
            return;
        };
        let keep = u64::from(self.choices.chance(1, 2));
        if let Some(through) = last.0.checked_sub(keep) {
            self.note(|| format!("{stream} is scavenged through {through}"));
            self.database.scavenge(&stream, Revision(through));
        }
    }

    /// A process dies, and another one is started in its place.
    fn restart(&mut self) {
        let number = self.pick_process();
        let lost = self.processes[number].cut();
        self.limbo.extend(lost);
        for record in &mut self.model.records {
            if record.process == number && record.answer.is_none() {
                record.is_orphaned = true;
            }
        }
        self.note(|| format!("process {number} is restarted"));
        self.messages.retain(|(to, _)| *to != number);
        self.processes[number] = Process::start(&self.database, self.now());
    }

    /// A fail-over: the newest rows are lost, and all connections; statements under way die with the old server.
    fn lose_commits(&mut self) {
        let count = self.choices.index(6);
        for process in &mut self.processes {
            process.cut();
        }
        self.limbo.clear();
        self.note(|| format!("a fail-over loses {count} rows"));
        self.archive.update(&self.database);
        self.database.lose_newest(count);
    }

    // ---- callers ----

    fn pick_stream(&mut self) -> StreamId {
        let which = self.choices.index(STREAMS.len());
        StreamId::from_stored(STREAMS[which].into())
    }

    fn next_id(&mut self) -> EventId {
        self.ids += 1;
        EventId(uuid::Uuid::from_u128(self.ids))
    }

    fn submit(&mut self) {
        let number = self.pick_process();
        match self.choices.pick(20) {
            0..=9 => self.submit_append(number),
            10..=12 => self.repeat(number),
            13..=15 => self.submit_owned(number),
            16 => self.submit_question(number),
            17 => self.submit_metadata(number),
            18 => self.submit_delete(number, DeleteKind::Soft),
            _ => {
                let kind = match self.choices.chance(1, 4) {
                    true => DeleteKind::Tombstone,
                    false => DeleteKind::Soft,
                };
                self.submit_delete(number, kind);
            }
        }
    }

    fn record(&mut self, process: usize, asked: Vec<Asked>, request: Option<Append>) -> usize {
        let ticket = self.model.records.len();
        self.note(|| format!("process {process} is given {ticket}: {asked:?}"));
        self.model.records.push(Record {
            asked,
            since: self.database.moment(),
            original: ticket,
            process,
            given: self.time,
            answer: None,
            is_orphaned: false,
        });
        self.requests.push(request);
        ticket
    }

    fn expected(&mut self, stream: &StreamId) -> ExpectedRevision {
        match self.choices.pick(8) {
            0..=3 => ExpectedRevision::Any,
            4 => ExpectedRevision::NoStream,
            5 => ExpectedRevision::StreamExists,
            _ => match self.database.truth(stream).last {
                Some(last) => ExpectedRevision::Exact(last),
                None => ExpectedRevision::NoStream,
            },
        }
    }

    fn events(&mut self) -> Vec<EventData> {
        let count = 1 + self.choices.pick(3) / 2;
        let event_type = match self.choices.pick(12) {
            11 => POISON,
            0..=6 => "added",
            _ => "removed",
        };
        let event_type = EventType::from_stored(event_type.into());
        let event = |id| EventData::json(event_type.clone(), "{}").with_id(id);
        (0..count).map(|_| self.next_id()).map(event).collect()
    }

    fn submit_append(&mut self, number: usize) {
        let mut streams = vec![self.pick_stream()];
        let second = self.pick_stream();
        if self.choices.chance(1, 5) && second != streams[0] {
            streams.push(second);
        }
        let are_ids_known = !self.choices.chance(1, 3);
        let mut asked = Vec::new();
        let mut parts = Vec::new();
        for stream in streams {
            let expected = self.expected(&stream);
            let events = self.events();
            asked.push(Asked {
                stream: stream.clone(),
                target: stream.clone(),
                claim: Claim::Expected(expected),
                ids: events.iter().filter_map(|event| event.id).collect(),
            });
            parts.push(StreamAppend {
                stream,
                expected,
                events,
            });
        }
        let request = Append { streams: parts };
        let kept = are_ids_known.then(|| request.clone());
        let ticket = self.record(number, asked, kept);
        let now = self.now();
        let made = match are_ids_known {
            true => Command::append(ticket, request, now.instant),
            false => Command::append_with_ids_of_the_store(ticket, request, now.instant),
        };
        if let Ok(command) = made {
            self.processes[number].input(Input::Command(command), now);
        }
    }

    /// A caller tries again with the same event ids, perhaps through another process, perhaps with the streams in another order.
    fn repeat(&mut self, number: usize) {
        if self.requests.is_empty() {
            return;
        }
        let which = self.choices.index(self.requests.len());
        let Some(mut request) = self.requests[which].clone() else {
            return;
        };
        if self.choices.chance(1, 3) {
            request.streams.reverse();
        }
        let record = &self.model.records[which];
        let (asked, original) = (record.asked.clone(), record.original);
        let ticket = self.record(number, asked, None);
        self.model.records[ticket].original = original;
        let now = self.now();
        if let Ok(command) = Command::append(ticket, request, now.instant) {
            self.processes[number].input(Input::Command(command), now);
        }
    }

    fn after(&self, stream: &StreamId) -> After {
        let truth = self.database.truth(stream);
        match (truth.visible, truth.last_id) {
            (Some(_), Some(id)) => After::Event(id),
            _ => After::NoStream,
        }
    }

    fn submit_owned(&mut self, number: usize) {
        let stream = self.pick_stream();
        let after = self.after(&stream);
        let events = self.events();
        self.own(number, stream, after, events);
    }

    fn submit_question(&mut self, number: usize) {
        let stream = self.pick_stream();
        let after = self.after(&stream);
        self.own(number, stream, after, Vec::new());
    }

    fn own(&mut self, number: usize, stream: StreamId, after: After, events: Vec<EventData>) {
        let asked = vec![Asked {
            stream: stream.clone(),
            target: stream.clone(),
            claim: Claim::After(after),
            ids: events.iter().filter_map(|event| event.id).collect(),
        }];
        let ticket = self.record(number, asked, None);
        let now = self.now();
        if let Ok(command) = Command::owned(ticket, stream, after, events, now.instant) {
            self.processes[number].input(Input::Command(command), now);
        }
    }

    fn submit_metadata(&mut self, number: usize) {
        let stream = self.pick_stream();
        let asked = vec![about_metadata(&stream, ExpectedRevision::Any)];
        let ticket = self.record(number, asked, None);
        let now = self.now();
        let request = SetStreamMetadata {
            stream,
            expected: ExpectedRevision::Any,
            metadata: StreamMetadata::default(),
        };
        let command = Command::set_metadata(ticket, request, now.instant);
        self.processes[number].input(Input::Command(command), now);
    }

    fn submit_delete(&mut self, number: usize, kind: DeleteKind) {
        let stream = self.pick_stream();
        let expected = self.expected(&stream);
        let asked = vec![about_metadata(&stream, expected)];
        let ticket = self.record(number, asked, None);
        let now = self.now();
        let request = DeleteStream {
            stream,
            expected,
            kind,
        };
        let command = Command::delete(ticket, request, now.instant);
        self.processes[number].input(Input::Command(command), now);
    }

    // ---- the end ----

    /// No more faults: everything must be answered soon, and appends must succeed again.
    fn end_in_peace(&mut self) -> Result<(), String> {
        self.note(|| "peace".to_owned());
        self.calm_down()?;
        let before = self.model.records.len();
        for number in 0..PROCESSES {
            let stream = StreamId::from_stored(format!("last-{number}").into());
            let event = EventData::json(EventType::from_stored("last".into()), "{}");
            let id = self.next_id();
            let request = Append::to(
                stream.clone(),
                ExpectedRevision::Any,
                vec![event.with_id(id)],
            );
            let asked = vec![Asked {
                stream: stream.clone(),
                target: stream,
                claim: Claim::Expected(ExpectedRevision::Any),
                ids: vec![id],
            }];
            let ticket = self.record(number, asked, None);
            let now = self.now();
            if let Ok(command) = Command::append(ticket, request, now.instant) {
                self.processes[number].input(Input::Command(command), now);
            }
        }
        self.calm_down()?;
        for record in &self.model.records[before..] {
            if !matches!(record.answer, Some(Ok(_))) {
                return Err(format!("an append in peace does not succeed: {record:?}"));
            }
        }
        for number in 0..PROCESSES {
            if let Some(why) = self.processes[number].why_not_ready(self.now()) {
                return Err(format!("process {number} is not ready in peace: {why}"));
            }
            let now = self.now();
            self.processes[number].input(Input::Close, now);
        }
        self.calm_down()?;
        for process in &mut self.processes {
            process.hub.poll();
        }
        self.calm_down()?;
        for process in &self.processes {
            process.hub.check(&self.database, true)?;
        }
        if !self.processes.iter().all(Process::is_stopped) {
            return Err("a process does not stop although everything is answered".into());
        }
        self.model.check_end(&self.archive)
    }

    /// Lets everything under way go on until nothing is.
    fn calm_down(&mut self) -> Result<(), String> {
        self.limbo.clear();
        for _ in 0..PEACE_STEPS_MAX {
            let mut is_quiet = true;
            for number in 0..PROCESSES {
                is_quiet &= !self.go_on_in_peace(number);
            }
            self.look()?;
            for (to, signal) in std::mem::take(&mut self.messages) {
                self.tell(to, signal);
            }
            let all_answered = self
                .model
                .records
                .iter()
                .all(|record| record.answer.is_some() || record.is_orphaned);
            if is_quiet && all_answered {
                return Ok(());
            }
            if is_quiet {
                self.wait_for_the_next_wake_up();
            }
        }
        let waiting = self.model.records.iter().enumerate();
        let waiting = waiting.filter(|(_, one)| one.answer.is_none() && !one.is_orphaned);
        let tickets: Vec<usize> = waiting.map(|(ticket, _)| ticket).collect();
        Err(format!(
            "commands {tickets:?} are not answered although there is peace"
        ))
    }

    /// True if something was under way.
    fn go_on_in_peace(&mut self, number: usize) -> bool {
        let now = self.now();
        let process = &mut self.processes[number];
        let mut went_on = false;
        if process.is_connecting() {
            self.epochs += 1;
            process.connected(WriterEpoch(self.epochs), self.database.history(), now);
            went_on = true;
        }
        while process.has_sent() {
            process.execute(&self.database, None);
            went_on = true;
        }
        if process.has_answer() {
            process.receive(now);
            went_on = true;
        }
        if process.reads() > 0 {
            process.go_on_reading(0, &self.database, false, now);
            went_on = true;
        }
        let history = process.history();
        went_on |= process.hub.work(history);
        if process.hub.is_reading() {
            process.go_on_with_hub(&self.database, now);
            went_on = true;
        }
        process.work(now);
        went_on
    }

    fn wait_for_the_next_wake_up(&mut self) {
        let wakes = self.processes.iter().filter_map(Process::wake_at).min();
        let now = self.now();
        let wait = wakes.map_or(Duration::from_millis(100), |at| {
            at.saturating_duration_since(now.instant)
        });
        self.time += wait.max(Duration::from_micros(1));
        let now = self.now();
        for process in &mut self.processes {
            process.work(now);
        }
        let end = self.database.end().position;
        for process in &mut self.processes {
            let signal = Signal::Appended {
                log: LogId(0),
                position: end.max(Position::START),
            };
            process.input(Input::Signal(signal), now);
        }
    }
}

fn about_metadata(stream: &StreamId, expected: ExpectedRevision) -> Asked {
    Asked {
        stream: stream.clone(),
        target: stream.metadata_stream(),
        claim: Claim::Expected(expected),
        ids: Vec::new(),
    }
}
