//! A queue that gives a turn to each who asks.
//!
//! Why: a caller who asks thousands of times a second must take neither all places nor the turns of others.
//! Invariants: one who asks has at most [`WAITING_OF_ONE_MAX`] items waiting, and all together have at most
//! [`WAITING_MAX`]; whoever has fewer items is not refused in favour of the one with most.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// The most items that wait.
const WAITING_MAX: usize = 1_024;
/// The most items of one who asks that wait.
pub(crate) const WAITING_OF_ONE_MAX: usize = 16;

/// The queue is full for one who asks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// What waits, by who asks.
#[derive(Debug)]
pub(crate) struct Waiting<K, T> {
    /// The waiting items of each who has any.
    of: HashMap<K, VecDeque<T>>,
    /// Those who ask in the order of their turns.
    turns: VecDeque<K>,
    count: usize,
}

impl<K, T> Default for Waiting<K, T> {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            turns: VecDeque::new(),
            count: 0,
        }
    }
}

impl<K: Copy + Eq + Hash, T> Waiting<K, T> {
    /// Adds an item. If there are too many items, the last one of whoever has most items is removed and handed
    /// back.
    pub(crate) fn push(&mut self, from: K, item: T) -> Result<Option<T>, Full> {
        let own = self.of.get(&from).map_or(0, VecDeque::len);
        if own >= WAITING_OF_ONE_MAX {
            return Err(Full);
        }
        let mut displaced = None;
        if self.count >= WAITING_MAX {
            let most = self.of.iter().max_by_key(|(_, items)| items.len());
            let (most, len) = most
                .map(|(address, items)| (*address, items.len()))
                .ok_or(Full)?;
            if len <= own + 1 {
                return Err(Full);
            }
            displaced = self.of.get_mut(&most).and_then(VecDeque::pop_back);
            self.count -= 1;
        }
        let items = self.of.entry(from).or_default();
        if items.is_empty() {
            self.turns.push_back(from);
        }
        items.push_back(item);
        self.count += 1;
        Ok(displaced)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes the next item, of the one whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let address = self.turns.pop_front()?;
        let items = self.of.get_mut(&address)?;
        let item = items.pop_front();
        if items.is_empty() {
            self.of.remove(&address);
        } else {
            self.turns.push_back(address);
        }
        self.count -= usize::from(item.is_some());
        item
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn addresses_take_turns() {
        let mut waiting = Waiting::default();
        for n in 0..3 {
            assert_eq!(waiting.push(address(1), (1, n)), Ok(None));
        }
        assert_eq!(waiting.push(address(2), (2, 0)), Ok(None));
        assert_eq!(waiting.push(address(3), (3, 0)), Ok(None));
        let order: Vec<_> = std::iter::from_fn(|| waiting.pop()).collect();
        assert_eq!(order, [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2)]);
        assert_eq!(waiting.count, 0);
        assert!(waiting.of.is_empty() && waiting.turns.is_empty());
    }

    #[test]
    fn an_address_that_has_many_gives_way_to_one_that_has_few() {
        let mut waiting = Waiting::default();
        for n in 0..WAITING_MAX {
            let from = address(u32::try_from(n / WAITING_OF_ONE_MAX).expect("few"));
            assert_eq!(waiting.push(from, n), Ok(None));
        }
        assert_eq!(waiting.push(address(0), 0), Err(Full), "it has enough");
        let displaced = waiting.push(address(9_999), 0).expect("taken");
        assert!(displaced.is_some());
        assert_eq!(waiting.count, WAITING_MAX);
        let mut popped = 0;
        while waiting.pop().is_some() {
            popped += 1;
        }
        assert_eq!(popped, WAITING_MAX);
    }

    #[test]
    fn addresses_that_share_the_queue_evenly_displace_nobody() {
        let mut waiting = Waiting::default();
        for n in 0..u32::try_from(WAITING_MAX).expect("few") {
            assert_eq!(waiting.push(address(n), n), Ok(None));
        }
        assert_eq!(waiting.push(address(u32::MAX), 0), Err(Full));
    }
}
