//! The longest time without a success. Pure.

use std::time::Instant;

/// Between two successes, the second of them in `from..=to`, and the first the last one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The success before.
    pub(crate) begin: Instant,
    /// The success after.
    pub(crate) end: Instant,
}

/// The longest gap that ends in a time; none if nothing succeeded in it or before it.
pub(crate) fn longest(mut successes: Vec<Instant>, from: Instant, to: Instant) -> Option<Gap> {
    successes.sort_unstable();
    let gaps = successes.windows(2).map(|pair| Gap {
        begin: pair[0],
        end: pair[1],
    });
    gaps.filter(|gap| gap.end >= from && gap.end <= to)
        .max_by_key(|gap| gap.end - gap.begin)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_longest_gap_of_the_time_is_found() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let successes = || [9, 20, 900, 960, 1_000, 1_400, 1_410, 3_000].map(at).into();
        let gap = longest(successes(), at(950), at(2_000)).unwrap();
        assert_eq!((gap.begin, gap.end), (at(1_000), at(1_400)));
        let gap = longest(successes(), at(890), at(1_000)).unwrap();
        assert_eq!((gap.begin, gap.end), (at(20), at(900)));
        assert_eq!(longest(successes(), at(3_001), at(4_000)), None);
        assert_eq!(longest(vec![at(5)], at(0), at(10)), None);
    }
}
