//! One process that appends: its sequencer, its connection, its reads under way. The schedule decides when each of them
//! goes on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use gesta_append::sequencer::job::{Answer, Job, JobId};
use gesta_append::sequencer::{Connected, Input, Now, Output, Sequencer, Setting};
use gesta_append::{Config, jobs};
use gesta_core::backend::{Batch, BatchOutcome, Signal, WriterEpoch};
use gesta_core::{Appended, Error, ErrorKind, IdempotencyWindow, Incarnation, LogId, Result};

use crate::database::Database;
use crate::hub::Hub;
use crate::nodes::Ticket;

/// Type of events that the database refuses.
pub const POISON: &str = "poison";

/// A connection, as both ends see it.
#[derive(Debug)]
pub struct Connection {
    epoch: WriterEpoch,
    /// Sent, and not yet executed.
    sent: VecDeque<Arc<Batch>>,
    /// Executed, and not yet received, with the history in which it was executed.
    answers: VecDeque<(BatchOutcome, u64)>,
    /// The client is told *unknown* for so many of the oldest batches whatever their answers are: it gave up waiting
    /// for them.
    given_up: usize,
    /// The client has lost it: every answer is *unknown*.
    is_cut: bool,
    /// Answers that the client still awaits.
    awaited: usize,
}

/// A read under way.
#[derive(Debug)]
enum Read {
    /// Not yet executed.
    Asked(JobId, Job),
    /// Executed in this history, and not yet received.
    Done(JobId, Answer, u64),
}

/// A process.
#[derive(Debug)]
pub struct Process {
    sequencer: Sequencer<Ticket>,
    connection: Option<Connection>,
    is_connecting: bool,
    reads: Vec<Read>,
    /// Number of the history that the sequencer knows of.
    history: u64,
    /// Answers given since the last look.
    pub answers: Vec<(Ticket, Result<Appended>)>,
    /// The tail hub.
    pub hub: Hub,
    /// Messages sent since the last look.
    pub signals: Vec<Signal>,
    /// Statements of connections that the process has closed: the database may still execute them, in this order.
    pub left_behind: Vec<(Arc<Batch>, WriterEpoch)>,
    is_stopped: bool,
}

/// What is fixed about all processes.
#[must_use]
pub fn setting() -> Setting {
    Setting {
        config: Config {
            batch_events_max: 4,
            names_listed_after: 3,
            streams_cached_max: 3,
            give_up_after: Duration::from_secs(30),
            idempotency: IdempotencyWindow {
                time: Duration::from_secs(600),
                positions: 100_000,
            },
            ..Config::default()
        },
        log: LogId(0),
        logs: 1,
        incarnation: Incarnation(uuid::Uuid::nil()),
        in_flight_max: 4,
    }
}

impl Process {
    /// A process that has just started.
    #[must_use]
    pub fn start(database: &Database, now: Now) -> Self {
        Self {
            sequencer: Sequencer::new(setting(), Arc::default(), now),
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

    /// Brings an input in, and does what comes out.
    pub fn input(&mut self, input: Input<Ticket>, now: Now) {
        self.sequencer.on(input, now);
        self.work(now);
    }

    /// Lets the sequencer work.
    pub fn work(&mut self, now: Now) {
        self.sequencer.work(now);
        for output in self.sequencer.take_outputs() {
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

    /// When the sequencer wants to be woken.
    #[must_use]
    pub fn wake_at(&self) -> Option<tokio::time::Instant> {
        self.sequencer.wake_at()
    }

    /// True once everything is answered after [`Input::Close`].
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// A read of the hub goes on.
    pub fn go_on_with_hub(&mut self, database: &Database, now: Now) {
        if let Some(history) = self.hub.go_on(database) {
            self.see_history(history, now);
        }
    }

    /// Why appends cannot succeed, if so.
    #[must_use]
    pub fn why_not_ready(&self, now: Now) -> Option<String> {
        self.sequencer.why_not_ready(now.instant)
    }

    /// Tells of another history before anything that was learnt from it.
    pub fn see_history(&mut self, number: u64, now: Now) {
        if number > self.history {
            self.history = number;
            self.hub.keep_up(number);
            let incarnation = Incarnation(uuid::Uuid::from_u128(number.into()));
            self.input(Input::HistoryChanged(incarnation), now);
        }
    }

    /// The number of the history that the process knows of.
    #[must_use]
    pub fn history(&self) -> u64 {
        self.history
    }

    // ---- what the schedule can let happen ----

    /// A connection is being opened.
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    /// The connection is open now.
    pub fn connected(&mut self, epoch: WriterEpoch, history: u64, now: Now) {
        self.is_connecting = false;
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

    /// The connection could not be opened.
    pub fn not_connected(&mut self, error: Error, now: Now) {
        self.is_connecting = false;
        self.input(Input::Connected(Err(error)), now);
    }

    /// A batch waits in the database.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| !connection.sent.is_empty())
    }

    /// The database executes the next batch of the connection.
    pub fn execute(&mut self, database: &Database, fails: Option<BatchOutcome>) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        if let Some(batch) = connection.sent.pop_front() {
            let outcome = fails.unwrap_or_else(|| execute(database, &batch, connection.epoch));
            connection.answers.push_back((outcome, database.history()));
        }
    }

    /// The sequencer awaits an answer that has arrived, or will not.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            connection.awaited > 0 && (connection.is_cut || !connection.answers.is_empty())
        })
    }

    /// The next answer is received.
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
            self.input(Input::Outcome(outcome), now);
        }
    }

    /// True if the deadline of the oldest batch can pass.
    #[must_use]
    pub fn can_give_up(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.given_up < connection.awaited)
    }

    /// The deadline of the oldest batch passes, though its answer may be here already: noticed late, as after a pause
    /// of the process.
    pub fn give_up(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.given_up += 1;
        }
    }

    /// A connection is open.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| !connection.is_cut)
    }

    /// The connection is cut. Returns what may still be executed by the database, in this order.
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

    /// The sequencer recovers, and nothing is under way but the opening of a connection, or a pause before the next
    /// try.
    #[must_use]
    pub fn waits_for_connection(&self) -> bool {
        let awaits = |connection: &Connection| connection.awaited > 0;
        self.sequencer.is_recovering()
            && self.reads.is_empty()
            && !self.connection.as_ref().is_some_and(awaits)
    }

    /// Reads under way.
    #[must_use]
    pub fn reads(&self) -> usize {
        self.reads.len()
    }

    /// A read goes on: it is executed, or its answer is received.
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
                    Some(error) => job.fail(error),
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

/// What the database says to a batch.
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
    jobs::run(job, database, LogId(0))
        .now_or_never()
        .unwrap_or_else(|| failed.fail(Error::unavailable("the job waits for something")))
}
