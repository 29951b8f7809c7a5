//! The decisions of a group: which consumer gets which event, what is delivered again, what is parked, and how far the
//! group has come.
//!
//! The machine does no I/O and has no clock. The task around it tells what happened and when, and asks what is to be
//! done: reads while [`Machine::wants_event`], deliveries of [`Machine::dispatch`], parked events to store of
//! [`Machine::next_park`], and checkpoints of [`Machine::begin_checkpoint`].
//!
//! Invariants:
//! * an event is held here from when it was read until it is finished: acknowledged, skipped, or stored as parked;
//! * [`Machine::low`] never passes an event that is not finished;
//! * events wait up to the sizes of the settings; all that are held have at most [`Limits::held_bytes_max`] bytes, and
//!   those of one event beyond;
//! * an event is held by one consumer at most, and a consumer holds no more events than it asked for.
//!
//! Replays of parked events are a second lane of the same kind: they are delivered before other events, and the parked
//! stream is truncated up to the oldest that is not finished, so that a replay that is cut short loses nothing.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::{Moment, SharedEvent};

mod answers;
mod consumers;
mod counts;
mod lane;
mod pin;
mod progress;

pub use answers::{Action, FailedBy, ParkOrder, REASON_CHARS_MAX};
pub use consumers::{ConsumerCounts, ConsumerId, Which};
pub use counts::Counts;

use consumers::{Consumers, Doubt};
use lane::Lane;
use progress::Progress;

use crate::mark::Mark;
use crate::settings::{CONSUMER_EVENTS_MAX, Settings};

/// The number of an event that a group holds. Numbers only grow, and begin at 0 with each run of the group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// What a group may hold, beside the sizes in its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of held events from which on the group reads no more.
    pub held_bytes_max: usize,
}

/// Why a consumer cannot join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The group has as many consumers as it may have.
    #[error("the group has {max} consumers, as many as it may have")]
    Full {
        /// Most consumers that the group may have.
        max: usize,
    },
    /// The consumer asks for a number of events that is out of range.
    #[error("buffer must be 1 to {CONSUMER_EVENTS_MAX}, found {found}")]
    Buffer {
        /// Number of events that the consumer asked for.
        found: u32,
    },
    /// There is a consumer with this number already.
    #[error("consumer {0} is in the group already")]
    Twice(ConsumerId),
}

/// The error of a replay that was asked for while parked events are being delivered again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("parked events of the group are being replayed already")]
pub struct ReplayRunning;

/// An event on its way to a consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Consumer to which the event goes.
    pub consumer: ConsumerId,
    /// Number of the event in the group.
    pub token: Token,
    /// The event.
    pub event: SharedEvent,
    /// How many earlier deliveries of the event failed.
    pub retries: u32,
}

/// Where an event came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The event stands at this place of the source.
    Source(u64),
    /// The event was parked at this revision of the parked stream, and is replayed.
    Parked(u64),
}

/// When the time for a delivery is over. Of several at the same time the one that was delivered first comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Deadline {
    at: Moment,
    /// Number of the delivery among all of the group.
    delivery: u64,
}

#[derive(Debug)]
enum State {
    Waiting,
    Sent {
        consumer: ConsumerId,
        deadline: Option<Deadline>,
    },
    Parking,
}

#[derive(Debug)]
struct Item {
    event: SharedEvent,
    origin: Origin,
    bytes: usize,
    retries: u32,
    pin: u16,
    state: State,
    /// The last delivery, if it was not answered in time and is in doubt.
    in_doubt: Option<(ConsumerId, Doubt)>,
}

/// The decisions of one group.
///
/// It has more fields than most structs: each event is in one of its queues, and what it moves through (consumers,
/// lanes, progress) is a type of its own.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    limits: Limits,
    items: HashMap<Token, Item>,
    next_token: u64,
    /// Events that wait to be delivered again, or are replayed. They are delivered before the events of `fresh`.
    again: VecDeque<Token>,
    /// Events that wait to be delivered for the first time.
    fresh: VecDeque<Token>,
    to_park: VecDeque<(Token, String)>,
    deadlines: BTreeSet<(Deadline, Token)>,
    consumers: Consumers,
    source: Lane,
    checkpoints: Progress,
    parked: Lane,
    truncations: Progress,
    /// Range of the revisions of parked events that are still to be read for the present replay.
    replay: Option<Range<u64>>,
    held_bytes: usize,
    caught_up: bool,
    counts: Counts,
}

impl Machine {
    /// Makes the machine of a group that has finished everything in its source before `from`, and everything in its
    /// parked stream before `parked_from`.
    #[must_use]
    pub fn new(
        settings: Settings,
        limits: Limits,
        from: u64,
        parked_from: u64,
        now: Moment,
    ) -> Self {
        let max = settings.consumers_max();
        Self {
            consumers: Consumers::new(settings.strategy, max, settings.extra_statistics),
            checkpoints: Progress::new(&settings, from, now),
            truncations: Progress::new(&settings, parked_from, now),
            source: Lane::new(from),
            parked: Lane::new(parked_from),
            items: HashMap::new(),
            next_token: 0,
            again: VecDeque::new(),
            fresh: VecDeque::new(),
            to_park: VecDeque::new(),
            deadlines: BTreeSet::new(),
            replay: None,
            held_bytes: 0,
            caught_up: false,
            counts: Counts::default(),
            settings,
            limits,
        }
    }

