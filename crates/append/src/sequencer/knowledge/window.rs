//! The ids of the deduplication window, to recognise retries that expect `any` revision.
//!
//! Why in memory: an index over (stream, id) in the database would cost every append a random insert. How: a hash of
//! (stream, id) chooses one of many *shards*. Each shard is an open-addressing table (linear probing) of 64-bit words:
//! 31 bits of the hash and the low 32 bits of the position. A lookup touches one shard, however many ids there are. A
//! shard that is full drops the ids that no longer count and is made anew, larger than needed, so that no single step
//! is long. An id costs 10 to 12 bytes. A hit is only a hint: the caller looks at the stored event. Invariants: every
//! id after `covered_from` is here, and none at or before it is reported; `covered_from` moves only when all ids before
//! it lie outside the promised window, when there are too many, or when positions no longer fit 32 bits.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use gesta_core::backend::{RowId, StoredId};
use gesta_core::{EventId, IdempotencyWindow, Position, Timestamp};

/// The greatest number of ids that are kept, whatever the window demands (about 0.8 GB).
const IDS_MAX: usize = 64 * 1024 * 1024;
const SHARDS: usize = 1 << 10;
/// The number of slots of a shard that has no ids yet.
const SLOTS_MIN: usize = 8;
/// The greatest number of ids in a block. Ids leave the window in blocks.
const BLOCK_IDS: usize = 1 << 16;
/// The greatest number of positions over which the ids of a block are spread.
const BLOCK_POSITIONS: u64 = 1 << 24;
/// The greatest number of positions whose ids are kept, because the low 32 bits of a position must tell them apart.
const POSITIONS_MAX: u64 = 1 << 31;
const LOW_BITS: u64 = u32::MAX as u64;
/// The number of shards that are checked, at each step of expiry, for memory to give back.
const TRIMMED_AT_ONCE: usize = 4;

/// One part of the ids.
#[derive(Clone, Debug, Default)]
struct Shard {
    ids: usize,
    slots: Vec<u64>,
}

impl Shard {
    fn insert(&mut self, word: u64, lives: impl Fn(u64) -> bool) {
        if self.is_full() {
            self.renew(lives);
        }
        self.put(word);
    }

    fn is_full(&self) -> bool {
        self.ids >= self.slots.len() * 4 / 5
    }

    /// Makes the table anew without the ids that no longer count. The new table has space for half as many more as
    /// still count.
    fn renew(&mut self, lives: impl Fn(u64) -> bool) {
        let old = std::mem::take(&mut self.slots);
        let words = || old.iter().filter(|word| **word != 0 && lives(**word));
        self.slots = vec![0; words().count() * 3 / 2 + SLOTS_MIN];
        self.ids = 0;
        words().for_each(|word| self.put(*word));
    }

    /// Puts a word into the next free slot. There must be a free slot.
    fn put(&mut self, word: u64) {
        let mut slot = self.slot_of(word);
        while self.slots[slot] != 0 {
            slot = (slot + 1) % self.slots.len();
        }
        self.slots[slot] = word;
        self.ids += 1;
    }

    /// Returns the words that hold the same bits of a hash.
    fn same(&self, word: u64) -> impl Iterator<Item = u64> {
        let start = match self.slots.is_empty() {
            true => 0,
            false => self.slot_of(word),
        };
        let (before, from) = self.slots.split_at(start);
        let probed = from.iter().chain(before).take_while(|slot| **slot != 0);
        probed
            .copied()
            .filter(move |other| other >> 32 == word >> 32)
    }

    /// Returns the first slot of a word. The bits of the hash that the word holds choose it, so that a table can be
    /// made anew from its words.
    fn slot_of(&self, word: u64) -> usize {
        let hash = word >> 33;
        ((hash * self.slots.len() as u64) >> 31) as usize
    }
}

/// The ids of a range of positions, which leave the window together.
#[derive(Clone, Debug)]
struct Block {
    first: Position,
    last: Position,
    newest: Timestamp,
    ids: usize,
}

impl Block {
    fn of(id: &StoredId) -> Self {
        Self {
            first: id.position,
            last: id.position,
            newest: id.created,
            ids: 0,
        }
    }

    /// Returns whether the block can take the id at this position. Ids come in order of position.
    fn takes(&self, position: Position) -> bool {
        self.ids < BLOCK_IDS && position.0 - self.first.0 < BLOCK_POSITIONS
    }

