//! How long nothing succeeded. Pure.

use std::time::{Duration, Instant};

/// Between two successes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gap {
    begin: Instant,
    /// The success after.
    pub(super) end: Instant,
}

impl Gap {
    /// How long it lasted.
    pub(super) fn length(self) -> Duration {
        self.end - self.begin
    }
}

/// The gap that ends with the first success from a moment on; none if nothing succeeded before it or after it.
pub(super) fn until(successes: impl IntoIterator<Item = Instant>, moment: Instant) -> Option<Gap> {
    let (before, after): (Vec<_>, Vec<_>) =
        successes.into_iter().partition(|success| *success < moment);
    Some(Gap {
        begin: before.into_iter().max()?,
        end: after.into_iter().min()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_ends_with_the_first_success() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let successes = || [1_400, 9, 20, 1_410, 3_000].map(at);
        let gap = until(successes(), at(900)).unwrap();
        assert_eq!((gap.begin, gap.end), (at(20), at(1_400)));
        assert_eq!(gap.length(), Duration::from_millis(1_380));
        let gap = until(successes(), at(1_410)).unwrap();
        assert_eq!((gap.begin, gap.end), (at(1_400), at(1_410)));
        assert_eq!(until(successes(), at(3_001)), None);
        assert_eq!(until(successes(), at(9)), None);
    }
}
