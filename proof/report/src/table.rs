//! Tables of a report: typed columns, rows of numbers and words, and what the terminal shows of them.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use crate::numbers::{Unit, count};

/// A value in a table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// A number in the unit of its column.
    Number(f64),
    /// Words.
    Words(String),
    /// Nothing is known.
    #[default]
    Unknown,
}

impl Cell {
    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Cell::Number(number) => Some(*number).filter(|number| number.is_finite()),
            _ => None,
        }
    }

    /// The value as a person would write it.
    pub fn told(&self, unit: Unit) -> String {
        match self {
            Cell::Number(number) => unit.told(*number),
            Cell::Words(text) => text.clone(),
            Cell::Unknown => "–".into(),
        }
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        if number.is_finite() {
            Cell::Number(number)
        } else {
            Cell::Unknown
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        if text.is_empty() {
            return Cell::Unknown;
        }
        Cell::Words(text)
    }
}

impl From<&String> for Cell {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Cell::Unknown, Into::into)
    }
}

macro_rules! from_whole {
    ($($number:ty),*) => {$(
        impl From<$number> for Cell {
            #[allow(clippy::cast_precision_loss, clippy::cast_lossless, reason = "counts of a run fit")]
            fn from(number: $number) -> Self {
                Cell::Number(number as f64)
            }
        }
    )*};
}
from_whole!(i32, u16, u32, u64, usize);

/// The cells of a row, out of values of several types.
#[macro_export]
macro_rules! cells {
    ($($value:expr),* $(,)?) => { vec![$($crate::Cell::from($value)),*] };
}

/// The name of a value in tables: its own in JSON.
pub fn name_of(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// Counts by cause in words: `2,003 × 40001`; nothing without any.
pub fn causes<'a>(of: impl IntoIterator<Item = (&'a String, &'a u64)>) -> Cell {
    let mut by_cause = std::collections::BTreeMap::<&str, u64>::new();
    for (cause, number) in of {
        *by_cause.entry(cause).or_default() += number;
    }
    by_cause.retain(|_, number| *number > 0);
    let told = by_cause.iter().map(|(cause, number)| {
        let number = Cell::from(*number).number().unwrap_or_default();
        format!("{} × {cause}", count(number))
    });
    told.collect::<Vec<_>>().join(", ").into()
}

/// A column.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Column {
    /// Its head.
    pub name: String,
    /// What its numbers count.
    pub unit: Unit,
}

/// Whose figures these are, which decides how they look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// Another's, or nobody's in particular; earlier versions told published ones apart.
    #[default]
    #[serde(alias = "published")]
    Other,
    /// Gesta's.
    Ours,
    /// Of something that is no result.
    Bad,
}

impl Whose {
    /// Gesta's if the name is that of a form of Gesta.
    pub fn named(name: &str) -> Self {
        let is_ours = name == "gesta" || name.starts_with("gesta-") || name.starts_with("gesta ");
        if is_ours { Self::Ours } else { Self::Other }
    }

    fn is_other(&self) -> bool {
        *self == Self::Other
    }
}

/// A row; the first cell names it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// One per column.
    pub cells: Vec<Cell>,
    /// Whose.
    #[serde(skip_serializing_if = "Whose::is_other")]
    pub whose: Whose,
}

/// A table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Table {
    /// What is in it; charts name it by this.
    pub title: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Row>,
    /// True for details that the page folds away and the terminal leaves out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub folded: bool,
}

impl Table {
    /// A table without rows yet.
    pub fn new<T: Into<String>>(
        title: impl Into<String>,
        columns: impl IntoIterator<Item = (T, Unit)>,
    ) -> Self {
        let columns = columns.into_iter().map(|(name, unit)| Column {
            name: name.into(),
            unit,
        });
        Self {
            title: title.into(),
            columns: columns.collect(),
            ..Self::default()
        }
    }

    /// Folded away at first.
    #[must_use]
    pub fn folded(mut self) -> Self {
        self.folded = true;
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.row_of(Whose::Other, cells);
    }

    /// Adds a row of somebody.
    pub fn row_of(&mut self, whose: Whose, cells: Vec<Cell>) {
        debug_assert_eq!(
            cells.len(),
            self.columns.len(),
            "a cell for each column of {:?}",
            self.title
        );
        self.rows.push(Row { cells, whose });
    }

    /// The number of the column with this name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// True for a column of figures, which stand on the right; the first one names the rows.
    pub fn is_figures(&self, column: usize) -> bool {
        let mut rows = self.rows.iter();
        column > 0 && rows.any(|row| matches!(row.cells.get(column), Some(Cell::Number(_))))
    }

    /// Columns of which something is known, and the first.
    pub fn known(&self) -> Vec<usize> {
        let is_known = |column: &usize| {
            let cells = || self.rows.iter().filter_map(|row| row.cells.get(*column));
            *column == 0 || cells().any(|cell| *cell != Cell::Unknown)
        };
        (0..self.columns.len()).filter(is_known).collect()
    }

    /// Those of them that the terminal shows, where room is short: a column of nothing but zeros says nothing.
    fn shown(&self) -> Vec<usize> {
        let says_something = |cell: &Cell| match cell {
            Cell::Number(number) => *number != 0.0,
            Cell::Words(_) => true,
            Cell::Unknown => false,
        };
        let mut columns = self.known();
        columns.retain(|column| {
            let mut cells = self.rows.iter().filter_map(|row| row.cells.get(*column));
            *column == 0 || cells.any(says_something)
        });
        columns
    }
}

/// For the terminal: the first column on the left, the others on the right.
impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let columns = self.shown();
        let heads = columns
            .iter()
            .map(|at| self.columns[*at].name.clone())
            .collect();
        let mut rows: Vec<Vec<String>> = vec![heads];
        rows.extend(self.rows.iter().map(|row| {
            let told = |at: &usize| {
                let cell = row.cells.get(*at).unwrap_or(&Cell::Unknown);
                cell.told(self.columns[*at].unit).replace('\u{a0}', " ")
            };
            columns.iter().map(told).collect()
        }));
        let width = |column: usize| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns.len()).map(width).collect();
        for row in &rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&if line.is_empty() {
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
    fn columns_are_aligned_and_those_that_say_nothing_left_out() {
        let mut table = Table::new(
            "t",
            [
                ("name", Unit::Words),
                ("a", Unit::Count),
                ("refused", Unit::Count),
                ("p99", Unit::Millis),
            ],
        );
        table.row(cells!["größe", None::<u64>, 0, 10.0]);
        table.row(cells!["x", None::<u64>, 0, f64::NAN]);
        assert_eq!(
            table.to_string(),
            "name     p99\ngröße  10 ms\nx          –\n"
        );
    }
}
