//! One entity in memory: it decides ahead, holds answers back, releases them in order, and starts over.
//!
//! The state is the *tip*: it includes events that are still being committed. What was decided waits in
//! [`Flight::pending`], oldest first, each entry with the number of the submission that proves it: its own, or the next
//! one of the entity. When that submission has succeeded, everything up to it is released, in order. If one fails, the
//! tip must be discarded. When all outcomes are known the entity is loaded again, and what was not answered is decided
//! again in its order.

use std::collections::VecDeque;

use gesta_core::{After, Appended, Error as StoreError, Position, RecordedEvent, StreamId};

use crate::ask::{Ask, Freshness, ReadAsk};
use crate::decider::Decider;
use crate::env::Env;
use crate::guard::guarded;
use crate::keys::Keys;
use crate::kind::unreadable;
use crate::load::UseSnapshot;
use crate::message::LoadedPart;
use crate::stats::{Counter, Counters};

mod command;
mod flight;
mod loading;

use flight::{Flight, Pending, Work};
use loading::{Loading, Progress};

/// An entity that is being loaded or is in memory.
pub(crate) enum Slot<D: Decider> {
    Loading(Box<Loading<D>>),
    Active(Box<Active<D>>),
}

/// Whether the slot stays.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Fate {
    Stay,
    /// The slot leaves: nothing is known of the entity, and nobody waits.
    Leave,
}

/// An entity in memory. The struct is small, because there are many entities.
pub(crate) struct Active<D: Decider> {
    state: D,
    after: After,
    keys: Option<Box<Keys>>,
    /// A position up to which the stream may have been deleted; 0 if it never was. The keys of commands that were
    /// carried out before a delete are not known.
    deleted_until: Position,
    events_since_snapshot: u32,
    /// The number of this stay in memory, which distinguishes it from other stays of the same stream.
    pub(crate) stay: u64,
    /// The time at which the entity was last used, in milliseconds since the shard was started.
    pub(crate) last_used: u64,
    /// What is in flight; `None` while nothing is.
    flight: Option<Box<Flight<D>>>,
}

impl<D: Decider> Slot<D> {
    /// Begins to load an entity that is not in memory yet.
    pub(crate) fn load(stream: &StreamId, waiting: VecDeque<Ask<D>>, env: &mut Env<D>) -> Self {
        let number = env.next_number();
        // First, because it is code of the user.
        let building = Active::new(number);
        env.counters.loading.add(1);
        env.load(stream, number, UseSnapshot::Yes);
        Slot::Loading(Box::new(Loading {
            number,
            waiting,
            building,
            expected: None,
            next: None,
            deleted: None,
        }))
    }

    /// Returns the gauge that counts the slot.
    pub(crate) fn held_by<'a>(&self, counters: &'a Counters) -> &'a Counter {
        match self {
            Slot::Loading(_) => &counters.loading,
            Slot::Active(_) => &counters.active,
        }
    }

    /// Returns whether the entity must stay in memory.
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

    /// Asks the store, at the end of a turn, to confirm the answers that no append proves.
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
        let again = env.move_away(stream, again);
        if again.is_empty() {
            env.counters.active.subtract(1);
            return Fate::Leave;
        }
        env.counters.reloads.add(1);
        let loading = Slot::load(stream, again, env);
        env.counters.active.subtract(1);
        *self = loading;
        Fate::Stay
    }

    pub(crate) fn loaded(
        &mut self,
        stream: &StreamId,
        number: u64,
        part: LoadedPart,
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
                active.forget_keys(env);
                active.last_used = env.now_ms;
                env.activated(stream, active.stay);
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

impl<D: Decider> Active<D> {
    fn new(stay: u64) -> Self {
        Self {
            state: D::default(),
            after: After::NOTHING,
            keys: None,
            deleted_until: Position::START,
            events_since_snapshot: 0,
            stay,
            last_used: 0,
            flight: None,
        }
    }

    /// Folds stored events into the state.
    fn replay(&mut self, events: &[RecordedEvent], env: &Env<D>) -> gesta_core::Result<()> {
        env.counters.loaded_events.add(events.len() as u64);
        for event in events {
            let decoded = env.kind.decode(event)?;
            guarded("evolve", || self.state.evolve(&decoded))
                .map_err(|panicked| unreadable(event, &panicked))?;
            self.after = After::Event(event.id);
            self.events_since_snapshot = self.events_since_snapshot.saturating_add(1);
            self.learn_key(event, env);
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
        let is_initial = matches!(self.after, After::NoStream { .. });
        if let Err(error) = guarded("the read", || ask.look(&self.state, is_initial)) {
            env.counters.failed.add(1);
            return ask.refuse(StoreError::from(error).into());
        }
        match ask.freshness() {
            Freshness::Confirmed => self.wait_for_next(stream, Work::Read(ask), env),
            Freshness::StaleAllowed => self.wait_for_last(stream, Work::Read(ask), env),
        }
    }

    /// Holds an answer back until the next submission of the entity has succeeded.
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

    /// Holds an answer back until all events of the state are durable.
    fn wait_for_last(&mut self, stream: &StreamId, work: Work<D>, env: &mut Env<D>) {
        let Some(flight) = self.flight.as_mut().filter(|flight| flight.stored > 0) else {
            return work.release(stream, None, env);
        };
        let last = flight.last;
        let proven_by_last = flight
            .pending
            .partition_point(|pending| pending.number <= last);
        // A command keeps its place, for it may have to be decided again; a read need not wait for what others wait
        // for.
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
