//! Measurements that are told by a table each: appends, reads, subscribers, servers, faults.

use super::lines::{Line, Lines};
use super::look::Look;
use super::numbers::{bytes, count, list, millis, percent, seconds, several};
use super::section::{Section, engine, newest_first, started};
use super::table::{
    Cell, Emphasis, Table, cores, counted, details, figure, millis as millis_cell, share, words,
};

/// More rows than this are folded away.
const OPEN_MAX: usize = 10;

/// A kind of line and how it is told.
struct Kind {
    kind: &'static str,
    title: &'static str,
    heads: &'static [&'static str],
    rows: fn(&Line) -> Vec<Vec<Cell>>,
    finding: fn(&[&Line]) -> Option<String>,
}

const KINDS: [Kind; 9] = [
    Kind {
        kind: "append",
        title: "Appends",
        heads: &[
            "load",
            "events/s",
            "appends/s",
            "p50",
            "p99",
            "p99.9",
            "longest",
            "events per batch",
            "cores busy",
        ],
        rows: |line| vec![append_row(line)],
        finding: |lines| {
            let best = best(lines, "events_per_second")?;
            Some(format!(
                "Up to {} events/s were stored ({}), p99 {}.",
                count(best.result().number_or_0("events_per_second")),
                load(best),
                millis(best.result().number_or_0("latency_ms.p99"))
            ))
        },
    },
    Kind {
        kind: "compare",
        title: "Gesta against the bare database",
        heads: &[
            "load",
            "against",
            "Gesta, events/s",
            "the other, events/s",
            "ratio",
            "ratios of the rounds",
        ],
        rows: |line| vec![compare_row(line)],
        finding: |lines| {
            let ratios = lines
                .iter()
                .filter_map(|line| line.result().get("ratio_median").number());
            let (least, most) = super::section::range(&ratios.collect::<Vec<_>>())?;
            Some(if most > least {
                format!(
                    "Gesta reaches {} to {} of what it was compared with.",
                    percent(least),
                    percent(most)
                )
            } else {
                format!(
                    "Gesta reaches {} of what it was compared with.",
                    percent(most)
                )
            })
        },
    },
    Kind {
        kind: "bound",
        title: "The bare database",
        heads: &[
            "statement",
            "events/s",
            "p50",
            "p99",
            "longest",
            "cores busy",
        ],
        rows: |line| {
            let result = line.result();
            vec![vec![
                words(form(line.workload().get("form"))),
                counted(result.get("events_per_second")),
                millis_cell(result.get("latency_ms.p50")),
                millis_cell(result.get("latency_ms.p99")),
                millis_cell(result.get("latency_ms.max")),
                cores(result.get("cpu.machine_cores")),
            ]]
        },
        finding: |lines| {
            let best = best(lines, "events_per_second")?;
            let rate = best.result().number_or_0("events_per_second");
            Some(format!(
                "The same rows by the bare statement on one connection, without Gesta: up to {} events/s.",
                count(rate)
            ))
        },
    },
    Kind {
        kind: "read",
        title: "Reading",
        heads: &["what", "events/s", "page p50", "page p99", "cores busy"],
        rows: read_rows,
        finding: |lines| {
            let best = best(lines, "whole_log.events_per_second_median")?;
            Some(format!(
                "The whole log is read at up to {} events/s, single streams at {}.",
                count(
                    best.result()
                        .number_or_0("whole_log.events_per_second_median")
                ),
                count(
                    best.result()
                        .number_or_0("random_streams.events_per_second_median")
                )
            ))
        },
    },
    Kind {
        kind: "subscribers",
        title: "Subscribers",
        heads: &[
            "load",
            "phase",
            "took",
            "queries",
            "of them appends",
            "database time",
            "last had all after",
            "faults",
        ],
        rows: subscriber_rows,
        finding: subscribers_finding,
    },
    Kind {
        kind: "servers",
        title: "Several servers on one database",
        heads: &[
            "load",
            "together, events/s",
            "one alone, events/s",
            "shares",
            "p99 of each",
            "a server starved",
        ],
        rows: |line| vec![servers_row(line)],
        finding: |lines| {
            let line = lines.first()?;
            let shares: Vec<String> = line
                .result()
                .get("shares")
                .numbers()
                .into_iter()
                .map(percent)
                .collect();
            Some(format!(
                "Servers on one database stored {} events/s together ({}), one alone {}.",
                count(line.result().number_or_0("events_per_second_total")),
                list(&shares),
                count(line.result().number_or_0("events_per_second_alone"))
            ))
        },
    },
    Kind {
        kind: "snapshot",
        title: "An old transaction stays open",
        heads: &[
            "load",
            "open for",
            "before, events/s",
            "last slice, events/s",
            "last slice of before",
            "median of before",
        ],
        rows: |line| {
            let result = line.result();
            vec![vec![
                words(load(line)),
                result
                    .get("held_seconds")
                    .number()
                    .map_or(Cell::Unknown, |held| figure(seconds(held))),
                rate(result.get("events_per_second_free").numbers().first()),
                rate(result.get("events_per_second_held").numbers().last()),
                share(result.get("last_slice_share")),
                share(result.get("median_share")),
            ]]
        },
        finding: |lines| {
            let result = lines.first()?.result();
            Some(format!(
                "With another session's transaction open for {}, the last slice still had {} of the rate before.",
                seconds(result.number_or_0("held_seconds")),
                percent(result.number_or_0("last_slice_share"))
            ))
        },
    },
    Kind {
        kind: "http",
        title: "Appends over HTTP",
        heads: &[
            "connections",
            "requests/s",
            "p50",
            "p99",
            "p99.9",
            "cores busy",
            "refused",
            "stored",
        ],
        rows: http_rows,
        finding: |lines| {
            let all = lines.iter().flat_map(|line| line.result().members());
            let best = all.max_by(|a, b| {
                let rate = |one: &Look<'_>| one.number_or_0("requests_per_second_median");
                rate(&a.1).total_cmp(&rate(&b.1))
            })?;
            Some(format!(
                "Up to {} requests/s over HTTP, with {} connections and p99 {}.",
                count(best.1.number_or_0("requests_per_second_median")),
                best.0,
                millis(best.1.number_or_0("p99_ms_median"))
            ))
        },
    },
    Kind {
        kind: "torture",
        title: "Faults, round by round",
        heads: &[
            "fault",
            "database",
            "rounds",
            "appends go on after (p50)",
            "longest",
        ],
        rows: torture_rows,
        finding: torture_finding,
    },
];

