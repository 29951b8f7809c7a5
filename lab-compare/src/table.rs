//! The result of each peer, and the one table of all.

use gesta_lab::report::Table;
use gesta_lab::target::{Phase, ReadBack};
use serde::Serialize;

use crate::peer::{About, Measured};
use crate::workload::Cell;

/// What replaces the figures of a peer that broke its word.
const NO_RESULT: &str = "NO RESULT";

/// One cell of a peer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CellResult {
    pub(crate) workers: u32,
    pub(crate) events: u64,
    pub(crate) phase: Phase,
    pub(crate) read_back: ReadBack,
}

/// A peer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PeerResult {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// `gesta`, `peer`, or `floor` for what is no event store.
    pub(crate) role: &'static str,
    #[serde(flatten)]
    pub(crate) about: About,
    pub(crate) cells: Vec<CellResult>,
    /// Why it was not measured, or not to the end.
    pub(crate) skipped: Option<String>,
    /// False if something that it had acknowledged was missing or wrong.
    pub(crate) valid: bool,
    /// False if its acknowledgements mean something else than Gesta's.
    pub(crate) comparable: bool,
}

impl PeerResult {
    pub(crate) fn new(name: &'static str, title: &'static str) -> Self {
        Self {
            name,
            title,
            role: role(name),
            about: About::default(),
            cells: Vec::new(),
            skipped: None,
            valid: true,
            comparable: true,
        }
    }

    pub(crate) fn add(&mut self, cell: Cell, measured: Measured) {
        self.valid &= measured.read_back.is_clean();
        self.cells.push(CellResult {
            workers: cell.workers,
            events: cell.events,
            phase: measured.phase,
            read_back: measured.read_back,
        });
    }

    /// True if it has figures that count.
    pub(crate) fn is_result(&self) -> bool {
        self.valid && !self.cells.is_empty()
    }

    /// What a reader must know, in sentences.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut tell = |what: String| problems.push(format!("{}: {what}", self.name));
        if let Some(why) = &self.skipped {
            tell(format!(
                "not measured{}: {why}",
                if self.cells.is_empty() {
                    ""
                } else {
                    " to the end"
                }
            ));
        }
        if !self.comparable {
            let About {
                durability,
                durability_detail,
                ..
            } = &self.about;
            tell(format!(
                "not comparable: durability is {durability} ({durability_detail})"
            ));
        }
        for cell in &self.cells {
            let at = head(cell.workers, cell.events);
            if let Some(complaint) = cell.read_back.complaint() {
                tell(format!("{NO_RESULT}: {at}: {complaint}"));
            }
            if let Some(limit) = &cell.phase.generator_limit {
                tell(format!("{at}: {limit}: the figure is the generator's"));
            }
            if !cell.phase.errors.is_empty() {
                tell(format!("{at}: failed: {}", counted(&cell.phase.errors)));
            }
            if !cell.phase.retries.is_empty() {
                tell(format!(
                    "{at}: tried again: {}",
                    counted(&cell.phase.retries)
                ));
            }
            if !cell.phase.complete {
                tell(format!(
                    "{at}: interrupted after {:.1} s",
                    cell.phase.seconds
                ));
            }
        }
        problems
    }

    fn figures(&self, cell: Cell) -> String {
        if self.cells.is_empty() {
            return "–".into();
        }
        if !self.valid {
            return NO_RESULT.into();
        }
        let is_it =
            |found: &&CellResult| (found.workers, found.events) == (cell.workers, cell.events);
        let Some(found) = self.cells.iter().find(is_it) else {
            return "–".into();
        };
        let (phase, latency) = (&found.phase, &found.phase.latency_ms);
        let mark = if phase.generator_limit.is_some() || !phase.complete {
            "*"
        } else {
            ""
        };
        let rate = grouped(phase.events_per_second);
        format!(
            "{rate}{mark} ({} / {})",
            millis(latency.p50),
            millis(latency.p99)
        )
    }
}

fn role(name: &str) -> &'static str {
    match name {
        "pgbench" => "floor",
        _ if name.starts_with("gesta") => "gesta",
        _ => "peer",
    }
}