    fn add(&mut self, id: &StoredId) {
        self.first = self.first.min(id.position);
        self.last = self.last.max(id.position);
        self.newest = self.newest.max(id.created);
        self.ids += 1;
    }
}

/// What is known of an id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InWindow {
    /// The id is probably stored at this position.
    Perhaps(Position),
    /// The id is not stored within the window.
    No,
    /// The id is not stored after this position; at and before it nothing is known.
    NotAfter(Position),
}

/// The ids of the deduplication window of one log.
#[derive(Debug)]
pub(crate) struct WindowIds {
    hasher: RandomState,
    window: IdempotencyWindow,
    shards: Box<[Shard]>,
    /// The blocks of the ids, oldest first.
    blocks: VecDeque<Block>,
    /// The number of ids in all blocks.
    ids: usize,
    newest: Position,
    /// The position after which every id is known.
    covered_from: Position,
    /// Whether the window begins at or after `covered_from`, so that no older id matters.
    covers_window: bool,
    /// The last shard that was checked for memory to give back.
    trimmed: usize,
}

impl WindowIds {
    /// Makes a window that knows nothing of positions up to `end`.
    pub(crate) fn new(window: IdempotencyWindow, end: Position) -> Self {
        Self {
            hasher: RandomState::new(),
            window,
            shards: vec![Shard::default(); SHARDS].into(),
            blocks: VecDeque::new(),
            ids: 0,
            newest: end,
            covered_from: end,
            covers_window: end == Position::START,
            trimmed: 0,
        }
    }

    /// Adds an id. Ids must be added in order of position.
    pub(crate) fn insert(&mut self, id: StoredId) {
        self.newest = self.newest.max(id.position);
        self.put(hash(&self.hasher, id.stream, id.id), id.position);
        self.ids += 1;
        match self.blocks.back_mut() {
            Some(newest) if newest.takes(id.position) => newest.add(&id),
            _ => {
                let mut block = Block::of(&id);
                block.add(&id);
                self.blocks.push_back(block);
            }
        }
    }

    fn put(&mut self, hash: u64, position: Position) {
        let (newest, covered_from) = (self.newest, self.covered_from);
        let lives = |word| position_of(word, newest) > covered_from;
        self.shards[shard_of(hash)].insert(word(hash, position), lives);
    }

    /// Returns the position after which every id is known.
    pub(crate) fn covered_from(&self) -> Position {
        self.covered_from
    }

    /// Makes an empty range for the ids after position `from`, which ends where the known ids begin.
    pub(crate) fn older(&self, from: Position) -> OlderIds {
        let to = self.covered_from;
        let first = Position(to.0.saturating_sub(OlderIds::POSITIONS_MAX)).max(from);
        OlderIds {
            hasher: self.hasher.clone(),
            from: first,
            to,
            covers_window: first == from,
            hashes: Vec::new(),
            block: None,
        }
    }

    /// Adds older ids. Returns false if they were dropped, because they do not end where the known ids begin, or
    /// because there are too many.
    pub(crate) fn prepend(&mut self, older: OlderIds) -> bool {
        let space = IDS_MAX - self.ids.min(IDS_MAX);
        let is_far = self.newest.0 - older.from.0 > POSITIONS_MAX;
        if older.to != self.covered_from || older.hashes.len() > space || is_far {
            return false;
        }
        self.covered_from = older.from;
        self.covers_window = older.covers_window;
        self.ids += older.hashes.len();
        for (hash, position) in older.hashes {
            self.put(hash, position);
        }
        // A range without any is nothing that could leave the window.
        if let Some(block) = older.block {
            self.blocks.push_front(block);
        }
        true
    }

    /// Returns whether all of the window is covered, so that nothing older matters.
    pub(crate) fn covers_window(&self) -> bool {
        self.covers_window
    }

    /// Drops the ids that lie outside the window.
    pub(crate) fn expire(&mut self, now: Timestamp, end: Position) {
        let age = i64::try_from(self.window.time.as_micros()).unwrap_or(i64::MAX);
        let oldest = Timestamp(now.0.saturating_sub(age));
        while let Some(first) = self.blocks.front() {
            let outside = first.newest < oldest && first.last.plus(self.window.positions) < end;
            let is_far = self.newest.0 - first.first.0 > POSITIONS_MAX;
            if !outside && !is_far && self.ids <= IDS_MAX {
                break;
            }
            self.covers_window = outside;
            self.covered_from = first.last;
            self.ids -= first.ids;
            self.blocks.pop_front();
        }
        self.trim();
    }

