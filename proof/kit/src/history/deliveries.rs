//! What a consumer group delivered, and what its consumers did with it.
//!
//! Events are told apart by anything that fits the run: a revision, an id. What is finished is written down before the
//! group is told, so it holds whether the group hears of it or not.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

/// A delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery<K> {
    /// Who got it.
    pub(crate) consumer: u64,
    pub(crate) event: K,
    /// How often it had been tried before, as the group says.
    pub(crate) retries: u32,
}

/// What happened to the events of a group. Clones are cheap, and all clones write into the same history.
#[derive(Debug)]
pub struct Deliveries<K>(Arc<Mutex<Records<K>>>);

#[derive(Debug)]
pub(crate) struct Records<K> {
    pub(crate) deliveries: Vec<Delivery<K>>,
    pub(crate) finished: HashSet<K>,
}

impl<K> Clone for Deliveries<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Deliveries<K> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Records {
            deliveries: Vec::new(),
            finished: HashSet::new(),
        })))
    }
}

impl<K: Clone + Eq + Hash> Deliveries<K> {
    /// Nothing was delivered.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Records<K>> {
        self.0.lock().expect("no panic while it is held")
    }

    /// A consumer got an event, which had been tried so often before.
    pub fn delivered(&self, consumer: u64, event: K, retries: u32) {
        self.lock().deliveries.push(Delivery {
            consumer,
            event,
            retries,
        });
    }

    /// A consumer has done its work for an event, or wants nobody to do it. To be called before the group is told.
    pub fn finish(&self, event: K) {
        self.lock().finished.insert(event);
    }

    /// How many events are finished.
    #[must_use]
    pub fn finished(&self) -> usize {
        self.lock().finished.len()
    }

    /// How many deliveries there were so far, and how many of those not for the first time.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let records = self.lock();
        let again = records.deliveries.iter().filter(|one| one.retries > 0);
        (records.deliveries.len(), again.count())
    }
}
