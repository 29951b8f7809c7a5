//! A task that owns a part of the entities: one queue, one entity after the other, no locks.
//!
//! It works in turns: takes what has gathered in its queue, handles it, and at the end of the turn asks the store to
//! confirm the entities whose answers rest on nothing else; so many reads of one entity share one question.
//! An entity leaves memory when it was not used for long, or when there are too many: the policy is that of
//! `quick_cache` (S3-FIFO; Yang et al., "FIFO queues are all you need for cache eviction", 2023), which a scan over
//! many entities does not empty. One with anything in flight is pinned.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use gesta_core::capacity::Capacity;
use gesta_core::peers::{PeerAnswer, Unanswered};
use gesta_core::{
    After, Appended, Clock, Error as StoreError, EventData, OwnerStore, Revision, StreamId,
    Submission, Timestamp,
};
use quick_cache::unsync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, UnitWeighter};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::ask::{Ask, CommandAsk};
use crate::config::Config;
use crate::decider::Decider;
use crate::error::Error;
use crate::forward::Forwarding;
use crate::forward::queue::Queue;
use crate::guard::{Panicked, guarded};
use crate::keys::Bounds;
use crate::kind::EntityKind;
use crate::load::{Load, LoadedPart, UseSnapshot};
use crate::slot::{Active, Fate, Slot};
use crate::snapshot::{Draft, Ready};
use crate::stats::{Counter, Counters};

mod away;

/// Messages handled in one turn.
const TURN_MAX: usize = 256;

/// Keys that nodes have made are remembered for so long, if a command cannot be sent again later still.
const MADE_KEPT_FOR: Duration = Duration::from_secs(600);

/// A message to a shard.
pub(crate) enum Message<D: Decider> {
    Ask {
        stream: StreamId,
        ask: Ask<D>,
    },
    /// The outcome of a submission.
    Outcome {
        stream: StreamId,
        number: u64,
        result: gesta_core::Result<Appended>,
    },
    Loaded {
        stream: StreamId,
        number: u64,
        part: LoadedPart,
    },
    /// What became of a request that was forwarded.
    Forwarded {
        stream: StreamId,
        number: u64,
        outcome: Result<PeerAnswer, Unanswered>,
    },
    /// It is time to look at what waits to be forwarded.
    Wake {
        stream: StreamId,
    },
    /// No request will come any more: the shard ends when all are answered.
    Stop,
}

/// The requests for an entity that go to the node that owns its stream.
struct Away<D: Decider> {
    queue: Queue<Ask<D>>,
    /// When the shard will be woken for it.
    wakes_at: Option<Instant>,
}

/// What a shard offers to its entities.
pub(crate) struct Env<D: Decider> {
    pub(crate) kind: Arc<EntityKind<D>>,
    pub(crate) config: Arc<Config>,
    pub(crate) counters: Arc<Counters>,
    /// The time of the turn.
    pub(crate) now: Timestamp,
    /// The time of the turn in milliseconds since the shard was started; it never goes back.
    pub(crate) now_ms: u64,
    /// Entities whose last answers wait for a submission that was not made yet.
    pub(crate) unproven: Vec<StreamId>,
    /// The moment of the turn.
    pub(crate) turn: Instant,
    /// The other nodes, if requests go to them.
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    /// What an entity had to give up here because another node owns its stream, oldest first.
    pub(crate) moving: Option<VecDeque<Ask<D>>>,
    store: Arc<dyn OwnerStore>,
    clock: Arc<dyn Clock>,
    started: Instant,
    numbers: u64,
    shard: mpsc::UnboundedSender<Message<D>>,
    loads: mpsc::UnboundedSender<Load<D>>,
    snapshots: mpsc::Sender<Ready<D>>,
    /// The times at which to check whether an entity is idle, each with its stream and the number of its stay in
    /// memory.
    idle: VecDeque<(u64, StreamId, u64)>,
}

/// The parts that a shard is made of.
pub(crate) struct Parts<D: Decider> {
    pub(crate) kind: Arc<EntityKind<D>>,
    pub(crate) config: Arc<Config>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) store: Arc<dyn OwnerStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    pub(crate) loads: mpsc::UnboundedSender<Load<D>>,
    pub(crate) snapshots: mpsc::Sender<Ready<D>>,
    pub(crate) waiting: [Arc<Capacity>; 2],
}

