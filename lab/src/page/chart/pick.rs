//! From columns of a table to the points of a chart. A column that the table does not have gives a chart without figures.

use std::collections::BTreeSet;

use super::Role;
use super::axis::Axis;
use crate::report::{Cell, Chart, Column, Report, Row, Scale, Shape, Table, Unit, Whose};

/// How each name looks: the same in all charts of a report.
pub(in crate::page) struct Looks(Vec<String>);

impl Looks {
    /// For the names of all lines and bars of a report.
    pub(in crate::page) fn of(report: &Report) -> Self {
        let mut names = BTreeSet::new();
        for chart in report.charts() {
            let column = match chart.shape {
                Shape::Bars => Some(&chart.x),
                Shape::Lines => chart.by.as_ref(),
            };
            let table = report.tables().find(|table| table.title == chart.table);
            let (Some(table), Some(column)) = (table, column) else {
                continue;
            };
            if let Some(at) = table.column(column) {
                let cells = table.rows.iter().filter(|row| row.whose != Whose::Ours);
                names.extend(cells.filter_map(|row| Some(row.cells.get(at)?.told(Unit::Words))));
            }
        }
        Self(names.into_iter().collect())
    }

    fn role(&self, whose: Whose, name: &str) -> Role {
        let number = self.0.iter().position(|known| known == name).unwrap_or(0);
        match whose {
            Whose::Ours => Role::Ours,
            Whose::Published => Role::Published(number),
            Whose::Other | Whose::Bad => Role::Other(number),
        }
    }
}

/// A value.
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    /// What is known about it, shown at the pointer.
    pub(super) tip: String,
    /// Least and most of several rounds.
    pub(super) range: Option<(f64, f64)>,
    /// The line had to end here.
    pub(super) is_stop: bool,
    x_told: String,
    pub(super) y_told: String,
}

/// A line, or a bar.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) points: Vec<Point>,
}

/// What a chart shows.
pub(super) struct Picked {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
}

impl Picked {
    pub(super) fn of(chart: &Chart, report: &Report, looks: &Looks) -> Self {
        let nothing = Table::default();
        let table = report.tables().find(|table| table.title == chart.table);
        let picking = Picking {
            chart,
            table: table.unwrap_or(&nothing),
        };
        picking.all(looks)
    }

    /// In words: the first and the last value of each line.
    pub(super) fn told(&self) -> String {
        let told = self.series.iter().filter_map(|series| {
            let (first, last) = (series.points.first()?, series.points.last()?);
            let tell = |point: &Point| {
                let at = if point.x_told.is_empty() { "" } else { " at " };
                format!("{}{at}{}", point.y_told, point.x_told)
            };
            Some(match series.points.len() {
                1 => format!("{}: {}", series.name, tell(first)),
                _ => format!("{}: {}, {}", series.name, tell(first), tell(last)),
            })
        });
        told.collect::<Vec<_>>().join("; ")
    }
}

struct Picking<'a> {
    chart: &'a Chart,
    table: &'a Table,
}

impl Picking<'_> {
    fn column(&self, name: &str) -> Column {
        let at = self.table.column(name);
        at.map_or_else(Column::default, |at| self.table.columns[at].clone())
    }

    fn cell<'a>(&self, row: &'a Row, column: &str) -> &'a Cell {
        let at = self.table.column(column);
        at.and_then(|at| row.cells.get(at))
            .unwrap_or(&Cell::Unknown)
    }

    fn all(&self, looks: &Looks) -> Picked {
        let chart = self.chart;
        let is_wanted = |row: &&Row| {
            let mut only = chart.only.iter();
            only.all(|(column, value)| self.cell(row, column) == value)
        };
        let rows: Vec<&Row> = self.table.rows.iter().filter(is_wanted).collect();
        let first = chart.y.first().map_or("", String::as_str);
        let x = Axis::new(
            &self.column(&chart.x),
            chart.x_scale,
            rows.iter().map(|row| self.cell(row, &chart.x)),
        );
        let mut y = Axis::new(
            &self.column(first),
            chart.y_scale,
            rows.iter().map(|row| self.cell(row, first)),
        );
        if let Some(name) = &chart.y_name {
            y.name.clone_from(name);
        }
        let mut picked = Picked {
            x,
            y,
            series: Vec::new(),
        };
        let named = match chart.shape {
            Shape::Bars => Some(&chart.x),
            Shape::Lines => chart.by.as_ref(),
        };
        for row in rows {
            for (number, column) in chart.y.iter().enumerate() {
                let (name, role) = match named {
                    Some(named) => {
                        let name = self.cell(row, named).told(self.column(named).unit);
                        let role = looks.role(row.whose, &name);
                        (name, role)
                    }
                    None if number == 0 => (column.clone(), Role::Ours),
                    None => (column.clone(), Role::Other(number - 1)),
                };
                let point = self.point(&picked, row, column, &name);
                let at = match picked
                    .series
                    .iter()
                    .position(|known| known.name == name && chart.shape == Shape::Lines)
                {
                    Some(at) => at,
                    None => {
                        picked.series.push(Series {
                            name,
                            role,
                            points: Vec::new(),
                        });
                        picked.series.len() - 1
                    }
                };
                picked.series[at].points.extend(point);
            }
        }
        // A bar that has no figure stays, to say so; a line without points does not.
        let is_bars = chart.shape == Shape::Bars;
        picked
            .series
            .retain(|series| is_bars || !series.points.is_empty());
        picked
    }

    fn point(&self, picked: &Picked, row: &Row, column: &str, name: &str) -> Option<Point> {
        let chart = self.chart;
        let y = self
            .cell(row, column)
            .number()
            .filter(|y| picked.y.takes(*y))?;
        let is_bar = chart.shape == Shape::Bars;
        let x = if is_bar {
            0.0
        } else {
            picked.x.value(self.cell(row, &chart.x))?
        };
        let told = |name: &str| self.cell(row, name).told(self.column(name).unit);
        let end = |name: &str| {
            self.cell(row, name)
                .number()
                .filter(|end| picked.y.takes(*end))
        };
        let range = chart
            .range
            .as_ref()
            .and_then(|(least, most)| Some((end(least)?, end(most)?)));
        let stop = chart
            .stop
            .as_ref()
            .is_some_and(|stop| *self.cell(row, stop) != Cell::Unknown);
        let (x_told, y_told) = (
            if is_bar {
                String::new()
            } else {
                told(&chart.x)
            },
            told(column),
        );
        let mut tip = format!("{name}: {y_told}");
        if !is_bar {
            tip.push_str(&format!(" at {x_told}"));
        }
        let shown = |other: &&Column| {
            let is_drawn = [&chart.x, column].contains(&other.name.as_str())
                || chart.by.as_ref() == Some(&other.name);
            !is_drawn && !chart.only.iter().any(|(only, _)| *only == other.name)
        };
        for other in self.table.columns.iter().filter(shown) {
            if *self.cell(row, &other.name) != Cell::Unknown {
                tip.push_str(&format!("; {} {}", other.name, told(&other.name)));
            }
        }
        Some(Point {
            x,
            y,
            tip,
            range: range.filter(|(least, most)| most > least),
            is_stop: stop,
            x_told,
            y_told,
        })
    }
}

impl Axis {
    /// The place of a cell along the axis.
    fn value(&self, cell: &Cell) -> Option<f64> {
        let value = match self.scale {
            Scale::Steps => self
                .steps
                .iter()
                .position(|step| step == cell)
                .map(|step| step as f64),
            _ => cell.number(),
        };
        value.filter(|value| self.takes(*value))
    }
}