/// Kinds that this module tells.
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.kind)
}

/// A section per kind that has lines.
pub(super) fn sections(lines: &Lines) -> Vec<Section> {
    KINDS
        .iter()
        .filter_map(|kind| section(kind, &newest_first(lines.of(kind.kind))))
        .collect()
}

fn section(kind: &Kind, lines: &[&Line]) -> Option<Section> {
    if lines.is_empty() {
        return None;
    }
    let mut heads = vec!["run", "database"];
    heads.extend(kind.heads);
    let mut table = Table::new(kind.title, &heads);
    for line in lines {
        for cells in (kind.rows)(line) {
            let mut all = vec![words(started(line)), words(place(line))];
            all.extend(cells);
            let emphasis = if line.is_valid() {
                Emphasis::Plain
            } else {
                Emphasis::Bad
            };
            table.styled(emphasis, all);
        }
    }
    let valid: Vec<&Line> = lines
        .iter()
        .filter(|line| line.is_valid())
        .copied()
        .collect();
    let finding = (kind.finding)(&valid);
    Some(Section {
        lead: None,
        id: kind.kind,
        title: kind.title,
        finding: finding.unwrap_or_else(|| "None of these runs is a result.".into()),
        is_result: !valid.is_empty(),
        body: if table.len() > OPEN_MAX {
            details("The figures", table.draw())
        } else {
            table.draw()
        },
    })
}

/// The database and how far it is.
fn place(line: &Line) -> String {
    if !line.get("store").is_there() {
        return String::new();
    }
    let away = line
        .get("store.round_trip_ms")
        .number()
        .filter(|away| *away > 0.0);
    let away = away.map(|away| format!(", {} away", millis(away)));
    engine(line) + &away.unwrap_or_default()
}

fn best<'a>(lines: &[&'a Line], path: &str) -> Option<&'a Line> {
    let with = lines
        .iter()
        .filter(|line| line.result().get(path).is_there());
    let best = with.max_by(|a, b| {
        a.result()
            .number_or_0(path)
            .total_cmp(&b.result().number_or_0(path))
    });
    best.copied()
}

