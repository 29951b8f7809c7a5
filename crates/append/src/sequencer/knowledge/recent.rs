//! The ids of recently appended events, to recognise retries that expect `any` revision.
//!
//! Why in memory: an index over (stream, id) in the database would cost every append a random insert.
//! How: the newest ids lie in *generations*; each is an open-addressing table (linear probing, load at
//! most 3/4, doubled up to a maximum) of 64-bit words: 40 bits of a hash of (stream, id) and a 24-bit offset to the
//! generation's first position. So an id costs 10.7 to 21 bytes. A hit is only a hint: the caller looks at the stored event.
//! Invariants: every id behind `covered_from` is here; a generation is dropped only when all of it lies
//! outside the promised window, or when `ids_max` is exceeded, which moves `covered_from`.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use gesta_core::backend::{RowId, StoredId};
use gesta_core::{EventId, IdempotencyWindow, Position, Timestamp};

/// Slots of a generation that has just begun, and of one that is as large as it may be.
const SLOTS_MIN: usize = 1 << 6;
const SLOTS_MAX: usize = 1 << 18;
const IDS_PER_GENERATION_MAX: usize = SLOTS_MAX / 4 * 3;
const OFFSET_BITS: u32 = 24;
const OFFSET_MAX: u64 = (1 << OFFSET_BITS) - 1;
/// Most ids kept, whatever the window asks for (about 0.7 GB).
const IDS_MAX: usize = 64 * 1024 * 1024;

/// One generation: ids of a range of positions.
#[derive(Clone, Debug)]
pub(crate) struct Generation {
    first: Position,
    last: Position,
    newest: Timestamp,
    ids: usize,
    slots: Vec<u64>,
}

impl Generation {
    fn new(first: Position) -> Self {
        Self {
            first,
            last: first,
            newest: Timestamp::default(),
            ids: 0,
            slots: vec![0; SLOTS_MIN],
        }
    }

    /// Inserts in order of position.
    fn has_room_for(&self, position: Position) -> bool {
        self.ids < IDS_PER_GENERATION_MAX && position.0 - self.first.0 < OFFSET_MAX
    }

    fn insert(&mut self, hash: u64, position: Position, created: Timestamp) {
        if self.ids >= self.slots.len() / 4 * 3 && self.slots.len() < SLOTS_MAX {
            self.grow();
        }
        // Offsets count from 1, so that no word is 0.
        put(
            &mut self.slots,
            (hash & !OFFSET_MAX) | (position.0 - self.first.0 + 1),
        );
        self.ids += 1;
        self.last = self.last.max(position);
        self.newest = self.newest.max(created);
    }

    /// Doubles the table. A word holds all the bits of the hash that choose a slot.
    fn grow(&mut self) {
        let mut larger = vec![0; self.slots.len() * 2];
        let words = self.slots.iter().filter(|word| **word != 0);
        words.for_each(|word| put(&mut larger, *word));
        self.slots = larger;
    }

    /// Position of the newest matching id.
    fn find(&self, hash: u64) -> Option<Position> {
        let mut slot = slot_of(hash, self.slots.len());
        let mut newest = None;
        while self.slots[slot] != 0 {
            let word = self.slots[slot];
            if word & !OFFSET_MAX == hash & !OFFSET_MAX {
                newest = newest.max(Some(self.first.plus((word & OFFSET_MAX) - 1)));
            }
            slot = (slot + 1) % self.slots.len();
        }
        newest
    }
}

/// Puts a word into the next free slot; there is one.
fn put(slots: &mut [u64], word: u64) {
    let mut slot = slot_of(word, slots.len());
    while slots[slot] != 0 {
        slot = (slot + 1) % slots.len();
    }
    slots[slot] = word;
}

/// The bits above the offset choose the slot.
fn slot_of(hash: u64, slots: usize) -> usize {
    (hash >> OFFSET_BITS) as usize % slots
}

/// What is known of an id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Recent {
    /// Probably stored at this position.
    Perhaps(Position),
    /// Not stored within the window.
    No,
    /// Not stored behind this position; before it nothing is known.
    NotAfter(Position),
}

/// The ids of recently appended events of one log.
#[derive(Debug)]
pub(crate) struct RecentIds {
    hasher: RandomState,
    window: IdempotencyWindow,
    generations: VecDeque<Generation>,
    ids: usize,
    /// Every id behind this position is known.
    covered_from: Position,
    /// The window begins at or behind `covered_from`: nothing older matters.
    covers_window: bool,
}

impl RecentIds {
    /// Knows nothing of positions up to `end`.
    pub(crate) fn new(window: IdempotencyWindow, end: Position) -> Self {
        Self {
            hasher: RandomState::new(),
            window,
            generations: VecDeque::new(),
            ids: 0,
            covered_from: end,
            covers_window: end == Position::START,
        }
    }

