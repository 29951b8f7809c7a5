//! The sequencer: decides the appends of one log, forms batches of them, and says what is to be sent, read and answered.
//!
//! It is pure: it does no I/O, has no tasks and no clock. Inputs come in by [`Sequencer::on`], each with the time; after some
//! of them [`Sequencer::work`] does everything that can be done without waiting for anyone; what the world shall do
//! comes out as [`Output`]s, in order. The shell (`engine`) connects it with a backend, a simulation with a simulated one.
//!
//! * `queue`, `attempts`: commands that wait; `knowledge`: what is known of streams and ids; `judge`: do claims hold?
//! * `forming`: the batch being formed; `reads`, `job`, `lookup`: what is looked up; `pace`, `turns`: when to send;
//! * `recovery`: what happens when a batch does not commit; `late`, `trouble`: its memory.
//!
//! Decided is decided against the *tip*: all that was decided before, stored or not. So an answer without rows
//! is not given before everything that it rests on has committed; it depends on a batch (`forming`).

pub(crate) mod attempts;
pub(crate) mod forming;
pub mod job;
pub(crate) mod judge;
pub(crate) mod knowledge;
pub(crate) mod late;
pub(crate) mod lookup;
pub(crate) mod pace;
pub(crate) mod queue;
pub(crate) mod reads;
mod recovery;
pub(crate) mod trouble;
pub(crate) mod turns;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use gesta_core::backend::{
    Batch, BatchOutcome, LoadRequest, Loaded, LogEnd, Signal, StoredId, WriterEpoch,
};
use gesta_core::{
    Appended, Error, ErrorKind, Incarnation, LogId, Position, Result, StreamId, Timestamp,
};
use tokio::time::Instant;

use self::attempts::Attempts;
use self::forming::{Bounds, DependentAnswer, Forming, InFlight, Place, appended};
use self::job::{Answer, Gave, Job, JobId};
use self::judge::Verdict;
use self::knowledge::{Assessment, Hashes, Knowledge, OlderIds};
use self::lookup::{Found, Hits, Questions};
use self::pace::Pace;
use self::queue::{Queue, Waiting};
use self::reads::{LOAD_STREAMS_MAX, Purpose, Reads};
use self::recovery::Recovery;
use self::trouble::{Trouble, is_passing};
use self::turns::Turns;
use crate::Config;
use crate::command::Command;
use crate::stats::Stats;

/// Batches of full size under way at once near the database: one that it works on and one that waits.
const NEAR_IN_FLIGHT_MAX: usize = 2;
/// The same where a batch travels for longer than it is worked on: few enough to lose little by a miss.
const FAR_IN_FLIGHT_MAX: usize = 4;

/// The time of an input.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For durations.
    pub instant: Instant,
    /// What events are stamped with.
    pub wall: Timestamp,
}

/// What happens to a sequencer.
#[derive(Debug)]
pub enum Input<T> {
    /// A command arrives.
    Command(Command<T>),
    /// The connection that was asked for ([`Output::Connect`]) is open, with this epoch, or could not be opened.
    Connected(Result<WriterEpoch>),
    /// The answer to the oldest batch in flight.
    Outcome(BatchOutcome),
    /// The answer to a read.
    Read(JobId, Answer),
    /// A message of another process.
    Signal(Signal),
    /// History has changed: the database has lost commits, or the store has a new incarnation. Comes before
    /// anything that was learnt from the new history.
    HistoryChanged(Incarnation),
    /// No more commands will come: stop when all are answered.
    Close,
}

/// What a sequencer wants done, in this order.
#[derive(Debug)]
pub enum Output<T> {
    /// Open a connection that appends.
    Connect,
    /// Close the connection. Answers to what is in flight on it no longer count.
    Disconnect,
    /// Send a batch on the connection.
    Send(Arc<Batch>),
    /// Do a read.
    Read(JobId, Job),
    /// The rows of this batch are durable; in the order of the log.
    Committed(Arc<Batch>),
    /// The log may have more rows than were told by `Committed`: look.
    LookBehind,
    /// Answer a command.
    Answer(T, Result<Appended>),
    /// Tell the other processes.
    Signal(Signal),
    /// Everything is answered and no command will come: this was the last output.
    Stopped,
}

