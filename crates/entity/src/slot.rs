//! One entity in memory: deciding ahead, holding answers back, releasing them in order, starting over.
//!
//! The state is the *tip*: it includes events that are still being committed. What was decided waits in
//! [`Flight::pending`], oldest first, each with the number of the submission that proves it: its own, or the next one of
//! the entity. When that submission has succeeded, everything up to it is released, in order.
//! If one fails, the tip is worth nothing. When all outcomes are known the entity is loaded again, and what was not
//! answered is decided again in its order.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gesta_core::{
    After, Appended, Error as StoreError, ErrorKind, EventId, RecordedEvent, Revision, StreamId,
};

use crate::ask::{Ask, CommandAsk, Done, Freshness, ReadAsk, done};
use crate::decider::{Context, Decider};
use crate::error::Error;
use crate::keys::{self, Keys};
use crate::load::{Part, UseSnapshot};
use crate::shard::Env;
use crate::snapshot::Draft;

/// An entity that is used.
pub(crate) enum Slot<D: Decider> {
    Loading(Box<Loading<D>>),
    Active(Box<Active<D>>),
}

/// What is to become of the slot.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Fate {
    Stay,
    /// Nothing is known of the entity and nobody waits.
    Leave,
}

/// An entity that is being loaded.
pub(crate) struct Loading<D: Decider> {
    /// Of the load; parts of others are dropped.
    number: u64,
    waiting: VecDeque<Ask<D>>,
    building: Active<D>,
    /// The event after which the snapshot was taken; it must come first.
    expected: Option<(Revision, EventId)>,
}

/// An entity in memory. Small, for there are many.
pub(crate) struct Active<D: Decider> {
    state: D,
    after: After,
    keys: Option<Box<Keys>>,
    events_since_snapshot: u32,
    /// Tells this stay in memory from others.
    pub(crate) stay: u64,
    /// In milliseconds, by the shard's count.
    pub(crate) last_used: u64,
    /// Only while something is.
    flight: Option<Box<Flight<D>>>,
}

struct Flight<D: Decider> {
    pending: VecDeque<Pending<D>>,
    /// Submissions without outcome.
    open: u32,
    /// The last one's number.
    last: u64,
    /// Commands with events among `pending`.
    stored: usize,
    /// The last of `pending` waits for a submission that was not made yet.
    unproven: bool,
    broken: Option<Broken<D>>,
}

/// A submission has failed.
struct Broken<D: Decider> {
    /// What came after that.
    arrivals: VecDeque<Ask<D>>,
    /// The database does not answer.
    away: Option<StoreError>,
}

struct Pending<D: Decider> {
    number: u64,
    work: Work<D>,
    failed: Option<StoreError>,
}

enum Work<D: Decider> {
    Stored {
        ask: CommandAsk<D>,
        reply: D::Reply,
        snapshot: Option<Box<Draft<D>>>,
    },
    /// Without events.
    Answered {
        ask: CommandAsk<D>,
        answer: Result<Done<D::Reply>, D::Rejection>,
    },
    Read(Box<dyn ReadAsk<D>>),
}

impl<D: Decider> Slot<D> {
    /// An entity that is not in memory yet.
    pub(crate) fn load(stream: &StreamId, waiting: VecDeque<Ask<D>>, env: &mut Env<D>) -> Self {
        let number = env.next_number();
        env.counters.loading.add(1);
        env.load(stream, number, UseSnapshot::Yes);
        Slot::Loading(Box::new(Loading {
            number,
            waiting,
            building: Active::new(number),
            expected: None,
        }))
    }

