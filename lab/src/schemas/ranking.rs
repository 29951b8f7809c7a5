//! What a run of `schemas` says: each schema's best, the curves over connections, the noise, and what is no result.

use std::collections::BTreeSet;

use super::contest::{Contest, Round};
use super::steps::{self, Best};
use super::{Compression, SchemasArgs, limits, published};
use crate::cells;
use crate::histogram::median;
use crate::report::numbers::{bytes, count, millis, percent, times};
use crate::report::{Better, Cell, Chart, Report, Scale, Table, Unit, Whose, causes};
use crate::target::{Phase, TargetFacts};

const BEST: &str = "Schemas, the best first";
const STEPS: &str = "Over connections, the middle of the rounds";

/// All schemas, the best first.
pub(super) struct Ranking<'a> {
    pub(super) rows: Vec<Row<'a>>,
    facts: Vec<(&'a String, &'a TargetFacts)>,
    pub(super) noise: f64,
    controls: &'a [f64],
    args: &'a SchemasArgs,
    sizes: String,
}

/// A schema.
#[derive(Clone)]
pub(super) struct Row<'a> {
    pub(super) name: &'a str,
    pub(super) title: &'a str,
    pub(super) rounds: &'a [Round],
    /// Of the round in the middle.
    best: Option<Best>,
    by_round: Vec<f64>,
}

/// What all rounds did with so many connections.
pub(super) struct Step {
    pub(super) connections: u32,
    rates: Vec<f64>,
    p99s: Vec<f64>,
}

impl Step {
    pub(super) fn rate(&self) -> f64 {
        median(&self.rates)
    }
}

fn ends(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(0.0, f64::max))
}

impl<'a> Row<'a> {
    pub(super) fn of(
        name: &'a str,
        title: &'a str,
        rounds: &'a [Round],
        args: &SchemasArgs,
    ) -> Self {
        let bests: Vec<Option<Best>> = rounds
            .iter()
            .map(|r| limits(args).best(&r.phases))
            .collect();
        let rate = |best: &Option<Best>| best.map_or(0.0, |best| best.events_per_second);
        let by_round: Vec<f64> = bests.iter().map(rate).collect();
        let middle = median(&by_round);
        let distance = |best: &Best| (best.events_per_second - middle).abs();
        let nearest = bests.into_iter().flatten();
        let nearest = nearest.min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let best = nearest.map(|best| Best {
            events_per_second: middle,
            ..best
        });
        Self {
            name,
            title,
            rounds,
            best,
            by_round,
        }
    }

    /// The best rate; 0 if no phase kept the limit.
    pub(super) fn rate(&self) -> f64 {
        self.best.map_or(0.0, |best| best.events_per_second)
    }

    pub(super) fn whose(&self) -> Whose {
        Whose::named(self.name)
    }

    pub(super) fn phases(&self) -> impl Iterator<Item = &'a Phase> + use<'a> {
        self.rounds.iter().flat_map(|round| &round.phases)
    }

    /// Why its rounds ended.
    pub(super) fn ended(&self) -> String {
        let all: BTreeSet<String> = self.rounds.iter().map(Round::ended_at).collect();
        all.into_iter().collect::<Vec<_>>().join("; ")
    }

    /// All rounds together, by connections.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for phase in self.phases() {
            let at = match steps
                .iter()
                .position(|step| step.connections == phase.connections)
            {
                Some(at) => at,
                None => {
                    let connections = phase.connections;
                    steps.push(Step {
                        connections,
                        rates: Vec::new(),
                        p99s: Vec::new(),
                    });
                    steps.len() - 1
                }
            };
            steps[at].rates.push(phase.events_per_second);
            steps[at].p99s.push(phase.latency_ms.p99);
        }
        steps.sort_by_key(|step| step.connections);
        steps
    }
}

impl<'a> Ranking<'a> {
    pub(super) fn of(contest: &'a Contest, args: &'a SchemasArgs) -> Self {
        let entries = contest.entries();
        let rows =
            entries.map(|(target, rounds)| Row::of(target.name(), target.title(), rounds, args));
        Self::ranked(
            rows.collect(),
            args,
            contest.controls(),
            contest.all_facts().collect(),
        )
        .sized(contest)
    }

    pub(super) fn ranked(
        mut rows: Vec<Row<'a>>,
        args: &'a SchemasArgs,
        controls: &'a [f64],
        facts: Vec<(&'a String, &'a TargetFacts)>,
    ) -> Self {
        rows.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
        let noise = rows
            .iter()
            .map(|row| steps::noise(&row.by_round))
            .fold(0.0, f64::max);
        let sizes = String::new();
        Self {
            rows,
            facts,
            noise,
            controls,
            args,
            sizes,
        }
    }

