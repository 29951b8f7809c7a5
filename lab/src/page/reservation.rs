//! `reservation`: seats of a cinema over HTTP, beside the published steps.

use super::chart::{Axis, LineChart, Point, Role, Scale, Series};
use super::html::Html;
use super::lines::{Line, Lines};
use super::look::Look;
use super::numbers::{Unit, count, millis, percent};
use super::section::{Section, newest_first, paragraph, started};
use super::table::{
    Cell, Emphasis, Table, cores, counted, details, figure, millis as millis_cell, share, words,
};

/// More runs than this are folded away.
const OPEN_MAX: usize = 12;

/// Most runs that are drawn: the newest.
const SERIES_MAX: usize = 5;

/// Published steps [A]: application, requests per second and p99 in milliseconds.
pub(super) const PUBLISHED: [(&str, &[(f64, f64)]); 4] = [
    (
        "[A] 1 × 2 cores",
        &[
            (500.0, 5.0),
            (750.0, 5.0),
            (1_000.0, 5.0),
            (1_250.0, 6.0),
            (1_500.0, 7.0),
            (1_750.0, 14.0),
            (2_000.0, 31.0),
            (2_250.0, 200.0),
        ],
    ),
    (
        "[A] 3 × 2 cores",
        &[
            (1_000.0, 6.0),
            (1_500.0, 7.0),
            (2_000.0, 7.0),
            (2_500.0, 9.0),
            (3_000.0, 12.0),
            (3_500.0, 16.0),
            (4_000.0, 30.0),
            (4_500.0, 80.0),
        ],
    ),
    (
        "[A] 1 × 4 cores",
        &[
            (500.0, 4.0),
            (1_000.0, 4.0),
            (1_500.0, 4.0),
            (2_000.0, 5.0),
            (2_500.0, 7.0),
            (3_000.0, 8.0),
            (3_500.0, 12.0),
            (4_000.0, 20.0),
            (4_500.0, 70.0),
        ],
    ),
    (
        "[A] 3 × 4 cores",
        &[
            (2_000.0, 5.0),
            (3_000.0, 7.0),
            (4_000.0, 8.0),
            (5_000.0, 9.0),
            (6_000.0, 12.0),
            (7_000.0, 20.0),
            (8_000.0, 30.0),
        ],
    ),
];

/// A step of which less than this share was accepted did not keep up.
const KEPT_UP: f64 = 0.97;
/// The author's bar for a whole request.
const BAR_MS: f64 = 50.0;

pub(super) fn section(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("reservation"));
    if all.is_empty() {
        return None;
    }
    let mut body = chart(&all);
    body.push(paragraph(
        "The faint lines are the published steps of the reference application [A]: another machine, another language and another database \
         version, so only the shapes carry over, not the numbers.",
    ));
    body.push(overload(&all));
    let table = steps_table(&all);
    let count = all.iter().map(|line| steps(line).count()).sum::<usize>();
    body.push(if count > OPEN_MAX {
        details("Every step", table)
    } else {
        table
    });
    Some(Section {
        lead: None,
        id: "reservation",
        title: "Cinema over HTTP",
        finding: finding(&all),
        is_result: all.iter().any(|line| line.is_valid()),
        body,
    })
}

fn steps(line: &Line) -> impl Iterator<Item = Look<'_>> {
    line.result().get("steps").items()
}

/// Requests a second that a step offered by a schedule; none in a closed loop.
fn offered(step: Look<'_>) -> Option<f64> {
    let open = step.get("drive.open.rate").number();
    open.or_else(|| step.get("drive.arrivals").number())
}

/// The latency of all requests, or of those that were accepted.
fn latency(step: Look<'_>) -> Look<'_> {
    let all = step.get("latency_ms.all");
    if all.is_there() {
        all
    } else {
        step.get("latency_ms.accepted")
    }
}

/// True if what a schedule offered was accepted.
fn has_kept_up(step: Look<'_>) -> bool {
    let offered = offered(step).unwrap_or(f64::MAX);
    step.number_or_0("accepted_per_second") >= offered * KEPT_UP
        && step.number_or_0("unsent") == 0.0
}

/// The highest rate with p99 up to the bar: requests a second and p99.
pub(super) fn highest(lines: &[&Line]) -> Option<(f64, f64)> {
    let valid = lines.iter().filter(|line| line.is_valid());
    let steps = valid.flat_map(|line| steps(line));
    let good = steps.filter(|step| {
        let p99 = latency(*step).get("p99").number();
        has_kept_up(*step) && p99.is_some_and(|p99| p99 <= BAR_MS)
    });
    let of = |step: Look<'_>| {
        (
            step.number_or_0("accepted_per_second"),
            latency(step).number_or_0("p99"),
        )
    };
    good.map(of).max_by(|a, b| a.0.total_cmp(&b.0))
}

