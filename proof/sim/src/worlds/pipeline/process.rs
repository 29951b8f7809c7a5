//! One process that appends: its sequencer, its connection, its reads under way. The schedule decides when each of them
//! goes on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use gesta_append::core::{
    Answer, Connected, Input, Job, JobId, Output, Sequencer, Setting, Stats, run_job,
};
use gesta_append::{Config, PipelineStats};
use gesta_core::backend::{Batch, BatchOutcome, Signal, WriterEpoch};
use gesta_core::{
    Appended, Error, ErrorKind, IdempotencyWindow, KnownEnd, LogId, Moment, Now, Position, Result,
};

use crate::driver::convention::step;
use crate::worlds::pipeline::database::{Database, incarnation};
use crate::worlds::pipeline::hub::Hub;
use crate::worlds::pipeline::nodes::Ticket;

/// Type of the events that the database refuses.
pub const POISON: &str = "poison";

/// A connection, as both ends see it.
#[derive(Debug)]
pub struct Connection {
    epoch: WriterEpoch,
    /// Batches that are sent and not executed yet.
    sent: VecDeque<Arc<Batch>>,
    /// Outcomes of batches that are executed and not received yet, each with the number of the history in which it was
    /// executed.
    answers: VecDeque<(BatchOutcome, u64)>,
    /// Number of the oldest batches for which the client gave up waiting. It is told *unknown* for them, whatever their
    /// answers are.
    given_up: usize,
    /// True if the client has lost the connection. Then every answer is *unknown*.
    is_cut: bool,
    /// Number of answers that the client still awaits.
    awaited: usize,
}

/// A read under way.
#[derive(Debug)]
enum Read {
    /// The read is not executed yet.
    Asked(JobId, Job),
    /// The read was executed in the history with this number, and its answer is not received yet.
    Done(JobId, Answer, u64),
}

/// How often something has gone wrong in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Troubles {
    /// Number of outcomes that were unknown, and of changes of history.
    pub doubts: u64,
    /// The same, with everything else that was not done as the process has asked.
    pub faults: u64,
}

/// A process.
#[derive(Debug)]
pub struct Process {
    sequencer: Sequencer<Ticket>,
    troubles: Troubles,
    /// Writer epochs of all its connections.
    epochs: Vec<WriterEpoch>,
    stats: Arc<Stats>,
    connection: Option<Connection>,
    is_connecting: bool,
    reads: Vec<Read>,
    /// Number of the history that the sequencer knows.
    history: u64,
    /// Answers given since the last look.
    pub answers: Vec<(Ticket, Result<Appended>)>,
    /// Tail hub of the process.
    pub hub: Hub,
    /// Messages sent since the last look.
    pub signals: Vec<Signal>,
    /// Statements of connections that the process has closed. The database may still execute them, in this order.
    pub left_behind: Vec<(Arc<Batch>, WriterEpoch)>,
    is_stopped: bool,
}

/// The deduplication window of a store.
pub const WINDOW: IdempotencyWindow = IdempotencyWindow {
    time: Duration::from_secs(600),
    positions: 100_000,
};
/// A deduplication window that events leave while a schedule runs.
pub const NARROW_WINDOW: IdempotencyWindow = IdempotencyWindow {
    time: Duration::from_secs(300),
    positions: 3,
};
/// Age from which on a command is given up.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// The bounds of a process that schedules draw.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The deduplication window.
    pub window: IdempotencyWindow,
    /// The greatest number of newest events in memory.
    pub newest_events_max: usize,
    /// How many values are compared in one turn.
    pub compared_values_max: usize,
}

fn setting(bounds: Bounds, history: u64) -> Setting {
    Setting {
        config: Config {
            batch_events_max: 4,
            names_listed_after: 3,
            streams_cached_max: 3,
            give_up_after: GIVE_UP_AFTER,
            idempotency_time: bounds.window.time,
            idempotency_positions: bounds.window.positions,
            newest_events_max: bounds.newest_events_max,
            compared_values_max: bounds.compared_values_max,
            ..Config::default()
        },
        log: LogId(0),
        logs: 1,
        incarnation: incarnation(history),
        in_flight_max: 4,
    }
}

impl Process {
    /// Makes a process that has just started.
    #[must_use]
    pub fn start(database: &Database, bounds: Bounds, now: Now) -> Self {
        let setting = setting(bounds, database.history());
        let stats = Arc::new(Stats::default());
        Self {
            sequencer: Sequencer::new(setting, Arc::clone(&stats), now),
            troubles: Troubles::default(),
            epochs: Vec::new(),
            stats,
            connection: None,
            is_connecting: false,
            reads: Vec::new(),
            history: database.history(),
            answers: Vec::new(),
            hub: Hub::default(),
            signals: Vec::new(),
            left_behind: Vec::new(),
            is_stopped: false,
        }
    }

