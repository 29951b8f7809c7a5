//! The sequencer: decides the appends of one log, forms batches of them, and says what is to be sent, read and
//! answered.
//!
//! It is pure: it does no I/O, has no tasks and no clock. Inputs come in by [`Sequencer::on`], each with the time;
//! after some of them [`Sequencer::work`] does everything that can be done without waiting for anyone; what is to be
//! done outside comes out as [`Output`]s, in order. The shell (`engine`) connects it with a backend, a simulation with
//! a simulated one.
//!
//! * `queue`, `attempts`: commands that wait; `knowledge`: what is known of streams and ids; `judge`: do claims hold?
//! * `repeated`: changes that nodes send again by themselves;
//! * `forming`, `sending`: the batch being formed, and what follows its commit; `pace`, `giving_way`: when to send;
//! * `looking_up`, `reads`, `job`, `lookup`: what is looked up;
//! * `clock`: with which time events are stored, and when the clock is not believed;
//! * `recovery`, `catch_up`: what happens when a batch does not commit; `late`: appends in doubt; `trouble`: pauses and
//!   readiness; `preparing`: the log is read before the first append.
//!
//! Commands are decided against the *tip*: all that was decided before, stored or not. So an answer without rows is not
//! given before everything that it rests on has committed; it depends on a batch (`forming`).

pub(crate) mod attempts;
mod catch_up;
pub(crate) mod clock;
mod connected;
pub(crate) mod forming;
pub(crate) mod giving_way;
pub(crate) mod job;
pub(crate) mod judge;
pub(crate) mod knowledge;
pub(crate) mod late;
mod looking_up;
pub(crate) mod lookup;
pub(crate) mod pace;
mod preparing;
pub(crate) mod queue;
pub(crate) mod reads;
mod recovery;
mod repeated;
mod sending;
#[cfg(test)]
mod tests;
pub(crate) mod trouble;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use gesta_core::backend::{Batch, BatchOutcome, LogEnd, Signal, WriterEpoch};
use gesta_core::{
    Appended, Checkpoint, Error, ErrorKind, Incarnation, LogId, Moment, Now, Position, Result,
    StreamId,
};

use self::attempts::Attempts;
use self::clock::ClockWatch;
use self::forming::{Bounds, DependentAnswer, Forming, InFlight, Placement};
use self::giving_way::GivingWay;
use self::job::{Answer, Job, JobId, MatchSearch};
use self::judge::Decision;
use self::knowledge::{Assessment, Knowledge, Matching};
use self::lookup::Found;
use self::pace::Pace;
use self::queue::{Queue, Waiting};
use self::reads::Reads;
use self::recovery::Recovery;
use self::trouble::Trouble;
use crate::Config;
use crate::command::{Command, FoundStored, NoMatch, StoredBy};
use crate::stats::Stats;

pub use self::connected::Connected;

/// An input of the sequencer.
#[derive(Debug)]
pub enum Input<T> {
    /// A command has arrived.
    Command(Command<T>),
    /// The connection that was asked for ([`Output::Connect`]) is open, or could not be opened.
    Connected(Result<Connected>),
    /// The oldest batch in flight has this outcome.
    Outcome(BatchOutcome),
    /// A read has this answer.
    Read(JobId, Answer),
    /// Another process has sent this message.
    Signal(Signal),
    /// History has changed: the database has lost commits, or the store has a new incarnation. This input comes before
    /// anything that was learnt from the new history.
    HistoryChanged(Incarnation),
    /// Others have appended to the log, and this process is about to: what they have appended must be read.
    Prepare,
    /// No more commands will come: the sequencer stops when all are answered.
    Close,
}

/// An output of the sequencer: something that is to be done, in the order of the outputs.
#[derive(Debug)]
pub enum Output<T> {
    /// A connection that appends must be opened.
    Connect,
    /// The connection must be closed. Answers to what is in flight on it no longer count.
    Disconnect,
    /// This batch must be sent on the connection.
    Send(Arc<Batch>),
    /// This read must be done.
    Read(JobId, Job),
    /// The observer must be told that the rows of this batch are durable. Batches come in the order of the log.
    Committed(Arc<Batch>),
    /// The observer must be told to read the end of the log: the log may have more rows than the batches of
    /// `Committed`.
    ReadLogEnd,
    /// A command must be answered.
    Answer(T, Result<Appended>),
    /// This message must be sent to the other processes.
    Signal(Signal),
    /// Everything is answered and no command will come. This is the last output.
    Stopped,
}