    /// Gives back memory that was needed for more ids than there are now, a few shards at a time.
    fn trim(&mut self) {
        let many = self.ids / SHARDS * 2 + SLOTS_MIN;
        let (newest, covered_from) = (self.newest, self.covered_from);
        for _ in 0..TRIMMED_AT_ONCE {
            self.trimmed = (self.trimmed + 1) % SHARDS;
            let shard = &mut self.shards[self.trimmed];
            if shard.ids > many {
                shard.renew(|word| position_of(word, newest) > covered_from);
            }
        }
    }

    /// Looks up an id.
    pub(crate) fn find(&self, stream: RowId, id: EventId) -> InWindow {
        let hash = hash(&self.hasher, stream, id);
        let same = self.shards[shard_of(hash)].same(word(hash, Position::START));
        let positions = same.map(|word| position_of(word, self.newest));
        match positions
            .filter(|position| *position > self.covered_from)
            .max()
        {
            Some(position) => InWindow::Perhaps(position),
            None if self.covers_window => InWindow::No,
            None => InWindow::NotAfter(self.covered_from),
        }
    }
}

fn hash(hasher: &RandomState, stream: RowId, id: EventId) -> u64 {
    hasher.hash_one((stream.0, id.0.as_u128()))
}

/// Returns the shard of an id. The lowest bits of its hash choose it.
fn shard_of(hash: u64) -> usize {
    (hash & LOW_BITS) as usize % SHARDS
}

/// Makes the word of an id from the highest bits of its hash, its position, and a bit that is always set, so that no
/// word is 0.
fn word(hash: u64, position: Position) -> u64 {
    hash >> 33 << 33 | 1 << 32 | position.0 & LOW_BITS
}

/// Returns the last position up to `newest` that the word may mean.
fn position_of(word: u64, newest: Position) -> Position {
    let distance = newest.0.wrapping_sub(word) & LOW_BITS;
    Position(newest.0.saturating_sub(distance))
}

/// The ids of a range of positions that is older than what is known. These ids are gathered elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct OlderIds {
    hasher: RandomState,
    from: Position,
    to: Position,
    /// Whether nothing before `from` matters.
    covers_window: bool,
    hashes: Vec<(u64, Position)>,
    /// The block of these ids; `None` while there are no ids.
    block: Option<Block>,
}

impl OlderIds {
    /// The greatest number of positions of one range. Adding a range is one step, which takes milliseconds.
    const POSITIONS_MAX: u64 = 40_000;

    /// Returns the position after which the ids lie.
    pub(crate) fn from(&self) -> Position {
        self.from
    }

    /// Returns the last position of the range.
    pub(crate) fn to(&self) -> Position {
        self.to
    }

