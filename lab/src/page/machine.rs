//! The machine and the settings behind the figures, and the method in a few plain sentences.

use maud::{Markup, html};

use super::section::{name, table};
use super::verdict::is_weak;
use super::{bullets, details};
use crate::cells;
use crate::report::numbers::{gibibytes, moment};
use crate::report::{Report, Table, Unit, Whose};

const METHOD: [&str; 6] = [
    "Closed loop: a fixed number of callers, each of which sends the next request when the last is answered; it shows the most that can be carried, \
     and hides what happens when requests come anyway.",
    "Open loop: requests come by a schedule, whether those before are answered or not, as users do; a request that had to wait to be sent counts \
     from its intended start, so a stall is charged to all that it delayed.",
    "p99 of 5 ms means: 99 of 100 requests took 5 ms or less; whoever makes a hundred requests meets the slowest of them too.",
    "Read back: after the load everything stored is read and compared with what was acknowledged; a run that lost, doubled, moved or changed one \
     event is no result.",
    "Noise: the same is measured in several rounds, and ± is half of the range of the rounds; a difference smaller than the noise says nothing.",
    "The load generator runs on a machine too: its processor time and how late its own timers are is recorded, and a figure that it limited is marked.",
];
const WORDS: [(&str, &str); 6] = [
    (
        "event",
        "a fact that is stored once and never changed, such as “seat 7 was reserved”",
    ),
    (
        "append",
        "one request that stores one or more events of one stream; answered when they are safe",
    ),
    (
        "stream",
        "the events of one thing, such as one order, in their order",
    ),
    (
        "p50, p99, p99.9",
        "half, 99 % and 99.9 % of the requests took this long or less",
    ),
    (
        "connection, caller, worker",
        "someone who has one request under way at a time",
    ),
    ("1 ms", "a thousandth of a second"),
];
/// Most runs that are named with their settings.
const NAMES_MAX: usize = 3;

/// The words of the page.
pub(super) fn glossary() -> Markup {
    html! { dl.words { @for (word, meaning) in WORDS { div { dt { (word) } dd { (meaning) } } } } }
}

/// The section.
pub(super) fn draw(reports: &[Report]) -> Markup {
    html! {
        section id="machine" {
            h2 { "Machine, settings and method" }
            p.finding { (finding(reports)) }
            h3 { "Method" }
            (bullets(&METHOD.map(str::to_owned)))
            (table(&machines(reports)))
            (table(&databases(reports)))
            (settings(reports))
            (details("Every run", &table(&runs(reports))))
        }
    }
}

/// Runs with the same facts; the first of each kind of facts comes first.
fn grouped<'a, F: PartialEq>(
    reports: &'a [Report],
    of: impl Fn(&'a Report) -> Option<F>,
) -> Vec<(F, Vec<&'a Report>)> {
    let mut all: Vec<(F, Vec<&Report>)> = Vec::new();
    for report in reports {
        let Some(facts) = of(report) else { continue };
        match all.iter_mut().find(|(known, _)| *known == facts) {
            Some((_, runs)) => runs.push(report),
            None => all.push((facts, vec![report])),
        }
    }
    all
}

fn finding(reports: &[Report]) -> String {
    let machines = grouped(reports, |report| Some(&report.host));
    let first = match machines.as_slice() {
        [(host, _)] => format!(
            "All was measured on one machine: {}, {} cores, {}",
            host.cpu,
            host.cores,
            gibibytes(bytes(host.memory_bytes))
        ),
        _ => format!(
            "These runs come from {} machines: compare within one only",
            machines.len()
        ),
    };
    let known = reports.iter().any(|report| report.store.is_some());
    let durable = match (known, reports.iter().any(is_weak)) {
        (false, _) => "",
        (true, false) => "; every acknowledgement meant that the event was safe on disk",
        (true, true) => "; not every acknowledgement meant that the event was safe on disk",
    };
    format!("{first}{durable}.")
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a machine's memory")]
fn bytes(bytes: u64) -> f64 {
    bytes as f64
}

fn machines(reports: &[Report]) -> Table {
    let columns = [
        ("processor", Unit::Words),
        ("cores", Unit::Count),
        ("memory", Unit::Words),
        ("system", Unit::Words),
        ("runs", Unit::Count),
    ];
    let mut table = Table::new("Machines", columns);
    for (host, runs) in grouped(reports, |report| Some(&report.host)) {
        let memory = gibibytes(bytes(host.memory_bytes));
        table.row(cells![
            &host.cpu,
            host.cores,
            memory,
            &host.system,
            runs.len()
        ]);
    }
    table
}

fn databases(reports: &[Report]) -> Table {
    let columns = [
        ("database", Unit::Words),
        ("durability", Unit::Words),
        ("by these settings", Unit::Words),
        ("runs", Unit::Count),
    ];
    let mut table = Table::new("Databases", columns);
    let facts = grouped(reports, |report| {
        let store = report.store.as_ref()?;
        Some((&store.engine, &store.durability, &store.durability_detail))
    });
    for ((engine, durability, detail), runs) in facts {
        let whose = if durability == "full" {
            Whose::Other
        } else {
            Whose::Bad
        };
        table.row_of(whose, cells![engine, durability, detail, runs.len()]);
    }
    table
}

/// Each set of settings once, with the runs that had it.
fn settings(reports: &[Report]) -> Markup {
    let sets = grouped(reports, |report| {
        let settings = &report.store.as_ref()?.settings;
        (!settings.is_empty()).then_some(settings)
    });
    let several = sets.len() > 1;
    html! { @for (set, runs) in sets {
        @let of = match runs.len() {
            _ if !several => String::new(),
            many if many > NAMES_MAX => format!(" in {} and {} others", name(runs[0]), many - 1),
            _ => format!(" in {}", runs.iter().map(|run| name(run)).collect::<Vec<_>>().join(", ")),
        };
        @let rows = {
            let mut rows = Table::new("Settings of the database", [("setting", Unit::Words), ("value", Unit::Words)]);
            set.iter().for_each(|(name, value)| rows.row(cells![name, value]));
            rows
        };
        (details(&format!("Settings of the database{of}"), &table(&rows)))
    } }
}

fn runs(reports: &[Report]) -> Table {
    let columns = [
        "kind",
        "began (UTC)",
        "commit",
        "build",
        "database",
        "address",
        "durability",
        "seed",
        "finished",
        "result",
    ];
    let columns = columns.map(|column| (column, Unit::Words));
    let mut table = Table::new(
        "Runs",
        columns
            .into_iter()
            .chain([("round trip added", Unit::Millis)]),
    );
    for report in reports {
        let whose = if report.is_valid() {
            Whose::Other
        } else {
            Whose::Bad
        };
        let yes = |yes: bool| if yes { "yes" } else { "no" };
        let store = report.store.as_ref();
        table.row_of(
            whose,
            cells![
                &report.kind,
                moment(&report.started),
                &report.commit,
                &report.build,
                store.map(|store| &store.engine),
                store.map(|store| &store.url),
                store.map(|store| &store.durability),
                report.seed.to_string(),
                yes(report.complete),
                yes(report.is_valid()),
                store.map(|store| store.round_trip_ms)
            ],
        );
    }
    table
}