    fn sized(mut self, contest: &Contest) -> Self {
        let sizes = contest.sizes();
        let mean = bytes(sizes.mean().round());
        self.sizes = match sizes.classes.len() {
            1 => mean,
            _ => format!(
                "{mean} on average ({})",
                sizes.name.split(", mean ").next().unwrap_or_default()
            ),
        };
        self
    }

    fn p99_ms_max(&self) -> f64 {
        self.args.p99_max.as_secs_f64() * 1_000.0
    }

    pub(super) fn tell(&self, report: &mut Report) {
        report.finding = self.finding();
        report.setting = self.setting(report);
        self.object(report);
        let bars = format!(
            "Best events per second with p99 up to {}",
            millis(self.p99_ms_max())
        );
        let bars = Chart::bars(bars, BEST, "schema", "best events/s").range("least", "most");
        report.chart(bars.note("The mark at the end of a bar is the range of the rounds; 'none': no load kept the limit."));
        report.text(self.noise_told());
        let note =
            "A cross marks where a schema was stopped; a vertical line is the range of the rounds.";
        let over = |title, y, scale| {
            let chart = Chart::lines(title, STEPS, ("connections", Scale::Linear), (&[y], scale));
            chart.by("schema").stop("stopped").note(note)
        };
        report.chart(
            over(
                "Events per second over connections",
                "events/s",
                Scale::Linear,
            )
            .range("least", "most"),
        );
        let limit = self.p99_ms_max();
        let p99 = over("p99 over connections", "p99", Scale::Log)
            .limit(limit, "the limit for a best rate");
        report.chart(p99.y_name("99 of 100 appends are stored within"));
        report.table(self.best());
        report.table(published::table(self));
        report.text(published::SOURCE);
        report.table(self.over_connections());
        report.table(self.driven());
        report.table(self.every_phase());
    }

    /// What must be the same in runs that are compared.
    fn setting(&self, report: &Report) -> String {
        let engine = report
            .store
            .as_ref()
            .map_or("SQLite", |store| store.engine.as_str());
        let engine = engine.split(" (").next().unwrap_or(engine);
        let compression = match self.args.compression {
            Compression::Own => "each with its own compression".into(),
            Compression::None => "no compression".into(),
            one => format!("{} compression for all", one.method().unwrap_or_default()),
        };
        let mut setting = format!("{engine}, {compression}, events of {}", self.sizes);
        if !self.args.rtt.is_zero() {
            setting.push_str(&format!(
                ", {} away",
                millis(self.args.rtt.as_secs_f64() * 1_000.0)
            ));
        }
        if self.args.events > 1 {
            setting.push_str(&format!(", {} events per append", self.args.events));
        }
        setting
    }

    fn finding(&self) -> String {
        let limit = millis(self.p99_ms_max());
        let Some(first) = self.rows.first().filter(|first| first.rate() > 0.0) else {
            return format!("No schema kept 99 of 100 appends within {limit}.");
        };
        let within = format!("with 99 of 100 appends stored within {limit}");
        let ours = self.rows.iter().find(|row| row.name == "gesta");
        let rival = self.rows.iter().find(|row| row.whose() == Whose::Other);
        let (Some(ours), Some(rival)) = (ours, rival) else {
            return format!(
                "{} carried {} events/s {within}.",
                first.title,
                count(first.rate())
            );
        };
        let lead = ours.rate() / rival.rate().max(1e-9);
        let sure = if (lead - 1.0).abs() <= 2.0 * self.noise {
            format!(", which is within the noise of ±{}", percent(self.noise))
        } else {
            String::new()
        };
        if first.name != ours.name {
            return format!(
                "{} carried the most, {} events/s {within}; Gesta carried {} of that{sure}.",
                first.title,
                count(first.rate()),
                percent(ours.rate() / first.rate())
            );
        }
        let last = self
            .rows
            .last()
            .filter(|last| last.rate() > 0.0 && last.name != rival.name);
        let last = last.map(|last| {
            format!(
                " and {} the last ({})",
                times(ours.rate() / last.rate()),
                last.title
            )
        });
        format!(
            "Gesta carried the most, {} events/s {within}: {} the next ({}){sure}{}.",
            count(ours.rate()),
            times(lead),
            rival.title,
            last.unwrap_or_default()
        )
    }

    fn noise_told(&self) -> String {
        if self.rows.iter().all(|row| row.rounds.len() < 2) {
            return "Every schema was measured in one round only, so nothing is known about the noise: \
                    take differences below a fifth for nothing."
                .into();
        }
        let machine = match self.controls.len() {
            0 => String::new(),
            _ => format!(
                "; a bare INSERT, repeated in between to watch the machine itself, differed by ±{}",
                percent(steps::noise(self.controls))
            ),
        };
        format!(
            "Noise: rounds of the same schema differed by at most ±{}{machine}.",
            percent(self.noise)
        )
    }

