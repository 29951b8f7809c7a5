//! `quick`: what to plan for on this database.

use super::chart::{Axis, LineChart, Mark, Point, Role, Scale, Series};
use super::html::{Html, el};
use super::lines::{Line, Lines};
use super::look::Look;
use super::numbers::{Unit, bytes, capitalised, count, millis};
use super::section::{Section, bullets, newest_first, phase_tip, runs, side_by_side, sizes};
use super::table::{Cell, Table, cores, counted, details, figure, millis as millis_cell};

/// A step of the open loop that reached less than this share of what was offered did not keep up.
const KEPT_UP: f64 = 0.97;

pub(super) fn section(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("quick"));
    let newest = all.first()?;
    Some(Section {
        lead: Some(lead(newest)),
        id: "quick",
        title: "What this database carries",
        finding: finding(newest),
        is_result: newest.is_valid(),
        body: runs(&all, draw),
    })
}

/// What was reached.
fn finding(line: &Line) -> String {
    let result = line.result();
    let peak = result.get("closed").items().max_by(|a, b| {
        a.number_or_0("events_per_second")
            .total_cmp(&b.number_or_0("events_per_second"))
    });
    let kept = result.get("open").items().filter(|step| has_kept_up(*step));
    let kept = kept.max_by(|a, b| a.number_or_0("rate").total_cmp(&b.number_or_0("rate")));
    let mut told = Vec::new();
    if let Some(peak) = peak {
        told.push(format!(
            "callers that wait for their answers got {} events/s stored at most ({} of them, p99 {})",
            count(peak.number_or_0("events_per_second")),
            count(peak.number_or_0("connections")),
            millis(peak.number_or_0("latency_ms.p99")),
        ));
    }
    if let Some(kept) = kept {
        told.push(format!(
            "of the steady loads, {} events/s was the highest that was kept up with (p99 {})",
            count(kept.number_or_0("rate")),
            millis(kept.number_or_0("latency_ms.p99")),
        ));
    }
    match told.len() {
        0 => "The run has no figures.".into(),
        _ => format!("{}.", capitalised(&told.join("; "))),
    }
}

fn has_kept_up(step: Look<'_>) -> bool {
    step.number_or_0("events_per_second") >= step.number_or_0("rate") * KEPT_UP
        && step.get("latency_ms.p99").is_there()
}

/// What to plan for, and the limit.
fn lead(line: &Line) -> String {
    let verdict = line.result().get("verdict");
    let told: Vec<&str> = verdict
        .get("sentences")
        .items()
        .filter_map(Look::text)
        .collect();
    let limit = verdict.text_or_empty("limit").trim_end_matches('.');
    let said = |what: &str| told.first().is_some_and(|first| first.contains(what));
    let plan = verdict.get("plan_events_per_second").number();
    let first = match (told.first(), plan) {
        (Some(first), _) if said("plan") => (*first).to_owned(),
        (_, Some(plan)) => {
            let of = sizes(line.workload().get("sizes"));
            let of = of.map(|size| format!(" of {size}")).unwrap_or_default();
            format!("On this database plan for {} events/s{of}.", count(plan))
        }
        (Some(first), None) => (*first).to_owned(),
        (None, None) => "No load was found that this database carries well.".into(),
    };
    if limit.is_empty() || told.iter().any(|sentence| sentence.contains(limit)) && told.len() > 1 {
        return match told.get(1) {
            Some(second) => format!("{first} {second}"),
            None => first,
        };
    }
    format!("{first} The limit is {limit}.")
}

fn draw(line: &Line) -> Html {
    let result = line.result();
    let told = result
        .get("verdict.sentences")
        .items()
        .filter_map(Look::text);
    let mut all = cards(line);
    all.push(bullets(told.skip(2).map(str::to_owned)));
    all.push(side_by_side([throughput(result), latency(result)]));
    all.push(details("The figures", tables(result)));
    all
}

fn cards(line: &Line) -> Html {
    let result = line.result();
    let best_commands = result
        .get("commands")
        .items()
        .filter_map(|one| one.get("commands_per_second").number())
        .reduce(f64::max);
    let plan = result.get("verdict.plan_events_per_second").number();
    let number = |path: &str| result.get(path).number();
    let cards = [
        ("plan for", plan.map(count), "events/s"),
        ("size of an event", sizes(line.workload().get("sizes")), ""),
        (
            "commits of one bare INSERT",
            number("bare_commits_per_second").map(count),
            "a second, one after the other, without Gesta",
        ),
        (
            "reading from the beginning",
            number("read_events_per_second").map(count),
            "events/s",
        ),
        (
            "loading streams",
            number("streams_read_per_second").map(count),
            "streams/s, chosen at random",
        ),
        (
            "delivery to a live subscriber",
            number("delivery_ms.p99").map(millis),
            "or less after the acknowledgement, for 99 of 100 events",
        ),
        (
            "commands to one entity",
            best_commands.map(count),
            "a second, each stored before it is answered",
        ),
        (
            "disk per event",
            number("disk_bytes_per_event").map(bytes),
            "with its indexes",
        ),
    ];
    let cards = cards.into_iter().filter_map(|(name, value, note)| {
        let value = value?;
        let card = el("div")
            .class("card")
            .with(el("dt").with(name))
            .with(el("dd").class("value").with(value));
        Some(if note.is_empty() {
            card
        } else {
            card.with(el("dd").with(note))
        })
    });
    el("dl").class("cards").all(cards).into()
}

