//! The short forms of torture and fail-over: real processes that are hurt, and every promise checked.
//!
//! They run one after the other (`.config/nextest.toml`): fail-overs count the seconds, and torture uses all
//! processors.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::path::Path;
use std::process::Command;

use gesta_pgtest::Patroni;
use gesta_testkit::depth::{self, Depth};

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

/// Goal: servers and databases that are killed, cut and paused break no promise.
#[test]
fn a_short_torture_breaks_no_promise() {
    let rounds = depth::count("--rounds=4", "--rounds=50");
    let on = match gesta_pgtest::shared() {
        Some(_) => "--servers=2",
        None => "--databases=sqlite",
    };
    promises_are_kept(&["torture", rounds, on]);
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
