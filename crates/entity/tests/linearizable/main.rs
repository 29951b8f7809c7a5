//! The rule, proven on random histories: entities are linearizable, nothing is answered before it is durable, and no
//! reply rests on an event that was not stored or on an outdated state.
//!
//! Each history has a seed: two processes on one database with random faults, callers that wait or do not, foreigners
//! that append unannounced, passivation, snapshots, restarts, bounds that are met. `check` says what must hold of it;
//! faults planted in the store below the runtime must be found. `GESTA_SEED` plays one of them alone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test code: a panic is how a test fails"
)]

mod chain;
mod check;
mod history;
mod nodes;
mod planted;
mod play;

use check::check;
use gesta_entity::Stats;
use gesta_kit::depth;
use gesta_kit::faulty::Random;
use gesta_kit::verdict::{Kind, Verdict, Violation};
use history::Answer;
use nodes::Fault;
use play::{Plant, Setting, play};

const NODES: Setting = Setting::Nodes(Fault::None);

/// Played at once, each share by a test of its own.
const SHARES: u64 = 4;

/// Plays one history and tells what is wrong with it.
fn judge(seed: u64, plant: Plant, setting: Setting) -> Verdict {
    let played = play(seed, plant, setting);
    check(&played)
}

/// Plays a share of the histories.
fn prove(share: u64, setting: Setting) {
    let seeds = match depth::seed_asked_for() {
        Some(seed) => vec![seed],
        None => {
            let count: u64 = match setting {
                Setting::Strangers => depth::count(1_000, 20_000),
                Setting::Nodes(_) => depth::count(500, 20_000),
            };
            let mut random = Random::new(depth::seed());
            (0..count / SHARES + u64::from(share < count % SHARES))
                .map(|_| random.number())
                .collect()
        }
    };
    for seed in seeds {
        let _named = Named(seed);
        judge(seed, planted::SOUND, setting).assert_clean();
    }
}

/// Names the seed of a history that panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with GESTA_SEED={}", self.0);
        }
    }
}

/// Plays histories until the checker finds one of these promises broken.
fn must_find(plant: Plant, expected: &[Kind]) {
    must_find_in(Setting::Strangers, plant, expected);
}

fn must_find_in(setting: Setting, plant: Plant, expected: &[Kind]) {
    let mut random = Random::new(1);
    for played in 1..=200 {
        let verdict = judge(random.number(), plant, setting);
        let is_it = |found: &&Violation| expected.contains(&found.kind());
        if let Some(found) = verdict.violations.iter().find(is_it) {
            eprintln!("found in history {played}: {found}");
            return;
        }
    }
    panic!("nothing found");
}

#[test]
fn histories_are_linearizable_1() {
    prove(0, Setting::Strangers);
}

#[test]
fn histories_are_linearizable_2() {
    prove(1, Setting::Strangers);
}

#[test]
fn histories_are_linearizable_3() {
    prove(2, Setting::Strangers);
}

#[test]
fn histories_are_linearizable_4() {
    prove(3, Setting::Strangers);
}

#[test]
fn histories_of_nodes_are_linearizable_1() {
    prove(0, NODES);
}

#[test]
fn histories_of_nodes_are_linearizable_2() {
    prove(1, NODES);
}

#[test]
fn histories_of_nodes_are_linearizable_3() {
    prove(2, NODES);
}

#[test]
fn histories_of_nodes_are_linearizable_4() {
    prove(3, NODES);
}

/// Goal: a command that is forwarded twice takes effect once because of its key, and of nothing else.
#[test]
fn a_planted_key_for_each_attempt_is_found() {
    let setting = Setting::Nodes(Fault::FreshKeys);
    must_find_in(setting, planted::SOUND, &[Kind::StoredTwice]);
}

/// Goal: what may be said of a command depends on whether another node may have done it.
#[test]
fn a_planted_denial_of_doubt_is_found() {
    let setting = Setting::Nodes(Fault::DeniesDoubt);
    must_find_in(setting, planted::SOUND, &[Kind::RefusedStored]);
}

#[test]
fn a_planted_stale_read_of_nodes_is_found() {
    must_find_in(NODES, planted::STALE_READ, &[Kind::Stale]);
}

#[test]
fn a_planted_early_release_is_found() {
    must_find(planted::EARLY_RELEASE, &[Kind::Early]);
    must_find(planted::EARLY_RELEASE, &[Kind::Untrue]);
}

#[test]
fn a_planted_stale_read_is_found() {
    must_find(planted::STALE_READ, &[Kind::Stale]);
}

#[test]
fn a_planted_append_without_claim_is_found() {
    must_find(planted::IGNORES_AFTER, &[Kind::WrongBasis]);
}