fn throughput(result: Look<'_>) -> Html {
    let phases: Vec<Look<'_>> = result.get("closed").items().collect();
    if phases.is_empty() {
        return Html::default();
    }
    let points = phases.iter().map(|phase| {
        let callers = phase.number_or_0("connections");
        let rate = phase.number_or_0("events_per_second");
        Point::new(
            callers,
            rate,
            format!("{} callers: {}", count(callers), phase_tip(*phase)),
        )
    });
    LineChart {
        title: "Events per second over callers".into(),
        description: format!(
            "Each caller appends an event, waits until it is stored, and appends the next. {}.",
            told(
                &phases,
                "connections",
                "callers",
                "events_per_second",
                count
            )
        ),
        x: Axis::new("callers at the same time", Scale::Log, Unit::Count),
        y: Axis::new("events/s", Scale::Linear, Unit::Count),
        series: vec![Series::new("events/s", Role::Ours, points.collect())],
        limits: Vec::new(),
        marks: Vec::new(),
        note: Some(
            "Each caller waits for its answer before it appends again (closed loop).".into(),
        ),
    }
    .draw()
}

fn latency(result: Look<'_>) -> Html {
    let steps: Vec<Look<'_>> = result.get("open").items().collect();
    if steps.is_empty() {
        return Html::default();
    }
    let percentiles = [
        ("half (p50)", "p50", Role::Other(0)),
        ("99 % (p99)", "p99", Role::Ours),
        ("99.9 % (p99.9)", "p999", Role::Other(1)),
    ];
    let series = percentiles.map(|(name, member, role)| {
        let points = steps.iter().filter_map(|step| {
            let latency = step.get("latency_ms").get(member).number()?;
            let rate = step.number_or_0("rate");
            let reached = step.number_or_0("events_per_second");
            let tip = format!("{} at {} events/s offered", millis(latency), count(rate));
            if !has_kept_up(*step) {
                let tip = format!("{tip}; only {} were stored", count(reached));
                return Some(Point::new(rate, latency, tip).stop());
            }
            Some(Point::new(rate, latency, tip))
        });
        Series::new(name, role, points.collect())
    });
    let plan = result.get("verdict.plan_events_per_second").number();
    let marks = plan.map(|plan| Mark::new(plan, format!("plan for {} events/s", count(plan))));
    LineChart {
        title: "Time until an append is stored, over the load".into(),
        description: format!(
            "Appends come by a schedule, whether those before are answered or not. 99th percentile: {}.",
            told(&steps, "rate", "events/s", "latency_ms.p99", millis)
        ),
        x: Axis::new("events/s offered", Scale::Linear, Unit::Count),
        y: Axis::new("time until stored", Scale::Log, Unit::Millis),
        series: series.to_vec(),
        limits: Vec::new(),
        marks: marks.into_iter().collect(),
        note: Some(
            "Appends come by a schedule and wait for nobody (open loop); time counts from when each was due. \
             The arrow is the rate to plan for; a cross marks a load that was not kept up with."
                .into(),
        ),
    }
    .draw()
}

/// Pairs of figures as a sentence.
pub(super) fn told(
    of: &[Look<'_>],
    x: &str,
    x_name: &str,
    y: &str,
    tell: impl Fn(f64) -> String,
) -> String {
    let pairs = of.iter().map(|one| {
        format!(
            "{} {x_name}: {}",
            count(one.number_or_0(x)),
            tell(one.number_or_0(y))
        )
    });
    pairs.collect::<Vec<_>>().join("; ")
}

fn tables(result: Look<'_>) -> Html {
    let mut closed = Table::new(
        "Each caller waits for its answer (closed loop)",
        &[
            "callers",
            "events/s",
            "p50",
            "p99",
            "p99.9",
            "longest",
            "cores busy",
        ],
    );
    for phase in result.get("closed").items() {
        let mut cells = vec![counted(phase.get("connections"))];
        cells.extend(load_cells(phase));
        closed.row(cells);
    }
    let mut open = Table::new(
        "Appends come by a schedule (open loop)",
        &[
            "events/s offered",
            "stored",
            "p50",
            "p99",
            "p99.9",
            "longest",
            "cores busy",
            "generator late (p99)",
        ],
    );
    for step in result.get("open").items() {
        let mut cells = vec![counted(step.get("rate"))];
        cells.extend(load_cells(step));
        cells.push(millis_cell(step.get("lag_ms.p99")));
        open.row(cells);
    }
    let mut commands = Table::new(
        "Commands to one entity",
        &["callers", "commands/s", "p50", "p99"],
    );
    for one in result.get("commands").items() {
        commands.row(vec![
            counted(one.get("callers")),
            counted(one.get("commands_per_second")),
            millis_cell(one.get("latency_ms.p50")),
            millis_cell(one.get("latency_ms.p99")),
        ]);
    }
    let delivery = result.get("delivery_ms");
    let mut other = Table::new(
        "Delivery to a live subscriber",
        &["events", "p50", "p99", "p99.9"],
    );
    if delivery.get("p99").is_there() {
        other.row(vec![
            figure(count(delivery.number_or_0("count"))),
            millis_cell(delivery.get("p50")),
            millis_cell(delivery.get("p99")),
            millis_cell(delivery.get("p999")),
        ]);
    }
    [closed, open, commands, other]
        .iter()
        .map(Table::draw)
        .collect()
}

fn load_cells(phase: Look<'_>) -> [Cell; 6] {
    [
        counted(phase.get("events_per_second")),
        millis_cell(phase.get("latency_ms.p50")),
        millis_cell(phase.get("latency_ms.p99")),
        millis_cell(phase.get("latency_ms.p999")),
        millis_cell(phase.get("latency_ms.max")),
        cores(phase.get("cpu.machine_cores")),
    ]
}