fn finding(lines: &[&Line]) -> String {
    if let Some((rate, p99)) = highest(lines) {
        return format!(
            "{} requests/s, offered by a schedule, were answered with p99 {}; the bar is {} for a whole request.",
            count(rate),
            millis(p99),
            millis(BAR_MS)
        );
    }
    let valid = lines.iter().filter(|line| line.is_valid());
    let closed = valid.flat_map(|line| steps(line)).max_by(|a, b| {
        a.number_or_0("accepted_per_second")
            .total_cmp(&b.number_or_0("accepted_per_second"))
    });
    match closed {
        Some(step) => format!(
            "Up to {} requests/s were answered, p99 {}.",
            count(step.number_or_0("accepted_per_second")),
            millis(latency(step).number_or_0("p99"))
        ),
        None => "No step of these runs is a result.".into(),
    }
}

fn chart(lines: &[&Line]) -> Html {
    let mut series: Vec<Series> = PUBLISHED
        .iter()
        .enumerate()
        .map(|(number, (name, points))| {
            let points = points.iter().map(|(rate, p99)| {
                Point::new(
                    *rate,
                    *p99,
                    format!("{} requests/s: {}", count(*rate), millis(*p99)),
                )
            });
            Series::new(*name, Role::Published(number), points.collect())
        })
        .collect();
    let mut told = Vec::new();
    // Overload is told by its own table.
    let drawn = lines
        .iter()
        .filter(|line| line.is_valid() && !line.result().get("overload").is_there());
    for (number, line) in drawn.take(SERIES_MAX).enumerate() {
        let points = steps(line).filter_map(|step| {
            let (rate, p99) = (offered(step)?, latency(step).get("p99").number()?);
            let tip = format!("{} requests/s: {}", count(rate), millis(p99));
            told.push(tip.clone());
            let point = Point::new(rate, p99, tip);
            Some(if has_kept_up(step) {
                point
            } else {
                point.stop()
            })
        });
        let points: Vec<Point> = points.collect();
        if points.is_empty() {
            continue;
        }
        let role = if series.len() == PUBLISHED.len() {
            Role::Ours
        } else {
            Role::Other(number)
        };
        series.push(Series::new(
            format!("here, {}", started(line)),
            role,
            points,
        ));
    }
    if series.len() == PUBLISHED.len() {
        return Html::default();
    }
    LineChart {
        title: "p99 over requests per second".into(),
        description: format!("Here: {}.", told.join("; ")),
        x: Axis::new("requests/s offered", Scale::Log, Unit::Count),
        y: Axis::new(
            "99 of 100 requests answered within",
            Scale::Log,
            Unit::Millis,
        ),
        series,
        limits: vec![(BAR_MS, "the author's bar: 50 ms".into())],
        marks: Vec::new(),
        note: Some("A cross: fewer were accepted than were offered.".into()),
    }
    .draw()
}

fn overload(lines: &[&Line]) -> Html {
    let mut table = Table::new(
        "More offered than can be carried",
        &[
            "run",
            "accepted/s",
            "of the peak",
            "refusals p50",
            "refusals p99",
            "reads p50",
            "reads p99",
            "accepted p99",
            "generator late (p99)",
            "recovered after",
        ],
    );
    for line in lines {
        let over = line.result().get("overload");
        if !over.is_there() {
            continue;
        }
        let recovered = over.get("recovered_after_ms");
        table.styled(
            emphasis(line),
            vec![
                words(started(line)),
                counted(over.get("goodput_per_second")),
                share(over.get("goodput_ratio")),
                millis_cell(over.get("refused_ms.p50")),
                millis_cell(over.get("refused_ms.p99")),
                millis_cell(over.get("reads_ms.p50")),
                millis_cell(over.get("reads_ms.p99")),
                millis_cell(over.get("accepted_ms.p99")),
                millis_cell(over.get("lag_ms.p99")),
                if recovered.is_there() {
                    millis_cell(recovered)
                } else {
                    words("not within the run")
                },
            ],
        );
    }
    table.draw()
}

