//! Which events there are, which tag each carries, and which a reader must get.
//!
//! Events are numbered. The older ones of the readers' tags come first, 0 and on, then those of the burst; the tag of
//! an event is its number modulo the number of readers. Older events of other tags have numbers from [`OTHERS`] on.

use std::ops::Range;

use gesta_core::{Tag, Tags};

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

    /// What a reader must get.
    pub(super) fn wanted(&self, reader: u64, from: From) -> Wanted {
        let burst = self.burst();
        let numbers = match from {
            From::Start => 0..burst.end,
            From::End => burst,
        };
        let (readers, reader) = match self.everything {
            true => (1, 0),
            false => (self.readers, reader),
        };
        Wanted {
            numbers,
            readers,
            reader,
        }
    }
}

/// The numbers that one reader must get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    numbers: Range<u64>,
    readers: u64,
    reader: u64,
}

impl Wanted {
    /// True if the event of this number is for this reader.
    pub(super) fn contains(&self, number: u64) -> bool {
        self.numbers.contains(&number) && number % self.readers == self.reader
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let (readers, reader) = (self.readers, self.reader);
        let before = self.numbers.start.saturating_sub(reader);
        let first = before.div_ceil(readers) * readers + reader;
        let step = usize::try_from(readers).unwrap_or(usize::MAX);
        (first..self.numbers.end).step_by(step)
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        self.iter().count()
    }
}

/// Name of a reader's tag.
pub(super) fn tag_name(reader: u64) -> String {
    format!("lab-{reader}")
}

/// The tag of an event with a reader.
pub(super) fn tags_of(number: u64, readers: usize) -> Tags {
    one(tag_name(number % readers as u64))
}

/// The tag of an older event without a reader.
pub(super) fn other_tags(number: u64, _: usize) -> Tags {
    one(format!("other-{}", number % OTHER_TAGS))
}

fn one(name: String) -> Tags {
    let tag = Tag::new(name).expect("a valid tag");
    Tags::new(vec![tag]).expect("one tag")
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
        assert_eq!(plan.others(), 979);
        for (from, numbers) in [(From::Start, 0..121), (From::End, 21..121)] {
            let mut all: Vec<u64> = (0..7)
                .flat_map(|reader| {
                    let wanted = plan.wanted(reader, from);
                    let numbers: Vec<u64> = wanted.iter().collect();
                    assert_eq!(numbers.len(), wanted.count());
                    assert!(
                        numbers
                            .iter()
                            .all(|&n| wanted.contains(n) && n % 7 == reader)
                    );
                    numbers
                })
                .collect();
            all.sort_unstable();
            assert_eq!(all, numbers.collect::<Vec<_>>());
        }
        assert!(!plan.wanted(0, From::End).contains(0), "older");
        assert!(!plan.wanted(0, From::Start).contains(1), "another's");
    }

    #[test]
    fn readers_of_everything_want_the_whole_burst() {
        let plan = Plan {
            readers: 3,
            events: 10,
            older: 0,
            tagged: 0,
            everything: true,
        };
        for reader in 0..3 {
            let wanted: Vec<u64> = plan.wanted(reader, From::End).iter().collect();
            assert_eq!(wanted, (0..10).collect::<Vec<_>>());
        }
    }

    #[test]
    fn more_readers_than_events_leave_some_without() {
        let plan = Plan {
            readers: 10,
            events: 3,
            older: 0,
            tagged: 0,
            everything: false,
        };
        let counts = (0..10).map(|reader| plan.wanted(reader, From::End).count());
        assert_eq!(counts.collect::<Vec<_>>(), [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
