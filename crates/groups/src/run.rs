//! The task of one group: connects the machine with the store and with the consumers.
//!
//! Everything that waits for the store runs beside the loop, one call of a kind at a time, so that consumers are served
//! while the store is slow. A task that is dropped at any point loses nothing: its successor begins with what the task
//! has stored. Not here: decisions (`machine`), the streams (`storage`), which groups run (`groups`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use gesta_core::{
    Checkpoint, Clock, ErrorKind, ExpectedRevision, Filter, Incarnation, Moment, Subscription,
    SubscriptionMessage,
};
use gesta_pattern::Pattern;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::begin::Begun;
use crate::commands::{Answerer, Command, JoinGroup, Stop, no_consumer};
use crate::config::{Config, GroupPlacement};
use crate::error::{Error, Result};
use crate::info::{ConsumerInfo, GroupInfo, Identity, Running};
use crate::machine::{ConsumerId, Counts, Machine};
use crate::mark::{Mark, ParkedMark, with_mark};
use crate::names::{Source, keeps_state_of_groups};
use crate::queue::{Delivery, Membership, Queue};
use crate::record::{self, Configuration, Course};
use crate::storage::Storage;
use crate::work::{self, Done};

/// Most messages of the subscription that are taken in a row before anything else is handled.
const MESSAGES_AT_ONCE_MAX: usize = 256;
/// How often the task checks whether it is still to run.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The state that the tasks of all groups of a process share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) placement: Arc<dyn GroupPlacement>,
    /// Bytes of events that all groups hold.
    pub(crate) held_bytes: AtomicUsize,
    /// What all groups have done.
    pub(crate) totals: Mutex<Counts>,
    pub(crate) stopping: CancellationToken,
}

struct Member {
    queue: Arc<Queue>,
    identity: Identity,
}

/// What is stored of how far the group has come.
struct Checkpoints {
    /// Expected revision of the checkpoint stream for the next checkpoint.
    expected: ExpectedRevision,
    is_there: bool,
    /// Events before the last checkpoint, and those before the checkpoint that is being written.
    marks: Vec<Mark>,
    writing: Vec<Mark>,
}

/// The end of the parked stream, as far as this process knows.
struct ParkedEnd {
    /// Revision after the last parked event.
    revision: u64,
    /// The last link in the parked stream that this process has found or stored.
    last: Option<ParkedMark>,
}

/// The calls of the store that are under way, one of a kind at a time.
#[derive(Default)]
struct Work {
    calls: FuturesUnordered<BoxFuture<'static, Done>>,
    is_parking: bool,
    is_looking_up: bool,
    is_subscribing: bool,
}

impl Work {
    fn begin(&mut self, call: impl Future<Output = Done> + Send + 'static) {
        self.calls.push(call.boxed());
    }
}

/// What this task has added to the sums of all groups.
#[derive(Default)]
struct Counted {
    held_bytes: usize,
    counts: Counts,
}

/// The task around the machine of one group: it holds together what the machine must not know of, the store, the
/// consumers and the subscription. The machine makes all decisions.
pub(crate) struct Task {
    shared: Arc<Shared>,
    storage: Storage,
    configuration: Configuration,
    course: Course,
    filter: Filter,
    pattern: Option<Pattern>,
    run: Uuid,
    /// Incarnation of the store that the task reads. Once the store has another one, the task ends, and writes nothing.
    incarnation: Incarnation,
    checkpoints: Checkpoints,
    parked: ParkedEnd,
    machine: Machine,
    members: HashMap<ConsumerId, Member>,
    subscription: Option<Subscription>,
    departures: Arc<Notify>,
    work: Work,
    counted: Counted,
    began: Moment,
    idle_since: Moment,
}

fn now() -> Moment {
    Moment::of(tokio::time::Instant::now().into_std())
}

impl Task {
    pub(crate) fn new(begun: Begun, shared: Arc<Shared>) -> Self {
        let Begun {
            storage,
            configuration,
            course,
            filter,
            pattern,
            run,
            expected,
            next,
            has_checkpoint,
            marks,
            incarnation,
            parked,
            last_parked,
        } = begun;
        let now = now();
        let limits = crate::machine::Limits {
            held_bytes_max: shared.config.group_bytes_max,
        };
        let settings = configuration.settings.clone();
        let mut machine = Machine::new(settings, limits, next, parked.start, now);
        machine.begins_after(marks.last().copied());
        Self {
            machine,
            checkpoints: Checkpoints {
                expected,
                is_there: has_checkpoint,
                marks,
                writing: Vec::new(),
            },
            parked: ParkedEnd {
                revision: parked.end,
                last: last_parked,
            },
            incarnation,
            shared,
            storage,
            configuration,
            course,
            filter,
            pattern,
            run,
            members: HashMap::new(),
            subscription: None,
            departures: Arc::new(Notify::new()),
            work: Work::default(),
            counted: Counted::default(),
            began: now,
            idle_since: now,
        }
    }