fn emphasis(line: &Line) -> Emphasis {
    if line.is_valid() {
        Emphasis::Plain
    } else {
        Emphasis::Bad
    }
}

/// How the load came, in words.
fn drive(step: Look<'_>) -> String {
    let drive = step.get("drive");
    if let Some(users) = drive.get("closed").number() {
        return format!("{} users, each waits for its answer", count(users));
    }
    if let Some(rate) = drive.get("open.rate").number() {
        let users = drive.get("open.users").number();
        let users = users.map(|users| format!(" of {} users", count(users)));
        return format!(
            "{}/s by a schedule{}",
            count(rate),
            users.unwrap_or_default()
        );
    }
    match drive.get("arrivals").number() {
        Some(rate) => format!("{} new users/s", count(rate)),
        None => step.text_or_empty("name").to_owned(),
    }
}

fn steps_table(lines: &[&Line]) -> Html {
    let mut table = Table::new(
        "Steps",
        &[
            "run",
            "scenario",
            "load",
            "accepted/s",
            "p50",
            "p99",
            "p99.9",
            "refused",
            "failed",
            "unsent",
            "application, cores",
            "database, cores",
            "generator, cores",
            "generator",
            "check",
        ],
    );
    for line in lines {
        let wrong = if line.is_valid() {
            "every answer was true"
        } else {
            "no result"
        };
        let scenario = line.workload().text_or_empty("scenario");
        for step in steps(line) {
            let latency = latency(step);
            let cell = |path: &str| -> Cell { counted(step.get(path)) };
            table.styled(
                emphasis(line),
                vec![
                    words(started(line)),
                    words(scenario),
                    words(drive(step)),
                    cell("accepted_per_second"),
                    millis_cell(latency.get("p50")),
                    millis_cell(latency.get("p99")),
                    millis_cell(latency.get("p999")),
                    cell("answered.refused"),
                    cell("answered.failed"),
                    cell("unsent"),
                    cores(step.get("cpu.application_cores")),
                    cores(step.get("cpu.database_cores")),
                    cores(step.get("cpu.generator_cores")),
                    words(step.text_or_empty("generator_limit")),
                    words(wrong),
                ],
            );
        }
    }
    table.draw()
}

/// `reservation-kill`: the cinema killed under load.
pub(super) fn kills(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("reservation-kill"));
    if all.is_empty() {
        return None;
    }
    let sum = |path: &str| {
        all.iter()
            .map(|line| line.result().number_or_0(path))
            .sum::<f64>()
    };
    let (lost, twice) = (
        sum("check.answers.lost") + sum("check.events.lost"),
        sum("check.answers.held_twice") + sum("check.events.held_twice"),
    );
    let mut table = Table::new(
        "Killed under load",
        &[
            "run",
            "database",
            "kills",
            "acknowledged",
            "lost",
            "held twice",
            "stale answers",
            "ready again p50",
            "longest",
        ],
    );
    for line in &all {
        let result = line.result();
        table.styled(
            emphasis(line),
            vec![
                words(started(line)),
                words(result.get("database").told()),
                counted(result.get("kills")),
                counted(result.get("check.acknowledged")),
                figure(count(
                    result.number_or_0("check.answers.lost")
                        + result.number_or_0("check.events.lost"),
                )),
                counted(result.get("check.answers.held_twice")),
                counted(result.get("check.answers.stale")),
                millis_cell(result.get("restart_ms.p50")),
                millis_cell(result.get("restart_ms.max")),
            ],
        );
    }
    Some(Section {
        lead: None,
        id: "reservation-kill",
        title: "The cinema killed under load",
        finding: format!(
            "Killed {} times under load: of {} acknowledged requests {} was lost, and {} seat was held twice.",
            count(sum("kills")),
            count(sum("check.acknowledged")),
            none(lost, "none"),
            none(twice, "no")
        ),
        is_result: all.iter().all(|line| line.is_valid()),
        body: table.draw(),
    })
}

fn none(number: f64, word: &str) -> String {
    if number == 0.0 {
        word.to_owned()
    } else {
        count(number)
    }
}

/// Share of the peak under overload, for others that quote it.
pub(super) fn goodput(lines: &[&Line]) -> Option<String> {
    let over = lines.iter().filter(|line| line.is_valid());
    let share = over.filter_map(|line| line.result().get("overload.goodput_ratio").number());
    share.reduce(f64::max).map(percent)
}
