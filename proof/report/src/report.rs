//! What a command says: one `Report`, which the terminal, the JSON line and the page all show as it is.
//!
//! A report begins with a sentence that says what was found. Figures are facts and typed tables; charts name columns of
//! tables. It carries all that is needed to judge it: commit and build, host, database with version and settings,
//! durability, parameters, seed, what was read back, and whether it is a result at all.
//! Not here: how the page looks (`page`).

use std::fmt::{self, Display, Formatter};
use std::path::Path;

use gesta_core::{Clock, SystemClock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chart::Chart;
use crate::facts::StoreFacts;
use crate::failure::Result;
use crate::host::{self, Host};
use crate::numbers::Unit;
use crate::read_back::ReadBack;
use crate::results::{self, Results};
use crate::table::{Cell, Table};

/// Version of the shape of a line.
pub const FORMAT: u32 = 2;

/// Where results go.
#[derive(Debug, Clone, clap::Args)]
pub struct ReportArgs {
    /// File that gets one JSON line per run; or, built with uploads, a place for it in an object store: s3://bucket/,
    /// gs://bucket/ or https://host/, in which each run is an object of its own.
    #[arg(long, default_value = "gesta-lab.jsonl", value_parser = Results::parse)]
    pub results: Results,
}

/// A single figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fact {
    /// What it is.
    pub name: String,
    /// What it counts.
    pub unit: Unit,
    /// The figure.
    pub value: Cell,
    /// What to know about it.
    pub note: String,
}

/// A part of a report; the parts stand in the order in which they were added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A paragraph.
    Text(String),
    /// Figures that stand alone.
    Facts(Vec<Fact>),
    /// A table.
    Table(Table),
    /// A chart of a table of this report.
    Chart(Box<Chart>),
}

/// The check of what was stored, in the words of the run, and what it found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Check {
    /// What was read back.
    pub what: String,
    /// What was found.
    pub read_back: ReadBack,
}

/// What a command says: one line of JSON. It has many fields, for it is the line of every command, and each fills those
/// that it has something to say in.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Version of the shape.
    pub format: u32,
    /// The command.
    pub kind: String,
    /// What it measures, as a heading.
    pub title: String,
    /// What must be the same in runs that are compared with each other, in words; empty if all are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub setting: String,
    /// What was found: a sentence.
    pub finding: String,
    /// Why this is no result, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// What to be careful with, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cautions: Vec<String>,
    /// False if something was lost, doubled, misplaced or wrongly refused: then this is no result.
    pub valid: bool,
    /// False if the run was interrupted: the figures are of what there was.
    pub complete: bool,
    /// True for a piece of a run that is still going; its rows belong to the report that began at the same time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub piece: bool,
    /// Figures, charts and words.
    pub parts: Vec<Part>,
    /// What was read back after the load.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// The command as it was called, without passwords.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// When it began.
    pub started: String,
    /// What was measured.
    pub commit: String,
    /// `debug` or `release`.
    pub build: String,
    /// The machine.
    pub host: Host,
    /// The store; none for a command that uses several.
    pub store: Option<StoreFacts>,
    /// Parameters, as the command took them.
    pub workload: Value,
    /// Seed.
    pub seed: u64,
}

impl Report {
    /// A report that begins now.
    pub fn begin(kind: &str, title: &str, seed: u64) -> Self {
        Self {
            format: FORMAT,
            kind: kind.into(),
            title: title.into(),
            command: host::command(std::env::args()),
            started: SystemClock.now().to_string(),
            commit: host::commit(),
            build: host::BUILD.into(),
            host: Host::here(),
            seed,
            ..Self::default()
        }
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: impl Into<String>) {
        self.parts.push(Part::Text(text.into()));
    }

