//! The newest events of one log, in memory.
//!
//! Invariant: the ring holds *every* event of the log with a position in (`after`, `end`], in order.
//! Positions may have holes (scavenged events), so places are found by search, not by arithmetic.
//! Not here: locking, waking, reading (`lane`, `reader`).

use std::collections::VecDeque;

use gesta_core::{Position, SharedEvent};

/// Largest number of events that one subscriber takes out of the ring or out of a page at once.
pub(crate) const CHUNK_EVENTS_MAX: usize = 256;
/// Largest memory of these events, in bytes.
const CHUNK_BYTES_MAX: usize = 256 * 1024;

/// What a subscriber takes from the ring, when it has seen everything up to some position.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// Events were taken. The subscriber has now seen everything up to this position.
    Events(Position),
    /// The ring holds nothing newer.
    Nothing,
    /// The subscriber's position lies before the ring, which begins after this position. The subscriber must read pages
    /// up to this position.
    BeforeRing(Position),
}

#[derive(Debug)]
pub(crate) struct Ring {
    after: Position,
    end: Position,
    events: VecDeque<SharedEvent>,
    bytes: usize,
    events_max: usize,
    bytes_max: usize,
}

impl Ring {
    pub(crate) fn new(events_max: usize, bytes_max: usize) -> Self {
        Self {
            after: Position::START,
            end: Position::START,
            events: VecDeque::new(),
            bytes: 0,
            events_max,
            bytes_max,
        }
    }

    /// Returns the position at which the ring ends. Every event up to it is in the ring, or was in it.
    pub(crate) fn end(&self) -> Position {
        self.end
    }

    /// Empties the ring, which then begins after `at`. It returns the old events, which must be dropped outside a lock.
    #[must_use]
    pub(crate) fn reset(&mut self, at: Position) -> VecDeque<SharedEvent> {
        self.after = at;
        self.end = at;
        self.bytes = 0;
        std::mem::take(&mut self.events)
    }

    /// Adds the events that follow, which must be all that there are up to `covered`. Events that the ring has already
    /// are skipped. It returns the events that had to leave, which must be dropped outside a lock.
    #[must_use]
    pub(crate) fn push(
        &mut self,
        events: impl IntoIterator<Item = SharedEvent>,
        covered: Position,
    ) -> Vec<SharedEvent> {
        for event in events {
            if event.position > self.end && event.position <= covered {
                self.end = event.position;
                self.bytes += event.cost_bytes();
                self.events.push_back(event);
            }
        }
        self.end = self.end.max(covered);
        let mut evicted = Vec::new();
        while self.events.len() > 1
            && (self.events.len() > self.events_max || self.bytes > self.bytes_max)
        {
            if let Some(oldest) = self.events.pop_front() {
                self.after = oldest.position;
                self.bytes -= oldest.cost_bytes();
                evicted.push(oldest);
            }
        }
        evicted
    }

    /// Copies the next events after `position` into `into`, at most one chunk.
    pub(crate) fn take(&self, position: Position, into: &mut VecDeque<SharedEvent>) -> Taken {
        if position < self.after {
            return Taken::BeforeRing(self.after);
        }
        if position >= self.end {
            return Taken::Nothing;
        }
        let first = self
            .events
            .partition_point(|event| event.position <= position);
        let mut bytes = 0;
        let mut last = position;
        let mut taken = 0;
        for event in self.events.range(first..).take(CHUNK_EVENTS_MAX) {
            bytes += event.cost_bytes();
            if taken > 0 && bytes > CHUNK_BYTES_MAX {
                break;
            }
            into.push_back(SharedEvent::clone(event));
            last = event.position;
            taken += 1;
        }
        if first + taken == self.events.len() {
            last = self.end;
        }
        Taken::Events(last)
    }

