//! Takes the answers of consumers, and decides what happens when there is none.
//!
//! A delivery that fails is tried again, up to the number of times in the settings; then the event is parked. The
//! delivery of an event that the consumer never took from its queue did not fail: the event is delivered again and
//! nothing is counted.
//! Silence counts against the consumer first. A delivery that is not answered in time has failed if the consumer
//! answers for a later one, before or after: it has passed the event over. Until then the consumer may be working on
//! earlier events, or be gone. A consumer that lets all that it holds go unanswered twice in a row has to leave.
//! When a consumer goes, of its own accord or because it is silent, one delivery has failed: that of the event on which
//! it was working, for it may have gone because of that event. This is the first of the events that it had taken and
//! has not answered for. The other events had no chance; they lose no try, and are delivered before that one. So an
//! event that no consumer survives is parked after its number of tries, and takes no other event with it.

use std::collections::HashSet;

use gesta_core::{Moment, SharedEvent};

use super::{ConsumerId, Machine, Origin, State, Token, Which};

/// Longest reason of a consumer that is kept, in characters.
pub const REASON_CHARS_MAX: usize = 1_000;

/// What a consumer asks for when it refuses an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The group decides; it delivers the event again.
    Unknown,
    /// The group parks the event.
    Park,
    /// The group delivers the event again.
    Retry,
    /// The group takes the event as finished.
    Skip,
    /// The group takes the event as finished, as with `Skip`. The name comes from clients that stop after it.
    Stop,
}

/// Why a delivery has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailedBy {
    /// The consumer refused the event.
    Refusal,
    /// The consumer did not answer in time.
    Time,
}

/// An event that is to be stored as parked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParkOrder {
    /// Number of the event in the group.
    pub token: Token,
    /// The event.
    pub event: SharedEvent,
    /// Where the event came from.
    pub origin: Origin,
    /// Reason why the event is parked.
    pub reason: String,
}

impl Machine {
    /// Finishes these events, which a consumer acknowledges. Returns for how many of them the answer came in time.
    pub fn ack(&mut self, consumer: ConsumerId, events: &[Which], now: Moment) -> usize {
        self.consumers.heard(consumer);
        let mut known = 0;
        for event in events {
            if let Some(token) = self.take_back(consumer, *event, now) {
                known += 1;
                self.counts.acknowledged += 1;
                self.finish(token);
            }
        }
        known
    }

    /// Does with these events what `action` asks for. Returns for how many of them the answer came in time.
    pub fn nack(
        &mut self,
        consumer: ConsumerId,
        events: &[Which],
        action: Action,
        reason: &str,
        now: Moment,
    ) -> usize {
        self.consumers.heard(consumer);
        let mut known = 0;
        for event in events {
            let Some(token) = self.take_back(consumer, *event, now) else {
                continue;
            };
            known += 1;
            match action {
                Action::Unknown | Action::Retry => self.failed(token, FailedBy::Refusal),
                Action::Park => {
                    self.park(
                        token,
                        format!("Client explicitly NAK'ed message.\n{reason}"),
                    );
                }
                Action::Skip | Action::Stop => {
                    self.counts.skipped += 1;
                    self.finish(token);
                }
            }
        }
        known
    }

    fn take_back(&mut self, consumer: ConsumerId, event: Which, now: Moment) -> Option<Token> {
        let token = self.consumers.take(consumer, event, now);
        match token {
            Some(token) => self.forget_deadline(token),
            None => self.counts.unknown_answers += 1,
        }
        for passed_over in self.consumers.passed_over(consumer) {
            self.failed_meanwhile(passed_over);
        }
        token
    }

    fn forget_deadline(&mut self, token: Token) {
        if let Some(item) = self.items.get_mut(&token)
            && let State::Sent { deadline, .. } = std::mem::replace(&mut item.state, State::Waiting)
            && let Some(deadline) = deadline
        {
            self.deadlines.remove(&(deadline, token));
        }
    }

    /// Takes an event that its consumer has held for too long back from the consumer. The caller tells what becomes of
    /// it: [`Machine::timed_out`] if the consumer had taken it from its queue, else [`Machine::not_taken`].
    pub fn expired(&mut self, now: Moment) -> Option<(ConsumerId, Token)> {
        let (deadline, token) = *self.deadlines.first()?;
        if deadline.at > now {
            return None;
        }
        self.deadlines.remove(&(deadline, token));
        let item = self.items.get_mut(&token)?;
        let State::Sent { consumer, .. } = item.state else {
            return None;
        };
        item.state = State::Waiting;
        let doubt = self.consumers.expire(consumer, token);
        item.in_doubt = doubt.map(|doubt| (consumer, doubt));
        Some((consumer, token))
    }

