//! Line charts.

use super::axis::{Axis, Laid, Scale};
use super::{Caption, Place, Role, figure, fitted, line, room, text, tipped};
use crate::page::html::{Element, Html, el};

/// Room between names at the ends of lines.
const NAME_HEIGHT: f64 = 15.0;
/// Widest name at the end of a line.
const NAME_WIDTH_MAX: f64 = 170.0;
/// More distinct values than this get round labels instead of their own.
const OWN_LABELS_MAX: usize = 10;

/// A value.
#[derive(Debug, Clone)]
pub(in crate::page) struct Point {
    x: f64,
    y: f64,
    /// What is known about it, shown at the pointer.
    tip: String,
    /// Least and most of several rounds.
    range: Option<(f64, f64)>,
    /// Why the line ends here, if it had to.
    is_stop: bool,
}

impl Point {
    /// A point.
    pub(in crate::page) fn new(x: f64, y: f64, tip: impl Into<String>) -> Self {
        Self {
            x,
            y,
            tip: tip.into(),
            range: None,
            is_stop: false,
        }
    }

    /// With the least and the most of several rounds.
    pub(in crate::page) fn between(mut self, least: f64, most: f64) -> Self {
        self.range = (most > least).then_some((least, most));
        self
    }

    /// The order along the horizontal axis.
    pub(in crate::page) fn by_x(&self, other: &Self) -> std::cmp::Ordering {
        self.x.total_cmp(&other.x)
    }

    /// With what is known about it.
    pub(in crate::page) fn tipped(mut self, tip: impl Into<String>) -> Self {
        self.tip = tip.into();
        self
    }

    /// Marks the point at which the line had to end.
    pub(in crate::page) fn stop(mut self) -> Self {
        self.is_stop = true;
        self
    }
}

/// A line.
#[derive(Debug, Clone)]
pub(in crate::page) struct Series {
    name: String,
    /// The name at the end of the line.
    short: String,
    role: Role,
    points: Vec<Point>,
}

impl Series {
    /// A line through these points, in this order.
    pub(in crate::page) fn new(name: impl Into<String>, role: Role, points: Vec<Point>) -> Self {
        let name = name.into();
        Self {
            short: name.clone(),
            name,
            role,
            points,
        }
    }

    /// With a shorter name at the end of the line; the legend says both.
    pub(in crate::page) fn called(mut self, short: &str) -> Self {
        self.short = short.into();
        self
    }

    /// What the legend says.
    fn legend(&self) -> String {
        if self.short == self.name || self.role == Role::Ours {
            return self.name.clone();
        }
        format!("{}: {}", self.short, self.name)
    }
}

/// Something that happened at a value of the horizontal axis.
#[derive(Debug, Clone)]
pub(in crate::page) struct Mark {
    at: f64,
    tip: String,
}

impl Mark {
    /// At this value.
    pub(in crate::page) fn new(at: f64, tip: impl Into<String>) -> Self {
        Self {
            at,
            tip: tip.into(),
        }
    }
}

/// Lines over one horizontal axis.
#[derive(Debug, Clone)]
pub(in crate::page) struct LineChart {
    pub(in crate::page) title: String,
    /// The same in words.
    pub(in crate::page) description: String,
    pub(in crate::page) x: Axis,
    pub(in crate::page) y: Axis,
    pub(in crate::page) series: Vec<Series>,
    /// Values of the vertical axis with a name.
    pub(in crate::page) limits: Vec<(f64, String)>,
    pub(in crate::page) marks: Vec<Mark>,
    /// What the looks do not say.
    pub(in crate::page) note: Option<String>,
}

impl LineChart {
    /// The figure.
    pub(in crate::page) fn draw(&self) -> Html {
        let caption = Caption {
            title: &self.title,
            description: &self.description,
            // A single line needs none: the axis says what it is.
            legend: match self.series.as_slice() {
                [_] => Vec::new(),
                all => all
                    .iter()
                    .map(|series| (series.role, series.legend()))
                    .collect(),
            },
            note: self.note.as_deref(),
        };
        figure(&caption, |place| self.drawing(place))
    }

    /// Points that have a place.
    fn points<'a>(&'a self, series: &'a Series) -> impl Iterator<Item = &'a Point> {
        let points = series.points.iter();
        points.filter(|point| self.x.takes(point.x) && self.y.takes(point.y))
    }

