//! Whether several runs of the same setting agree within the noise that they report.

use crate::report::numbers::{capitalised, list, percent, spelled};
use crate::report::{Cell, Report, Table};

/// Figures of the column that says what is better, by the name of the row, and their noise.
fn ranking(report: &Report) -> Option<(&Table, usize, f64)> {
    let table = report.tables().find(|table| table.noise.is_some())?;
    let column = table
        .columns
        .iter()
        .position(|column| column.better.is_some())?;
    Some((table, column, table.noise?))
}

fn rate(table: &Table, column: usize, name: &Cell) -> Option<f64> {
    let row = table
        .rows
        .iter()
        .find(|row| row.cells.first() == Some(name))?;
    row.cells.get(column)?.number().filter(|rate| *rate > 0.0)
}

/// The sentence; none of fewer than two results with a noise.
pub(super) fn sentence(runs: &[&Report]) -> Option<String> {
    let results = runs.iter().filter(|run| run.is_valid());
    let rankings: Vec<(&Table, usize, f64)> = results.filter_map(|run| ranking(run)).collect();
    let first = rankings.first()?;
    if rankings.len() < 2 {
        return None;
    }
    let how_many = capitalised(&spelled(rankings.len()));
    if rankings.iter().any(|(.., noise)| *noise <= 0.0) {
        return Some(format!(
            "{how_many} runs: not all report a noise, so whether they agree cannot be said."
        ));
    }
    let (mut largest, mut apart) = (None, Vec::new());
    for name in first.0.rows.iter().filter_map(|row| row.cells.first()) {
        let found = rankings
            .iter()
            .filter_map(|(table, column, noise)| Some((rate(table, *column, name)?, *noise)));
        let found: Vec<(f64, f64)> = found.collect();
        if found.len() < 2 {
            continue;
        }
        let least = found.iter().map(|(rate, _)| *rate).fold(f64::MAX, f64::min);
        let most = found.iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
        let difference = (most - least) / (most + least);
        let told = name.told(first.0.columns[0].unit);
        // The ranges of two runs, each rate more or less its noise, do not meet.
        let from = found
            .iter()
            .map(|(rate, noise)| rate * (1.0 - noise))
            .fold(0.0, f64::max);
        let to = found
            .iter()
            .map(|(rate, noise)| rate * (1.0 + noise))
            .fold(f64::MAX, f64::min);
        if from > to {
            apart.push(format!("{told} (±{})", percent(difference)));
        }
        if largest
            .as_ref()
            .is_none_or(|(known, _)| difference > *known)
        {
            largest = Some((difference, told));
        }
    }
    let (difference, name) = largest?;
    let noises: Vec<String> = rankings
        .iter()
        .map(|(.., noise)| format!("±{}", percent(*noise)))
        .collect();
    let noises = list(&noises);
    Some(if apart.is_empty() {
        format!(
            "{how_many} runs agree: all best rates lie within the noise that the runs report ({noises}); \
             the largest difference is ±{} ({name}).",
            percent(difference)
        )
    } else {
        format!(
            "{how_many} runs do not agree on {}: more than the noise that they report ({noises}).",
            list(&apart)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells;
    use crate::report::{Better, Unit};

    fn told(runs: &[(f64, f64)]) -> String {
        let reports = runs.iter().map(|(rate, noise)| {
            let columns = [("schema", Unit::Words), ("events/s", Unit::Count)];
            let mut table = Table::new("Best", columns).better("events/s", Better::More);
            table.noise = Some(*noise);
            table.row(cells!["Gesta", 9_000]);
            table.row(cells!["JDBC", *rate]);
            let mut report = Report::default();
            report.table(table);
            report.end(true);
            report
        });
        let reports: Vec<Report> = reports.collect();
        let runs: Vec<&Report> = reports.iter().collect();
        sentence(&runs).unwrap_or_default().replace('\u{a0}', " ")
    }

    #[test]
    fn runs_agree_within_the_noise_that_they_report() {
        let agree = told(&[(1_000.0, 0.05), (1_080.0, 0.05)]);
        assert!(agree.starts_with("Two runs agree"), "{agree}");
        assert!(
            agree.ends_with("the largest difference is ±3.8 % (JDBC)."),
            "{agree}"
        );
        let apart = told(&[(1_000.0, 0.05), (1_200.0, 0.05)]);
        assert!(
            apart.starts_with("Two runs do not agree on JDBC (±9.1 %)"),
            "{apart}"
        );
        let unknown = told(&[(1_000.0, 0.05), (1_000.0, 0.0)]);
        assert!(unknown.contains("cannot be said"), "{unknown}");
        assert_eq!(told(&[(1_000.0, 0.05)]), "");
    }
}