    /// Adds an id, in order of position.
    pub(crate) fn insert(&mut self, id: StoredId) {
        let hash = hash(&self.hasher, id.stream, id.id);
        self.ids += 1;
        if let Some(newest) = self.generations.back_mut()
            && newest.has_room_for(id.position)
        {
            newest.insert(hash, id.position, id.created);
            return;
        }
        let mut generation = Generation::new(id.position);
        generation.insert(hash, id.position, id.created);
        self.generations.push_back(generation);
    }

    /// Every id behind this position is known.
    pub(crate) fn covered_from(&self) -> Position {
        self.covered_from
    }

    /// Takes ids that end where those known so far begin, behind position `from`.
    pub(crate) fn older(&self, from: Position) -> OlderIds {
        let to = self.covered_from;
        let first = Position(to.0.saturating_sub(OlderIds::POSITIONS_MAX)).max(from);
        OlderIds {
            hasher: self.hasher.clone(),
            from: first,
            to,
            covers_window: first == from,
            generation: Generation::new(first.next()),
        }
    }

    /// Adds older ids. False if that was of no use: what they end with is no longer the oldest known, or there are too many.
    pub(crate) fn prepend(&mut self, older: OlderIds) -> bool {
        let room = IDS_MAX - self.ids.min(IDS_MAX);
        if older.to != self.covered_from || older.generation.ids > room {
            return false;
        }
        // A range without any is nothing that could leave the window.
        if older.generation.ids > 0 {
            self.ids += older.generation.ids;
            self.generations.push_front(older.generation);
        }
        self.covered_from = older.from;
        self.covers_window = older.covers_window;
        true
    }

    /// All of the window is covered: nothing older matters.
    pub(crate) fn covers_window(&self) -> bool {
        self.covers_window
    }

    /// Drops what lies outside the window.
    pub(crate) fn expire(&mut self, now: Timestamp, end: Position) {
        let age = i64::try_from(self.window.time.as_micros()).unwrap_or(i64::MAX);
        let oldest = Timestamp(now.0.saturating_sub(age));
        while let Some(first) = self.generations.front() {
            let outside = first.newest < oldest && first.last.plus(self.window.positions) < end;
            if !outside && self.ids <= IDS_MAX {
                return;
            }
            self.covers_window = outside;
            self.covered_from = first.last;
            self.ids -= first.ids;
            self.generations.pop_front();
        }
    }

    /// Looks an id up.
    pub(crate) fn find(&self, stream: RowId, id: EventId) -> Recent {
        let hash = hash(&self.hasher, stream, id);
        match self
            .generations
            .iter()
            .rev()
            .find_map(|generation| generation.find(hash))
        {
            Some(position) => Recent::Perhaps(position),
            None if self.covers_window => Recent::No,
            None => Recent::NotAfter(self.covered_from),
        }
    }
}

fn hash(hasher: &RandomState, stream: RowId, id: EventId) -> u64 {
    hasher.hash_one((stream.0, id.0.as_u128()))
}

/// Ids of a range of positions that is older than what is known, gathered elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct OlderIds {
    hasher: RandomState,
    from: Position,
    to: Position,
    /// Nothing before `from` matters.
    covers_window: bool,
    generation: Generation,
}

impl OlderIds {
    /// One generation holds so many.
    const POSITIONS_MAX: u64 = IDS_PER_GENERATION_MAX as u64;

    /// They lie after this position, …
    pub(crate) fn from(&self) -> Position {
        self.from
    }

    /// … and end with this one.
    pub(crate) fn to(&self) -> Position {
        self.to
    }

