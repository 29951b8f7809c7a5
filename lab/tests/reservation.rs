//! The cinema under load, also while it is killed a few times: real processes, every promise checked.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gesta_lab::report::{Cell, Report};

const LAB: &str = env!("CARGO_BIN_EXE_gesta-lab");
/// No test waits longer for a load that is large enough.
const PATIENCE: Duration = Duration::from_secs(60);

/// The cinema beside this program.
fn cinema() -> PathBuf {
    let cinema = Path::new(LAB).with_file_name("cinema");
    assert!(
        cinema.exists(),
        "{}: build gesta-cinema first",
        cinema.display()
    );
    cinema
}

/// What happened: the cinema numbered its seats from 1, but the published load draws them from 0 to below `maxSeats`;
/// so one request of fifty was refused. Now the cinema and this load count from 0, and nothing is refused: in the
/// serial scenario nobody meets anybody, and in the concurrent one a seat comes again only after all others.
#[test]
fn the_published_load_has_no_refused_request() {
    for scenario in ["serial", "concurrent"] {
        // On a busy machine one run makes a few requests only.
        let (begun, mut reserved) = (Instant::now(), 0.0);
        while reserved <= 100.0 {
            assert!(begun.elapsed() < PATIENCE, "{scenario}: {reserved}");
            reserved += reservations_of_a_second(scenario);
        }
    }
}

/// Runs the published load for a second on a store of its own. Returns the number of reservations; nothing may have
/// been refused.
fn reservations_of_a_second(scenario: &str) -> f64 {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("results.jsonl");
    let store = format!("sqlite:{}", directory.path().join("gesta.db").display());
    let mut run = Command::new(LAB);
    run.args(["reservation", "--scenario", scenario, "--shows", "200"]);
    run.args(["--closed", "16", "--warm-up", "0", "--duration", "1s"]);
    run.args(["--reads", "0.1", "--store", &store, "--cinema"]);
    run.arg(cinema()).arg("--results");
    let output = run.arg(&results).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{failed}");
    let line = std::fs::read_to_string(results).unwrap();
    let report: Report = serde_json::from_str(&line).unwrap();
    let rows = |title: &str, columns: [&str; 3]| -> Vec<[Cell; 3]> {
        let table = report.tables().find(|table| table.title == title).unwrap();
        let at = |name: &str| table.columns.iter().position(|column| column.name == name);
        let at = columns.map(|name| at(name).unwrap());
        let rows = table.rows.iter();
        rows.map(|row| at.map(|at| row.cells[at].clone())).collect()
    };
    let calls = rows("Every kind of call", ["outcome", "call", "requests"]);
    let accepted = calls
        .iter()
        .all(|[outcome, ..]| *outcome == "accepted".into());
    assert!(accepted, "{scenario}: {said}");
    let [[unsent, ..]] = rows("Steps", ["unsent"; 3]).try_into().unwrap();
    assert_eq!(unsent, 0.into(), "{scenario}: {said}");
    let reserved = calls.iter().find(|[_, call, _]| *call == "reserve".into());
    let reserved = reserved.and_then(|[.., count]| count.number());
    reserved.unwrap_or_default()
}

/// Goal: after each kill everything acknowledged is there, and no seat was held twice.
#[test]
fn a_cinema_that_is_killed_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = Command::new(LAB);
    let short = "reservation-kill --kills 4 --closed 16 --shows 10";
    run.args(short.split(' ')).arg("--cinema").arg(cinema());
    run.arg("--results")
        .arg(directory.path().join("results.jsonl"));
    if gesta_pgtest::shared().is_none() {
        run.args(["--databases", "sqlite"]);
    }
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("events in the store were compared"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    println!("{said}");
}
