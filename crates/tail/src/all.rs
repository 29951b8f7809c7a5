//! A subscription to all events. It has a cursor per log, and takes the logs in turns.
//!
//! Invariants: at most one chunk of events is held, and `positions` says for each log up to where everything was
//! *handed over* (or skipped by the filter), so any checkpoint is right. The wake-up is armed before looking, so none
//! is missed.
//!
//! A turn ends at a position that depends on the filter and on where the turn begins, or at the end of the log. Neither
//! a page nor a chunk ends a turn, because where these end depends on how many events match and how large they are. A
//! server gives the events of a subscription to callers who may not see all of them: the order in which logs take turns
//! must tell them nothing of the others. For the same reason checkpoints between events come at multiples of a number
//! of positions, and the message that the subscriber has caught up comes where that is due. The guard of such callers
//! (`crates/access/src/guard/subscription.rs`) relies on all three. Those who see everything read no slower for it: a
//! turn passes at least as many positions as the longest read.

use std::collections::VecDeque;
use std::sync::Arc;

use gesta_core::backend::{History, LogEnd, Purpose};
use gesta_core::{
    CHECKPOINT_POSITIONS_CATCHING_UP, CHECKPOINT_POSITIONS_LIVE, Checkpoint, ErrorKind, Filter,
    Position, Result, SharedEvent, SubscribeFrom, Subscription, SubscriptionMessage, next_multiple,
};
use tokio::sync::watch;

use crate::matcher::Matcher;
use crate::pages::{CatchUp, PAGE_EVENTS_MAX};
use crate::ring::Taken;
use crate::{Membership, Shared, Subscriber, subscription};

/// Number of positions of a turn without a filter, and of any turn while the subscriber is live. It is a multiple of
/// the size of every page of all events, so that a turn cuts none of those that subscribers share.
const TURN_POSITIONS: u64 = PAGE_EVENTS_MAX;
/// Largest number of positions of a turn while the subscriber catches up with a filter. It bounds the turns of filters
/// for which one read may pass any number of positions. Such a read is small beside the thousand checkpoints of a turn.
const TURN_POSITIONS_MAX: u64 = 1_000_000;

/// The part of a subscriber's state that belongs to one log.
struct Cursor {
    generation: u64,
    /// End of the log when the subscriber began, or when its position was last found to lie before the ring.
    target: Position,
    /// Position of the log in the last message that told of it.
    told: Position,
}

/// Events of one log that were taken and are not handed over yet.
#[derive(Default)]
struct Chunk {
    log: usize,
    events: VecDeque<SharedEvent>,
    /// Position up to which every matching event of the log was taken.
    covered: Position,
    /// False once everything was handed over.
    open: bool,
}

struct AllSubscriber {
    hub: Arc<Shared>,
    /// History that the subscriber reads. Its checkpoints carry the incarnation of that history.
    history: History,
    filter: Filter,
    matcher: Matcher,
    pulse: watch::Receiver<u64>,
    positions: Vec<Position>,
    cursors: Vec<Cursor>,
    chunk: Chunk,
    /// Index of the log whose turn it is.
    turn: usize,
    /// Position of that log at which its turn ends.
    turn_end: Position,
    /// Number of positions of a turn while the subscriber catches up.
    turn_positions: u64,
    /// True until the message that the subscriber has caught up is sent.
    catching_up: bool,
    /// True until the message that the subscriber has fallen behind is sent.
    falling_behind: bool,
    catch_up: Option<CatchUp>,
    ended: bool,
    _membership: Membership,
}

pub(crate) async fn subscribe(
    hub: &Arc<Shared>,
    filter: Filter,
    from: SubscribeFrom,
) -> Result<Subscription> {
    subscription(|| begin(hub, &filter, &from)).await
}