    /// Returns the event at this position, if it is in the ring.
    pub(crate) fn get(&self, position: Position) -> Option<&SharedEvent> {
        let place = self
            .events
            .binary_search_by_key(&position, |event| event.position)
            .ok()?;
        self.events.get(place)
    }

    /// Returns true if every event after `position` is in the ring, or is not stored yet.
    pub(crate) fn reaches(&self, position: Position) -> bool {
        position >= self.after
    }

    /// Returns true if `position` is in the part of the log that the ring covers.
    pub(crate) fn covers(&self, position: Position) -> bool {
        position > self.after && position <= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{event, tagged};

    fn filled(range: std::ops::RangeInclusive<u64>, events_max: usize) -> Ring {
        let mut ring = Ring::new(events_max, usize::MAX);
        drop(ring.reset(Position(range.start() - 1)));
        let covered = Position(*range.end());
        drop(ring.push(range.map(|p| event(p, "a")), covered));
        ring
    }

    fn take(ring: &Ring, position: u64) -> (Taken, Vec<u64>) {
        let mut events = VecDeque::new();
        let taken = ring.take(Position(position), &mut events);
        (taken, events.iter().map(|e| e.position.0).collect())
    }

    #[test]
    fn who_is_within_gets_what_follows() {
        let ring = filled(11..=14, 10);
        assert_eq!(take(&ring, 12), (Taken::Events(Position(14)), vec![13, 14]));
        assert_eq!(take(&ring, 14), (Taken::Nothing, vec![]));
        assert_eq!(take(&ring, 20), (Taken::Nothing, vec![]));
        assert_eq!(take(&ring, 9), (Taken::BeforeRing(Position(10)), vec![]));
    }

    #[test]
    fn the_oldest_leave_when_it_is_full() {
        let mut ring = filled(1..=4, 3);
        assert_eq!(take(&ring, 0).0, Taken::BeforeRing(Position(1)));
        assert_eq!(ring.push([event(5, "a")], Position(5)).len(), 1);
        assert_eq!(take(&ring, 2), (Taken::Events(Position(5)), vec![3, 4, 5]));
    }

    #[test]
    fn one_event_stays_however_large() {
        let mut ring = Ring::new(10, 1);
        drop(ring.push([event(1, "a"), event(2, "a")], Position(2)));
        assert_eq!(take(&ring, 1), (Taken::Events(Position(2)), vec![2]));
    }

    /// Tags were free of charge: a ring of 64 MiB could hold 256 MiB of them.
    #[test]
    fn tags_count_against_the_bytes_of_ring_and_chunk() {
        let mut ring = Ring::new(1_000, 100_000);
        drop(ring.push((1..=20).map(tagged), Position(20)));
        assert!(
            (8..=12).contains(&ring.events.len()),
            "{}",
            ring.events.len()
        );
        let mut ring = Ring::new(1_000, usize::MAX);
        drop(ring.push((1..=200).map(tagged), Position(200)));
        let (_, events) = take(&ring, 0);
        assert!(events.len() <= CHUNK_BYTES_MAX / 8_192, "{}", events.len());
    }

    #[test]
    fn doubles_are_skipped_and_holes_are_kept() {
        let mut ring = filled(1..=3, 10);
        drop(ring.push([event(2, "a"), event(3, "a"), event(6, "a")], Position(8)));
        assert_eq!(
            take(&ring, 0),
            (Taken::Events(Position(8)), vec![1, 2, 3, 6])
        );
        assert_eq!(take(&ring, 6), (Taken::Events(Position(8)), vec![]));
        assert!(ring.get(Position(4)).is_none());
        assert!(ring.covers(Position(4)) && !ring.covers(Position(9)));
    }

    #[test]
    fn a_chunk_is_bounded() {
        let ring = filled(1..=1_000, 2_000);
        let (taken, events) = take(&ring, 100);
        assert_eq!(events.len(), CHUNK_EVENTS_MAX);
        assert_eq!(taken, Taken::Events(Position(100 + 256)));
    }
}