/// The table of all peers: a row for each, a column for each cell.
pub(crate) fn table(cells: &[Cell], peers: &[PeerResult]) -> Table {
    let mut table = Table::default();
    let heads = ["events/s (p50 / p99 ms)", "version", "durable"].map(str::to_owned);
    let columns = cells.iter().map(|cell| head(cell.workers, cell.events));
    table.row(heads.into_iter().chain(columns));
    for peer in peers {
        let durable = match (peer.about.durability.as_str(), peer.comparable) {
            ("", _) => "–".to_owned(),
            (durability, true) => durability.to_owned(),
            (durability, false) => format!("{durability}: not comparable"),
        };
        let begin = [peer.title.to_owned(), peer.about.version.clone(), durable];
        let figures = cells.iter().map(|cell| peer.figures(*cell));
        table.row(begin.into_iter().chain(figures));
    }
    table
}

fn head(workers: u32, events: u64) -> String {
    let workers = format!("{workers} worker{}", if workers == 1 { "" } else { "s" });
    if events == 1 {
        workers
    } else {
        format!("{workers} × {events}")
    }
}

fn counted(causes: &std::collections::BTreeMap<String, u64>) -> String {
    let causes: Vec<String> = causes
        .iter()
        .map(|(cause, count)| format!("{count} × {cause}"))
        .collect();
    causes.join(", ")
}

fn millis(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.0}")
    }
}

/// A number with commas between thousands.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(events_per_second: f64, lost: u64) -> Measured {
        let mut measured = Measured::default();
        measured.phase.events_per_second = events_per_second;
        measured.phase.latency_ms.p50 = 1.234;
        measured.phase.latency_ms.p99 = 12.6;
        measured.phase.complete = true;
        measured.read_back.acknowledged = 10;
        measured.read_back.lost = lost;
        measured
    }

    fn peer(name: &'static str, lost: u64) -> PeerResult {
        let mut peer = PeerResult::new(name, name);
        peer.about.durability = "full".into();
        peer.about.version = "1.0".into();
        peer.add(Cell::new(1, 1), measured(1_234.0, 0));
        peer.add(Cell::new(16, 100), measured(56_789.0, lost));
        peer
    }

    #[test]
    fn one_row_per_peer_and_no_figures_of_one_that_lost_events() {
        let cells = [Cell::new(1, 1), Cell::new(16, 100)];
        let mut absent = PeerResult::new("absent", "absent");
        absent.skipped = Some("not installed".into());
        let mut weak = peer("weak", 0);
        weak.comparable = false;
        weak.about.durability = "weakened".into();
        let peers = [peer("good", 0), peer("bad", 3), absent, weak];
        let text = table(&cells, &peers).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(
            lines[0].contains("1 worker ") && lines[0].contains("16 workers × 100"),
            "{text}"
        );
        assert!(
            lines[1].contains("1,234 (1.23 / 13)") && lines[1].contains("56,789 (1.23 / 13)"),
            "{text}"
        );
        assert!(
            lines[2].matches(NO_RESULT).count() == 2 && !lines[2].contains("1,234"),
            "{text}"
        );
        assert!(lines[3].trim_end().ends_with('–'), "{text}");
        assert!(lines[4].contains("weakened: not comparable"), "{text}");
        assert!(peers[0].is_result() && peers[0].problems().is_empty());
        assert!(!peers[1].is_result() && peers[1].problems()[0].contains("3 lost"));
        assert!(!peers[2].is_result() && peers[2].problems()[0].contains("not installed"));
        assert!(peers[3].problems()[0].contains("not comparable"));
    }

    #[test]
    fn limits_errors_and_interruptions_are_told() {
        let mut peer = PeerResult::new("p", "p");
        let mut cell = measured(5.0, 0);
        cell.phase.generator_limit = Some("the generator used 1.9 of 2 cores".into());
        cell.phase.errors.insert("boom".into(), 2);
        cell.phase.complete = false;
        peer.add(Cell::new(1, 1), cell);
        let told = peer.problems().join("\n");
        assert!(
            told.contains("generator's")
                && told.contains("2 × boom")
                && told.contains("interrupted"),
            "{told}"
        );
        assert!(
            table(&[Cell::new(1, 1)], &[peer])
                .to_string()
                .contains("5* (")
        );
    }

    #[test]
    fn a_line_has_what_the_report_draws() {
        let value = serde_json::to_value(peer("good", 0)).unwrap();
        assert_eq!(value["role"], "peer");
        assert_eq!((role("gesta-http"), role("pgbench")), ("gesta", "floor"));
        for key in ["name", "version", "note", "durability", "cells", "skipped"] {
            assert!(value.get(key).is_some(), "{key}");
        }
        assert_eq!(value["cells"][1]["read_back"]["acknowledged"], 10);
        assert_eq!(value["cells"][1]["phase"]["events_per_second"], 56_789.0);
    }
}
