//! Charts as inline SVG: lines over linear, logarithmic or named steps, bars with ranges, dots on a logarithmic axis.
//!
//! Every chart is drawn twice, for wide and for narrow places, and the style sheet shows the one that fits: so letters
//! keep their size on a phone without a script. Colours are classes, defined for both themes by the style sheet; since
//! colour alone tells some people nothing, each series has a shape of its own too, and a name at its end or in the legend.

mod axis;
mod lines;
mod rows;

pub(super) use axis::{Axis, Scale};
pub(super) use lines::{LineChart, Mark, Point, Series};
pub(super) use rows::{Bar, Bars, Dot, DotRow, Dots};

use super::html::{Element, Html, el};

/// Width of a letter of the charts, rather too much than too little.
const LETTER: f64 = 6.9;

/// Whose figures these are, which decides how they look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
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

    /// A mark of the series' shape.
    fn shape(self, x: f64, y: f64) -> Element {
        let number = match self {
            Role::Ours => 0,
            Role::Other(n) => n + 1,
            Role::Published(n) => n + 2,
        };
        let polygon = |points: &[(f64, f64)]| {
            let at: Vec<String> = points
                .iter()
                .map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy))
                .collect();
            el("polygon").attr("points", at.join(" "))
        };
        match number % 6 {
            0 => circle(x, y, 4.2),
            1 => polygon(&[(-3.8, -3.8), (3.8, -3.8), (3.8, 3.8), (-3.8, 3.8)]),
            2 => polygon(&[(0.0, -4.8), (4.6, 3.6), (-4.6, 3.6)]),
            3 => polygon(&[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)]),
            4 => polygon(&[(0.0, 4.8), (4.6, -3.6), (-4.6, -3.6)]),
            _ => polygon(&[
                (-1.7, -5.0),
                (1.7, -5.0),
                (1.7, -1.7),
                (5.0, -1.7),
                (5.0, 1.7),
                (1.7, 1.7),
                (1.7, 5.0),
                (-1.7, 5.0),
                (-1.7, 1.7),
                (-5.0, 1.7),
                (-5.0, -1.7),
                (-1.7, -1.7),
            ]),
        }
    }
}

/// Where a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Place {
    width: f64,
    is_narrow: bool,
}

const WIDE: Place = Place {
    width: 560.0,
    is_narrow: false,
};
const NARROW: Place = Place {
    width: 340.0,
    is_narrow: true,
};

/// What the figure around a drawing says.
struct Caption<'a> {
    title: &'a str,
    /// For those who do not see the drawing.
    description: &'a str,
    /// What each look means.
    legend: Vec<(Role, String)>,
    /// Beside the looks, in words.
    note: Option<&'a str>,
}

/// A figure with both drawings; `draw` returns a drawing and its height.
fn figure(caption: &Caption<'_>, draw: impl Fn(Place) -> (Html, f64)) -> Html {
    let drawing = |place: Place, class: &str| {
        let (inner, height) = draw(place);
        el("svg")
            .class(class)
            .attr("viewBox", format!("0 0 {:.0} {height:.0}", place.width))
            .attr("role", "img")
            .with(el("title").with(caption.title))
            .with(el("desc").with(caption.description))
            .with(inner)
    };
    let legend = caption.legend.iter().map(|(role, name)| {
        let sample = el("svg")
            .class("sample")
            .attr("viewBox", "0 0 26 12")
            .attr("aria-hidden", "true")
            .with(
                el("g")
                    .class(role.class())
                    .with(line((1.0, 6.0), (25.0, 6.0)).class("line"))
                    .with(role.shape(13.0, 6.0).class("shape")),
            );
        el("li").with(sample).with(name.as_str())
    });
    let legend: Vec<Element> = legend.collect();
    let mut all = el("figure")
        .class("chart")
        .with(el("figcaption").with(caption.title))
        .with(drawing(WIDE, "wide"))
        .with(drawing(NARROW, "narrow"));
    if !legend.is_empty() {
        all = all.with(el("ul").class("legend").all(legend));
    }
    if let Some(note) = caption.note {
        all = all.with(el("p").class("note").with(note));
    }
    all.into()
}

