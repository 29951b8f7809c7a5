//! Charts as inline SVG: lines over linear, logarithmic or named steps, and bars with ranges.
//!
//! Colours and dashes are classes, defined for both themes by the style sheet. Not here: which figures are drawn is
//! said by the report's chart, which names columns of a table.

use maud::{Markup, html};

use crate::chart::{Chart, Scale, Shape};
use crate::numbers::Unit;
use crate::report::Report;
use crate::table::{Cell, Row, Table, Whose};

/// Width of a drawing, and of one of its letters, rather too much than too little.
const WIDTH: f64 = 560.0;
const LETTER: f64 = 6.9;
/// Height of the room between the axes, where it begins and ends, and where the horizontal axis ends.
const HEIGHT: f64 = 250.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = TOP + HEIGHT;
const RIGHT: f64 = WIDTH - 16.0;
/// Height of a bar with its gap.
const BAR: f64 = 28.0;
/// About so many labels on an axis.
const TICKS: usize = 7;
/// Colours of others; then they begin again.
const COLOURS: usize = 9;

struct Point {
    x: f64,
    y: f64,
    told: String,
    /// What is known about it, shown at the pointer.
    tip: String,
    /// Least and most of several rounds.
    range: Option<(f64, f64)>,
    /// The line had to end here.
    is_stop: bool,
}

/// A label of an axis, after its place.
type Label = (f64, String);

/// A line, or a bar.
struct Series {
    name: String,
    class: String,
    points: Vec<Point>,
}

/// The figure of a chart of this report.
pub(super) fn draw(chart: &Chart, report: &Report) -> Markup {
    let nothing = Table::default();
    let table = report.tables().find(|table| table.title == chart.table);
    let picking = Picking {
        chart,
        table: table.unwrap_or(&nothing),
    };
    let series = picking.series();
    let (inner, height) = match chart.shape {
        _ if series.iter().all(|one| one.points.is_empty()) => {
            let place = (WIDTH / 2.0, 40.0);
            (text("", place, "middle", "no figures"), 80.0)
        }
        Shape::Lines => lines(&picking, &series),
        Shape::Bars => bars(&series),
    };
    html! { figure.chart {
        figcaption { (chart.title) }
        svg viewBox=(format!("0 0 {WIDTH:.0} {height:.0}")) role="img" {
            title { (chart.title) }
            desc { @for one in &series { (one.name) ": " @if let Some(last) = one.points.last() { (last.told) } "; " } }
            (inner)
        }
        // A single line needs no legend: the axis says what it is.
        @if chart.shape == Shape::Lines && series.len() > 1 {
            ul.legend { @for one in &series { li {
                svg.sample viewBox="0 0 26 12" aria-hidden="true" { g class=(one.class) { (line("line", (1.0, 6.0), (25.0, 6.0))) } }
                (one.name)
            } } }
        }
        @if let Some(note) = &chart.note { p.note { (note) } }
    } }
}

/// From columns of a table to points. A column that the table does not have gives a chart without figures.
struct Picking<'a> {
    chart: &'a Chart,
    table: &'a Table,
}

