//! Charts as inline SVG: lines over linear, logarithmic or named steps, and bars with ranges.
//!
//! Every chart is drawn twice, for wide and for narrow places, and the style sheet shows the one that fits: so letters
//! keep their size on a phone without a script. Colours are classes, defined for both themes by the style sheet; since
//! colour alone tells some people nothing, each series has a shape of its own too, and a name at its end or in the legend.

mod axis;
mod bars;
mod lines;
mod pick;

use maud::{Markup, Render, html};

use crate::report::{Chart, Report, Shape};
pub(super) use pick::Looks;
use pick::Picked;

/// Width of a letter of the charts, rather too much than too little.
const LETTER: f64 = 6.9;

/// Whose figures these are, which decides how they look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Gesta's.
    Ours,
    /// Another's, by number.
    Other(usize),
    /// Published ones, from another machine.
    Published(usize),
}

impl Role {
    /// Colours of others; then they begin again, with other shapes.
    const COLOURS: usize = 9;

    fn class(self) -> String {
        match self {
            Role::Ours => "ours".into(),
            Role::Other(n) => format!("c{}", n % Self::COLOURS),
            Role::Published(_) => "published".into(),
        }
    }

    /// A mark of the series' shape, with this class.
    fn shape(self, x: f64, y: f64, class: &str) -> Markup {
        const SHAPES: [&[(f64, f64)]; 5] = [
            &[(-3.8, -3.8), (3.8, -3.8), (3.8, 3.8), (-3.8, 3.8)],
            &[(0.0, -4.8), (4.6, 3.6), (-4.6, 3.6)],
            &[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)],
            &[(0.0, 4.8), (4.6, -3.6), (-4.6, -3.6)],
            &[(-1.7, -5.0), (1.7, -5.0), (1.7, 5.0), (-1.7, 5.0)],
        ];
        let number = match self {
            Role::Ours => 0,
            Role::Other(n) => n + 1,
            Role::Published(n) => n + 2,
        };
        let Some(corners) = (number % 6).checked_sub(1).map(|shape| SHAPES[shape]) else {
            return html! { circle class=(class) cx=(N(x)) cy=(N(y)) r="4.2" {} };
        };
        let at = corners
            .iter()
            .map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy));
        html! { polygon class=(class) points=(at.collect::<Vec<_>>().join(" ")) {} }
    }
}

/// A coordinate, with one digit after the point.
struct N(f64);

impl Render for N {
    fn render_to(&self, out: &mut String) {
        use std::fmt::Write as _;
        let _ = write!(out, "{:.1}", self.0);
    }
}

/// Where a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    width: f64,
    is_narrow: bool,
}

const PLACES: [(Place, &str); 2] = [
    (
        Place {
            width: 560.0,
            is_narrow: false,
        },
        "wide",
    ),
    (
        Place {
            width: 340.0,
            is_narrow: true,
        },
        "narrow",
    ),
];

/// The figure of a chart of this report.
pub(super) fn draw(chart: &Chart, report: &Report, looks: &Looks) -> Markup {
    let picked = Picked::of(chart, report, looks);
    html! {
        figure.chart {
            figcaption { (chart.title) }
            @for (place, class) in PLACES {
                @let (inner, height) = drawing(chart, &picked, place);
                svg class=(class) viewBox=(format!("0 0 {:.0} {height:.0}", place.width)) role="img" {
                    title { (chart.title) }
                    desc { (picked.told()) }
                    (inner)
                }
            }
            // A single line needs no legend: the axis says what it is.
            @if chart.shape == Shape::Lines && picked.series.len() > 1 {
                ul.legend { @for series in &picked.series {
                    li { (sample(series.role)) (series.name) }
                } }
            }
            @if let Some(note) = &chart.note { p.note { (note) } }
        }
    }
}

fn sample(role: Role) -> Markup {
    html! {
        svg.sample viewBox="0 0 26 12" aria-hidden="true" {
            g class=(role.class()) { (line("line", (1.0, 6.0), (25.0, 6.0))) (role.shape(13.0, 6.0, "shape")) }
        }
    }
}

/// A drawing and its height.
fn drawing(chart: &Chart, picked: &Picked, place: Place) -> (Markup, f64) {
    if picked.series.iter().all(|series| series.points.is_empty()) {
        return (
            text("", (place.width / 2.0, 40.0), "middle", "no figures"),
            80.0,
        );
    }
    match chart.shape {
        Shape::Lines => lines::drawing(chart, picked, place),
        Shape::Bars => bars::drawing(picked, place),
    }
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Markup {
    html! { line class=(class) x1=(N(from.0)) y1=(N(from.1)) x2=(N(to.0)) y2=(N(to.1)) {} }
}

/// Text that begins, ends or has its middle at a place.
fn text(class: &str, (x, y): (f64, f64), anchor: &str, text: &str) -> Markup {
    html! { text class=(class) x=(N(x)) y=(N(y)) text-anchor=(anchor) { (text) } }
}

/// Something with a text that is shown when the pointer is there.
fn tipped(inner: &Markup, tip: &str) -> Markup {
    html! { g.point { title { (tip) } (inner) } }
}

/// Room that a text needs.
fn room(text: &str) -> f64 {
    room_of(text.chars().count())
}

#[expect(clippy::cast_precision_loss, reason = "letters")]
fn room_of(letters: usize) -> f64 {
    letters as f64 * LETTER
}

/// A text that fits into so much room; if it must be cut, then in the middle, since names differ at their ends.
fn fitted(text: &str, width: f64) -> String {
    if room(text) <= width {
        return text.to_owned();
    }
    let letters: Vec<char> = text.chars().collect();
    let fits = |kept: &usize| room_of(kept + 1) <= width;
    let kept = (1..letters.len()).rev().find(fits).unwrap_or(0);
    let (head, tail) = (kept / 2, kept - kept / 2);
    let head: String = letters[..head].iter().collect();
    let tail: String = letters[letters.len() - tail..].iter().collect();
    format!("{}…{}", head.trim_end(), tail.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells;
    use crate::report::{Scale, Table, Unit, Whose};

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
        let chart = chart.by("way").limit(100.0, "limit").mark(5.0, "a fault");
        let chart = Chart { shape, ..chart };
        draw(&chart, &report, &Looks::of(&report)).into_string()
    }

    #[test]
    fn a_chart_has_both_sizes_a_title_a_description_and_its_points() {
        let points = [(1.0, 2.0), (10.0, 30.0)];
        let html = drawn(&points, (Scale::Linear, Scale::Log), Shape::Lines);
        let document = roxmltree::Document::parse(&html).unwrap();
        let drawings = |class: &str| {
            let all = document.descendants();
            all.filter(|node| node.attribute("class") == Some(class))
                .count()
        };
        assert_eq!((drawings("wide"), drawings("narrow")), (1, 1));
        assert_eq!(drawings("point"), 2 * 3, "two points and a mark, twice");
        let told = "<title>T &lt;1&gt;</title><desc>Gesta &amp; co: 2\u{a0}ms at 1, 30\u{a0}ms at 10</desc>";
        assert!(html.contains(told), "{html}");
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
        let nothing = drawn(&[], (Scale::Log, Scale::Log), Shape::Lines);
        assert!(nothing.contains("no figures"));
    }

    #[test]
    fn names_fit_their_room() {
        assert_eq!(fitted("short", 100.0), "short");
        let cut = fitted("a very long name, plain", 90.0);
        assert!(room(&cut) <= 90.0 && cut.ends_with("plain"), "{cut}");
        assert_eq!(fitted("größe", 0.0), "…");
    }
}
