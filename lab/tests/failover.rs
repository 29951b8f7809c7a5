//! Fail-overs of PostgreSQL by Patroni: real processes, every promise checked. Only where Patroni and etcd are installed,
//! as `scripts/test --deep` installs them.

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
    if !Patroni::is_installed() {
        assert_eq!(Depth::from_environment(), Depth::Quick, "no Patroni");
        eprintln!("\n*** SKIPPED: PostgreSQL, Patroni and etcd are not all installed ***\n");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut failover = Command::new(lab);
    failover
        .args(["failover", "--results"])
        .arg(directory.path().join("results.jsonl"))
        .args(arguments);
    let output = failover.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("every promise was kept"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{said}");
}

/// Goal: with a synchronous standby nothing acknowledged is lost, subscriptions go on without a skip or a double, and
/// appends go on within a second of the database. Quick: one switch-over; deep: 20 fail-overs of four kinds, and 10 that
/// lose commits, after which everybody is told. One test, so that the two do not share the processors.
#[test]
fn fail_overs_by_patroni_break_no_promise() {
    promises_are_kept(depth::count(
        &["--rounds=1", "--faults=switch-over", "--members=2"],
        &["--rounds=20"],
    ));
    if Depth::from_environment() == Depth::Deep {
        promises_are_kept(&["--mode=async", "--rounds=10"]);
    }
}