/// Callers, events and sizes in words.
fn load(line: &Line) -> String {
    let workload = line.workload();
    let mut parts = Vec::new();
    if let Some(callers) = workload.get("load.waiters").number() {
        parts.push(several(callers, "caller"));
    }
    if let Some(events) = workload.get("load.events").number() {
        parts.push(format!("{} each", several(events, "event")));
    }
    if let Some(size) = workload.get("events.payload").number() {
        parts.push(bytes(size));
    }
    if let Some(rate) = workload.get("load.rate").number() {
        parts.push(format!("{}/s by a schedule", count(rate)));
    }
    parts.join(", ")
}

/// The form of a bare statement, in words.
fn form(look: Look<'_>) -> String {
    match look.members().next() {
        Some((name, size)) => format!("{} of {}", name.replace('_', " "), size.told()),
        None => look.told().replace('_', " "),
    }
}

fn rate(value: Option<&f64>) -> Cell {
    value.map_or(Cell::Unknown, |value| figure(count(*value)))
}

fn append_row(line: &Line) -> Vec<Cell> {
    let result = line.result();
    vec![
        words(load(line)),
        counted(result.get("events_per_second")),
        counted(result.get("appends_per_second")),
        millis_cell(result.get("latency_ms.p50")),
        millis_cell(result.get("latency_ms.p99")),
        millis_cell(result.get("latency_ms.p999")),
        millis_cell(result.get("latency_ms.max")),
        counted(result.get("events_per_batch")),
        cores(result.get("cpu.machine_cores")),
    ]
}

fn compare_row(line: &Line) -> Vec<Cell> {
    let result = line.result();
    let rounds = result.get("rounds").items().next();
    let against = rounds
        .map(|round| round.get("against.form"))
        .filter(|form| form.is_there());
    let against = against.map_or_else(|| line.workload().get("against").told(), form);
    let ratios: Vec<String> = result
        .get("ratios")
        .numbers()
        .into_iter()
        .map(percent)
        .collect();
    vec![
        words(load(line)),
        words(against),
        counted(result.get("events_per_second_median")),
        counted(result.get("against_median")),
        share(result.get("ratio_median")),
        words(list(&ratios)),
    ]
}

fn read_rows(line: &Line) -> Vec<Vec<Cell>> {
    let names = [
        ("whole_log", "the whole log"),
        ("whole_log_decoded", "the whole log, decoded"),
        ("random_streams", "streams chosen at random"),
    ];
    let rows = names.iter().filter_map(|(member, name)| {
        let look = line.result().get(member);
        let last = look.get("passes").items().next_back();
        look.is_there().then(|| {
            let of_last = |path: &str| last.map(|last| last.get(path));
            vec![
                words(*name),
                counted(look.get("events_per_second_median")),
                of_last("page_ms.p50").map_or(Cell::Unknown, millis_cell),
                of_last("page_ms.p99").map_or(Cell::Unknown, millis_cell),
                of_last("cpu.machine_cores").map_or(Cell::Unknown, cores),
            ]
        })
    });
    rows.collect()
}

fn subscribers_load(line: &Line) -> String {
    let workload = line.workload();
    format!(
        "{} subscribers{}, {} events",
        count(workload.number_or_0("subscribers")),
        if workload.get("by_tag").flag() == Some(true) {
            " by tag"
        } else {
            ""
        },
        count(workload.number_or_0("events"))
    )
}

fn subscriber_rows(line: &Line) -> Vec<Vec<Cell>> {
    let phases = line.result().get("phases").items();
    let rows = phases.map(|phase| {
        let faults: Vec<&str> = phase.get("faults").items().filter_map(Look::text).collect();
        vec![
            words(subscribers_load(line)),
            words(phase.text_or_empty("name")),
            phase
                .get("seconds")
                .number()
                .map_or(Cell::Unknown, |time| figure(seconds(time))),
            counted(phase.get("database.queries")),
            counted(phase.get("database.appends")),
            millis_cell(phase.get("database.database_ms")),
            millis_cell(phase.get("delivered_ms.max")),
            words(faults.join("; ")),
        ]
    });
    rows.collect()
}