/// Finds where the subscriber begins. Returns `None` if the history has changed meanwhile.
async fn begin(
    hub: &Arc<Shared>,
    filter: &Filter,
    from: &SubscribeFrom,
) -> Result<Option<AllSubscriber>> {
    let history = hub.backend.history();
    let logs = u16::try_from(hub.lanes.len()).unwrap_or(u16::MAX);
    let positions = match from {
        SubscribeFrom::Checkpoint(checkpoint) => Some(
            checkpoint
                .positions_for(history.incarnation, logs)?
                .to_vec(),
        ),
        SubscribeFrom::Start | SubscribeFrom::Revision(_) => {
            Some(vec![Position::START; hub.lanes.len()])
        }
        SubscribeFrom::End => None,
    };
    let membership = hub.enter(&hub.lanes);
    let pulse = hub.pulse.subscribe();
    let ends = hub.backend.log_ends(Purpose::Read).await?;
    if hub.backend.history() != history {
        return Ok(None);
    }
    let positions = positions.unwrap_or_else(|| ends.iter().map(|end| end.position).collect());
    check_not_above(&positions, &ends)?;
    let cursors = hub.lanes.iter().zip(&ends).zip(&positions);
    let cursors: Option<Vec<Cursor>> = cursors
        .map(|((lane, end), position)| {
            Some(Cursor {
                generation: lane.awaken(history.number, end)?,
                target: end.position,
                told: *position,
            })
        })
        .collect();
    let Some(cursors) = cursors else {
        return Ok(None);
    };
    let mut subscriber = AllSubscriber {
        history,
        matcher: Matcher::new(filter),
        filter: filter.clone(),
        pulse,
        positions,
        cursors,
        chunk: Chunk::default(),
        turn: 0,
        turn_end: Position::START,
        turn_positions: match filter.is_all() {
            true => TURN_POSITIONS,
            // As many as one read passes if it finds little.
            false => filter.scan_max().min(TURN_POSITIONS_MAX),
        },
        catching_up: true,
        falling_behind: false,
        catch_up: None,
        ended: false,
        _membership: membership,
        hub: Arc::clone(hub),
    };
    subscriber.begin_turn(0);
    Ok(Some(subscriber))
}

fn check_not_above(positions: &[Position], ends: &[LogEnd]) -> Result<()> {
    for (log, (position, end)) in positions.iter().zip(ends).enumerate() {
        if *position > end.position {
            return Err(ErrorKind::InvalidCheckpoint(format!(
                "position {position} of log {log} is above its end {}",
                end.position
            ))
            .into());
        }
    }
    Ok(())
}

impl Subscriber for AllSubscriber {
    async fn next(&mut self) -> Option<Result<SubscriptionMessage>> {
        while !self.ended {
            if std::mem::take(&mut self.falling_behind) {
                let message = SubscriptionMessage::FellBehind(self.checkpoint());
                return Some(Ok(message));
            }
            if let Some(message) = self.hand_over() {
                return Some(Ok(message));
            }
            // Boxed: the common way out is above, and need not carry the reads along.
            match Box::pin(self.look()).await {
                Ok(Some(message)) => return Some(Ok(message)),
                Ok(None) => {}
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error.during("subscription")));
                }
            }
        }
        None
    }
}

impl AllSubscriber {
    /// Makes the next message of the events that were taken; `None` if no message is left in them.
    fn hand_over(&mut self) -> Option<SubscriptionMessage> {
        if !self.chunk.open {
            return None;
        }
        while let Some(event) = self.chunk.events.front() {
            let position = event.position;
            let matches = self.matcher.matches(event);
            let skipped_to = if matches {
                Position(position.0.saturating_sub(1))
            } else {
                position
            };
            if let Some(checkpoint) = self.skip_to(skipped_to) {
                return Some(checkpoint);
            }
            let event = self.chunk.events.pop_front();
            if let (true, Some(event)) = (matches, event) {
                self.arrive_at(position);
                self.tell(position);
                let checkpoint = self.checkpoint();
                return Some(SubscriptionMessage::Event { event, checkpoint });
            }
        }
        if let Some(checkpoint) = self.skip_to(self.chunk.covered) {
            return Some(checkpoint);
        }
        self.chunk.open = false;
        None
    }

    /// Moves on to `position` over places without an event to hand over. At the first one that must be told of it stops
    /// and returns a checkpoint. The caller must call again until there is none.
    fn skip_to(&mut self, position: Position) -> Option<SubscriptionMessage> {
        let told = self.cursors.get(self.chunk.log)?.told;
        if position <= told {
            return None;
        }
        let step = if self.catching_up {
            CHECKPOINT_POSITIONS_CATCHING_UP
        } else {
            CHECKPOINT_POSITIONS_LIVE
        };
        let stop = next_multiple(told, step);
        if position < stop {
            self.arrive_at(position);
            return None;
        }
        self.arrive_at(stop);
        self.tell(stop);
        Some(SubscriptionMessage::Checkpoint(self.checkpoint()))
    }

    fn arrive_at(&mut self, position: Position) {
        if let Some(at) = self.positions.get_mut(self.chunk.log) {
            *at = position.max(*at);
        }
    }

    fn tell(&mut self, position: Position) {
        if let Some(cursor) = self.cursors.get_mut(self.chunk.log) {
            cursor.told = position;
        }
    }

    fn checkpoint(&self) -> Checkpoint {
        Checkpoint::logs(self.history.incarnation, self.positions.clone())
    }

