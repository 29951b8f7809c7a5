//! Line charts.

use maud::{Markup, html};

use super::axis::{Axis, Laid};
use super::pick::{Picked, Point, Series};
use super::{Place, Role, fitted, line, room, text, tipped};
use crate::report::{Chart, Scale};

/// Room between names at the ends of lines.
const NAME_HEIGHT: f64 = 15.0;
/// Widest name at the end of a line.
const NAME_WIDTH_MAX: f64 = 170.0;
/// More distinct values than this get round labels instead of their own.
const OWN_LABELS_MAX: usize = 10;
/// More points than this are drawn small.
const LARGE_MAX: usize = 60;

/// The room between the axes.
#[derive(Clone, Copy)]
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// The drawing and its height; there is at least one point.
pub(super) fn drawing(chart: &Chart, picked: &Picked, place: Place) -> (Markup, f64) {
    let height = if place.is_narrow { 260.0 } else { 320.0 };
    let all = || picked.series.iter().flat_map(|series| &series.points);
    let ys = values_up(chart, picked);
    let ticks_max = if place.is_narrow { 5 } else { 7 };
    let (top, bottom) = (26.0, height - 42.0);
    // Labels of the vertical axis decide where it stands.
    let y = picked.y.laid(&ys, bottom, top).rounded(ticks_max);
    let y_ticks = y.ticks(ticks_max);
    let widest = y_ticks
        .iter()
        .map(|(_, label)| room(label))
        .fold(0.0, f64::max);
    let names_room = names_room(picked, place);
    let frame = Frame {
        left: widest + 10.0,
        right: place.width - names_room.max(14.0),
        top,
        bottom,
    };
    let marks = chart.marks.iter().filter(|mark| picked.x.takes(mark.at));
    let at_marks = marks.clone().map(|mark| mark.at);
    let xs: Vec<f64> = all().map(|point| point.x).chain(at_marks).collect();
    let x = picked.x.laid(&xs, frame.left, frame.right);
    let is_ours = |series: &&Series| series.role == Role::Ours;
    let drawing = html! {
        (axes(picked, &x, (&y, &y_ticks), &own_labels(&picked.x, &xs), frame))
        @for limit in chart.limits.iter().filter(|limit| (top..=bottom).contains(&y.at(limit.at))) {
            @let at = y.at(limit.at);
            (line("limit", (frame.left, at), (frame.right, at)))
            (text("limit-name", (frame.left + 4.0, at - 5.0), "start", &fitted(&limit.name, frame.right - frame.left - 4.0)))
        }
        @for mark in marks { (self::mark(x.at(mark.at), &mark.name, frame)) }
        // Gesta last, on top of the others.
        @for series in picked.series.iter().filter(|series| !is_ours(series)) { (one(series, &x, &y)) }
        @for series in picked.series.iter().filter(is_ours) { (one(series, &x, &y)) }
        @if names_room > 0.0 { (names(picked, &x, &y, frame)) }
    };
    (drawing, height)
}

/// Values that the vertical axis must have room for.
fn values_up(chart: &Chart, picked: &Picked) -> Vec<f64> {
    let all = || picked.series.iter().flat_map(|series| &series.points);
    let ranges = all().filter_map(|point| point.range);
    let most = all().map(|point| point.y).fold(0.0, f64::max);
    // A limit that is near belongs to the picture; one far above would flatten it.
    let limits = chart.limits.iter().map(|limit| limit.at);
    let near = limits.filter(|limit| picked.y.takes(*limit) && *limit < most * 3.0);
    let ranges = ranges.flat_map(|(least, most)| [least, most]);
    all()
        .map(|point| point.y)
        .chain(ranges)
        .chain(near)
        .collect()
}

fn mark(at: f64, name: &str, frame: Frame) -> Markup {
    let top = frame.top;
    let arrow = format!(
        "{:.1},{1:.1} {2:.1},{1:.1} {at:.1},{top:.1}",
        at - 4.0,
        top - 8.0,
        at + 4.0
    );
    let both = html! { g.mark {
        (line("", (at, top), (at, frame.bottom)))
        polygon points=(arrow) {}
    } };
    tipped(&both, name)
}

