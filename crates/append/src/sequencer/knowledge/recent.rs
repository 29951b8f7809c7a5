//! The ids of recently appended events, to recognise retries that expect `any` revision.
//!
//! Why in memory: an index over (stream, id) in the database would cost every append a random insert.
//! How: a hash of (stream, id) chooses one of many *shards*; each is an open-addressing table (linear probing) of 64-bit words:
//! 31 bits of the hash and the low 32 bits of the position. A lookup touches one shard, however many ids there are. A shard that is
//! full drops the ids that no longer count and is made anew, with room to grow, so that no single step is long. An id costs 10 to 12
//! bytes. A hit is only a hint: the caller looks at the stored event.
//! Invariants: every id behind `covered_from` is here, and none at or before it is told; `covered_from` moves only when all ids
//! before it lie outside the promised window, when there are too many, or when positions no longer fit 32 bits.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use gesta_core::backend::{RowId, StoredId};
use gesta_core::{EventId, IdempotencyWindow, Position, Timestamp};

/// Most ids kept, whatever the window asks for (about 0.8 GB).
const IDS_MAX: usize = 64 * 1024 * 1024;
const SHARDS: usize = 1 << 10;
/// Slots of a shard that has no ids yet.
const SLOTS_MIN: usize = 8;
/// Ids leave the window in blocks of so many, …
const BLOCK_IDS: usize = 1 << 16;
/// … which lie within so many positions.
const BLOCK_POSITIONS: u64 = 1 << 24;
/// Ids of more positions than this are not kept: their low 32 bits tell positions apart.
const POSITIONS_MAX: u64 = 1 << 31;
const LOW_BITS: u64 = u32::MAX as u64;
/// Shards that are looked through, at each step of expiry, for room to give back.
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

    /// Makes the table anew without the ids that no longer count, half as large again as those that do.
    fn renew(&mut self, lives: impl Fn(u64) -> bool) {
        let old = std::mem::take(&mut self.slots);
        let words = || old.iter().filter(|word| **word != 0 && lives(**word));
        self.slots = vec![0; words().count() * 3 / 2 + SLOTS_MIN];
        self.ids = 0;
        words().for_each(|word| self.put(*word));
    }

    /// Puts a word into the next free slot; there is one.
    fn put(&mut self, word: u64) {
        let mut slot = self.slot_of(word);
        while self.slots[slot] != 0 {
            slot = (slot + 1) % self.slots.len();
        }
        self.slots[slot] = word;
        self.ids += 1;
    }

    /// Words with the same bits of a hash.
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

    /// The bits of the hash that a word holds choose the slot, so that a table can be made anew from its words.
    fn slot_of(&self, word: u64) -> usize {
        let hash = word >> 33;
        ((hash * self.slots.len() as u64) >> 31) as usize
    }
}

/// Ids of a range of positions, which leave the window together.
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

    /// Takes ids in order of position.
    fn has_room_for(&self, position: Position) -> bool {
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
    shards: Box<[Shard]>,
    /// Oldest first.
    blocks: VecDeque<Block>,
    /// Ids of all blocks.
    ids: usize,
    newest: Position,
    /// Every id behind this position is known.
    covered_from: Position,
    /// The window begins at or behind `covered_from`: nothing older matters.
    covers_window: bool,
    /// The shard that is looked at next for room to give back.
    trimmed: usize,
}

impl RecentIds {
    /// Knows nothing of positions up to `end`.
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

    /// Adds an id, in order of position.
    pub(crate) fn insert(&mut self, id: StoredId) {
        self.newest = self.newest.max(id.position);
        self.put(hash(&self.hasher, id.stream, id.id), id.position);
        self.ids += 1;
        match self.blocks.back_mut() {
            Some(newest) if newest.has_room_for(id.position) => newest.add(&id),
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
            hashes: Vec::new(),
            block: None,
        }
    }

