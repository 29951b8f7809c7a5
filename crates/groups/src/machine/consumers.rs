//! The consumers of a group: how much each may still get, what it holds, and which of them gets an event.
//!
//! Invariants: a consumer never holds more events than it asked for. It never holds two events with one id, because it
//! may answer by id, and ids are unique within a stream only.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Refused, Token};
use crate::settings::{CONSUMER_EVENTS_MAX, Strategy};
use gesta_core::{EventId, Moment};

/// Number of classes of pinned events. Each class belongs to one consumer.
pub(super) const PINS: u16 = 1_024;
/// How many times in a row all that a consumer holds may go unanswered before the consumer has to leave.
const SILENT_ROUNDS_MAX: u8 = 2;
/// Most deliveries that are in doubt of one consumer. Those beyond have not failed.
const DOUBTED_MAX: usize = 10_000;
/// How many of its latest times to answer are kept of a consumer, if they are measured.
const LATENCIES_MAX: usize = 1_000;

/// The random number by which a consumer of a group is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConsumerId(pub Uuid);

impl fmt::Display for ConsumerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How an answer names the event for which it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Which {
    /// The answer names the event by its number in the group. This is exact.
    Delivery(Token),
    /// The answer names the event by its id, as some clients do. Events of two streams may have one id. If the consumer
    /// holds the other event by then, an answer that comes too late is taken for that one.
    Event(EventId),
}

/// What one consumer has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerCounts {
    /// Number of the consumer.
    pub consumer: ConsumerId,
    /// Most events that the consumer may hold at once.
    pub buffer: u32,
    /// Number of events that the consumer holds.
    pub in_flight: usize,
    /// Number of events that were delivered to the consumer.
    pub delivered: u64,
    /// Latest times of the consumer from delivery to answer, sorted; empty unless they are measured.
    pub latencies: Vec<Duration>,
}

#[derive(Debug)]
struct Member {
    id: ConsumerId,
    buffer: u32,
    holds: HashMap<Token, Held>,
    by_id: HashMap<EventId, Token>,
    delivered: u64,
    /// How long the group waits for an answer at least, whatever its settings say.
    patience: Duration,
    /// Number of deliveries before the last answer.
    delivered_before_answer: u64,
    /// Number of the delivery with whose time all is unanswered that the consumer held when the first of it was;
    /// `None` as long as nothing is.
    round_end: Option<u64>,
    /// How many times in a row all that the consumer held was unanswered.
    silent_rounds: u8,
    /// Number of the last delivery for which the consumer has answered.
    answered: u64,
    /// Deliveries that were not answered in time, in their order. Whether they failed is not known until the consumer
    /// answers for a later one, or is gone.
    doubted: Vec<Doubt>,
    /// Events that were in doubt, and whose deliveries have failed.
    passed_over: Vec<Token>,
    latencies: VecDeque<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    event: EventId,
    since: Moment,
    /// Number of the delivery among those to this consumer, from 1.
    number: u64,
}

/// A delivery that was not answered in time, and of which it is not known whether it has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Doubt {
    number: u64,
    token: Token,
    event: EventId,
}

impl Member {
    /// Notes for which delivery the consumer has answered. `held` is that delivery if the consumer holds the event.
    ///
    /// Consumers work in the order in which they get events, as far as anybody can tell. An event that was delivered
    /// twice is answered for its first delivery, which is in doubt. An answer that fits nothing is taken for one to the
    /// first delivery that is in doubt, unless it names a delivery by its number: that is exact, and tells nothing of
    /// others.
    fn has_answered(&mut self, which: Which, held: Option<Held>) {
        let is_meant = |doubt: &&Doubt| match which {
            Which::Delivery(token) => doubt.token == token,
            Which::Event(event) => doubt.event == event,
        };
        let late = self.doubted.iter().find(is_meant).copied();
        let answered = match (late, held, which) {
            (Some(late), ..) => late.number,
            (None, Some(held), _) => held.number,
            (None, None, Which::Event(_)) => self.doubted.first().map_or(0, |first| first.number),
            (None, None, Which::Delivery(_)) => 0,
        };
        self.answered = self.answered.max(answered);
        let passed = self
            .doubted
            .partition_point(|doubt| doubt.number <= answered);
        let passed = self.doubted.drain(..passed);
        // What is answered while it is held has not failed, even if an earlier delivery was not answered in time.
        let has_failed = |doubt: &Doubt| held.is_none() || Some(*doubt) != late;
        let failed = passed.filter(has_failed).map(|doubt| doubt.token);
        self.passed_over.extend(failed);
    }

