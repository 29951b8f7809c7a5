//! The choices of a schedule, which are drawn at random and recorded, or replayed.
//!
//! A schedule is nothing but the list of its choices. So it is replayed exactly by its seed, and it is shrunk by
//! leaving choices out and making them smaller: 0 is always the choice with the fewest faults, and a list that has
//! ended goes on with zeros.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The source of the choices.
#[derive(Debug)]
pub struct Choices {
    random: Option<SmallRng>,
    made: Vec<u32>,
    next: usize,
}

impl Choices {
    /// Makes choices that are drawn at random from a seed.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self {
            random: Some(SmallRng::seed_from_u64(seed)),
            made: Vec::new(),
            next: 0,
        }
    }

    /// Makes choices that repeat a list.
    #[must_use]
    pub fn replay(made: Vec<u32>) -> Self {
        Self {
            random: None,
            made,
            next: 0,
        }
    }

    /// Chooses one of `count` things, and returns its number: 0 to `count - 1`.
    pub fn pick(&mut self, count: u32) -> u32 {
        if let Some(random) = &mut self.random {
            let choice = random.random_range(0..count.max(1));
            self.made.push(choice);
            return choice;
        }
        let choice = self.made.get(self.next).copied().unwrap_or_default();
        self.next += 1;
        choice.min(count.max(1) - 1)
    }

    /// Chooses one of `count` things, and returns its index.
    pub fn index(&mut self, count: usize) -> usize {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        usize::try_from(self.pick(count)).unwrap_or(usize::MAX)
    }

    /// Returns true in `part` of `of` cases.
    pub fn chance(&mut self, part: u32, of: u32) -> bool {
        self.pick(of) >= of - part
    }

    /// Returns the choices made so far.
    #[must_use]
    pub fn into_made(self) -> Vec<u32> {
        self.made
    }
}

/// The most choices of all schedules that are tried while one is made smaller: some seconds up to a minute.
const TRIED_MAX: usize = 20_000_000;

/// Makes a failing list of choices smaller as long as it keeps failing, and that takes no more than a minute or so.
pub fn shrink(mut made: Vec<u32>, fails: impl Fn(&[u32]) -> bool) -> Vec<u32> {
    let mut tried = 0;
    let mut fails = |choices: &[u32]| {
        tried += choices.len().max(1);
        tried < TRIED_MAX && fails(choices)
    };
    let mut piece = made.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        while start < made.len() {
            let end = (start + piece).min(made.len());
            let mut without = made.clone();
            without.drain(start..end);
            if fails(&without) {
                made = without;
            } else {
                start = end;
            }
        }
        if piece == 1 {
            break;
        }
        piece = piece.div_ceil(2);
    }
    for place in 0..made.len() {
        for smaller in [0, made[place] / 2] {
            if made[place] > smaller {
                let mut tamer = made.clone();
                tamer[place] = smaller;
                if fails(&tamer) {
                    made = tamer;
                    break;
                }
            }
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_chosen_is_replayed() {
        let mut random = Choices::from_seed(3);
        let first: Vec<u32> = (1..50).map(|count| random.pick(count)).collect();
        let mut replayed = Choices::replay(random.into_made());
        let again: Vec<u32> = (1..50).map(|count| replayed.pick(count)).collect();
        assert_eq!(first, again);
        assert_eq!(replayed.pick(9), 0, "what has ended goes on tamely");
    }

    #[test]
    fn a_failing_list_shrinks_to_what_makes_it_fail() {
        let fails = |made: &[u32]| made.iter().filter(|choice| **choice > 5).count() >= 2;
        let made: Vec<u32> = (0..200).map(|n| n % 13).collect();
        let shrunk = shrink(made, fails);
        assert_eq!(shrunk.len(), 2);
        assert!(shrunk.iter().all(|choice| (6..=12).contains(choice)));
    }
}
