//! Results: one JSON line per run for machines, a table for people.
//!
//! Charts come only from the lines, so a line carries all that is needed to judge it: commit and
//! build, host, database with version and settings, durability, workload, seed, figures, errors,
//! and whether it is a result at all.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use gesta_core::{Clock, SystemClock};
use serde::Serialize;
use serde_json::Value;

use crate::failure::{Context, Result};
use crate::host::{self, Host};
use crate::store::StoreFacts;

/// Version of the shape of a line.
pub(crate) const FORMAT: u32 = 1;

/// Where results go.
#[derive(Debug, Clone, clap::Args)]
pub struct ReportArgs {
    /// File that gets one JSON line per run.
    #[arg(long, default_value = "gesta-lab.jsonl")]
    pub results: PathBuf,
}

/// One line.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    format: u32,
    /// The command.
    pub kind: &'static str,
    /// When it began.
    pub started: String,
    commit: String,
    build: &'static str,
    host: Host,
    /// The store; none for a command that uses several.
    pub store: Option<StoreFacts>,
    /// Parameters.
    pub workload: Value,
    /// Seed.
    pub seed: u64,
    /// Figures.
    pub result: Value,
    /// Errors by kind.
    pub errors: Value,
    /// False if the run was interrupted: the figures are of what there was.
    pub complete: bool,
    /// False if something was lost, doubled, misplaced or wrongly refused: then this is no result.
    pub valid: bool,
    /// Why this is no result, or what keeps targets from being compared, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

impl Record {
    /// A line that begins now.
    pub fn begin(kind: &'static str, seed: u64) -> Self {
        Self {
            format: FORMAT,
            kind,
            started: SystemClock.now().to_string(),
            commit: host::commit(),
            build: host::BUILD,
            host: Host::here(),
            store: None,
            workload: Value::Null,
            seed,
            result: Value::Null,
            errors: Value::Object(serde_json::Map::new()),
            complete: false,
            valid: false,
            problems: Vec::new(),
        }
    }

    /// Appends the line to the file of results, in one write.
    pub fn save(&self, args: &ReportArgs) -> Result<()> {
        self.save_to(&args.results)
    }

    /// The same, to a file.
    pub fn save_to(&self, file: &Path) -> Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .and_then(|mut file| file.write_all(&line))
            .context(file.display())
    }
}

/// A table with aligned columns; the first is left-aligned, the others right-aligned.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new<const N: usize>(heads: [&str; N]) -> Self {
        let mut table = Self::default();
        table.row(heads.map(str::to_owned));
        table
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                line.push_str(&if column == 0 {
                    format!("{cell:<width$}")
                } else {
                    format!("  {cell:>width$}")
                });
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_what_is_needed_to_judge_it() {
        let dir = tempfile::tempdir().unwrap();
        let args = ReportArgs {
            results: dir.path().join("results.jsonl"),
        };
        let mut record = Record::begin("append", 7);
        record.result = serde_json::json!({"events_per_second": 1.5});
        record.save(&args).unwrap();
        record.save(&args).unwrap();
        let text = std::fs::read_to_string(&args.results).unwrap();
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let keys: Vec<&str> = line
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
                .collect();
            for key in [
                "format", "kind", "started", "commit", "build", "host", "store", "workload",
                "seed", "result", "errors", "complete", "valid",
            ] {
                assert!(keys.contains(&key), "{key} is missing");
            }
            assert_eq!(line["seed"], 7);
            assert_eq!(line["valid"], false);
            assert!(line["host"]["cores"].as_u64().unwrap() > 0);
        }
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["name", "n"]);
        table.row(["größe".into(), "10".into()]);
        assert_eq!(table.to_string(), "name    n\ngröße  10\n");
    }
}
