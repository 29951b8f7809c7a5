//! `schemas`: the field's journal schemas and Gesta on one database.
//!
//! Runs of the same workload on the same database make a group: its newest run is drawn, and whether the runs agree is
//! said. What is drawn of a schema with several rounds is the middle of the rounds, with the range as a mark.

mod facts;
mod run;

use super::chart::{Axis, Bar, Bars, LineChart, Point, Scale, Series};
use super::html::Html;
use super::lines::{Line, Lines};
use super::numbers::{Unit, bytes, count, list, millis, percent, spelled, times};
use super::section::{
    Looks, Section, bullets, engine, heading, is_ours, newest_first, paragraph, side_by_side,
    sizes, started,
};
use super::table::{Cell, Emphasis, Table, causes, details, figure, told, words};
use crate::histogram::median;

pub(super) use facts::{Relation, published};
use run::{Contender, Run};

pub(super) fn section(lines: &Lines) -> Option<Section> {
    let all = newest_first(lines.of("schemas"));
    let groups = groups(&all);
    let first = groups.first()?;
    let names = all
        .iter()
        .flat_map(|line| line.result().get("targets").items());
    let mut names: Vec<&str> = names.map(|target| target.text_or_empty("name")).collect();
    names.sort_unstable();
    let looks = Looks::of(names);
    let mut body = Html::default();
    for group in &groups {
        if groups.len() > 1 {
            body.push(heading(&group.name()));
            body.push(paragraph(group.finding()));
        }
        body.push(group.draw(&looks));
    }
    let finding = if groups.len() == 1 {
        first.finding()
    } else {
        across(&groups)
    };
    Some(Section {
        lead: None,
        id: "schemas",
        title: "Journal schemas",
        finding,
        is_result: groups.iter().all(|group| group.runs[0].line.is_valid()),
        body,
    })
}

/// Runs of the same workload, the newest first.
struct Group<'a> {
    runs: Vec<Run<'a>>,
}

/// The newest run of each group, for others that quote it.
pub(super) fn newest_relations(lines: &Lines) -> Vec<(String, Vec<Relation>)> {
    let all = newest_first(lines.of("schemas"));
    let groups = groups(&all);
    let of = |group: &Group<'_>| (group.name(), facts::relations(&group.runs[0]));
    groups
        .iter()
        .filter(|group| group.runs[0].line.is_valid())
        .map(of)
        .collect()
}

fn groups<'a>(lines: &[&'a Line]) -> Vec<Group<'a>> {
    let mut groups: Vec<(String, Group<'a>)> = Vec::new();
    for line in lines {
        let run = Run::of(line);
        let key = run.key();
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, group)) => group.runs.push(run),
            None => groups.push((key, Group { runs: vec![run] })),
        }
    }
    let mut groups: Vec<Group<'a>> = groups.into_iter().map(|(_, group)| group).collect();
    // The setting in which Gesta leads by the least comes first: no lead is to rest on another's default unseen.
    let lead = |group: &Group<'_>| group.runs[0].lead().unwrap_or(f64::MAX);
    groups.sort_by(|a, b| lead(a).total_cmp(&lead(b)));
    groups
}

