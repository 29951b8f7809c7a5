//! Short steady loads: on real databases that are hurt, and on stores that break their word.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use gesta_core::EventStore;
use gesta_load::machine::CurrentStore;
use gesta_report::{Cell, Part, Report, Table, Unit};
use tokio_util::sync::CancellationToken;

use super::args::SteadyArgs;
use super::run::steady;
use super::slices::SLICES;
use crate::load::appends::breach::{Breach, BreachingStore};
use crate::world::World;

/// How long a steady load is run again because the machine was too busy for it to show everything.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: SteadyArgs,
}

fn args(line: &str) -> SteadyArgs {
    Cli::parse_from(std::iter::once("steady").chain(line.split_whitespace())).args
}

type Line = Report;

fn lines(results: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(results).unwrap_or_default();
    // The last may be half written.
    let lines = text
        .lines()
        .map_while(|line| serde_json::from_str(line).ok());
    lines.collect()
}

/// The whole command, until `enough` says so of the lines so far; then all its lines.
async fn command(line: &str, enough: fn(&[Line]) -> bool) -> (bool, Vec<Line>) {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results.jsonl");
    let store = match line.contains("--store") {
        true => String::new(),
        false => format!("--store sqlite:{}", dir.path().join("steady.db").display()),
    };
    let args = args(&format!("{line} {store} --results {}", results.display()));
    let stop = CancellationToken::new();
    let watch = async {
        while !enough(&lines(&results)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.cancel();
        std::future::pending::<()>().await;
    };
    let valid = tokio::select! {
        valid = super::run(&args, &stop) => valid.unwrap(),
        () = watch => unreachable!("it never ends"),
    };
    (valid, lines(&results))
}

fn never(_: &[Line]) -> bool {
    false
}

fn table<'a>(line: &'a Line, title: &str) -> &'a Table {
    let found = line.tables().find(|table| table.title == title);
    found.unwrap_or_else(|| panic!("no table {title:?}: {line:?}"))
}

/// The values of a column.
fn column<'a>(table: &'a Table, name: &str) -> Vec<&'a Cell> {
    let at = table.column(name).expect(name);
    table.rows.iter().map(|row| &row.cells[at]).collect()
}

fn numbers(table: &Table, name: &str) -> Vec<f64> {
    let cells = column(table, name).into_iter();
    cells.filter_map(Cell::number).collect()
}

/// What every short run must tell. Returns the kinds of its faults that have healed.
fn look(lines: &[Line]) -> Vec<String> {
    let (whole, told) = lines.split_last().unwrap();
    assert_eq!(
        (whole.kind.as_str(), whole.valid, whole.piece),
        ("steady", true, false)
    );
    let slices = table(whole, SLICES);
    assert_eq!(slices.rows.len(), told.len());
    for (line, row) in told.iter().zip(&slices.rows) {
        assert_eq!(
            (line.kind.as_str(), line.piece, line.complete),
            ("steady", true, false)
        );
        assert_eq!(line.started, whole.started);
        assert_eq!(table(line, SLICES).rows, std::slice::from_ref(row));
    }
    let read_back = &whole.checks[0].read_back;
    assert_eq!(read_back.acknowledged, read_back.found);
    assert!(!whole.finding.is_empty());
    let faults = table(whole, "Faults");
    let rows = faults.rows.iter();
    let healed = rows.filter(|row| row.cells[2].number() > Some(0.0));
    healed.map(|row| row.cells[0].told(Unit::Words)).collect()
}

/// Whether there was enough load for every figure.
fn has_figures(lines: &[Line]) -> bool {
    let whole = lines.last().unwrap();
    let slices = table(whole, SLICES);
    let has = |name: &&str| numbers(slices, name).iter().any(|value| *value > 0.0);
    let names = ["append p99", "read p99", "deliver p99", "disk per event"];
    whole.checks[0].read_back.acknowledged > 100 && names.iter().all(has)
}

