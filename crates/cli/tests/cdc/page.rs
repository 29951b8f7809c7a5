//! The commands of the page, run as they stand there, and what the page says that comes of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use gesta_kit::depth;
use serde_json::Value;

use crate::consumer::Consumer;
use crate::pgoutput::{Change, Kind, Row, Transaction};
use crate::source::{Source, World, bytes_of, decoding};
use crate::support::{output_of, stderr, stdout};

/// The columns that the page shows.
const SHOWN: [&str; 9] = [
    "log", "position", "id", "name", "stream", "revision", "type", "data", "metadata",
];

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/cdc.md");
    std::fs::read_to_string(page).unwrap()
}

/// The blocks of the page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let begin = format!("\n```{language}\n");
    let blocks = page.split(&begin).skip(1);
    let block = |rest: &str| rest.split_once("\n```").expect("a block ends").0.to_owned();
    blocks.map(block).collect()
}

/// Whether the server has the plugin; said aloud if not. It is a package of its own, which only the deep form installs.
fn has_wal2json(source: Source<'_>) -> bool {
    let probe = "SELECT pg_create_logical_replication_slot('probe', 'wal2json', true)";
    let Err(error) = source.postgres.execute(probe) else {
        return true;
    };
    let is_missed = std::env::var_os("CI").is_some() && depth::count(false, true);
    assert!(!is_missed, "no wal2json: {error}");
    eprintln!("SKIPPED: no wal2json; the commands of the page that need it were not run");
    false
}

fn run(source: Source<'_>, block: &str) {
    let binary = Path::new(env!("CARGO_BIN_EXE_gesta")).parent().unwrap();
    let of_postgres = gesta_rig::find_binaries().expect("a server runs");
    let mut programs = vec![binary.to_owned(), of_postgres];
    let path = std::env::var_os("PATH").unwrap_or_default();
    programs.extend(std::env::split_paths(&path));
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", block]);
    shell
        .current_dir(source.folder)
        .env("PATH", std::env::join_paths(programs).unwrap())
        .env("PG", source.url())
        .env("LAKE", source.url().replacen("postgres@", "lake@", 1));
    let output = output_of(&mut shell);
    let said = stdout(&output) + &stderr(&output);
    assert!(output.status.success(), "{block}\n{said}");
}

/// The text of bytes as PostgreSQL writes them: hexadecimal digits after `\x`.
fn text_of(bytes: &str) -> String {
    let digits = bytes.strip_prefix("\\x").expect("bytes");
    String::from_utf8(bytes_of(digits)).unwrap()
}

/// A change as the page shows it.
fn line(change: &Change) -> String {
    let kind = match change.kind {
        Kind::Insert => "insert",
        Kind::Update => "update",
        Kind::Delete => "delete",
    };
    let mut line = format!("  {kind} {}", change.table);
    for column in SHOWN {
        let Some(value) = change.row.get(column) else {
            continue;
        };
        let value = match column {
            "data" | "metadata" => text_of(value),
            _ => value.clone(),
        };
        if !value.is_empty() {
            line += &format!(" {column}={value}");
        }
    }
    line
}

fn lines(run: &[Transaction]) -> String {
    let of_one = |transaction: &Transaction| {
        let changes: Vec<String> = transaction.changes.iter().map(line).collect();
        format!("begin\n{}\ncommit", changes.join("\n"))
    };
    // Before version 15 PostgreSQL tells of transactions in which nothing of these tables has changed.
    let run = run.iter().filter(|one| !one.changes.is_empty());
    run.map(of_one).collect::<Vec<_>>().join("\n")
}

/// The rows of a file of comma-separated values whose first line names the columns.
fn rows(source: Source<'_>, name: &str) -> Vec<Row> {
    let file = std::fs::read_to_string(source.file(name)).unwrap();
    let mut lines = file.lines();
    let columns: Vec<&str> = lines.next().expect("names").split(',').collect();
    let row = |line: &str| {
        let values = columns.iter().zip(line.split(','));
        let values = values.filter(|(_, value)| !value.is_empty());
        values
            .map(|(column, value)| ((*column).to_owned(), value.to_owned()))
            .collect()
    };
    lines.map(row).collect()
}

/// What wal2json wrote: for each row of a table the action and the values.
fn by_wal2json(written: &str, table: &str) -> Vec<(String, Row)> {
    let mut found = Vec::new();
    for line in written.lines() {
        let change: Value = serde_json::from_str(line).unwrap();
        if change["table"] != table {
            continue;
        }
        assert_eq!(change["schema"], "gesta");
        let columns = [&change["columns"], &change["identity"]];
        let columns = columns.into_iter().filter_map(Value::as_array).flatten();
        let value = |column: &Value| {
            let value = match &column["value"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            (column["name"].as_str().unwrap().to_owned(), value)
        };
        let action = change["action"].as_str().unwrap().to_owned();
        found.push((action, columns.map(value).collect()));
    }
    found
}

/// Goal: the commands of the page work, and lead to every event once: what was there before, what came later, also
/// after the consumer has ended and begun again. The page shows what comes.
#[test]
fn the_commands_of_the_page_miss_nothing() {
    let Some(world) = World::start(decoding()) else {
        return;
    };
    let source = world.source();
    let (page, has_wal2json) = (page(), has_wal2json(source));
    let mut stored = BTreeMap::new();
    for block in blocks(&page, "sh") {
        if block.contains("wal2json") && !has_wal2json {
            continue;
        }
        run(source, &block);
        if block.contains("changes.2") {
            stored = source.stored();
        }
    }
    let (first, second) = (source.written("changes.1"), source.written("changes.2"));
    let shown = blocks(&page, "text");
    for run in [&first, &second] {
        let lines = lines(run);
        assert!(shown.contains(&lines), "the page does not show:\n{lines}");
    }

    let mut consumer = Consumer::default();
    for table in ["streams", "types", "events"] {
        let rows = rows(source, &format!("{table}.csv"));
        assert!(!rows.is_empty(), "{table}");
        consumer.take(&Transaction::of_rows(table, rows));
    }
    consumer.take_run(&first);
    consumer.take_run(&second);
    assert_eq!(consumer.repeated, 1, "one event stood in the table too");
    assert!(!consumer.removed.is_empty(), "something was scavenged");
    assert_eq!(consumer.kept(), stored);
    let slots = "SELECT count(*) FROM pg_replication_slots";
    assert_eq!(source.value(slots), "0", "the page leaves no slot behind");
    let roles = "SELECT count(*) FROM pg_roles WHERE rolname = 'lake'";
    assert_eq!(source.value(roles), "0", "nor a role that reads everything");
    let publications = "SELECT count(*) FROM pg_publication";
    assert_eq!(source.value(publications), "0");
    if has_wal2json {
        let written = std::fs::read_to_string(source.file("changes.jsonl")).unwrap();
        let came = by_wal2json(&written, "events");
        assert_eq!(came.len(), 1, "{written}");
        let (action, row) = &came[0];
        let (place, event) = source.stored().pop_last().unwrap();
        assert_eq!(action, "I");
        assert_eq!(row["position"], place.1.to_string());
        assert_eq!(format!("\\x{}", row["data"]), event.data);
        let names = by_wal2json(&written, "streams");
        assert_eq!(names[0].1["name"], event.stream);
    }
}