    /// Returns true if the next event of the source is to be read.
    #[must_use]
    pub fn wants_event(&self) -> bool {
        let max = if self.caught_up {
            self.settings.live_buffer_size
        } else {
            self.settings.history_buffer_size
        };
        self.has_room(max)
    }

    fn has_room(&self, events_max: u32) -> bool {
        let waiting = self.fresh.len() + self.again.len() + self.to_park.len();
        !self.consumers.is_empty()
            && u32::try_from(waiting).is_ok_and(|waiting| waiting < events_max)
            && self.held_bytes < self.limits.held_bytes_max
    }

    /// Takes the next event of the source, which has this revision or position. An event that was read before is passed
    /// over.
    pub fn event(&mut self, place: u64, event: SharedEvent) {
        if self.source.open(place, Some(Mark::new(place, &event))) {
            let token = self.hold(event, Origin::Source(place));
            self.fresh.push_back(token);
        }
    }

    /// Notes which event stands before the place at which the group begins.
    pub(crate) fn begins_after(&mut self, mark: Option<Mark>) {
        self.source.begins_after(mark);
    }

    /// Returns the last event before [`Machine::low`] that was read.
    pub(crate) fn low_mark(&self) -> Option<Mark> {
        self.source.low_mark()
    }

    /// Returns the event that was read last.
    pub(crate) fn last_mark(&self) -> Option<Mark> {
        self.source.last_mark()
    }

    /// Notes that the source has nothing for the group up to and including this place.
    pub fn nothing_up_to(&mut self, place: u64) {
        if self.source.skip(place) {
            self.checkpoints.finished();
        }
    }

    /// Notes that the event at this place is not for the group. Unlike after [`Machine::nothing_up_to`] that is no
    /// progress that is worth a checkpoint: otherwise the checkpoints of a group on all events would cause further
    /// checkpoints.
    pub fn ignore(&mut self, place: u64) {
        self.source.skip(place);
    }

    /// Notes that the source was read up to its present end.
    pub fn caught_up(&mut self) {
        self.caught_up = true;
    }

