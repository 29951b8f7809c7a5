//! Numbers that look random: they are drawn from a seed, or serve for the order of nodes at a log.

/// Mixes the bits of a number, by the finalizer of SplitMix64 (Steele, Lea, Flood: *Fast splittable pseudorandom number
/// generators*, 2014).
///
/// The order of nodes at a log rests on it, and nodes of different builds should agree about that order, so this
/// function must not be changed.
fn mix(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a number that breaks ties between nodes, in another order for each log (*rendezvous hashing*).
pub(crate) fn affinity(log: u16, node: u32) -> u64 {
    mix(mix(u64::from(log).wrapping_add(STEP)) ^ u64::from(node).wrapping_mul(STEP))
}

/// A source of random numbers.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number from 0 to `count - 1`.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.next() % count.max(1)
    }
}
