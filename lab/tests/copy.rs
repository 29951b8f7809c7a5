//! Copies that are killed on their way, by real processes. It runs alone (`.config/nextest.toml`): it uses all
//! processors.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::process::Command;

use gesta_kit::depth;

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
    let report: gesta_report::Report = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let [check] = report.checks.as_slice() else {
        panic!("{report}");
    };
    assert!(output.status.success(), "{report}");
    assert!(check.read_back.is_clean(), "{report}");
    assert!(check.read_back.acknowledged > 4_000, "{report}");
}