/// What a sequencer needs to know at the start.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The bounds and times.
    pub config: Config,
    /// The log that the sequencer serves.
    pub log: LogId,
    /// The number of logs of the store.
    pub logs: u16,
    /// The incarnation of the store.
    pub incarnation: Incarnation,
    /// The greatest number of batches in flight at once.
    pub in_flight_max: usize,
}

/// The search for the one append of a batch that the database refuses.
#[derive(Debug)]
struct Bisection {
    /// The greatest number of commands in one batch.
    commands_max: usize,
    /// The number of the last command that may be the offending append.
    suspects_until: u64,
}

impl Default for Bisection {
    fn default() -> Self {
        Self {
            commands_max: usize::MAX,
            suspects_until: 0,
        }
    }
}

/// The pure core of the pipeline of one log. `T` is the ticket of a command, which is handed back with the answer.
///
/// The sequencer has more fields than most structs, because it connects the parts. Each part is a type of its own.
#[derive(Debug)]
pub struct Sequencer<T> {
    setting: Setting,
    stats: Arc<Stats>,
    /// The epoch of the connection, if there is one.
    writer: Option<WriterEpoch>,
    /// The last row that is known to be committed.
    committed: LogEnd,
    /// The batches in flight, oldest first.
    in_flight: VecDeque<InFlight<T>>,
    forming: Forming<T>,
    queue: Queue<T>,
    attempts: Attempts<T>,
    knowledge: Knowledge,
    reads: Reads,
    recovery: Recovery<T>,
    bisection: Bisection,
    trouble: Trouble,
    giving_way: GivingWay,
    pace: Pace,
    clock: ClockWatch,
    /// How many values may still be compared for conditions in this turn.
    comparable: usize,
    /// Whether a condition was not compared with all events, and goes on in the next turn.
    wants_turn: bool,
    is_closing: bool,
    outputs: Vec<Output<T>>,
}

impl<T> Sequencer<T> {
    /// Makes a sequencer that knows nothing. Its first output asks for a connection.
    #[must_use]
    pub fn new(setting: Setting, stats: Arc<Stats>, now: Now) -> Self {
        Self {
            stats,
            writer: None,
            committed: LogEnd::default(),
            in_flight: VecDeque::new(),
            forming: Forming::default(),
            queue: Queue::default(),
            attempts: Attempts::default(),
            knowledge: Knowledge::new(&setting.config),
            reads: Reads::default(),
            recovery: Recovery::first(),
            bisection: Bisection::default(),
            trouble: Trouble::default(),
            giving_way: GivingWay::new(setting.log, now.moment),
            pace: Pace::default(),
            clock: ClockWatch::new(setting.config.clock),
            comparable: 0,
            wants_turn: false,
            is_closing: false,
            outputs: vec![Output::Connect],
            setting,
        }
    }

    /// Takes an input. The next [`work`](Self::work) does what can be done about it.
    pub fn on(&mut self, input: Input<T>, now: Now) {
        match input {
            Input::Command(command) => self.queue.arrive(command),
            Input::Connected(connected) => self.on_connected(connected, now),
            Input::Outcome(outcome) => self.on_outcome(outcome, now),
            Input::Read(id, answer) => self.on_read(id, answer, now),
            Input::Signal(signal) => {
                let has_work = self.has_work();
                self.giving_way.heard(signal, has_work, now.moment);
            }
            Input::HistoryChanged(incarnation) => self.on_history_changed(incarnation),
            Input::Prepare => self.prepare(),
            Input::Close => self.is_closing = true,
        }
    }

    /// Does everything that can be done without waiting, as far as it is not too much for one turn: then
    /// [`wants_turn`](Self::wants_turn) says that it is to be called again.
    pub fn work(&mut self, now: Now) {
        self.comparable = self.setting.config.compared_values_max.max(1);
        self.wants_turn = false;
        self.on_time(now);
        if self.is_running() {
            self.decide_inbox(now);
            self.start_reads(now);
            self.send_if_due(now);
        }
        self.tell_end();
        if self.is_closing && self.is_done() {
            self.stop();
        }
    }

