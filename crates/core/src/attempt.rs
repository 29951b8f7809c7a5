//! What the nodes of a cluster say of a change that they may send again by themselves.
//!
//! Why: a node whose answer was lost sends the change again, to another node or to the same one, or makes it itself.
//! The ids of its events show whether an earlier attempt was stored, but not once scavenging has removed these events.
//! So an attempt says which place in the log all attempts come after. Then whoever decides it can tell whether the
//! stream was deleted since, without remembering anything.

use uuid::Uuid;

use crate::ids::{Incarnation, Position};

/// The end of a log as a process knew it at some moment. The log may have been longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownEnd {
    /// Incarnation of the store to which the position belongs.
    pub incarnation: Incarnation,
    /// Last position that the process knew of; 0 if it knew none.
    pub position: Position,
}

impl KnownEnd {
    /// What a process knows that knows nothing.
    pub const NOTHING: Self = Self {
        incarnation: Incarnation(Uuid::nil()),
        position: Position::START,
    };

    /// Returns the position if it belongs to this incarnation. Otherwise it says nothing, and the result is 0.
    #[must_use]
    pub fn within(self, incarnation: Incarnation) -> Position {
        match self.incarnation == incarnation {
            true => self.position,
            false => Position::START,
        }
    }
}

/// Which attempt of a change this is. What callers repeat is a change of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attempt {
    /// No node makes another attempt.
    #[default]
    Only,
    /// No other attempt was made before this one. The node that has sent it may make later ones, which may be decided
    /// before it. All of them are stored after this end of the log.
    First(KnownEnd),
    /// Another attempt was made before this one, and may be stored, or may be stored later. All of them are stored
    /// after this end of the log.
    Later(KnownEnd),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: positions of another incarnation say nothing.
    #[test]
    fn a_position_counts_in_its_incarnation() {
        let [one, two] = [1, 2].map(|number| Incarnation(Uuid::from_u128(number)));
        let known = KnownEnd {
            incarnation: one,
            position: Position(7),
        };
        assert_eq!(known.within(one), Position(7));
        assert_eq!(known.within(two), Position::START);
        assert_eq!(KnownEnd::NOTHING.within(one), Position::START);
    }
}
