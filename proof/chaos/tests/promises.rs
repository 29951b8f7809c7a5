//! The short forms of chaos: each world of real processes is hurt under its loads, and every promise is checked.
//!
//! Each test is one command with a fixed list of faults; the deep form has all of them. Those that use all processors
//! run one after the other (`.config/nextest.toml`).

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod support;

use std::process::Command;

use gesta_kit::depth::{self, Depth};
use gesta_rig::{Patroni, beside, installed};
use support::histories;

const CHAOS: &str = env!("CARGO_BIN_EXE_gesta-chaos");

/// What is judged of a history beside the verdict.
enum Judges {
    /// Nothing.
    None,
    /// Two judges, with so many planted faults.
    Both(usize),
}

/// Runs chaos with these arguments; every promise must be kept, and judges of the history must say so, too.
fn every_promise_is_kept(arguments: &str, judges: Judges) -> String {
    let _ = beside(CHAOS, "gesta");
    let directory = tempfile::tempdir().unwrap();
    let history = directory.path().join("history.jsonl");
    let mut chaos = Command::new(CHAOS);
    chaos
        .current_dir(directory.path())
        .args(arguments.split_whitespace());
    if arguments.contains("seats") || arguments.contains("payments") {
        chaos.arg("--cinema").arg(beside(CHAOS, "cinema"));
    }
    if matches!(judges, Judges::Both(_)) {
        chaos.arg("--history").arg(&history);
    }
    let output = chaos.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.contains("every promise was kept"),
        "{arguments}: {said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{said}");
    if let Judges::Both(planted) = judges {
        histories::hold_before_both(&history, planted);
    }
    said
}

/// In the quick form no time is too long: other things may keep the machine busy.
fn any_time() -> &'static str {
    depth::count("--any-time", "")
}

fn planted() -> Judges {
    Judges::Both(depth::count(60, 3_000))
}

/// Goal: servers and databases that are killed, cut and paused break no promise.
#[test]
fn servers_break_no_promise() {
    let on = match gesta_rig::shared() {
        Some(_) => "--world=postgres,sqlite --servers=2",
        None => "--world=sqlite",
    };
    let rounds = depth::count("--rounds=2", "--rounds=40");
    every_promise_is_kept(&format!("{on} {rounds}"), planted());
}

/// Goal: consumer groups, subscribers and entities get everything once, whatever happens to a server and its database.
#[test]
fn groups_lose_nothing_on_servers() {
    let on = match gesta_rig::shared() {
        Some(_) => "--world=postgres,sqlite",
        None => "--world=sqlite",
    };
    let faults = depth::count("--faults=server-kill --rounds=1", "--rounds=30");
    every_promise_is_kept(
        &format!("{on} --load=groups --writers=6 {faults}"),
        Judges::None,
    );
}

/// Goal: nodes and their database that are killed and started again break no promise; the deep form has all faults, two
/// rounds of each. Clocks are set where libfaketime is installed, as `scripts/test --deep` sees to.
#[test]
fn nodes_break_no_promise() {
    if installed().is_none() {
        return;
    }
    let faults = depth::count(
        "--rounds=2 --faults=server-kill-quick,database-restart",
        "--rounds=38",
    );
    let arguments = format!("--world=nodes --logs=8 {faults} {}", any_time());
    every_promise_is_kept(&arguments, planted());
}

/// Goal: the logs of a database that is killed stop and come back, and those of the other one go on.
#[test]
fn one_database_of_two_that_is_away_stops_only_its_logs() {
    if installed().is_none() {
        return;
    }
    let rounds = depth::count("--rounds=1", "--rounds=10");
    let several = "--world=several --databases=2 --servers=2 --logs=4 --writers=6";
    let arguments = format!(
        "{several} --faults=one-database-away {rounds} {}",
        any_time()
    );
    every_promise_is_kept(&arguments, planted());
}