impl Picking<'_> {
    fn cell<'a>(&self, row: &'a Row, column: &str) -> &'a Cell {
        let at = self.table.column(column);
        let cell = at.and_then(|at| row.cells.get(at));
        cell.unwrap_or(&Cell::Unknown)
    }

    fn told(&self, row: &Row, column: &str) -> String {
        self.cell(row, column).told(self.unit(column))
    }

    fn unit(&self, column: &str) -> Unit {
        let at = self.table.column(column);
        at.map_or(Unit::Words, |at| self.table.columns[at].unit)
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        let is_wanted = |row: &&Row| {
            let mut only = self.chart.only.iter();
            only.all(|(column, value)| self.cell(row, column) == value)
        };
        self.table.rows.iter().filter(is_wanted)
    }

    /// Of named steps, the values in their order.
    fn steps(&self) -> Vec<&Cell> {
        let mut steps = Vec::new();
        for cell in self.rows().map(|row| self.cell(row, &self.chart.x)) {
            if *cell != Cell::Unknown && !steps.contains(&cell) {
                steps.push(cell);
            }
        }
        steps
    }

    /// The names of the steps, each cut to the room that a step has.
    fn step_labels(&self, x: &Axis) -> Vec<Label> {
        let (steps, unit) = (self.steps(), self.unit(&self.chart.x));
        let place = (x.to - x.from) / steps.len().max(1) as f64;
        let labels = steps.iter().map(|step| fitted(&step.told(unit), place));
        (0..)
            .map(|step| x.at(f64::from(step)))
            .zip(labels)
            .collect()
    }

    fn series(&self) -> Vec<Series> {
        let (chart, steps) = (self.chart, self.steps());
        let is_bars = chart.shape == Shape::Bars;
        let named = if is_bars {
            Some(&chart.x)
        } else {
            chart.by.as_ref()
        };
        let mut all: Vec<Series> = Vec::new();
        for row in self.rows() {
            for (number, column) in chart.y.iter().enumerate() {
                let name = named.map_or(column.clone(), |named| self.told(row, named));
                let is_ours = row.whose == Whose::Ours || (named.is_none() && number == 0);
                let at = all.iter().position(|known| known.name == name && !is_bars);
                let at = at.unwrap_or_else(|| {
                    let class = match row.whose {
                        _ if is_ours => "ours".into(),
                        _ => format!("c{}", all.len() % COLOURS),
                    };
                    let points = Vec::new();
                    all.push(Series {
                        name,
                        class,
                        points,
                    });
                    all.len() - 1
                });
                let point = self.point(row, column, &steps, &all[at].name);
                all[at].points.extend(point);
            }
        }
        // A bar that has no figure stays, to say so; a line without points does not.
        all.retain(|one| is_bars || !one.points.is_empty());
        all
    }

    fn point(&self, row: &Row, column: &str, steps: &[&Cell], name: &str) -> Option<Point> {
        let chart = self.chart;
        let number = |name: &str, scale| self.cell(row, name).number().filter(|n| takes(scale, *n));
        let y = number(column, chart.y_scale)?;
        let x = match chart.x_scale {
            _ if chart.shape == Shape::Bars => 0.0,
            Scale::Steps => steps
                .iter()
                .position(|step| *step == self.cell(row, &chart.x))?
                as f64,
            scale => number(&chart.x, scale)?,
        };
        let range = chart.range.as_ref().and_then(|(least, most)| {
            let ends = (number(least, chart.y_scale)?, number(most, chart.y_scale)?);
            (ends.1 > ends.0).then_some(ends)
        });
        let told = self.told(row, column);
        let mut tip = format!("{name}: {told}");
        for other in &self.table.columns {
            let is_drawn = other.name == column || chart.by.as_ref() == Some(&other.name);
            if !is_drawn && *self.cell(row, &other.name) != Cell::Unknown {
                tip.push_str(&format!("; {} {}", other.name, self.told(row, &other.name)));
            }
        }
        let stop = chart.stop.as_ref();
        Some(Point {
            x,
            y,
            told,
            tip,
            range,
            is_stop: stop.is_some_and(|stop| *self.cell(row, stop) != Cell::Unknown),
        })
    }
}

/// True if a value has a place.
fn takes(scale: Scale, value: f64) -> bool {
    match scale {
        Scale::Log => value > 1e-9 && value < 1e18,
        _ => (0.0..1e18).contains(&value),
    }
}

/// An axis with its room.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// For these values, of which there is at least one.
    fn new(scale: Scale, values: &[f64], (from, to): (f64, f64)) -> Self {
        let least = values.iter().copied().fold(f64::MAX, f64::min);
        let most = values.iter().copied().fold(f64::MIN, f64::max);
        let (low, high) = match scale {
            Scale::Linear => {
                let step = nice_step(if most > 0.0 { most } else { 1.0 } / TICKS as f64);
                (0.0, (most / step).ceil().max(1.0) * step)
            }
            Scale::Log => (1.0 / nice_step(1.0 / least), nice_step(most)),
            Scale::Steps => (-0.4, most + 0.4),
        };
        let high = if high > low { high } else { low * 10.0 };
        Self {
            scale,
            low,
            high,
            from,
            to,
        }
    }

    /// The place of a value.
    fn at(&self, value: f64) -> f64 {
        let (low, high, value) = match self.scale {
            Scale::Log => (self.low.log10(), self.high.log10(), value.log10()),
            _ => (self.low, self.high, value),
        };
        self.from + (value - low) / (high - low) * (self.to - self.from)
    }

    /// Round values, where they are along the axis.
    fn labels(&self, unit: Unit) -> Vec<Label> {
        let ticks = self.ticks().into_iter();
        ticks.map(|tick| (self.at(tick), unit.tick(tick))).collect()
    }

    /// Round values along the axis.
    fn ticks(&self) -> Vec<f64> {
        if self.scale != Scale::Log {
            let step = nice_step(self.high / TICKS as f64);
            let values = (0..=2 * TICKS).map(|i| i as f64 * step);
            return values
                .take_while(|value| *value <= self.high * 1.001)
                .collect();
        }
        let inside = |value: &f64| (self.low * 0.999..=self.high * 1.001).contains(value);
        let tens = (-10..=20).map(|exponent| 10_f64.powi(exponent));
        let mut all = Vec::new();
        for parts in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
            let parted = tens
                .clone()
                .flat_map(|ten| parts.iter().map(move |part| part * ten));
            all = parted.filter(inside).collect();
            if all.len() <= TICKS {
                break;
            }
        }
        let each = all.len().div_ceil(TICKS).max(1);
        all.into_iter().step_by(each).collect()
    }
}

