//! The ids of recently appended events, to recognise retries that expect `any` revision.
//!
//! Why in memory: an index over (stream, id) in the database would cost every append a random insert.
//! How: the newest ids lie in *generations*; each is an open-addressing table (linear probing, load at
//! most 3/4) of 64-bit words: 40 bits of a hash of (stream, id) and a 24-bit offset to the generation's
//! first position. So an id costs 10.7 to 21 bytes. A hit is only a hint: the caller looks at the stored event.
//! Invariants: every id behind `covered_from` is here; a generation is dropped only when all of it lies
//! outside the promised window, or when `ids_max` is exceeded, which moves `covered_from`.

use std::collections::VecDeque;

use gesta_core::{EventId, IdempotencyWindow, Position, StreamId, Timestamp};
use std::hash::BuildHasher;

const SLOTS: usize = 1 << 18;
const IDS_PER_GENERATION_MAX: usize = SLOTS / 4 * 3;
const OFFSET_BITS: u32 = 24;
const OFFSET_MAX: u64 = (1 << OFFSET_BITS) - 1;
/// Most ids kept, whatever the window asks for (about 0.7 GB).
const IDS_MAX: usize = 64 * 1024 * 1024;

/// One generation: ids of a range of positions.
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
            slots: vec![0; SLOTS],
        }
    }

    fn has_room_for(&self, position: Position) -> bool {
        self.ids < IDS_PER_GENERATION_MAX && position.0 - self.first.0 < OFFSET_MAX
    }

    fn insert(&mut self, hash: u64, position: Position, created: Timestamp) {
        let mut slot = slot_of(hash);
        while self.slots[slot] != 0 {
            slot = (slot + 1) % SLOTS;
        }
        // Offsets count from 1, so that no word is 0.
        self.slots[slot] = (hash & !OFFSET_MAX) | (position.0 - self.first.0 + 1);
        self.ids += 1;
        self.last = position;
        self.newest = self.newest.max(created);
    }

    /// Position of the newest matching id.
    fn find(&self, hash: u64) -> Option<Position> {
        let mut slot = slot_of(hash);
        let mut newest = None;
        while self.slots[slot] != 0 {
            let word = self.slots[slot];
            if word & !OFFSET_MAX == hash & !OFFSET_MAX {
                newest = newest.max(Some(self.first.plus((word & OFFSET_MAX) - 1)));
            }
            slot = (slot + 1) % SLOTS;
        }
        newest
    }
}

/// The bits above the offset choose the slot.
fn slot_of(hash: u64) -> usize {
    (hash >> OFFSET_BITS) as usize % SLOTS
}

/// What is known of an id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Recent {
    /// Probably stored at this position.
    Perhaps(Position),
    /// Not stored within the window.
    No,
    /// Not stored behind this position; before it nothing is known.
    NotBehind(Position),
}

/// The ids of recently appended events of one log.
pub(crate) struct RecentIds {
    hasher: std::hash::RandomState,
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
            hasher: std::hash::RandomState::new(),
            window,
            generations: VecDeque::new(),
            ids: 0,
            covered_from: end,
            covers_window: end == Position::START,
        }
    }

    /// Positions up to this one are not covered.
    pub(crate) fn covered_from(&self) -> Position {
        self.covered_from
    }

    /// Adds an id, in order of position.
    pub(crate) fn insert(
        &mut self,
        stream: &StreamId,
        id: EventId,
        position: Position,
        created: Timestamp,
    ) {
        let hash = self.hash(stream, id);
        push(&mut self.generations, hash, position, created);
        self.ids += 1;
    }

    /// Adds older ids, found by reading the log from `from` on; they end before the first one known so far.
    pub(crate) fn prepend(
        &mut self,
        older: Vec<(StreamId, EventId, Position, Timestamp)>,
        from: Position,
    ) {
        let mut generations = VecDeque::new();
        self.ids += older.len();
        for (stream, id, position, created) in older {
            push(&mut generations, self.hash(&stream, id), position, created);
        }
        generations.append(&mut self.generations);
        self.generations = generations;
        self.covered_from = from;
        self.covers_window = true;
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
            self.covers_window &= outside;
            self.covered_from = first.last;
            self.ids -= first.ids;
            self.generations.pop_front();
        }
    }

    /// Looks an id up.
    pub(crate) fn find(&self, stream: &StreamId, id: EventId) -> Recent {
        let hash = self.hash(stream, id);
        match self
            .generations
            .iter()
            .rev()
            .find_map(|generation| generation.find(hash))
        {
            Some(position) => Recent::Perhaps(position),
            None if self.covers_window => Recent::No,
            None => Recent::NotBehind(self.covered_from),
        }
    }

    fn hash(&self, stream: &StreamId, id: EventId) -> u64 {
        self.hasher.hash_one((stream.as_str(), id.0.as_u128()))
    }
}