/// One sentence over several groups.
fn across(groups: &[Group<'_>]) -> String {
    let leads: Vec<(String, Option<f64>)> = groups
        .iter()
        .map(|group| (group.runs[0].compression(), group.runs[0].lead()))
        .collect();
    if leads
        .iter()
        .all(|(_, lead)| lead.is_some_and(|lead| lead > 1.0))
    {
        let told = leads
            .iter()
            .map(|(name, lead)| format!("{} the next ({name})", times(lead.unwrap_or_default())));
        return format!(
            "Gesta carried the most in each of {} settings: {}.",
            spelled(groups.len()),
            list(&told.collect::<Vec<_>>())
        );
    }
    let told = groups.iter().map(|group| {
        let ranked = group.runs[0].ranked();
        let first = ranked.first().filter(|first| first.rate() > 0.0);
        let first = first.map_or("nobody", |first| first.title);
        format!("{first} with {}", group.runs[0].compression())
    });
    format!("Who carried the most: {}.", list(&told.collect::<Vec<_>>()))
}

impl Group<'_> {
    fn name(&self) -> String {
        let run = &self.runs[0];
        let workload = run.line.workload();
        let mut name = format!("{}, {}", engine(run.line), run.compression());
        if let Some(size) = sizes(workload.get("sizes")) {
            name.push_str(&format!(", events of {size}"));
        }
        let round_trip = workload.number_or_0("round_trip_ms");
        if round_trip > 0.0 {
            name.push_str(&format!(", {} away", millis(round_trip)));
        }
        let processes = workload.number_or_0("processes");
        if processes > 1.0 {
            name.push_str(&format!(", {processes} processes"));
        }
        name
    }

    fn finding(&self) -> String {
        let run = &self.runs[0];
        let ranked = run.ranked();
        let limit = run.p99_limit();
        let Some(first) = ranked.first().filter(|first| first.rate() > 0.0) else {
            return format!("No schema kept 99 of 100 appends within {}.", millis(limit));
        };
        let ours = ranked.iter().find(|one| one.name == "gesta");
        let within = format!("with 99 of 100 appends stored within {}", millis(limit));
        let (Some(ours), Some(rival)) = (ours, ranked.iter().find(|one| !is_ours(one.name))) else {
            return format!(
                "{} carried {} events/s {within}.",
                first.title,
                count(first.rate())
            );
        };
        let sure = if (ours.rate() / rival.rate().max(1e-9) - 1.0).abs() <= 2.0 * run.noise() {
            format!(", which is within the noise of ±{}", percent(run.noise()))
        } else {
            String::new()
        };
        if first.name == ours.name {
            let last = ranked
                .last()
                .filter(|last| last.rate() > 0.0 && last.name != rival.name);
            let last = last.map(|last| {
                format!(
                    " and {} the last ({})",
                    times(ours.rate() / last.rate()),
                    last.title
                )
            });
            return format!(
                "Gesta carried the most, {} events/s {within}: {} the next ({}){sure}{}.",
                count(ours.rate()),
                times(ours.rate() / rival.rate().max(1e-9)),
                rival.title,
                last.unwrap_or_default()
            );
        }
        format!(
            "{} carried the most, {} events/s {within}; Gesta carried {} of that{sure}.",
            first.title,
            count(first.rate()),
            percent(ours.rate() / first.rate())
        )
    }

    fn draw(&self, looks: &Looks) -> Html {
        let run = &self.runs[0];
        let mut all = self.ranking(looks);
        if let Some(sentence) = run::agreement(&self.runs) {
            all.push(paragraph(sentence));
        }
        all.push(paragraph(run.noise_told()));
        all.push(side_by_side([
            over_connections(run, looks, Figure::Rate),
            over_connections(run, looks, Figure::P99),
        ]));
        all.push(self.table());
        all.push(facts::table(run));
        let notes = run.contenders.iter().filter_map(|one| {
            let note = one
                .look
                .get("facts.note")
                .text()
                .filter(|note| !note.is_empty())?;
            Some(format!("{}: {note}", one.title))
        });
        all.push(details("How each is driven", bullets(notes)));
        if self.runs.len() > 1 {
            all.push(details("The runs", self.runs_table()));
        }
        all.push(details("Every phase", phases(run)));
        all
    }

    fn ranking(&self, looks: &Looks) -> Html {
        let run = &self.runs[0];
        let ranked = run.ranked();
        let bars = ranked.iter().map(|one| Bar {
            name: one.title.to_owned(),
            role: looks.of_name(one.name),
            value: one.rate(),
            range: run.range(one),
            told: match one.rate() {
                rate if rate > 0.0 => count(rate),
                _ => "none".into(),
            },
        });
        let told = ranked
            .iter()
            .map(|one| format!("{}: {} events/s", one.title, count(one.rate())));
        Bars {
            title: format!("Best events per second with p99 up to {}", millis(run.p99_limit())),
            description: told.collect::<Vec<_>>().join("; "),
            bars: bars.collect(),
            note: Some(
                "The mark at the end of a bar is the range of the rounds. 'None': no load kept the limit.".into(),
            ),
        }
        .draw()
    }

    fn table(&self) -> Html {
        let run = &self.runs[0];
        let ranked = run.ranked();
        let ours = ranked
            .iter()
            .find(|one| one.name == "gesta")
            .map(Contender::rate);
        let mut table = Table::new(
            "Schemas, the best first",
            &[
                "schema",
                "best events/s",
                "noise ±",
                "at connections",
                "p99 there",
                "against Gesta",
                "ended by",
                "disk per event",
                "tried again",
                "errors",
            ],
        );
        for one in &ranked {
            let is_ours = one.name == "gesta";
            let emphasis = if is_ours {
                Emphasis::Ours
            } else {
                Emphasis::Plain
            };
            let of_phases = |member: &str| -> Cell {
                let of: Vec<_> = one.phases().map(|phase| phase.get(member)).collect();
                causes(&of)
            };
            table.styled(
                emphasis,
                vec![
                    words(one.title),
                    told(Unit::Count, Some(one.rate()).filter(|rate| *rate > 0.0)),
                    figure(percent(one.noise())),
                    told(Unit::Count, one.look.get("best.connections").number()),
                    told(Unit::Millis, one.look.get("best.p99_ms").number()),
                    against(one, ours),
                    words(one.ended().join("; ")),
                    one.disk().map_or(Cell::Unknown, |size| figure(bytes(size))),
                    of_phases("retries"),
                    of_phases("errors"),
                ],
            );
        }
        table.draw()
    }

    fn runs_table(&self) -> Html {
        let heads: Vec<String> = self
            .runs
            .iter()
            .map(|run| format!("{} UTC", started(run.line)))
            .collect();
        let mut all: Vec<&str> = vec!["schema"];
        all.extend(heads.iter().map(String::as_str));
        let mut table = Table::new("Best events/s of each run", &all);
        for one in self.runs[0].ranked() {
            let mut cells = vec![words(one.title)];
            for run in &self.runs {
                let same = run.contenders.iter().find(|other| other.name == one.name);
                cells.push(told(Unit::Count, same.map(Contender::rate)));
            }
            table.row(cells);
        }
        let mut noise = vec![words("noise ±")];
        noise.extend(self.runs.iter().map(|run| figure(percent(run.noise()))));
        table.row(noise);
        table.draw()
    }
}

