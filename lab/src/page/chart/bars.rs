//! Bars from 0, one under the other, with the range of several rounds as a mark.

use maud::{Markup, html};

use super::pick::Picked;
use super::{N, Place, Role, fitted, line, room, text, tipped};

/// Widest name before a bar; with a wider one all stand above their bars.
const NAME_WIDTH_MAX: f64 = 200.0;
/// Bold letters are so much wider.
const BOLD: f64 = 1.1;

/// Where rows and their names stand: names before the rows where all have room, else above them.
struct Rows {
    left: f64,
    step: f64,
    names_above: bool,
}

impl Rows {
    fn middle(&self, row: usize) -> f64 {
        row as f64 * self.step + if self.names_above { 28.0 } else { 15.0 }
    }

    fn name(&self, row: usize, name: &str, role: Role, width: f64) -> Markup {
        let class = if role == Role::Ours {
            "name strong"
        } else {
            "name"
        };
        if self.names_above {
            let name = fitted(name, width / BOLD - 8.0);
            return text(class, (2.0, self.middle(row) - 14.0), "start", &name);
        }
        text(
            class,
            (self.left - 8.0, self.middle(row) + 4.0),
            "end",
            name,
        )
    }
}

pub(super) fn drawing(picked: &Picked, place: Place) -> (Markup, f64) {
    let widest = |texts: &mut dyn Iterator<Item = &str>| texts.map(room).fold(0.0, f64::max);
    let names = widest(&mut picked.series.iter().map(|bar| bar.name.as_str())) * BOLD;
    let names_above = place.is_narrow || names > NAME_WIDTH_MAX;
    let rows = Rows {
        left: if names_above { 2.0 } else { names + 14.0 },
        step: if names_above { 42.0 } else { 28.0 },
        names_above,
    };
    let points = || picked.series.iter().flat_map(|bar| &bar.points);
    let told = widest(&mut points().map(|point| point.y_told.as_str()));
    let right = (place.width - told - 14.0).max(rows.left + 40.0);
    let ends = points().map(|point| point.range.map_or(point.y, |range| range.1.max(point.y)));
    let most = ends.fold(0.0, f64::max);
    let at = |value: f64| match most {
        most if most > 0.0 => rows.left + value.clamp(0.0, most) / most * (right - rows.left),
        _ => rows.left,
    };
    let gap = if names_above { 10.0 } else { 0.0 };
    let drawing = html! { @for (row, bar) in picked.series.iter().enumerate() {
        @let middle = rows.middle(row);
        @let point = bar.points.first();
        @let length = point.map_or(rows.left, |point| at(point.y));
        @let range = point.and_then(|point| point.range).map(|(least, most)| (at(least), at(most)));
        @let told = point.map_or("none", |point| &point.y_told);
        @let inner = html! { g class=(bar.role.class()) {
            (rows.name(row, &bar.name, bar.role, place.width))
            rect.bar x=(N(rows.left)) y=(N(middle - 8.0)) width=(N((length - rows.left).max(1.0))) height="16" {}
            (line("base", (rows.left, middle - rows.step / 2.0 + gap), (rows.left, middle + rows.step / 2.0 - gap)))
            @if let Some((from, to)) = range {
                path.whisker d=(format!("M{from:.1} {0:.1}v8M{from:.1} {middle:.1}H{to:.1}M{to:.1} {0:.1}v8", middle - 4.0)) {}
            }
            (text("value", (range.map_or(length, |range| range.1.max(length)) + 7.0, middle + 4.0), "start", told))
        } };
        (tipped(&inner, point.map_or(&format!("{}: none", bar.name), |point| &point.tip)))
    } };
    (drawing, picked.series.len() as f64 * rows.step + 6.0)
}
