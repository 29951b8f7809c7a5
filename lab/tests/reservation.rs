//! The cinema under load, also while it is killed a few times: real processes, every promise checked.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_gesta-lab");

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

/// A running cinema. Killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a cinema on an embedded store in memory; returns its URL too.
fn start() -> (Running, String) {
    let mut command = Command::new(cinema());
    command.args(["--store", "sqlite::memory:", "--listen", "127.0.0.1:0"]);
    let mut running = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
    let url = lines.by_ref().map_while(Result::ok).find_map(|line| {
        Some(format!(
            "http://{}",
            line.split_once("listening on http://")?.1
        ))
    });
    // Goes on reading, so that the process never waits for its log.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    (running, url.unwrap())
}

/// A table of a line.
fn table<'a>(line: &'a Value, title: &str) -> &'a Value {
    let parts = line["parts"].as_array().unwrap().iter();
    let mut tables = parts.filter_map(|part| part.get("table"));
    tables.find(|table| table["title"] == title).unwrap()
}

/// The values of a column.
fn counts_of(line: &Value, title: &str, name: &str) -> Vec<f64> {
    let table = table(line, title);
    let columns = table["columns"].as_array().unwrap();
    let at = columns
        .iter()
        .position(|column| column["name"] == name)
        .unwrap();
    let rows = table["rows"].as_array().unwrap().iter();
    rows.map(|row| row["cells"][at].as_f64().unwrap()).collect()
}

/// Calls, outcomes, and how many there were.
fn counts(line: &Value, title: &str) -> Vec<(String, String, f64)> {
    let rows = table(line, title)["rows"].as_array().unwrap().iter();
    let word = |row: &Value, at: usize| row["cells"][at].as_str().unwrap().to_owned();
    rows.map(|row| {
        (
            word(row, 1),
            word(row, 2),
            row["cells"][3].as_f64().unwrap(),
        )
    })
    .collect()
}

/// What happened: the cinema numbered its seats from 1, but the published load draws them from 0 to below `maxSeats`; so
/// one request of fifty was refused. Now the cinema and this load count from 0, and nothing is refused: in the serial
/// scenario nobody meets anybody, and in the concurrent one a seat comes again only after all others.
#[test]
fn the_published_load_has_no_refused_request() {
    let (_running, url) = start();
    let directory = tempfile::tempdir().unwrap();
    for scenario in ["serial", "concurrent"] {
        let results = directory.path().join(format!("{scenario}.jsonl"));
        let mut run = Command::new(LAB);
        run.args(["reservation", "--scenario", scenario, "--shows", "200"]);
        run.args(["--closed", "16", "--warm-up", "0", "--duration", "1s"]);
        run.args(["--reads", "0.1", "--url", &url, "--results"]);
        let output = run.arg(&results).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{failed}");
        let line = std::fs::read_to_string(results).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        let counts = counts(&line, "Every kind of call");
        let accepted = counts.iter().all(|(_, outcome, _)| outcome == "accepted");
        assert!(accepted, "{scenario}: {said}");
        let unsent = counts_of(&line, "Steps", "unsent");
        assert_eq!(unsent, [0.0], "{scenario}: {said}");
        let reserved = counts.iter().find(|(call, ..)| call == "reserve");
        assert!(
            reserved.is_some_and(|(.., count)| *count > 100.0),
            "{scenario}: {said}"
        );
    }
}

/// Goal: after each kill everything acknowledged is there, and no seat was held twice.
#[test]
fn a_cinema_that_is_killed_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = Command::new(LAB);
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
    .arg(cinema())
    .arg("--results")
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
