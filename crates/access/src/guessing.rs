//! Guessing addresses: those from which many wrong passwords came lately.
//!
//! Why: a typing error must cost nothing, guessing must cost time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// So many wrong passwords make an address a guessing address, if each came within [`FORGOTTEN_AFTER`] of the one
/// before.
pub(crate) const WRONG_MAX: u32 = 8;
/// How long after its last wrong password an address is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Wrong {
    count: u32,
    last: Duration,
}

impl Wrong {
    fn is_remembered(&self, now: Duration) -> bool {
        now.saturating_sub(self.last) < FORGOTTEN_AFTER
    }
}

/// The addresses from which wrong passwords came. There are at most as many as passwords can be compared until they are
/// forgotten: some thousands.
#[derive(Debug, Default)]
pub(crate) struct GuessingAddresses {
    wrong: HashMap<IpAddr, Wrong>,
}

impl GuessingAddresses {
    /// Notes that a wrong password came from this address.
    pub(crate) fn wrong(&mut self, from: IpAddr, now: Duration) {
        self.wrong.retain(|_, wrong| wrong.is_remembered(now));
        let wrong = self.wrong.entry(from).or_insert(Wrong {
            count: 0,
            last: now,
        });
        wrong.count = wrong.count.saturating_add(1);
        wrong.last = now;
    }

    /// Tells whether the address is a guessing one.
    pub(crate) fn has(&self, from: IpAddr, now: Duration) -> bool {
        let wrong = self.wrong.get(&from);
        wrong.is_some_and(|wrong| wrong.count >= WRONG_MAX && wrong.is_remembered(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_guessing_from_many_wrong_passwords_until_there_were_none_for_a_while() {
        let (guesser, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let mut guessing = GuessingAddresses::default();
        let mut now = Duration::from_secs(100);
        for _ in 1..WRONG_MAX {
            guessing.wrong(guesser, now);
            now += FORGOTTEN_AFTER / 2;
        }
        assert!(!guessing.has(guesser, now), "one more is needed");
        guessing.wrong(guesser, now);
        assert!(guessing.has(guesser, now) && !guessing.has(other, now));
        now += FORGOTTEN_AFTER;
        assert!(!guessing.has(guesser, now));
        guessing.wrong(other, now);
        assert_eq!(guessing.wrong.len(), 1, "who is forgotten takes no memory");
        guessing.wrong(guesser, now);
        assert!(!guessing.has(guesser, now), "it begins anew");
    }
}