    /// Gives the sequencer an input, and does what it asks for.
    pub fn input(&mut self, input: Input<Ticket>, now: Now) {
        self.sequencer.on(input, now);
        self.work(now);
    }

    /// Lets the sequencer work, and does what it asks for.
    pub fn work(&mut self, now: Now) {
        for output in step(&mut self.sequencer, now) {
            match output {
                Output::Connect => self.is_connecting = true,
                Output::Disconnect => {
                    let left = self.cut();
                    self.left_behind.extend(left);
                    self.connection = None;
                }
                Output::Send(batch) => self.send(batch),
                Output::Read(id, job) => self.reads.push(Read::Asked(id, job)),
                Output::Committed(batch) => self.hub.committed(self.history, &batch),
                Output::ReadLogEnd => self.hub.read_log_end(),
                Output::Answer(ticket, result) => self.answers.push((ticket, result)),
                Output::Signal(signal) => self.signals.push(signal),
                Output::Stopped => self.is_stopped = true,
            }
        }
    }

    fn send(&mut self, batch: Arc<Batch>) {
        if let Some(connection) = &mut self.connection {
            connection.awaited += 1;
            if !connection.is_cut {
                connection.sent.push_back(batch);
            }
        }
    }

    /// Returns true if the sequencer has more to do than it does in one turn.
    #[must_use]
    pub fn wants_turn(&self) -> bool {
        self.sequencer.wants_turn()
    }

    /// Returns what the sequencer has done.
    #[must_use]
    pub fn stats(&self) -> PipelineStats {
        self.stats.snapshot([0; 2])
    }

    /// Returns the end of the log, as far as the process knows it.
    #[must_use]
    pub fn known_end(&self) -> KnownEnd {
        self.stats.known_end()
    }

    /// Tells the process of the end of the log that another process has seen.
    pub fn hear_of_end(&self, end: KnownEnd) {
        self.stats.hear_of_end(end);
    }

    /// Returns what has gone wrong until now.
    #[must_use]
    pub fn troubles(&self) -> Troubles {
        self.troubles
    }

    fn note_fault(&mut self) {
        self.troubles.faults += 1;
    }

    fn note_doubt(&mut self) {
        self.troubles.doubts += 1;
        self.note_fault();
    }

    /// Returns true if a connection of the process had this writer epoch.
    #[must_use]
    pub fn was_writer(&self, epoch: WriterEpoch) -> bool {
        self.epochs.contains(&epoch)
    }

    /// Returns the position after which the process has seen everything stored.
    #[must_use]
    pub fn seen_after(&self) -> Position {
        self.sequencer.seen_after()
    }

    /// Returns when the sequencer wants to be woken.
    #[must_use]
    pub fn wake_at(&self) -> Option<Moment> {
        self.sequencer.wake_at()
    }

    /// Returns true once everything is answered after [`Input::Close`].
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Lets a read of the hub go on.
    pub fn go_on_with_hub(&mut self, database: &Database, now: Now) {
        if let Some(history) = self.hub.go_on(database) {
            self.see_history(history, now);
        }
    }

    /// Lets the look of the hub at the end of the log go on.
    pub fn go_on_looking_with_hub(&mut self, database: &Database, now: Now) {
        if let Some(history) = self.hub.go_on_looking(database) {
            self.see_history(history, now);
        }
    }

    /// Returns the reason why appends cannot succeed, if there is one.
    #[must_use]
    pub fn why_not_ready(&self, now: Now) -> Option<String> {
        self.sequencer.why_not_ready(now)
    }

    /// Tells the process of another history, before anything that was learnt from that history.
    pub fn see_history(&mut self, number: u64, now: Now) {
        if number > self.history {
            self.history = number;
            self.note_doubt();
            self.hub.keep_up(number);
            self.input(Input::HistoryChanged(incarnation(number)), now);
        }
    }

    /// Returns the number of the history that the process knows.
    #[must_use]
    pub fn history(&self) -> u64 {
        self.history
    }

    // ---- what the schedule can let happen ----

    /// Returns true if a connection is being opened.
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    /// Opens the connection.
    pub fn connected(&mut self, epoch: WriterEpoch, history: u64, now: Now) {
        self.is_connecting = false;
        self.epochs.push(epoch);
        self.connection = Some(Connection {
            epoch,
            sent: VecDeque::new(),
            answers: VecDeque::new(),
            given_up: 0,
            is_cut: false,
            awaited: 0,
        });
        self.see_history(history, now);
        if self.connection.is_some() {
            let connected = Connected {
                epoch,
                // Half of the connections take small batches one after the other.
                is_gathered: epoch.0 % 2 == 0,
            };
            self.input(Input::Connected(Ok(connected)), now);
        }
    }

