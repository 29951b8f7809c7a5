//! The published steps of the reference application, and ours beside them.

use super::generator::Drive;
use super::step::Step;
use crate::cells;
use crate::report::{Chart, Report, Scale, Table, Unit, Whose};

const STEPS: &str = "p99 at each rate that a schedule offered, published [A] and here";
/// The author's bar for a whole request.
const BAR_MS: f64 = 50.0;
/// A step of which less than this share was accepted did not keep up.
const KEPT_UP: f64 = 0.97;

type Steps = &'static [(f64, f64)];

/// Application, requests per second and p99 in milliseconds.
#[rustfmt::skip]
const PUBLISHED: [(&str, Steps); 4] = [
    ("[A] 1 × 2 cores", &[
        (500.0, 5.0), (750.0, 5.0), (1_000.0, 5.0), (1_250.0, 6.0), (1_500.0, 7.0), (1_750.0, 14.0), (2_000.0, 31.0), (2_250.0, 200.0),
    ]),
    ("[A] 3 × 2 cores", &[
        (1_000.0, 6.0), (1_500.0, 7.0), (2_000.0, 7.0), (2_500.0, 9.0), (3_000.0, 12.0), (3_500.0, 16.0), (4_000.0, 30.0), (4_500.0, 80.0),
    ]),
    ("[A] 1 × 4 cores", &[
        (500.0, 4.0), (1_000.0, 4.0), (1_500.0, 4.0), (2_000.0, 5.0), (2_500.0, 7.0), (3_000.0, 8.0), (3_500.0, 12.0), (4_000.0, 20.0),
        (4_500.0, 70.0),
    ]),
    ("[A] 3 × 4 cores", &[
        (2_000.0, 5.0), (3_000.0, 7.0), (4_000.0, 8.0), (5_000.0, 9.0), (6_000.0, 12.0), (7_000.0, 20.0), (8_000.0, 30.0),
    ]),
];

/// Adds them, if a schedule offered anything.
pub(super) fn tell(report: &mut Report, steps: &[Step]) {
    let offered = |step: &Step| match step.drive {
        Drive::Open { rate, .. } => Some(rate),
        Drive::Closed(_) => None,
    };
    if !steps.iter().any(|step| offered(step).is_some()) {
        return;
    }
    let columns = [
        ("where", Unit::Words),
        ("requests/s offered", Unit::Count),
        ("p99", Unit::Millis),
        ("fell short", Unit::Words),
    ];
    let mut table = Table::new(STEPS, columns).folded();
    for (name, published) in PUBLISHED {
        for (rate, p99) in published {
            table.row_of(Whose::Published, cells![name, *rate, *p99, None::<&str>]);
        }
    }
    for step in steps {
        if let Some(rate) = offered(step) {
            let short = step.result.accepted_per_second() < rate * KEPT_UP;
            let short = short.then_some("fewer were accepted than were offered");
            let p99 = step.result.overall().p99;
            table.row_of(Whose::Ours, cells!["here", rate, p99, short]);
        }
    }
    let (x, y) = (
        ("requests/s offered", Scale::Log),
        (&["p99"][..], Scale::Log),
    );
    let chart = Chart::lines("p99 over requests per second", STEPS, x, y);
    let chart = chart
        .by("where")
        .stop("fell short")
        .limit(BAR_MS, "the author's bar: 50 ms");
    report.chart(chart.note("A cross: fewer were accepted than were offered."));
    report.table(table);
    report.text(
        "[A] is A. Ludwikowski, Reactive Event Sourcing benchmarks, part 1: PostgreSQL, 2022: another machine, another language and another \
         database version, and a database with 4 cores of its own. What carries over is the shape: p99 stays flat, then rises at once.",
    );
}
