//! The published steps of the reference application, and the steps of this run beside them.

use gesta_load::cinema::generator::Drive;
use gesta_report::cells;
use gesta_report::{Cell, Chart, Report, Scale, Table, Unit, Whose};

use crate::workload::ladder::KEPT_UP_TOLD;

use super::step::Step;

/// The table of both.
const TITLE: &str = "p99 at each rate that a schedule offered, published [A] and here";
const OFFERED: &str = "requests/s offered";
/// What the author would not accept of a whole request.
const BAR_MS: f64 = 50.0;

/// Requests a second, p99 in milliseconds, and of the application and the database how much of their processors, in
/// percent, where that was published.
type Published = (u32, u32, u32, Option<u32>);

/// By the processors of the application.
#[rustfmt::skip]
const PUBLISHED: [(&str, &[Published]); 4] = [
    ("[A] 1 × 2 cores", &[
        (500, 5, 28, None), (750, 5, 42, None), (1_000, 5, 55, None), (1_250, 6, 67, None), (1_500, 7, 80, None),
        (1_750, 14, 90, None), (2_000, 31, 88, None), (2_250, 200, 85, None),
    ]),
    ("[A] 3 × 2 cores", &[
        (1_000, 6, 31, Some(12)), (1_500, 7, 40, Some(18)), (2_000, 7, 52, Some(25)), (2_500, 9, 63, Some(30)),
        (3_000, 12, 70, Some(37)), (3_500, 16, 80, Some(42)), (4_000, 30, 82, Some(47)), (4_500, 80, 85, Some(50)),
    ]),
    ("[A] 1 × 4 cores", &[
        (500, 4, 14, Some(6)), (1_000, 4, 27, Some(11)), (1_500, 4, 37, Some(16)), (2_000, 5, 45, Some(22)),
        (2_500, 7, 53, Some(27)), (3_000, 8, 63, Some(32)), (3_500, 12, 63, Some(32)), (4_000, 20, 52, Some(25)),
        (4_500, 70, 44, Some(15)),
    ]),
    ("[A] 3 × 4 cores", &[
        (2_000, 5, 27, Some(24)), (3_000, 7, 35, Some(35)), (4_000, 8, 45, Some(46)), (5_000, 9, 50, Some(56)),
        (6_000, 12, 55, Some(64)), (7_000, 20, 60, Some(66)), (8_000, 30, 57, Some(63)),
    ]),
];

/// Tells of both, if a schedule offered anything. `cores`: those of this machine.
pub(super) fn tell(report: &mut Report, steps: &[Step], cores: usize) {
    let offered = |step: &Step| match step.drive {
        Drive::Open { rate, .. } => Some(rate),
        Drive::Closed(_) => None,
    };
    if !steps.iter().any(|step| offered(step).is_some()) {
        return;
    }
    let columns = [
        ("where", Unit::Words),
        (OFFERED, Unit::Count),
        ("p99", Unit::Millis),
        ("application, of its processors", Unit::Share),
        ("database, of its processors", Unit::Share),
        (KEPT_UP_TOLD, Unit::Words),
        ("fell short", Unit::Words),
    ];
    let mut table = Table::new(TITLE, columns);
    for step in steps {
        let Some(rate) = offered(step) else { continue };
        let has_kept_up = step.reached().is_some_and(|reached| reached.has_kept_up());
        // An interrupted step was not carried out to its end, however well it went until then.
        let is_done = step.result.complete && has_kept_up;
        let of = |name| step.cores(name).map(|busy| busy / cores.max(1) as f64);
        let cells = cells![
            "here",
            rate,
            step.result.served().p99,
            of("application"),
            of("database"),
            if is_done { "yes" } else { "no" },
            step.stopped.as_ref(),
        ];
        table.row_of(Whose::Ours, cells);
    }
    let share = |percent: u32| f64::from(percent) / 100.0;
    for (name, published) in PUBLISHED {
        for (rate, p99, application, database) in published {
            let (application, database) = (share(*application), database.map(share));
            let cells = cells![name, *rate, *p99, application, database, "", Cell::Unknown];
            table.row(cells);
        }
    }
    let (x, y) = ((OFFERED, Scale::Log), (&["p99"][..], Scale::Log));
    let chart = Chart::lines("p99 over requests per second", TITLE, x, y);
    let chart = chart.by("where").stop("fell short");
    let chart = chart.limit(BAR_MS, "the author's bar: 50 ms");
    report.chart(chart.note(
        "A cross: the step that ended the ladder. The line across: the author's bar, 50 ms.",
    ));
    report.table(table);
    report.text(
        "[A] is A. Ludwikowski, Reactive Event Sourcing benchmarks, part 1: PostgreSQL, 2022: Akka on 2 or 4 cores and 1 or 3 nodes, the \
         database on 4 cores of its own, steps of five minutes; its p99 of 200 ms is 200 or more. Here application, database and generator share \
         the processors of one machine, whose shares are of all of them. Another machine, so no rate compares; what does is the shape: p99 stays \
         flat, then rises at once, and whether it does so before the processors are used up.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no published step is lost, and each row has a place on the page.
    #[test]
    fn all_published_steps_are_there() {
        let counts = PUBLISHED.map(|(_, steps)| steps.len());
        assert_eq!(counts, [8, 8, 9, 7]);
        for (name, steps) in PUBLISHED {
            let rising = |pair: &[Published]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
            assert!(steps.windows(2).all(rising), "{name}");
        }
        let [_, _, (_, four), _] = PUBLISHED;
        assert_eq!(four[6], (3_500, 12, 63, Some(32)));
    }
}