    /// Notes that the time of a delivery is over.
    fn was_silent(&mut self, number: u64) {
        let end = *self.round_end.get_or_insert(self.delivered);
        if number >= end {
            self.round_end = None;
            self.silent_rounds = self.silent_rounds.saturating_add(1);
        }
    }

    fn has_room(&self) -> bool {
        u32::try_from(self.holds.len()).is_ok_and(|held| held < self.buffer)
    }

    fn takes(&self, event: EventId) -> bool {
        self.has_room() && !self.by_id.contains_key(&event)
    }
}

/// What a consumer leaves that is removed.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Events that it held, in the order in which it got them.
    pub(super) held: Vec<Token>,
    /// The first event for which it did not answer in time, and that it has not passed over either.
    pub(super) first_doubted: Option<Token>,
}

#[derive(Debug)]
pub(super) struct Consumers {
    /// The consumers in the order in which they joined.
    members: Vec<Member>,
    strategy: Strategy,
    max: usize,
    /// Index of the consumer whose turn it is.
    turn: usize,
    /// Index of the consumer of each class of pinned events, as far as it was asked for since a consumer joined or
    /// left.
    pinned: HashMap<u16, usize>,
    with_room: usize,
    measures: bool,
}

impl Consumers {
    pub(super) fn new(strategy: Strategy, max: usize, measures: bool) -> Self {
        Self {
            members: Vec::new(),
            strategy,
            max,
            turn: 0,
            pinned: HashMap::new(),
            with_room: 0,
            measures,
        }
    }

    pub(super) fn join(&mut self, id: ConsumerId, buffer: u32) -> Result<(), Refused> {
        if self.members.len() >= self.max {
            return Err(Refused::Full { max: self.max });
        }
        if !(1..=CONSUMER_EVENTS_MAX).contains(&buffer) {
            return Err(Refused::Buffer { found: buffer });
        }
        if self.find(id).is_some() {
            return Err(Refused::Twice(id));
        }
        self.members.push(Member {
            id,
            buffer,
            holds: HashMap::new(),
            by_id: HashMap::new(),
            delivered: 0,
            patience: Duration::ZERO,
            delivered_before_answer: 0,
            round_end: None,
            silent_rounds: 0,
            answered: 0,
            doubted: Vec::new(),
            passed_over: Vec::new(),
            latencies: VecDeque::new(),
        });
        self.with_room += 1;
        self.pinned.clear();
        Ok(())
    }