    /// Runs until the task is told to stop, no consumer needs it any more, or it cannot go on. Returns the reason.
    pub(crate) async fn run(&mut self, requests: &mut mpsc::Receiver<Command>) -> Error {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.settle();
            let wake_at = self.machine.wake_at();
            let departures = Arc::clone(&self.departures);
            let shared = Arc::clone(&self.shared);
            let reads = self.may_read();
            let outcome = tokio::select! {
                () = shared.stopping.cancelled() => Err(Error::Stopping),
                command = requests.recv() => match command {
                    Some(command) => self.command(command),
                    None => Err(Error::Stopping),
                },
                () = departures.notified() => {
                    self.part();
                    Ok(())
                }
                message = next(&mut self.subscription), if reads => self.messages(message),
                Some(done) = self.work.calls.next(), if !self.work.calls.is_empty() => self.done(done),
                () = sleep_until(wake_at) => Ok(()),
                _ = look.tick() => self.look(),
            };
            if let Err(why) = outcome {
                self.settle();
                return why;
            }
        }
    }

    /// Does everything that can be done at once: takes back events whose time is over, shares out events that wait, and
    /// begins to store what is to be stored.
    fn settle(&mut self) {
        let now = now();
        while let Some((consumer, token)) = self.machine.expired(now) {
            let member = self.members.get(&consumer);
            if member.is_some_and(|member| member.queue.withdraw(token)) {
                self.machine.not_taken(token);
            } else {
                self.machine.timed_out(token);
            }
        }
        while let Some(consumer) = self.machine.silent() {
            self.machine.part_with(consumer);
            if let Some(member) = self.members.remove(&consumer) {
                let group = self.storage.group.clone();
                let name = &member.identity.name;
                tracing::warn!(%group, %consumer, name, "a consumer answers for nothing that it holds: it has to leave");
                member.queue.end(Error::Silent { group, consumer });
            }
        }
        for sent in self.machine.dispatch(now) {
            if let Some(member) = self.members.get(&sent.consumer) {
                member.queue.push(Delivery {
                    number: sent.token,
                    event: sent.event,
                    retries: sent.retries,
                });
            }
        }
        self.begin_work(now);
        self.count();
    }

    /// Adds what the group holds and has done to the sums of all groups.
    fn count(&mut self) {
        let held = self.machine.held_bytes();
        let total = &self.shared.held_bytes;
        total.fetch_add(held, Ordering::Relaxed);
        total.fetch_sub(self.counted.held_bytes, Ordering::Relaxed);
        self.counted.held_bytes = held;
        let counts = self.machine.counts();
        if counts != self.counted.counts {
            // Nothing can panic while it is held.
            let totals = self.shared.totals.lock();
            let mut totals = totals.unwrap_or_else(PoisonError::into_inner);
            totals.add_since(&counts, &self.counted.counts);
            self.counted.counts = counts;
        }
    }

    fn begin_work(&mut self, now: Moment) {
        let storage = &self.storage;
        if self.subscription.is_none() && !self.work.is_subscribing && self.machine.wants_event() {
            self.work.is_subscribing = true;
            let next = self.machine.read_to();
            let from = work::From {
                next,
                mark: self.machine.last_mark(),
                incarnation: self.incarnation,
                may_be_ahead: !self.checkpoints.is_there && next == self.configuration.begin,
            };
            let filter = self.filter.clone();
            self.work
                .begin(work::subscribe(storage.clone(), filter, from));
        }
        if let Some(place) = self.machine.begin_checkpoint(now) {
            self.write(place);
        }
        let storage = &self.storage;
        if !self.work.is_parking {
            let orders = work::take_orders(&mut self.machine);
            if !orders.is_empty() {
                self.work.is_parking = true;
                let (course, added) = (self.course, self.shared.clock.now());
                let parked = work::park(storage.clone(), course, orders, added, self.incarnation);
                self.work.begin(parked);
            }
        }
        if !self.work.is_looking_up
            && let Some(range) = self.machine.wants_parked()
        {
            self.work.is_looking_up = true;
            let found = work::look_up(storage.clone(), range, self.course.life);
            self.work.begin(found);
        }
        if let Some(before) = self.machine.begin_truncation(now) {
            let truncated = work::truncate(storage.clone(), before, self.incarnation);
            self.work.begin(truncated);
        }
    }

    /// Begins to write a checkpoint, which the machine has begun.
    fn write(&mut self, place: u64) {
        let mark = self.machine.low_mark();
        let mark = mark.map(|mark| mark.with_parked(self.parked.last));
        self.checkpoints.writing = with_mark(&self.checkpoints.marks, mark);
        let checkpoint = record::Progressed {
            life: self.course.life,
            run: self.run,
            next: Some(place),
            incarnation: Some(self.incarnation.0),
            marks: self.checkpoints.writing.clone(),
            moved: self.course.moved,
        };
        let expected = self.checkpoints.expected;
        let written = work::checkpoint(self.storage.clone(), checkpoint, expected);
        self.work.begin(written);
    }

    /// Makes the reason with which the task ends of an error of the store.
    fn ended(&self, error: gesta_core::Error) -> Error {
        match error.kind() {
            // The group goes on with the next parked stream when it begins again.
            ErrorKind::StreamTombstoned(stream)
                if *stream == self.storage.known_parked_stream() =>
            {
                Error::Dropped(self.storage.group.clone())
            }
            _ => Error::from(error).or_history_changed(&self.storage.group),
        }
    }

    /// Checks that a message of the subscription is of the history that the task reads.
    fn check_history(&self, checkpoint: &Checkpoint) -> Result<()> {
        if checkpoint.incarnation == self.incarnation {
            return Ok(());
        }
        Err(Error::HistoryChanged(self.storage.group.clone()))
    }

    /// Returns true if another event may be read: this group has room, and all groups together have room.
    fn may_read(&self) -> bool {
        let total = self.shared.held_bytes.load(Ordering::Relaxed);
        // A group that holds nothing may read one event whatever the others hold, so that none is stuck.
        let has_room = total < self.shared.config.held_bytes_max || self.machine.held() == 0;
        self.subscription.is_some() && has_room && self.machine.wants_event()
    }

    fn messages(&mut self, first: Option<gesta_core::Result<SubscriptionMessage>>) -> Result<()> {
        let mut found = first;
        for _ in 1..MESSAGES_AT_ONCE_MAX {
            self.one_message(found)?;
            if !self.may_read() {
                return Ok(());
            }
            match next(&mut self.subscription).now_or_never() {
                Some(more) => found = more,
                None => return Ok(()),
            }
        }
        self.one_message(found)
    }

    fn one_message(
        &mut self,
        found: Option<gesta_core::Result<SubscriptionMessage>>,
    ) -> Result<()> {
        match found {
            Some(Ok(message)) => self.message(message)?,
            Some(Err(error)) if !error.is_retryable() => return Err(self.ended(error)),
            // It begins again where it was.
            Some(Err(_)) | None => self.subscription = None,
        }
        Ok(())
    }

    fn message(&mut self, message: SubscriptionMessage) -> Result<()> {
        let source = self.storage.group.source();
        match message {
            SubscriptionMessage::Event { event, checkpoint } => {
                self.check_history(&checkpoint)?;
                let place = record::place_of(source, &event);
                let is_own = *source == Source::All && keeps_state_of_groups(&event.stream);
                let passes = match &self.pattern {
                    Some(pattern) if !is_own => pattern.matches(&event)?,
                    _ => !is_own,
                };
                if passes {
                    self.machine.event(place, event);
                } else {
                    self.machine.ignore(place);
                }
            }
            SubscriptionMessage::Checkpoint(checkpoint)
            | SubscriptionMessage::FellBehind(checkpoint) => {
                self.check_history(&checkpoint)?;
                if let Some(place) = work::place_of(&checkpoint) {
                    self.machine.nothing_up_to(place);
                }
            }
            SubscriptionMessage::CaughtUp(checkpoint) => {
                self.check_history(&checkpoint)?;
                if let Some(place) = work::place_of(&checkpoint) {
                    self.machine.ignore(place);
                }
                self.machine.caught_up();
            }
        }
        Ok(())
    }

    fn done(&mut self, done: Done) -> Result<()> {
        match done {
            Done::Subscribed(subscription) => {
                self.work.is_subscribing = false;
                self.subscription = Some(subscription.map_err(|error| self.ended(error))?);
            }
            Done::Checkpoint(written) => match written.map_err(|error| self.ended(error))? {
                Some(revision) => {
                    let stored = &mut self.checkpoints;
                    stored.marks = std::mem::take(&mut stored.writing);
                    stored.expected = ExpectedRevision::Exact(revision);
                    stored.is_there = true;
                    self.machine.checkpoint_written();
                }
                None => return Err(Error::TakenOver(self.storage.group.clone())),
            },
            Done::Parked(tokens, last) => {
                self.work.is_parking = false;
                let last = last.map_err(|error| self.ended(error))?;
                if let Some(last) = last.filter(|last| last.at >= self.parked.revision) {
                    self.parked.revision = last.at.saturating_add(1);
                    self.parked.last = Some(last);
                }
                for token in tokens {
                    self.machine.parked(token);
                }
            }
            Done::LookedUp(looked) => {
                self.work.is_looking_up = false;
                let looked = looked.map_err(|error| self.ended(error))?;
                for (revision, event) in looked.events {
                    self.machine.parked_event(revision, event);
                }
                self.machine.replay_is_at(looked.next);
            }
            Done::Truncated(done) => {
                done.map_err(|error| self.ended(error))?;
                self.machine.truncation_written();
            }
        }
        Ok(())
    }

    fn command(&mut self, command: Command) -> Result<()> {
        let now = now();
        match command {
            Command::Join(join, reply) => {
                let joined = self.join(join);
                // A caller that has gone drops the consumer, which leaves.
                let _ = reply.send(joined);
            }
            Command::Ack(by, events, reply) => {
                let known = self.known(&by);
                let acked = known.map(|()| self.machine.ack(by.consumer, &events, now));
                let _ = reply.send(acked);
            }
            Command::Nack(by, events, action, reason, reply) => {
                let known = self.known(&by);
                let nacked = known.map(|()| {
                    self.machine
                        .nack(by.consumer, &events, action, &reason, now)
                });
                let _ = reply.send(nacked);
            }
            Command::Replay {
                stop_at,
                end,
                reply,
            } => {
                self.parked.revision = self.parked.revision.max(end);
                let until = stop_at.unwrap_or(u64::MAX).min(self.parked.revision);
                let group = &self.storage.group;
                let begun = self.machine.replay(until);
                let _ = reply.send(begun.map_err(|_| Error::ReplayRunning(group.clone())));
            }
            Command::Info(reply) => drop(reply.send(Ok(self.info()))),
            Command::Stop(Stop::Dropped) => {
                return Err(Error::Dropped(self.storage.group.clone()));
            }
            Command::Stop(Stop::Deleted) => {
                return Err(Error::NotFound(self.storage.group.clone()));
            }
        }
        Ok(())
    }

    /// Refuses an answer for a consumer that is not in the group, or has joined as another user.
    fn known(&self, by: &Answerer) -> Result<()> {
        let is_its_own = |user: &String| {
            let member = self.members.get(&by.consumer);
            member.is_some_and(|member| member.identity.user == *user)
        };
        if self.machine.knows(by.consumer) && by.user.as_ref().is_none_or(is_its_own) {
            return Ok(());
        }
        Err(no_consumer(&self.storage.group, by.consumer))
    }

    fn join(&mut self, join: JoinGroup) -> Result<Membership> {
        let id = ConsumerId(Uuid::new_v4());
        let group = self.storage.group.clone();
        if let Err(refused) = self.machine.join(id, join.buffer) {
            return Err(Error::Refused { group, refused });
        }
        self.machine.set_patience(id, join.patience);
        let queue = Queue::new(Arc::clone(&self.departures));
        let member = Member {
            queue: Arc::clone(&queue),
            identity: join.identity,
        };
        self.members.insert(id, member);
        Ok(Membership { id, group, queue })
    }

    /// Removes the consumers that have left.
    fn part(&mut self) {
        let has_left =
            |(id, member): (&ConsumerId, &Member)| member.queue.has_left().then_some(*id);
        let gone: Vec<ConsumerId> = self.members.iter().filter_map(has_left).collect();
        for id in gone {
            if let Some(member) = self.members.remove(&id) {
                self.machine.leave(id, &member.queue.drain());
            }
        }
    }

    /// Checks whether the group is still to run.
    ///
    /// # Errors
    /// `NotHere` if another node is to run the group; `Dropped` if the group was not used for the time of `idle_max`,
    /// or of `tries_kept_max` if it would forget failed tries.
    fn look(&mut self) -> Result<()> {
        let group = &self.storage.group;
        if let Some(elsewhere) = self.shared.placement.elsewhere(&group.checkpoint_stream()) {
            return Err(Error::NotHere {
                group: group.clone(),
                elsewhere,
            });
        }
        let now = now();
        let is_used = !self.members.is_empty() || self.machine.is_replaying();
        if is_used || !self.work.calls.is_empty() {
            self.idle_since = now;
        } else {
            let idle = now.since(self.idle_since);
            let config = &self.shared.config;
            if idle >= config.idle_max
                && (idle >= config.tries_kept_max || !self.machine.has_failed_tries())
            {
                return Err(Error::Dropped(group.clone()));
            }
        }
        Ok(())
    }

    fn info(&self) -> GroupInfo {
        let consumer = |counts: crate::machine::ConsumerCounts| ConsumerInfo {
            identity: self
                .members
                .get(&counts.consumer)
                .map(|member| member.identity.clone())
                .unwrap_or_default(),
            counts,
        };
        let machine = &self.machine;
        GroupInfo {
            group: self.storage.group.clone(),
            settings: self.configuration.settings.clone(),
            filter: self.filter.clone(),
            pattern: self.configuration.pattern.clone(),
            checkpoint: self.checkpoints.is_there.then(|| machine.checkpoint()),
            parked: self.parked.revision.saturating_sub(machine.parked_from()),
            parked_stream: self.storage.known_parked_stream(),
            halted: None,
            running: Some(Running {
                read_to: machine.read_to(),
                finished_to: machine.low(),
                is_live: machine.is_live(),
                is_replaying: machine.is_replaying(),
                waiting: machine.waiting(),
                waiting_again: machine.waiting_again(),
                in_flight: machine.in_flight(),
                held_bytes: machine.held_bytes(),
                counts: machine.counts(),
                seconds: now().since(self.began).as_secs(),
                consumers: machine.consumers().into_iter().map(consumer).collect(),
            }),
        }
    }

    /// Ends the queues of the consumers, and stores how far the group has come if this process may still store it.
    pub(crate) async fn stop(&mut self, why: &Error) {
        for member in self.members.values() {
            member.queue.end(why.clone());
        }
        if matches!(
            why,
            Error::NotFound(_) | Error::TakenOver(_) | Error::HistoryChanged(_)
        ) {
            return;
        }
        let within = self.shared.config.last_checkpoint_max;
        let last = self.store_the_rest();
        if tokio::time::timeout(within, last).await.is_err() {
            let group = &self.storage.group;
            tracing::warn!(%group, "the last checkpoint was not stored in time: events will be delivered again");
        }
    }

    /// Finishes the writes that are under way, and writes the last checkpoint.
    async fn store_the_rest(&mut self) {
        loop {
            self.begin_work_of_the_end();
            let Some(done) = self.work.calls.next().await else {
                return;
            };
            if self.done(done).is_err() {
                return;
            }
        }
    }

    fn begin_work_of_the_end(&mut self) {
        if let Some(place) = self.machine.begin_last_checkpoint(now()) {
            self.write(place);
        }
        let orders = if self.work.is_parking {
            Vec::new()
        } else {
            work::take_orders(&mut self.machine)
        };
        if !orders.is_empty() {
            self.work.is_parking = true;
            let (course, added) = (self.course, self.shared.clock.now());
            let storage = self.storage.clone();
            let parked = work::park(storage, course, orders, added, self.incarnation);
            self.work.begin(parked);
        }
    }
}

impl Drop for Task {
    /// Ends the queues of the consumers even if the task is dropped half way.
    fn drop(&mut self) {
        for member in self.members.values() {
            member.queue.end(Error::Dropped(self.storage.group.clone()));
        }
        self.shared
            .held_bytes
            .fetch_sub(self.counted.held_bytes, Ordering::Relaxed);
    }
}

async fn next(
    subscription: &mut Option<Subscription>,
) -> Option<gesta_core::Result<SubscriptionMessage>> {
    match subscription {
        Some(subscription) => subscription.next().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Moment>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.instant().into()).await,
        None => std::future::pending().await,
    }
}
