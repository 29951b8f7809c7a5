//! Runs random schedules of each world for a short while, with a new seed each time. Scripted tests of the cores and
//! `plants` keep what such schedules have found: a list of choices means something else as soon as a schedule is drawn
//! in another way.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use gesta_kit::depth;
use gesta_sim::choices::Choices;
use gesta_sim::driver::search::Search;
use gesta_sim::driver::{self, Found, Trace, World};
use gesta_sim::worlds::{self, gather, groups, link, membership, moves, pipeline};

/// Runs schedules of a world for so many seconds, and in the deep form for so many others. `GESTA_SEED` replays.
fn search(world: &'static World, seconds: u64, deep_seconds: u64) {
    let first = depth::seed();
    println!("GESTA_SEED={first}");
    let search = Search {
        world,
        form: None,
        first,
        schedules: u64::MAX,
        limit: Some(Duration::from_secs(depth::count(seconds, deep_seconds))),
        threads: NonZeroUsize::new(1),
        found: Found::Shrunk,
    };
    let searched = search.run();
    if let Some(finding) = searched.finding {
        panic!(
            "GESTA_SEED={}: {}\nshrunk: {}\ngesta-sim {}",
            finding.seed,
            finding.what,
            finding.shrunk,
            finding.replay()
        );
    }
    println!("{} schedules", searched.done);
}

/// What the schedules of these seeds reach, and how many times.
fn reached(world: &World, seeds: u64) -> BTreeMap<&'static str, u32> {
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..seeds {
        let end = driver::run(world.form_of(seed), Choices::from_seed(seed), Trace::Off);
        for (what, count) in end.reached {
            *times.entry(what).or_default() += count;
        }
    }
    times
}

fn assert_reached(times: &BTreeMap<&'static str, u32>, least: u32, all: &[&str]) {
    for what in all {
        assert!(
            times.get(what).is_some_and(|times| *times >= least),
            "{what}: {times:?}"
        );
    }
}

/// Goal: no schedule of faults breaks a promise of the pipeline, of the hub or of nodes.
#[test]
fn pipelines_and_nodes_break_no_promise() {
    search(&pipeline::WORLD, 20, 1_200);
}

/// Goal: no schedule breaks a promise of a lane.
#[test]
fn lanes_break_no_promise() {
    search(&link::WORLD, 5, 300);
}

/// Goal: after each event of a schedule the promises of leases hold, and after some quiet every log has one owner that
/// knows it; then the logs are balanced.
#[test]
fn memberships_break_no_promise() {
    search(&membership::WORLD, 8, 900);
}

/// Goal: whatever consumers do and whenever the process dies, every event is finished or parked in the end.
#[test]
fn groups_lose_nothing_whatever_happens() {
    search(&groups::WORLD, 5, 600);
}

/// Goal: whatever dies, races, is lost and is set back, nothing is acknowledged beside the log, and nothing that
/// survives anywhere is lost without a word.
#[test]
fn logs_survive_moves_and_losses() {
    search(&moves::WORLD, 5, 900);
}

/// Goal: chains of batches are unbroken, nothing is stored twice, and every batch is answered once and truly.
#[test]
fn outcomes_of_gathered_batches_are_true() {
    search(&gather::WORLD, 3, 300);
}

/// Goal: schedules do reach what they are about.
#[test]
fn schedules_of_pipelines_reach_every_outcome() {
    let times = reached(&pipeline::WORLD, 2_000);
    let often = [
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
    ];
    assert_reached(&times, 6, &often);
    let ever = [
        "stored again after the window",
        "stored again after it was scavenged",
        "subscriber began anew",
        "look overtaken by a commit",
    ];
    assert_reached(&times, 1, &ever);
}

/// The same for lanes.
#[test]
fn schedules_of_lanes_reach_every_outcome() {
    let times = reached(&link::WORLD, 700);
    let outcomes = [
        "replied",
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
    ];
    assert_reached(&times, 6, &outcomes);
    assert_reached(&times, 1_001, &["lane"]);
}

/// The same for groups.
#[test]
fn schedules_of_groups_reach_what_they_are_about() {
    let times = reached(&groups::WORLD, 100);
    let all = [
        "redelivered",
        "refused",
        "timed out",
        "silent",
        "left behind",
        "parked",
        "replayed",
    ];
    assert_reached(&times, 20, &all);
}

/// The same for logs that move: databases are set back, and maps change.
#[test]
fn schedules_of_moves_reach_what_they_are_about() {
    let times = reached(&moves::WORLD, 100);
    assert_reached(&times, 100, &["loss", "map"]);
}

/// The same for what is gathered.
#[test]
fn schedules_of_gathered_batches_reach_every_answer() {
    let times = reached(&gather::WORLD, 100);
    let all = [
        "executed", "collided", "refused", "failed", "missed", "closed",
    ];
    assert_reached(&times, 20, &all);
}

/// The same for memberships: nodes are declared dead, and logs move.
#[test]
fn random_schedules_of_memberships_reach_what_they_are_about() {
    let random = membership::WORLD.form("random").expect("it is there");
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..60 {
        let end = driver::run(random, Choices::from_seed(seed), Trace::Off);
        for (what, count) in end.reached {
            *times.entry(what).or_default() += count;
        }
    }
    assert_reached(&times, 20, &["death", "move"]);
}

/// Goal: a schedule is nothing but its choices: the same ones give the same end.
#[test]
fn a_schedule_is_replayed_by_its_choices() {
    for world in worlds::ALL {
        for seed in 0..100 {
            let form = world.form_of(seed);
            let first = driver::run(form, Choices::from_seed(seed), Trace::Off);
            let again = driver::run(form, Choices::replay(first.made), Trace::Off);
            let name = world.name;
            assert_eq!(first.outcome, again.outcome, "{name}, seed {seed}");
            assert_eq!(first.reached, again.reached, "{name}, seed {seed}");
        }
    }
}
