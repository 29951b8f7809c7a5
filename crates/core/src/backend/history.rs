//! The history of the store that a process knows.

use std::sync::{PoisonError, RwLock};

use crate::ids::Incarnation;

/// The history of the store that a process knows.
///
/// A store has one history as long as the database loses no commit. After a fail-over or a restore that lost some,
/// positions and revisions are used again for other events. Nothing that was learned before may be combined with
/// anything learned after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// Number of changes of the history that this process has found. The number has grown before any answer of the
    /// connection on which the change was found is handed out. So a caller that finds the same number before and after
    /// some reads has read one history.
    pub number: u64,
    /// Incarnation of the store in this history, which checkpoints carry.
    pub incarnation: Incarnation,
}

/// The history of a backend, as it is now. Reading it does no I/O.
#[derive(Debug)]
pub struct CurrentHistory(RwLock<History>);

impl CurrentHistory {
    /// Makes the first history that this process knows, with number 0.
    #[must_use]
    pub fn new(incarnation: Incarnation) -> Self {
        Self(RwLock::new(History {
            number: 0,
            incarnation,
        }))
    }

    /// Returns the history as it is now.
    #[must_use]
    pub fn get(&self) -> History {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that another history has begun, and returns it.
    pub fn change(&self, incarnation: Incarnation) -> History {
        let mut history = self.0.write().unwrap_or_else(PoisonError::into_inner);
        history.number += 1;
        history.incarnation = incarnation;
        *history
    }
}
