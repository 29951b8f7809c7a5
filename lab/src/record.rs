//! The older form of results, of the commands that do not give a `Report` yet.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use gesta_core::{Clock, SystemClock};
use serde::Serialize;
use serde_json::Value;

use crate::failure::{Context, Result};
use crate::host::{self, Host};
use crate::report::ReportArgs;
use crate::store::StoreFacts;

/// Version of the shape of a line.
const FORMAT: u32 = 1;

/// One line.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Record {
    format: u32,
    /// The command.
    pub(crate) kind: &'static str,
    /// When it began.
    pub(crate) started: String,
    commit: String,
    build: &'static str,
    host: Host,
    /// The store; none for a command that uses several.
    pub(crate) store: Option<StoreFacts>,
    /// Parameters.
    pub(crate) workload: Value,
    /// Seed.
    pub(crate) seed: u64,
    /// Figures.
    pub(crate) result: Value,
    /// Errors by kind.
    pub(crate) errors: Value,
    /// False if the run was interrupted: the figures are of what there was.
    pub(crate) complete: bool,
    /// False if something was lost, doubled, misplaced or wrongly refused: then this is no result.
    pub(crate) valid: bool,
    /// Why this is no result, or what keeps targets from being compared, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
}

impl Record {
    /// A line that begins now.
    pub(crate) fn begin(kind: &'static str, seed: u64) -> Self {
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
    pub(crate) fn save(&self, args: &ReportArgs) -> Result<()> {
        self.save_to(&args.results)
    }

    /// The same, to a file.
    pub(crate) fn save_to(&self, file: &Path) -> Result<()> {
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
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub(crate) fn new<const N: usize>(heads: [&str; N]) -> Self {
        let mut table = Self::default();
        table.row(heads.map(str::to_owned));
        table
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
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