    /// Lets the opening of the connection fail.
    pub fn not_connected(&mut self, error: Error, now: Now) {
        self.is_connecting = false;
        self.note_fault();
        self.input(Input::Connected(Err(error)), now);
    }

    /// Returns true if a batch waits in the database.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| !connection.sent.is_empty())
    }

    /// Lets the database execute the next batch of the connection. `fails` is the outcome, if it is given.
    pub fn execute(&mut self, database: &Database, fails: Option<BatchOutcome>) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        if let Some(batch) = connection.sent.pop_front() {
            let outcome = fails.unwrap_or_else(|| execute(database, &batch, connection.epoch));
            connection.answers.push_back((outcome, database.history()));
        }
    }

    /// Returns true if the sequencer awaits an answer that has arrived, or that will not arrive.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            connection.awaited > 0 && (connection.is_cut || !connection.answers.is_empty())
        })
    }

    /// Lets the process receive the next answer.
    pub fn receive(&mut self, now: Now) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let received = connection.answers.pop_front();
        if received.is_none() && !connection.is_cut {
            return;
        }
        connection.awaited -= 1;
        let is_given_up = connection.given_up > 0;
        connection.given_up = connection.given_up.saturating_sub(1);
        let lost = || BatchOutcome::Unknown(Error::unavailable("the connection is lost"));
        let outcome = match received {
            Some((outcome, history)) if !is_given_up && !connection.is_cut => {
                self.see_history(history, now);
                outcome
            }
            _ => lost(),
        };
        if self.connection.is_some() {
            match &outcome {
                BatchOutcome::Committed => {}
                BatchOutcome::Unknown(_) => self.note_doubt(),
                _ => self.note_fault(),
            }
            self.input(Input::Outcome(outcome), now);
        }
    }

    /// Returns true if the deadline of the oldest batch can pass.
    #[must_use]
    pub fn can_give_up(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.given_up < connection.awaited)
    }

    /// Lets the deadline of the oldest batch pass, though its answer may be here already. This is noticed late, as
    /// after a pause of the process.
    pub fn give_up(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.given_up += 1;
        }
    }

    /// Cuts the connection. Returns the statements that the database may still execute, in this order.
    pub fn cut(&mut self) -> Vec<(Arc<Batch>, WriterEpoch)> {
        let Some(connection) = &mut self.connection else {
            return Vec::new();
        };
        connection.is_cut = true;
        connection.answers.clear();
        let epoch = connection.epoch;
        let sent = connection.sent.drain(..);
        sent.map(|batch| (batch, epoch)).collect()
    }

    /// Returns true if the sequencer recovers, and nothing is under way but the opening of a connection, or a pause
    /// before the next attempt.
    #[must_use]
    pub fn waits_for_connection(&self) -> bool {
        let awaits = |connection: &Connection| connection.awaited > 0;
        self.sequencer.is_recovering()
            && self.reads.is_empty()
            && !self.connection.as_ref().is_some_and(awaits)
    }

    /// Returns the number of reads under way.
    #[must_use]
    pub fn reads(&self) -> usize {
        self.reads.len()
    }

    /// Lets a read go on: it is executed, or its answer is received. `fails` is the error of the execution, if it is
    /// given.
    pub fn go_on_reading(
        &mut self,
        which: usize,
        database: &Database,
        fails: Option<Error>,
        now: Now,
    ) {
        if which >= self.reads.len() {
            return;
        }
        match self.reads.remove(which) {
            Read::Asked(id, job) => {
                let answer = match fails {
                    Some(error) => {
                        self.note_fault();
                        job.fail(error)
                    }
                    None => do_now(job, database),
                };
                self.reads.push(Read::Done(id, answer, database.history()));
            }
            Read::Done(id, answer, history) => {
                self.see_history(history, now);
                self.input(Input::Read(id, answer), now);
            }
        }
    }
}

/// Returns what the database answers to a batch.
fn execute(database: &Database, batch: &Batch, epoch: WriterEpoch) -> BatchOutcome {
    let is_poison = |row: &gesta_core::backend::Row| row.event_type.as_str() == POISON;
    if batch.rows.iter().any(is_poison) {
        return BatchOutcome::Refused(ErrorKind::Refused(POISON.into()).into());
    }
    match database.insert(batch, epoch) {
        true => BatchOutcome::Committed,
        false => BatchOutcome::Missed,
    }
}

fn do_now(job: Job, database: &Database) -> Answer {
    let failed = job.clone();
    run_job(job, database, LogId(0))
        .now_or_never()
        .unwrap_or_else(|| failed.fail(Error::unavailable("the job waits for something")))
}