    /// It must stay in memory.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Slot::Loading(_) => true,
            Slot::Active(active) => active.flight.is_some(),
        }
    }

    pub(crate) fn ask(&mut self, stream: &StreamId, ask: Ask<D>, env: &mut Env<D>) -> Fate {
        match self {
            Slot::Loading(loading) => {
                if let Some(ask) = env.refuse_if_full(ask, loading.waiting.len()) {
                    loading.waiting.push_back(ask);
                }
                Fate::Stay
            }
            Slot::Active(active) => {
                active.last_used = env.now_ms;
                active.ask(stream, ask, env);
                self.settle_if_over(stream, env)
            }
        }
    }

    /// At the end of a turn: asks the store for what no append proves.
    pub(crate) fn confirm(&mut self, stream: &StreamId, env: &mut Env<D>) {
        if let Slot::Active(active) = self
            && let Some(flight) = &mut active.flight
            && flight.unproven
            && flight.broken.is_none()
        {
            env.counters.confirmations.add(1);
            flight.submit(env.submit(stream, active.after, Vec::new()));
        }
    }

    pub(crate) fn outcome(
        &mut self,
        stream: &StreamId,
        number: u64,
        result: gesta_core::Result<Appended>,
        env: &mut Env<D>,
    ) -> Fate {
        let Slot::Active(active) = self else {
            return Fate::Stay;
        };
        if let Some(flight) = &mut active.flight {
            flight.open = flight.open.saturating_sub(1);
            match result {
                Ok(appended) => flight.release(stream, number, Some(&appended), env),
                Err(error) => flight.fail(number, error),
            }
            if flight.is_over() {
                active.flight = None;
            }
        }
        self.settle_if_over(stream, env)
    }

    /// Starts over once a submission has failed and all outcomes are known.
    fn settle_if_over(&mut self, stream: &StreamId, env: &mut Env<D>) -> Fate {
        let Slot::Active(active) = self else {
            return Fate::Stay;
        };
        let over = |flight: &Flight<D>| flight.broken.is_some() && flight.open == 0;
        let Some(flight) = active.flight.take_if(|flight| over(flight)) else {
            return Fate::Stay;
        };
        let again = flight.settle(env);
        env.counters.active.subtract(1);
        if again.is_empty() {
            return Fate::Leave;
        }
        env.counters.reloads.add(1);
        *self = Slot::load(stream, again, env);
        Fate::Stay
    }

    pub(crate) fn loaded(
        &mut self,
        stream: &StreamId,
        number: u64,
        part: Part,
        env: &mut Env<D>,
    ) -> Fate {
        let Slot::Loading(loading) = self else {
            return Fate::Stay;
        };
        if loading.number != number {
            return Fate::Stay;
        }
        match loading.take(stream, part, env) {
            Ok(Progress::More) => Fate::Stay,
            Ok(Progress::Complete) => {
                let waiting = std::mem::take(&mut loading.waiting);
                let mut active = std::mem::replace(&mut loading.building, Active::new(number));
                env.activated(stream, &mut active);
                *self = Slot::Active(Box::new(active));
                self.ask_all(stream, waiting, env)
            }
            Err(error) => {
                env.counters.loading.subtract(1);
                env.counters.loads_failed.add(1);
                for ask in loading.waiting.drain(..) {
                    env.counters.failed.add(1);
                    ask.refuse(error.clone().into());
                }
                Fate::Leave
            }
        }
    }

    fn ask_all(
        &mut self,
        stream: &StreamId,
        mut waiting: VecDeque<Ask<D>>,
        env: &mut Env<D>,
    ) -> Fate {
        while let Some(ask) = waiting.pop_front() {
            if self.ask(stream, ask, env) == Fate::Leave {
                if waiting.is_empty() {
                    return Fate::Leave;
                }
                *self = Slot::load(stream, waiting, env);
                return Fate::Stay;
            }
        }
        Fate::Stay
    }
}

enum Progress {
    More,
    Complete,
}

impl<D: Decider> Loading<D> {
    fn take(
        &mut self,
        stream: &StreamId,
        part: Part,
        env: &mut Env<D>,
    ) -> gesta_core::Result<Progress> {
        match part {
            Part::Snapshot(event) => {
                self.restore(stream, &event, env);
                Ok(Progress::More)
            }
            Part::Events(events) => {
                let mut events = events.as_slice();
                if let Some((revision, id)) = self.expected.take() {
                    match events.split_first() {
                        Some((first, rest)) if (first.revision, first.id) == (revision, id) => {
                            events = rest;
                        }
                        _ => {
                            self.start_over(stream, "of another history", env);
                            return Ok(Progress::More);
                        }
                    }
                }
                self.building.replay(events, env)?;
                Ok(Progress::More)
            }
            Part::End if self.expected.is_some() => {
                self.start_over(stream, "of events that are not there", env);
                Ok(Progress::More)
            }
            Part::End => Ok(Progress::Complete),
            Part::Failed(error) => Err(error),
        }
    }

    fn restore(&mut self, stream: &StreamId, event: &RecordedEvent, env: &mut Env<D>) {
        let Some(snapshots) = &env.kind.snapshots else {
            return self.start_over(stream, "not wanted", env);
        };
        match snapshots.read(event) {
            Ok(restored) => {
                self.expected = Some((restored.revision, restored.last));
                self.building.state = restored.state;
                self.building.after = After::Event(restored.last);
                if !restored.keys.is_empty() {
                    self.building.keys = Some(Box::new(restored.keys));
                }
            }
            Err(why) => self.start_over(stream, &why, env),
        }
    }

