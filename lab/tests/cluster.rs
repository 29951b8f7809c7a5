//! The short form of the chaos of a cluster: real processes, a few faults, every promise checked.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::path::Path;
use std::process::Command;

use gesta_testkit::depth;

/// Goal: nodes and their database that are killed and started again break no promise; the deep form has all faults.
#[test]
fn a_short_chaos_breaks_no_promise() {
    let lab = Path::new(env!("CARGO_BIN_EXE_gesta-lab"));
    let server = lab.with_file_name("gesta");
    assert!(
        server.exists(),
        "{}: build gesta-cli first",
        server.display()
    );
    if gesta_pgtest::find_binaries().is_none() {
        assert!(std::env::var_os("CI").is_none(), "no PostgreSQL");
        eprintln!("SKIPPED: no PostgreSQL");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut chaos = Command::new(lab);
    chaos
        .args(["cluster", "chaos", "--logs", "8", "--results"])
        .arg(directory.path().join("results.jsonl"))
        .args(depth::count(
            ["--rounds=2", "--faults=node-kill-quick,database-restart"].as_slice(),
            ["--rounds=42"].as_slice(),
        ));
    let output = chaos.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("every promise was kept"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{said}");
}
