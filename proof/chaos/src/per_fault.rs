//! What rounds have shown, added up for each kind of fault: the table in which commands that hurt end.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use gesta_kit::verdict::{Verdict, Violation};
use gesta_report::histogram::Latencies;
use gesta_report::{Cell, Table, Unit};

/// How many events were lost, and how many were doubled.
pub(crate) fn lost_and_doubled(verdict: &Verdict) -> [u64; 2] {
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
    counts: Option<Vec<u64>>,
    times: Vec<Latencies>,
}

impl<F: Ord + Display> PerFault<F> {
    /// Nothing has happened. Names what is counted, and of which times the median and the longest are told.
    pub(crate) fn new(counts: &'static [&'static str], times: &'static [&'static str]) -> Self {
        Self {
            counts,
            times,
            rows: BTreeMap::new(),
        }
    }

    /// Adds a round: its counts and its times in the order of their names. Counts are unknown of a round that is not
    /// judged by itself; a time may be unknown.
    pub(crate) fn add(&mut self, fault: F, counts: Option<&[u64]>, times: &[Option<Duration>]) {
        let row = self.rows.entry(fault).or_insert_with(|| Row {
            rounds: 0,
            counts: None,
            times: vec![Latencies::default(); self.times.len()],
        });
        row.rounds += 1;
        if let Some(counts) = counts {
            let sums = row.counts.get_or_insert_with(|| vec![0; counts.len()]);
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        for (all, time) in row.times.iter_mut().zip(times) {
            time.iter().for_each(|time| all.record(*time));
        }
    }

    /// A row per kind of fault. Counts and times that are known of none are left out.
    pub(crate) fn table(&self, title: impl Into<String>) -> Table {
        let mut columns = vec![
            ("fault".to_owned(), Unit::Words),
            ("rounds".to_owned(), Unit::Count),
        ];
        let is_counted = self.rows.values().any(|row| row.counts.is_some());
        let counts = self.counts.iter().filter(|_| is_counted);
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
            let mut cells = vec![Cell::from(fault.to_string()), row.rounds.into()];
            if is_counted {
                let count = |at: usize| row.counts.as_ref().map(|counts| counts[at]);
                cells.extend((0..self.counts.len()).map(|at| Cell::from(count(at))));
            }
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
    fn counts_of_rounds_that_are_judged_together_are_left_out() {
        let mut all = PerFault::new(&["lost"], &["away"]);
        all.add("b", None, &[Some(Duration::from_millis(2))]);
        let told = all.table("Faults").to_string();
        assert!(!told.contains("lost") && told.contains("2 ms"), "{told}");
        all.add("a", Some(&[3]), &[None]);
        let told = all.table("Faults").to_string();
        let cells: Vec<Vec<&str>> = told
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(cells.contains(&vec!["a", "1", "3", "–", "–"]), "{told}");
        assert!(
            cells.iter().any(|row| row.starts_with(&["b", "1", "–"])),
            "{told}"
        );
    }

    #[test]
    fn rounds_are_added_up_per_fault() {
        let mut all = PerFault::new(&["lost"], &["away"]);
        for (fault, lost, away) in [("b", 1, Some(2)), ("a", 0, None), ("b", 4, Some(6))] {
            all.add(fault, Some(&[lost]), &[away.map(Duration::from_millis)]);
        }
        let told = all.table("Faults").to_string();
        assert!(told.ends_with("a           1     0              –               –\nb           2     5           2 ms            6 ms\n"), "{told}");
    }
}