    /// The snapshot is of no use: loads again without it.
    fn start_over(&mut self, stream: &StreamId, why: &str, env: &mut Env<D>) {
        env.counters.snapshots_ignored.add(1);
        tracing::info!(%stream, why, "snapshot ignored");
        self.number = env.next_number();
        self.building = Active::new(self.number);
        self.expected = None;
        env.load(stream, self.number, UseSnapshot::No);
    }
}

impl<D: Decider> Active<D> {
    fn new(stay: u64) -> Self {
        Self {
            state: D::default(),
            after: After::NoStream,
            keys: None,
            events_since_snapshot: 0,
            stay,
            last_used: 0,
            flight: None,
        }
    }

    /// Takes stored events.
    fn replay(&mut self, events: &[RecordedEvent], env: &Env<D>) -> gesta_core::Result<()> {
        env.counters.loaded_events.add(events.len() as u64);
        for event in events {
            let decoded = env.kind.decode(event)?;
            guarded("evolve", || self.state.evolve(&decoded))?;
            self.after = After::Event(event.id);
            self.events_since_snapshot = self.events_since_snapshot.saturating_add(1);
            if env.kind.replies.is_some() && !event.metadata.is_empty() {
                self.keys.get_or_insert_default().learn(event);
            }
        }
        Ok(())
    }

    fn flight(&mut self) -> &mut Flight<D> {
        self.flight.get_or_insert_with(|| Box::new(Flight::new()))
    }

    fn ask(&mut self, stream: &StreamId, ask: Ask<D>, env: &mut Env<D>) {
        let pending = self
            .flight
            .as_ref()
            .map_or(0, |flight| flight.pending.len());
        let Some(ask) = env.refuse_if_full(ask, pending) else {
            return;
        };
        if let Some(flight) = &mut self.flight
            && let Some(broken) = &mut flight.broken
        {
            broken.arrivals.push_back(ask);
            return;
        }
        match ask {
            Ask::Command(ask) => self.command(stream, ask, env),
            Ask::Read(ask) => self.read(stream, ask, env),
        }
    }

    fn read(&mut self, stream: &StreamId, mut ask: Box<dyn ReadAsk<D>>, env: &mut Env<D>) {
        if let Err(error) = guarded("the read", || ask.look(&self.state)) {
            env.counters.failed.add(1);
            return ask.refuse(error.into());
        }
        match ask.freshness() {
            Freshness::Confirmed => self.wait_for_next(stream, Work::Read(ask), env),
            Freshness::StaleAllowed => self.wait_for_last(stream, Work::Read(ask), env),
        }
    }

    fn command(&mut self, stream: &StreamId, mut ask: CommandAsk<D>, env: &mut Env<D>) {
        ask.attempts += 1;
        if ask.attempts > 1 {
            env.counters.decided_again.add(1);
        }
        match self.repeated(&ask, env) {
            Ok(None) => {}
            Ok(Some(done)) => {
                let answer = Ok(done);
                return self.wait_for_last(stream, Work::Answered { ask, answer }, env);
            }
            Err(error) => return env.fail(ask, error),
        }
        let context = Context::new(env.kind.id(stream), env.now);
        match guarded("decide", || {
            self.state.decide(&ask.request.command, &context)
        }) {
            Ok(Ok(events)) if events.is_empty() => {
                match guarded("reply", || self.state.reply(&ask.request.command)) {
                    Ok(reply) => {
                        let answer = Ok(Done {
                            reply,
                            revision: None,
                            checkpoint: None,
                            repeated: false,
                        });
                        self.wait_for_next(stream, Work::Answered { ask, answer }, env);
                    }
                    Err(error) => env.fail(ask, error),
                }
            }
            Ok(Ok(events)) => self.store(stream, ask, &events, env),
            Ok(Err(rejection)) => {
                let answer = Err(rejection);
                self.wait_for_next(stream, Work::Answered { ask, answer }, env);
            }
            Err(error) => env.fail(ask, error),
        }
    }

    /// The reply of the first time, if the key of the command is known.
    fn repeated(
        &mut self,
        ask: &CommandAsk<D>,
        env: &Env<D>,
    ) -> gesta_core::Result<Option<Done<D::Reply>>> {
        let Some(key) = &ask.request.idempotency_key else {
            return Ok(None);
        };
        keys::check(key)?;
        let Some(codec) = &env.kind.replies else {
            return Err(StoreError::invalid(
                "idempotency key",
                "needs an entity type with idempotent_replies",
            ));
        };
        let Some(known) = &mut self.keys else {
            return Ok(None);
        };
        known.forget_before(env.keys_from());
        let Some(remembered) = known.get(key) else {
            return Ok(None);
        };
        let reply = (codec.decode)(&remembered.reply)
            .map_err(|error| StoreError::corrupt(format!("the reply of key {key:?}: {error}")))?;
        Ok(Some(Done {
            reply,
            revision: remembered.revision.map(Revision),
            checkpoint: None,
            repeated: true,
        }))
    }