/// What a sequencer is told at the start.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Bounds and times.
    pub config: Config,
    /// The log.
    pub log: LogId,
    /// Logs of the store.
    pub logs: u16,
    /// The life of the store.
    pub incarnation: Incarnation,
    /// Batches that may be in flight at once.
    pub in_flight_max: usize,
}

/// The search for the one append of a batch that the database refuses.
#[derive(Debug)]
struct Bisection {
    /// Most commands in one batch.
    commands_max: usize,
    /// Commands up to this number are suspects.
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

/// The pure core of the pipeline of one log. `T`: the ticket of a command, handed back with its answer.
///
/// It has more fields than most structs, for it is what connects the parts; each part is a type of its own.
#[derive(Debug)]
pub struct Sequencer<T> {
    setting: Setting,
    stats: Arc<Stats>,
    /// The connection, if there is one.
    writer: Option<WriterEpoch>,
    /// The last row known to be committed.
    committed: LogEnd,
    /// Oldest first.
    in_flight: VecDeque<InFlight<T>>,
    forming: Forming<T>,
    queue: Queue<T>,
    attempts: Attempts<T>,
    knowledge: Knowledge,
    reads: Reads,
    recovery: Recovery<T>,
    bisection: Bisection,
    trouble: Trouble,
    turns: Turns,
    pace: Pace,
    is_closing: bool,
    outputs: Vec<Output<T>>,
}

impl<T> Sequencer<T> {
    /// A sequencer that knows nothing; its first output asks for a connection.
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
            turns: Turns::new(setting.log, now.instant),
            pace: Pace::default(),
            is_closing: false,
            outputs: vec![Output::Connect],
            setting,
        }
    }

    /// Takes an input. What can be done about it is done by the next [`work`](Self::work).
    pub fn on(&mut self, input: Input<T>, now: Now) {
        match input {
            Input::Command(command) => self.queue.arrive(command),
            Input::Connected(connected) => self.on_connected(connected, now),
            Input::Outcome(outcome) => self.on_outcome(outcome, now),
            Input::Read(id, answer) => self.on_read(id, answer, now),
            Input::Signal(signal) => self.on_signal(signal, now),
            Input::HistoryChanged(incarnation) => self.on_history_changed(incarnation),
            Input::Close => self.is_closing = true,
        }
    }

    /// Does everything that can be done without waiting for anyone.
    pub fn work(&mut self, now: Now) {
        self.on_time(now);
        if self.is_running() {
            self.decide_inbox(now);
            self.start_reads(now);
            self.send_if_due(now);
            self.take_turns(now);
        }
        if self.is_closing && self.is_done() {
            self.stop();
        }
    }

    /// Takes what is to be done.
    pub fn take_outputs(&mut self) -> Vec<Output<T>> {
        std::mem::take(&mut self.outputs)
    }

    /// When to call [`work`](Self::work) again if nothing happens until then.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let turn = match self.is_running() {
            true => self
                .turns
                .wake_at(!self.in_flight.is_empty(), self.has_work()),
            false => self.recovery_wakes_at(),
        };
        let read = self.reads.wake_at().filter(|_| self.is_running());
        [turn, read].into_iter().flatten().min()
    }

    /// True if nothing waits, nothing is in flight and nothing is wrong: a command would be decided and sent at once.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_running() && self.in_flight.is_empty() && self.is_done()
    }

    /// True if more commands should be brought: none while `enough` are still to be decided, but all while their age is watched.
    #[must_use]
    pub fn takes_commands(&self, enough: usize) -> bool {
        self.queue.inbox.len() < enough || !self.is_running()
    }

    /// Why appends cannot succeed at present, if so.
    #[must_use]
    pub fn why_not_ready(&self, now: Instant) -> Option<String> {
        let oldest = self.in_flight.front().map(|batch| batch.sent);
        let oldest = oldest.or(self.recovery.oldest_unanswered());
        self.trouble.why_not_ready(oldest, now)
    }

    /// No command is unanswered.
    fn is_done(&self) -> bool {
        self.queue.is_empty()
            && self.forming.is_empty()
            && self.attempts.is_empty()
            && self.in_flight.iter().all(|batch| batch.cargo.is_empty())
            && self.recovery.is_without_commands()
    }

    /// Something waits to be sent.
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
            self.forming
                .depend(command, DependentAnswer::Stored(stored));
        } else if self.queue.is_held(&command) {
            self.queue.wait(command, None);
        } else {
            self.assess(command, now);
        }
    }

    fn assess(&mut self, command: Command<T>, now: Now) {
        let reads = &self.reads;
        let is_loading = |stream: &StreamId| reads.is_loading(stream);
        let (committed, wall) = (self.committed.position, now.wall);
        match self.knowledge.assess(&command, committed, wall, is_loading) {
            Assessment::Unknown => self.queue.wait(command, None),
            Assessment::Fits => self.place(command, now),
            Assessment::RestsOnOpenCommits => {
                let command = Command {
                    rechecked: true,
                    ..command
                };
                self.forming.depend(command, DependentAnswer::DecideAgain);
            }
            Assessment::MayBeStored(questions) => {
                let (number, job) = self.reads.look_up(questions);
                self.outputs
                    .extend(job.map(|(id, job)| Output::Read(id, job)));
                self.queue.wait(command, Some(number));
            }
            Assessment::Judged(judged) => {
                let nothing = vec![Found::Nothing; judged.len()];
                let verdict = judge::verdict(&command.parts, &judged, nothing);
                self.conclude(command, verdict, now);
            }
        }
    }

    /// Decides a command of which everything is known, and what was found of its events.
    fn decide(&mut self, command: Command<T>, found: Vec<Found>, now: Now) {
        let judged = self.knowledge.judge_all(&command);
        let verdict = judge::verdict(&command.parts, &judged, found);
        self.conclude(command, verdict, now);
    }

    fn conclude(&mut self, mut command: Command<T>, verdict: Verdict, now: Now) {
        match verdict {
            Verdict::Place => self.place(command, now),
            Verdict::Refuse(refusal) => {
                self.forming
                    .depend(command, DependentAnswer::Refused(refusal));
            }
            Verdict::Retry(stored) => {
                self.stats.retries.add(1);
                // It was seen, but its commit may still wait for a synchronous standby: the next commit tells.
                command.stored = Some(stored.clone());
                self.forming
                    .depend(command, DependentAnswer::Stored(stored));
            }
        }
    }

    fn place(&mut self, command: Command<T>, now: Now) {
        if command.is_question() {
            return self.forming.depend(command, DependentAnswer::Confirmed);
        }
        let place = self.place_after(self.tip(), now.wall);
        self.forming.place(command, &mut self.knowledge, place);
    }

    fn place_after(&self, after: LogEnd, now: Timestamp) -> Place {
        Place {
            log: self.setting.log,
            logs: self.setting.logs,
            incarnation: self.setting.incarnation,
            after,
            now,
        }
    }

    /// The row that the next batch follows.
    fn tip(&self) -> LogEnd {
        self.in_flight
            .back()
            .map_or(self.committed, |batch| batch.end)
    }

    /// Decides, in order, what no longer has to wait.
    fn decide_waiting(&mut self, now: Now) {
        let mut blocked: HashSet<StreamId> = HashSet::new();
        for waiting in std::mem::take(&mut self.queue.waiting) {
            let is_blocked = |part: &crate::command::Part| blocked.contains(&part.stream);
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
                match found {
                    Some(found) => self.decide(command, found, now),
                    None => self.assess(command, now),
                }
            } else {
                let streams = waiting.command.parts.iter().map(|part| part.stream.clone());
                blocked.extend(streams);
                self.queue.waiting.push_back(waiting);
            }
        }
    }

    // ---- reads ----

    fn start_reads(&mut self, now: Now) {
        self.start_loads(now.instant);
        if let Some((id, job)) = self.reads.search() {
            self.outputs.push(Output::Read(id, job));
        }
        if let Some(listing) = self.knowledge.begin_listing() {
            let (id, job) = self.reads.list(listing);
            self.outputs.push(Output::Read(id, job));
        }
        if self.knowledge.begins_warm_up() {
            self.reads.warm_up();
        }
        let (knowledge, window) = (&self.knowledge, self.setting.config.idempotency);
        let time = (now.instant, now.wall);
        let end = knowledge.ids_known_after();
        let older = |start| knowledge.older_ids(start);
        if let Some((id, job)) = self.reads.next_of_window(window, time, end, older) {
            self.outputs.push(Output::Read(id, job));
        }
    }

    fn start_loads(&mut self, now: Instant) {
        if self.queue.waiting.is_empty() {
            self.reads.resume_loads();
            return;
        }
        if !self.reads.may_load(now) {
            return;
        }
        let mut request = LoadRequest::default();
        let mut types = HashSet::new();
        let waiting = self.queue.waiting.iter();
        for waiting in waiting.filter(|waiting| waiting.lookup.is_none()) {
            let streams = &mut request.streams;
            let reads = &mut self.reads;
            let stream = |stream: &StreamId| {
                if streams.len() < LOAD_STREAMS_MAX && reads.claim(stream) {
                    streams.push(stream.clone());
                }
            };
            self.knowledge
                .missing(&waiting.command, stream, |event_type| {
                    types.insert(event_type);
                });
        }
        // Types are few: looking one up twice does no harm.
        if !request.streams.is_empty() || !self.reads.has_loads() {
            request.types = types.into_iter().collect();
        }
        if request.streams.is_empty() && request.types.is_empty() {
            return;
        }
        self.stats.loads.add(1);
        let (id, job) = self.reads.load(request);
        self.outputs.push(Output::Read(id, job));
    }

    fn on_read(&mut self, id: JobId, answer: Answer, now: Now) {
        let Some(purpose) = self.reads.end(id) else {
            return;
        };
        match (purpose, answer.0) {
            (Purpose::Recovery, gave) => self.on_recovery_read(gave, now),
            (Purpose::Load(request), Gave::Loaded(loaded)) => self.on_loaded(request, loaded, now),
            (Purpose::Search(asked), Gave::Searched(hits)) => self.on_searched(asked, hits),
            (Purpose::LookUp(number), Gave::LookedUp(found)) => {
                self.on_looked_up(HashMap::from([(number, found)]));
            }
            (Purpose::List(number), Gave::Listed(names)) => self.on_listed(number, names),
            (Purpose::WindowStart, Gave::WindowStart(Ok(start))) => {
                self.reads.go_on_with_window(start);
            }
            (Purpose::WindowStart, Gave::WindowStart(Err(error))) => {
                tracing::warn!(log = self.setting.log.0, %error, "cannot read recent event ids, trying again");
                self.reads.retry_warm_up(None, now.instant);
            }
            (Purpose::Ids(start), Gave::Ids(Ok(ids))) => self.on_ids(start, ids),
            (Purpose::Ids(start), Gave::Ids(Err(error))) => {
                tracing::warn!(log = self.setting.log.0, %error, "cannot read recent event ids, trying again");
                self.reads.retry_warm_up(Some(start), now.instant);
            }
            // The purposes that no longer count, and answers of another kind than was asked for.
            _ => {}
        }
        self.queue.some_are_ready = true;
    }

    fn on_ids(&mut self, window_start: Position, ids: OlderIds) {
        if self.knowledge.take_older_ids(ids) {
            self.reads.go_on_with_window(window_start);
        }
    }

    fn on_loaded(&mut self, request: LoadRequest, loaded: Result<Loaded>, now: Now) {
        let error = match loaded {
            Ok(loaded) => {
                self.reads.resume_loads();
                for (stream, error) in self.knowledge.learn(request, &loaded) {
                    self.fail_waiting_for(|of| *of == stream, &error);
                }
                return;
            }
            Err(error) => error,
        };
        tracing::warn!(log = self.setting.log.0, %error, "cannot look up streams");
        if is_passing(&error) {
            // Nothing is lost: it is asked for again. Who has waited for too long is given up.
            self.reads.pause_loads(&error, now.instant);
        } else {
            let streams: HashSet<StreamId> = request.streams.into_iter().collect();
            self.fail_waiting_for(|of| streams.contains(of), &error);
        }
    }

    /// Streams could not be looked up: those who wait for them learn why; nothing was written.
    fn fail_waiting_for(&mut self, is_failed: impl Fn(&StreamId) -> bool, error: &Error) {
        let failed = self.queue.extract_waiting(|waiting| {
            let mut parts = waiting.command.parts.iter();
            parts.any(|part| is_failed(&part.stream))
        });
        for command in failed {
            self.answer(command, Err(error.clone()));
        }
    }

    fn on_listed(&mut self, number: u64, names: Result<Option<Hashes>>) {
        match names {
            Ok(names) => self.knowledge.listed(number, names),
            Err(error) => {
                tracing::info!(log = self.setting.log.0, %error, "cannot list the streams, new ones are looked up");
                self.knowledge.not_listed(number);
            }
        }
    }

    /// Those of whom nothing was found go on. What was found is compared by each for itself; and if the search failed,
    /// each is searched for by itself, for one long stream is enough to make it fail.
    fn on_searched(&mut self, asked: Vec<(u64, Questions)>, hits: Result<Hits>) {
        let awaited = self
            .queue
            .waiting
            .iter()
            .filter_map(|waiting| waiting.lookup);
        let awaited: HashSet<u64> = awaited.collect();
        let is_alone = asked.len() == 1;
        let hits = hits.map(Arc::new);
        let mut answers = HashMap::new();
        for (number, questions) in asked {
            let (id, job) = match &hits {
                _ if !awaited.contains(&number) => continue,
                Ok(hits) if lookup::found_nothing(&questions, hits) => {
                    answers.insert(number, Ok(vec![Found::Nothing; questions.len()]));
                    continue;
                }
                Ok(hits) => self.reads.look_up_with(number, questions, Arc::clone(hits)),
                Err(error) if is_alone => {
                    answers.insert(number, Err(error.clone()));
                    continue;
                }
                Err(_) => self.reads.search_for(vec![(number, questions)]),
            };
            self.outputs.push(Output::Read(id, job));
        }
        self.on_looked_up(answers);
    }

    fn on_looked_up(&mut self, mut answers: HashMap<u64, Result<Vec<Found>>>) {
        let mut failed = HashMap::new();
        for waiting in &mut self.queue.waiting {
            match waiting.lookup.and_then(|number| answers.remove(&number)) {
                Some(Ok(found)) => {
                    waiting.lookup = None;
                    waiting.found = Some(found);
                }
                Some(Err(error)) => {
                    failed.insert(waiting.command.sequence, error);
                }
                None => {}
            }
        }
        if failed.is_empty() {
            return;
        }
        let commands = self
            .queue
            .extract_waiting(|waiting| failed.contains_key(&waiting.command.sequence));
        for command in commands {
            if let Some(error) = failed.remove(&command.sequence) {
                self.answer(command, Err(error));
            }
        }
    }

    // ---- sending ----

    fn send_if_due(&mut self, now: Now) {
        loop {
            let has_work = !self.forming.is_empty();
            let is_others_turn = self.turns.yielding_until(now.instant).is_some()
                || self.turns.should_stop(now.instant, has_work);
            if is_others_turn
                || !(has_work && self.is_worth_sending(now.instant) || self.is_probe_due())
            {
                return;
            }
            self.send(now);
            self.decide_inbox(now);
        }
    }

    /// An empty batch is worth sending: to measure the way to the database, or to see that it commits again.
    fn is_probe_due(&self) -> bool {
        let is_silent = self.in_flight.is_empty() && self.forming.is_empty();
        let measures = self.setting.in_flight_max > 1 && self.pace.wants_probe();
        is_silent && self.queue.is_empty() && (measures || self.trouble.wants_proof())
    }

    /// Nothing is in flight, or there is room and the batch is at least as large as the smallest under way, or the database is far.
    fn is_worth_sending(&self, now: Instant) -> bool {
        let Some(oldest) = self.in_flight.front() else {
            return true;
        };
        let in_flight = self.in_flight.len();
        let room_for_a_small_one = || {
            let age = now.saturating_duration_since(oldest.sent);
            self.pace.leaves_room_for_one_more(in_flight, age)
        };
        let full_max = if self.pace.is_near() {
            NEAR_IN_FLIGHT_MAX
        } else {
            FAR_IN_FLIGHT_MAX
        };
        in_flight < self.setting.in_flight_max
            && (room_for_a_small_one() || in_flight < full_max && self.is_as_large_as_others())
    }

    /// The forming batch is as large as the smallest under way, or has no room for the next command.
    fn is_as_large_as_others(&self) -> bool {
        let rows = self.in_flight.iter().map(|batch| batch.batch.rows.len());
        self.forming.rows() >= rows.min().unwrap_or_default().max(1)
            || self
                .queue
                .inbox
                .front()
                .is_some_and(|next| self.is_full_for(next))
    }

    fn send(&mut self, now: Now) {
        let after = self.tip();
        let Some(writer) = self.writer else {
            return;
        };
        let queue = self.in_flight.len() + 1;
        let forming = std::mem::take(&mut self.forming);
        let batch = forming.close(self.setting.log, after, writer, queue, now.instant);
        if !batch.is_probe() {
            self.stats.batches.add(1);
            self.stats.events.add(batch.batch.rows.len() as u64);
        }
        self.outputs.push(Output::Send(Arc::clone(&batch.batch)));
        self.in_flight.push_back(batch);
    }

    // ---- answers of the database ----

    fn on_outcome(&mut self, outcome: BatchOutcome, now: Now) {
        let Some(batch) = self.in_flight.pop_front() else {
            return;
        };
        if !self.is_running() {
            return self.on_outcome_while_draining(batch, outcome, now);
        }
        match outcome {
            BatchOutcome::Committed => {
                self.measure(&batch, now.instant);
                self.recovery.all_is_well();
                self.trouble.clear();
                self.committed = batch.end;
                // First give the database work again, then answer.
                self.send_if_due(now);
                self.complete(batch, now);
            }
            failed => self.begin_recovery(batch, failed, now),
        }
    }

    fn measure(&mut self, batch: &InFlight<T>, now: Instant) {
        if !batch.is_probe() {
            self.turns.committed(batch.sent, now);
        }
        let rows = batch.batch.rows.len();
        self.pace.committed(batch.sent, batch.queue, rows, now);
    }

    /// The batch is durable: answer everyone.
    fn complete(&mut self, batch: InFlight<T>, now: Now) {
        self.committed = batch.end;
        for (stream, state) in &batch.cargo.touched {
            self.knowledge.commit(stream, *state);
        }
        for (row, event_type) in &batch.batch.new_types {
            self.knowledge.commit_type(event_type, *row);
        }
        for (stream, id, position) in &batch.cargo.retryable {
            self.knowledge.remember(StoredId {
                stream: *stream,
                id: *id,
                position: *position,
                created: batch.end.created,
            });
        }
        if !batch.batch.rows.is_empty() {
            self.outputs
                .push(Output::Committed(Arc::clone(&batch.batch)));
        }
        if self.has_cleared_the_suspects(&batch) {
            self.bisection.commands_max = usize::MAX;
        }
        for (command, answer) in batch.cargo.placed {
            self.answer(command, Ok(answer));
        }
        for dependent in batch.cargo.dependents {
            self.answer_dependent(dependent.command, dependent.answer, now);
        }
        let end = batch.end;
        let nothing_open = self.in_flight.is_empty() && self.forming.is_empty();
        self.knowledge
            .shrink(end.created, end.position, nothing_open);
    }

    fn answer_dependent(&mut self, command: Command<T>, answer: DependentAnswer, now: Now) {
        let streams = match answer {
            DependentAnswer::Refused(refusal) => {
                let refused = Err(Error::new(refusal).during("append"));
                return self.answer(command, refused);
            }
            DependentAnswer::DecideAgain => return self.queue.inbox.push_front(command),
            DependentAnswer::Confirmed => Vec::new(),
            DependentAnswer::Stored(streams) => streams,
        };
        let place = self.place_after(self.committed, now.wall);
        self.answer(command, Ok(appended(streams, place)));
    }

    /// All commands among which the refused one was sought are stored or answered.
    fn has_cleared_the_suspects(&self, batch: &InFlight<T>) -> bool {
        let is_last = |command: &Command<T>| command.sequence >= self.bisection.suspects_until;
        self.bisection.commands_max != usize::MAX
            && batch
                .cargo
                .placed
                .iter()
                .any(|(command, _)| is_last(command))
    }

    /// Answers a command; retries that waited for it are decided next.
    fn answer(&mut self, command: Command<T>, result: Result<Appended>) {
        for retry in self.attempts.end(&command).into_iter().rev() {
            self.queue.inbox.push_front(retry);
        }
        let result = self.certain(&command, result);
        match &result {
            Ok(_) => self.stats.appends.add(1),
            Err(_) => self.stats.refusals.add(1),
        }
        self.outputs.push(Output::Answer(command.ticket, result));
    }

    /// The answer to a command, made *unknown* if it claims that nothing was stored while that may be, or may yet happen.
    ///
    /// It cannot happen any more once there is another row after the one that the statement in doubt has to follow.
    fn certain(&self, command: &Command<T>, result: Result<Appended>) -> Result<Appended> {
        let may_commit_late = command
            .in_doubt_after
            .is_some_and(|after| self.committed.position <= after);
        match result {
            Err(error)
                if (may_commit_late || command.stored.is_some())
                    && !matches!(error.kind(), ErrorKind::OutcomeUnknown(_)) =>
            {
                let detail = "the connection was lost during the commit, which may yet be stored";
                Err(unknown(detail).caused_by(error))
            }
            result => result,
        }
    }

    // ---- other processes ----

    /// Lets another process append if our time is up, and asks for the turn after it if we have work.
    fn take_turns(&mut self, now: Now) {
        let has_work = self.has_work();
        let now = now.instant;
        let mut signal = None;
        if self.turns.yielding_until(now).is_some() {
            signal = has_work
                .then(|| self.turns.ask_while_yielding(now))
                .flatten();
        } else if self.in_flight.is_empty() && self.turns.should_stop(now, has_work) {
            signal = self.turns.grant(now, has_work);
        }
        self.outputs.extend(signal.map(Output::Signal));
    }

    fn on_signal(&mut self, signal: Signal, now: Now) {
        let my_turn = self.turns.heard(signal, now.instant);
        if my_turn && self.is_running() && self.in_flight.is_empty() {
            self.begin_catching_up();
        }
    }
}

/// The error for an append in doubt.
fn unknown(detail: &str) -> Error {
    Error::new(ErrorKind::OutcomeUnknown(detail.to_owned())).during("append")
}
