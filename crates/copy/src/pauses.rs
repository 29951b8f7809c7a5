//! The pauses between attempts to take a store away from those who use it.
//!
//! Why: what comes while an attempt waits for a long transaction waits behind it. So pauses grow, and others get on
//! between the attempts however long that transaction lasts; and they are not of one length, so that they do not always
//! meet what comes at regular times.

use std::time::Duration;

use gesta_core::BackOff;
use uuid::Uuid;

/// The first and the longest pause while others append and read.
const OPEN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// The same while nobody can append, which should not last.
const CLOSED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The pauses after attempts that others have kept from succeeding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses(BackOff);

impl Pauses {
    /// Pauses before a store is closed that is in use.
    pub(crate) const fn while_open() -> Self {
        Self(BackOff::new(OPEN.0, OPEN.1))
    }

    /// Pauses before a closed store is shut, or opened again.
    pub(crate) const fn while_closed() -> Self {
        Self(BackOff::new(CLOSED.0, CLOSED.1))
    }

    /// Returns how long to wait after the next attempt that has failed.
    pub(crate) fn next(&mut self) -> Duration {
        let random = u32::from(Uuid::new_v4().as_bytes()[0]);
        self.after(random)
    }

    /// The pause with this random number from 0 to 255: between half of what is due and all of it.
    fn after(&mut self, random: u32) -> Duration {
        let due = self.0.pause();
        due / 2 + due / 510 * random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_shorter_while_nobody_can_append() {
        for (mut pauses, (first, longest)) in [
            (Pauses::while_open(), OPEN),
            (Pauses::while_closed(), CLOSED),
        ] {
            let mut whole = pauses;
            let mut before = Duration::ZERO;
            for _ in 0..10 {
                let (half, due) = (pauses.after(0), whole.after(255));
                assert!(half * 2 >= due && half < due && due >= before && due <= longest);
                before = due;
            }
            assert!(before > longest * 9 / 10 && before > first * 5);
            let random = pauses.next();
            assert!(random >= longest / 2 && random <= longest);
        }
        assert!(CLOSED.1 < OPEN.1);
    }
}
