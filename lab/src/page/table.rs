//! Tables: the first cell of a row names it, numbers stand on the right, a wide table scrolls in its own box.

use super::html::{Element, Html, el};
use super::look::Look;
use super::numbers::{Unit, count, percent};

/// Words longer than this want a wide column.
const LONG: usize = 22;

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cell {
    /// Words.
    Words(String),
    /// A figure.
    Figure(String),
    /// Nothing is known.
    Unknown,
}

/// Words.
pub(super) fn words(text: impl Into<String>) -> Cell {
    let text: String = text.into();
    if text.is_empty() {
        return Cell::Unknown;
    }
    Cell::Words(text)
}

/// A figure that is already text.
pub(super) fn figure(text: impl Into<String>) -> Cell {
    Cell::Figure(text.into())
}

/// A number with a unit.
pub(super) fn told(unit: Unit, value: Option<f64>) -> Cell {
    value.map_or(Cell::Unknown, |value| Cell::Figure(unit.told(value)))
}

/// A count or a rate.
pub(super) fn counted(value: Look<'_>) -> Cell {
    told(Unit::Count, value.number())
}

/// Milliseconds.
pub(super) fn millis(value: Look<'_>) -> Cell {
    told(Unit::Millis, value.number())
}

/// A share of one.
pub(super) fn share(value: Look<'_>) -> Cell {
    value
        .number()
        .map_or(Cell::Unknown, |value| Cell::Figure(percent(value)))
}

/// Processor time in cores.
pub(super) fn cores(value: Look<'_>) -> Cell {
    let value = value.number();
    value.map_or(Cell::Unknown, |value| {
        Cell::Figure(super::numbers::trimmed(value, 2))
    })
}

/// Counts by cause: the sum and the causes.
pub(super) fn causes(of: &[Look<'_>]) -> Cell {
    let mut by_cause = std::collections::BTreeMap::<&str, f64>::new();
    for look in of {
        for (cause, number) in look.members() {
            *by_cause.entry(cause).or_default() += number.number().unwrap_or(0.0);
        }
    }
    by_cause.retain(|_, number| *number > 0.0);
    if by_cause.is_empty() {
        return Cell::Figure("0".into());
    }
    let causes = by_cause
        .iter()
        .map(|(cause, number)| format!("{} × {cause}", count(*number)));
    Cell::Words(causes.collect::<Vec<_>>().join(", "))
}

/// How a row looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Emphasis {
    /// Like the others.
    Plain,
    /// Gesta's.
    Ours,
    /// Of a run that is no result.
    Bad,
}

/// A table.
#[derive(Debug, Clone)]
pub(super) struct Table {
    caption: String,
    heads: Vec<String>,
    rows: Vec<(Emphasis, Vec<Cell>)>,
}

impl Table {
    /// Without rows yet.
    pub(super) fn new(caption: impl Into<String>, heads: &[&str]) -> Self {
        Self {
            caption: caption.into(),
            heads: heads.iter().map(|head| (*head).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        self.styled(Emphasis::Plain, cells);
    }

    /// Adds a row that looks so.
    pub(super) fn styled(&mut self, look: Emphasis, cells: Vec<Cell>) {
        self.rows.push((look, cells));
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The markup; columns that no row knows anything of are left out.
    pub(super) fn draw(&self) -> Html {
        if self.rows.is_empty() {
            return Html::default();
        }
        let known = |column: &usize| {
            let of = |row: &&(Emphasis, Vec<Cell>)| {
                row.1
                    .get(*column)
                    .is_some_and(|cell| *cell != Cell::Unknown)
            };
            *column == 0 || self.rows.iter().any(|row| of(&row))
        };
        let columns: Vec<usize> = (0..self.heads.len()).filter(known).collect();
        let heads = columns.iter().map(|column| {
            let of_figures = self
                .rows
                .iter()
                .any(|(_, cells)| matches!(cells.get(*column), Some(Cell::Figure(_))));
            let head = el("th")
                .attr("scope", "col")
                .with(self.heads[*column].as_str());
            if of_figures && *column > 0 {
                head.class("figure")
            } else {
                head
            }
        });
        let rows = self.rows.iter().map(|(look, cells)| {
            let cells = columns
                .iter()
                .map(|column| cell(*column, cells.get(*column)));
            let row = el("tr").all(cells);
            match look {
                Emphasis::Plain => row,
                Emphasis::Ours => row.class("ours"),
                Emphasis::Bad => row.class("bad"),
            }
        });
        let table = el("table")
            .with(el("caption").with(self.caption.as_str()))
            .with(el("thead").with(el("tr").all(heads)))
            .with(el("tbody").all(rows));
        el("div")
            .class("scroll")
            .attr("role", "region")
            .attr("tabindex", "0")
            .attr("aria-label", &self.caption)
            .with(table)
            .into()
    }
}

fn cell(column: usize, cell: Option<&Cell>) -> Element {
    let element = if column == 0 {
        el("th").attr("scope", "row")
    } else {
        el("td")
    };
    match cell {
        Some(Cell::Words(text)) if text.chars().count() > LONG => {
            element.class("long").with(text.as_str())
        }
        Some(Cell::Words(text)) => element.with(text.as_str()),
        Some(Cell::Figure(text)) if column == 0 => element.with(text.as_str()),
        Some(Cell::Figure(text)) => element.class("figure").with(text.as_str()),
        Some(Cell::Unknown) | None => element.class("figure").with("–"),
    }
}

/// Something that is folded away at first.
pub(super) fn details(summary: &str, inner: impl Into<Html>) -> Html {
    let inner: Html = inner.into();
    if inner.is_empty() {
        return inner;
    }
    el("details")
        .with(el("summary").with(summary))
        .with(inner)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_leaves_out_columns_without_figures() {
        let mut table = Table::new("t", &["name", "a", "b"]);
        table.row(vec![words("x"), Cell::Unknown, figure("1")]);
        table.styled(Emphasis::Ours, vec![words("y"), words(""), Cell::Unknown]);
        let html = table.draw().into_string();
        assert!(!html.contains(">a<") && html.contains(">b<"), "{html}");
        assert!(
            html.contains("<tr class=\"ours\"><th scope=\"row\">y</th>"),
            "{html}"
        );
        assert_eq!(Table::new("t", &["name"]).draw(), Html::default());
    }

    #[test]
    fn causes_are_added_up() {
        let value = serde_json::json!([{"40001": 3, "x": 0}, {"40001": 2000}]);
        let of: Vec<Look<'_>> = Look::at(&value).items().collect();
        assert_eq!(causes(&of), words("2,003 × 40001"));
        assert_eq!(causes(&[]), figure("0"));
    }
}
