//! Entities in memory: `locking` and the `entities-*` commands.

use super::chart::{Axis, LineChart, Point, Role, Scale, Series};
use super::html::Html;
use super::lines::{Line, Lines};
use super::look::Look;
use super::numbers::{Unit, by, bytes, count, list, millis, percent, times};
use super::section::{Section, engine, newest_first, range, runs, side_by_side, started};
use super::table::{Cell, Emphasis, Table, counted, figure, millis as millis_cell, words};

pub(super) fn locking(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("locking"));
    let newest = all.first()?;
    let ratios: Vec<f64> = newest
        .result()
        .items()
        .filter_map(|row| row.get("ratio").number())
        .collect();
    let finding = match range(&ratios) {
        Some((least, most)) if most > least => format!(
            "With the entity in memory the same callers get {} to {} as many commands done as with loading, deciding and appending; the fewer the entities, the more.",
            by(least).trim_end_matches('×'),
            times(most)
        ),
        Some((ratio, _)) => format!(
            "With the entity in memory the same callers get {} as many commands done.",
            times(ratio)
        ),
        None => "The run has no figures.".into(),
    };
    Some(Section {
        lead: None,
        id: "locking",
        title: "In memory against optimistic locking",
        finding,
        is_result: newest.is_valid(),
        body: runs(&all, draw_locking),
    })
}

const WAYS: [(&str, &str, Role); 2] = [
    ("in_memory", "entity in memory", Role::Ours),
    ("optimistic", "load, decide, append", Role::Other(0)),
];

fn draw_locking(line: &Line) -> Html {
    let rows: Vec<Look<'_>> = line.result().items().collect();
    let chart = |title: &str, path: &str, y: Axis, unit: Unit| {
        let mut told = Vec::new();
        let series = WAYS.iter().map(|(way, name, role)| {
            let points = rows.iter().filter_map(|row| {
                let (entities, value) = (
                    row.get("entities").number()?,
                    row.get(way).get(path).number()?,
                );
                let tip = format!("{} entities: {}", count(entities), unit.told(value));
                told.push(format!("{name}, {tip}"));
                Some(Point::new(entities, value, tip))
            });
            let mut points: Vec<Point> = points.collect();
            points.sort_by(Point::by_x);
            Series::new(*name, *role, points)
        });
        let series = series.collect();
        LineChart {
            title: title.into(),
            description: told.join("; "),
            x: Axis::new(
                "entities that the callers share (fewer: more contention)",
                Scale::Log,
                Unit::Count,
            ),
            y,
            series,
            limits: Vec::new(),
            marks: Vec::new(),
            note: None,
        }
        .draw()
    };
    let mut all = side_by_side([
        chart(
            "Commands per second",
            "per_second",
            Axis::new("commands/s", Scale::Log, Unit::Count),
            Unit::Count,
        ),
        chart(
            "Time until a command is answered (p99)",
            "latency_ms.p99",
            Axis::new("99 of 100 within", Scale::Log, Unit::Millis),
            Unit::Millis,
        ),
    ]);
    let callers = line.workload().get("callers").number();
    let callers = callers.map_or_else(String::new, |callers| {
        format!("{} callers, ", count(callers))
    });
    let mut table = Table::new(
        format!("{callers}{}", engine(line)),
        &[
            "entities",
            "in memory, commands/s",
            "p99",
            "load, decide, append",
            "p99",
            "decisions per command",
            "failures",
            "ratio",
        ],
    );
    for row in &rows {
        table.row(vec![
            counted(row.get("entities")),
            counted(row.get("in_memory.per_second")),
            millis_cell(row.get("in_memory.latency_ms.p99")),
            counted(row.get("optimistic.per_second")),
            millis_cell(row.get("optimistic.latency_ms.p99")),
            counted(row.get("optimistic.decisions_each")),
            counted(row.get("optimistic.failures")),
            row.get("ratio")
                .number()
                .map_or(Cell::Unknown, |ratio| figure(by(ratio))),
        ]);
    }
    all.push(table.draw());
    all
}