    /// Removes a consumer, and returns what it leaves.
    pub(super) fn leave(&mut self, id: ConsumerId) -> Left {
        let Some(at) = self.find(id) else {
            return Left::default();
        };
        let member = self.members.remove(at);
        if at < self.turn {
            self.turn -= 1;
        }
        self.with_room -= usize::from(member.has_room());
        self.pinned.clear();
        let mut held: Vec<(Token, Held)> = member.holds.into_iter().collect();
        held.sort_unstable_by_key(|(_, held)| held.number);
        Left {
            held: held.into_iter().map(|(token, _)| token).collect(),
            first_doubted: member.doubted.first().map(|doubt| doubt.token),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn any_has_room(&self) -> bool {
        self.with_room > 0
    }

    /// Gives an event to a consumer that may have it. Returns that consumer; `None` if there is none.
    pub(super) fn give(
        &mut self,
        token: Token,
        event: EventId,
        pin: u16,
        now: Moment,
    ) -> Option<ConsumerId> {
        let at = match self.strategy {
            Strategy::RoundRobin => self.next_in_turn(event)?,
            Strategy::DispatchToSingle => self.members.iter().position(|m| m.takes(event))?,
            Strategy::Pinned | Strategy::PinnedByCorrelation => self.pinned_to(pin)?,
        };
        let member = self.members.get_mut(at).filter(|m| m.takes(event))?;
        member.delivered += 1;
        let held = Held {
            event,
            since: now,
            number: member.delivered,
        };
        member.holds.insert(token, held);
        member.by_id.insert(event, token);
        self.with_room -= usize::from(!member.has_room());
        Some(member.id)
    }

    fn next_in_turn(&mut self, event: EventId) -> Option<usize> {
        let count = self.members.len();
        let from = self.turn;
        let at = (0..count)
            .map(|step| (from + step) % count)
            .find(|at| self.members[*at].takes(event))?;
        self.turn = (at + 1) % count;
        Some(at)
    }

    /// Returns the index of the consumer of a class. It is the consumer with the greatest hash of the class, so that of
    /// two sets of consumers that differ in one the fewest classes move (rendezvous hashing; Thaler and Ravishankar,
    /// 1998).
    fn pinned_to(&mut self, pin: u16) -> Option<usize> {
        if let Some(at) = self.pinned.get(&pin) {
            return Some(*at);
        }
        let weight = |member: &Member| {
            let (high, low) = member.id.0.as_u64_pair();
            xxh3_64_with_seed(&pin.to_be_bytes(), high ^ low)
        };
        let heaviest = self
            .members
            .iter()
            .enumerate()
            .max_by_key(|(_, m)| weight(m));
        let (at, _) = heaviest?;
        self.pinned.insert(pin, at);
        Some(at)
    }

    /// Takes an event back from a consumer that answers for it; returns `None` if the consumer does not hold it.
    /// Earlier deliveries that are in doubt have failed: [`Consumers::passed_over`] returns them.
    pub(super) fn take(&mut self, id: ConsumerId, which: Which, now: Moment) -> Option<Token> {
        let at = self.find(id)?;
        let token = match which {
            Which::Delivery(token) => Some(token),
            Which::Event(event) => self.members.get(at)?.by_id.get(&event).copied(),
        };
        let held = token.and_then(|token| self.remove(at, token));
        let member = self.members.get_mut(at)?;
        member.has_answered(which, held);
        if self.measures
            && let Some(held) = held
        {
            member.latencies.truncate(LATENCIES_MAX - 1);
            let latency = now.since(held.since);
            member.latencies.push_front(latency);
        }
        held.and(token)
    }

    /// Returns the events in doubt that consumer has passed over with its answers since this was asked last: their
    /// deliveries have failed.
    pub(super) fn passed_over(&mut self, id: ConsumerId) -> Vec<Token> {
        let at = self.find(id);
        let member = at.and_then(|at| self.members.get_mut(at));
        member.map_or_else(Vec::new, |member| std::mem::take(&mut member.passed_over))
    }

    fn remove(&mut self, at: usize, token: Token) -> Option<Held> {
        let member = self.members.get_mut(at)?;
        let had_room = member.has_room();
        let held = member.holds.remove(&token)?;
        member.by_id.remove(&held.event);
        self.with_room += usize::from(!had_room);
        Some(held)
    }

    /// Takes an event back from a consumer that has not answered for it in time. Returns the delivery if it is in
    /// doubt; `None` if it has failed, since the consumer has answered for a later one.
    pub(super) fn expire(&mut self, id: ConsumerId, token: Token) -> Option<Doubt> {
        let at = self.find(id)?;
        let held = self.remove(at, token)?;
        let member = self.members.get_mut(at)?;
        if held.number > member.delivered_before_answer {
            member.was_silent(held.number);
        }
        let Held { event, number, .. } = held;
        (number > member.answered).then_some(Doubt {
            number,
            token,
            event,
        })
    }

    /// Notes that it is not known whether a delivery to this consumer has failed. Of several deliveries of one event
    /// the first counts.
    pub(super) fn doubt(&mut self, id: ConsumerId, doubt: Doubt) {
        let Some(at) = self.find(id) else {
            return;
        };
        let doubted = &mut self.members[at].doubted;
        if doubted.len() < DOUBTED_MAX && doubted.iter().all(|known| known.token != doubt.token) {
            // Deliveries come in their order, unless the consumer was given more time in between.
            let at = doubted.partition_point(|known| known.number < doubt.number);
            doubted.insert(at, doubt);
        }
    }

    /// Notes that a consumer was heard, whatever it said.
    pub(super) fn heard(&mut self, id: ConsumerId) {
        if let Some(at) = self.find(id) {
            let member = &mut self.members[at];
            member.delivered_before_answer = member.delivered;
            member.round_end = None;
            member.silent_rounds = 0;
        }
    }

    /// Returns a consumer that has answered for nothing that it held, twice in a row.
    pub(super) fn silent(&self) -> Option<ConsumerId> {
        let is_silent = |member: &&Member| member.silent_rounds >= SILENT_ROUNDS_MAX;
        self.members.iter().find(is_silent).map(|member| member.id)
    }

    /// Sets how long the group waits at least for an answer of this consumer.
    pub(super) fn set_patience(&mut self, id: ConsumerId, patience: Duration) {
        if let Some(at) = self.find(id) {
            self.members[at].patience = patience;
        }
    }

    pub(super) fn patience(&self, id: ConsumerId) -> Duration {
        let member = self.find(id).and_then(|at| self.members.get(at));
        member.map_or(Duration::ZERO, |member| member.patience)
    }

    pub(super) fn knows(&self, id: ConsumerId) -> bool {
        self.find(id).is_some()
    }

    pub(super) fn counts(&self) -> Vec<ConsumerCounts> {
        let counts = |member: &Member| {
            let mut latencies: Vec<Duration> = member.latencies.iter().copied().collect();
            latencies.sort_unstable();
            ConsumerCounts {
                consumer: member.id,
                buffer: member.buffer,
                in_flight: member.holds.len(),
                delivered: member.delivered,
                latencies,
            }
        };
        self.members.iter().map(counts).collect()
    }

    fn find(&self, id: ConsumerId) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> ConsumerId {
        ConsumerId(Uuid::from_u128(number))
    }

    fn event(number: u128) -> EventId {
        EventId(Uuid::from_u128(number))
    }

    fn three(strategy: Strategy) -> Consumers {
        let mut consumers = Consumers::new(strategy, 3, false);
        for number in 1..=3 {
            consumers.join(id(number), 2).expect("room");
        }
        consumers
    }

    fn given(consumers: &mut Consumers, events: std::ops::Range<u64>) -> Vec<Option<u128>> {
        let now = Moment::START;
        let give = |number: u64| {
            let pin = u16::try_from(number).expect("small");
            let to = consumers.give(Token(number), event(number.into()), pin, now)?;
            Some(to.0.as_u128())
        };
        events.map(give).collect()
    }

    #[test]
    fn round_robin_takes_turns_and_passes_over_who_is_full() {
        let mut consumers = three(Strategy::RoundRobin);
        assert_eq!(given(&mut consumers, 0..4), [1, 2, 3, 1].map(Some));
        consumers
            .take(id(3), Which::Event(event(2)), Moment::START)
            .expect("held");
        assert_eq!(
            given(&mut consumers, 4..8),
            [Some(2), Some(3), Some(3), None]
        );
        assert!(!consumers.any_has_room());
        assert_eq!(consumers.leave(id(1)).held, [Token(0), Token(3)]);
        assert!(!consumers.any_has_room());
    }

    #[test]
    fn dispatch_to_single_keeps_to_the_first_with_room() {
        let mut consumers = three(Strategy::DispatchToSingle);
        assert_eq!(given(&mut consumers, 0..3), [1, 1, 2].map(Some));
        consumers
            .take(id(1), Which::Delivery(Token(0)), Moment::START)
            .expect("held");
        assert_eq!(given(&mut consumers, 3..4), [Some(1)]);
    }

    #[test]
    fn a_pinned_event_waits_for_its_consumer_and_few_move_when_one_leaves() {
        let mut consumers = three(Strategy::Pinned);
        let owners = |consumers: &mut Consumers| -> Vec<u128> {
            let owner = |pin| {
                consumers
                    .pinned_to(pin)
                    .map(|at| consumers.members[at].id.0.as_u128())
            };
            (0..PINS).filter_map(owner).collect()
        };
        let before = owners(&mut consumers);
        for number in 1..=3 {
            let share = before.iter().filter(|owner| **owner == number).count();
            assert!(share > 200, "consumer {number} has {share} of {PINS}");
        }
        consumers.leave(id(2));
        for (old, new) in before.iter().zip(owners(&mut consumers)) {
            assert!(new == *old || *old == 2);
        }
        let now = Moment::START;
        let mut give = |number| consumers.give(Token(number), event(number.into()), 7, now);
        let owner = give(0).expect("room");
        assert_eq!([give(1), give(2)], [Some(owner), None]);
    }

    #[test]
    fn one_consumer_never_holds_two_events_with_one_id() {
        let mut consumers = Consumers::new(Strategy::RoundRobin, 3, true);
        let now = Moment::START;
        consumers.join(id(1), 9).expect("room");
        assert!(consumers.give(Token(1), event(7), 0, now).is_some());
        assert!(consumers.give(Token(2), event(7), 0, now).is_none());
        let taken = consumers.take(id(1), Which::Event(event(7)), now);
        assert_eq!(taken, Some(Token(1)));
        assert!(consumers.give(Token(2), event(7), 0, now).is_some());
        assert_eq!(consumers.counts()[0].latencies, [Duration::ZERO]);
    }

    #[test]
    fn more_consumers_than_allowed_and_odd_buffers_are_refused() {
        let mut consumers = three(Strategy::Pinned);
        assert_eq!(consumers.join(id(4), 1), Err(Refused::Full { max: 3 }));
        consumers.leave(id(3));
        assert_eq!(consumers.join(id(4), 0), Err(Refused::Buffer { found: 0 }));
        assert_eq!(consumers.join(id(1), 1), Err(Refused::Twice(id(1))));
        assert_eq!(consumers.join(id(4), CONSUMER_EVENTS_MAX), Ok(()));
    }
}
