//! Runs random schedules for a short while, with a new seed each time. Scripted tests of the sequencer and `plants`
//! keep what such schedules have found: a list of choices means something else as soon as a schedule is drawn in
//! another way.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gesta_kit::depth;
use gesta_sim::choices::Choices;
use gesta_sim::worlds::pipeline::schedule::{self, Form, Trace};

/// Goal: no schedule of faults breaks a promise. `GESTA_SEED` replays.
#[test]
fn random_schedules_break_no_promise() {
    let first = depth::seed();
    let seconds = depth::count(20, 1_200);
    println!("GESTA_SEED={first}");
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut done = 0;
    loop {
        let seed = first.wrapping_add(done);
        if let Err(finding) = gesta_sim::check(Form::of(seed), seed) {
            let choices: Vec<String> = finding.choices.iter().map(u32::to_string).collect();
            panic!(
                "GESTA_SEED={}: {}\nshrunk: {}\ngesta-sim --form {} --replay {}",
                finding.seed,
                finding.what,
                finding.shrunk,
                finding.form,
                choices.join(",")
            );
        }
        done += 1;
        // Afterwards, so that there is one even on a machine that stands still.
        if Instant::now() >= end {
            break;
        }
    }
    println!("{done} schedules");
}

/// Goal: schedules do reach what they are about.
#[test]
fn schedules_reach_every_outcome() {
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..2_000 {
        for (what, count) in schedule::reached(Form::of(seed), Choices::from_seed(seed)) {
            *times.entry(what).or_default() += count;
        }
    }
    for what in [
        "answered",
        "answered in doubt",
        "read",
        "not here",
        "refused after not here",
        "too late at the owner",
        "disowned",
        "local",
        "local in doubt",
        "unreachable",
        "unreachable in doubt",
        "silent",
        "silent in doubt",
        "no owner",
        "no owner in doubt",
        "late",
        "late in doubt",
        "closed",
        "condition",
        "condition on all events",
        "condition asked the database",
        "condition took turns",
        "refused for a checkpoint",
        "sent afresh",
        "fell asleep",
        "lost what nobody knows",
        "subscriber resumed",
    ] {
        assert!(
            times.get(what).is_some_and(|times| *times > 5),
            "{what}: {times:?}"
        );
    }
    for what in [
        "stored again after the window",
        "stored again after it was scavenged",
        "subscriber began anew",
    ] {
        assert!(times.contains_key(what), "{what}: {times:?}");
    }
}

/// Goal: a schedule is nothing but its choices: the same ones give the same end.
#[test]
fn a_schedule_is_replayed_by_its_choices() {
    for seed in 0..100 {
        let form = Form::of(seed);
        let (first, made) = gesta_sim::run(form, Choices::from_seed(seed), Trace::Off);
        let (again, _) = gesta_sim::run(form, Choices::replay(made), Trace::Off);
        assert_eq!(first, again, "seed {seed}");
    }
}