    /// Takes the outputs, in order. What they say is to be done.
    pub fn take_outputs(&mut self) -> Vec<Output<T>> {
        std::mem::take(&mut self.outputs)
    }

    /// Returns the time at which [`work`](Self::work) must be called again if nothing happens before; `None` if there
    /// is no such time.
    #[must_use]
    pub fn wake_at(&self) -> Option<Moment> {
        if !self.is_running() {
            return self.recovery_wakes_at();
        }
        let wakes = [self.giving_way.wake_at(), self.reads.wake_at()];
        wakes.into_iter().flatten().min()
    }

    /// Returns whether [`work`](Self::work) must be called again soon, after what has come in meanwhile, because not
    /// everything was done that can be done without waiting.
    #[must_use]
    pub fn wants_turn(&self) -> bool {
        self.wants_turn
    }

    /// Returns whether more commands should be brought. While the sequencer runs, no more are wanted if `enough` are
    /// still to be decided. During a recovery all are wanted, because their age is watched.
    #[must_use]
    pub fn takes_commands(&self, enough: usize) -> bool {
        self.queue.inbox.len() < enough || !self.is_running()
    }

    /// Returns why appends cannot succeed at present; `None` if they can.
    #[must_use]
    pub fn why_not_ready(&self, now: Now) -> Option<String> {
        let oldest = self.in_flight.front().map(|batch| batch.sent);
        let trouble = self.trouble.why_not_ready(oldest, now.moment);
        trouble.or_else(|| self.clock.refuses(self.committed, now))
    }

    /// Returns whether all commands are answered.
    fn is_done(&self) -> bool {
        self.queue.is_empty()
            && self.forming.is_empty()
            && self.attempts.is_empty()
            && self.in_flight.iter().all(|batch| batch.cargo.is_empty())
            && self.recovery.is_without_commands()
    }

    /// Returns whether something waits to be sent.
    fn has_work(&self) -> bool {
        !self.forming.is_empty() || !self.queue.is_empty()
    }

    // ---- deciding ----

    fn decide_inbox(&mut self, now: Now) {
        if std::mem::take(&mut self.queue.some_are_ready) {
            self.decide_waiting(now);
        }
        while let Some(next) = self.queue.inbox.front()
            && !self.is_full_for(next)
        {
            let Some(command) = self.queue.inbox.pop_front() else {
                break;
            };
            if let Some(command) = self.join_attempt(command) {
                self.decide_or_wait(command, now);
            }
        }
    }

    fn is_full_for(&self, command: &Command<T>) -> bool {
        let bounds = Bounds {
            events_max: self.setting.config.batch_events_max,
            bytes_max: self.setting.config.batch_bytes_max,
            commands_max: self.bisection.commands_max,
        };
        self.forming.is_full_for(command.cost, bounds)
    }

    fn join_attempt(&mut self, command: Command<T>) -> Option<Command<T>> {
        let joined = self.attempts.join(command);
        if joined.is_none() {
            self.stats.joined.add(1);
        }
        joined
    }

    fn decide_or_wait(&mut self, command: Command<T>, now: Now) {
        if let Some(stored) = command.stored.clone() {
            self.answer_stored(command, stored);
        } else if self.queue.is_held(&command) {
            self.queue.wait(command, None);
        } else {
            self.assess(command, now);
        }
    }

    /// Answers a command whose events were found stored. What a retry was found by may have been out of date: others
    /// may have deleted the stream before the retry came. The events may have left the window since, so they are not
    /// sought again. What the command itself has stored is answered as stored, whatever came after it.
    fn answer_stored(&mut self, command: Command<T>, stored: FoundStored) {
        let reads = &self.reads;
        let is_loading = |stream: &StreamId| reads.is_loading(stream);
        let answer = if stored.by == StoredBy::Itself {
            DependentAnswer::Stored(stored.streams)
        } else if !self.knowledge.knows(&command, is_loading) {
            return self.queue.wait(command, None);
        } else {
            let judged = self.knowledge.judge_all(&command);
            match judge::gone_since(&command.parts, &judged, &stored.streams) {
                Some(refusal) => DependentAnswer::Refused(refusal),
                None => DependentAnswer::Stored(stored.streams),
            }
        };
        self.forming.depend(command, answer);
    }

