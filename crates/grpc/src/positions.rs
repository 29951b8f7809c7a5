//! Positions as these clients see them.
//!
//! A position of this protocol is a bare number: it does not tell of which history of the store it is. A client that
//! remembers one, and goes on from it after the store was restored or has lost events, would pass over what stands
//! there now. So the numbers that clients see are moved: those of each incarnation begin beyond all that were shown
//! before. A number of an earlier incarnation is refused. Invariant: 0 is what comes before the first event, in each of
//! them.

use gesta_core::{Error, ErrorKind, Incarnation, Position};

use crate::Refusal;

/// The positions of one incarnation of a store, as clients see them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Positions {
    from: u64,
}

impl From<Incarnation> for Positions {
    fn from(incarnation: Incarnation) -> Self {
        Self {
            from: incarnation.positions_from(),
        }
    }
}

impl Positions {
    /// Returns the number that clients see for this position.
    #[must_use]
    pub fn shown(self, position: Position) -> u64 {
        match position {
            Position::START => 0,
            Position(at) => self.from.saturating_add(at),
        }
    }

    /// Returns the position for which a client has seen this number.
    ///
    /// # Errors
    /// A refusal if the number is of an earlier incarnation.
    pub fn read(self, shown: u64) -> Result<Position, Refusal> {
        match shown.checked_sub(self.from) {
            Some(at) => Ok(Position(at)),
            None if shown == 0 => Ok(Position::START),
            None => Err(Refusal::of_earlier_history(&format!("position {shown}"))),
        }
    }
}

impl Refusal {
    /// Makes the refusal of a place that is not of the present history of the store. `place` begins the sentence.
    #[must_use]
    pub fn of_earlier_history(place: &str) -> Self {
        let why = format!(
            "{place} is of an earlier history of the store, which was restored or has lost events since: what is there \
             now may be other events, so begin at the start, or at a place that you know"
        );
        Self::from(Error::new(ErrorKind::InvalidCheckpoint(why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;
    use gesta_core::Timestamp;

    #[test]
    fn a_position_of_an_earlier_incarnation_is_refused() {
        let first = Incarnation::random();
        let second = first.after(Position(50), Timestamp(1_800_000_000_000_000));
        let (before, after) = (Positions::from(first), Positions::from(second));
        assert_eq!(before.shown(Position(7)), 7);
        for position in [
            Position::START,
            Position(1),
            Position(50),
            Position(1_000_000),
        ] {
            for positions in [before, after] {
                assert_eq!(
                    positions.read(positions.shown(position)).expect("its own"),
                    position
                );
            }
            let old = after.read(before.shown(position));
            match position {
                Position::START => assert_eq!(old.expect("the start"), position),
                Position(at) => {
                    let refusal = old.expect_err("of the other");
                    assert_eq!(refusal.code, Code::InvalidArgument);
                    assert!(
                        refusal
                            .message
                            .contains(&format!("position {at} is of an earlier history"))
                    );
                }
            }
        }
    }
}