/// Owner of a part of the entities.
pub(crate) struct Shard<D: Decider> {
    slots: Cache<StreamId, Slot<D>, UnitWeighter, DefaultHashBuilder, Passivation>,
    env: Env<D>,
    /// By stream, if any requests for it are on their way to another node.
    away: HashMap<StreamId, Away<D>>,
    /// The answers of other nodes, and the times at which to look again.
    awaited: FuturesUnordered<BoxFuture<'static, Message<D>>>,
    /// Streams of `away` of which something was done here.
    touched: Vec<StreamId>,
    waiting: [Arc<Capacity>; 2],
    receiver: mpsc::UnboundedReceiver<Message<D>>,
    stopping: bool,
}

/// What became of something that was asked.
enum Asked<D: Decider> {
    Known(Fate),
    /// Nobody had asked this entity before; it is being loaded.
    New(Slot<D>),
}

/// The cache's hooks: what may leave, and counting what does.
struct Passivation(Arc<Counters>);

impl<D: Decider> Lifecycle<StreamId, Slot<D>> for Passivation {
    type RequestState = ();

    fn is_pinned(&self, _: &StreamId, slot: &Slot<D>) -> bool {
        slot.is_busy()
    }

    fn on_evict(&self, (): &mut (), _: StreamId, _: Slot<D>) {
        self.0.passivated_for_room.add(1);
        self.0.active.subtract(1);
    }
}

impl<D: Decider> Shard<D> {
    /// A shard that keeps up to `active_max` entities, and the sender of its messages.
    pub(crate) fn new(
        parts: Parts<D>,
        active_max: usize,
    ) -> (Self, mpsc::UnboundedSender<Message<D>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let slots = Cache::with(
            active_max,
            u64::try_from(active_max).unwrap_or(u64::MAX),
            UnitWeighter,
            DefaultHashBuilder::default(),
            Passivation(Arc::clone(&parts.counters)),
        );
        let env = Env {
            kind: parts.kind,
            config: parts.config,
            counters: parts.counters,
            now: parts.clock.now(),
            now_ms: 0,
            unproven: Vec::new(),
            turn: Instant::now(),
            forwarding: parts.forwarding,
            moving: None,
            store: parts.store,
            clock: parts.clock,
            started: Instant::now(),
            numbers: 1,
            shard: sender.clone(),
            loads: parts.loads,
            snapshots: parts.snapshots,
            idle: VecDeque::new(),
        };
        let shard = Self {
            slots,
            env,
            away: HashMap::new(),
            awaited: FuturesUnordered::new(),
            touched: Vec::new(),
            waiting: parts.waiting,
            receiver,
            stopping: false,
        };
        (shard, sender)
    }

    /// Runs the shard until it is told to stop and all requests are answered.
    pub(crate) async fn run(mut self) {
        let mut turn = Vec::with_capacity(TURN_MAX);
        let mut sweep = tokio::time::interval(self.env.sweep_every());
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !(self.stopping && self.waiting.iter().all(|waiting| waiting.taken() == [0])) {
            tokio::select! {
                biased;
                _ = sweep.tick() => {
                    self.env.look_at_clock();
                    self.passivate_idle();
                }
                Some(message) = self.awaited.next() => {
                    self.env.look_at_clock();
                    self.handle(message);
                    self.end_turn();
                }
                _ = self.receiver.recv_many(&mut turn, TURN_MAX) => {
                    self.env.look_at_clock();
                    turn.drain(..).for_each(|message| self.handle(message));
                    self.end_turn();
                }
            }
        }
    }

    fn handle(&mut self, message: Message<D>) {
        match message {
            Message::Ask { stream, ask } => self.ask(stream, ask),
            Message::Outcome {
                stream,
                number,
                result,
            } => self.with_slot(&stream, |slot, env| {
                slot.outcome(&stream, number, result, env)
            }),
            Message::Loaded {
                stream,
                number,
                part,
            } => self.with_slot(&stream, |slot, env| slot.loaded(&stream, number, part, env)),
            Message::Forwarded {
                stream,
                number,
                outcome,
            } => self.forwarded(&stream, number, outcome),
            Message::Wake { stream } => self.wake(&stream),
            Message::Stop => self.stopping = true,
        }
    }

    fn ask(&mut self, stream: StreamId, ask: Ask<D>) {
        if let Some(ask) = self.ask_away(&stream, ask) {
            self.ask_here(stream, ask);
        }
    }

    fn ask_here(&mut self, stream: StreamId, ask: Ask<D>) {
        let Self { slots, env, .. } = self;
        let asked = guarded("the code", || match slots.get_mut(&stream) {
            Some(mut slot) => Asked::Known(slot.ask(&stream, ask, env)),
            None => Asked::New(Slot::load(&stream, VecDeque::from([ask]), env)),
        });
        match asked {
            Ok(Asked::New(slot)) => self.slots.insert(stream, slot),
            Ok(Asked::Known(fate)) => self.settle(&stream, Ok(fate)),
            Err(panicked) => self.settle(&stream, Err(panicked)),
        }
    }

