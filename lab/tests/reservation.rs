//! The cinema under load that is killed a few times: real processes, every promise checked.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::path::Path;
use std::process::Command;

/// Goal: after each kill everything acknowledged is there, and no seat was held twice.
#[test]
fn a_cinema_that_is_killed_loses_nothing() {
    // The application stands beside this program; built here, because nothing else of this crate needs it.
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "gesta-cinema"]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    let lab = env!("CARGO_BIN_EXE_gesta-lab");
    let directory = tempfile::tempdir().unwrap();
    let mut run = Command::new(lab);
    run.args([
        "reservation-kill",
        "--kills",
        "4",
        "--closed",
        "16",
        "--shows",
        "10",
        "--cinema",
    ])
    .arg(Path::new(lab).with_file_name("cinema"))
    .arg("--results")
    .arg(directory.path().join("results.jsonl"));
    if gesta_pgtest::shared().is_none() {
        run.args(["--databases", "sqlite"]);
    }
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("events in the store agree"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{said}");
}
