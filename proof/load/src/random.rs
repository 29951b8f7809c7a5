//! Random numbers that a seed fixes for ever, drawn from the generator of the test kit.
//!
//! Why not a crate: its streams may change between versions, and a seed in a stored result must
//! make the same workload years later.

use gesta_kit::faulty;

/// A generator. Not for secrets.
#[derive(Debug, Clone)]
pub struct Random(faulty::Random);

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(faulty::Random::new(seed))
    }

    /// An independent generator for one of many users of a seed.
    pub fn fork(seed: u64, user: u64) -> Self {
        let mut random = Self::new(seed ^ user.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self::new(random.next())
    }

    /// 64 random bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0.number()
    }

    /// A number below `end`, which must not be 0. The bias of the multiply-shift is below `end` / 2^64.
    #[expect(clippy::expect_used, reason = "the high half is below `end`")]
    pub fn below(&mut self, end: usize) -> usize {
        debug_assert!(end > 0);
        let product = u128::from(self.next()) * (end as u128);
        usize::try_from(product >> 64).expect("the high half is below `end`")
    }

    /// A number from 0 to below 1, of 53 bits.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Brings things into random order.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for end in (2..=things.len()).rev() {
            things.swap(end - 1, self.below(end));
        }
    }

    /// A random version-4 UUID.
    pub fn uuid(&mut self) -> uuid::Uuid {
        let bits = (u128::from(self.next()) << 64) | u128::from(self.next());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }
}

/// Things in random order, each once before any comes again.
#[derive(Debug, Clone)]
pub struct Bag<T> {
    kinds: Vec<T>,
    left: Vec<T>,
    random: Random,
}

impl<T: Clone> Bag<T> {
    /// A bag of these.
    pub fn new(kinds: Vec<T>, random: Random) -> Self {
        Self {
            kinds,
            left: Vec::new(),
            random,
        }
    }

    /// The next; none if the bag never had any.
    pub fn draw(&mut self) -> Option<T> {
        if self.left.is_empty() {
            self.left = self.kinds.clone();
        }
        if self.left.is_empty() {
            return None;
        }
        let at = self.random.below(self.left.len());
        Some(self.left.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_for_ever() {
        let mut random = Random::new(1_234_567);
        let numbers = [random.next(), random.next(), random.next()];
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }
}
