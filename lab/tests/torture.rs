//! The short form of the torture: real processes, a few faults, every promise checked.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::process::Command;

/// Goal: servers and databases that are killed, cut and paused break no promise.
#[test]
fn a_short_torture_breaks_no_promise() {
    // The server stands beside this program; built here, because nothing else of this crate needs it.
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "gesta-cli"]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    let directory = tempfile::tempdir().unwrap();
    let mut torture = Command::new(env!("CARGO_BIN_EXE_gesta-lab"));
    torture
        .args(["torture", "--rounds", "12", "--results"])
        .arg(directory.path().join("results.jsonl"));
    match gesta_pgtest::shared() {
        Some(_) => torture.args(["--servers", "2"]),
        None => torture.args(["--databases", "sqlite"]),
    };
    let output = torture.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("every promise was kept"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{said}");
}
