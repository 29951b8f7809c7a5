//! `tags`: reading by tag, with many readers, with and without a long past.

use super::chart::{Axis, Dot, DotRow, Dots, LineChart, Point, Scale, Series};
use super::html::Html;
use super::lines::{Line, Lines};
use super::look::Look;
use super::numbers::{Unit, count, millis, seconds, several};
use super::section::{
    Looks, Section, bullets, distinct, is_ours, newest_first, runs, side_by_side,
};
use super::table::{Cell, Emphasis, Table, counted, figure, millis as millis_cell, told, words};

/// Queries may differ by this factor between few and many readers and still not depend on them.
const SAME: f64 = 1.5;

pub(super) fn section(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("tags"));
    let newest = all.first()?;
    Some(Section {
        lead: None,
        id: "tags",
        title: "Reading by tag",
        finding: finding(newest),
        is_result: newest.is_valid(),
        body: runs(&all, draw),
    })
}

fn title<'a>(form: Look<'a>) -> &'a str {
    let name = form.get("name").text().unwrap_or("unnamed");
    form.get("title").text().unwrap_or(name)
}

fn finding(line: &Line) -> String {
    let result = line.result();
    let ours: Vec<Look<'_>> = result
        .get("readers_sweep")
        .items()
        .filter(|row| is_ours(row.text_or_empty("name")))
        .collect();
    let few = ours.iter().min_by(|a, b| {
        a.number_or_0("readers")
            .total_cmp(&b.number_or_0("readers"))
    });
    let many = ours.iter().max_by(|a, b| {
        a.number_or_0("readers")
            .total_cmp(&b.number_or_0("readers"))
    });
    let (Some(few), Some(many)) = (few, many) else {
        return forms_finding(result);
    };
    let (from, to) = (few.number_or_0("queries"), many.number_or_0("queries"));
    let what = if to <= from.max(1.0) * SAME {
        "do not grow with the readers"
    } else {
        "grow with the readers"
    };
    let idle = many.get("idle_queries_per_second").number();
    let idle = idle.map(|idle| format!("; idle, {} queries a second", count(idle)));
    format!(
        "Gesta's queries {what}: {} with {} and {} with {}{}.",
        count(from),
        readers(few.number_or_0("readers")),
        count(to),
        readers(many.number_or_0("readers")),
        idle.unwrap_or_default()
    )
}

fn readers(number: f64) -> String {
    several(number, "reader")
}

fn forms_finding(result: Look<'_>) -> String {
    let with_time = result
        .get("forms")
        .items()
        .filter(|form| form.get("database_ms").is_there());
    let quickest = with_time.min_by(|a, b| {
        a.number_or_0("database_ms")
            .total_cmp(&b.number_or_0("database_ms"))
    });
    match quickest {
        Some(form) => format!(
            "{} took the least of the database's time: {} until {} had everything.",
            title(form),
            millis(form.number_or_0("database_ms")),
            readers(form.number_or_0("readers"))
        ),
        None => "The run has no figures to compare.".into(),
    }
}

fn draw(line: &Line) -> Html {
    let result = line.result();
    let mut all = side_by_side([database_time(result), sweep(result)]);
    let sentences = result.get("sentences").items();
    all.push(bullets(sentences.filter_map(Look::text).map(str::to_owned)));
    all.push(table(line));
    all.push(sweep_table(result));
    all
}

/// What a number of older events is called.
fn older_told(older: f64) -> String {
    if older > 0.0 {
        format!("{} older events in the table", count(older))
    } else {
        "an empty table before".into()
    }
}

fn database_time(result: Look<'_>) -> Html {
    let forms: Vec<Look<'_>> = result.get("forms").items().collect();
    let older = distinct(forms.iter().map(|form| form.number_or_0("older")));
    let mut rows: Vec<DotRow> = Vec::new();
    let mut told = Vec::new();
    for form in &forms {
        let Some(time) = form.get("database_ms").number() else {
            continue;
        };
        let of = form.number_or_0("older");
        let tip = format!("{} of database time, {}", millis(time), older_told(of));
        told.push(format!("{}: {tip}", title(*form)));
        let dot = Dot {
            series: older.iter().position(|one| *one == of).unwrap_or(0),
            value: time,
            tip,
        };
        match rows.iter_mut().find(|row| row.name == title(*form)) {
            Some(row) => row.dots.push(dot),
            None => rows.push(DotRow {
                name: title(*form).to_owned(),
                is_ours: is_ours(form.text_or_empty("name")),
                dots: vec![dot],
            }),
        }
    }
    if rows.is_empty() {
        return Html::default();
    }
    Dots {
        title: "Database time until every reader has everything".into(),
        description: told.join("; "),
        axis: Axis::new("time that the database worked", Scale::Log, Unit::Millis),
        series: older.into_iter().map(older_told).collect(),
        rows,
    }
    .draw()
}

