//! The task that owns one log's appends: it decides, forms batches, keeps several in flight, answers.
//!
//! One task and no locks: everything that decides about an append happens in one place and in one order.
//! A batch leaves as soon as the writer is free; while it is under way the next one gathers.
//! What happens when a batch does not commit is in `recovery`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesOrdered, FuturesUnordered};
use gesta_core::backend::{Backend, BatchOutcome, LoadRequest, Loaded, LogEnd, LogWriter, Signal};
use gesta_core::{Appended, Clock, Error, EventId, LogId, Position, Result, StreamId, Timestamp};
use tokio::sync::mpsc;

use crate::command::{Command, IdSource};
use crate::forming::{Forming, InFlight, Place, Rider};
use crate::heads::Heads;
use crate::judge::{self, Fit};
use crate::lookup::{self, Found, OlderId, Question, Suspected};
use crate::recent::{Recent, RecentIds};
use crate::stats::Stats;
use crate::turns::Turns;
use crate::{CommitObserver, Config};

/// Commands taken from the channel at once.
const INTAKE_MAX: usize = 1_024;
/// Streams looked up in one statement.
const LOAD_STREAMS_MAX: usize = 1_000;
/// Answers that may ride on one batch.
const RIDERS_MAX: usize = 10_000;
/// Lookups of streams under way at once.
const LOADS_MAX: usize = 2;

/// A command that cannot be decided yet.
pub(crate) struct Waiting {
    pub(crate) command: Command,
    /// Its number if a lookup of stored events is under way.
    pub(crate) lookup: Option<u64>,
    /// What the lookup found.
    pub(crate) found: Option<Vec<Found>>,
}

type LoadAnswer = (u64, LoadRequest, Result<Loaded>);
type LookupAnswer = (u64, Result<Vec<Found>>);
type WarmUp = (Position, Result<(Vec<OlderId>, Position)>);

/// The task's state.
pub(crate) struct Sequencer {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) log: LogId,
    pub(crate) config: Config,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observer: Arc<dyn CommitObserver>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) receiver: mpsc::UnboundedReceiver<Command>,
    signals: BoxStream<'static, Signal>,
    pub(crate) turns: Turns,

    pub(crate) writer: Option<Box<dyn LogWriter>>,
    /// The last row known to be committed.
    pub(crate) committed: LogEnd,
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) outcomes: FuturesOrdered<BoxFuture<'static, BatchOutcome>>,
    pub(crate) forming: Forming,
    /// Commands to be decided, oldest first.
    pub(crate) inbox: VecDeque<Command>,
    /// Most commands in one batch; lowered to find a guilty one.
    pub(crate) batch_commands_max: usize,
    /// Commands up to this number are searched for a guilty one.
    pub(crate) suspects_until: u64,

    pub(crate) heads: Heads,
    pub(crate) recent: RecentIds,
    pub(crate) waiting: VecDeque<Waiting>,
    /// Some of them only wait for room in a batch.
    waiting_ready: bool,
    /// Streams that a waiting command holds; later commands to them wait behind it.
    held: HashMap<StreamId, usize>,
    /// Grows when everything known of streams may be outdated: answers of older lookups are dropped.
    pub(crate) generation: u64,
    pub(crate) loading: HashSet<StreamId>,
    loads: FuturesUnordered<BoxFuture<'static, LoadAnswer>>,
    lookups: FuturesUnordered<BoxFuture<'static, LookupAnswer>>,
    lookup_number: u64,
    warm_up: Option<BoxFuture<'static, WarmUp>>,
    /// Attempts under way whose ids the client made, with the retries that wait for them.
    attempts: HashMap<(StreamId, EventId), Vec<Command>>,
    /// Failures in a row.
    pub(crate) failures: u32,
    /// Misses in a row after which nothing new was found.
    pub(crate) idle_misses: u32,
}

