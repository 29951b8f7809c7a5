//! The short form of the torture: real processes, a few faults, every promise checked.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::path::Path;
use std::process::Command;

use gesta_testkit::depth;

/// Goal: servers and databases that are killed, cut and paused break no promise.
#[test]
fn a_short_torture_breaks_no_promise() {
    let lab = Path::new(env!("CARGO_BIN_EXE_gesta-lab"));
    let server = lab.with_file_name("gesta");
    assert!(
        server.exists(),
        "{}: build gesta-cli first",
        server.display()
    );
    let rounds = depth::count("4", "50");
    let directory = tempfile::tempdir().unwrap();
    let mut torture = Command::new(lab);
    torture
        .args(["torture", "--rounds", rounds, "--results"])
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
