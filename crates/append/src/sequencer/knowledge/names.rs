//! The names of streams that may exist. A name that is not among them is new, and its first append needs no lookup.
//!
//! Without this knowledge each first append waits for a round trip of its own, and so does the batch that it could have
//! been in. Once enough streams were looked up and not found, all names are listed in the background. From then on each
//! name that this process creates, or sees another process create, is added. A name is kept as four bytes of its hash;
//! a name that collides with another is looked up, which is only slower. Invariant: a complete set has every name in
//! the log up to the last known row, and every name that was sent (or, of metadata, the name of the stream that it
//! describes). So to take a stream as new is as safe as to have looked it up: a process that creates the stream
//! meanwhile moves the end of the log, and the batch of this process misses.
//! Not here: what is known of a stream (`heads`).

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use gesta_core::StreamId;

/// The hashes of names.
pub(crate) type Hashes = HashSet<u32>;

#[derive(Debug)]
pub(crate) struct Names {
    hasher: RandomState,
    max: usize,
    /// The number of streams that are looked up and not found before the names are listed.
    list_after: usize,
    state: State,
    /// How often a listing was begun. The answer of an older listing is outdated.
    listings: u64,
}

#[derive(Debug)]
enum State {
    /// The names are not known; so many streams were looked up and not found.
    Unknown(usize),
    /// The names are being listed; these were met since the listing was begun.
    Listing(Hashes),
    Complete(Hashes),
    /// There are more names than are to be kept in memory.
    TooMany,
}

/// The names that the database is to list.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    pub(crate) number: u64,
    hasher: RandomState,
    max: usize,
}

impl Names {
    pub(crate) fn new(max: usize, list_after: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            max,
            list_after,
            state: match max {
                0 => State::TooMany,
                _ => State::Unknown(0),
            },
            listings: 0,
        }
    }

    /// Returns whether there is neither a stream of that name nor metadata of such a stream.
    pub(crate) fn lack(&self, stream: &StreamId) -> bool {
        match &self.state {
            State::Complete(names) => {
                !names.contains(&hash(&self.hasher, stream))
                    && !names.contains(&hash(&self.hasher, &stream.metadata_stream()))
            }
            _ => false,
        }
    }

    /// Adds a name: there may be such a stream from now on.
    pub(crate) fn add(&mut self, stream: &StreamId) {
        let (State::Listing(names) | State::Complete(names)) = &mut self.state else {
            return;
        };
        names.insert(hash(&self.hasher, stream));
        if names.len() > self.max {
            self.state = State::TooMany;
        }
    }

    /// Counts a stream that was looked up and not found.
    pub(crate) fn missed(&mut self) {
        if let State::Unknown(missed) = &mut self.state {
            *missed += 1;
        }
    }

    /// Begins to list the names if enough streams were looked up and not found. `sent` are the streams of batches whose
    /// outcome is open.
    pub(crate) fn begin<'a>(
        &mut self,
        sent: impl Iterator<Item = &'a StreamId>,
    ) -> Option<Listing> {
        if !matches!(self.state, State::Unknown(missed) if missed >= self.list_after.max(1)) {
            return None;
        }
        let names = sent.map(|stream| hash(&self.hasher, stream)).collect();
        self.state = State::Listing(names);
        self.listings += 1;
        Some(Listing {
            number: self.listings,
            hasher: self.hasher.clone(),
            max: self.max,
        })
    }

    /// Takes the answer of the listing of that number; `None` means that there are too many names.
    pub(crate) fn listed(&mut self, number: u64, listed: Option<Hashes>) {
        if number != self.listings {
            return;
        }
        if let State::Listing(met) = &mut self.state {
            let met = std::mem::take(met);
            self.state = match listed {
                Some(mut names) if names.len() + met.len() <= self.max => {
                    names.extend(met);
                    State::Complete(names)
                }
                _ => State::TooMany,
            };
        }
    }

    /// Notes that the listing of that number failed.
    pub(crate) fn not_listed(&mut self, number: u64) {
        if number == self.listings {
            self.forget();
        }
    }

    /// Forgets the names, because some may have been missed. The names are listed again when enough streams were looked
    /// up and not found.
    pub(crate) fn forget(&mut self) {
        if !matches!(self.state, State::TooMany) {
            self.state = State::Unknown(0);
            self.listings += 1;
        }
    }
}