    fn with_slot(
        &mut self,
        stream: &StreamId,
        act: impl FnOnce(&mut Slot<D>, &mut Env<D>) -> Fate,
    ) {
        let Self { slots, env, .. } = self;
        let fate = guarded("the code", || match slots.peek_mut(stream) {
            Some(mut slot) => act(&mut slot, env),
            None => Fate::Stay,
        });
        self.settle(stream, fate);
    }

    /// Removes an entity that is to leave, or whose code has panicked outside a single command: the callers that wait
    /// for it get *outcome unknown*, and the next request loads it again.
    fn settle(&mut self, stream: &StreamId, fate: Result<Fate, Panicked>) {
        self.touch(stream);
        match fate {
            Ok(Fate::Stay) => {}
            Ok(Fate::Leave) => {
                self.slots.remove(stream);
            }
            Err(panicked) => {
                tracing::error!(%stream, %panicked, "the entity leaves memory");
                if let Some((_, slot)) = self.slots.remove(stream) {
                    slot.held_by(&self.env.counters).subtract(1);
                    let _ = guarded("the end", move || drop(slot));
                }
            }
        }
    }

    fn end_turn(&mut self) {
        loop {
            for stream in std::mem::take(&mut self.env.unproven) {
                self.with_slot(&stream, |slot, env| {
                    slot.confirm(&stream, env);
                    Fate::Stay
                });
            }
            if self.touched.is_empty() {
                return;
            }
            for stream in std::mem::take(&mut self.touched) {
                self.advance(&stream);
            }
        }
    }

    fn passivate_idle(&mut self) {
        let idle_after = self.env.idle_after_ms();
        let now = self.env.now_ms;
        while let Some((_, stream, stay)) = self.env.idle.pop_front_if(|(due, ..)| *due <= now) {
            let idle = match self.slots.peek_mut(&stream).as_deref_mut() {
                Some(Slot::Active(active)) if active.stay == stay => {
                    active.forget_keys(&self.env);
                    active.last_used + idle_after <= now || !self.env.is_here(&stream)
                }
                // It has left, and may have come again: then another entry looks after it.
                _ => continue,
            };
            if !idle || !self.leave(&stream, |counters| &counters.passivated_idle) {
                self.env.look_later(stream, stay);
            }
        }
    }

    /// Removes an entity from memory, unless it has anything in flight. True if it has left.
    fn leave(&mut self, stream: &StreamId, why: fn(&Counters) -> &Counter) -> bool {
        if self.slots.peek(stream).is_none_or(|slot| slot.is_busy()) {
            return false;
        }
        let left = self.slots.remove(stream);
        let _ = guarded("the end", move || drop(left));
        why(&self.env.counters).add(1);
        self.env.counters.active.subtract(1);
        true
    }
}

impl<D: Decider> Drop for Shard<D> {
    /// Counts what the entity held as no longer in memory.
    fn drop(&mut self) {
        for (_, slot) in self.slots.drain() {
            slot.held_by(&self.env.counters).subtract(1);
        }
    }
}

impl<D: Decider> Env<D> {
    fn look_at_clock(&mut self) {
        self.now = self.clock.now();
        self.turn = Instant::now();
        self.now_ms = millis(self.turn.saturating_duration_since(self.started));
    }

    fn idle_after_ms(&self) -> u64 {
        millis(self.config.idle_after)
    }

    /// The time between two checks of an entity: a quarter of the time after which it is idle.
    fn sweep_every(&self) -> Duration {
        (self.config.idle_after / 4).max(Duration::from_millis(1))
    }

    fn look_later(&mut self, stream: StreamId, stay: u64) {
        let due = self.now_ms + millis(self.sweep_every());
        self.idle.push_back((due, stream, stay));
    }

    /// True if requests for the entity are carried out on this node.
    pub(crate) fn is_here(&self, stream: &StreamId) -> bool {
        let forwarding = self.forwarding.as_ref();
        forwarding.is_none_or(|forwarding| forwarding.is_here(stream))
    }

    /// Takes note of an entity that was loaded into memory.
    pub(crate) fn activated(&mut self, stream: &StreamId, active: &mut Active<D>) {
        self.counters.loading.subtract(1);
        self.counters.active.add(1);
        self.counters.loads.add(1);
        active.last_used = self.now_ms;
        self.look_later(stream.clone(), active.stay);
    }

