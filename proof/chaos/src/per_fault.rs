//! What rounds have shown, added up for each kind of fault: the table in which commands that hurt end.

use std::collections::BTreeMap;
use std::time::Duration;

use gesta_kit::history::{self, Violation};
use gesta_report::histogram::Latencies;
use gesta_report::{Cell, Table, Unit};
use serde::Serialize;

use gesta_report::name_of;

/// How many events were lost, and how many were doubled.
pub(crate) fn lost_and_doubled(verdict: &history::HistoryReport) -> [u64; 2] {
    let count = |counts: fn(&Violation) -> bool| {
        let violations = verdict.violations.iter();
        violations.filter(|one| counts(one)).count() as u64
    };
    [
        count(|one| matches!(one, Violation::AcknowledgedLost { .. })),
        count(|one| matches!(one, Violation::StoredTwice { .. })),
    ]
}

/// Counts and times per kind of fault.
#[derive(Debug)]
pub(crate) struct PerFault<F> {
    counts: &'static [&'static str],
    times: &'static [&'static str],
    rows: BTreeMap<F, Row>,
}

#[derive(Debug)]
struct Row {
    rounds: u64,
    counts: Vec<u64>,
    times: Vec<Latencies>,
}

impl<F: Ord + Serialize> PerFault<F> {
    /// Nothing has happened. Names what is counted, and of which times the median and the longest are told.
    pub(crate) fn new(counts: &'static [&'static str], times: &'static [&'static str]) -> Self {
        Self {
            counts,
            times,
            rows: BTreeMap::new(),
        }
    }

    /// Adds a round: its counts and its times in the order of their names. A time may be unknown.
    pub(crate) fn add(&mut self, fault: F, counts: &[u64], times: &[Option<Duration>]) {
        let row = self.rows.entry(fault).or_insert_with(|| Row {
            rounds: 0,
            counts: vec![0; self.counts.len()],
            times: vec![Latencies::default(); self.times.len()],
        });
        row.rounds += 1;
        for (sum, count) in row.counts.iter_mut().zip(counts) {
            *sum += count;
        }
        for (all, time) in row.times.iter_mut().zip(times) {
            time.iter().for_each(|time| all.record(*time));
        }
    }

    /// A row per kind of fault. A time that is known of none is left out.
    pub(crate) fn table(&self, title: impl Into<String>) -> Table {
        let mut columns = vec![
            ("fault".to_owned(), Unit::Words),
            ("rounds".to_owned(), Unit::Count),
        ];
        let counts = self.counts.iter();
        columns.extend(counts.map(|name| ((*name).to_owned(), Unit::Count)));
        let is_known = |at: &usize| {
            let mut rows = self.rows.values();
            rows.any(|row| row.times[*at].percentiles().count > 0)
        };
        let known: Vec<usize> = (0..self.times.len()).filter(is_known).collect();
        for at in &known {
            let name = self.times[*at];
            columns.push((format!("{name} (median)"), Unit::Millis));
            columns.push((format!("{name} (longest)"), Unit::Millis));
        }
        let mut table = Table::new(title, columns);
        for (fault, row) in &self.rows {
            let mut cells = vec![Cell::from(name_of(fault)), row.rounds.into()];
            cells.extend(row.counts.iter().map(|count| Cell::from(*count)));
            for at in &known {
                let times = Some(row.times[*at].percentiles()).filter(|times| times.count > 0);
                cells.push(times.map(|times| times.p50).into());
                cells.push(times.map(|times| times.max).into());
            }
            table.row(cells);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_added_up_per_fault() {
        let mut all = PerFault::new(&["lost"], &["away"]);
        for (fault, lost, away) in [("b", 1, Some(2)), ("a", 0, None), ("b", 4, Some(6))] {
            all.add(fault, &[lost], &[away.map(Duration::from_millis)]);
        }
        let told = all.table("Faults").to_string();
        assert!(told.ends_with("a           1     0              –               –\nb           2     5           2 ms            6 ms\n"), "{told}");
    }
}