    fn drawing(&self, place: Place) -> (Html, f64) {
        let height = if place.is_narrow { 260.0 } else { 320.0 };
        let all: Vec<&Point> = self
            .series
            .iter()
            .flat_map(|series| self.points(series))
            .collect();
        if all.is_empty() {
            let middle = (place.width / 2.0, height / 2.0);
            return (
                text(middle.0, middle.1, "middle", "no figures").into(),
                height,
            );
        }
        let names = self.names_room(place);
        let ys = self.values_up(&all);
        let ticks_max = if place.is_narrow { 5 } else { 7 };
        let (top, bottom) = (26.0, height - 42.0);
        // Labels of the vertical axis decide where it stands.
        let y = self.y.laid(&ys, bottom, top).rounded(ticks_max);
        let y_ticks = y.ticks(ticks_max);
        let widest = y_ticks
            .iter()
            .map(|(_, label)| room(label))
            .fold(0.0, f64::max);
        let (left, right) = (widest + 10.0, place.width - names.max(14.0));
        let marks = self
            .marks
            .iter()
            .map(|mark| mark.at)
            .filter(|at| self.x.takes(*at));
        let xs: Vec<f64> = all.iter().map(|point| point.x).chain(marks).collect();
        let x = self.x.laid(&xs, left, right);

        let mut drawing = Html::default();
        drawing.push(self.frame(
            &x,
            &y,
            &y_ticks,
            &own_labels(&self.x, &xs),
            (left, right, bottom),
        ));
        for (limit, name) in &self.limits {
            let at = y.at(*limit);
            if (top..=bottom).contains(&at) {
                drawing.push(line((left, at), (right, at)).class("limit"));
                let name = fitted(name, right - left - 4.0);
                drawing.push(text(left + 4.0, at - 5.0, "start", &name).class("limit-name"));
            }
        }
        for mark in self.marks.iter().filter(|mark| self.x.takes(mark.at)) {
            let at = x.at(mark.at);
            let arrow = format!(
                "{:.1},{:.1} {:.1},{:.1} {at:.1},{top:.1}",
                at - 4.0,
                top - 8.0,
                at + 4.0,
                top - 8.0
            );
            let both = el("g")
                .class("mark")
                .with(line((at, top), (at, bottom)))
                .with(el("polygon").attr("points", arrow));
            drawing.push(tipped(both, &mark.tip));
        }
        // Gesta last, on top of the others.
        let (ours, others): (Vec<&Series>, Vec<&Series>) = self
            .series
            .iter()
            .partition(|series| series.role == Role::Ours);
        for series in others.into_iter().chain(ours) {
            drawing.push(self.one(series, &x, &y));
        }
        if names > 0.0 {
            drawing.push(self.names(&x, &y, right, (top, bottom)));
        }
        (drawing, height)
    }

    fn values_up(&self, all: &[&Point]) -> Vec<f64> {
        let ranges = all.iter().filter_map(|point| point.range);
        let ranges = ranges.flat_map(|(least, most)| [least, most]);
        let ranges = ranges.filter(|value| self.y.takes(*value));
        let most = all.iter().map(|point| point.y).fold(0.0, f64::max);
        // A limit that is near belongs to the picture; one far above would flatten it.
        let limits = self.limits.iter().map(|(limit, _)| *limit);
        let near = limits.filter(|limit| self.y.takes(*limit) && *limit < most * 3.0);
        all.iter()
            .map(|point| point.y)
            .chain(ranges)
            .chain(near)
            .collect()
    }

    fn frame(
        &self,
        x: &Laid<'_>,
        y: &Laid<'_>,
        y_ticks: &[(f64, String)],
        own: &[f64],
        (left, right, bottom): (f64, f64, f64),
    ) -> Element {
        let mut frame = el("g").class("axes");
        for (value, label) in y_ticks {
            let at = y.at(*value);
            frame = frame
                .with(line((left, at), (right, at)).class("grid"))
                .with(text(left - 6.0, at + 4.0, "end", label));
        }
        let ticks = if own.is_empty() {
            x.ticks(if right - left < 300.0 { 4 } else { 6 })
        } else {
            let own = own.iter();
            own.map(|value| (*value, self.x.unit.tick(*value)))
                .collect()
        };
        for (value, label) in x.spread(ticks) {
            let at = x.at(value);
            frame = frame
                .with(line((at, bottom), (at, bottom + 4.0)).class("tick"))
                .with(text(at, bottom + 17.0, "middle", &label));
        }
        frame
            .with(line((left, bottom), (right, bottom)).class("base"))
            .with(text(0.0, 11.0, "start", &self.y.label).class("axis-name"))
            .with(
                text((left + right) / 2.0, bottom + 35.0, "middle", &self.x.label)
                    .class("axis-name"),
            )
    }