fn line(from: (f64, f64), to: (f64, f64)) -> Element {
    el("line")
        .attr("x1", format!("{:.1}", from.0))
        .attr("y1", format!("{:.1}", from.1))
        .attr("x2", format!("{:.1}", to.0))
        .attr("y2", format!("{:.1}", to.1))
}

fn circle(x: f64, y: f64, radius: f64) -> Element {
    el("circle")
        .attr("cx", format!("{x:.1}"))
        .attr("cy", format!("{y:.1}"))
        .attr("r", radius)
}

fn rect(x: f64, y: f64, width: f64, height: f64) -> Element {
    el("rect")
        .attr("x", format!("{x:.1}"))
        .attr("y", format!("{y:.1}"))
        .attr("width", format!("{:.1}", width.max(0.0)))
        .attr("height", format!("{:.1}", height.max(0.0)))
}

/// Text that begins, ends or has its middle at a place.
fn text(x: f64, y: f64, anchor: &'static str, text: &str) -> Element {
    el("text")
        .attr("x", format!("{x:.1}"))
        .attr("y", format!("{y:.1}"))
        .attr("text-anchor", anchor)
        .with(text)
}

/// Something with a text that is shown when the pointer is there.
fn tipped(inner: impl Into<Html>, tip: &str) -> Element {
    el("g")
        .class("point")
        .with(el("title").with(tip))
        .with(inner)
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
    let kept = (1..letters.len())
        .rev()
        .find(|kept| room_of(kept + 1) <= width)
        .unwrap_or(0);
    let (head, tail) = (kept / 2, kept - kept / 2);
    let head: String = letters[..head].iter().collect();
    let tail: String = letters[letters.len() - tail..].iter().collect();
    format!("{}…{}", head.trim_end(), tail.trim_start())
}

#[cfg(test)]
mod tests {
    use super::super::numbers::Unit;
    use super::*;

    fn chart(points: Vec<(f64, f64)>, y: Scale) -> String {
        let points = points.into_iter().map(|(x, y)| Point::new(x, y, "tip"));
        let chart = LineChart {
            title: "T <1>".into(),
            description: "D".into(),
            x: Axis::new("callers", Scale::Linear, Unit::Count),
            y: Axis::new("p99", y, Unit::Millis),
            series: vec![Series::new("Gesta & co", Role::Ours, points.collect())],
            limits: vec![(100.0, "limit".into())],
            marks: vec![Mark::new(5.0, "a fault")],
            note: None,
        };
        chart.draw().into_string()
    }

    #[test]
    fn a_chart_has_both_sizes_a_title_a_description_and_its_points() {
        let html = chart(vec![(1.0, 2.0), (10.0, 30.0)], Scale::Log);
        let document = roxmltree::Document::parse(&html).unwrap();
        let drawings = |class: &str| {
            let all = document.descendants();
            all.filter(|node| node.attribute("class") == Some(class))
                .count()
        };
        assert_eq!((drawings("wide"), drawings("narrow")), (1, 1));
        assert_eq!(drawings("point"), 2 * 3, "two points and a mark, twice");
        assert!(html.contains("<title>T &lt;1&gt;</title><desc>D</desc>"));
        assert!(html.contains("Gesta &amp; co"));
    }

    #[test]
    fn odd_numbers_make_no_odd_drawing() {
        let odd = [0.0, -3.0, 1e300, 1e-300, 5.0];
        for scale in [Scale::Linear, Scale::Log] {
            for x in odd {
                for y in odd {
                    let html = chart(vec![(x, y), (y, x)], scale.clone());
                    assert!(
                        !html.contains("NaN") && !html.contains("inf"),
                        "{x} {y}: {html}"
                    );
                }
            }
        }
        assert!(chart(Vec::new(), Scale::Log).contains("no figures"));
    }

    #[test]
    fn names_fit_their_room() {
        assert_eq!(fitted("short", 100.0), "short");
        let cut = fitted("a very long name, plain", 90.0);
        assert!(room(&cut) <= 90.0 && cut.ends_with("plain"), "{cut}");
        assert_eq!(fitted("größe", 0.0), "…");
    }
}
