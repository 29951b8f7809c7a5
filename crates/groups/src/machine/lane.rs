//! How far a group has come in one ordered source: which places are open, and below which place everything is finished.
//!
//! A place is a revision or a position. Only open places are kept, so the memory is bounded by the events that the
//! group holds, however many were finished after the oldest open one.

use std::collections::BTreeMap;

use crate::mark::Mark;

#[derive(Debug)]
pub(super) struct Lane {
    /// The open places, each with the event that was read before it.
    open: BTreeMap<u64, Option<Mark>>,
    /// Place below which everything was read.
    next: u64,
    /// The event that was read last.
    last: Option<Mark>,
}

impl Lane {
    pub(super) fn new(next: u64) -> Self {
        Self {
            open: BTreeMap::new(),
            next,
            last: None,
        }
    }

    /// Notes which event stands before the first place that is read.
    pub(super) fn begins_after(&mut self, mark: Option<Mark>) {
        self.last = mark;
    }

    /// Notes that a place was read whose event is to be handled, and the mark of that event if it is needed. Returns
    /// false if the place had been read before.
    pub(super) fn open(&mut self, place: u64, mark: Option<Mark>) -> bool {
        let new = self.skip(place);
        if new {
            self.open.insert(place, self.last);
            self.last = mark.or(self.last);
        }
        new
    }

    /// Notes that a place was read for which there is nothing to do. Returns false if the place had been read before.
    pub(super) fn skip(&mut self, place: u64) -> bool {
        let new = place >= self.next;
        if new {
            self.next = place.saturating_add(1);
        }
        new
    }

    /// Notes that the event that was open at this place is finished.
    pub(super) fn finish(&mut self, place: u64) {
        self.open.remove(&place);
    }

    /// Returns the place below which everything is finished.
    pub(super) fn low(&self) -> u64 {
        let first = self.open.first_key_value();
        first.map_or(self.next, |(place, _)| *place)
    }

    /// Returns the last event before that place that was read.
    pub(super) fn low_mark(&self) -> Option<Mark> {
        let first = self.open.first_key_value();
        first.map_or(self.last, |(_, before)| *before)
    }

    /// Returns the event that was read last.
    pub(super) fn last_mark(&self) -> Option<Mark> {
        self.last
    }

    /// Returns the place below which everything was read.
    pub(super) fn next(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_open_place_holds_the_others_back() {
        let mut lane = Lane::new(5);
        assert_eq!(lane.low(), 5);
        for place in [5, 7, 9] {
            assert!(lane.open(place, None));
        }
        assert!(!lane.open(7, None) && !lane.skip(4));
        lane.finish(7);
        assert_eq!((lane.low(), lane.next()), (5, 10));
        lane.finish(5);
        assert_eq!(lane.low(), 9);
        assert!(lane.skip(20));
        assert_eq!(lane.low(), 9);
        lane.finish(9);
        assert_eq!(lane.low(), 21);
    }
}