fn sweep(result: Look<'_>) -> Html {
    let rows: Vec<Look<'_>> = result.get("readers_sweep").items().collect();
    if rows.is_empty() {
        return Html::default();
    }
    let mut names: Vec<&str> = Vec::new();
    for row in &rows {
        let name = row.text_or_empty("name");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let looks = Looks::of(names.iter().copied());
    let series = names.iter().map(|name| {
        let mut of: Vec<&Look<'_>> = rows
            .iter()
            .filter(|row| row.text_or_empty("name") == *name)
            .collect();
        of.sort_by(|a, b| {
            a.number_or_0("readers")
                .total_cmp(&b.number_or_0("readers"))
        });
        let points = of.iter().map(|row| {
            let (number, queries) = (row.number_or_0("readers"), row.number_or_0("queries"));
            Point::new(
                number,
                queries,
                format!("{}: {} queries", readers(number), count(queries)),
            )
        });
        let known = result
            .get("forms")
            .items()
            .find(|form| form.text_or_empty("name") == *name);
        let known = of
            .iter()
            .find_map(|row| row.get("title").text())
            .or(known.map(title));
        Series::new(known.unwrap_or(name), looks.of_name(name), points.collect())
    });
    let told = rows.iter().map(|row| {
        format!(
            "{}, {}: {} queries",
            row.text_or_empty("name"),
            readers(row.number_or_0("readers")),
            count(row.number_or_0("queries"))
        )
    });
    LineChart {
        title: "Queries over readers".into(),
        description: told.collect::<Vec<_>>().join("; "),
        x: Axis::new("readers by tag", Scale::Log, Unit::Count),
        y: Axis::new("queries to the database", Scale::Log, Unit::Count),
        series: series.collect(),
        limits: Vec::new(),
        marks: Vec::new(),
        note: None,
    }
    .draw()
}

fn table(line: &Line) -> Html {
    let workload = line.workload();
    let mut table = Table::new(
        format!(
            "{} events in a burst, {}",
            count(workload.number_or_0("events")),
            readers(workload.number_or_0("readers"))
        ),
        &[
            "form",
            "older events",
            "queries",
            "queries that append",
            "database time",
            "until the last reader has all",
            "idle queries/s",
            "reading all from the start: queries",
            "its database time",
            "readers that have all",
            "faults",
        ],
    );
    for form in line.result().get("forms").items() {
        let faults: Vec<&str> = form.get("faults").items().filter_map(Look::text).collect();
        let emphasis = match (is_ours(form.text_or_empty("name")), faults.is_empty()) {
            (_, false) => Emphasis::Bad,
            (true, true) => Emphasis::Ours,
            (false, true) => Emphasis::Plain,
        };
        let complete = form.get("complete_readers").number();
        let of = form.get("readers").number();
        let complete = match (complete, of) {
            (Some(complete), Some(of)) => figure(format!("{} of {}", count(complete), count(of))),
            _ => Cell::Unknown,
        };
        table.styled(
            emphasis,
            vec![
                words(title(form)),
                counted(form.get("older")),
                counted(form.get("queries")),
                counted(form.get("append_queries")),
                millis_cell(form.get("database_ms")),
                form.get("seconds_to_last")
                    .number()
                    .map_or(Cell::Unknown, |time| figure(seconds(time))),
                counted(form.get("idle_queries_per_second")),
                counted(form.get("from_start.queries")),
                millis_cell(form.get("from_start.database_ms")),
                complete,
                words(faults.join("; ")),
            ],
        );
    }
    table.draw()
}

fn sweep_table(result: Look<'_>) -> Html {
    let mut table = Table::new(
        "Queries over readers",
        &["form", "readers", "queries", "idle queries/s"],
    );
    for row in result.get("readers_sweep").items() {
        let name = row.text_or_empty("name");
        let emphasis = if is_ours(name) {
            Emphasis::Ours
        } else {
            Emphasis::Plain
        };
        table.styled(
            emphasis,
            vec![
                words(row.get("title").text().unwrap_or(name)),
                told(Unit::Count, row.get("readers").number()),
                counted(row.get("queries")),
                counted(row.get("idle_queries_per_second")),
            ],
        );
    }
    super::table::details("Queries over readers, as a table", table.draw())
}