fn subscribers_finding(lines: &[&Line]) -> Option<String> {
    let line = lines.iter().max_by(|a, b| {
        let subscribers = |line: &Line| line.workload().number_or_0("subscribers");
        subscribers(a).total_cmp(&subscribers(b))
    })?;
    let phases = || line.result().get("phases").items();
    let idle = phases().find(|phase| phase.text_or_empty("name") == "idle");
    let burst = phases().find(|phase| phase.get("delivered_ms.max").is_there());
    let mut told = Vec::new();
    if let Some(idle) = idle {
        told.push(format!(
            "{} subscribers cost {} queries in {} of silence",
            count(line.workload().number_or_0("subscribers")),
            count(idle.number_or_0("database.queries")),
            seconds(idle.number_or_0("seconds"))
        ));
    }
    if let Some(burst) = burst {
        told.push(format!(
            "a burst of {} events reached the last of them after {}",
            count(line.workload().number_or_0("events")),
            millis(burst.number_or_0("delivered_ms.max"))
        ));
    }
    (!told.is_empty()).then(|| format!("{}.", super::numbers::capitalised(&list(&told))))
}

fn servers_row(line: &Line) -> Vec<Cell> {
    let result = line.result();
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
    let far = line.workload().number_or_0("far_ms");
    let far = if far > 0.0 {
        format!(", the last {} away", millis(far))
    } else {
        String::new()
    };
    vec![
        words(format!("{}{far}", load(line))),
        counted(result.get("events_per_second_total")),
        counted(result.get("events_per_second_alone")),
        words(list(&shares)),
        words(list(&p99s)),
        words(if result.get("starved").flag() == Some(true) {
            "yes"
        } else {
            "no"
        }),
    ]
}

fn http_rows(line: &Line) -> Vec<Vec<Cell>> {
    let mut rows: Vec<(f64, Vec<Cell>)> = line
        .result()
        .members()
        .map(|(connections, look)| {
            let runs: Vec<Look<'_>> = look.get("runs").items().collect();
            let middle = |path: &str| {
                let values: Vec<f64> = runs
                    .iter()
                    .filter_map(|run| run.get(path).number())
                    .collect();
                (!values.is_empty()).then(|| crate::histogram::median(&values))
            };
            let time = |path: &str| {
                middle(path).map_or(Cell::Unknown, |micros| figure(millis(micros / 1_000.0)))
            };
            let sum = |path: &str| runs.iter().map(|run| run.number_or_0(path)).sum::<f64>();
            let cells = vec![
                words(connections),
                counted(look.get("requests_per_second_median")),
                time("wrk.p50_us"),
                time("wrk.p99_us"),
                time("wrk.p999_us"),
                middle("cpu.machine_cores").map_or(Cell::Unknown, |cores| {
                    figure(super::numbers::trimmed(cores, 2))
                }),
                figure(count(sum("wrk.status"))),
                figure(count(sum("stored"))),
            ];
            (connections.parse().unwrap_or(f64::MAX), cells)
        })
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    rows.into_iter().map(|(_, cells)| cells).collect()
}

fn torture_rows(line: &Line) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for outcome in line.result().items() {
        for (fault, look) in outcome.get("faults").members() {
            rows.push(vec![
                words(fault.replace('_', " ")),
                words(outcome.get("database").told()),
                counted(look.get("rounds")),
                millis_cell(look.get("recovery_ms.p50")),
                millis_cell(look.get("recovery_ms.max")),
            ]);
        }
    }
    rows
}

fn torture_finding(lines: &[&Line]) -> Option<String> {
    if lines.is_empty() {
        return None;
    }
    let outcomes: Vec<Look<'_>> = lines
        .iter()
        .flat_map(|line| line.result().items())
        .collect();
    let sum = |path: &str| {
        outcomes
            .iter()
            .map(|outcome| outcome.number_or_0(path))
            .sum::<f64>()
    };
    let broken = outcomes
        .iter()
        .map(|outcome| outcome.get("checker.broken").sum())
        .sum::<f64>();
    let violations = sum("violations") + broken;
    Some(format!(
        "{} rounds of faults: of {} acknowledged appends {}.",
        count(sum("rounds")),
        count(sum("checker.acknowledged")),
        if violations == 0.0 {
            "none was lost, doubled or moved; every promise was kept".into()
        } else {
            format!("the check found {} broken promises", count(violations))
        }
    ))
}