    fn hold(&mut self, event: SharedEvent, origin: Origin) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        let item = Item {
            bytes: event.cost_bytes(),
            pin: pin::of(self.settings.strategy, &event),
            event,
            origin,
            retries: 0,
            state: State::Waiting,
            in_doubt: None,
        };
        self.held_bytes += item.bytes;
        self.items.insert(token, item);
        token
    }

    /// Adds a consumer, which may hold `buffer` events at once.
    ///
    /// # Errors
    /// [`Refused`] if the consumer cannot join; then nothing has changed.
    pub fn join(&mut self, consumer: ConsumerId, buffer: u32) -> Result<(), Refused> {
        self.consumers.join(consumer, buffer)
    }

    /// Lets the group wait at least so long for an answer of this consumer, whatever its settings say.
    pub fn set_patience(&mut self, consumer: ConsumerId, patience: Duration) {
        self.consumers.set_patience(consumer, patience);
    }

    /// Returns a consumer that has to leave ([`Machine::part_with`]): all that it held has gone unanswered, twice in a
    /// row.
    #[must_use]
    pub fn silent(&self) -> Option<ConsumerId> {
        self.consumers.silent()
    }

    /// Returns true if this consumer is in the group.
    #[must_use]
    pub fn knows(&self, consumer: ConsumerId) -> bool {
        self.consumers.knows(consumer)
    }

    /// Shares out the events that wait, as far as consumers have room, and returns the deliveries.
    pub fn dispatch(&mut self, now: Moment) -> Vec<Sent> {
        let mut sent = Vec::new();
        let again = std::mem::take(&mut self.again);
        self.again = self.share_out(again, now, &mut sent);
        let fresh = std::mem::take(&mut self.fresh);
        self.fresh = self.share_out(fresh, now, &mut sent);
        sent
    }

    /// Shares out the events of a queue, and returns those that are left of it.
    fn share_out(
        &mut self,
        mut queue: VecDeque<Token>,
        now: Moment,
        sent: &mut Vec<Sent>,
    ) -> VecDeque<Token> {
        let mut left = VecDeque::new();
        while self.consumers.any_has_room() {
            let Some(token) = queue.pop_front() else {
                break;
            };
            match self.send(token, now) {
                Some(one) => sent.push(one),
                None => left.push_back(token),
            }
        }
        if left.is_empty() {
            return queue;
        }
        left.append(&mut queue);
        left
    }

    fn send(&mut self, token: Token, now: Moment) -> Option<Sent> {
        let item = self.items.get_mut(&token)?;
        let consumer = self.consumers.give(token, item.event.id, item.pin, now)?;
        let patience = self.consumers.patience(consumer);
        let timeout = self.settings.message_timeout();
        let timeout = timeout.map(|timeout| timeout.max(patience));
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        self.counts.delivered += 1;
        let delivery = self.counts.delivered;
        let deadline = deadline.map(|at| Deadline { at, delivery });
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, token));
        }
        item.state = State::Sent { consumer, deadline };
        self.counts.redelivered += u64::from(item.retries > 0);
        Some(Sent {
            consumer,
            token,
            event: Arc::clone(&item.event),
            retries: item.retries,
        })
    }

    /// Finishes an event: the group holds it no more.
    fn finish(&mut self, token: Token) {
        let Some(item) = self.items.remove(&token) else {
            return;
        };
        self.held_bytes -= item.bytes;
        match item.origin {
            Origin::Source(place) => {
                self.source.finish(place);
                self.checkpoints.finished();
            }
            Origin::Parked(place) => {
                self.parked.finish(place);
                self.truncations.finished();
            }
        }
    }

    /// Returns the place below which everything in the source is finished.
    #[must_use]
    pub fn low(&self) -> u64 {
        self.source.low()
    }

    /// Returns the place below which everything in the source was read.
    #[must_use]
    pub fn read_to(&self) -> u64 {
        self.source.next()
    }

    /// Begins a checkpoint if it is time to write one. Returns the place below which everything is finished, which the
    /// caller is to write. One write is under way at a time.
    pub fn begin_checkpoint(&mut self, now: Moment) -> Option<u64> {
        self.checkpoints.begin(self.source.low(), now)
    }

    /// Begins the last checkpoint before the group stops, whether it is time or not. It returns what
    /// [`Machine::begin_checkpoint`] returns.
    pub fn begin_last_checkpoint(&mut self, now: Moment) -> Option<u64> {
        self.checkpoints.begin_at_once(self.source.low(), now)
    }

    /// Returns true if the group holds an event of which a delivery has failed.
    #[must_use]
    pub fn has_failed_tries(&self) -> bool {
        self.items.values().any(|item| item.retries > 0)
    }

    /// Notes that the checkpoint that was begun is stored.
    pub fn checkpoint_written(&mut self) {
        self.checkpoints.wrote();
    }

    /// Returns the checkpoint that was stored last.
    #[must_use]
    pub fn checkpoint(&self) -> u64 {
        self.checkpoints.written()
    }

    /// Begins to deliver the parked events before this revision of the parked stream again.
    ///
    /// # Errors
    /// [`ReplayRunning`] until the events of the last replay are finished.
    pub fn replay(&mut self, until: u64) -> Result<(), ReplayRunning> {
        if self.replay.is_some() || self.parked.low() < self.parked.next() {
            return Err(ReplayRunning);
        }
        let from = self.parked.next();
        self.replay = (from < until).then_some(from..until);
        Ok(())
    }

    /// Returns the revisions of the parked events to read next, if some are to be replayed and there is room.
    #[must_use]
    pub fn wants_parked(&self) -> Option<Range<u64>> {
        let room = self.has_room(self.settings.history_buffer_size);
        self.replay.clone().filter(|_| room)
    }

    /// Takes the next parked event to be replayed, or `None` if the event that was parked there does not exist any
    /// more.
    pub fn parked_event(&mut self, revision: u64, event: Option<SharedEvent>) {
        match event {
            Some(event) if self.parked.open(revision, None) => {
                let token = self.hold(event, Origin::Parked(revision));
                self.again.push_back(token);
                self.counts.replayed += 1;
            }
            Some(_) => {}
            None => {
                self.parked.skip(revision);
                self.truncations.finished();
            }
        }
        self.replay_is_at(revision.saturating_add(1));
    }

    /// Notes that nothing is left to replay before this revision of the parked stream.
    pub fn replay_is_at(&mut self, revision: u64) {
        if let Some(range) = &mut self.replay {
            range.start = range.start.max(revision);
            if range.is_empty() {
                self.replay = None;
            }
        }
    }

    /// Begins a truncation of the parked stream if it is time for one. Returns the revision with which the parked
    /// stream is to begin from now on.
    pub fn begin_truncation(&mut self, now: Moment) -> Option<u64> {
        let low = self.parked.low();
        if self.replay.is_none() && low == self.parked.next() {
            return self.truncations.begin_at_once(low, now);
        }
        self.truncations.begin(low, now)
    }

    /// Notes that the truncation that was begun is stored.
    pub fn truncation_written(&mut self) {
        self.truncations.wrote();
    }

    /// Returns the revision with which the parked stream begins.
    #[must_use]
    pub fn parked_from(&self) -> u64 {
        self.truncations.written()
    }

    /// Returns when the machine must be asked again at the latest, because the time of a consumer is over or a
    /// checkpoint or a truncation is due; `None` if no time is set.
    #[must_use]
    pub fn wake_at(&self) -> Option<Moment> {
        let deadline = self.deadlines.first().map(|(deadline, _)| deadline.at);
        let checkpoint = self.checkpoints.wake_at(self.source.low());
        let truncation = self.truncations.wake_at(self.parked.low());
        deadline
            .into_iter()
            .chain(checkpoint)
            .chain(truncation)
            .min()
    }
}