    /// Adds an id, in any order.
    pub(crate) fn insert(&mut self, id: StoredId) {
        let hash = hash(&self.hasher, id.stream, id.id);
        self.generation.insert(hash, id.position, id.created);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn window(positions: u64) -> IdempotencyWindow {
        IdempotencyWindow {
            time: Duration::from_secs(600),
            positions,
        }
    }

    const STREAM: RowId = RowId(1);

    fn stored(id: EventId, position: u64, created: i64) -> StoredId {
        StoredId {
            stream: STREAM,
            id,
            position: Position(position),
            created: Timestamp(created),
        }
    }

    #[test]
    fn finds_ids_by_stream_over_several_generations() {
        let mut recent = RecentIds::new(window(10), Position::START);
        let ids: Vec<EventId> = (0..500_000).map(|_| EventId::random()).collect();
        for (i, id) in (1..).zip(&ids) {
            recent.insert(stored(*id, i, 0));
        }
        assert!(recent.generations.len() > 1);
        for at in [0_usize, 250_000, 499_999] {
            let position = Position(u64::try_from(at).expect("small") + 1);
            assert_eq!(recent.find(STREAM, ids[at]), Recent::Perhaps(position));
            assert_eq!(recent.find(RowId(2), ids[at]), Recent::No);
        }
    }

    #[test]
    fn both_time_and_positions_must_have_passed() {
        let mut recent = RecentIds::new(window(1), Position::START);
        let (old, new) = (EventId::random(), EventId::random());
        recent.insert(stored(old, 1, 0));
        recent.expire(Timestamp(600_000_001), Position(2));
        assert_eq!(
            recent.find(STREAM, old),
            Recent::Perhaps(Position(1)),
            "among the newest positions"
        );
        recent.insert(stored(new, 1 + OFFSET_MAX, 1));
        recent.expire(Timestamp(600_000_000), Position(OFFSET_MAX + 1));
        assert_eq!(
            recent.find(STREAM, old),
            Recent::Perhaps(Position(1)),
            "not old enough"
        );
        recent.expire(Timestamp(600_000_001), Position(OFFSET_MAX + 1));
        assert_eq!(recent.find(STREAM, old), Recent::No);
        assert_eq!(
            recent.find(STREAM, new),
            Recent::Perhaps(Position(1 + OFFSET_MAX))
        );
    }

    #[test]
    fn says_what_it_does_not_know_until_older_ids_are_added() {
        let end = OlderIds::POSITIONS_MAX + 50;
        let mut recent = RecentIds::new(window(10), Position(end));
        let [older, old, new] = [(); 3].map(|()| EventId::random());
        recent.insert(stored(new, end + 1, 2));
        let unknown = |position| Recent::NotAfter(Position(position));
        assert_eq!(recent.find(STREAM, old), unknown(end));

        let mut range = recent.older(Position(20));
        assert_eq!((range.from(), range.to()), (Position(50), Position(end)));
        range.insert(stored(old, end, 1));
        range.insert(stored(EventId::random(), 51, 1));
        assert!(recent.prepend(range));
        assert_eq!(recent.find(STREAM, old), Recent::Perhaps(Position(end)));
        assert_eq!(recent.find(STREAM, older), unknown(50));
        assert!(!recent.covers_window());

        let mut range = recent.older(Position(20));
        assert_eq!((range.from(), range.to()), (Position(20), Position(50)));
        range.insert(stored(older, 41, 0));
        assert!(recent.prepend(range));
        for (id, position) in [(older, 41), (old, end), (new, end + 1)] {
            assert_eq!(recent.find(STREAM, id), Recent::Perhaps(Position(position)));
        }
        assert_eq!(recent.find(STREAM, EventId::random()), Recent::No);
        assert!(recent.covers_window());
    }

    /// Goal: a range that was read while its neighbour was forgotten does not leave a gap that nobody knows of.
    #[test]
    fn ids_that_do_not_join_those_known_are_refused() {
        let mut recent = RecentIds::new(window(10), Position(50));
        let mut range = recent.older(Position::START);
        range.insert(stored(EventId::random(), 41, 1));
        recent = RecentIds::new(window(10), Position(60));
        assert!(!recent.prepend(range));
        assert_eq!(
            recent.find(STREAM, EventId::random()),
            Recent::NotAfter(Position(60))
        );
    }

    /// Goal: ranges that scavenging has emptied do not end the reading of those before them.
    #[test]
    fn a_range_without_ids_is_known_to_have_none() {
        let end = OlderIds::POSITIONS_MAX * 3;
        let mut recent = RecentIds::new(window(1), Position(end));
        assert!(recent.prepend(recent.older(Position::START)));
        recent.expire(Timestamp(700_000_000), Position(end));
        let (old, unknown) = (EventId::random(), EventId::random());
        let below = Position(OlderIds::POSITIONS_MAX * 2);
        assert_eq!(recent.find(STREAM, old), Recent::NotAfter(below));
        let mut range = recent.older(Position::START);
        range.insert(stored(old, below.0, 700_000_000));
        assert!(recent.prepend(range));
        assert_eq!(recent.find(STREAM, old), Recent::Perhaps(below));
        let below = Position(OlderIds::POSITIONS_MAX);
        assert_eq!(recent.find(STREAM, unknown), Recent::NotAfter(below));
    }

    /// Goal: if older ids could not be read, nothing older matters once the window has passed them.
    #[test]
    fn the_window_is_covered_once_it_has_passed_what_is_unknown() {
        let mut recent = RecentIds::new(window(1), Position(50));
        recent.insert(stored(EventId::random(), 51, 1));
        recent.insert(stored(EventId::random(), 52 + OFFSET_MAX, 2));
        assert!(!recent.covers_window());
        recent.expire(Timestamp(600_000_003), Position(60 + OFFSET_MAX));
        assert!(recent.covers_window());
    }
}