    /// Applies and submits the events of a command.
    fn store(
        &mut self,
        stream: &StreamId,
        ask: CommandAsk<D>,
        events: &[D::Event],
        env: &mut Env<D>,
    ) {
        let id = env.kind.id(stream);
        let encoded: gesta_core::Result<Vec<_>> = events
            .iter()
            .map(|event| env.kind.encode(id, event))
            .collect();
        let mut encoded = match encoded {
            Ok(encoded) => encoded,
            Err(error) => return env.fail(ask, error),
        };
        let evolved = guarded("evolve", || {
            events.iter().for_each(|event| self.state.evolve(event));
            self.state.reply(&ask.request.command)
        });
        let reply = match evolved {
            Ok(reply) => reply,
            Err(error) => {
                self.flight().break_off();
                return env.fail(ask, error);
            }
        };
        if let Err(error) = self.remember(&ask, &reply, &mut encoded, env) {
            self.flight().break_off();
            return env.fail(ask, error);
        }
        let before = self.after;
        if let Some(id) = encoded.last().and_then(|event| event.id) {
            self.after = After::Event(id);
        }
        let snapshot = self.draft(events.len(), env);
        let number = env.submit(stream, before, encoded);
        let flight = self.flight();
        flight.submit(number);
        flight.stored += 1;
        flight.pending.push_back(Pending {
            number,
            work: Work::Stored {
                ask,
                reply,
                snapshot,
            },
            failed: None,
        });
    }

    /// Puts key and reply into the metadata of the last event, whose revision a retry is told.
    fn remember(
        &mut self,
        ask: &CommandAsk<D>,
        reply: &D::Reply,
        events: &mut [gesta_core::EventData],
        env: &Env<D>,
    ) -> gesta_core::Result<()> {
        let (Some(key), Some(codec)) = (&ask.request.idempotency_key, &env.kind.replies) else {
            return Ok(());
        };
        let reply = (codec.encode)(reply)
            .map_err(|error| StoreError::invalid("reply", error.to_string()))?;
        if let Some(last) = events.last_mut() {
            last.metadata = keys::metadata(key, &reply)?;
        }
        let keys = self.keys.get_or_insert_default();
        keys.insert(key, reply, None, env.now);
        Ok(())
    }

    /// A snapshot of the tip, if one is due; written once the tip is durable.
    fn draft(&mut self, events: usize, env: &Env<D>) -> Option<Box<Draft<D>>> {
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        self.events_since_snapshot = self.events_since_snapshot.saturating_add(events);
        let snapshots = env.kind.snapshots.as_ref()?;
        let After::Event(last) = self.after else {
            return None;
        };
        let due = || snapshots.is_due(&self.state, u64::from(self.events_since_snapshot));
        let state = guarded("the snapshot", || {
            due().then(|| snapshots.copy(&self.state))
        });
        let state = state.ok().flatten()?;
        self.events_since_snapshot = 0;
        Some(Box::new(Draft {
            state,
            last,
            keys: self.keys.clone(),
        }))
    }

    /// Holds back until the next submission of the entity has succeeded.
    fn wait_for_next(&mut self, stream: &StreamId, work: Work<D>, env: &mut Env<D>) {
        let number = env.coming_number();
        let flight = self.flight();
        if !std::mem::replace(&mut flight.unproven, true) {
            env.unproven.push(stream.clone());
        }
        flight.pending.push_back(Pending {
            number,
            work,
            failed: None,
        });
    }

    /// Holds back until all events of the state are durable.
    fn wait_for_last(&mut self, stream: &StreamId, work: Work<D>, env: &mut Env<D>) {
        let Some(flight) = self.flight.as_mut().filter(|flight| flight.stored > 0) else {
            return work.release(stream, None, env);
        };
        let last = flight.last;
        let proven_by_last = flight
            .pending
            .partition_point(|pending| pending.number <= last);
        // A command keeps its place, for it may have to be decided again; a read need not wait for what others wait for.
        let at = match &work {
            Work::Read(_) => proven_by_last,
            Work::Stored { .. } | Work::Answered { .. } => flight.pending.len(),
        };
        let before = at.checked_sub(1).and_then(|at| flight.pending.get(at));
        let pending = Pending {
            number: before.map_or(last, |before| before.number.max(last)),
            work,
            failed: None,
        };
        flight.pending.insert(at, pending);
    }
}