    fn assess(&mut self, command: Command<T>, now: Now) {
        let reads = &self.reads;
        let is_loading = |stream: &StreamId| reads.is_loading(stream);
        let (committed, at) = (self.committed.position, now.moment);
        match self.knowledge.assess(&command, committed, at, is_loading) {
            Assessment::Unknown => self.queue.wait(command, None),
            Assessment::Fits => self.place_unless_matched(command, None, now),
            Assessment::RestsOnOpenCommits => self.queue.wait_for_commits(command),
            Assessment::MayBeStored(questions) => {
                let (number, job) = self.reads.look_up(questions);
                self.outputs
                    .extend(job.map(|(id, job)| Output::Read(id, job)));
                self.queue.wait(command, Some(number));
            }
            Assessment::Judged(judged) => {
                let nothing = vec![Found::Nothing; judged.len()];
                let decision = judge::decision(&command.parts, &judged, nothing);
                self.conclude(command, decision, None, now);
            }
        }
    }

    /// Decides a command of which everything is known. `found` says which of its events are stored.
    fn decide(&mut self, command: Command<T>, found: Vec<Found>, now: Now) {
        let judged = self.knowledge.judge_all(&command);
        let decision = judge::decision(&command.parts, &judged, found.clone());
        self.conclude(command, decision, Some(found), now);
    }

    fn conclude(
        &mut self,
        mut command: Command<T>,
        decision: Decision,
        found: Option<Vec<Found>>,
        now: Now,
    ) {
        match decision {
            Decision::Store => self.place_unless_matched(command, found, now),
            Decision::Refuse(refusal) => {
                self.forming
                    .depend(command, DependentAnswer::Refused(refusal));
            }
            Decision::Retry(stored) => {
                self.stats.retries.add(1);
                // It was seen, but its commit may still wait for a synchronous standby: the next commit tells.
                command.stored = Some(FoundStored {
                    streams: stored.clone(),
                    by: StoredBy::EarlierAttempt,
                });
                self.forming
                    .depend(command, DependentAnswer::Stored(stored));
            }
        }
    }

    /// Places a command that is to be stored, unless an event passes the filter of its condition. `found` says which of
    /// its events are stored, if that was looked up.
    fn place_unless_matched(
        &mut self,
        mut command: Command<T>,
        found: Option<Vec<Found>>,
        now: Now,
    ) {
        if let Some(answer) = self.deleted_attempt(&command) {
            return self.forming.depend(command, answer);
        }
        let Some(mut condition) = command.no_match.take() else {
            return self.place(command, now);
        };
        let after = self.begin_of(condition.after.as_ref());
        let matching = after.map(|after| match condition.filter.asks_for_system_streams() {
            // None of their events counts: all that was asked is whether history is that of the checkpoint.
            true => Matching::Nothing,
            false => self.match_after(&mut condition, after),
        });
        let filter = Arc::clone(&condition.filter);
        command.no_match = Some(condition);
        match matching {
            Ok(Matching::Nothing) => self.place(command, now),
            Ok(Matching::Found(position)) => {
                let log = self.setting.log;
                let refusal = ErrorKind::ConditionFailed { log, position };
                self.forming
                    .depend(command, DependentAnswer::Refused(refusal));
            }
            Ok(Matching::Unfinished) => {
                self.stats.condition_turns.add(1);
                self.queue.wait_with(command, None, found);
                self.queue.some_are_ready = true;
                self.wants_turn = true;
            }
            Ok(Matching::Unknown {
                history,
                after,
                until,
                confirms,
            }) => {
                let search = MatchSearch {
                    filter,
                    after,
                    until,
                };
                let number = self.reads.seek_match(search, history, confirms);
                self.queue.wait_with(command, Some(number), found);
            }
            Err(refusal) => {
                // Others may have appended: then the commit misses, and this is decided again.
                let refused = DependentAnswer::Refused(refusal.kind().clone());
                self.forming.depend(command, refused);
            }
        }
    }

