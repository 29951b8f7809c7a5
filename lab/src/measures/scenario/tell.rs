//! What is told of a scenario: what was found, what is wrong, a row for each step and each kind of request.

use gesta_load::counters::{self, Stretch, Watch};
use gesta_load::figures::{Outcome, Trouble};
use gesta_load::schedule::Drive;
use gesta_report::numbers::{count, millis};
use gesta_report::{Cell, Chart, Report, Scale, Table, Unit};

use super::args::users_told;
use super::{ScenarioArgs, Step};
use crate::reservation::{LATENCY, latency_cells};
use crate::workload::ladder;

/// Titles of the tables.
const STEPS: &str = "Steps";
const CALLS: &str = "Every kind of request";
const OFFERED: &str = "requests/s offered";
const CORES: [&str; 4] = ["application", "database", "machine", "generator"];

/// Tells of the steps.
pub(super) fn tell(report: &mut Report, args: &ScenarioArgs, calls: &[String], steps: &[Step]) {
    report.finding = finding(args, steps);
    problems(report, args, steps);
    cautions(report, steps);
    let table = table(steps);
    charts(report, args, &table);
    report.table(table);
    report.table(by_call(calls, steps));
    report.table(troubles(calls, steps));
}

fn finding(args: &ScenarioArgs, steps: &[Step]) -> String {
    if let Some(wanted) = args.steps {
        // An interrupted step says nothing about the bar.
        let ended = steps.iter().filter(|step| step.figures.complete);
        let reached: Vec<_> = ended.filter_map(Step::reached).collect();
        return ladder::finding(&reached, wanted, args.stop_p99);
    }
    let Some(step) = steps.last() else {
        return "Nothing was run.".into();
    };
    let passed = count(step.figures.per_second(Outcome::Passed).round());
    let served = step.figures.served();
    let p99 = match served.count {
        0 => "–".to_owned(),
        _ => millis(served.p99),
    };
    match step.drive {
        Drive::Open { rate, .. } => {
            let rate = count(rate);
            format!("Of {rate} requests/s {passed} passed their checks; p99 {p99}.")
        }
        Drive::Closed(users) => {
            let users = users_told(users);
            format!("{passed} requests/s of {users} passed their checks; p99 {p99}.")
        }
    }
}

/// A ladder ends where a service fails or refuses; only its first step must do neither.
fn problems(report: &mut Report, args: &ScenarioArgs, steps: &[Step]) {
    let Some(first) = steps.first() else { return };
    let figures = &first.figures;
    if first.wrong > 0 {
        let all = count(figures.over(|_, _| true).count as f64);
        let allowed = Unit::Share.told(args.failures_max);
        let mut causes: Vec<(&String, &Trouble)> = figures
            .troubles
            .iter()
            .map(|((_, cause), it)| (cause, it))
            .collect();
        causes.sort_by_key(|(_, trouble)| std::cmp::Reverse(trouble.count));
        let most = causes.first().map_or("", |(cause, _)| cause.as_str());
        let wrong = count(first.wrong as f64);
        report.problem(format!(
            "{}: of {all} requests {wrong} failed their checks or were not answered ({allowed} may); most often: {most}",
            first.name
        ));
    }
    if figures.complete && figures.ended[Outcome::Passed as usize] == 0 {
        report.problem(format!("{}: no request passed its checks", first.name));
    }
    if figures.is_mostly_refused() {
        let refused = count(of(first, Outcome::Refused) as f64);
        report.problem(format!(
            "{}: most requests were refused as overloaded, {refused} in all",
            first.name
        ));
    }
}

fn cautions(report: &mut Report, steps: &[Step]) {
    for step in steps {
        let (name, figures) = (&step.name, &step.figures);
        let lag = matches!(step.drive, Drive::Open { .. }).then(|| figures.lag.percentiles().p99);
        if let Some(why) = step.cpu.limit(lag) {
            report.caution(format!(
                "{name}: {why}: the figures are those of the generator."
            ));
        }
        let refused = of(step, Outcome::Refused);
        if refused > 0 {
            let refused = count(refused as f64);
            report.caution(format!(
                "{name}: {refused} requests were refused as overloaded."
            ));
        }
        let bad = of(step, Outcome::Wrong) + of(step, Outcome::Failed);
        if bad > 0 {
            let bad = count(bad as f64);
            report.caution(format!(
                "{name}: {bad} requests failed their checks or were not answered."
            ));
        }
    }
}

/// Requests of the measured part that ended so.
fn of(step: &Step, outcome: Outcome) -> u64 {
    step.figures.over(|_, found| found == outcome).count
}