fn against(one: &Contender<'_>, ours: Option<f64>) -> Cell {
    match ours.filter(|ours| *ours > 0.0) {
        _ if one.name == "gesta" => words("–"),
        Some(_) if one.rate() <= 0.0 => words("none"),
        Some(ours) if one.rate() > ours => words(format!("{} as fast", times(one.rate() / ours))),
        Some(ours) => words(format!("Gesta is {} as fast", times(ours / one.rate()))),
        None => Cell::Unknown,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Figure {
    Rate,
    P99,
}

fn over_connections(run: &Run<'_>, looks: &Looks, what: Figure) -> Html {
    let series = run.ranked().into_iter().map(|one| {
        let steps = one.steps();
        let last = steps.len().saturating_sub(1);
        let points = steps.iter().enumerate().map(|(number, step)| {
            let values = if what == Figure::Rate {
                &step.rates
            } else {
                &step.p99s
            };
            let value = median(values);
            let mut tip = format!(
                "{} connections, {} events/s, p99 {}",
                count(step.connections),
                count(median(&step.rates)),
                millis(median(&step.p99s))
            );
            let mut point = Point::new(step.connections, value, "");
            if let Some((least, most)) = super::section::range(values) {
                point = point.between(least, most);
            }
            let why = one
                .ended()
                .into_iter()
                .find(|_| number == last && one.was_stopped());
            if let Some(why) = why {
                tip = format!("{tip}; stopped: {why}");
                point = point.stop();
            }
            point.tipped(tip)
        });
        Series::new(one.title, looks.of_name(one.name), points.collect()).called(one.name)
    });
    let series: Vec<Series> = series.collect();
    let told = run.ranked().into_iter().map(|one| {
        let steps = one.steps();
        let first = steps
            .first()
            .map(|step| (step.connections, median(&step.rates), median(&step.p99s)));
        let last = steps
            .last()
            .map(|step| (step.connections, median(&step.rates), median(&step.p99s)));
        let step = |(connections, rate, p99): (f64, f64, f64)| match what {
            Figure::Rate => format!(
                "{} events/s at {} connections",
                count(rate),
                count(connections)
            ),
            Figure::P99 => format!("{} at {} connections", millis(p99), count(connections)),
        };
        let ends: Vec<String> = first.into_iter().chain(last).map(step).collect();
        format!("{}: {}", one.title, ends.join(", then "))
    });
    let description = told.collect::<Vec<_>>().join("; ");
    let x = Axis::new(
        "connections, each with an append under way",
        Scale::Linear,
        Unit::Count,
    );
    let note =
        "A cross marks where a schema was stopped; a vertical line is the range of the rounds."
            .to_owned();
    match what {
        Figure::Rate => LineChart {
            title: "Events per second over connections".into(),
            description,
            x,
            y: Axis::new("events/s", Scale::Linear, Unit::Count),
            series,
            limits: Vec::new(),
            marks: Vec::new(),
            note: Some(note),
        },
        Figure::P99 => LineChart {
            title: "p99 over connections".into(),
            description,
            x,
            y: Axis::new(
                "99 of 100 appends are stored within",
                Scale::Log,
                Unit::Millis,
            ),
            series,
            limits: vec![(run.p99_limit(), "the limit for a best rate".into())],
            marks: Vec::new(),
            note: Some(note),
        },
    }
    .draw()
}

fn phases(run: &Run<'_>) -> Html {
    let mut table = Table::new(
        "Phases of the newest run",
        &[
            "schema",
            "round",
            "connections",
            "events/s",
            "average",
            "p50",
            "p99",
            "p99.9",
            "cores busy",
            "tried again",
            "errors",
            "generator",
        ],
    );
    for one in run.ranked() {
        for (number, round) in one.look.get("rounds").items().enumerate() {
            for phase in round.get("phases").items() {
                table.row(vec![
                    words(one.title),
                    figure((number + 1).to_string()),
                    told(Unit::Count, phase.get("connections").number()),
                    told(Unit::Count, phase.get("events_per_second").number()),
                    told(Unit::Millis, phase.get("latency_ms.mean").number()),
                    told(Unit::Millis, phase.get("latency_ms.p50").number()),
                    told(Unit::Millis, phase.get("latency_ms.p99").number()),
                    told(Unit::Millis, phase.get("latency_ms.p999").number()),
                    super::table::cores(phase.get("cpu.machine_cores")),
                    causes(&[phase.get("retries")]),
                    causes(&[phase.get("errors")]),
                    words(phase.text_or_empty("generator_limit")),
                ]);
            }
        }
    }
    table.draw()
}
