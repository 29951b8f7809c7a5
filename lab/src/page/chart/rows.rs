//! Charts with a row per thing: bars with ranges, and dots on a logarithmic axis.

use super::axis::Axis;
use super::{Caption, Place, Role, figure, fitted, line, rect, room, text, tipped};
use crate::page::html::{Html, el};

/// Widest name before a row; with a wider one all stand above their rows.
const NAME_WIDTH_MAX: f64 = 200.0;
/// Bold letters are so much wider.
const BOLD: f64 = 1.1;

/// A bar.
#[derive(Debug, Clone)]
pub(in crate::page) struct Bar {
    pub(in crate::page) name: String,
    pub(in crate::page) role: Role,
    pub(in crate::page) value: f64,
    /// Least and most of several rounds.
    pub(in crate::page) range: Option<(f64, f64)>,
    /// The value in words, at the end of the bar.
    pub(in crate::page) told: String,
}

/// Bars from 0, one under the other.
#[derive(Debug, Clone)]
pub(in crate::page) struct Bars {
    pub(in crate::page) title: String,
    pub(in crate::page) description: String,
    pub(in crate::page) bars: Vec<Bar>,
    pub(in crate::page) note: Option<String>,
}

impl Bars {
    /// The figure.
    pub(in crate::page) fn draw(&self) -> Html {
        let caption = Caption {
            title: &self.title,
            description: &self.description,
            legend: Vec::new(),
            note: self.note.as_deref(),
        };
        figure(&caption, |place| self.drawing(place))
    }

    fn drawing(&self, place: Place) -> (Html, f64) {
        let rows = Rows::of(place, self.bars.iter().map(|bar| bar.name.as_str()));
        let told = self
            .bars
            .iter()
            .map(|bar| room(&bar.told))
            .fold(0.0, f64::max);
        let right = (place.width - told - 14.0).max(rows.left + 40.0);
        let ends = self
            .bars
            .iter()
            .map(|bar| bar.range.map_or(bar.value, |range| range.1.max(bar.value)));
        let most = ends
            .filter(|end| (0.0..1e18).contains(end))
            .fold(0.0, f64::max);
        let at = |value: f64| match most {
            most if most > 0.0 => rows.left + value.clamp(0.0, most) / most * (right - rows.left),
            _ => rows.left,
        };
        let mut drawing = Html::default();
        for (row, bar) in self.bars.iter().enumerate() {
            let middle = rows.middle(row);
            let mut one = el("g")
                .class(bar.role.class())
                .with(rows.name(row, &bar.name, bar.role == Role::Ours))
                .with(
                    rect(
                        rows.left,
                        middle - 8.0,
                        (at(bar.value) - rows.left).max(1.0),
                        16.0,
                    )
                    .class("bar"),
                );
            one = one.with(
                line(
                    (rows.left, middle - rows.step / 2.0 + rows.gap()),
                    (rows.left, middle + rows.step / 2.0 - rows.gap()),
                )
                .class("base"),
            );
            let mut end = at(bar.value);
            if let Some((least, most)) = bar.range {
                let (from, to) = (at(least), at(most));
                end = end.max(to);
                let d = format!(
                    "M{from:.1} {:.1}v8M{from:.1} {middle:.1}H{to:.1}M{to:.1} {:.1}v8",
                    middle - 4.0,
                    middle - 4.0
                );
                one = one.with(el("path").class("whisker").attr("d", d));
            }
            one = one.with(text(end + 7.0, middle + 4.0, "start", &bar.told).class("value"));
            drawing.push(tipped(one, &format!("{}: {}", bar.name, bar.told)));
        }
        (drawing, rows.height() + 4.0)
    }
}

/// A value in a row.
#[derive(Debug, Clone)]
pub(in crate::page) struct Dot {
    /// Which of the chart's series it belongs to.
    pub(in crate::page) series: usize,
    pub(in crate::page) value: f64,
    pub(in crate::page) tip: String,
}

/// A row of dots.
#[derive(Debug, Clone)]
pub(in crate::page) struct DotRow {
    pub(in crate::page) name: String,
    pub(in crate::page) is_ours: bool,
    pub(in crate::page) dots: Vec<Dot>,
}

/// Rows of dots over one axis.
#[derive(Debug, Clone)]
pub(in crate::page) struct Dots {
    pub(in crate::page) title: String,
    pub(in crate::page) description: String,
    pub(in crate::page) axis: Axis,
    pub(in crate::page) series: Vec<String>,
    pub(in crate::page) rows: Vec<DotRow>,
}

