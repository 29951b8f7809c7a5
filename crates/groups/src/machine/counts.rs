//! Counts of what a group has done since it was started, and of what it holds.

use serde::{Deserialize, Serialize};

use super::{ConsumerCounts, Machine, State};

/// What a group has done since it was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Number of deliveries to consumers.
    pub delivered: u64,
    /// Number of deliveries of an event of which an earlier delivery failed; `delivered` includes them.
    pub redelivered: u64,
    /// Number of events that consumers acknowledged.
    pub acknowledged: u64,
    /// Number of events that consumers skipped.
    pub skipped: u64,
    /// Number of deliveries that consumers refused, so that the event was delivered again or parked after too many of
    /// them.
    pub refused: u64,
    /// Number of deliveries that were not answered in time.
    pub timed_out: u64,
    /// Number of consumers that had to leave because they answered for nothing that they held.
    #[serde(default)]
    pub silent: u64,
    /// Number of deliveries to consumers that left without an answer.
    pub left_behind: u64,
    /// Number of events that were stored as parked.
    pub parked: u64,
    /// Number of parked events that were read again for a replay.
    pub replayed: u64,
    /// Number of answers for events that the consumer did not hold, for example because its time was over.
    pub unknown_answers: u64,
}

impl Counts {
    /// Adds what was done between `before` and `now`.
    pub fn add_since(&mut self, now: &Counts, before: &Counts) {
        let add = |sum: &mut u64, now: u64, before: u64| *sum += now.saturating_sub(before);
        add(&mut self.delivered, now.delivered, before.delivered);
        add(&mut self.redelivered, now.redelivered, before.redelivered);
        add(
            &mut self.acknowledged,
            now.acknowledged,
            before.acknowledged,
        );
        add(&mut self.skipped, now.skipped, before.skipped);
        add(&mut self.refused, now.refused, before.refused);
        add(&mut self.timed_out, now.timed_out, before.timed_out);
        add(&mut self.silent, now.silent, before.silent);
        add(&mut self.left_behind, now.left_behind, before.left_behind);
        add(&mut self.parked, now.parked, before.parked);
        add(&mut self.replayed, now.replayed, before.replayed);
        add(
            &mut self.unknown_answers,
            now.unknown_answers,
            before.unknown_answers,
        );
    }
}

impl Machine {
    /// Returns what the group has done.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns what each consumer has done, in the order in which they joined.
    #[must_use]
    pub fn consumers(&self) -> Vec<ConsumerCounts> {
        self.consumers.counts()
    }

    /// Returns the number of events that consumers hold.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let sent = |item: &&super::Item| matches!(item.state, State::Sent { .. });
        self.items.values().filter(sent).count()
    }

    /// Returns the number of events that wait to be delivered for the first time.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.fresh.len()
    }

    /// Returns the number of events that wait to be delivered again.
    #[must_use]
    pub fn waiting_again(&self) -> usize {
        self.again.len()
    }

    /// Returns the number of all events that the group holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.items.len()
    }

    /// Returns the bytes of all events that the group holds.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Returns true once the source was read up to its end.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.caught_up
    }

    /// Returns true while parked events are being delivered again.
    #[must_use]
    pub fn is_replaying(&self) -> bool {
        self.replay.is_some() || self.parked.low() < self.parked.next()
    }
}
