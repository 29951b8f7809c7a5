//! `soak`: hours of mixed load with faults.

use super::chart::{Axis, LineChart, Mark, Point, Role, Scale, Series};
use super::html::Html;
use super::lines::{Line, Lines};
use super::look::Look;
use super::numbers::{Unit, bytes, count, millis, plural, seconds, times};
use super::section::{Section, newest_first, runs, side_by_side};
use super::table::{
    Cell, Table, causes, cores, counted, details, figure, millis as millis_cell, words,
};
use crate::histogram::median;

pub(super) fn section(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("soak"));
    let newest = all.first()?;
    Some(Section {
        lead: None,
        id: "soak",
        title: "Hours of load",
        finding: finding(newest),
        is_result: newest.is_valid(),
        body: runs(&all, draw),
    })
}

fn slices(line: &Line) -> Vec<Look<'_>> {
    line.result().get("slices").items().collect()
}

/// A quarter of the slices, without those with a fault if there are others; the first quarter is still filling caches.
fn quarter<'a>(slices: &[Look<'a>], number: usize) -> Vec<Look<'a>> {
    let at = |quarter: usize| slices.len() * quarter / 4;
    let of = match at(number) {
        from if from < at(number + 1) => &slices[from..at(number + 1)],
        _ => slices,
    };
    let is_quiet = |slice: &Look<'_>| slice.get("faults").items().next().is_none();
    let quiet: Vec<Look<'a>> = of.iter().copied().filter(is_quiet).collect();
    if quiet.is_empty() { of.to_vec() } else { quiet }
}

