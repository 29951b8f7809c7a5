//! Published marks beside ours, each with what can be compared.

use super::lines::Lines;
use super::numbers::{by, list, millis};
use super::section::{Section, newest_first, paragraph};
use super::table::{Table, words};
use super::{latency, reservation, schemas};

/// Kinds of lines that repeat something published.
const REPEATED: [&str; 4] = ["schemas", "latency", "tags", "reservation"];

/// Letter, author, title, year.
const SOURCES: [(&str, &str, &str, &str); 4] = [
    (
        "[A]",
        "A. Ludwikowski",
        "Reactive Event Sourcing benchmarks, part 1: PostgreSQL",
        "2022",
    ),
    (
        "[B]",
        "VirtusLab",
        "Migrating event sourced Akka application from CockroachDB to AlloyDB",
        "2024",
    ),
    (
        "[C]",
        "D. Kraan",
        "How we made EventStore 2x to 4x+ faster",
        "2020",
    ),
    (
        "[D]",
        "akkadotnet",
        "Akka.Persistence.Sql, issue 420",
        "2024",
    ),
];

pub(super) fn section(lines: &Lines) -> Option<Section> {
    if !lines.has(&REPEATED) {
        return None;
    }
    let mut table = Table::new(
        "Published marks and the same here",
        &[
            "source",
            "what",
            "published",
            "here",
            "what can be compared",
        ],
    );
    for row in rows(lines) {
        table.row(row.map(words).to_vec());
    }
    let mut sources = Table::new("Sources", &["letter", "author", "title", "year"]);
    for (letter, author, title, year) in SOURCES {
        sources.row([letter, author, title, year].map(words).to_vec());
    }
    let mut body = table.draw();
    body.push(paragraph(
        "Each published figure belongs to its author's hardware, network and versions. What carries over is the order of things, their ratios, \
         and the shape of a curve: where it bends, and what happens after. A higher number here is not a faster system.",
    ));
    body.push(sources.draw());
    Some(Section {
        lead: None,
        id: "marks",
        title: "Published marks",
        finding: "Published experiments that these runs repeat: compare shapes and ratios, never the numbers themselves.".into(),
        is_result: true,
        body,
    })
}

fn rows(lines: &Lines) -> Vec<[String; 5]> {
    let mut rows = Vec::new();
    let nothing = || "not among these runs".to_owned();
    let cinemas = newest_first(lines.of("reservation"));
    let highest = reservation::highest(&cinemas);
    rows.push([
        "[A]".into(),
        "cinema over HTTP, highest rate with p99 still low, application on 2 cores".into(),
        "1,750 requests/s with p99 14 ms; at 2,250 over 200 ms".into(),
        highest.map_or_else(nothing, |(rate, p99)| {
            format!(
                "{} requests/s with p99 {}",
                super::numbers::count(rate),
                millis(p99)
            )
        }),
        "the shape: p99 stays flat, then rises at once; its database had 4 cores of its own".into(),
    ]);
    if let Some(goodput) = reservation::goodput(&cinemas) {
        rows.push([
            "[A]".into(),
            "overload".into(),
            "time-outs with falling processor time, while reads from memory still answered".into(),
            format!("up to {goodput} of the peak is still accepted, the rest refused"),
            "the kind of behaviour".into(),
        ]);
    }
    let relations = schemas::newest_relations(lines);
    let told = relations.iter().map(|(group, relations)| {
        let told = relations
            .iter()
            .map(|one| format!("{} ({}): {}", one.statement, one.here, one.verdict()));
        format!("{group}: {}", told.collect::<Vec<_>>().join("; "))
    });
    let told: Vec<String> = told.collect();
    rows.push([
        "[B]".into(),
        "journal schemas, raw inserts, production sizes".into(),
        schemas::published().into(),
        if told.is_empty() {
            nothing()
        } else {
            told.join(" – ")
        },
        "the order of the schemas and what becomes of nested partitions; not the rates".into(),
    ]);
    let latencies = newest_first(lines.of("latency"));
    let valid = latencies.iter().find(|line| line.is_valid());
    let beside = valid
        .map(|line| latency::beside_published(line))
        .unwrap_or_default();
    let ours: Vec<String> = beside
        .iter()
        .map(|(what, _, ratio)| format!("{} ({what})", by(*ratio)))
        .collect();
    rows.push([
        "[C]".into(),
        "one bundled statement against separate ones, 40 workers".into(),
        "1.9× at 1.5 ms and 6.1× at 10 ms (batches of 5), up to 5.3× at 50 ms (batches of 100)"
            .into(),
        if ours.is_empty() {
            nothing()
        } else {
            list(&ours)
        },
        "the ratios, and that they grow with the distance".into(),
    ]);
    rows.push([
        "[D]".into(),
        "2,000 events in seconds, 35 readers by tag".into(),
        "aggregate query time 4 hours before a change, 42 s after; CSV tags 1.9–2.2 s against 3.8 ms for a tag table (3 M events)".into(),
        tags_here(lines).unwrap_or_else(nothing),
        "that text tags grow with the table and bounded queries do not; another database product".into(),
    ]);
    let repeated = |row: &[String; 5]| row[3] != "not among these runs";
    rows.sort_by_key(|row| !repeated(row));
    rows
}

fn tags_here(lines: &Lines) -> Option<String> {
    let all = newest_first(lines.of("tags"));
    let line = all.iter().find(|line| line.is_valid())?;
    let forms = || line.result().get("forms").items();
    let oldest = forms()
        .map(|form| form.number_or_0("older"))
        .fold(0.0, f64::max);
    let told: Vec<String> = forms()
        .filter(|form| form.get("database_ms").is_there() && form.number_or_0("older") == oldest)
        .map(|form| {
            let name = form
                .get("title")
                .text()
                .unwrap_or(form.text_or_empty("name"));
            format!("{name} {}", millis(form.number_or_0("database_ms")))
        })
        .collect();
    let older = super::numbers::count(oldest);
    (!told.is_empty()).then(|| {
        format!(
            "database time with {older} older events: {}",
            told.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_repeated_experiments_there_are_no_marks() {
        assert!(section(&Lines::default()).is_none());
    }
}