/// 1, 2, 2.5, 5 or 10 times a power of ten, not below.
fn nice_step(least: f64) -> f64 {
    let ten = 10_f64.powf(least.log10().floor());
    let parts = [1.0, 2.0, 2.5, 5.0, 10.0];
    let fitting = parts.iter().find(|part| **part * ten >= least * 0.999);
    fitting.unwrap_or(&10.0) * ten
}

/// Bars from 0, one under the other, with the range of several rounds as a mark.
fn bars(series: &[Series]) -> (Markup, f64) {
    let widest = |texts: &mut dyn Iterator<Item = &str>| texts.map(room).fold(0.0, f64::max);
    let names = widest(&mut series.iter().map(|bar| bar.name.as_str())).min(220.0);
    let points = || series.iter().flat_map(|bar| &bar.points);
    let (left, told) = (
        names + 16.0,
        widest(&mut points().map(|point| point.told.as_str())),
    );
    let ends = points().map(|point| point.range.map_or(point.y, |range| range.1.max(point.y)));
    let most = ends.fold(f64::MIN_POSITIVE, f64::max);
    let at = |value: f64| left + value / most * (WIDTH - left - told - 16.0).max(40.0);
    let drawing = html! { @for (row, bar) in series.iter().enumerate() {
        @let (y, point) = (row as f64 * BAR + 15.0, bar.points.first());
        @let end = point.map_or(left, |point| at(point.y));
        @let range = point.and_then(|point| point.range).map(|(least, most)| (at(least), at(most)));
        g class=(bar.class) { g.point {
            title { @if let Some(point) = point { (point.tip) } @else { (bar.name) ": none" } }
            (text("name", (left - 8.0, y + 4.0), "end", &fitted(&bar.name, names)))
            rect.bar x=(n(left)) y=(n(y - 8.0)) width=(n((end - left).max(1.0))) height="16" {}
            @if let Some((from, to)) = range { (line("whisker", (from, y), (to, y))) }
            (text("value", (range.map_or(end, |range| range.1.max(end)) + 7.0, y + 4.0), "start", point.map_or("none", |point| &point.told)))
        } }
    } };
    (drawing, series.len() as f64 * BAR + 6.0)
}

fn lines(picking: &Picking<'_>, series: &[Series]) -> (Markup, f64) {
    let chart = picking.chart;
    let points = || series.iter().flat_map(|one| &one.points);
    let marks = || {
        let marks = chart.marks.iter();
        marks.filter(|mark| takes(chart.x_scale, mark.at))
    };
    let limits = || {
        let limits = chart.limits.iter();
        limits.filter(|limit| takes(chart.y_scale, limit.at))
    };
    let ranges = points().filter_map(|point| point.range);
    let ys = points()
        .map(|point| point.y)
        .chain(ranges.flat_map(|(least, most)| [least, most]))
        .chain(limits().map(|limit| limit.at));
    let ys: Vec<f64> = ys.collect();
    let xs: Vec<f64> = points()
        .map(|point| point.x)
        .chain(marks().map(|mark| mark.at))
        .collect();
    let y = Axis::new(chart.y_scale, &ys, (BOTTOM, TOP));
    let y_labels = y.labels(picking.unit(chart.y.first().map_or("", String::as_str)));
    let rooms = y_labels.iter().map(|(_, label)| room(label));
    let left = rooms.fold(0.0, f64::max) + 10.0;
    let x = Axis::new(chart.x_scale, &xs, (left, RIGHT));
    let x_labels = apart(match chart.x_scale {
        Scale::Steps => picking.step_labels(&x),
        _ => x.labels(picking.unit(&chart.x)),
    });
    let drawing = html! {
        (axes(chart, left, &x_labels, &y_labels))
        @for limit in limits() { g.mark.point { title { (limit.name) } (line("", (left, y.at(limit.at)), (RIGHT, y.at(limit.at)))) } }
        @for mark in marks() { g.mark.point { title { (mark.name) } (line("", (x.at(mark.at), TOP), (x.at(mark.at), BOTTOM))) } }
        @for one in series { g class=(one.class) { (curve(one, &x, &y)) } }
    };
    (drawing, BOTTOM + 42.0)
}

/// Of labels at their places, those that do not touch the one before or leave the drawing.
fn apart(mut labels: Vec<Label>) -> Vec<Label> {
    let mut free_from = f64::MIN;
    labels.retain(|(at, label)| {
        let half = room(label) / 2.0;
        let is_free = at - half >= free_from && at + half <= WIDTH;
        if is_free {
            free_from = at + half + 8.0;
        }
        is_free
    });
    labels
}