fn axes(
    picked: &Picked,
    x: &Laid<'_>,
    y: (&Laid<'_>, &[(f64, String)]),
    own: &[f64],
    frame: Frame,
) -> Markup {
    let Frame {
        left,
        right,
        bottom,
        ..
    } = frame;
    let ticks = match own {
        [] => x.ticks(if right - left < 300.0 { 4 } else { 6 }),
        own => x.labelled(own),
    };
    let to_scale = if picked.x.scale == Scale::Steps
        && picked.x.steps.iter().any(|step| step.number().is_some())
    {
        " (steps not to scale)"
    } else {
        ""
    };
    html! { g.axes {
        @for (value, label) in y.1 {
            @let at = y.0.at(*value);
            (line("grid", (left, at), (right, at)))
            (text("", (left - 6.0, at + 4.0), "end", label))
        }
        @for (value, label) in x.spread(ticks) {
            @let at = x.at(value);
            (line("tick", (at, bottom), (at, bottom + 4.0)))
            (text("", (at, bottom + 17.0), "middle", &fitted(&label, if picked.x.scale == Scale::Steps { 2.0 * at.min(right + 12.0 - at) } else { f64::MAX })))
        }
        (line("base", (left, bottom), (right, bottom)))
        (text("axis-name", (0.0, 11.0), "start", &fitted(&picked.y.name, right)))
        (text("axis-name", (f64::midpoint(left, right), bottom + 35.0), "middle", &fitted(&format!("{}{to_scale}", picked.x.name), right - left)))
    } }
}

fn one(series: &Series, x: &Laid<'_>, y: &Laid<'_>) -> Markup {
    let place = |point: &Point| (x.at(point.x), y.at(point.y));
    let steps = series.points.iter().map(|point| {
        let (px, py) = place(point);
        format!("{px:.1} {py:.1}")
    });
    let path = format!("M{}", steps.collect::<Vec<_>>().join("L"));
    let shape = if series.points.len() > LARGE_MAX {
        "shape small"
    } else {
        "shape"
    };
    html! { g class=(series.role.class()) {
        path.line d=(path) {}
        @for point in &series.points {
            @let (px, py) = place(point);
            @if let Some((least, most)) = point.range { (line("range", (px, y.at(least)), (px, y.at(most)))) }
            @let inner = html! {
                (series.role.shape(px, py, shape))
                @if point.is_stop { path.stop d=(format!("M{:.1} {:.1}l14 14m0 -14l-14 14", px - 7.0, py - 7.0)) {} }
            };
            (tipped(&inner, &point.tip))
        }
    } }
}

/// Room to the right for the names; none where there is none.
fn names_room(picked: &Picked, place: Place) -> f64 {
    let count = picked.series.len();
    if place.is_narrow || count < 2 || count as f64 * NAME_HEIGHT > 250.0 {
        return 0.0;
    }
    let widest = picked.series.iter().map(|series| room(&series.name));
    widest.fold(0.0, f64::max).min(NAME_WIDTH_MAX) + 26.0
}

fn names(picked: &Picked, x: &Laid<'_>, y: &Laid<'_>, frame: Frame) -> Markup {
    let end = |series| {
        let last: &Point = Series::last(series)?;
        Some((series, x.at(last.x), y.at(last.y)))
    };
    let mut ends: Vec<(&Series, f64, f64)> = picked.series.iter().filter_map(end).collect();
    ends.sort_by(|a, b| a.2.total_cmp(&b.2));
    let wanted: Vec<f64> = ends.iter().map(|end| end.2).collect();
    let places = apart(&wanted, NAME_HEIGHT, frame.top, frame.bottom);
    let right = frame.right;
    html! { g.names { @for ((series, from_x, from_y), at) in ends.into_iter().zip(places) {
        g class=(series.role.class()) {
            path.lead d=(format!("M{:.1} {from_y:.1}L{:.1} {at:.1}h6", from_x + 7.0, right + 12.0)) {}
            (text("name", (right + 22.0, at + 4.0), "start", &fitted(&series.name, NAME_WIDTH_MAX)))
        }
    } } }
}

impl Series {
    fn last(&self) -> Option<&Point> {
        self.points.last()
    }
}

/// The values themselves, if they are few enough to be the labels.
fn own_labels(axis: &Axis, values: &[f64]) -> Vec<f64> {
    let mut distinct = values.to_vec();
    distinct.sort_by(f64::total_cmp);
    distinct.dedup();
    if axis.scale == Scale::Steps || distinct.len() > OWN_LABELS_MAX {
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
    use crate::report::{Column, Unit};

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
        let column = Column {
            unit: Unit::Count,
            ..Column::default()
        };
        let axis = Axis::new(&column, Scale::Linear, std::iter::empty());
        assert_eq!(own_labels(&axis, &[8.0, 4.0, 8.0]), [4.0, 8.0]);
        let many: Vec<f64> = (0..20).map(f64::from).collect();
        assert!(own_labels(&axis, &many).is_empty());
    }
}
