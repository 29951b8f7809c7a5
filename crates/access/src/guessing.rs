//! Guessing addresses: those from which many wrong passwords came lately, for names of the same class.
//!
//! Why: a typing error must cost nothing, guessing must cost time.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

/// So many wrong passwords make an address a guessing address, if each came within [`FORGOTTEN_AFTER`] of the one
/// before.
pub(crate) const WRONG_MAX: u32 = 8;
/// So many wrong passwords, for names of all classes together, make an address a guessing one for all names. Behind one
/// address many users may mistype at the same time. Of each class the first [`WRONG_MAX`] count: who guesses at one
/// name for hours keeps nobody but names of its class from their first login.
pub(crate) const WRONG_OF_ALL_MAX: u32 = 8 * WRONG_MAX;
/// How long after its last wrong password an address is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// Who asks: an address, and the class of the name whose password it shows.
///
/// Why the name too: behind a proxy or a NAT all have one address. Whoever guesses the passwords of a few users there
/// keeps only names of the same classes from their first login, and not all others of the address, however long it goes
/// on. Who guesses those of very many is a guesser for all names: else each class would give an address guesses of its
/// own.
/// Why classes, and not whether there is a user of that name: the time of an answer must not tell that. Nor can a
/// guesser invent names without end and be a newcomer with each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Asker {
    pub(crate) from: IpAddr,
    /// One of 256 classes, into which nobody outside of this process can sort a name.
    pub(crate) names: u8,
}

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
    wrong: HashMap<Asker, Wrong>,
    /// The same for names of all classes.
    of_all: HashMap<IpAddr, Wrong>,
}

impl GuessingAddresses {
    /// Notes that a wrong password came from this address for a name of this class.
    pub(crate) fn wrong(&mut self, from: Asker, now: Duration) {
        let of_class = count(&mut self.wrong, from, now);
        // A class that is guessed at is put off already, and tells nothing about others.
        if of_class <= WRONG_MAX {
            count(&mut self.of_all, from.from, now);
        }
    }

    /// Tells whether the address is a guessing one for names of this class.
    pub(crate) fn has(&self, from: Asker, now: Duration) -> bool {
        let has = |wrong: Option<&Wrong>, max| {
            wrong.is_some_and(|wrong| wrong.count >= max && wrong.is_remembered(now))
        };
        has(self.wrong.get(&from), WRONG_MAX) || has(self.of_all.get(&from.from), WRONG_OF_ALL_MAX)
    }
}

/// Counts a wrong password, and forgets those of long ago. Returns the new count.
fn count<K: Eq + Hash>(of: &mut HashMap<K, Wrong>, from: K, now: Duration) -> u32 {
    of.retain(|_, wrong| wrong.is_remembered(now));
    let wrong = of.entry(from).or_insert(Wrong {
        count: 0,
        last: now,
    });
    wrong.count = wrong.count.saturating_add(1);
    wrong.last = now;
    wrong.count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_guessing_from_many_wrong_passwords_until_there_were_none_for_a_while() {
        let from = [192, 0, 2, 1].into();
        // Another name at the same address.
        let (guesser, other) = (Asker { from, names: 1 }, Asker { from, names: 2 });
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

    /// What happened: of each of 256 classes of names an address had guesses of its own, two thousand in sum. Goal: an
    /// address that guesses for very many names is a guesser for all, and no other address is.
    #[test]
    fn wrong_passwords_for_all_names_count_together() {
        let from = [192, 0, 2, 1].into();
        let now = Duration::from_secs(100);
        let mut guessing = GuessingAddresses::default();
        for n in 0..WRONG_OF_ALL_MAX {
            let names = u8::try_from(n % 64).expect("few");
            assert!(!guessing.has(Asker { from, names }, now), "{n}");
            guessing.wrong(Asker { from, names }, now);
        }
        let fresh = Asker { from, names: 255 };
        assert!(guessing.has(fresh, now));
        let elsewhere = Asker {
            from: [192, 0, 2, 2].into(),
            ..fresh
        };
        assert!(!guessing.has(elsewhere, now));
        assert!(!guessing.has(fresh, now + FORGOTTEN_AFTER));
    }

    /// What happened: one who guessed at one name put off all first logins behind the same address, once 64 wrong
    /// passwords had come. Goal: only names of the same class wait behind them.
    #[test]
    fn who_guesses_at_one_name_puts_off_no_other_class() {
        let from = [192, 0, 2, 1].into();
        let (guessed, other) = (Asker { from, names: 1 }, Asker { from, names: 2 });
        let mut guessing = GuessingAddresses::default();
        let mut now = Duration::from_secs(100);
        for _ in 0..1_000 {
            guessing.wrong(guessed, now);
            now += Duration::from_secs(1);
            assert!(!guessing.has(other, now));
        }
        assert!(guessing.has(guessed, now));
    }
}