impl<D: Decider> Flight<D> {
    fn new() -> Self {
        Self {
            pending: VecDeque::new(),
            open: 0,
            last: 0,
            stored: 0,
            unproven: false,
            broken: None,
        }
    }

    fn is_over(&self) -> bool {
        self.open == 0 && self.pending.is_empty() && self.broken.is_none()
    }

    fn submit(&mut self, number: u64) {
        self.open += 1;
        self.last = number;
        self.unproven = false;
    }

    /// The state cannot be used any more.
    fn break_off(&mut self) -> &mut Broken<D> {
        self.broken.get_or_insert_with(|| Broken {
            arrivals: VecDeque::new(),
            away: None,
        })
    }

    /// A submission has succeeded: everything up to it is durable and was current.
    fn release(
        &mut self,
        stream: &StreamId,
        number: u64,
        appended: Option<&Appended>,
        env: &mut Env<D>,
    ) {
        while let Some(first) = self.pending.pop_front_if(|first| first.number <= number) {
            let own = appended.filter(|_| first.number == number);
            self.stored -= usize::from(matches!(first.work, Work::Stored { .. }));
            first.work.release(stream, own, env);
        }
    }

    fn fail(&mut self, number: u64, error: StoreError) {
        let broken = self.break_off();
        if matches!(
            error.kind(),
            ErrorKind::Unavailable(_) | ErrorKind::OutcomeUnknown(_)
        ) {
            broken.away.get_or_insert_with(|| error.clone());
        }
        let own = self.pending.iter_mut().find(|pending| {
            pending.number == number && matches!(pending.work, Work::Stored { .. })
        });
        if let Some(own) = own {
            own.failed = Some(error);
        }
    }

    /// Answers what cannot be decided again; gives back the rest, in order.
    fn settle(self, env: &mut Env<D>) -> VecDeque<Ask<D>> {
        let Some(broken) = self.broken else {
            return VecDeque::new();
        };
        let mut again = VecDeque::new();
        for pending in self.pending {
            let error = match &pending.work {
                Work::Stored { .. } => pending.failed.filter(|error| {
                    !matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. })
                }),
                // Nothing was written for it, whatever became of the others.
                Work::Answered { .. } | Work::Read(_) => broken
                    .away
                    .as_ref()
                    .map(|error| StoreError::unavailable(error.kind().to_string())),
            };
            let ask = pending.work.into_ask();
            match error {
                Some(error) => {
                    env.counters.failed.add(1);
                    ask.refuse(error.into());
                }
                None => again.extend(env.refuse_if_tired(ask)),
            }
        }
        again.extend(broken.arrivals);
        again
    }
}

impl<D: Decider> Work<D> {
    /// Gives the answer out. `appended`: of its own events, if known.
    fn release(self, stream: &StreamId, appended: Option<&Appended>, env: &mut Env<D>) {
        match self {
            Work::Stored {
                ask,
                reply,
                snapshot,
            } => {
                env.counters.commands.add(1);
                let answer = match appended {
                    Some(appended) => done(reply, appended),
                    None => Done {
                        reply,
                        revision: None,
                        checkpoint: None,
                        repeated: false,
                    },
                };
                if let (Some(draft), Some(revision)) = (snapshot, answer.revision) {
                    env.write_snapshot(stream, revision, *draft);
                }
                ask.answer(Ok(answer));
            }
            Work::Answered { ask, answer } => {
                match &answer {
                    Ok(done) if done.repeated => env.counters.repeated.add(1),
                    Ok(_) => env.counters.commands.add(1),
                    Err(_) => env.counters.rejected.add(1),
                }
                ask.answer(answer.map_err(Error::Rejected));
            }
            Work::Read(ask) => {
                env.counters.reads.add(1);
                ask.release();
            }
        }
    }

    fn into_ask(self) -> Ask<D> {
        match self {
            Work::Stored { ask, .. } | Work::Answered { ask, .. } => Ask::Command(ask),
            Work::Read(ask) => Ask::Read(ask),
        }
    }
}

/// Runs code of the user; its panic ends one command, not the shard.
fn guarded<T>(what: &str, run: impl FnOnce() -> T) -> gesta_core::Result<T> {
    catch_unwind(AssertUnwindSafe(run))
        .map_err(|_| StoreError::corrupt(format!("{what} of the entity has panicked")))
}