    /// Adds an id. The order does not matter.
    pub(crate) fn insert(&mut self, id: StoredId) {
        let hash = hash(&self.hasher, id.stream, id.id);
        self.hashes.push((hash, id.position));
        self.block.get_or_insert_with(|| Block::of(&id)).add(&id);
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

    /// Goal: every id is found, and next to none that is not there.
    ///
    /// The test once allowed no collision of hashes. With 41 bits of a hash and so many ids it failed one run in six.
    #[test]
    fn finds_each_id_of_its_stream() {
        let mut known = WindowIds::new(window(10), Position::START);
        let ids: Vec<EventId> = (0..500_000).map(|_| EventId::random()).collect();
        for (i, id) in (1..).zip(&ids) {
            known.insert(stored(*id, i, 0));
        }
        assert_eq!(known.blocks.len(), ids.len().div_ceil(BLOCK_IDS));
        let mut collisions = 0;
        for (position, id) in (1..).map(Position).zip(&ids) {
            match known.find(STREAM, *id) {
                InWindow::Perhaps(found) if found == position => {}
                // Another id, stored later, has the same hash.
                InWindow::Perhaps(found) if found > position => collisions += 1,
                other => panic!("{position:?}: {other:?}"),
            }
            collisions += u32::from(known.find(RowId(2), *id) != InWindow::No);
        }
        assert!(collisions < 10, "{collisions}");
    }

    #[test]
    fn both_time_and_positions_must_have_passed() {
        let mut known = WindowIds::new(window(1), Position::START);
        let (old, new) = (EventId::random(), EventId::random());
        known.insert(stored(old, 1, 0));
        known.expire(Timestamp(600_000_001), Position(2));
        assert_eq!(
            known.find(STREAM, old),
            InWindow::Perhaps(Position(1)),
            "among the newest positions"
        );
        known.insert(stored(new, 1 + BLOCK_POSITIONS, 1));
        known.expire(Timestamp(600_000_000), Position(BLOCK_POSITIONS + 1));
        assert_eq!(
            known.find(STREAM, old),
            InWindow::Perhaps(Position(1)),
            "not old enough"
        );
        known.expire(Timestamp(600_000_001), Position(BLOCK_POSITIONS + 1));
        assert_eq!(known.find(STREAM, old), InWindow::No);
        assert_eq!(
            known.find(STREAM, new),
            InWindow::Perhaps(Position(1 + BLOCK_POSITIONS))
        );
    }

    #[test]
    fn says_what_it_does_not_know_until_older_ids_are_added() {
        let end = OlderIds::POSITIONS_MAX + 50;
        let mut known = WindowIds::new(window(10), Position(end));
        let [older, old, new] = [(); 3].map(|()| EventId::random());
        known.insert(stored(new, end + 1, 2));
        let unknown = |position| InWindow::NotAfter(Position(position));
        assert_eq!(known.find(STREAM, old), unknown(end));

        let mut range = known.older(Position(20));
        assert_eq!((range.from(), range.to()), (Position(50), Position(end)));
        range.insert(stored(old, end, 1));
        range.insert(stored(EventId::random(), 51, 1));
        assert!(known.prepend(range));
        assert_eq!(known.find(STREAM, old), InWindow::Perhaps(Position(end)));
        assert_eq!(known.find(STREAM, older), unknown(50));
        assert!(!known.covers_window());

        let mut range = known.older(Position(20));
        assert_eq!((range.from(), range.to()), (Position(20), Position(50)));
        range.insert(stored(older, 41, 0));
        assert!(known.prepend(range));
        for (id, position) in [(older, 41), (old, end), (new, end + 1)] {
            assert_eq!(
                known.find(STREAM, id),
                InWindow::Perhaps(Position(position))
            );
        }
        assert_eq!(known.find(STREAM, EventId::random()), InWindow::No);
        assert!(known.covers_window());
    }

    /// Goal: a range that was read while the ids after it were forgotten does not leave a gap that nobody knows of.
    #[test]
    fn ids_that_do_not_join_those_known_are_refused() {
        let mut known = WindowIds::new(window(10), Position(50));
        let mut range = known.older(Position::START);
        range.insert(stored(EventId::random(), 41, 1));
        known = WindowIds::new(window(10), Position(60));
        assert!(!known.prepend(range));
        assert_eq!(
            known.find(STREAM, EventId::random()),
            InWindow::NotAfter(Position(60))
        );
    }

    /// Goal: memory that ids outside the window have taken is given back, and no id that counts goes with it.
    #[test]
    fn ids_outside_the_window_give_their_memory_back() {
        let mut known = WindowIds::new(window(10), Position::START);
        for position in 1..=400_000 {
            known.insert(stored(EventId::random(), position, 0));
        }
        let slots = |known: &WindowIds| -> usize {
            known.shards.iter().map(|shard| shard.slots.len()).sum()
        };
        assert!(slots(&known) > 400_000);
        let kept: Vec<EventId> = (0..1_000).map(|_| EventId::random()).collect();
        for (position, id) in (BLOCK_POSITIONS * 2..).zip(&kept) {
            known.insert(stored(*id, position, 700_000_000));
        }
        for _ in 0..SHARDS / TRIMMED_AT_ONCE {
            known.expire(
                Timestamp(700_000_000),
                Position(BLOCK_POSITIONS * 2 + 1_000),
            );
        }
        assert!(slots(&known) < 50_000, "{}", slots(&known));
        for (position, id) in (BLOCK_POSITIONS * 2..).zip(&kept) {
            assert_eq!(
                known.find(STREAM, *id),
                InWindow::Perhaps(Position(position))
            );
        }
    }

    /// Goal: positions beyond 32 bits are told right, and ids too far back are no longer known.
    #[test]
    fn positions_of_any_size_are_told() {
        let start = (1 << 40) - 5;
        let mut known = WindowIds::new(window(u64::MAX / 2), Position(start));
        let ids: Vec<EventId> = (0..10).map(|_| EventId::random()).collect();
        for (position, id) in (start + 1..).zip(&ids) {
            known.insert(stored(*id, position, 0));
        }
        let positions = (start + 1..).map(Position);
        for (position, id) in positions.zip(&ids) {
            assert_eq!(known.find(STREAM, *id), InWindow::Perhaps(position));
        }
        let far = start + 2 + POSITIONS_MAX;
        known.insert(stored(EventId::random(), far, 0));
        known.expire(Timestamp(0), Position(far));
        let unknown = InWindow::NotAfter(Position(start + 10));
        assert_eq!(known.find(STREAM, ids[0]), unknown);
    }

    /// Goal: ranges that scavenging has emptied do not end the reading of those before them.
    #[test]
    fn a_range_without_ids_is_known_to_have_none() {
        let end = OlderIds::POSITIONS_MAX * 3;
        let mut known = WindowIds::new(window(1), Position(end));
        assert!(known.prepend(known.older(Position::START)));
        known.expire(Timestamp(700_000_000), Position(end));
        let (old, unknown) = (EventId::random(), EventId::random());
        let below = Position(OlderIds::POSITIONS_MAX * 2);
        assert_eq!(known.find(STREAM, old), InWindow::NotAfter(below));
        let mut range = known.older(Position::START);
        range.insert(stored(old, below.0, 700_000_000));
        assert!(known.prepend(range));
        assert_eq!(known.find(STREAM, old), InWindow::Perhaps(below));
        let below = Position(OlderIds::POSITIONS_MAX);
        assert_eq!(known.find(STREAM, unknown), InWindow::NotAfter(below));
    }

    /// Goal: if older ids could not be read, nothing older matters once the window has passed them.
    #[test]
    fn the_window_is_covered_once_it_has_passed_what_is_unknown() {
        let mut known = WindowIds::new(window(1), Position(50));
        known.insert(stored(EventId::random(), 51, 1));
        known.insert(stored(EventId::random(), 52 + BLOCK_POSITIONS, 2));
        assert!(!known.covers_window());
        known.expire(Timestamp(600_000_003), Position(60 + BLOCK_POSITIONS));
        assert!(known.covers_window());
    }

    /// Goal: to find an id few slots are looked at, however many ids a shard has.
    #[test]
    fn an_id_lies_near_the_slot_that_its_hash_chooses() {
        let (mut shard, hasher) = (Shard::default(), RandomState::new());
        for position in 1..=10_000 {
            let hash = hash(&hasher, STREAM, EventId::random());
            shard.insert(word(hash, Position(position)), |_| true);
        }
        let len = shard.slots.len();
        assert!(len < 20_000, "{len}");
        let taken = shard
            .slots
            .iter()
            .enumerate()
            .filter(|(_, word)| **word != 0);
        let steps = taken.map(|(slot, word)| (slot + len - shard.slot_of(*word)) % len);
        let steps: usize = steps.sum();
        assert!(steps < 10_000 * 4, "{steps}");
    }

    /// Goal: ids that were read leave the window and are counted like those that were appended; a range that lies too
    /// far back to tell its positions apart is refused.
    #[test]
    fn ids_that_were_read_leave_the_window_too() {
        let mut known = WindowIds::new(window(1), Position(50));
        let mut range = known.older(Position(20));
        for position in 21..=30 {
            range.insert(stored(EventId::random(), position, 0));
        }
        assert!(known.prepend(range));
        assert_eq!(known.ids, 10);
        known.expire(Timestamp(700_000_000), Position(60));
        assert_eq!(known.ids, 0);

        for (distance, is_taken) in [(POSITIONS_MAX, true), (POSITIONS_MAX + 1, false)] {
            let mut known = WindowIds::new(window(1), Position(50));
            known.insert(stored(EventId::random(), 20 + distance, 0));
            let range = known.older(Position(20));
            assert_eq!(known.prepend(range), is_taken);
        }
    }
}
