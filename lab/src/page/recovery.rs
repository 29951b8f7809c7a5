//! `recovery`: entities that come to memory.

use super::chart::{Axis, LineChart, Point, Role, Scale, Series};
use super::html::Html;
use super::lines::{Line, Lines};
use super::look::Look;
use super::numbers::{Unit, count, several, times};
use super::section::{Section, distinct, newest_first, runs, side_by_side};
use super::table::{Cell, Table, cores, counted, details, millis as millis_cell, words};

pub(super) fn section(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("recovery"));
    let newest = all.first()?;
    Some(Section {
        lead: None,
        id: "recovery",
        title: "Loading entities",
        finding: finding(newest),
        is_result: newest.is_valid(),
        body: runs(&all, draw),
    })
}

fn cells(line: &Line) -> Vec<Look<'_>> {
    line.result().get("cells").items().collect()
}

fn has_snapshots(cell: Look<'_>) -> bool {
    cell.get("snapshots").flag().unwrap_or(false)
}

fn finding(line: &Line) -> String {
    if let Some(sentence) = line.result().get("sentence").text() {
        return sentence.to_owned();
    }
    let cells = cells(line);
    let fastest = |with: bool| {
        let of = cells.iter().filter(|cell| has_snapshots(**cell) == with);
        of.max_by(|a, b| {
            a.number_or_0("entities_per_second")
                .total_cmp(&b.number_or_0("entities_per_second"))
        })
    };
    let Some(without) = fastest(false).or_else(|| fastest(true)) else {
        return "The run has no figures.".into();
    };
    let first = format!(
        "Up to {} entities of {} come to memory in a second, {} events/s",
        count(without.number_or_0("entities_per_second")),
        events(without.number_or_0("events_each")),
        count(without.number_or_0("events_per_second")),
    );
    let longest = cells
        .iter()
        .filter(|cell| has_snapshots(**cell))
        .max_by(|a, b| {
            a.number_or_0("events_each")
                .total_cmp(&b.number_or_0("events_each"))
        });
    let gain = longest.and_then(|with| {
        let same = cells.iter().find(|cell| {
            !has_snapshots(**cell)
                && cell.get("events_each").number() == with.get("events_each").number()
                && cell.get("callers").number() == with.get("callers").number()
        })?;
        let rate = same.number_or_0("entities_per_second");
        (rate > 0.0).then(|| {
            (
                with.number_or_0("events_each"),
                with.number_or_0("entities_per_second") / rate,
            )
        })
    });
    match gain {
        Some((each, ratio)) => format!(
            "{first}; with snapshots, entities of {} load {} as fast.",
            events(each),
            times(ratio)
        ),
        None => format!("{first}."),
    }
}

fn events(number: f64) -> String {
    several(number, "event")
}

fn draw(line: &Line) -> Html {
    let cells = cells(line);
    let lengths = distinct(
        cells
            .iter()
            .filter_map(|cell| cell.get("events_each").number()),
    );
    let mut all = Html::default();
    if lengths.len() > 1 {
        all.push(side_by_side([
            chart(
                &cells,
                "entities_per_second",
                "Entities loaded per second",
                Unit::Count,
            ),
            chart(
                &cells,
                "latency_ms.p99",
                "Time until an entity answers (p99)",
                Unit::Millis,
            ),
        ]));
    }
    let table = table(&cells);
    all.push(if lengths.len() > 1 {
        details("The figures", table)
    } else {
        table
    });
    all.push(catch_up(line));
    all
}

fn catch_up(line: &Line) -> Html {
    let found = line.result().get("catch_up");
    let mut table = Table::new(
        "A projection that reads the whole log after a restart",
        &[
            "events in the log",
            "events/s, page by page",
            "events/s, by a subscription",
        ],
    );
    if found.number_or_0("events") > 0.0 {
        table.row(vec![
            counted(found.get("events")),
            counted(found.get("pages_per_second")),
            counted(found.get("subscription_per_second")),
        ]);
    }
    table.draw()
}

fn chart(cells: &[Look<'_>], figure: &str, title: &str, unit: Unit) -> Html {
    let callers = distinct(cells.iter().filter_map(|cell| cell.get("callers").number()));
    let mut series = Vec::new();
    let mut told = Vec::new();
    for with in [false, true] {
        for number in &callers {
            let mut of: Vec<&Look<'_>> = cells
                .iter()
                .filter(|cell| {
                    has_snapshots(**cell) == with && cell.get("callers").number() == Some(*number)
                })
                .collect();
            of.sort_by(|a, b| {
                a.number_or_0("events_each")
                    .total_cmp(&b.number_or_0("events_each"))
            });
            let points = of.iter().filter_map(|cell| {
                let value = cell.get(figure).number()?;
                let each = cell.number_or_0("events_each");
                Some(Point::new(
                    each,
                    value,
                    format!("{} each: {}", events(each), unit.told(value)),
                ))
            });
            let points: Vec<Point> = points.collect();
            if points.is_empty() {
                continue;
            }
            let mut name = String::from(if with {
                "with snapshots"
            } else {
                "from events"
            });
            if callers.len() > 1 {
                name.push_str(&format!(", {} callers", count(*number)));
            }
            told.extend(of.iter().map(|cell| {
                let value = unit.told(cell.get(figure).number().unwrap_or(0.0));
                format!(
                    "{name}, {} each: {value}",
                    events(cell.number_or_0("events_each"))
                )
            }));
            let role = match series.len() {
                0 => Role::Ours,
                n => Role::Other(n - 1),
            };
            series.push(Series::new(name, role, points));
        }
    }
    LineChart {
        title: title.into(),
        description: told.join("; "),
        x: Axis::new("events of an entity", Scale::Log, Unit::Count),
        y: Axis::new(
            if unit == Unit::Millis {
                "time"
            } else {
                "entities/s"
            },
            Scale::Log,
            unit,
        ),
        series,
        limits: Vec::new(),
        marks: Vec::new(),
        note: None,
    }
    .draw()
}

fn table(cells: &[Look<'_>]) -> Html {
    let mut table = Table::new(
        "Entities loaded",
        &[
            "events each",
            "entities",
            "loaded",
            "callers",
            "entities/s",
            "events/s",
            "events read",
            "p50",
            "p99",
            "cores busy",
        ],
    );
    for cell in cells {
        let loaded: Cell = words(if has_snapshots(*cell) {
            "from a snapshot and what follows"
        } else {
            "from events"
        });
        let latency = cell.get("latency_ms");
        let p99 = if latency.get("p99").is_there() {
            latency.get("p99")
        } else {
            latency
        };
        table.row(vec![
            counted(cell.get("events_each")),
            counted(cell.get("entities")),
            loaded,
            counted(cell.get("callers")),
            counted(cell.get("entities_per_second")),
            counted(cell.get("events_per_second")),
            counted(cell.get("events_read")),
            millis_cell(latency.get("p50")),
            millis_cell(p99),
            cores(cell.get("cpu.machine_cores")),
        ]);
    }
    table.draw()
}