    fn one(&self, series: &Series, x: &Laid<'_>, y: &Laid<'_>) -> Element {
        let mut group = el("g").class(series.role.class());
        let mut path = String::new();
        for point in self.points(series) {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            path.push_str(&format!(
                "{letter}{:.1} {:.1}",
                x.at(point.x),
                y.at(point.y)
            ));
        }
        group = group.with(el("path").class("line").attr("d", path));
        let many = series.points.len() > 60;
        for point in self.points(series) {
            let (px, py) = (x.at(point.x), y.at(point.y));
            if let Some((least, most)) = point.range.filter(|(least, _)| self.y.takes(*least)) {
                let ends = ((px, y.at(least)), (px, y.at(most)));
                group = group.with(line(ends.0, ends.1).class("range"));
            }
            let shape = match series.role.shape(px, py) {
                shape if many => shape.class("shape small"),
                shape => shape.class("shape"),
            };
            let mut tip = el("g").with(shape);
            if point.is_stop {
                let d = format!("M{:.1} {:.1}l14 14m0 -14l-14 14", px - 7.0, py - 7.0);
                tip = tip.with(el("path").class("stop").attr("d", d));
            }
            group = group.with(tipped(tip, &format!("{}: {}", series.name, point.tip)));
        }
        group
    }

    /// Room to the right for the names; none where there is none.
    fn names_room(&self, place: Place) -> f64 {
        let count = self.series.len() as f64;
        if place.is_narrow || self.series.len() < 2 || count * NAME_HEIGHT > 250.0 {
            return 0.0;
        }
        let widest = self
            .series
            .iter()
            .map(|series| room(&series.short))
            .fold(0.0, f64::max);
        widest.min(NAME_WIDTH_MAX) + 26.0
    }

    fn names(&self, x: &Laid<'_>, y: &Laid<'_>, right: f64, (top, bottom): (f64, f64)) -> Element {
        let mut ends: Vec<(&Series, f64, f64)> = self
            .series
            .iter()
            .filter_map(|series| {
                let last = self.points(series).last()?;
                Some((series, x.at(last.x), y.at(last.y)))
            })
            .collect();
        ends.sort_by(|a, b| a.2.total_cmp(&b.2));
        let wanted: Vec<f64> = ends.iter().map(|end| end.2).collect();
        let places = apart(&wanted, NAME_HEIGHT, top, bottom);
        let mut group = el("g").class("names");
        for ((series, from_x, from_y), at) in ends.into_iter().zip(places) {
            let name = fitted(&series.short, NAME_WIDTH_MAX);
            let lead = format!(
                "M{:.1} {from_y:.1}L{:.1} {at:.1}h6",
                from_x + 7.0,
                right + 12.0
            );
            group = group.with(
                el("g")
                    .class(series.role.class())
                    .with(el("path").class("lead").attr("d", lead))
                    .with(text(right + 22.0, at + 4.0, "start", &name).class("name")),
            );
        }
        group
    }
}

/// The values themselves, if they are few enough to be the labels.
fn own_labels(axis: &Axis, values: &[f64]) -> Vec<f64> {
    if matches!(axis.scale, Scale::Steps(_)) {
        return Vec::new();
    }
    let mut distinct = values.to_vec();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    if distinct.len() > OWN_LABELS_MAX {
        return Vec::new();
    }
    distinct
}

/// Places near the wanted ones, which ascend, at least `step` apart and within the bounds if they can be.
fn apart(wanted: &[f64], step: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut places: Vec<f64> = Vec::with_capacity(wanted.len());
    for want in wanted {
        let least = places.last().map_or(top, |last| last + step);
        places.push(want.max(least));
    }
    let mut most = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - step;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_distance() {
        assert_eq!(
            apart(&[10.0, 11.0, 50.0], 15.0, 0.0, 100.0),
            [10.0, 25.0, 50.0]
        );
        assert_eq!(
            apart(&[95.0, 96.0, 97.0], 15.0, 0.0, 100.0),
            [70.0, 85.0, 100.0]
        );
        assert_eq!(apart(&[-5.0], 15.0, 0.0, 100.0), [0.0]);
    }

    #[test]
    fn few_values_are_their_own_labels() {
        let axis = Axis::new("x", Scale::Linear, crate::page::numbers::Unit::Count);
        assert_eq!(own_labels(&axis, &[8.0, 4.0, 8.0]), [4.0, 8.0]);
        let many: Vec<f64> = (0..20).map(f64::from).collect();
        assert!(own_labels(&axis, &many).is_empty());
    }
}
