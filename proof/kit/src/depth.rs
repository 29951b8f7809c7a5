//! How much tests try, with which seed, and whether they hold promises of speed. Only this module reads
//! `GESTA_TEST_DEPTH` and `GESTA_SEED`.
//!
//! The quick form runs before every change is merged, with a fresh seed each time, so that more is tried over the days.
//! The deep form (`scripts/test --deep`) is for releases and for changes of what the tests are about.

use std::time::Duration;

/// The quick form lets anything take as long as this.
const QUICK_BOUND_MIN: Duration = Duration::from_secs(60);

/// How much random tests try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Each test takes seconds.
    Quick,
    /// Each test takes minutes.
    Deep,
}

impl Depth {
    /// Returns what `GESTA_TEST_DEPTH` says, `quick` or `deep`; quick if it is not set.
    ///
    /// # Panics
    /// If the variable says anything else.
    #[must_use]
    pub fn from_environment() -> Self {
        match std::env::var("GESTA_TEST_DEPTH").as_deref() {
            Err(std::env::VarError::NotPresent) | Ok("quick") => Self::Quick,
            Ok("deep") => Self::Deep,
            other => panic!("GESTA_TEST_DEPTH must be quick or deep, found {other:?}"),
        }
    }
}

/// Returns the count of the quick form, or that of the deep form if `GESTA_TEST_DEPTH` says so.
#[must_use]
pub fn count<T>(quick: T, deep: T) -> T {
    match Depth::from_environment() {
        Depth::Quick => quick,
        Depth::Deep => deep,
    }
}

/// Prints how long something took, as a line that `scripts/run-tests` keeps. In the deep form it must have taken no
/// longer than `bound`; in the quick form, no longer than a minute or ten times `bound`, whichever is longer.
///
/// Why the quick form does not hold the bound: it decides whether a change is merged, and a busy machine would decide
/// that by chance.
///
/// # Panics
/// If it took longer.
pub fn in_time(what: &str, took: Duration, bound: Duration) {
    eprintln!("figure: {what}: {took:?}, bound {bound:?}");
    let most = count(QUICK_BOUND_MIN.max(bound * 10), bound);
    assert!(took <= most, "{what}: {took:?} instead of {most:?} at most");
}

/// Returns the seed that `GESTA_SEED` asks for, if it is set.
///
/// # Panics
/// If the variable is no number.
#[must_use]
pub fn seed_asked_for() -> Option<u64> {
    let text = std::env::var("GESTA_SEED").ok()?;
    let seed = text.parse();
    Some(seed.unwrap_or_else(|_| panic!("GESTA_SEED must be a number, found {text:?}")))
}

/// Returns the seed of a random test: the one that `GESTA_SEED` asks for, or a fresh one. The test must print it.
#[must_use]
pub fn seed() -> u64 {
    seed_asked_for().unwrap_or_else(|| {
        let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
        high ^ low
    })
}