    /// Adds older ids. False if that was of no use: what they end with is no longer the oldest known, or there are too many.
    pub(crate) fn prepend(&mut self, older: OlderIds) -> bool {
        let room = IDS_MAX - self.ids.min(IDS_MAX);
        let is_far = self.newest.0 - older.from.0 > POSITIONS_MAX;
        if older.to != self.covered_from || older.hashes.len() > room || is_far {
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

    /// All of the window is covered: nothing older matters.
    pub(crate) fn covers_window(&self) -> bool {
        self.covers_window
    }

    /// Drops what lies outside the window.
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

    /// Gives back room that was needed for more ids than there are now, a few shards at a time.
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

    /// Looks an id up.
    pub(crate) fn find(&self, stream: RowId, id: EventId) -> Recent {
        let hash = hash(&self.hasher, stream, id);
        let same = self.shards[shard_of(hash)].same(word(hash, Position::START));
        let positions = same.map(|word| position_of(word, self.newest));
        match positions
            .filter(|position| *position > self.covered_from)
            .max()
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

/// The lowest bits choose the shard, …
fn shard_of(hash: u64) -> usize {
    (hash & LOW_BITS) as usize % SHARDS
}

/// … and the highest go into the word, with a bit that is always set: no word is 0.
fn word(hash: u64, position: Position) -> u64 {
    hash >> 33 << 33 | 1 << 32 | position.0 & LOW_BITS
}

/// The last position up to `newest` that the word may mean.
fn position_of(word: u64, newest: Position) -> Position {
    let behind = newest.0.wrapping_sub(word) & LOW_BITS;
    Position(newest.0.saturating_sub(behind))
}

/// Ids of a range of positions that is older than what is known, gathered elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct OlderIds {
    hasher: RandomState,
    from: Position,
    to: Position,
    /// Nothing before `from` matters.
    covers_window: bool,
    hashes: Vec<(u64, Position)>,
    /// `None` while there are no ids.
    block: Option<Block>,
}

impl OlderIds {
    /// So many are taken in one step, which takes milliseconds.
    const POSITIONS_MAX: u64 = 40_000;

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
        let mut recent = RecentIds::new(window(10), Position::START);
        let ids: Vec<EventId> = (0..500_000).map(|_| EventId::random()).collect();
        for (i, id) in (1..).zip(&ids) {
            recent.insert(stored(*id, i, 0));
        }
        assert_eq!(recent.blocks.len(), ids.len().div_ceil(BLOCK_IDS));
        let mut collisions = 0;
        for (position, id) in (1..).map(Position).zip(&ids) {
            match recent.find(STREAM, *id) {
                Recent::Perhaps(found) if found == position => {}
                // Another id, stored later, has the same hash.
                Recent::Perhaps(found) if found > position => collisions += 1,
                other => panic!("{position:?}: {other:?}"),
            }
            collisions += u32::from(recent.find(RowId(2), *id) != Recent::No);
        }
        assert!(collisions < 10, "{collisions}");
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
        recent.insert(stored(new, 1 + BLOCK_POSITIONS, 1));
        recent.expire(Timestamp(600_000_000), Position(BLOCK_POSITIONS + 1));
        assert_eq!(
            recent.find(STREAM, old),
            Recent::Perhaps(Position(1)),
            "not old enough"
        );
        recent.expire(Timestamp(600_000_001), Position(BLOCK_POSITIONS + 1));
        assert_eq!(recent.find(STREAM, old), Recent::No);
        assert_eq!(
            recent.find(STREAM, new),
            Recent::Perhaps(Position(1 + BLOCK_POSITIONS))
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

    /// Goal: room that ids outside the window have taken is given back, and no id that counts goes with it.
    #[test]
    fn ids_outside_the_window_give_their_room_back() {
        let mut recent = RecentIds::new(window(10), Position::START);
        for position in 1..=400_000 {
            recent.insert(stored(EventId::random(), position, 0));
        }
        let slots = |recent: &RecentIds| -> usize {
            recent.shards.iter().map(|shard| shard.slots.len()).sum()
        };
        assert!(slots(&recent) > 400_000);
        let kept: Vec<EventId> = (0..1_000).map(|_| EventId::random()).collect();
        for (position, id) in (BLOCK_POSITIONS * 2..).zip(&kept) {
            recent.insert(stored(*id, position, 700_000_000));
        }
        for _ in 0..SHARDS / TRIMMED_AT_ONCE {
            recent.expire(
                Timestamp(700_000_000),
                Position(BLOCK_POSITIONS * 2 + 1_000),
            );
        }
        assert!(slots(&recent) < 50_000, "{}", slots(&recent));
        for (position, id) in (BLOCK_POSITIONS * 2..).zip(&kept) {
            assert_eq!(
                recent.find(STREAM, *id),
                Recent::Perhaps(Position(position))
            );
        }
    }

    /// Goal: positions beyond 32 bits are told right, and ids too far back are no longer known.
    #[test]
    fn positions_of_any_size_are_told() {
        let start = (1 << 40) - 5;
        let mut recent = RecentIds::new(window(u64::MAX / 2), Position(start));
        let ids: Vec<EventId> = (0..10).map(|_| EventId::random()).collect();
        for (position, id) in (start + 1..).zip(&ids) {
            recent.insert(stored(*id, position, 0));
        }
        let positions = (start + 1..).map(Position);
        for (position, id) in positions.zip(&ids) {
            assert_eq!(recent.find(STREAM, *id), Recent::Perhaps(position));
        }
        let far = start + 2 + POSITIONS_MAX;
        recent.insert(stored(EventId::random(), far, 0));
        recent.expire(Timestamp(0), Position(far));
        let unknown = Recent::NotAfter(Position(start + 10));
        assert_eq!(recent.find(STREAM, ids[0]), unknown);
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
        recent.insert(stored(EventId::random(), 52 + BLOCK_POSITIONS, 2));
        assert!(!recent.covers_window());
        recent.expire(Timestamp(600_000_003), Position(60 + BLOCK_POSITIONS));
        assert!(recent.covers_window());
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

    /// Goal: ids that were read leave the window and are counted like those that were appended; a range that lies too far back to
    /// tell its positions apart is refused.
    #[test]
    fn ids_that_were_read_leave_the_window_too() {
        let mut recent = RecentIds::new(window(1), Position(50));
        let mut range = recent.older(Position(20));
        for position in 21..=30 {
            range.insert(stored(EventId::random(), position, 0));
        }
        assert!(recent.prepend(range));
        assert_eq!(recent.ids, 10);
        recent.expire(Timestamp(700_000_000), Position(60));
        assert_eq!(recent.ids, 0);

        for (distance, is_taken) in [(POSITIONS_MAX, true), (POSITIONS_MAX + 1, false)] {
            let mut recent = RecentIds::new(window(1), Position(50));
            recent.insert(stored(EventId::random(), 20 + distance, 0));
            let range = recent.older(Position(20));
            assert_eq!(recent.prepend(range), is_taken);
        }
    }
}