/// The `entities-*` commands.
pub(super) fn entities(lines: &Lines) -> Option<Section> {
    let of = |kind: &str| newest_first(lines.of(kind));
    let (hot, restart) = (of("entities-hot"), of("entities-restart"));
    let (memory, shared) = (of("entities-memory"), of("entities-shared"));
    let mut told = Vec::new();
    if let Some(line) = hot.iter().find(|line| line.is_valid()) {
        let rate = line.result().number_or_0("commands_per_second");
        told.push(format!("one entity answers {} commands/s", count(rate)));
    }
    if let Some(line) = restart.iter().find(|line| line.is_valid()) {
        let rate = line.result().number_or_0("entities_per_second");
        told.push(format!(
            "after a restart {} entities/s come to memory",
            count(rate)
        ));
    }
    if let Some(line) = memory.iter().find(|line| line.is_valid()) {
        told.push(format!(
            "an idle entity takes {}",
            bytes(line.result().number_or_0("bytes_each"))
        ));
    }
    if let Some(line) = shared.iter().find(|line| line.is_valid()) {
        let rate = line.result().number_or_0("commands_per_second");
        told.push(format!(
            "processes that share entities answer {} commands/s together",
            count(rate)
        ));
    }
    let all: Vec<&Line> = [&hot, &restart, &memory, &shared]
        .into_iter()
        .flatten()
        .copied()
        .collect();
    if all.is_empty() {
        return None;
    }
    let mut body = Html::default();
    body.push(hot_table(&hot));
    body.push(restart_table(&restart));
    body.push(memory_table(&memory));
    body.push(shared_table(&shared));
    let finding = match told.len() {
        0 => "No run of entities is a result.".into(),
        _ => format!("{}.", super::numbers::capitalised(&list(&told))),
    };
    Some(Section {
        lead: None,
        id: "entities",
        title: "Entities",
        finding,
        is_result: all.iter().all(|line| line.is_valid()),
        body,
    })
}

fn emphasis(line: &Line) -> Emphasis {
    if line.is_valid() {
        Emphasis::Plain
    } else {
        Emphasis::Bad
    }
}

/// The columns with which every row of a run begins.
fn run(line: &Line) -> Vec<Cell> {
    let away = line
        .get("store.round_trip_ms")
        .number()
        .filter(|away| *away > 0.0);
    let away = away.map(|away| format!(", {} away", millis(away)));
    vec![
        words(started(line)),
        words(engine(line) + &away.unwrap_or_default()),
    ]
}

fn hot_table(lines: &[&Line]) -> Html {
    let mut table = Table::new(
        "One entity, many callers",
        &[
            "run",
            "database",
            "callers",
            "commands/s",
            "p50",
            "p99",
            "one caller alone, commands/s",
            "p50",
        ],
    );
    for line in lines {
        let result = line.result();
        let mut cells = run(line);
        cells.extend([
            counted(line.workload().get("callers")),
            counted(result.get("commands_per_second")),
            millis_cell(result.get("latency_ms.p50")),
            millis_cell(result.get("latency_ms.p99")),
            counted(result.get("one_caller_per_second")),
            millis_cell(result.get("one_caller_latency_ms.p50")),
        ]);
        table.styled(emphasis(line), cells);
    }
    table.draw()
}

fn restart_table(lines: &[&Line]) -> Html {
    let mut table = Table::new(
        "All entities come to memory after a restart",
        &[
            "run",
            "database",
            "entities",
            "events each",
            "callers",
            "entities/s",
            "events loaded",
            "p50",
            "p99",
        ],
    );
    for line in lines {
        let (result, workload) = (line.result(), line.workload());
        let mut cells = run(line);
        cells.extend([
            counted(workload.get("entities")),
            counted(workload.get("events")),
            counted(workload.get("callers")),
            counted(result.get("entities_per_second")),
            counted(result.get("loaded_events")),
            millis_cell(result.get("latency_ms.p50")),
            millis_cell(result.get("latency_ms.p99")),
        ]);
        table.styled(emphasis(line), cells);
    }
    table.draw()
}

fn memory_table(lines: &[&Line]) -> Html {
    let mut table = Table::new(
        "What an idle entity takes",
        &[
            "run",
            "database",
            "entities",
            "each",
            "of it the state",
            "the process",
        ],
    );
    for line in lines {
        let result = line.result();
        let size = |path: &str| {
            result
                .get(path)
                .number()
                .map_or(Cell::Unknown, |size| figure(bytes(size)))
        };
        let mut cells = run(line);
        cells.extend([
            counted(result.get("held")),
            size("bytes_each"),
            size("state_bytes"),
            size("resident_bytes"),
        ]);
        table.styled(emphasis(line), cells);
    }
    table.draw()
}

fn shared_table(lines: &[&Line]) -> Html {
    let mut table = Table::new(
        "Several processes drive the same entities",
        &[
            "run",
            "database",
            "processes",
            "entities",
            "commands/s",
            "shares",
            "decided again",
            "p99 of each",
        ],
    );
    for line in lines {
        let (result, workload) = (line.result(), line.workload());
        let shares: Vec<String> = result
            .get("shares")
            .numbers()
            .into_iter()
            .map(percent)
            .collect();
        let p99s = result
            .get("latency_ms_each")
            .items()
            .filter_map(|each| each.get("p99").number());
        let p99s: Vec<String> = p99s.map(millis).collect();
        let again: f64 = result.get("decided_again_each").numbers().iter().sum();
        let mut cells = run(line);
        cells.extend([
            counted(workload.get("processes")),
            counted(workload.get("entities")),
            counted(result.get("commands_per_second")),
            words(list(&shares)),
            figure(count(again)),
            words(list(&p99s)),
        ]);
        table.styled(emphasis(line), cells);
    }
    table.draw()
}