    /// Notes that the delivery of this event was not answered in time, which the consumer had taken. It counts as
    /// failed if the consumer has passed the event over, or once it does.
    pub fn timed_out(&mut self, token: Token) {
        let item = self.items.get_mut(&token);
        match item.and_then(|item| item.in_doubt.take()) {
            Some((consumer, doubt)) => {
                self.counts.timed_out += 1;
                self.consumers.doubt(consumer, doubt);
                self.again.push_back(token);
            }
            None => self.failed(token, FailedBy::Time),
        }
    }

    /// Removes a consumer that is silent. Of all that it had taken, only the delivery of the first event has failed.
    pub fn part_with(&mut self, consumer: ConsumerId) {
        self.counts.silent += 1;
        let left = self.consumers.leave(consumer);
        self.give_back(&left.held, left.first_doubted);
    }

    /// Delivers this event, which the consumer had not even taken, again. Nothing is counted.
    pub fn not_taken(&mut self, token: Token) {
        if self.items.contains_key(&token) {
            self.again.push_back(token);
        }
    }

    /// Removes a consumer. `not_taken` are those of its events that never reached it. Of all others, only the delivery
    /// of the first one has failed.
    pub fn leave(&mut self, consumer: ConsumerId, not_taken: &HashSet<Token>) {
        let left = self.consumers.leave(consumer);
        let mut taken = left.held.iter().filter(|token| !not_taken.contains(token));
        let first_taken = taken.next().copied();
        let count = taken.count() + usize::from(first_taken.is_some());
        self.counts.left_behind += u64::try_from(count).unwrap_or(u64::MAX);
        self.give_back(&left.held, left.first_doubted.or(first_taken));
    }

    /// Lets what a consumer held be delivered again that is gone, and counts a try of the event on which it was
    /// working.
    fn give_back(&mut self, held: &[Token], worked_on: Option<Token>) {
        for token in held {
            self.forget_deadline(*token);
            if Some(*token) != worked_on {
                self.not_taken(*token);
            }
        }
        if let Some(token) = worked_on {
            self.failed_meanwhile(token);
        }
    }

    fn failed(&mut self, token: Token, by: FailedBy) {
        match by {
            FailedBy::Refusal => self.counts.refused += 1,
            FailedBy::Time => self.counts.timed_out += 1,
        }
        self.count_try(token);
    }

    /// Counts a try of an event whose delivery has failed, as is known only now. By now it may wait to be delivered
    /// again, be with another consumer, or be finished.
    fn failed_meanwhile(&mut self, token: Token) {
        let Some(item) = self.items.get_mut(&token) else {
            return;
        };
        match item.state {
            State::Waiting => {
                self.again.retain(|waiting| *waiting != token);
                self.count_try(token);
            }
            State::Sent { .. } => item.retries = item.retries.saturating_add(1),
            State::Parking => {}
        }
    }

    /// Counts a try of an event that is in no queue. The event is delivered again, behind all others that wait for
    /// that, or parked.
    fn count_try(&mut self, token: Token) {
        let Some(item) = self.items.get_mut(&token) else {
            return;
        };
        if item.retries >= self.settings.max_retry_count {
            let reason = format!("Reached retry count of {}", self.settings.max_retry_count);
            self.park(token, reason);
        } else {
            item.retries += 1;
            self.again.push_back(token);
        }
    }

    fn park(&mut self, token: Token, reason: String) {
        if let Some(item) = self.items.get_mut(&token) {
            item.state = State::Parking;
            self.to_park.push_back((token, reason));
        }
    }

    /// Returns an event to be stored as parked. It counts as unfinished until [`Machine::parked`].
    pub fn next_park(&mut self) -> Option<ParkOrder> {
        let (token, reason) = self.to_park.pop_front()?;
        let item = self.items.get(&token)?;
        Some(ParkOrder {
            token,
            event: SharedEvent::clone(&item.event),
            origin: item.origin,
            reason,
        })
    }

    /// Finishes an event that was stored as parked.
    pub fn parked(&mut self, token: Token) {
        if self.items.contains_key(&token) {
            self.counts.parked += 1;
            self.finish(token);
        }
    }
}
