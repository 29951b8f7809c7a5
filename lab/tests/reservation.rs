//! The cinema under load, also while it is killed a few times: real processes, every promise checked.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::process::Command;
use std::time::{Duration, Instant};

use gesta_report::{Cell, Report};
use gesta_rig::beside;

const LAB: &str = env!("CARGO_BIN_EXE_gesta-lab");
/// No test waits longer for a load that is large enough.
const PATIENCE: Duration = Duration::from_secs(60);

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
    run.arg(beside(LAB, "cinema")).arg("--results");
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

/// Goal: each step of a ladder has the processor time of application and database and what the database did, beside the
/// published steps.
#[test]
fn a_ladder_is_told_step_by_step() {
    if gesta_rig::shared().is_none() {
        return;
    }
    let begun = Instant::now();
    loop {
        let directory = tempfile::tempdir().unwrap();
        let results = directory.path().join("results.jsonl");
        let mut run = Command::new(LAB);
        let ladder =
            "reservation --steps 20:20:40 --step-duration 1500ms --warm-up 500ms --stop-p99 30s";
        run.args(ladder.split(' '))
            .arg("--cinema")
            .arg(beside(LAB, "cinema"));
        let output = run.arg("--results").arg(&results).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        let line = std::fs::read_to_string(results).unwrap();
        let report: Report = serde_json::from_str(&line).unwrap();
        let table = |title: &str| report.tables().find(|table| table.title.starts_with(title));
        let steps = table("Steps").unwrap();
        // On a busy machine a step may be carried out in part, which ends the ladder.
        if steps.rows.len() < 2 && begun.elapsed() < PATIENCE {
            continue;
        }
        assert_eq!(steps.rows.len(), 2, "{said}");
        for name in ["application", "database"] {
            let at = steps.columns.iter().position(|column| column.name == name);
            let used = steps.rows.iter().map(|row| row.cells[at.unwrap()].number());
            assert!(
                used.into_iter().all(|used| used.is_some()),
                "{name}: {said}"
            );
        }
        assert_eq!(
            table("What the database did").unwrap().rows.len(),
            2,
            "{said}"
        );
        assert!(table("p99 at each rate").unwrap().rows.len() > 2, "{said}");
        return;
    }
}