/// Goal: cinemas that are killed, cut off from each other or from their database give no answer that fits no order; the
/// deep form has all faults.
#[test]
fn cinemas_in_chaos_answer_nothing_stale() {
    if installed().is_none() {
        return;
    }
    let faults = depth::count("--rounds=1 --faults=link-one-way", "--rounds=38");
    let cinemas = "--world=nodes --load=seats --logs=8 --writers=12";
    every_promise_is_kept(&format!("{cinemas} {faults} {}", any_time()), planted());
}

/// Goal: what is not paid in time is given back once, not too early, and nothing else, whichever cinema is killed or
/// suspended past its lease while it gives back; the deep form has all faults, with clocks that are set.
#[test]
fn cinemas_in_chaos_give_back_what_is_not_paid() {
    if installed().is_none() {
        return;
    }
    let faults = depth::count("--rounds=1 --faults=timers-kill", "--rounds=42");
    let cinemas = "--world=nodes --load=payments --logs=8 --writers=12";
    every_promise_is_kept(&format!("{cinemas} {faults} {}", any_time()), planted());
}

/// Goal: after each kill of a cinema everything acknowledged is there, and no seat was held twice.
#[test]
fn a_cinema_that_is_killed_loses_nothing() {
    let on = match gesta_rig::shared() {
        Some(_) => "--world=postgres,sqlite",
        None => "--world=sqlite",
    };
    let rounds = depth::count("--rounds=2", "--rounds=50");
    let arguments = format!("{on} --load=seats --faults=server-kill {rounds}");
    let said = every_promise_is_kept(&arguments, planted());
    assert!(said.contains("events in the store were compared"), "{said}");
}

/// Goal: when a primary is lost with the newest commits, everybody who consumes is told, and nothing else is lost.
#[test]
fn lost_commits_are_told_to_everybody() {
    if installed().is_none() {
        return;
    }
    let rounds = depth::count("--rounds=1 --standbys=1", "--rounds=20");
    let on = depth::count("", "--databases=2 --nodes");
    every_promise_is_kept(
        &format!("--world=standbys --load=groups {on} {rounds}"),
        Judges::None,
    );
}

/// What happened: names of streams were remembered by numbers that the new primary used again. Appends acknowledged for
/// one stream were stored in another, subscribers of an idle server skipped thousands of events without an error, old
/// checkpoints were accepted as soon as the log had grown past them, and servers kept the old incarnation. Goal: an
/// idle server, which is not restarted, is told of lost commits as the busy one is, and then stores what it
/// acknowledges.
#[test]
fn lost_commits_are_told_to_an_idle_server() {
    if installed().is_none() {
        return;
    }
    let rounds = depth::count(
        "--faults=primary-lost --rounds=1",
        "--faults=primary-lost,primary-cut-off --rounds=20",
    );
    let on = "--world=standbys --standbys=1 --load=groups --writers=8 --idle";
    every_promise_is_kept(&format!("{on} {rounds}"), Judges::None);
}

/// Goal: with a synchronous standby nothing acknowledged is lost, subscriptions go on without a skip or a double, and
/// appends go on within a second of the database. Quick: one switch-over, after which they go on at all; deep: 20
/// fail-overs of four kinds, and 10 that lose commits, after which everybody is told. Only where Patroni and etcd are
/// installed, as `scripts/test --deep` installs them.
#[test]
fn fail_overs_by_patroni_break_no_promise() {
    let is_deep = Depth::from_environment() == Depth::Deep;
    if !Patroni::is_installed() {
        assert!(!is_deep, "no Patroni");
        eprintln!("\n*** SKIPPED: PostgreSQL, Patroni and etcd are not all installed ***\n");
        return;
    }
    let quick = "--world=patroni --rounds=1 --faults=switch-over --standbys=1 --within=10m";
    let arguments = depth::count(quick, "--world=patroni --rounds=20");
    every_promise_is_kept(arguments, Judges::None);
    if is_deep {
        let lossy = "--world=patroni --lossy --load=groups --rounds=10";
        every_promise_is_kept(lossy, Judges::None);
    }
}
