//! What a shard offers to its entities: the time of the turn, the store, the loader, and the writer of snapshots.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{
    After, Clock, Error as StoreError, EventData, OwnerStore, Revision, StreamId, Submission,
    Timestamp,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::ask::{Ask, CommandAsk};
use crate::config::Config;
use crate::decider::Decider;
use crate::error::Error;
use crate::forward::Forwarding;
use crate::guard::Panicked;
use crate::keys::Bounds;
use crate::kind::EntityKind;
use crate::load::{Load, UseSnapshot};
use crate::message::Message;
use crate::snapshot::{Draft, Ready};
use crate::stats::Counters;

/// How long the keys that nodes have made are remembered, unless a command can be sent again even later.
const MADE_KEPT_FOR: Duration = Duration::from_secs(600);

/// What a shard offers to its entities.
///
/// The struct has more fields than most, because it holds everything that does not belong to one entity. The struct is
/// handed to each entity in turn, so that an entity itself stays small.
pub(crate) struct Env<D: Decider> {
    pub(crate) kind: Arc<EntityKind<D>>,
    pub(crate) config: Arc<Config>,
    pub(crate) counters: Arc<Counters>,
    /// The time of the turn, by the clock of the runtime.
    pub(crate) now: Timestamp,
    /// The time of the turn in milliseconds since the shard was started. This time never goes back.
    pub(crate) now_ms: u64,
    /// The streams of the entities whose last answers wait for a submission that was not made yet.
    pub(crate) unproven: Vec<StreamId>,
    /// The moment of the turn.
    pub(crate) turn: Instant,
    /// The other nodes, if requests go to them.
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    /// The requests that an entity had to give up here because another node owns its stream, oldest first.
    pub(crate) moving: Option<VecDeque<Ask<D>>>,
    pub(crate) store: Arc<dyn OwnerStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: Instant,
    pub(crate) numbers: u64,
    pub(crate) shard: mpsc::UnboundedSender<Message<D>>,
    pub(crate) loads: mpsc::UnboundedSender<Load<D>>,
    pub(crate) snapshots: mpsc::Sender<Ready<D>>,
    /// The times at which to check whether an entity is idle, each with its stream and the number of its stay in
    /// memory.
    pub(crate) idle: VecDeque<(u64, StreamId, u64)>,
}

impl<D: Decider> Env<D> {
    pub(crate) fn look_at_clock(&mut self) {
        self.now = self.clock.now();
        self.turn = Instant::now();
        self.now_ms = millis(self.turn.saturating_duration_since(self.started));
    }

    pub(crate) fn idle_after_ms(&self) -> u64 {
        millis(self.config.idle_after)
    }

    /// Returns the time between two checks of an entity: a quarter of the time after which it is idle.
    pub(crate) fn sweep_every(&self) -> Duration {
        (self.config.idle_after / 4).max(Duration::from_millis(1))
    }

    pub(crate) fn look_later(&mut self, stream: StreamId, stay: u64) {
        let due = self.now_ms + millis(self.sweep_every());
        self.idle.push_back((due, stream, stay));
    }

    /// Returns whether requests for the entity are carried out on this node.
    pub(crate) fn is_here(&self, stream: &StreamId) -> bool {
        let forwarding = self.forwarding.as_ref();
        forwarding.is_none_or(|forwarding| forwarding.is_here(stream))
    }

    /// Notes that an entity was loaded into memory, for a stay of this number.
    pub(crate) fn activated(&mut self, stream: &StreamId, stay: u64) {
        self.counters.loading.subtract(1);
        self.counters.active.add(1);
        self.counters.loads.add(1);
        self.look_later(stream.clone(), stay);
    }

    /// Returns the next number for a submission, a load, or a stay in memory.
    pub(crate) fn next_number(&mut self) -> u64 {
        let number = self.numbers;
        self.numbers += 1;
        number
    }

    /// Returns the number that the next submission, of whichever entity, will get.
    pub(crate) fn coming_number(&self) -> u64 {
        self.numbers
    }

    /// Submits events to the store. Without events this is the owner's question whether `after` holds. Returns the
    /// number of the submission.
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

    /// Notes that a snapshot could not be taken.
    pub(crate) fn leave_out_snapshot(&self, stream: &StreamId, panicked: &Panicked) {
        self.counters.snapshots_left_out.add(1);
        tracing::warn!(%stream, %panicked, "snapshot not taken");
    }

    /// Returns the time of the turn as remembered commands hold it, in milliseconds.
    pub(crate) fn seen_ms(&self) -> i64 {
        i64::try_from(self.now_ms).unwrap_or(i64::MAX)
    }

    /// Returns how many idempotency keys an entity may remember at this moment, and for how long.
    pub(crate) fn key_bounds(&self) -> Bounds {
        let kept = i64::try_from(self.config.keys_kept_for.as_micros()).unwrap_or(i64::MAX);
        let since = |kept: Duration| self.seen_ms().saturating_sub_unsigned(millis(kept));
        // A command that is in doubt is decided at most twice `forward_within` after it was first sent
        // (`slot::command`); the rest is for what the network delays.
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

    /// Refuses a command if the entity has as many commands as it may have already. Returns the request if it is not
    /// refused.
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

    /// Refuses a request that was decided, or has looked, too often. Returns the request if it is not refused.
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
