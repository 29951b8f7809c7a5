//! Ids of events: they carry the run and the number of the event, scrambled so that they look random to an index; the
//! read-back recognises its own events by them and keeps a few bytes per append only.

use gesta_core::EventId;
use uuid::Uuid;

/// Identity of one run: 60 random bits in the id of each of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run(u64);

impl Run {
    /// A new run.
    pub fn random() -> Self {
        Self(Uuid::new_v4().as_u64_pair().0 >> 4)
    }

    /// The run of this number; for tests.
    #[cfg(test)]
    pub fn numbered(number: u64) -> Self {
        Self(number & (u64::MAX >> 4))
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The id of an event of this run. `number` must be below 2^62.
    pub fn event_id(self, number: u64) -> EventId {
        let scrambled = (number & LOW_MASK).wrapping_mul(SCRAMBLE) & LOW_MASK;
        // 48 bits of the run, version 8 (custom), 12 bits of the run; variant, 62 bits of the number.
        let high = ((self.0 >> 12) << 16) | (8 << 12) | (self.0 & 0xfff);
        EventId(Uuid::from_u64_pair(high, (0b10 << 62) | scrambled))
    }

    /// The number of an event, if it is of this run.
    pub fn number_of(self, id: EventId) -> Option<u64> {
        let (high, low) = id.0.as_u64_pair();
        let number = (low & LOW_MASK).wrapping_mul(UNSCRAMBLE) & LOW_MASK;
        (self.event_id(number) == id && high != 0).then_some(number)
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:015x}", self.0)
    }
}

const LOW_MASK: u64 = u64::MAX >> 2;
/// An odd factor, so that multiplying by it modulo 2^62 can be undone.
const SCRAMBLE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Its inverse modulo 2^64, hence modulo 2^62.
const UNSCRAMBLE: u64 = inverse(SCRAMBLE);

/// Newton's iteration: each step doubles the number of right bits, beginning with three.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut steps = 0;
    while steps < 5 {
        x = x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x)));
        steps += 1;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_tell_their_run_and_number() {
        let run = Run::numbered(0x0123_4567_89ab_cdef);
        for number in [0, 1, 2, 1_000_003, LOW_MASK] {
            let id = run.event_id(number);
            assert_eq!(run.number_of(id), Some(number));
            assert_eq!(Run::numbered(1).number_of(id), None);
            assert_eq!(id.0.get_version_num(), 8);
            assert_eq!(id.0.get_variant(), uuid::Variant::RFC4122);
        }
        assert_eq!(run.number_of(EventId(Uuid::nil())), None);
        assert_eq!(run.number_of(EventId::random()), None);
    }
}
