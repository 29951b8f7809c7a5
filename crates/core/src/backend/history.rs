//! Which history of the store a process knows.

use std::sync::{PoisonError, RwLock};

use crate::ids::Incarnation;

/// Which history of the store a process knows.
///
/// A store has one history as long as the database loses no commit. After a fail-over or a restore that lost some,
/// positions and revisions are used again for other events: nothing that was learned before may be combined with
/// anything learned after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// Counts, within this process, the changes that it has found. It has grown before any answer of the connection on
    /// which the change was found is handed out: who finds the same number before and after some reads has read one
    /// history.
    pub number: u64,
    /// The life of the store in this history: what checkpoints carry.
    pub incarnation: Incarnation,
}

/// The history of a backend, as it is now. Reading it is cheap.
#[derive(Debug)]
pub struct CurrentHistory(RwLock<History>);

impl CurrentHistory {
    /// The first that this process knows.
    #[must_use]
    pub fn new(incarnation: Incarnation) -> Self {
        Self(RwLock::new(History {
            number: 0,
            incarnation,
        }))
    }

    /// The history as it is now.
    #[must_use]
    pub fn get(&self) -> History {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another history has begun.
    pub fn change(&self, incarnation: Incarnation) -> History {
        let mut history = self.0.write().unwrap_or_else(PoisonError::into_inner);
        history.number += 1;
        history.incarnation = incarnation;
        *history
    }
}
