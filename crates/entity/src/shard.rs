//! A task that owns a part of the entities: it has one queue and no locks, and handles one entity after the other.
//!
//! The shard works in turns. In each turn it takes what has gathered in its queue, and handles it. At the end of the
//! turn it asks the store to confirm the entities whose answers rest on nothing else, so many reads of one entity share
//! one question. An entity leaves memory when it was not used for long, or when there are too many. The policy is that
//! of `quick_cache` (S3-FIFO; Yang et al., "FIFO queues are all you need for cache eviction", 2023), which a scan over
//! many entities does not empty. An entity with anything in flight is pinned.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use gesta_core::capacity::Capacity;
use gesta_core::{Clock, OwnerStore, StreamId};
use quick_cache::unsync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, UnitWeighter};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::ask::Ask;
use crate::config::Config;
use crate::decider::Decider;
use crate::env::Env;
use crate::forward::Forwarding;
use crate::forward::queue::Queue;
use crate::guard::{Panicked, guarded};
use crate::kind::EntityKind;
use crate::load::Load;
use crate::message::Message;
use crate::slot::{Fate, Slot};
use crate::snapshot::Ready;
use crate::stats::{Counter, Counters};

mod away;

/// The greatest number of messages that are handled in one turn.
const TURN_MAX: usize = 256;

/// The requests for an entity that go to the node that owns its stream.
struct Away<D: Decider> {
    queue: Queue<Ask<D>>,
    /// The moment at which the shard will be woken for the queue, if any.
    wakes_at: Option<Instant>,
}

/// The parts of which a shard is made.
pub(crate) struct ShardParts<D: Decider> {
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

/// The owner of a part of the entities.
pub(crate) struct Shard<D: Decider> {
    slots: Cache<StreamId, Slot<D>, UnitWeighter, DefaultHashBuilder, Passivation>,
    env: Env<D>,
    /// The requests that are on their way to another node, by stream.
    away: HashMap<StreamId, Away<D>>,
    /// The answers of other nodes, and the moments at which to check again.
    awaited: FuturesUnordered<BoxFuture<'static, Message<D>>>,
    /// The streams of `away` for which something was done here.
    touched: Vec<StreamId>,
    waiting: [Arc<Capacity>; 2],
    receiver: mpsc::UnboundedReceiver<Message<D>>,
    stopping: bool,
}

/// What became of a request.
enum Admission<D: Decider> {
    Known(Fate),
    /// The entity was not in memory before; it is being loaded.
    New(Slot<D>),
}

/// The hooks of the cache: they say which entity may leave, and count those that do.
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
    /// Makes a shard that keeps up to `active_max` entities, and the sender of its messages.
    pub(crate) fn new(
        parts: ShardParts<D>,
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
            Some(mut slot) => Admission::Known(slot.ask(&stream, ask, env)),
            None => Admission::New(Slot::load(&stream, VecDeque::from([ask]), env)),
        });
        match asked {
            Ok(Admission::New(slot)) => self.slots.insert(stream, slot),
            Ok(Admission::Known(fate)) => self.settle(&stream, Ok(fate)),
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

    /// Removes an entity that is to leave, or whose code has panicked outside a single command. In the second case the
    /// callers that wait for it get *outcome unknown*, and the next request loads it again.
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

    /// Removes an entity from memory, unless it has anything in flight. Returns whether it has left.
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
    /// Counts the entities of the shard as no longer in memory.
    fn drop(&mut self) {
        for (_, slot) in self.slots.drain() {
            slot.held_by(&self.env.counters).subtract(1);
        }
    }
}