    /// What keeps this from being a result.
    fn object(&self, report: &mut Report) {
        for row in &self.rows {
            for (number, round) in (1..).zip(row.rounds) {
                if let Some(read_back) = &round.read_back {
                    report.check(format!("{}, round {number}", row.title), read_back);
                }
            }
            // A phase in which the generator was the limit says little about a schema's best.
            let best = row.best.map(|best| best.connections);
            let mut limited = row.phases().filter(|phase| Some(phase.connections) == best);
            if let Some(limit) = limited.find_map(|phase| phase.generator_limit.as_ref()) {
                report.problem(format!("{}: at its best, {limit}", row.name));
            }
        }
        let kinds: BTreeSet<&str> = self
            .facts
            .iter()
            .map(|(_, facts)| facts.durability.as_str())
            .collect();
        if kinds.len() > 1 {
            let all = self
                .facts
                .iter()
                .map(|(name, facts)| format!("{name} {}", facts.durability));
            report.problem(format!(
                "durability differs: {}",
                all.collect::<Vec<_>>().join(", ")
            ));
        }
    }

    fn best(&self) -> Table {
        let columns = [
            ("schema", Unit::Words),
            ("best events/s", Unit::Count),
            ("least", Unit::Count),
            ("most", Unit::Count),
            ("noise ±", Unit::Share),
            ("at connections", Unit::Count),
            ("p99 there", Unit::Millis),
            ("Gesta is so many times as fast", Unit::Times),
            ("ended by", Unit::Words),
            ("disk per event", Unit::Bytes),
            ("tried again", Unit::Words),
            ("errors", Unit::Words),
        ];
        let mut table = Table::new(BEST, columns).better("best events/s", Better::More);
        table.noise = Some(self.noise);
        let ours = self
            .rows
            .iter()
            .find(|row| row.name == "gesta")
            .map(Row::rate);
        for row in &self.rows {
            let rate = Some(row.rate()).filter(|rate| *rate > 0.0);
            let (least, most) = ends(&row.by_round);
            let times = ours.zip(rate).map(|(ours, rate)| ours / rate);
            let disk: Vec<f64> = row
                .rounds
                .iter()
                .filter_map(|round| round.disk_bytes_per_event)
                .collect();
            table.row_of(
                row.whose(),
                cells![
                    row.title,
                    rate,
                    rate.map(|_| least),
                    rate.map(|_| most),
                    steps::noise(&row.by_round),
                    row.best.map(|best| best.connections),
                    row.best.map(|best| best.p99_ms),
                    times.filter(|_| row.whose() == Whose::Other),
                    row.ended(),
                    (!disk.is_empty()).then(|| median(&disk)),
                    causes(row.phases().flat_map(|phase| &phase.retries)),
                    causes(row.phases().flat_map(|phase| &phase.errors)),
                ],
            );
        }
        table
    }

    fn over_connections(&self) -> Table {
        let columns = [
            ("schema", Unit::Words),
            ("connections", Unit::Count),
            ("events/s", Unit::Count),
            ("least", Unit::Count),
            ("most", Unit::Count),
            ("p99", Unit::Millis),
            ("stopped", Unit::Words),
        ];
        let mut table = Table::new(STEPS, columns).folded();
        for row in &self.rows {
            let steps = row.steps();
            let stopped = row
                .rounds
                .iter()
                .any(Round::was_stopped)
                .then(|| row.ended());
            for (number, step) in steps.iter().enumerate() {
                let (least, most) = ends(&step.rates);
                let stopped = stopped.clone().filter(|_| number + 1 == steps.len());
                table.row_of(
                    row.whose(),
                    cells![
                        row.title,
                        step.connections,
                        step.rate(),
                        least,
                        most,
                        median(&step.p99s),
                        stopped
                    ],
                );
            }
        }
        table
    }

    fn driven(&self) -> Table {
        let columns = [
            "schema",
            "durability",
            "by these settings",
            "how it is driven",
        ];
        let mut table = Table::new(
            "How each is driven",
            columns.map(|column| (column, Unit::Words)),
        )
        .folded();
        for row in &self.rows {
            if let Some((_, facts)) = self.facts.iter().find(|(name, _)| *name == row.name) {
                let cells = cells![
                    row.title,
                    &facts.durability,
                    &facts.durability_detail,
                    &facts.note
                ];
                table.row_of(row.whose(), cells);
            }
        }
        table
    }

    fn every_phase(&self) -> Table {
        let columns = [
            ("schema", Unit::Words),
            ("round", Unit::Count),
            ("connections", Unit::Count),
            ("average", Unit::Millis),
        ];
        let mut table =
            Table::new("Every phase", columns.into_iter().chain(Phase::COLUMNS)).folded();
        for row in &self.rows {
            for (number, round) in (1_u32..).zip(row.rounds) {
                for phase in &round.phases {
                    let place: Vec<Cell> =
                        cells![row.title, number, phase.connections, phase.latency_ms.mean];
                    table.row_of(row.whose(), [place, phase.cells()].concat());
                }
            }
        }
        table
    }
}