impl Dots {
    /// The figure.
    pub(in crate::page) fn draw(&self) -> Html {
        let legend = self.series.iter().enumerate();
        let caption = Caption {
            title: &self.title,
            description: &self.description,
            legend: legend
                .map(|(n, name)| (Role::Other(n), name.clone()))
                .collect(),
            note: None,
        };
        figure(&caption, |place| self.drawing(place))
    }

    fn drawing(&self, place: Place) -> (Html, f64) {
        let rows = Rows::of(place, self.rows.iter().map(|row| row.name.as_str()));
        let bottom = rows.height();
        let values: Vec<f64> = self
            .rows
            .iter()
            .flat_map(|row| row.dots.iter().map(|dot| dot.value))
            .filter(|value| self.axis.takes(*value))
            .collect();
        if values.is_empty() {
            let middle = (place.width / 2.0, 20.0);
            return (
                text(middle.0, middle.1, "middle", "no figures").into(),
                40.0,
            );
        }
        let ticks_max = if place.is_narrow { 4 } else { 7 };
        let x = self
            .axis
            .laid(&values, rows.left + 8.0, place.width - 24.0)
            .rounded(ticks_max);
        let mut axes = el("g").class("axes");
        for (value, label) in x.spread(x.ticks(ticks_max)) {
            let at = x.at(value);
            axes = axes
                .with(line((at, 2.0), (at, bottom)).class("grid"))
                .with(text(at, bottom + 16.0, "middle", &label));
        }
        let middle = (rows.left + place.width) / 2.0;
        axes =
            axes.with(text(middle, bottom + 34.0, "middle", &self.axis.label).class("axis-name"));
        let mut drawing: Html = axes.into();
        for (number, row) in self.rows.iter().enumerate() {
            let y = rows.middle(number);
            drawing.push(rows.name(number, &row.name, row.is_ours));
            let at: Vec<f64> = row
                .dots
                .iter()
                .filter(|dot| self.axis.takes(dot.value))
                .map(|dot| x.at(dot.value))
                .collect();
            let least = at.iter().copied().fold(f64::MAX, f64::min);
            let most = at.iter().copied().fold(f64::MIN, f64::max);
            if most > least {
                drawing.push(line((least, y), (most, y)).class("between"));
            }
            for dot in row.dots.iter().filter(|dot| self.axis.takes(dot.value)) {
                let role = Role::Other(dot.series);
                let shape = role.shape(x.at(dot.value), y).class("shape");
                let tip = format!("{}: {}", row.name, dot.tip);
                drawing.push(el("g").class(role.class()).with(tipped(shape, &tip)));
            }
        }
        (drawing, bottom + 40.0)
    }
}

/// Where rows and their names stand: names before the rows where all have room, else above them.
struct Rows {
    count: usize,
    left: f64,
    step: f64,
    names_above: bool,
    width: f64,
}

impl Rows {
    fn of<'a>(place: Place, names: impl ExactSizeIterator<Item = &'a str>) -> Self {
        let count = names.len();
        let widest = names.map(room).fold(0.0, f64::max) * BOLD;
        let names_above = place.is_narrow || widest > NAME_WIDTH_MAX;
        Self {
            count,
            left: if names_above { 2.0 } else { widest + 14.0 },
            step: if names_above { 42.0 } else { 28.0 },
            names_above,
            width: place.width,
        }
    }

    fn height(&self) -> f64 {
        self.count as f64 * self.step + 2.0
    }

    /// Between the lines at the beginning of bars: room for a name above, else none.
    fn gap(&self) -> f64 {
        if self.names_above { 10.0 } else { 0.0 }
    }

    fn middle(&self, row: usize) -> f64 {
        let top = row as f64 * self.step;
        top + if self.names_above { 28.0 } else { 15.0 }
    }

    fn name(&self, row: usize, name: &str, is_ours: bool) -> Html {
        let class = if is_ours { "name strong" } else { "name" };
        let label = if self.names_above {
            let name = fitted(name, self.width / BOLD - 8.0);
            text(2.0, self.middle(row) - 14.0, "start", &name)
        } else {
            text(self.left - 8.0, self.middle(row) + 4.0, "end", name)
        };
        label.class(class).into()
    }
}
