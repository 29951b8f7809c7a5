//! Which events there are, which tag each carries, and whether a reader got what it must get.
//!
//! Events are numbered. The older ones of the readers' tags come first, 0 and on, then those of the burst; the tag of
//! an event is its number modulo the number of readers. Older events of other tags have numbers from [`OTHERS`] on.

use std::collections::HashSet;
use std::ops::Range;

/// First number of older events with tags that nobody reads. `fill_*_journal.sql` knows it too.
pub(super) const OTHERS: u64 = 1 << 40;
/// Number of such tags. `fill_*_journal.sql` knows it too.
const OTHER_TAGS: u64 = 1_000;

/// Sizes of one experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Readers, and tags.
    pub(super) readers: u64,
    /// Events of the burst.
    pub(super) events: u64,
    /// Events before it.
    pub(super) older: u64,
    /// Those among them that carry the readers' tags: the last ones.
    pub(super) tagged: u64,
    /// True if every reader follows all events of the burst, whatever their tags.
    pub(super) everything: bool,
}

/// Where readers begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    /// Before everything.
    Start,
    /// After the older events.
    End,
}

impl Plan {
    /// Older events with tags that nobody reads.
    pub(super) fn others(&self) -> u64 {
        self.older - self.tagged
    }

    /// Numbers of the burst.
    pub(super) fn burst(&self) -> Range<u64> {
        self.tagged..self.tagged + self.events
    }

    /// What a reader has got at its beginning: nothing.
    pub(super) fn delivered(&self, reader: u64, from: From) -> Delivered {
        let burst = self.burst();
        let (numbers, readers) = match from {
            From::Start => (0..burst.end, self.readers),
            From::End => (burst, self.readers),
        };
        let is_wanted = |number: &u64| self.everything || number % readers == reader;
        Delivered {
            missing: numbers.filter(is_wanted).collect(),
            ..Delivered::default()
        }
    }

    /// The tag of an event.
    pub(super) fn tag(&self, number: u64) -> String {
        match number.checked_sub(OTHERS) {
            Some(other) => format!("other-{}", other % OTHER_TAGS),
            None => tag_name(number % self.readers),
        }
    }
}

/// Name of a reader's tag.
pub(super) fn tag_name(reader: u64) -> String {
    format!("lab-{reader}")
}

/// What one reader got, against what it must get: each event once, in the order of the journal, and no other.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    missing: HashSet<u64>,
    got: HashSet<u64>,
    last: Option<u64>,
    doubled: Vec<u64>,
    disordered: Vec<u64>,
    foreign: Vec<u64>,
}

impl Delivered {
    /// Enters an event that the reader got, by its number and its place in the journal.
    pub(super) fn enter(&mut self, number: u64, position: u64) {
        if self.last.is_some_and(|last| position <= last) {
            self.disordered.push(number);
        }
        self.last = self.last.max(Some(position));
        if self.missing.remove(&number) {
            self.got.insert(number);
        } else if self.got.contains(&number) {
            self.doubled.push(number);
        } else {
            self.foreign.push(number);
        }
    }

    /// True if everything wanted is there.
    pub(super) fn has_all(&self) -> bool {
        self.missing.is_empty()
    }

    /// What is wrong, in words.
    pub(super) fn faults(&self) -> Option<String> {
        let mut missing: Vec<u64> = self.missing.iter().copied().collect();
        missing.sort_unstable();
        let kinds = [
            ("missed", &missing),
            ("got twice", &self.doubled),
            ("got out of order", &self.disordered),
            ("got without asking", &self.foreign),
        ];
        let told = kinds.iter().filter_map(|(name, numbers)| {
            let (count, first) = (numbers.len(), numbers.first()?);
            Some(format!("{name} {count} (the first: event {first})"))
        });
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| told.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_one_reader() {
        let plan = Plan {
            readers: 7,
            events: 100,
            older: 1_000,
            tagged: 21,
            everything: false,
        };
        for (from, numbers) in [(From::Start, 0..121), (From::End, 21..121)] {
            let of = |reader| plan.delivered(reader, from).missing.into_iter();
            let mut all: Vec<u64> = (0..7).flat_map(of).collect();
            all.sort_unstable();
            assert_eq!(all, numbers.collect::<Vec<_>>());
        }
        let everything = Plan {
            everything: true,
            ..plan
        };
        assert_eq!(everything.delivered(3, From::End).missing.len(), 100);
    }

    #[test]
    fn missing_doubled_disordered_and_foreign_events_are_found() {
        let plan = Plan {
            readers: 3,
            events: 9,
            older: 0,
            tagged: 0,
            everything: false,
        };
        for (entries, has_all, wanted) in [
            (&[(4, 10), (1, 11), (7, 20)][..], true, None),
            (
                &[(1, 10), (7, 20)],
                false,
                Some("missed 1 (the first: event 4)"),
            ),
            (
                &[(1, 10), (4, 11), (4, 12), (7, 20)],
                true,
                Some("got twice 1 (the first: event 4)"),
            ),
            (
                &[(1, 10), (7, 20), (4, 11)],
                true,
                Some("got out of order 1 (the first: event 4)"),
            ),
            (
                &[(1, 10), (4, 11), (2, 12), (7, 20), (OTHERS, 21)],
                true,
                Some("got without asking 2 (the first: event 2)"),
            ),
        ] {
            let mut delivered = plan.delivered(1, From::Start);
            for &(number, position) in entries {
                delivered.enter(number, position);
            }
            assert_eq!(delivered.has_all(), has_all, "{entries:?}");
            assert_eq!(delivered.faults().as_deref(), wanted, "{entries:?}");
        }
    }
}
