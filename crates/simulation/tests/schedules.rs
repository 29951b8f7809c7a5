//! Random schedules for a short while, with a fresh seed each time, and those that once found something.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::time::{Duration, Instant};

use gesta_simulation::choices::Choices;
use gesta_simulation::schedule::Trace;
use gesta_testkit::depth;

/// Goal: no schedule of faults breaks a promise. `GESTA_SEED` replays.
#[test]
fn random_schedules_break_no_promise() {
    let first = depth::seed();
    let seconds = depth::count(20, 1_200);
    println!("GESTA_SEED={first}");
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut done = 0;
    while Instant::now() < end {
        if let Err(finding) = gesta_simulation::check(first.wrapping_add(done)) {
            let choices: Vec<String> = finding.choices.iter().map(u32::to_string).collect();
            panic!(
                "GESTA_SEED={}: {}\nshrunk: {}\ngesta-simulation --replay {}",
                finding.seed,
                finding.what,
                finding.shrunk,
                choices.join(",")
            );
        }
        done += 1;
    }
    println!("{done} schedules");
    assert!(done > 0);
}

/// Goal: a schedule is nothing but its choices: the same ones give the same end.
#[test]
fn a_schedule_is_replayed_by_its_choices() {
    for seed in 0..50 {
        let (first, made) = gesta_simulation::run(Choices::from_seed(seed), Trace::Off);
        let (again, _) = gesta_simulation::run(Choices::replay(made), Trace::Off);
        assert_eq!(first, again, "seed {seed}");
    }
}

/// A command was given up, and the retry that waited for it was decided again although it was as old: the sequencer
/// asked to be woken at a time that had passed, for ever.
#[test]
fn a_retry_is_given_up_with_the_command_that_it_waited_for() {
    let choices = [
        36, 0, 0, 0, 0, 0, 47, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 72, 7,
        88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 74, 7, 73, 7,
    ];
    let (outcome, _) = gesta_simulation::run(Choices::replay(choices.to_vec()), Trace::Off);
    assert_eq!(outcome, Ok(()));
}