/// Middle of a figure over some slices.
fn middle(slices: &[Look<'_>], path: &str) -> Option<f64> {
    let values: Vec<f64> = slices
        .iter()
        .filter_map(|slice| slice.get(path).number())
        .collect();
    (!values.is_empty()).then(|| median(&values))
}

fn finding(line: &Line) -> String {
    let slices = slices(line);
    let (Some(first), Some(last)) = (slices.first(), slices.last()) else {
        return "The run has no figures.".into();
    };
    let (early, late) = (quarter(&slices, 1), quarter(&slices, 3));
    let lasted = last.number_or_0("from_seconds") + last.number_or_0("seconds")
        - first.number_or_0("from_seconds");
    let mut told = format!(
        "In {} the log grew to {} events",
        seconds(lasted),
        count(last.number_or_0("events_total"))
    );
    let p99 = |slices: &[Look<'_>]| middle(slices, "append_ms.p99").filter(|p99| *p99 > 0.0);
    if let (Some(then), Some(now)) = (p99(&early), p99(&late)) {
        told.push_str(&format!(
            "; p99 of appends was {} in the last quarter, {} that of the second ({})",
            millis(now),
            times(now / then),
            millis(then)
        ));
    }
    let disk = "disk_bytes_per_event";
    if let (Some(then), Some(now)) = (middle(&early, disk), middle(&late, disk)) {
        told.push_str(&format!(
            "; disk per event {}, from {}",
            bytes(now),
            bytes(then)
        ));
    }
    let faults: Vec<Look<'_>> = line.result().get("faults").items().collect();
    if !faults.is_empty() {
        let healed = faults
            .iter()
            .filter_map(|fault| fault.get("healed_after_seconds").number());
        let open = faults.len() - healed.clone().count();
        let longest = healed.fold(0.0, f64::max);
        told.push_str(&format!(
            "; {}, the longest healed after {}",
            plural(faults.len(), "fault"),
            seconds(longest)
        ));
        if open > 0 {
            told.push_str(&format!(", {open} never healed"));
        }
    }
    told.push('.');
    told
}

fn draw(line: &Line) -> Html {
    let slices = slices(line);
    let longest = slices
        .last()
        .map_or(0.0, |slice| slice.number_or_0("from_seconds"));
    let time = Time::of(longest);
    let faults = || {
        let faults = line.result().get("faults").items();
        faults.map(|fault| {
            let at = fault.number_or_0("at_seconds");
            let healed = fault.get("healed_after_seconds").number();
            let healed = healed.map_or_else(
                || "never healed".into(),
                |after| format!("healed after {}", seconds(after)),
            );
            Mark::new(
                at / time.seconds,
                format!(
                    "{} at {}: {healed}",
                    fault.text_or_empty("kind"),
                    seconds(at)
                ),
            )
        })
    };
    let marks: Vec<Mark> = faults().collect();
    let mut all = side_by_side([
        latencies(&slices, &time, marks.clone()),
        over(
            &slices,
            &Chart {
                title: "Events per second over time",
                x: ("from_seconds", time.seconds, time.axis()),
                y: ("events_per_second", "events/s", Unit::Count, Scale::Linear),
                marks,
            },
        ),
        over(
            &slices,
            &Chart {
                title: "p99 of appends over the size of the log",
                x: (
                    "events_total",
                    1.0,
                    Axis::new("events in the log", Scale::Linear, Unit::Count),
                ),
                y: (
                    "append_ms.p99",
                    "99 of 100 appends within",
                    Unit::Millis,
                    Scale::Log,
                ),
                marks: Vec::new(),
            },
        ),
        over(
            &slices,
            &Chart {
                title: "Disk per event over the size of the log",
                x: (
                    "events_total",
                    1.0,
                    Axis::new("events in the log", Scale::Linear, Unit::Count),
                ),
                y: (
                    "disk_bytes_per_event",
                    "bytes on disk, with indexes",
                    Unit::Bytes,
                    Scale::Linear,
                ),
                marks: Vec::new(),
            },
        ),
    ]);
    all.push(details("Faults", fault_table(line)));
    all.push(details("Every slice of time", slice_table(&slices)));
    all
}

/// The unit of the time axis.
struct Time {
    seconds: f64,
    name: &'static str,
}

impl Time {
    fn of(longest: f64) -> Self {
        let (seconds, name) = match longest {
            _ if longest >= 10_800.0 => (3_600.0, "hours since the beginning"),
            _ if longest >= 300.0 => (60.0, "minutes since the beginning"),
            _ => (1.0, "seconds since the beginning"),
        };
        Self { seconds, name }
    }

    fn axis(&self) -> Axis {
        Axis::new(self.name, Scale::Linear, Unit::Count)
    }
}

fn latencies(slices: &[Look<'_>], time: &Time, marks: Vec<Mark>) -> Html {
    let kinds = [
        ("append_ms", "appends", Role::Ours),
        ("read_ms", "reads", Role::Other(0)),
        ("deliver_ms", "delivery to subscribers", Role::Other(1)),
    ];
    let mut told = Vec::new();
    let mut series = Vec::new();
    for (member, name, role) in kinds {
        let points = slices.iter().filter_map(|slice| {
            let p99 = slice.get(member).get("p99").number()?;
            let at = slice.number_or_0("from_seconds");
            Some(Point::new(
                at / time.seconds,
                p99,
                format!("{} after {}", millis(p99), seconds(at)),
            ))
        });
        let points: Vec<Point> = points.collect();
        if points.is_empty() {
            continue;
        }
        let ends = [slices.first(), slices.last()].into_iter().flatten();
        let ends = ends
            .filter_map(|slice| slice.get(member).get("p99").number())
            .map(millis);
        told.push(format!(
            "{name}: {}",
            ends.collect::<Vec<_>>().join(" at first, at last ")
        ));
        series.push(Series::new(name, role, points));
    }
    let note = (!marks.is_empty()).then(|| "An arrow at the top marks a fault.".to_owned());
    LineChart {
        title: "p99 over time".into(),
        description: told.join("; "),
        x: time.axis(),
        y: Axis::new("99 of 100 within", Scale::Log, Unit::Millis),
        series,
        limits: Vec::new(),
        marks,
        note,
    }
    .draw()
}

/// A chart of one figure of the slices.
struct Chart<'a> {
    title: &'a str,
    /// Where the value is, what it is divided by, and its axis.
    x: (&'a str, f64, Axis),
    y: (&'a str, &'a str, Unit, Scale),
    marks: Vec<Mark>,
}

fn over(slices: &[Look<'_>], chart: &Chart<'_>) -> Html {
    let (x_path, divisor, axis) = &chart.x;
    let (y_path, y_name, unit, scale) = &chart.y;
    let points = slices.iter().filter_map(|slice| {
        let (x, y) = (slice.get(x_path).number()?, slice.get(y_path).number()?);
        let at = seconds(slice.number_or_0("from_seconds"));
        let total = count(slice.number_or_0("events_total"));
        Some(Point::new(
            x / divisor,
            y,
            format!("{} after {at}, {total} events in the log", unit.told(y)),
        ))
    });
    let points: Vec<Point> = points.collect();
    if points.is_empty() {
        return Html::default();
    }
    let ends = [slices.first(), slices.last()].into_iter().flatten();
    let ends = ends
        .filter_map(|slice| slice.get(y_path).number())
        .map(|value| unit.told(value));
    LineChart {
        title: chart.title.into(),
        description: format!("{} at last.", ends.collect::<Vec<_>>().join(" at first, ")),
        x: axis.clone(),
        y: Axis::new(y_name, scale.clone(), *unit),
        series: vec![Series::new(*y_name, Role::Ours, points)],
        limits: Vec::new(),
        marks: chart.marks.clone(),
        note: None,
    }
    .draw()
}

fn fault_table(line: &Line) -> Html {
    let mut table = Table::new("Faults", &["at", "fault", "healed after"]);
    for fault in line.result().get("faults").items() {
        let healed = fault.get("healed_after_seconds").number();
        table.row(vec![
            figure(seconds(fault.number_or_0("at_seconds"))),
            words(fault.text_or_empty("kind").replace('_', " ")),
            healed.map_or_else(|| words("never"), |after| figure(seconds(after))),
        ]);
    }
    table.draw()
}

fn slice_table(slices: &[Look<'_>]) -> Html {
    let mut table = Table::new(
        "Slices of time",
        &[
            "from",
            "events in the log",
            "events/s",
            "append p50",
            "append p99",
            "append p99.9",
            "read p99",
            "delivery p99",
            "disk",
            "disk per event",
            "cores busy",
            "errors",
        ],
    );
    let size = |look: Look<'_>| {
        look.number()
            .map_or(Cell::Unknown, |size| figure(bytes(size)))
    };
    for slice in slices {
        table.row(vec![
            figure(seconds(slice.number_or_0("from_seconds"))),
            counted(slice.get("events_total")),
            counted(slice.get("events_per_second")),
            millis_cell(slice.get("append_ms.p50")),
            millis_cell(slice.get("append_ms.p99")),
            millis_cell(slice.get("append_ms.p999")),
            millis_cell(slice.get("read_ms.p99")),
            millis_cell(slice.get("deliver_ms.p99")),
            size(slice.get("disk_bytes")),
            size(slice.get("disk_bytes_per_event")),
            cores(slice.get("cpu.machine_cores")),
            causes(&[slice.get("errors")]),
        ]);
    }
    table.draw()
}