#[test]
fn a_planted_denial_is_found() {
    must_find(planted::DENIES, &[Kind::RefusedStored]);
}

#[test]
fn a_planted_double_is_found() {
    must_find(planted::SENDS_TWICE, &[Kind::StoredTwice]);
}

/// Goal: the histories meet what they are there for.
#[test]
fn the_histories_meet_everything() {
    let played: Vec<_> = (0..400)
        .map(|seed| play(seed, planted::SOUND, Setting::Strangers))
        .collect();
    let answers = |is: fn(&Answer) -> bool| {
        let attempts = played.iter().flat_map(|played| &played.history);
        attempts.filter(|attempt| is(&attempt.answer)).count() as u64
    };
    let sum = |of: fn(&Stats) -> u64| played.iter().flat_map(|p| &p.stats).map(of).sum::<u64>();
    let met = [
        ("answers", answers(|a| matches!(a, Answer::Done { .. }))),
        ("rejections", answers(|a| matches!(a, Answer::Rejected(_)))),
        ("reads", answers(|a| matches!(a, Answer::Read(_)))),
        ("refusals", answers(|a| matches!(a, Answer::Refused(_)))),
        (
            "unknown outcomes",
            answers(|a| matches!(a, Answer::Unknown(_))),
        ),
        ("dropped futures", answers(|a| matches!(a, Answer::Nobody))),
        ("repeated", sum(|s| s.repeated)),
        ("reused keys", answers(|a| matches!(a, Answer::KeyReused))),
        ("overloaded", sum(|s| s.overloaded)),
        ("failed", sum(|s| s.failed)),
        ("confirmations", sum(|s| s.confirmations)),
        ("decided again", sum(|s| s.decided_again)),
        ("reloads", sum(|s| s.reloads)),
        ("loads", sum(|s| s.loads)),
        ("loads that failed", sum(|s| s.loads_failed)),
        ("passivated when idle", sum(|s| s.passivated_idle)),
        ("passivated for room", sum(|s| s.passivated_for_room)),
        ("snapshots", sum(|s| s.snapshots_written)),
    ];
    eprintln!("{met:?}");
    for (what, count) in met {
        assert!(count > 20, "{what}: only {count}");
    }
}

/// Goal: so do those of nodes.
#[test]
fn the_histories_of_nodes_meet_everything() {
    let played: Vec<_> = (0..400)
        .map(|seed| play(seed, planted::SOUND, NODES))
        .collect();
    let answers = |is: fn(&Answer) -> bool| {
        let attempts = played.iter().flat_map(|played| &played.history);
        attempts.filter(|attempt| is(&attempt.answer)).count() as u64
    };
    let sum = |of: fn(&Stats) -> u64| played.iter().flat_map(|p| &p.stats).map(of).sum::<u64>();
    let doubted = played.iter().map(|p| p.doubts.commands.len() as u64);
    let met = [
        ("answers", answers(|a| matches!(a, Answer::Done { .. }))),
        ("rejections", answers(|a| matches!(a, Answer::Rejected(_)))),
        ("reads", answers(|a| matches!(a, Answer::Read(_)))),
        ("reused keys", answers(|a| matches!(a, Answer::KeyReused))),
        (
            "unknown outcomes",
            answers(|a| matches!(a, Answer::Unknown(_))),
        ),
        (
            "lost answers",
            answers(|a| matches!(a, Answer::Unknown(why) if why.contains("another node was sent"))),
        ),
        (
            "unreachable",
            answers(|a| matches!(a, Answer::Refused(why) if why.contains("cannot be reached"))),
        ),
        (
            "overtaken",
            answers(|a| matches!(a, Answer::Refused(why) if why.contains("later requests"))),
        ),
        (
            "deleted since",
            answers(|a| matches!(a, Answer::Unknown(why) if why.contains("deleted since"))),
        ),
        ("sent more than once", doubted.sum()),
        ("forwarded", sum(|s| s.forwarded)),
        ("from other nodes", sum(|s| s.from_nodes)),
        ("repeated", sum(|s| s.repeated)),
        ("decided again", sum(|s| s.decided_again)),
        ("moved", sum(|s| s.passivated_moved)),
    ];
    eprintln!("{met:?}");
    for (what, count) in met {
        assert!(count > 10, "{what}: only {count}");
    }
}

/// Goal: a seed is worth its name.
#[test]
fn a_history_can_be_repeated() {
    for setting in [Setting::Strangers, NODES] {
        for seed in 0..20 {
            let history = || format!("{:?}", play(seed, planted::SOUND, setting).history);
            assert_eq!(history(), history(), "seed {seed}");
        }
    }
}
