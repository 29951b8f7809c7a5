//! Random histories with crashes, lost answers, two owners and resets, against a clean fold. The seed of a failure is
//! in its message; `GESTA_PROJECTION_SEED` and `GESTA_PROJECTION_HISTORIES` run others.

use std::sync::Arc;

use gesta_projection::OnPoison;
use gesta_projection::testing::{Kit, Subject};

use crate::common::Files;
use crate::fixtures::{JournalSubject, ViewSubject};

fn from_environment(name: &str, otherwise: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.and_then(|number| number.parse().ok())
        .unwrap_or(otherwise)
}

async fn run<S: Subject>(make: impl Fn() -> S) {
    let first = from_environment("GESTA_PROJECTION_SEED", 1);
    for seed in first..first + from_environment("GESTA_PROJECTION_HISTORIES", 12) {
        let kit = Kit::default().histories(1).seed(seed);
        if let Err(wrong) = kit.run(Arc::new(make())).await {
            panic!("{wrong}");
        }
    }
}

/// Schedules 1 to 5, 8, 14 and 24: a process dies before, between and after each statement, loses an answer, is asked
/// for a reset, and there are two of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_is_what_a_clean_fold_gives() {
    run(|| ViewSubject {
        files: Files::new(),
        on_poison: OnPoison::Stop,
    })
    .await;
}

/// The same with events that cannot be applied (schedule 17): they are parked with the later ones of their key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_with_poison_is_what_a_clean_fold_gives() {
    run(|| ViewSubject {
        files: Files::new(),
        on_poison: OnPoison::Park,
    })
    .await;
}

/// The same with events that are skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_skips_is_what_a_clean_fold_gives() {
    run(|| ViewSubject {
        files: Files::new(),
        on_poison: OnPoison::Skip,
    })
    .await;
}

/// The same for SQL of one's own, whose rows are not keyed: an event applied twice, or out of order, is seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_projection_is_what_a_clean_fold_gives() {
    run(|| JournalSubject(Files::new())).await;
}
