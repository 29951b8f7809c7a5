//! The commands that measure, end to end and short: real processes, the lines that they leave, the page.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use gesta_lab::report::{Cell, Part, Report, Unit};

fn lab(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gesta-lab"));
    command.current_dir(directory).args(arguments);
    command.output().unwrap()
}

/// The last line of the results of a run.
fn line(directory: &Path, output: &Output) -> Report {
    let said = format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = std::fs::read_to_string(directory.join("gesta-lab.jsonl")).expect(&said);
    let report: Report = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(report.complete, "{said}");
    report
}

/// Goal: `quick` on the embedded store leaves a line, a page, and nothing else.
#[test]
fn quick_answers_with_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["quick", "--phase", "200ms", "--no-open", "--sizes", "300"];
    let output = lab(directory.path(), &arguments);
    let report = line(directory.path(), &output);
    let read_back = &report.checks[0].read_back;
    assert!(
        read_back.acknowledged > 100 && read_back.is_clean(),
        "{report}"
    );
    assert_eq!(report.tables().next().unwrap().rows.len(), 4, "{report}");
    assert!(report.finding.contains("The limit is"), "{report}");
    let page = std::fs::read_to_string(directory.path().join("gesta-lab.html")).unwrap();
    assert!(page.contains("What this database carries"));
    let mut left: Vec<String> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["gesta-lab.html", "gesta-lab.jsonl"]);
}

/// Goal: journals and Gesta are measured step by step, and what they stored is read back.
#[test]
fn schemas_are_measured() {
    if gesta_pgtest::shared().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "schemas",
        "--schemas",
        "gesta,jdbc",
        "--step",
        "2",
        "--max",
        "4",
        "--phase",
        "1s",
        "--rounds",
        "2",
        "--sizes",
        "500",
    ];
    let output = lab(directory.path(), &arguments);
    let report = line(directory.path(), &output);
    assert_eq!(report.store.as_ref().unwrap().durability, "full");
    assert_eq!(report.tables().next().unwrap().rows.len(), 2, "{report}");
    assert_eq!(report.checks.len(), 4, "two schemas, two rounds");
    let read_backs = report.checks.iter().map(|check| &check.read_back);
    assert!(
        read_backs
            .clone()
            .all(|found| found.is_clean() && found.acknowledged > 0),
        "{report}"
    );
    let phases = report
        .tables()
        .find(|table| table.title == "Every phase")
        .unwrap();
    let schemas: BTreeSet<String> = phases
        .rows
        .iter()
        .map(|row| row.cells[0].told(Unit::Words))
        .collect();
    assert_eq!(schemas.len(), 2, "{schemas:?}");
    for schema in &schemas {
        let of = phases
            .rows
            .iter()
            .filter(|row| row.cells[0].told(Unit::Words) == *schema);
        let connections: Vec<f64> = of.map(|row| row.cells[2].number().unwrap()).collect();
        assert_eq!(connections, [2.0, 4.0, 2.0, 4.0], "{schema}: {report}");
    }
}

/// Goal: `latency` tells the three ways apart.
#[test]
fn distance_is_measured() {
    if gesta_pgtest::shared().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = [
        "latency",
        "--rtt",
        "0,5ms",
        "--workers",
        "8",
        "--events",
        "5",
        "--phase",
        "1s",
    ];
    let output = lab(directory.path(), &arguments);
    let report = line(directory.path(), &output);
    assert!(
        report.checks.len() == 6 && report.checks.iter().all(|check| check.read_back.is_clean())
    );
    let table = report
        .tables()
        .find(|table| table.title == "Every figure")
        .unwrap();
    assert_eq!(table.rows.len(), 6, "{report}");
    let at = |name: &str| {
        table
            .columns
            .iter()
            .position(|column| column.name == name)
            .unwrap()
    };
    for row in &table.rows {
        let number = |name: &str| row.cells[at(name)].number().unwrap();
        assert!(number("events/s") > 0.0, "{row:?}");
        // Five round trips each way for one, at least one for the others.
        let floor = match row.cells[at("way")] == Cell::from("separate statements") {
            true => number("round trip") * 4.9,
            false => number("round trip") * 0.95,
        };
        assert!(number("p50") >= floor, "{row:?}");
    }
}

/// Goal: every way to speak to a server is measured, what it stored is read back, and `$all` is read to its end.
#[test]
fn every_protocol_is_measured() {
    let server = Path::new(env!("CARGO_BIN_EXE_gesta-lab")).with_file_name("gesta");
    assert!(server.exists(), "{}: build it first", server.display());
    for protocol in ["library", "bare", "grpc", "grpc-batch"] {
        let directory = tempfile::tempdir().unwrap();
        let load = "append --store sqlite:lab.db --serve --waiters 8 --events 3 --warm-up 100ms --duration 400ms";
        let mut arguments: Vec<&str> = load.split(' ').collect();
        arguments.extend(["--protocol", protocol, "--read-all"]);
        let output = lab(directory.path(), &arguments);
        let report = line(directory.path(), &output);
        let read_back = &report.checks[0].read_back;
        assert!(
            read_back.acknowledged > 10 && read_back.is_clean(),
            "{protocol}: {report}"
        );
        let read = report.parts.iter().any(|part| match part {
            Part::Facts(facts) => facts.iter().any(|fact| {
                let events = fact
                    .note
                    .split(' ')
                    .next()
                    .and_then(|first| first.parse().ok());
                events.is_some_and(|events: u64| events >= read_back.acknowledged)
            }),
            _ => false,
        });
        assert!(read, "{protocol}: {report}");
    }
}