fn push(generations: &mut VecDeque<Generation>, hash: u64, position: Position, created: Timestamp) {
    if let Some(newest) = generations.back_mut()
        && newest.has_room_for(position)
    {
        newest.insert(hash, position, created);
        return;
    }
    let mut generation = Generation::new(position);
    generation.insert(hash, position, created);
    generations.push_back(generation);
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

    fn stream(name: &str) -> StreamId {
        StreamId::new(name).expect("valid")
    }

    #[test]
    fn finds_ids_by_stream_over_several_generations() {
        let mut recent = RecentIds::new(window(10), Position::START);
        let ids: Vec<EventId> = (0..500_000).map(|_| EventId::random()).collect();
        for (i, id) in (1..).zip(&ids) {
            recent.insert(&stream("a"), *id, Position(i), Timestamp(0));
        }
        assert!(recent.generations.len() > 1);
        for at in [0_usize, 250_000, 499_999] {
            let position = Position(u64::try_from(at).expect("small") + 1);
            assert_eq!(
                recent.find(&stream("a"), ids[at]),
                Recent::Perhaps(position)
            );
            assert_eq!(recent.find(&stream("b"), ids[at]), Recent::No);
        }
    }

    #[test]
    fn both_time_and_positions_must_have_passed() {
        let mut recent = RecentIds::new(window(1), Position::START);
        let (old, new) = (EventId::random(), EventId::random());
        recent.insert(&stream("a"), old, Position(1), Timestamp(0));
        recent.expire(Timestamp(600_000_001), Position(2));
        assert_eq!(
            recent.find(&stream("a"), old),
            Recent::Perhaps(Position(1)),
            "among the newest positions"
        );
        recent.insert(&stream("a"), new, Position(1 + OFFSET_MAX), Timestamp(1));
        recent.expire(Timestamp(600_000_000), Position(OFFSET_MAX + 1));
        assert_eq!(
            recent.find(&stream("a"), old),
            Recent::Perhaps(Position(1)),
            "not old enough"
        );
        recent.expire(Timestamp(600_000_001), Position(OFFSET_MAX + 1));
        assert_eq!(recent.find(&stream("a"), old), Recent::No);
        assert_eq!(
            recent.find(&stream("a"), new),
            Recent::Perhaps(Position(1 + OFFSET_MAX))
        );
    }

    #[test]
    fn says_what_it_does_not_know_until_older_ids_are_added() {
        let mut recent = RecentIds::new(window(10), Position(50));
        let (old, new) = (EventId::random(), EventId::random());
        recent.insert(&stream("a"), new, Position(51), Timestamp(1));
        assert_eq!(
            recent.find(&stream("a"), old),
            Recent::NotBehind(Position(50))
        );
        recent.prepend(
            vec![(stream("a"), old, Position(41), Timestamp(0))],
            Position(40),
        );
        assert_eq!(
            recent.find(&stream("a"), old),
            Recent::Perhaps(Position(41))
        );
        assert_eq!(
            recent.find(&stream("a"), new),
            Recent::Perhaps(Position(51))
        );
    }
}