    /// Takes the next events, and waits for them if there are none.
    async fn look(&mut self) -> Result<Option<SubscriptionMessage>> {
        // A busy subscriber lets the others have their turn.
        tokio::task::coop::consume_budget().await;
        loop {
            self.hub.check_open()?;
            self.hub.check_history(self.history)?;
            self.pulse.borrow_and_update();
            if self.find().await? {
                return Ok(None);
            }
            // What others have committed comes into the ring with their messages, or with the poll.
            if self.catching_up && self.has_reached_targets() {
                return Ok(Some(self.caught_up()));
            }
            // The sender lives in the hub's shared part, which this reader holds.
            let _ = self.pulse.changed().await;
        }
    }

    /// Takes the next chunk of the log whose turn it is, or of the first one after it that has one, or reads it.
    /// Returns false if all logs are at their end.
    async fn find(&mut self) -> Result<bool> {
        if self.catching_up && self.has_reached_targets() {
            return Ok(false);
        }
        let logs = self.cursors.len();
        if self.positions[self.turn] >= self.turn_end {
            self.begin_turn((self.turn + 1) % logs);
        }
        for _ in 0..logs {
            let log = self.turn;
            let (lane, position) = (&self.hub.lanes[log], self.positions[log]);
            let Cursor {
                generation, target, ..
            } = self.cursors[log];
            let to = match self.catching_up && position < target {
                true => self.turn_end.min(target),
                false => self.turn_end,
            };
            match lane.take(generation, position, &mut self.chunk.events)? {
                Taken::Nothing => {
                    self.begin_turn((log + 1) % logs);
                    continue;
                }
                Taken::Events(covered) => self.open_chunk(log, covered, to),
                // The subscriber is told so before what it has missed is read.
                Taken::BeforeRing(_) if !self.catching_up => {
                    self.begin_catch_up(log);
                    self.falling_behind = true;
                }
                Taken::BeforeRing(ring) => self.read(log, ring, to).await?,
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Begins the turn of a log.
    fn begin_turn(&mut self, log: usize) {
        let positions = match self.catching_up {
            true => self.turn_positions,
            false => TURN_POSITIONS,
        };
        self.turn = log;
        self.turn_end = match self.positions.len() {
            // The only log passes its turn to nobody.
            1 => Position(u64::MAX),
            _ => next_multiple(self.positions[log], positions),
        };
    }

    /// Returns true if everything that was there at the beginning has been handed over, and what follows is in the
    /// rings.
    fn has_reached_targets(&self) -> bool {
        let places = self
            .hub
            .lanes
            .iter()
            .zip(&self.cursors)
            .zip(&self.positions);
        places
            .into_iter()
            .all(|((lane, cursor), at)| *at >= cursor.target && lane.reaches(*at))
    }

    /// Makes a chunk of the events that were taken, up to position `to` at most. They are all that match up to
    /// `covered`.
    fn open_chunk(&mut self, log: usize, covered: Position, to: Position) {
        let events = &mut self.chunk.events;
        while events.back().is_some_and(|event| event.position > to) {
            events.pop_back();
        }
        self.chunk.log = log;
        self.chunk.covered = covered.min(to);
        self.chunk.open = true;
    }

    /// Reads the next page of events before the ring, which begins after `ring`, and makes a chunk of it, up to `to`.
    async fn read(&mut self, log: usize, ring: Position, to: Position) -> Result<()> {
        self.begin_catch_up(log);
        let lane = &self.hub.lanes[log];
        let (pages, position) = (&self.hub.pages, self.positions[log]);
        let generation = self.cursors[log].generation;
        let page = if self.matcher.is_all() {
            pages.all(lane.log, generation, position, ring).await?
        } else {
            pages
                .matching(lane.log, position, ring.min(to), &self.filter)
                .await?
        };
        // What was read, and the ring's beginning up to which it was read, are of this history.
        self.hub.check_history(self.history)?;
        lane.check(generation)?;
        self.chunk.events.extend(page.events.iter().cloned());
        self.open_chunk(log, page.covered, to);
        Ok(())
    }

    fn begin_catch_up(&mut self, log: usize) {
        if !self.catching_up {
            self.catching_up = true;
            let cursors = self.cursors.iter_mut().zip(&self.hub.lanes);
            for ((cursor, lane), at) in cursors.zip(&self.positions) {
                cursor.target = lane.end();
                // The message that the subscriber has fallen behind tells of it.
                cursor.told = *at;
            }
        } else if self.positions[log] >= self.cursors[log].target {
            self.cursors[log].target = self.hub.lanes[log].end();
        }
        if self.catch_up.is_none() {
            self.catch_up = Some(self.hub.pages.begin_catch_up());
        }
    }

    fn caught_up(&mut self) -> SubscriptionMessage {
        self.catching_up = false;
        self.catch_up = None;
        for (cursor, at) in self.cursors.iter_mut().zip(&self.positions) {
            cursor.told = *at;
        }
        // Turns are shorter from now on.
        self.begin_turn(self.turn);
        SubscriptionMessage::CaughtUp(self.checkpoint())
    }
}
