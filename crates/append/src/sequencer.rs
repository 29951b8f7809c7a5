//! The task that owns one log's appends: it decides, forms batches, keeps several in flight, answers.
//! Here are its loop, sending and answering; deciding is in `deciding`, what has to wait in `waiting`.
//!
//! One task and no locks: everything that decides about an append happens in one place and in one order.
//! A batch leaves as soon as the writer is free; while it is under way the next one gathers.
//! What happens when a batch does not commit is in `recovery`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::time::Instant;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesOrdered};
use gesta_core::backend::{Backend, BatchOutcome, LogEnd, LogWriter, Signal, StoredId};
use gesta_core::{Appended, Clock, Error, EventId, LogId, Position, Result, StreamId};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinError, JoinSet};

use crate::command::{Command, IdSource};
use crate::forming::{Forming, InFlight, Rider};
use crate::heads::Heads;
use crate::landed::Landed;
use crate::names::Names;
use crate::pace::Pace;
use crate::recent::RecentIds;
use crate::stats::Stats;
use crate::turns::Turns;
use crate::waiting::{Lookups, ReadAnswer, Waiting};
use crate::{CommitObserver, Config};

/// Batches of full size under way at once near the database: one that it works on and one that waits.
const NEAR_IN_FLIGHT_MAX: usize = 2;
/// The same where a batch travels for longer than it is worked on: few enough to lose little by a miss.
const FAR_IN_FLIGHT_MAX: usize = 4;
/// Commands taken from the channel at once.
const INTAKE_MAX: usize = 1_024;

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
    pace: Pace,

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
    pub(crate) waiting_ready: bool,
    /// Streams that a waiting command holds; later commands to them wait behind it.
    pub(crate) held: HashMap<StreamId, usize>,
    /// Grows when everything known of streams may be outdated: answers of older lookups are dropped.
    pub(crate) generation: u64,
    pub(crate) loading: HashSet<StreamId>,
    pub(crate) reads: JoinSet<ReadAnswer>,
    /// How many of them look up streams and types.
    pub(crate) loads: usize,
    pub(crate) lookups: Lookups,
    /// How often all ids were forgotten, and the task that reads those of the window.
    pub(crate) warm_ups: u64,
    pub(crate) warm_up: Option<AbortHandle>,
    /// Appends looked up since, for their ids were not known.
    pub(crate) looked_up: u32,
    /// Attempts under way whose ids the client made, with the retries that wait for them.
    pub(crate) attempts: HashMap<(StreamId, EventId), Vec<Command>>,
    pub(crate) landed: Landed,
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
            pace: Pace::default(),
            writer: None,
            committed: LogEnd::default(),
            in_flight: VecDeque::new(),
            outcomes: FuturesOrdered::new(),
            forming: Forming::default(),
            inbox: VecDeque::new(),
            batch_commands_max: usize::MAX,
            suspects_until: 0,
            heads: Heads::new(
                config.streams_cached_max,
                Names::new(config.names_max, config.names_listed_after),
            ),
            recent: RecentIds::new(config.idempotency, Position::START),
            waiting: VecDeque::new(),
            waiting_ready: false,
            held: HashMap::new(),
            generation: 0,
            loading: HashSet::new(),
            reads: JoinSet::new(),
            loads: 0,
            lookups: Lookups::default(),
            warm_ups: 0,
            warm_up: None,
            looked_up: 0,
            attempts: HashMap::new(),
            landed: Landed::default(),
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
                .wake_at(!self.in_flight.is_empty(), self.has_work());
            tokio::select! {
                biased;
                Some(outcome) = self.outcomes.next(), if !self.outcomes.is_empty() => self.on_outcome(outcome).await,
                Some(answer) = self.reads.join_next() => if let Some(answer) = unwrap_task(answer) {
                    self.on_read(answer);
                },
                Some(signal) = self.signals.next() => self.on_signal(signal).await,
                count = self.receiver.recv_many(&mut intake, INTAKE_MAX), if open && self.inbox.len() < INTAKE_MAX => {
                    open = count > 0;
                    self.inbox.extend(intake.drain(..));
                }
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
        self.start_lookups();
        self.send_if_due();
        self.take_turns().await;
    }

    /// Something waits to be sent.
    fn has_work(&self) -> bool {
        !self.forming.is_empty() || !self.inbox.is_empty() || !self.waiting.is_empty()
    }

    /// Lets another process append if our time is up, and asks for the turn after it if we have work.
    async fn take_turns(&mut self) {
        let has_work = self.has_work();
        let now = Instant::now();
        let mut signal = None;
        if self.turns.yielding_until(now).is_some() {
            signal = has_work
                .then(|| self.turns.ask_while_yielding(now))
                .flatten();
        } else if self.in_flight.is_empty() && self.turns.should_stop(now, has_work) {
            signal = self.turns.grant(now, has_work);
        }
        if let Some(signal) = signal {
            self.backend.send_signal(signal).await;
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
        let result = self.certain(&command, result);
        match &result {
            Ok(_) => self.stats.appends.add(1),
            Err(_) => self.stats.refusals.add(1),
        }
        drop(command.permit);
        command.reply.send(result);
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

    /// Nothing is in flight, or there is room and the batch is at least as large as the smallest under way, or the database is far.
    fn worth_sending(&self) -> bool {
        let Some(oldest) = self.in_flight.front() else {
            return true;
        };
        let in_flight = self.in_flight.len();
        let room_for_a_small_one = || {
            self.pace
                .leaves_room_for_one_more(in_flight, oldest.sent.elapsed())
        };
        let full_max = if self.pace.is_near() {
            NEAR_IN_FLIGHT_MAX
        } else {
            FAR_IN_FLIGHT_MAX
        };
        in_flight < self.backend.info().capabilities.batches_in_flight_max
            && (room_for_a_small_one() || in_flight < full_max && self.is_as_large_as_others())
    }

    /// The forming batch is as large as the smallest under way, or has no room for the next command.
    fn is_as_large_as_others(&self) -> bool {
        let rows = self.in_flight.iter().map(|batch| batch.batch.rows.len());
        self.forming.rows.len() >= rows.min().unwrap_or_default().max(1)
            || self
                .inbox
                .front()
                .is_some_and(|next| self.is_full_for(next))
    }

    fn send(&mut self) {
        let after = self.tip();
        let Some(writer) = &mut self.writer else {
            return;
        };
        let queue = self.in_flight.len() + 1;
        let forming = std::mem::take(&mut self.forming);
        let batch = forming.close(self.log, after, writer.epoch(), queue);
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
                let now = Instant::now();
                self.turns.committed(batch.sent, now);
                self.pace.committed(batch.sent, batch.queue, now);
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
            self.recent.insert(StoredId {
                stream: *stream,
                id: *id,
                position: *position,
                created: batch.end.created,
            });
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
                Rider::Confirm(command) => {
                    let confirmed = self.answer_of(Vec::new());
                    self.answer(command, Ok(confirmed));
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

    // ---- other processes ----

    async fn on_signal(&mut self, signal: Signal) {
        let my_turn = self.turns.heard(signal, Instant::now());
        if my_turn && self.in_flight.is_empty() {
            self.refresh().await;
            // Looking does not count: far from the database it takes longer than a slice.
            self.turns.begin_run(Instant::now());
        }
    }
}

pub(crate) fn attempt_key(command: &Command) -> Option<(StreamId, EventId)> {
    let part = command.parts.first()?;
    if part.ids_from() != IdSource::Client {
        return None;
    }
    part.first_id().map(|id| (part.target(), id))
}

/// The answer of a read, unless that was ended; its panic is ours.
fn unwrap_task(answer: std::result::Result<ReadAnswer, JoinError>) -> Option<ReadAnswer> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) if error.is_cancelled() => None,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
