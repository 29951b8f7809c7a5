//! The short forms of torture and fail-over: real processes that are hurt, and every promise checked.
//!
//! They run one after the other (`.config/nextest.toml`): fail-overs count the seconds, and torture uses all
//! processors.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod support;

use std::path::Path;
use std::process::Command;

use gesta_kit::depth::{self, Depth};
use gesta_rig::Patroni;
use support::histories;

/// Runs the command; it must find that every promise was kept.
fn promises_are_kept(arguments: &[&str]) {
    let lab = Path::new(env!("CARGO_BIN_EXE_gesta-lab"));
    let server = lab.with_file_name("gesta");
    assert!(
        server.exists(),
        "{}: build gesta-cli first",
        server.display()
    );
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(lab);
    command.current_dir(directory.path()).args(arguments);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("every promise was kept"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{said}");
}

/// Goal: servers and databases that are killed, cut and paused break no promise, and two judges say so of the history.
#[test]
fn a_short_torture_breaks_no_promise() {
    let rounds = depth::count("--rounds=4", "--rounds=50");
    let on = match gesta_rig::shared() {
        Some(_) => "--servers=2",
        None => "--databases=sqlite",
    };
    let directory = tempfile::tempdir().unwrap();
    let history = directory.path().join("history.jsonl");
    let file = format!("--history={}", history.display());
    promises_are_kept(&["torture", rounds, on, &file]);
    histories::hold_before_both(&history, depth::count(60, 3_000));
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
    promises_are_kept(depth::count(
        &[
            "failover",
            "--rounds=1",
            "--faults=switch-over",
            "--members=2",
            "--within=10m",
        ],
        &["failover", "--rounds=20"],
    ));
    if is_deep {
        promises_are_kept(&["failover", "--mode=async", "--rounds=10"]);
    }
}

/// Goal: a store with everything that a store can hold arrives whole on every kind of database, though each copy is
/// killed on its way.
///
/// Only where a PostgreSQL server can be started.
#[test]
fn copies_that_are_killed_arrive() {
    if gesta_rig::shared().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut lab = Command::new(env!("CARGO_BIN_EXE_gesta-lab"));
    let copy = "copy --events 4k --bytes 100 --logs 3 --kills";
    lab.current_dir(directory.path())
        .args(copy.split(' '))
        .arg(depth::count("2", "20"));
    let output = lab.output().unwrap();
    let lines = std::fs::read_to_string(directory.path().join("gesta-lab.jsonl"));
    let lines = lines.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let report: gesta_report::Report =
        serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let [check] = report.checks.as_slice() else {
        panic!("{report}");
    };
    assert!(output.status.success(), "{report}");
    assert!(check.read_back.is_clean(), "{report}");
    assert!(check.read_back.acknowledged > 4_000, "{report}");
}