    /// The number of a submission, of a load, or of a stay in memory.
    pub(crate) fn next_number(&mut self) -> u64 {
        let number = self.numbers;
        self.numbers += 1;
        number
    }

    /// The number that the next submission, of whichever entity, will get.
    pub(crate) fn coming_number(&self) -> u64 {
        self.numbers
    }

    /// Hands events over to the store, or without events the question whether `after` holds.
    pub(crate) fn submit(
        &mut self,
        stream: &StreamId,
        after: After,
        events: Vec<EventData>,
    ) -> u64 {
        let number = self.next_number();
        let (shard, of) = (self.shard.clone(), stream.clone());
        self.store.submit(Submission {
            stream: stream.clone(),
            after,
            events,
            on_outcome: Box::new(move |result| {
                // A shard that has ended has nobody left to answer.
                let _ = shard.send(Message::Outcome {
                    stream: of,
                    number,
                    result,
                });
            }),
        });
        number
    }

    pub(crate) fn load(&self, stream: &StreamId, number: u64, snapshot: UseSnapshot) {
        let snapshot = match &self.kind.snapshots {
            Some(_) => snapshot,
            None => UseSnapshot::No,
        };
        let load = Load {
            stream: stream.clone(),
            number,
            snapshot,
            shard: self.shard.clone(),
        };
        // The loader outlives the shards.
        let _ = self.loads.send(load);
    }

    pub(crate) fn write_snapshot(&self, stream: &StreamId, revision: Revision, draft: Draft<D>) {
        let ready = Ready {
            stream: stream.clone(),
            revision,
            draft,
        };
        if self.snapshots.try_send(ready).is_err() {
            self.counters.snapshots_left_out.add(1);
        }
    }

    /// Takes note of a snapshot that could not be taken.
    pub(crate) fn leave_out_snapshot(&self, stream: &StreamId, panicked: &Panicked) {
        self.counters.snapshots_left_out.add(1);
        tracing::warn!(%stream, %panicked, "snapshot not taken");
    }

    /// The time of the turn as it stands in remembered commands.
    pub(crate) fn seen_ms(&self) -> i64 {
        i64::try_from(self.now_ms).unwrap_or(i64::MAX)
    }

    /// What an entity may remember of idempotency keys, at this moment.
    pub(crate) fn key_bounds(&self) -> Bounds {
        let kept = i64::try_from(self.config.keys_kept_for.as_micros()).unwrap_or(i64::MAX);
        let since = |kept: Duration| self.seen_ms().saturating_sub_unsigned(millis(kept));
        // A command that is in doubt is decided at most twice `forward_within` after it was first sent (`slot::command`);
        // the rest is for what the network delays.
        let sent_again_for = self.config.forward_within * 3;
        Bounds {
            // Those of commands in flight must not be forgotten: their retries join them.
            keys_max: (self.config.entity_keys_max).max(self.config.entity_commands_max),
            bytes_max: self.config.entity_key_bytes_max,
            from: self.now.as_micros().saturating_sub(kept),
            made_from_ms: since(MADE_KEPT_FOR.max(sent_again_for)),
            sent_again_from_ms: since(sent_again_for),
        }
    }

    pub(crate) fn fail(&self, ask: CommandAsk<D>, error: StoreError) {
        self.counters.failed.add(1);
        let error: Error<std::convert::Infallible> = error.into();
        ask.answer(Err(error.cast()));
    }

    /// Refuses a command if the entity has as many as it may have already.
    pub(crate) fn refuse_if_full(&self, ask: Ask<D>, waiting: usize) -> Option<Ask<D>> {
        let Ask::Command(command) = ask else {
            return Some(ask);
        };
        if waiting < self.config.entity_commands_max {
            return Some(Ask::Command(command));
        }
        self.counters.overloaded.add(1);
        let why = format!("{waiting} commands wait for this entity");
        command.answer(Err(Error::Overloaded(why)));
        None
    }

    /// Refuses a request that was decided, or has looked, too often.
    pub(crate) fn refuse_if_tried_too_often(&self, ask: Ask<D>) -> Option<Ask<D>> {
        let attempts = match &ask {
            Ask::Command(command) => command.attempts,
            Ask::Read(read) => read.looks(),
        };
        if attempts <= self.config.conflicts_max {
            return Some(ask);
        }
        let why =
            format!("decided {attempts} times, and each time others changed the entity meanwhile");
        self.counters.failed.add(1);
        ask.refuse(StoreError::unavailable(why).into());
        None
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