impl Sequencer {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        log: LogId,
        config: Config,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn CommitObserver>,
        stats: Arc<Stats>,
        receiver: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        Self {
            signals: backend.signals(),
            turns: Turns::new(log, Instant::now()),
            writer: None,
            committed: LogEnd::default(),
            in_flight: VecDeque::new(),
            outcomes: FuturesOrdered::new(),
            forming: Forming::default(),
            inbox: VecDeque::new(),
            batch_commands_max: usize::MAX,
            suspects_until: 0,
            heads: Heads::new(config.streams_cached_max),
            recent: RecentIds::new(config.idempotency, Position::START),
            waiting: VecDeque::new(),
            waiting_ready: false,
            held: HashMap::new(),
            generation: 0,
            loading: HashSet::new(),
            loads: FuturesUnordered::new(),
            lookups: FuturesUnordered::new(),
            lookup_number: 0,
            warm_up: None,
            attempts: HashMap::new(),
            failures: 0,
            idle_misses: 0,
            backend,
            log,
            config,
            clock,
            observer,
            stats,
            receiver,
        }
    }

    /// Works until the channel is closed and everything is answered.
    pub(crate) async fn run(mut self) {
        self.connect_first().await;
        let mut open = true;
        let mut intake = Vec::with_capacity(INTAKE_MAX);
        loop {
            self.work().await;
            if !open && self.is_idle() {
                return;
            }
            let wake = self
                .turns
                .yielding_until(Instant::now())
                .map(tokio::time::Instant::from_std);
            tokio::select! {
                biased;
                Some(outcome) = self.outcomes.next(), if !self.outcomes.is_empty() => self.on_outcome(outcome).await,
                Some(answer) = self.loads.next(), if !self.loads.is_empty() => self.on_loaded(answer),
                Some(answer) = self.lookups.next(), if !self.lookups.is_empty() => self.on_looked_up(answer),
                Some(signal) = self.signals.next() => self.on_signal(signal).await,
                count = self.receiver.recv_many(&mut intake, INTAKE_MAX), if open && self.inbox.len() < INTAKE_MAX => {
                    open = count > 0;
                    self.inbox.extend(intake.drain(..));
                }
                answer = poll_some(&mut self.warm_up), if self.warm_up.is_some() => self.on_warm(answer),
                () = sleep_until(wake), if wake.is_some() => {}
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.inbox.is_empty()
            && self.forming.is_empty()
            && self.in_flight.is_empty()
            && self.waiting.is_empty()
            && self.attempts.is_empty()
    }

    /// Everything that can be done without waiting for anyone.
    async fn work(&mut self) {
        self.decide_inbox();
        self.start_loads();
        self.send_if_due();
        let has_work = !self.forming.is_empty() || !self.inbox.is_empty();
        let now = Instant::now();
        if self.in_flight.is_empty()
            && self.turns.yielding_until(now).is_none()
            && self.turns.should_stop(now, has_work)
        {
            for signal in self.turns.grant(now, has_work) {
                self.backend.send_signal(signal).await;
            }
        }
    }

    // ---- deciding ----

    fn decide_inbox(&mut self) {
        if self.waiting_ready {
            self.decide_waiting();
        }
        let now = self.clock.now();
        while let Some(next) = self.inbox.front()
            && !self.is_full_for(next)
        {
            let Some(command) = self.inbox.pop_front() else {
                break;
            };
            if let Some(command) = self.join_attempt(command) {
                self.decide_or_wait(command, now);
            }
        }
    }

    /// This command does not fit into the forming batch. One that is larger than a batch travels alone.
    fn is_full_for(&self, command: &Command) -> bool {
        let forming = &self.forming;
        let full = !forming.commands.is_empty()
            && (forming.rows.len() + command.permit.events > self.config.batch_events_max
                || forming.bytes + command.permit.bytes > self.config.batch_bytes_max
                || forming.commands.len() >= self.batch_commands_max);
        full || forming.riders.len() >= RIDERS_MAX
    }

    /// Registers an attempt with ids of the client; a retry of one that is under way waits for it.
    fn join_attempt(&mut self, command: Command) -> Option<Command> {
        let Some(key) = attempt_key(&command) else {
            return Some(command);
        };
        if command.registered {
            return Some(command);
        }
        match self.attempts.entry(key) {
            std::collections::hash_map::Entry::Occupied(mut entry) => {
                self.stats.joined.add(1);
                entry.get_mut().push(command);
                None
            }
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Vec::new());
                Some(Command {
                    registered: true,
                    ..command
                })
            }
        }
    }

    fn decide_or_wait(&mut self, command: Command, now: Timestamp) {
        let held = !self.held.is_empty()
            && command
                .parts
                .iter()
                .any(|part| self.held.contains_key(&part.stream));
        if held || !self.knows_all(&command) {
            self.wait(Waiting {
                command,
                lookup: None,
                found: None,
            });
        } else {
            self.decide(command, None, now);
        }
    }

    fn knows_all(&mut self, command: &Command) -> bool {
        command.parts.iter().all(|part| {
            self.heads.tip(&part.stream).is_some()
                && part
                    .event_types()
                    .all(|event_type| self.heads.knows_type(&event_type))
        })
    }

    fn wait(&mut self, waiting: Waiting) {
        for part in &waiting.command.parts {
            *self.held.entry(part.stream.clone()).or_insert(0) += 1;
        }
        self.waiting.push_back(waiting);
    }

    /// Decides a command whose streams and types are all known.
    fn decide(&mut self, command: Command, found: Option<Vec<Found>>, now: Timestamp) {
        let fits: Vec<Fit> = command
            .parts
            .iter()
            .map(|part| judge::check(part, &self.heads.tip(&part.stream).unwrap_or_default()))
            .collect();
        let definite = fits.iter().find_map(|fit| match fit {
            Fit::Refused(refusal) => Some(refusal.clone()),
            _ => None,
        });
        if let Some(refusal) = definite {
            self.forming.riders.push(Rider::Refuse(command, refusal));
            return;
        }
        let Some(found) = found else {
            return self.decide_unless_stored(command, &fits, now);
        };
        let stored: Vec<_> = found
            .iter()
            .filter_map(|found| match found {
                Found::Stored(stored) => Some(stored.clone()),
                _ => None,
            })
            .collect();
        if stored.len() == command.parts.len() {
            self.stats.retries.add(1);
            let answer = self.answer_of(stored);
            return self.answer(command, Ok(answer));
        }
        let refusal =
            command
                .parts
                .iter()
                .zip(&fits)
                .zip(&found)
                .find_map(|((part, fit), found)| match (fit, found) {
                    (_, Found::Stored(_) | Found::Otherwise) => Some(judge::mixed_retry(
                        part,
                        &self.heads.tip(&part.stream).unwrap_or_default(),
                    )),
                    (Fit::RefusedUnlessStoredAt(_, refusal), Found::Nothing) => {
                        Some(refusal.clone())
                    }
                    _ => None,
                });
        match refusal {
            Some(refusal) => self.forming.riders.push(Rider::Refuse(command, refusal)),
            None => self.place(command, now),
        }
    }

    /// Places a command unless its events may be stored already; then that is looked up first.
    fn decide_unless_stored(&mut self, command: Command, fits: &[Fit], now: Timestamp) {
        let questions: Vec<Option<Question>> = command
            .parts
            .iter()
            .zip(fits)
            .map(|(part, fit)| self.question(part, fit, now))
            .collect();
        if questions.iter().all(Option::is_none) {
            return self.place(command, now);
        }
        let compares_open = command.parts.iter().zip(fits).any(|(part, fit)| {
            matches!(fit, Fit::RefusedUnlessStoredAt(..)) && self.heads.is_open(&part.stream)
        });
        if compares_open && !command.rechecked {
            self.forming.riders.push(Rider::Recheck(Command {
                rechecked: true,
                ..command
            }));
            return;
        }
        self.lookup_number += 1;
        let (number, backend, log) = (self.lookup_number, Arc::clone(&self.backend), self.log);
        self.lookups.push(Box::pin(async move {
            (number, lookup::look_up(&*backend, log, questions).await)
        }));
        self.wait(Waiting {
            command,
            lookup: Some(number),
            found: None,
        });
    }

    fn question(
        &mut self,
        part: &crate::command::Part,
        fit: &Fit,
        now: Timestamp,
    ) -> Option<Question> {
        let state = self.heads.tip(&part.stream)?;
        let head = match &part.change {
            crate::command::Change::Events { .. } => state.main?,
            crate::command::Change::Lifecycle { .. } => state.meta?,
        };
        let target = part.target();
        let place = match fit {
            Fit::RefusedUnlessStoredAt(first, _) => Suspected::At(*first),
            Fit::FitsUnlessStored => match self.recent.find(&target, part.first_id()?) {
                Recent::Perhaps(position) => Suspected::Near(position),
                Recent::No => return None,
                // A stream that began behind that position has no other events.
                Recent::NotBehind(position) if head.row.0 > position.0 => return None,
                Recent::NotBehind(_) => self.window_start(now),
            },
            Fit::Fits | Fit::Refused(_) => return None,
        };
        Some(Question {
            stream: target,
            row: head.row,
            ids: part.ids(),
            place,
        })
    }

    fn window_start(&self, now: Timestamp) -> Suspected {
        let age = i64::try_from(self.config.idempotency.time.as_micros()).unwrap_or(i64::MAX);
        let after = Position(
            self.committed
                .position
                .0
                .saturating_sub(self.config.idempotency.positions),
        );
        Suspected::Since(after, Timestamp(now.0.saturating_sub(age)))
    }

    fn place(&mut self, command: Command, now: Timestamp) {
        let place = Place {
            log: self.log,
            logs: self.backend.info().logs,
            incarnation: self.backend.info().incarnation,
            after: self.tip(),
            now,
        };
        self.forming.place(command, &mut self.heads, place);
    }

    /// The row that the next batch follows.
    fn tip(&self) -> LogEnd {
        self.in_flight
            .back()
            .map_or(self.committed, |batch| batch.end)
    }

    fn answer_of(&self, streams: Vec<gesta_core::AppendedStream>) -> Appended {
        let info = self.backend.info();
        let position = streams
            .iter()
            .map(|stream| stream.position)
            .max()
            .unwrap_or_default();
        let checkpoint =
            gesta_core::Checkpoint::in_log(info.incarnation, info.logs, self.log, position);
        Appended {
            streams,
            log: self.log,
            position,
            checkpoint,
        }
    }

    /// Answers a command; retries that waited for it are decided next.
    pub(crate) fn answer(&mut self, command: Command, result: Result<Appended>) {
        if let Some(key) = attempt_key(&command).filter(|_| command.registered)
            && let Some(retries) = self.attempts.remove(&key)
        {
            retries
                .into_iter()
                .rev()
                .for_each(|retry| self.inbox.push_front(retry));
        }
        match &result {
            Ok(_) => self.stats.appends.add(1),
            Err(_) => self.stats.refusals.add(1),
        }
        drop(command.permit);
        // A caller that has gone away does not want to know.
        let _ = command.reply.send(result);
    }

    // ---- sending ----

    fn send_if_due(&mut self) {
        let now = Instant::now();
        loop {
            let has_work = !self.forming.is_empty();
            if !has_work
                || self.turns.yielding_until(now).is_some()
                || self.turns.should_stop(now, has_work)
                || !self.worth_sending()
            {
                return;
            }
            self.send();
            self.decide_inbox();
        }
    }

    /// Nothing is in flight, or there is room and the batch is at least as large as the smallest under way.
    fn worth_sending(&self) -> bool {
        let smallest = self
            .in_flight
            .iter()
            .map(|batch| batch.batch.rows.len())
            .min();
        match smallest {
            None => true,
            Some(rows) => {
                self.in_flight.len() < self.backend.info().capabilities.batches_in_flight_max
                    && (self.forming.rows.len() >= rows.max(1)
                        || self
                            .inbox
                            .front()
                            .is_some_and(|next| self.is_full_for(next)))
            }
        }
    }

    fn send(&mut self) {
        let after = self.tip();
        let Some(writer) = &mut self.writer else {
            return;
        };
        let batch = std::mem::take(&mut self.forming).close(self.log, after, writer.epoch());
        self.stats.batches.add(1);
        self.stats.events.add(batch.batch.rows.len() as u64);
        self.outcomes
            .push_back(writer.submit(Arc::clone(&batch.batch)));
        self.in_flight.push_back(batch);
    }

    // ---- answers of the database ----

    async fn on_outcome(&mut self, outcome: BatchOutcome) {
        let Some(batch) = self.in_flight.pop_front() else {
            return;
        };
        match outcome {
            BatchOutcome::Committed => {
                self.turns.committed();
                self.failures = 0;
                self.idle_misses = 0;
                self.committed = batch.end;
                // First give the database work again, then answer.
                self.send_if_due();
                self.complete(batch);
            }
            failed => self.recover(batch, failed).await,
        }
    }

    /// The batch is durable: answer everyone.
    pub(crate) fn complete(&mut self, batch: InFlight) {
        self.committed = batch.end;
        batch
            .touched
            .iter()
            .for_each(|(stream, state)| self.heads.commit(stream, *state));
        for (row, event_type) in &batch.batch.new_types {
            self.heads.commit_type(event_type, *row);
        }
        for (stream, id, position) in &batch.retryable {
            self.recent
                .insert(stream, *id, *position, batch.end.created);
        }
        if !batch.batch.rows.is_empty() {
            self.observer.committed(&batch.batch);
        }
        if self.committed_suspects(&batch) {
            self.batch_commands_max = usize::MAX;
        }
        for (command, answer) in batch.commands {
            self.answer(command, Ok(answer));
        }
        for rider in batch.riders {
            match rider {
                Rider::Refuse(command, refusal) => {
                    self.answer(command, Err(Error::new(refusal).during("append")))
                }
                Rider::Recheck(command) => self.inbox.push_front(command),
            }
        }
        self.recent.expire(batch.end.created, batch.end.position);
        self.heads
            .shrink(self.in_flight.is_empty() && self.forming.is_empty());
    }

    /// All commands among which a guilty one was searched are stored or answered.
    fn committed_suspects(&self, batch: &InFlight) -> bool {
        self.batch_commands_max != usize::MAX
            && batch
                .commands
                .iter()
                .any(|(command, _)| command.sequence >= self.suspects_until)
    }

    fn start_loads(&mut self) {
        if self.waiting.is_empty() || self.loads.len() >= LOADS_MAX {
            return;
        }
        let mut request = LoadRequest::default();
        let mut types = HashSet::new();
        for waiting in self
            .waiting
            .iter()
            .filter(|waiting| waiting.lookup.is_none())
        {
            for part in &waiting.command.parts {
                if request.streams.len() < LOAD_STREAMS_MAX
                    && !self.heads.knows_stream(&part.stream)
                    && self.loading.insert(part.stream.clone())
                {
                    request.streams.push(part.stream.clone());
                }
                types.extend(
                    part.event_types()
                        .filter(|event_type| !self.heads.knows_type(event_type)),
                );
            }
        }
        // Types are few: looking one up twice does no harm.
        request.types = if request.streams.is_empty() && !self.loads.is_empty() {
            Vec::new()
        } else {
            types.into_iter().collect()
        };
        if request.streams.is_empty() && request.types.is_empty() {
            return;
        }
        let (backend, log, generation) = (Arc::clone(&self.backend), self.log, self.generation);
        self.stats.loads.add(1);
        self.loads.push(Box::pin(async move {
            let loaded = backend.load(log, request.clone()).await;
            (generation, request, loaded)
        }));
    }

    fn on_loaded(&mut self, (generation, request, loaded): LoadAnswer) {
        request.streams.iter().for_each(|stream| {
            self.loading.remove(stream);
        });
        if generation == self.generation {
            let learnt = loaded.and_then(|loaded| self.heads.learn(request.clone(), &loaded));
            if let Err(error) = learnt {
                self.fail_waiting_for(&request, &error);
            }
        }
        self.decide_waiting();
    }

    /// A lookup failed: those who wait for it learn why; nothing was written.
    fn fail_waiting_for(&mut self, request: &LoadRequest, error: &Error) {
        let names: HashSet<&StreamId> = request.streams.iter().collect();
        let (failed, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| {
                waiting.command.parts.iter().any(|part| {
                    names.contains(&part.stream)
                        || part
                            .event_types()
                            .any(|event_type| request.types.contains(&event_type))
                })
            });
        self.waiting = rest.into();
        for waiting in failed {
            self.release(&waiting.command);
            self.answer(waiting.command, Err(error.clone()));
        }
    }

    fn on_looked_up(&mut self, (number, answer): LookupAnswer) {
        let Some(at) = self
            .waiting
            .iter()
            .position(|waiting| waiting.lookup == Some(number))
        else {
            return;
        };
        match answer {
            Ok(found) => {
                if let Some(waiting) = self.waiting.get_mut(at) {
                    waiting.lookup = None;
                    waiting.found = Some(found);
                }
            }
            Err(error) => {
                if let Some(waiting) = self.waiting.remove(at) {
                    self.release(&waiting.command);
                    self.answer(waiting.command, Err(error));
                }
            }
        }
        self.decide_waiting();
    }

    fn release(&mut self, command: &Command) {
        for part in &command.parts {
            if let Some(count) = self.held.get_mut(&part.stream) {
                *count -= 1;
                if *count == 0 {
                    self.held.remove(&part.stream);
                }
            }
        }
    }

    /// Decides, in order, what no longer has to wait.
    fn decide_waiting(&mut self) {
        let now = self.clock.now();
        self.waiting_ready = false;
        let mut blocked: HashSet<StreamId> = HashSet::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let ready = waiting.lookup.is_none()
                && !waiting
                    .command
                    .parts
                    .iter()
                    .any(|part| blocked.contains(&part.stream))
                && self.knows_all(&waiting.command);
            let full = ready && self.is_full_for(&waiting.command);
            self.waiting_ready |= full;
            if ready && !full {
                self.release(&waiting.command);
                let Waiting { command, found, .. } = waiting;
                self.decide(command, found, now);
            } else {
                blocked.extend(waiting.command.parts.iter().map(|part| part.stream.clone()));
                self.waiting.push_back(waiting);
            }
        }
    }

    /// Lets go of everything that waits, for a new start. Lookups under way find nobody.
    pub(crate) fn drain_waiting(&mut self) -> Vec<Command> {
        self.held.clear();
        self.waiting
            .drain(..)
            .map(|waiting| waiting.command)
            .collect()
    }

    // ---- the window of retries ----

    /// Begins to read the ids of the window in the background.
    pub(crate) fn start_warm_up(&mut self) {
        let end = self.committed.position;
        self.recent = RecentIds::new(self.config.idempotency, end);
        if end == Position::START {
            return;
        }
        let (backend, log, window, now) = (
            Arc::clone(&self.backend),
            self.log,
            self.config.idempotency,
            self.clock.now(),
        );
        self.warm_up = Some(Box::pin(async move {
            (
                end,
                lookup::read_window(&*backend, log, window, now, end).await,
            )
        }));
    }

    fn on_warm(&mut self, (end, answer): WarmUp) {
        self.warm_up = None;
        match answer {
            Ok((ids, from)) if self.recent.covered_from() == end => self.recent.prepend(ids, from),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(log = self.log.0, %error, "cannot read recent event ids, retries are looked up instead");
            }
        }
    }

    // ---- other processes ----

    async fn on_signal(&mut self, signal: Signal) {
        let my_turn = self.turns.heard(signal, Instant::now());
        if my_turn && self.in_flight.is_empty() {
            self.refresh().await;
        }
    }
}

fn attempt_key(command: &Command) -> Option<(StreamId, EventId)> {
    let part = command.parts.first()?;
    if part.ids_from() != IdSource::Client {
        return None;
    }
    part.first_id().map(|id| (part.target(), id))
}

/// Waits for the future in the option and takes it out of the way when it is done.
async fn poll_some<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => Pin::new(future).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