impl Listing {
    /// Makes a set without names.
    pub(crate) fn empty() -> Hashes {
        Hashes::new()
    }

    /// Adds names. Returns false if they are more than are to be kept.
    pub(crate) fn take<'a>(
        &self,
        names: impl Iterator<Item = &'a StreamId>,
        into: &mut Hashes,
    ) -> bool {
        into.extend(names.map(|stream| hash(&self.hasher, stream)));
        into.len() <= self.max
    }
}

fn hash(hasher: &RandomState, stream: &StreamId) -> u32 {
    // The half of a hash is one.
    (hasher.hash_one(stream.as_str()) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(name: &str) -> StreamId {
        StreamId::new(name).expect("valid")
    }

    fn hashes(names: &Names, of: &[&str]) -> Hashes {
        of.iter()
            .map(|name| hash(&names.hasher, &StreamId::from_stored((*name).into())))
            .collect()
    }

    fn complete(max: usize, listed: &[&str]) -> Names {
        let mut names = Names::new(max, 1);
        names.missed();
        let number = names.begin(std::iter::empty()).expect("due").number;
        let listed = hashes(&names, listed);
        names.listed(number, Some(listed));
        names
    }

    #[test]
    fn only_what_is_neither_listed_nor_described_is_lacked() {
        let names = complete(10, &["old", "$$described"]);
        assert!(names.lack(&stream("new")));
        assert!(!names.lack(&stream("old")));
        assert!(!names.lack(&stream("described")), "it may be a tombstone");
    }

    #[test]
    fn nothing_is_lacked_before_the_listing_is_complete() {
        let mut names = Names::new(10, 2);
        names.missed();
        assert!(
            names.begin(std::iter::empty()).is_none(),
            "not yet worth it"
        );
        names.missed();
        let sent = [stream("sent")];
        let listing = names.begin(sent.iter()).expect("due");
        assert!(names.begin(std::iter::empty()).is_none(), "once is enough");
        names.add(&stream("met"));
        assert!(!names.lack(&stream("new")));
        names.listed(listing.number, Some(Hashes::new()));
        assert!(names.lack(&stream("new")));
        assert!(!names.lack(&stream("sent")));
        assert!(!names.lack(&stream("met")));
        names.add(&stream("new"));
        assert!(!names.lack(&stream("new")));
    }

    #[test]
    fn an_outdated_listing_does_not_count() {
        let mut names = Names::new(10, 1);
        names.missed();
        let outdated = names.begin(std::iter::empty()).expect("due");
        names.forget();
        names.listed(outdated.number, Some(Hashes::new()));
        assert!(!names.lack(&stream("new")));
        names.missed();
        let listing = names.begin(std::iter::empty()).expect("due");
        names.listed(outdated.number, Some(Hashes::new()));
        assert!(!names.lack(&stream("new")));
        names.listed(listing.number, Some(Hashes::new()));
        assert!(names.lack(&stream("new")));
    }

    #[test]
    fn too_many_names_are_looked_up_as_ever() {
        let mut names = complete(2, &["a", "b"]);
        assert!(names.lack(&stream("c")));
        names.add(&stream("c"));
        assert!(!names.lack(&stream("d")));
        names.missed();
        assert!(names.begin(std::iter::empty()).is_none(), "for good");
        assert!(!complete(2, &["a", "b", "c"]).lack(&stream("d")));
        let mut none = Names::new(0, 1);
        none.missed();
        assert!(none.begin(std::iter::empty()).is_none(), "switched off");
    }
}
