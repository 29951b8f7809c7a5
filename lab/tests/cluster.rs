//! Several nodes, as real processes: cinemas whose seats nobody gets twice, rolling restarts, and what nodes cost.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gesta_kit::depth;
use gesta_report::{Cell, Report};
use gesta_rig::{Child, beside, installed};

const LAB: &str = env!("CARGO_BIN_EXE_gesta-lab");
/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(300);

/// Goal: a rolling restart moves few logs, and no client that knows all nodes sees an error. How long logs are
/// interrupted is told, and only in the deep form it may be too long.
#[test]
fn a_rolling_restart_shows_no_error_to_clients() {
    let _ = beside(LAB, "gesta");
    if installed().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut roll = Command::new(LAB);
    let quick = ["--nodes=2", "--logs=4", "--writers=8", "--rolls=1"];
    let deep = ["--nodes=3", "--logs=16", "--writers=48", "--rolls=5"];
    roll.args(["cluster", "roll"])
        .arg(depth::count("--interruption=10m", "--interruption=5s"))
        .args(depth::count(quick, deep))
        .arg("--results")
        .arg(directory.path().join("results.jsonl"));
    let output = roll.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    println!("{said}");
}

/// Goal: three cinemas on one database serve any show through any of them; no seat is held twice, no reply is stale,
/// and exactly what was acknowledged is stored.
#[test]
fn three_cinemas_hold_no_seat_twice() {
    let cinema = beside(LAB, "cinema");
    if installed().is_none() {
        return;
    }
    let mut up = Command::new(LAB);
    up.args(["cluster", "up", "--cinema"]).arg(cinema);
    let mut up = Child::spawn(up.stdout(Stdio::piped())).unwrap();
    let told = lines_until(&mut up, "Ctrl-C");
    let address = |name: &'static str| {
        let lines = told.iter().filter(move |line| line.starts_with(name));
        lines.map(|line| line.split_whitespace().last().unwrap())
    };
    assert_eq!(address("node").count(), 3, "{told:?}");
    let directory = tempfile::tempdir().unwrap();
    for scenario in ["serial", "concurrent"] {
        let mut load = Command::new(LAB);
        load.args(["reservation", "--scenario", scenario, "--shows", "50"])
            .args(["--warm-up", "500ms", "--duration", "2s"])
            .args(["--closed", "24", "--reads", "0.3"])
            .args(["--store", address("database").next().unwrap()])
            .args(address("node").flat_map(|url| ["--url", url]))
            .arg("--results")
            .arg(directory.path().join("results.jsonl"));
        let begun = Instant::now();
        loop {
            let output = load.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            let complained = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}\n{complained}");
            println!("{said}");
            if said.contains(", 0 outcomes stayed unknown") {
                break;
            }
            // Nodes of a machine that stands still take each other for dead, so an answer may be missing.
            assert!(begun.elapsed() < PATIENCE, "{said}\n{complained}");
        }
    }
    up.signal(nix::sys::signal::Signal::SIGINT);
    assert!(up.wait().unwrap().success());
}

/// The report of `cluster cinema` on two nodes, with these arguments.
fn cinema_report(cinema: &Path, arguments: &[&str]) -> Report {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("results.jsonl");
    let mut load = Command::new(LAB);
    load.args(["cluster", "cinema", "--nodes", "2", "--logs", "4"])
        .args(["--warm-up", "500ms", "--duration", "2s", "--cinema"])
        .arg(cinema)
        .args(arguments)
        .arg("--results")
        .arg(&results);
    let output = load.output().unwrap();
    let [said, complained] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{said}\n{complained}");
    let line = std::fs::read_to_string(results).unwrap();
    serde_json::from_str(line.trim()).unwrap()
}

/// The first report of `cluster cinema` that has what is looked for: on a machine that stands still for some seconds a
/// load may have no answer at all.
fn cinema_report_with(
    cinema: &Path,
    arguments: &[&str],
    is_whole: impl Fn(&Report) -> bool,
) -> Report {
    let begun = Instant::now();
    loop {
        let report = cinema_report(cinema, arguments);
        if is_whole(&report) {
            return report;
        }
        assert!(begun.elapsed() < PATIENCE, "{report}");
    }
}