    /// Adds a table, unless it has no rows.
    pub fn table(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.parts.push(Part::Table(table));
        }
    }

    /// Adds a chart of a table of this report.
    pub fn chart(&mut self, chart: Chart) {
        self.parts.push(Part::Chart(Box::new(chart)));
    }

    /// Adds a figure that stands alone, if it is known.
    pub fn fact(&mut self, name: &str, unit: Unit, value: impl Into<Cell>, note: &str) {
        let value = value.into();
        if value == Cell::Unknown {
            return;
        }
        let fact = Fact {
            name: name.into(),
            unit,
            value,
            note: note.into(),
        };
        match self.parts.last_mut() {
            Some(Part::Facts(facts)) => facts.push(fact),
            _ => self.parts.push(Part::Facts(vec![fact])),
        }
    }

    /// Adds what reading back found; what it found wrong is a problem.
    pub fn check(&mut self, what: impl Into<String>, read_back: &ReadBack) {
        self.checks.push(Check {
            what: what.into(),
            read_back: read_back.clone(),
        });
    }

    /// Adds a reason why this is no result.
    pub fn problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    /// Adds something to be careful with.
    pub fn caution(&mut self, caution: impl Into<String>) {
        self.cautions.push(caution.into());
    }

    /// Tables of the report.
    pub fn tables(&self) -> impl Iterator<Item = &Table> {
        self.parts.iter().filter_map(|part| match part {
            Part::Table(table) => Some(table),
            _ => None,
        })
    }

    /// Why this is no result: what the run says, and what its checks found, whatever it says.
    pub fn objections(&self) -> Vec<String> {
        let complaints = self.checks.iter().filter_map(|check| {
            let complaint = check.read_back.complaint()?;
            Some(if check.what.is_empty() {
                complaint
            } else {
                format!("{}: {complaint}", check.what)
            })
        });
        let mut all: Vec<String> = self.problems.iter().cloned().chain(complaints).collect();
        if all.is_empty() && !self.valid {
            all.push("the line does not say that it is a result".into());
        }
        all
    }

    /// True if the line says that it is a result, and no check in it says otherwise.
    pub fn is_valid(&self) -> bool {
        self.objections().is_empty()
    }

    /// Ends the report: prints it and appends it to the file of results. True if it is a result.
    pub fn finish(&mut self, args: &ReportArgs, complete: bool) -> Result<bool> {
        self.end(complete);
        print!("{self}");
        let kept = args.results.keep(&self.line()?, &self.kind, &self.started);
        kept.map(|()| self.valid)
    }

    /// Says whether it is complete, and whether it is a result.
    pub fn end(&mut self, complete: bool) {
        self.complete = complete;
        self.valid = true;
        self.valid = self.is_valid();
    }

    /// Appends the line to a file, in one write.
    pub fn save(&self, file: &Path) -> Result<()> {
        results::append(file, &self.line()?)
    }

    fn line(&self) -> Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// For the terminal: everything but what is folded away, and the figures of the charts, which are in the tables.
impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut text = format!("{}\n", self.finding);
        for part in &self.parts {
            match part {
                Part::Text(paragraph) => text.push_str(&format!("\n{paragraph}\n")),
                Part::Facts(facts) => {
                    text.push('\n');
                    for fact in facts {
                        let told = fact.value.told(fact.unit);
                        text.push_str(format!("{}: {told} {}", fact.name, fact.note).trim_end());
                        text.push('\n');
                    }
                }
                Part::Table(table) if !table.folded => {
                    text.push_str(&format!("\n{}\n{table}", table.title));
                }
                Part::Table(_) | Part::Chart(_) => {}
            }
        }
        if !self.complete {
            text.push_str("\nInterrupted: these are the figures of what there was.\n");
        }
        for caution in &self.cautions {
            text.push_str(&format!("Be careful: {caution}\n"));
        }
        for objection in self.objections() {
            text.push_str(&format!("NO RESULT: {objection}\n"));
        }
        f.write_str(&text.replace('\u{a0}', " "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Scale, cells};

    fn report() -> Report {
        let mut report = Report::begin("append", "Appends", 7);
        report.finding = "Five events were stored.".into();
        report.fact("events", Unit::Count, 5, "a second");
        report.fact("longest", Unit::Millis, 5.34, "");
        report.fact("unknown", Unit::Millis, None::<f64>, "");
        let mut table = Table::new("Figures", [("name", Unit::Words), ("p99", Unit::Millis)]);
        table.row(cells!["x", 5.34]);
        report.table(table);
        let x = ("name", Scale::Steps);
        report.chart(Chart::lines(
            "A chart",
            "Figures",
            x,
            (&["p99"], Scale::Log),
        ));
        report.text("Words.");
        report.check("all", &ReadBack::default());
        report
    }

    #[test]
    fn a_line_carries_what_is_needed_to_judge_it_and_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let args = ReportArgs {
            results: Results::file(dir.path().join("results.jsonl")),
        };
        let mut report = report();
        assert!(report.finish(&args, true).unwrap());
        assert!(report.finish(&args, true).unwrap());
        let text = std::fs::read_to_string(&args.results.file).unwrap();
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            for key in [
                "format", "kind", "started", "commit", "build", "host", "store", "workload",
                "seed", "finding", "parts", "complete", "valid",
            ] {
                assert!(value.get(key).is_some(), "{key} is missing");
            }
            assert!(value["host"]["cores"].as_u64().unwrap() > 0);
            assert_eq!(serde_json::from_str::<Report>(line).unwrap(), report);
        }
    }

    #[test]
    fn the_terminal_shows_the_finding_the_figures_and_the_words() {
        let mut report = report();
        report.end(true);
        assert_eq!(
            report.to_string(),
            "Five events were stored.\n\nevents: 5 a second\nlongest: 5.3 ms\n\nFigures\nname     p99\nx     5.3 ms\n\nWords.\n"
        );
    }

    /// Goal: a line that lost an event is no result, whatever it says.
    #[test]
    fn a_report_that_lost_an_event_is_no_result() {
        let mut report = report();
        report.checks[0].read_back.acknowledged = 5;
        report.checks[0].read_back.lost = 2;
        report.checks[0].read_back.findings = vec!["revision 3".into()];
        report.valid = true;
        assert!(!report.is_valid());
        report.end(true);
        assert!(!report.valid);
        let told = "NO RESULT: all: of 5 acknowledged events 2 lost; first: revision 3\n";
        assert!(report.to_string().ends_with(told), "{report}");
        assert!(!Report::default().is_valid());
    }
}
