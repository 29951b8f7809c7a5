//! A queue in which callers take turns.
//!
//! Why: who asks a thousand times is to wait behind one item of each other caller, and nobody behind the thousand.
//! Invariants: the items of one caller come in the order in which they were added; after each item its caller goes to
//! the end of the turns. Where the queue is [bounded](Turns::push_within), whoever has fewer items is not refused in
//! favour of the one with most.
//! Not here: who a caller is, what waits, and how it is told that its turn has come.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The queue is full for one caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// How many items wait at most.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Most items of all callers together.
    pub all: usize,
    /// Most items of one caller.
    pub of_one: usize,
}

/// What to do about the first item of the caller whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The item is taken.
    Take,
    /// The caller keeps its turn, and the next caller is looked at.
    Pass,
    /// Nothing is taken, of nobody.
    Stop,
}

/// What waits, by caller.
#[derive(Debug)]
pub struct Turns<K, T> {
    /// The items of each caller who has any.
    of: HashMap<K, VecDeque<T>>,
    /// Callers in the order of their turns.
    order: VecDeque<K>,
    len: usize,
}

impl<K, T> Default for Turns<K, T> {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            order: VecDeque::new(),
            len: 0,
        }
    }
}

impl<K: Clone + Eq + Hash, T> Turns<K, T> {
    /// Returns how many items wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if an item of this caller waits.
    #[must_use]
    pub fn has(&self, from: &K) -> bool {
        self.of.contains_key(from)
    }

    /// Adds an item.
    pub fn push(&mut self, from: K, item: T) {
        let items = self.of.entry(from.clone()).or_default();
        if items.is_empty() {
            self.order.push_back(from);
        }
        items.push_back(item);
        self.len += 1;
    }

    /// Adds an item. If there are too many items, the last one of whoever has most items is removed and handed back.
    ///
    /// # Errors
    /// [`Full`] if the caller has too many items, or nobody has more than one more than the caller.
    pub fn push_within(&mut self, bounds: Bounds, from: K, item: T) -> Result<Option<T>, Full> {
        let own = self.of.get(&from).map_or(0, VecDeque::len);
        if own >= bounds.of_one {
            return Err(Full);
        }
        let mut displaced = None;
        if self.len >= bounds.all {
            let most = self.of.iter().max_by_key(|(_, items)| items.len());
            let (most, len) = most
                .map(|(caller, items)| (caller.clone(), items.len()))
                .ok_or(Full)?;
            if len <= own + 1 {
                return Err(Full);
            }
            // It keeps others, so its turn stays.
            displaced = self.of.get_mut(&most).and_then(VecDeque::pop_back);
            self.len -= usize::from(displaced.is_some());
        }
        self.push(from, item);
        Ok(displaced)
    }

    /// Takes the next item, of the caller whose turn it is.
    pub fn pop(&mut self) -> Option<(K, T)> {
        self.next(|_, _| Look::Take)
    }

    /// Looks at the first item of each caller, in the order of their turns, until one is to be taken, and takes it.
    pub fn next(&mut self, mut look: impl FnMut(&K, &T) -> Look) -> Option<(K, T)> {
        let mut at = 0;
        loop {
            let from = self.order.get(at)?;
            let first = self.of.get(from)?.front()?;
            match look(from, first) {
                Look::Take => break,
                Look::Pass => at += 1,
                Look::Stop => return None,
            }
        }
        let from = self.order.remove(at)?;
        let items = self.of.get_mut(&from)?;
        let item = items.pop_front()?;
        self.len -= 1;
        if items.is_empty() {
            self.of.remove(&from);
        } else {
            self.order.push_back(from.clone());
        }
        Some((from, item))
    }

    /// Removes the item of this caller that is meant, and returns it.
    pub fn remove(&mut self, from: &K, is_meant: impl FnMut(&T) -> bool) -> Option<T> {
        let items = self.of.get_mut(from)?;
        let at = items.iter().position(is_meant)?;
        let item = items.remove(at)?;
        self.len -= 1;
        if items.is_empty() {
            self.of.remove(from);
            self.order.retain(|other| other != from);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        all: 1_024,
        of_one: 16,
    };

    #[test]
    fn callers_take_turns() {
        let mut waiting = Turns::default();
        for n in 0..3 {
            waiting.push(1, (1, n));
        }
        waiting.push(2, (2, 0));
        waiting.push(3, (3, 0));
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop()).collect();
        let items: Vec<_> = order.into_iter().map(|(_, item)| item).collect();
        assert_eq!(items, [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2)]);
        assert_eq!(waiting.len(), 0);
        assert!(waiting.of.is_empty() && waiting.order.is_empty());
    }

    #[test]
    fn who_is_passed_over_keeps_the_turn() {
        let mut waiting = Turns::default();
        for (from, item) in [(1, 'a'), (2, 'b'), (2, 'c'), (3, 'd')] {
            waiting.push(from, item);
        }
        let but_first = |from: &i32, _: &char| match from {
            1 => Look::Pass,
            _ => Look::Take,
        };
        assert_eq!(waiting.next(but_first), Some((2, 'b')));
        assert_eq!(waiting.next(|_, _| Look::Stop), None);
        assert_eq!(waiting.pop(), Some((1, 'a')));
        assert_eq!(waiting.remove(&3, |item| *item == 'x'), None);
        assert_eq!(waiting.remove(&3, |item| *item == 'd'), Some('d'));
        assert_eq!((waiting.has(&3), waiting.has(&2)), (false, true));
        assert_eq!((waiting.pop(), waiting.pop()), (Some((2, 'c')), None));
        assert!(waiting.of.is_empty() && waiting.order.is_empty());
    }

    #[test]
    fn a_caller_who_has_many_gives_way_to_one_who_has_few() {
        let mut waiting = Turns::default();
        for n in 0..BOUNDS.all {
            let from = n / BOUNDS.of_one;
            assert_eq!(waiting.push_within(BOUNDS, from, n), Ok(None));
        }
        let enough = waiting.push_within(BOUNDS, 0, 0);
        assert_eq!(enough, Err(Full), "it has enough");
        let displaced = waiting.push_within(BOUNDS, 9_999, 0).expect("taken");
        assert!(displaced.is_some());
        assert_eq!(waiting.len(), BOUNDS.all);
        let popped = std::iter::from_fn(|| waiting.pop()).count();
        assert_eq!(popped, BOUNDS.all);
    }

    #[test]
    fn callers_that_share_the_queue_evenly_displace_nobody() {
        let mut waiting = Turns::default();
        for n in 0..BOUNDS.all {
            assert_eq!(waiting.push_within(BOUNDS, n, n), Ok(None));
        }
        assert_eq!(waiting.push_within(BOUNDS, usize::MAX, 0), Err(Full));
    }
}