/// The axes with their names and labels, and the grid.
fn axes(chart: &Chart, left: f64, x_labels: &[Label], y_labels: &[Label]) -> Markup {
    html! {
        g.axes {
            @for (at, label) in y_labels {
                (line("grid", (left, *at), (RIGHT, *at)))
                (text("", (left - 6.0, at + 4.0), "end", label))
            }
            @for (at, label) in x_labels {
                (line("tick", (*at, BOTTOM), (*at, BOTTOM + 4.0)))
                (text("", (*at, BOTTOM + 17.0), "middle", label))
            }
            (line("base", (left, BOTTOM), (RIGHT, BOTTOM)))
            (text("axis-name", (0.0, 11.0), "start", &fitted(chart.y_name.as_ref().or(chart.y.first()).map_or("", String::as_str), RIGHT)))
            (text("axis-name", (f64::midpoint(left, RIGHT), BOTTOM + 35.0), "middle", &fitted(&chart.x, RIGHT - left)))
        }
    }
}

/// A line with its points, their ranges, and a cross where it had to end.
fn curve(series: &Series, x: &Axis, y: &Axis) -> Markup {
    html! {
        path.line d=(path(series, x, y)) {}
        @for point in &series.points {
            @let at = (x.at(point.x), y.at(point.y));
            @if let Some((least, most)) = point.range { (line("range", (at.0, y.at(least)), (at.0, y.at(most)))) }
            g.point {
                title { (point.tip) }
                circle.shape cx=(n(at.0)) cy=(n(at.1)) r="3.6" {}
                @if point.is_stop { path.stop d=(format!("M{:.1} {:.1}l14 14m0 -14l-14 14", at.0 - 7.0, at.1 - 7.0)) {} }
            }
        }
    }
}

fn path(series: &Series, x: &Axis, y: &Axis) -> String {
    let places = series.points.iter();
    let places = places.map(|point| format!("{:.1} {:.1}", x.at(point.x), y.at(point.y)));
    format!("M{}", places.collect::<Vec<_>>().join("L"))
}

/// A coordinate, with one digit after the point.
fn n(value: f64) -> String {
    format!("{value:.1}")
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    html! { line class=(class) x1=(n(from.0)) y1=(n(from.1)) x2=(n(to.0)) y2=(n(to.1)) {} }
}

/// Text that begins, ends or has its middle at a place.
fn text(class: &str, (x, y): (f64, f64), anchor: &str, text: &str) -> Markup {
    html! { text class=(class) x=(n(x)) y=(n(y)) text-anchor=(anchor) { (text) } }
}

/// Room that a text needs.
fn room(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

/// A text that fits into so much room; if it must be cut, then in the middle, since names differ at their ends.
fn fitted(text: &str, width: f64) -> String {
    if room(text) <= width {
        return text.to_owned();
    }
    let letters: Vec<char> = text.chars().collect();
    let fits = |kept: &usize| (kept + 1) as f64 * LETTER <= width;
    let kept = (1..letters.len()).rev().find(fits).unwrap_or(0);
    let (head, tail) = letters.split_at(kept / 2);
    let tail = &tail[tail.len() - (kept - kept / 2)..];
    format!("{}…{}", String::from_iter(head), String::from_iter(tail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells;

    fn drawn(points: &[(f64, f64)], scales: (Scale, Scale), shape: Shape) -> String {
        let mut report = Report::default();
        let columns = [
            ("way", Unit::Words),
            ("callers", Unit::Count),
            ("p99", Unit::Millis),
        ];
        let mut table = Table::new("T", columns);
        for (x, y) in points {
            table.row_of(Whose::Ours, cells!["Gesta & co", *x, *y]);
        }
        report.table(table);
        let chart = Chart::lines("T <1>", "T", ("callers", scales.0), (&["p99"], scales.1));
        let chart = chart.by("way").mark(5.0, "a fault").limit(50.0, "a bar");
        draw(&Chart { shape, ..chart }, &report).into_string()
    }

    #[test]
    fn odd_numbers_make_no_odd_drawing() {
        let odd = [0.0, -3.0, 1e300, 1e-300, 5.0];
        let scales = [Scale::Linear, Scale::Log, Scale::Steps];
        for (x, y) in odd.iter().flat_map(|x| odd.map(|y| (*x, y))) {
            for (a, b) in scales.iter().flat_map(|a| scales.map(|b| (*a, b))) {
                for shape in [Shape::Lines, Shape::Bars] {
                    let html = drawn(&[(x, y), (y, x)], (a, b), shape);
                    assert!(
                        !html.contains("NaN") && !html.contains("inf"),
                        "{x} {y}: {html}"
                    );
                }
            }
        }
        assert!(drawn(&[], (Scale::Log, Scale::Log), Shape::Lines).contains("no figures"));
        assert_eq!(fitted("größe", 0.0), "…");
    }
}