/// The rows of a table, each as its words and numbers by column.
fn rows(report: &Report, title: &str) -> Vec<BTreeMap<String, Cell>> {
    let table = report.tables().find(|table| table.title == title);
    let table = table.unwrap_or_else(|| panic!("no table {title:?}: {report}"));
    let names = || table.columns.iter().map(|column| column.name.clone());
    let rows = table.rows.iter();
    rows.map(|row| names().zip(row.cells.clone()).collect())
        .collect()
}

/// Goal: one node and several are measured by turns, every request comes to the owner as its case says, and the trace
/// of a hop has all legs.
#[test]
fn a_cinema_is_measured_on_one_node_and_on_several() {
    let cinema = beside(LAB, "cinema");
    if installed().is_none() {
        return;
    }
    let short = ["--rounds", "1", "--rates", "50", "--shows", "20"];
    let loads = |report: &Report| rows(report, "Medians of the rounds");
    let done = |row: &BTreeMap<String, Cell>| row["accepted/s"].number() > Some(0.0);
    let report = cinema_report_with(&cinema, &short, |report| {
        let has_moved = |caution: &String| caution.contains("logs have moved");
        loads(report).iter().all(done) && !report.cautions.iter().any(has_moved)
    });
    assert_eq!(loads(&report).len(), 10, "two scenarios: {report}");
    let kinds = rows(&report, "Every kind of request, medians of the rounds");
    for (through, kind, share) in [
        ("one node", "owner", 1.0),
        ("the owner (hints)", "hint", 1.0),
        ("never the owner (hops)", "hop", 1.0),
    ] {
        let of = kinds
            .iter()
            .filter(|row| row["through"] == Cell::from(through));
        let of: Vec<_> = of.collect();
        assert_eq!(of.len(), 2, "{through}, of two scenarios: {report}");
        for row in of {
            assert_eq!(row["kind"], Cell::from(kind), "{through}");
            assert_eq!(row["of all requests"].number(), Some(share), "{through}");
        }
    }
    let legs = |report: &Report, to: &str| {
        let rows = rows(report, &format!("Requests to {to}, each leg of the way"));
        let ends = rows.into_iter().map(|row| row["ends with"].clone());
        ends.filter(|end| *end != Cell::Unknown).collect::<Vec<_>>()
    };
    let at_owner = ["taken up", "decided", "sent", "committed", "stored"].map(Cell::from);
    // A leg that no request has had is not told.
    let report = cinema_report_with(&cinema, &["--trace", "20"], |report| {
        ["the owner", "another node"]
            .iter()
            .all(|to| !legs(report, to).is_empty())
    });
    assert_eq!(legs(&report, "the owner"), at_owner, "{report}");
    let mut hop = vec![Cell::from("forwarded"), Cell::from("carried")];
    hop.extend(at_owner);
    hop.push(Cell::from("returned"));
    assert_eq!(legs(&report, "another node"), hop, "{report}");
}

/// The lines that a process says, up to the first one that begins so. The rest is read, too: the lab must not find its
/// output closed.
fn lines_until(process: &mut Child, last: &str) -> Vec<String> {
    let lines = BufReader::new(process.take_output().unwrap()).lines();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = tell.send(line);
        }
    });
    let mut found = Vec::new();
    loop {
        match told.recv_timeout(PATIENCE) {
            Ok(line) if line.starts_with(last) => return found,
            Ok(line) => found.push(line),
            Err(error) => panic!("no line {last:?} after {found:?}: {error}"),
        }
    }
}

/// Goal: the hop and the share of nodes are measured on every way, and what was acknowledged is read back.
/// The quick form has the hop.
#[test]
fn what_nodes_cost_and_carry_is_measured() {
    let _ = beside(LAB, "gesta");
    if installed().is_none() {
        return;
    }
    let short = ["--rounds=1", "--duration=300ms", "--connections=8"];
    let hop = (["hop", "--rates=100"].as_slice(), ["forwarded", "hints"]);
    let share = (["share"].as_slice(), ["one alone", "the second of two"]);
    let databases = ["databases", "--databases=1,2", "--logs=2"].as_slice();
    let databases = (databases, ["databases, µs per event", "1: "]);
    for (what, ways) in depth::count(vec![hop], vec![hop, share, databases]) {
        let directory = tempfile::tempdir().unwrap();
        let mut lab = Command::new(LAB);
        lab.current_dir(directory.path()).arg("cluster");
        let output = lab.args(what).args(short).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{complained}");
        assert!(ways.iter().all(|way| said.contains(way)), "{said}");
    }
}