    /// Judges a condition. `after` is the position after which events count.
    fn match_after(&mut self, condition: &mut NoMatch, after: Position) -> Matching {
        let open = self.in_flight.iter().flat_map(|batch| &batch.batch.rows);
        let open = open.chain(self.forming.rows());
        self.knowledge.keep_newest(self.committed.position, open);
        let committed = self.committed.position;
        self.knowledge
            .match_after(condition, after, committed, &mut self.comparable)
    }

    /// Returns the position after which the events count that a condition is about.
    ///
    /// # Errors
    /// `InvalidCheckpoint` if the checkpoint is of another history, or after the last event.
    fn begin_of(&self, after: Option<&Checkpoint>) -> Result<Position> {
        let Some(after) = after else {
            return Ok(Position::START);
        };
        let Setting {
            incarnation, logs, ..
        } = self.setting;
        let positions = after.positions_for(incarnation, logs)?;
        let log = usize::from(self.setting.log.0);
        let position = positions.get(log).copied().unwrap_or_default();
        let rows = self.forming.rows().last().map(|row| row.position);
        let end = rows.unwrap_or(self.tip().position);
        if position > end {
            let text = format!("position {position} of log {log} is above its end {end}");
            return Err(ErrorKind::InvalidCheckpoint(text).into());
        }
        Ok(position)
    }

    fn place(&mut self, command: Command<T>, now: Now) {
        if command.is_question() {
            return self.forming.depend(command, DependentAnswer::Confirmed);
        }
        let tip = self.tip();
        if let Some(why) = self.clock.refuses(tip, now) {
            let refused = Error::needs_administrator(why).during("append");
            return self.answer(command, Err(refused));
        }
        self.clock.see(self.setting.log, tip.created, now.wall);
        let place = self.place_after(tip, now);
        self.forming.place(command, &mut self.knowledge, place);
    }

    fn place_after(&self, after: LogEnd, now: Now) -> Placement {
        Placement {
            log: self.setting.log,
            logs: self.setting.logs,
            incarnation: self.setting.incarnation,
            after,
            committed: self.committed.position,
            now: now.wall,
            clock: self.clock.policy(now),
        }
    }

    /// Returns the row that the next batch follows.
    fn tip(&self) -> LogEnd {
        self.in_flight
            .back()
            .map_or(self.committed, |batch| batch.end)
    }

    /// Decides, in order, the commands that no longer have to wait.
    fn decide_waiting(&mut self, now: Now) {
        let mut blocked: HashSet<StreamId> = HashSet::new();
        for waiting in std::mem::take(&mut self.queue.waiting) {
            let is_blocked = |part: &crate::command::StreamPart| blocked.contains(&part.stream);
            let reads = &self.reads;
            let ready = waiting.lookup.is_none()
                && !waiting.command.parts.iter().any(is_blocked)
                && self
                    .knowledge
                    .knows(&waiting.command, |stream| reads.is_loading(stream));
            let full = ready && self.is_full_for(&waiting.command);
            self.queue.some_are_ready |= full;
            if ready && !full {
                self.queue.release(&waiting.command);
                let Waiting { command, found, .. } = waiting;
                let waited = self.queue.waiting.len();
                match (found, command.stored.clone()) {
                    (Some(found), _) => self.decide(command, found, now),
                    (None, Some(stored)) => self.answer_stored(command, stored),
                    (None, None) => self.assess(command, now),
                }
                // It may wait once more, now for its ids to be looked up.
                for waiting in self.queue.waiting.iter().skip(waited) {
                    let parts = waiting.command.parts.iter();
                    blocked.extend(parts.map(|part| part.stream.clone()));
                }
            } else {
                let streams = waiting.command.parts.iter().map(|part| part.stream.clone());
                blocked.extend(streams);
                self.queue.waiting.push_back(waiting);
            }
        }
    }
}

/// Makes the error for an append in doubt.
fn unknown(detail: &str) -> Error {
    Error::new(ErrorKind::OutcomeUnknown(detail.to_owned())).during("append")
}