fn table(steps: &[Step]) -> Table {
    let p99 = |latencies: &gesta_report::histogram::Latencies| latencies.percentiles().p99;
    let table = Table::of(STEPS, steps)
        .column("step", Unit::Words, |step| &step.name)
        .column(OFFERED, Unit::Count, |step| match step.drive {
            Drive::Open { rate, .. } => Some(rate),
            Drive::Closed(_) => None,
        })
        .column("passed/s", Unit::Count, |step| {
            step.figures.per_second(Outcome::Passed)
        })
        .columns(&LATENCY, |step| latency_cells(&step.figures.served()))
        .column("flows done", Unit::Count, |step| step.figures.passes)
        .column("refused", Unit::Count, |step| of(step, Outcome::Refused))
        .column("failed a check", Unit::Count, |step| {
            of(step, Outcome::Wrong)
        })
        .column("not answered", Unit::Count, |step| {
            of(step, Outcome::Failed)
        })
        .column("unsent", Unit::Count, |step| {
            step.figures.unsent.percentiles().count
        })
        .column("application", Unit::Cores, |step| {
            step.cpu.of("application")
        })
        .column("database", Unit::Cores, |step| step.cpu.of("database"))
        .column("machine", Unit::Cores, |step| {
            step.cpu.machine.machine_cores
        })
        .column("generator", Unit::Cores, |step| step.cpu.own)
        .column("µs per request", Unit::Count, |step| {
            let sent = step.figures.sent;
            (sent > 0).then(|| step.cpu.own * step.figures.seconds * 1e6 / sent as f64)
        })
        .column("generator late (p99)", Unit::Millis, |step| {
            p99(&step.figures.lag)
        })
        .column("wait for a user (p99)", Unit::Millis, |step| {
            p99(&step.figures.user_wait)
        })
        .column("wait for a connection (p99)", Unit::Millis, |step| {
            p99(&step.figures.connection_wait)
        })
        .column("ended the ladder", Unit::Words, |step| {
            step.stopped.as_ref()
        });
    table.table()
}

/// Tells what the database did in each step.
pub(super) fn tell_of_database(report: &mut Report, steps: &[Step], database: &Watch) {
    let counted = steps.iter().filter_map(|step| {
        Some(Stretch {
            name: step.name.clone(),
            done_per_second: step.figures.per_second(Outcome::Passed),
            figures: step.cpu.database.as_ref()?,
        })
    });
    let counted: Vec<Stretch<'_>> = counted.collect();
    counters::tell(report, "request", &counted, database.method());
}

fn charts(report: &mut Report, args: &ScenarioArgs, table: &Table) {
    if args.steps.is_none() {
        let chart = Chart::bars(
            "p99 of each kind of request that passed",
            CALLS,
            "request",
            "p99",
        );
        report.chart(chart.only("outcome", "passed"));
        return;
    }
    let latencies = ["p50", "p99", "p99.9"];
    let title = "Latency at each rate, from the intended start";
    let (x, y) = ((OFFERED, Scale::Linear), (&latencies[..], Scale::Log));
    let bar = args.stop_p99.as_secs_f64() * 1_000.0;
    let chart = Chart::lines(title, STEPS, x, y)
        .y_name("latency")
        .stop("ended the ladder");
    let note = format!(
        "The line across: the bar of p99, {}. A cross: the step that ended the ladder.",
        millis(bar)
    );
    report.chart(chart.limit(bar, "the bar of p99").note(note));
    let known = |name: &&&str| {
        let column = table.column(name);
        let mut rows = table.rows.iter();
        column.is_some_and(|at| rows.any(|row| row.cells[at] != Cell::Unknown))
    };
    let cores: Vec<&str> = CORES.iter().filter(known).copied().collect();
    let (x, y) = ((OFFERED, Scale::Linear), (&cores[..], Scale::Linear));
    report.chart(Chart::lines("Cores that were busy", STEPS, x, y).y_name("cores"));
}

fn by_call(calls: &[String], steps: &[Step]) -> Table {
    let mut rows = Vec::new();
    for step in steps {
        for (call, name) in calls.iter().enumerate() {
            for (outcome, told) in Outcome::ALL {
                let latency = step.figures.over(|c, o| (c, o) == (call, outcome));
                rows.push((&step.name, name, told, latency));
            }
        }
    }
    rows.retain(|(.., latency)| latency.count > 0);
    let table = Table::of(CALLS, &rows)
        .column("request", Unit::Words, |(_, name, ..)| *name)
        .column("step", Unit::Words, |(step, ..)| *step)
        .column("outcome", Unit::Words, |(_, _, outcome, _)| *outcome)
        .columns(&LATENCY, |(.., latency)| latency_cells(latency));
    let mut table = table.table();
    table.folded = steps.len() > 1;
    table
}

fn troubles(calls: &[String], steps: &[Step]) -> Table {
    let rows = steps.iter().flat_map(|step| {
        let troubles = step.figures.troubles.iter();
        troubles.map(move |((call, cause), trouble)| (&step.name, calls.get(*call), cause, trouble))
    });
    let rows: Vec<_> = rows.collect();
    Table::of("What went wrong", &rows)
        .column("request", Unit::Words, |(_, call, ..)| *call)
        .column("step", Unit::Words, |(step, ..)| *step)
        .column("cause", Unit::Words, |(_, _, cause, _)| *cause)
        .column("times", Unit::Count, |(.., trouble)| trouble.count)
        .column("the first", Unit::Words, |(.., trouble)| &trouble.example)
        .table()
}
