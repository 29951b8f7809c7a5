//! The commands that measure, end to end and short: real processes, the lines that they leave, the page.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gesta_lab::report::{Cell, Part, Report, Row, Table};

/// How long a command is run again because the machine was too busy for it to show everything.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs a command in a directory; gives the last line of its results.
fn report(directory: &Path, command: &str) -> Report {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_gesta-lab"));
    lab.current_dir(directory).args(command.split(' '));
    let output = lab.output().unwrap();
    let [said, complained] = [output.stdout, output.stderr].map(String::from_utf8);
    let said = format!("{}\n{}", said.unwrap(), complained.unwrap());
    let lines = std::fs::read_to_string(directory.join("gesta-lab.jsonl")).expect(&said);
    let report: Report = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(report.complete, "{said}");
    let read_backs = report.checks.iter().map(|check| &check.read_back);
    let mut clean = read_backs.map(|found| found.is_clean() && found.acknowledged > 0);
    assert!(clean.len() > 0 && clean.all(|clean| clean), "{said}");
    report
}

/// Runs a command in a new directory, and again until its report has enough in it: on a busy machine a phase may be
/// over before anything has happened in it. What each run has stored must be right.
fn report_until(
    command: impl Fn() -> String,
    has_enough: impl Fn(&Report) -> bool,
) -> (tempfile::TempDir, Report) {
    let begun = Instant::now();
    loop {
        let directory = tempfile::tempdir().unwrap();
        let report = report(directory.path(), &command());
        if has_enough(&report) {
            return (directory, report);
        }
        assert!(begun.elapsed() < PATIENCE, "{report}");
    }
}

/// Makes a database of its own for a run, and returns its URL.
fn database(server: &gesta_pgtest::Server) -> String {
    let name = gesta_pgtest::fresh_schema();
    server.create_database(&name).unwrap()
}

fn table<'a>(report: &'a Report, title: &str) -> &'a Table {
    let mut tables = report.tables();
    tables.find(|table| table.title == title).unwrap()
}

/// The cell of a row in the column of this name.
fn cell<'a>(table: &Table, row: &'a Row, name: &str) -> &'a Cell {
    let mut columns = table.columns.iter();
    &row.cells[columns.position(|column| column.name == name).unwrap()]
}

/// Goal: `quick` leaves a line, a page, and nothing else.
///
/// What happened on PostgreSQL: the bare INSERT, which was measured after the store had been made, removed the schema
/// that both use, and every append failed.
#[test]
fn quick_answers_with_a_page() {
    let on_postgres = gesta_pgtest::shared().map(Some);
    for server in std::iter::once(None).chain(on_postgres) {
        let quick = || {
            let store = server.map(|server| format!(" --store {}", database(server)));
            let store = store.unwrap_or_default();
            format!("quick --phase 200ms --sizes 300{store}")
        };
        let (directory, report) = report_until(quick, |report| {
            let acknowledged = report.checks[0].read_back.acknowledged;
            // A machine that other programs use gets no number.
            let answers = ["The limit is", "Other programs used"];
            acknowledged > 100 && answers.iter().any(|text| report.finding.contains(text))
        });
        assert_eq!(report.tables().next().unwrap().rows.len(), 4, "{report}");
        let page = std::fs::read_to_string(directory.path().join("gesta-lab.html")).unwrap();
        assert!(page.contains("What this database carries"));
        let left = std::fs::read_dir(directory.path()).unwrap();
        let left: BTreeSet<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        let is_all = left.iter().eq(["gesta-lab.html", "gesta-lab.jsonl"]);
        assert!(is_all, "{left:?}");
    }
}

/// Goal: journals and Gesta are measured step by step, and what they stored is read back.
#[test]
fn schemas_are_measured() {
    if gesta_pgtest::shared().is_none() {
        return;
    }
    let short = "schemas --schemas gesta,jdbc --step 2 --max 4 --phase 1s --rounds 2 --sizes 500";
    // A schema that is slow or stores nothing at all is not asked for more.
    let (_, report) = report_until(
        || short.to_owned(),
        |report| table(report, "Every phase").rows.len() == 8,
    );
    assert_eq!(report.store.as_ref().unwrap().durability, "full");
    assert_eq!(report.tables().next().unwrap().rows.len(), 2, "{report}");
    assert_eq!(report.checks.len(), 4, "two schemas, two rounds");
    let phases = table(&report, "Every phase");
    let rows = phases.rows.iter().map(|row| {
        let connections = cell(phases, row, "connections").number().unwrap();
        (cell(phases, row, "schema"), connections)
    });
    let rows: Vec<_> = rows.collect();
    for schema in [rows[0].0, rows[4].0] {
        let of = rows.iter().filter(|(name, _)| *name == schema);
        let connections: Vec<f64> = of.map(|(_, connections)| *connections).collect();
        assert_eq!(connections, [2.0, 4.0, 2.0, 4.0], "{schema:?}: {report}");
    }
    assert!(rows.len() == 8 && rows[0].0 != rows[4].0, "{report}");
}

/// Goal: `latency` tells the three ways apart.
#[test]
fn distance_is_measured() {
    if gesta_pgtest::shared().is_none() {
        return;
    }
    let short = "latency --rtt 0,5ms --workers 8 --events 5 --phase 1s";
    let (_, report) = report_until(
        || short.to_owned(),
        |report| {
            let table = table(report, "Every figure");
            let rate = |row| cell(table, row, "events/s").number();
            table.rows.iter().all(|row| rate(row) > Some(0.0))
        },
    );
    assert_eq!(report.checks.len(), 6, "{report}");
    let table = table(&report, "Every figure");
    assert_eq!(table.rows.len(), 6, "{report}");
    for row in &table.rows {
        let number = |name: &str| cell(table, row, name).number().unwrap();
        // Five round trips each way for one, at least one for the others.
        let floor = match *cell(table, row, "way") == Cell::from("separate statements") {
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
        let load = format!("{load} --read-all --protocol {protocol}");
        let report = report(directory.path(), &load);
        let acknowledged = report.checks[0].read_back.acknowledged;
        assert!(acknowledged > 10, "{protocol}: {report}");
        let facts = report.parts.iter().filter_map(|part| match part {
            Part::Facts(facts) => Some(facts),
            _ => None,
        });
        let read = facts.flatten().filter_map(|fact| {
            let (events, _) = fact.note.split_once(" events")?;
            events.parse::<u64>().ok()
        });
        assert!(read.max() >= Some(acknowledged), "{protocol}: {report}");
    }
}

/// Goal: whichever way everything is read, all of it is shown, and the plain statements are the bound of the others.
#[test]
fn every_way_of_catching_up_shows_everything() {
    let server = Path::new(env!("CARGO_BIN_EXE_gesta-lab")).with_file_name("gesta");
    assert!(server.exists(), "{}: build it first", server.display());
    let database = gesta_pgtest::shared().map(database);
    for store in [Some("sqlite:lab.db".to_owned()), database]
        .into_iter()
        .flatten()
    {
        let directory = tempfile::tempdir().unwrap();
        let short = format!("catch-up --store {store} --events 6100 --rounds 1");
        let report = report(directory.path(), &short);
        let shown = report.checks.iter().map(|check| check.read_back.found);
        assert_eq!(shown.collect::<Vec<_>>(), [6_100; 5], "{report}");
        let table = table(&report, "Everything that is stored");
        let share = |row| cell(table, row, "of the plain statements").number();
        assert_eq!(share(&table.rows[0]), Some(1.0), "{report}");
        assert!(
            table.rows.iter().all(|row| share(row) > Some(0.0)),
            "{report}"
        );
    }
}
