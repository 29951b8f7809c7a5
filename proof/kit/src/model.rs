//! Property tests: random operations give the same answers as the reference store.
//!
//! Each round makes a fresh store under test and a [`MemoryStore`](gesta_memory::MemoryStore), does the same random
//! operations on both, compares every answer, and in the end everything that can be read. A failing round is shrunk to
//! the shortest operations that still fail. The seed is printed, and `GESTA_SEED` repeats a run.
//!
//! Answers are compared without what may differ: incarnations, times, ids made by the store.

mod operation;
mod world;

use std::time::Duration;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::depth;
use crate::factory::StoreFactory;
use crate::support::say;

/// How many rounds the quick form has, and how many the deep one.
const ROUNDS: (u32, u32) = (24, 1_000);
/// The most attempts to shorten a failing round. Each attempt makes a fresh store.
const SHRINK_ATTEMPTS_MAX: u32 = 300;
/// How long one round may take.
const ROUND_DEADLINE: Duration = Duration::from_secs(120);

/// Compares stores of this factory with the reference store. Needs a runtime of several threads.
///
/// # Panics
/// If an answer differs. The message has the seed and the shortest operations that were found.
pub async fn properties(factory: &dyn StoreFactory) {
    let seed = depth::seed();
    say(&format!(
        "SEED of the properties of {}: GESTA_SEED={seed}",
        factory.name()
    ));
    let config = Config {
        cases: depth::count(ROUNDS.0, ROUNDS.1),
        max_shrink_iters: SHRINK_ATTEMPTS_MAX,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed_bytes(seed));
    let mut runner = TestRunner::new_with_rng(config, rng);
    let runtime = tokio::runtime::Handle::current();
    let result = tokio::task::block_in_place(|| {
        runner.run(&operation::operations(), |operations| {
            let round = world::round(factory, operations);
            let round =
                runtime.block_on(async { tokio::time::timeout(ROUND_DEADLINE, round).await });
            round
                .unwrap_or_else(|_| Err(format!("did not end within {ROUND_DEADLINE:?}")))
                .map_err(TestCaseError::fail)
        })
    });
    if let Err(failure) = result {
        panic!("{}, GESTA_SEED={seed}: {failure}", factory.name());
    }
}

/// Returns the 32 bytes that the generator needs.
fn seed_bytes(seed: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes
}