/// Runs the command, and again until there was enough load and faults of all these kinds have healed. Each run must
/// tell what it must, and pass the check.
async fn shown_by(line: &str, enough: fn(&[Line]) -> bool, kinds: &[&str], check: fn(&[Line])) {
    let begun = Instant::now();
    loop {
        let (valid, lines) = command(line, enough).await;
        assert!(valid, "{lines:?}");
        let healed = look(&lines);
        check(&lines);
        let has_healed = |kind: &&str| healed.iter().any(|name| name == kind);
        if has_figures(&lines) && kinds.iter().all(has_healed) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{healed:?}: {lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_is_closed_and_opened_under_load_and_keeps_its_word() {
    let line = "--duration 3s --slice 500ms --rate 200 --writers 8 --reads 50 --fault-every 1s";
    shown_by(line, never, &["reopen"], |lines| {
        assert_eq!(lines.len(), 7);
        assert!(lines[6].complete);
    })
    .await;
}

/// The kinds of the faults in the run on PostgreSQL.
const HURT: [&str; 3] = ["database-cut", "database-freeze", "database-kill"];

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_cut_frozen_and_killed_under_load_and_keeps_its_word() {
    // Loud if PostgreSQL is not installed; a failure where `CI` is set.
    if gesta_rig::shared().is_none() {
        return;
    }
    let all_healed = |lines: &[Line]| {
        let faults = |line: &Line| {
            let cells = column(table(line, SLICES), "faults").into_iter();
            cells.map(|cell| cell.told(Unit::Words)).collect::<String>()
        };
        let seen: String = lines.iter().map(faults).collect();
        // Nothing is told as a dash.
        HURT.iter().all(|kind| seen.contains(kind))
            && lines.last().is_some_and(|line| faults(line) == "–")
    };
    let line = "--store postgres:new --duration 10m --slice 500ms --share 0.2 --writers 16 \
        --reads 50 --fault-every 1s --faults database-cut,database-freeze,database-kill --freeze 300ms";
    shown_by(line, all_healed, &HURT, |lines| {
        let whole = lines.last().unwrap();
        // It was stopped: all that there was is told.
        assert!(!whole.complete);
        let facts = whole.parts.iter().find_map(|part| match part {
            Part::Facts(facts) => Some(facts),
            _ => None,
        });
        let peak = facts.unwrap().iter().find(|fact| fact.name == "peak");
        let peak = peak.unwrap().value.number();
        // Without a peak there was no load, either.
        assert!(peak > Some(0.0) || !has_figures(lines));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_with_its_events_or_when_it_is_stopped() {
    let line = "--until-events 500 --rate 400 --writers 4 --fault-every 0 --slice 10s";
    let (mut counts, begun) = (Vec::new(), Instant::now());
    // On a busy machine a run may end late, with more events than it must have.
    while counts.iter().all(|count| *count >= 1_000) {
        assert!(begun.elapsed() < PATIENCE, "{counts:?}");
        let (valid, lines) = command(line, never).await;
        assert!(valid);
        let acknowledged = lines.last().unwrap().checks[0].read_back.acknowledged;
        assert!(acknowledged >= 500, "{acknowledged}");
        counts.push(acknowledged);
    }

    let stop = CancellationToken::new();
    stop.cancel();
    let store: Arc<dyn EventStore> = Arc::new(gesta_memory::MemoryStore::new());
    let report = on(store, "--rate 400 --writers 4", &stop).await;
    assert!(!report.complete && report.valid, "{report}");
    assert_eq!(table(&report, SLICES).rows.len(), 1);
}

/// A short run without faults on a store of the test's own.
async fn on(store: Arc<dyn EventStore>, line: &str, stop: &CancellationToken) -> Line {
    let store = CurrentStore::new(store, None);
    let mut world = World::around(store, None, Duration::ZERO, None).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results.jsonl");
    let args = args(&format!(
        "{line} --reads 200 --results {}",
        results.display()
    ));
    let mut report = Report::begin("steady", "", args.seed);
    let running = steady(&args, Vec::new(), &mut world, "memory:", &mut report, stop);
    let complete = running.await.unwrap();
    report.end(complete);
    report
}

async fn with_breach(breach: Breach) -> Line {
    let line = "--until-events 600 --rate 2000 --writers 4 --slice 100ms";
    let store = Arc::new(BreachingStore::store(breach));
    on(store, line, &CancellationToken::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_only_gives_errors_is_in_order() {
    let report = with_breach(Breach::ErrorsOnly).await;
    assert!(report.valid, "{report}");
    let told = report.to_string();
    for error in ["append unavailable", "append outcome_unknown"] {
        assert!(told.contains(error), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_drops_an_event_is_caught() {
    let report = with_breach(Breach::Forget).await;
    assert!(!report.valid);
    assert!(report.checks[0].read_back.lost > 0, "{report}");
    let problems = report.problems.join("\n");
    assert!(problems.contains("live subscriber 1"), "{problems}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_refusal_is_caught() {
    let problems = with_breach(Breach::Refuse).await.problems.join("\n");
    assert!(problems.contains("refused wrongly"), "{problems}");
}
