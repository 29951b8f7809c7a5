//! What a run of `schemas` says: each schema's best, the curves over connections, the noise, what was published, and
//! what is no result.

use std::collections::{BTreeMap, BTreeSet};

use super::{COMPRESSION, Entry, P99_MS_MAX, Round};
use crate::cells;
use crate::histogram::median;
use crate::report::numbers::{bytes, count, millis, percent, times};
use crate::report::{Cell, Chart, Report, Scale, Table, Unit, Whose, causes};
use crate::sizes::Sizes;
use crate::target::Phase;

const BEST: &str = "Schemas, the best first";
const STEPS: &str = "Over connections, the middle of the rounds";
/// All schemas, the best first.
pub(super) struct Ranking {
    rows: Vec<Row>,
    /// How far rounds of the same differ, at most.
    noise: f64,
    controls: Vec<f64>,
}

/// A schema.
struct Row {
    entry: Entry,
    /// Best rates of the rounds; 0 if no phase kept the limit.
    by_round: Vec<f64>,
    /// The best phase of the round in the middle.
    best: Option<Phase>,
}

/// How far rounds of the same differ: half of their range, as a share of their median; 0 of fewer than two.
fn noise(rounds: &[f64]) -> f64 {
    let (least, most) = ends(rounds);
    let middle = median(rounds);
    if rounds.len() < 2 || middle <= 0.0 {
        return 0.0;
    }
    (most - least) / 2.0 / middle
}

fn ends(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    (least, values.iter().copied().fold(0.0, f64::max))
}

/// The phase with the highest rate whose 99th percentile is within the limit.
fn best(round: &Round) -> Option<&Phase> {
    let is_good = |phase: &&Phase| {
        phase.complete && phase.latency_ms.count > 0 && phase.latency_ms.p99 <= P99_MS_MAX
    };
    let good = round.phases.iter().filter(is_good);
    good.max_by(|a, b| a.events_per_second.total_cmp(&b.events_per_second))
}

impl Row {
    fn of(entry: Entry) -> Self {
        let bests: Vec<&Phase> = entry.rounds.iter().filter_map(best).collect();
        let mut by_round: Vec<f64> = bests.iter().map(|phase| phase.events_per_second).collect();
        by_round.resize(entry.rounds.len(), 0.0);
        let middle = median(&by_round);
        let distance = |phase: &Phase| (phase.events_per_second - middle).abs();
        let nearest = bests
            .into_iter()
            .min_by(|a, b| distance(a).total_cmp(&distance(b)));
        Self {
            best: nearest.cloned(),
            by_round,
            entry,
        }
    }

    /// The best rate, in the middle of the rounds.
    fn rate(&self) -> f64 {
        median(&self.by_round)
    }

    fn whose(&self) -> Whose {
        Whose::named(&self.entry.name)
    }

    fn phases(&self) -> impl Iterator<Item = &Phase> {
        self.entry.rounds.iter().flat_map(|round| &round.phases)
    }

    /// Why its rounds were stopped; empty if none was.
    fn stopped(&self) -> String {
        let rounds = self.entry.rounds.iter();
        let all: BTreeSet<&str> = rounds
            .filter_map(|round| round.stopped.as_deref())
            .collect();
        all.into_iter().collect::<Vec<_>>().join("; ")
    }

    /// Rates and p99 of all rounds, by connections.
    fn steps(&self) -> BTreeMap<u32, (Vec<f64>, Vec<f64>)> {
        let mut steps = BTreeMap::<u32, (Vec<f64>, Vec<f64>)>::new();
        for phase in self.phases() {
            let (rates, p99s) = steps.entry(phase.connections).or_default();
            rates.push(phase.events_per_second);
            p99s.push(phase.latency_ms.p99);
        }
        steps
    }
}

impl Ranking {
    pub(super) fn of(entries: Vec<Entry>, controls: Vec<f64>) -> Self {
        let mut rows: Vec<Row> = entries.into_iter().map(Row::of).collect();
        rows.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
        let noise = rows
            .iter()
            .map(|row| noise(&row.by_round))
            .fold(0.0, f64::max);
        Self {
            rows,
            noise,
            controls,
        }
    }

    pub(super) fn tell(&self, report: &mut Report, sizes: &Sizes) {
        report.finding = self.finding();
        let mean = bytes(sizes.mean().round());
        report.setting = format!(
            "{COMPRESSION} compression for all, events of {mean} ({})",
            sizes.name
        );
        self.object(report);
        let title = format!(
            "Best events per second with p99 up to {}",
            millis(P99_MS_MAX)
        );
        let bars = Chart::bars(title, BEST, "schema", "best events/s").range("least", "most");
        report.chart(bars.note("The mark at the end of a bar is the range of the rounds; 'none': no load kept the limit."));
        report.text(self.noise_told());
        let over = |title, y, scale| {
            let chart = Chart::lines(title, STEPS, ("connections", Scale::Linear), (&[y], scale));
            let note = "A cross marks where a schema was stopped; a vertical line is the range of the rounds.";
            chart.by("schema").stop("stopped").note(note)
        };
        let rates = over(
            "Events per second over connections",
            "events/s",
            Scale::Linear,
        );
        report.chart(rates.range("least", "most"));
        let p99 = over("p99 over connections", "p99", Scale::Log);
        report.chart(p99);
        report.table(self.best());
        report.table(self.over_connections());
        report.table(self.driven());
        report.table(self.every_phase());
    }

    fn finding(&self) -> String {
        let within = format!(
            "with 99 of 100 appends stored within {}",
            millis(P99_MS_MAX)
        );
        let Some(first) = self.rows.first().filter(|first| first.rate() > 0.0) else {
            return format!("No schema carried anything {within}.");
        };
        let (title, rate) = (&first.entry.title, count(first.rate()));
        let ours = self.rows.iter().find(|row| row.entry.name == "gesta");
        let rival = self.rows.iter().find(|row| row.whose() == Whose::Other);
        let (Some(ours), Some(rival)) = (ours, rival) else {
            return format!("{title} carried {rate} events/s {within}.");
        };
        let lead = ours.rate() / rival.rate().max(1e-9);
        let sure = match (lead - 1.0).abs() <= 2.0 * self.noise {
            true => format!(", which is within the noise of ±{}", percent(self.noise)),
            false => String::new(),
        };
        if first.entry.name != ours.entry.name {
            let share = percent(ours.rate() / first.rate());
            return format!(
                "{title} carried the most, {rate} events/s {within}; Gesta carried {share} of that{sure}."
            );
        }
        format!(
            "Gesta carried the most, {rate} events/s {within}: {} the next ({}){sure}.",
            times(lead),
            rival.entry.title,
        )
    }

    fn noise_told(&self) -> String {
        if self.rows.iter().all(|row| row.by_round.len() < 2) {
            return "Every schema was measured in one round only, so nothing is known about the noise.".into();
        }
        format!(
            "Noise: rounds of the same schema differed by at most ±{}; a bare INSERT, repeated in between to watch the \
             machine itself, differed by ±{}.",
            percent(self.noise),
            percent(noise(&self.controls))
        )
    }

    /// What keeps this from being a result.
    fn object(&self, report: &mut Report) {
        for row in &self.rows {
            for (number, round) in (1..).zip(&row.entry.rounds) {
                if let Some(read_back) = &round.read_back {
                    report.check(format!("{}, round {number}", row.entry.title), read_back);
                }
            }
            // A phase in which the generator was the limit says little about a schema's best.
            let best = row.best.as_ref().map(|best| best.connections);
            let mut limited = row.phases().filter(|phase| Some(phase.connections) == best);
            if let Some(limit) = limited.find_map(|phase| phase.generator_limit.as_ref()) {
                report.problem(format!("{}: at its best, {limit}", row.entry.name));
            }
        }
        let told = self
            .rows
            .iter()
            .map(|row| (&row.entry.facts.durability, &row.entry.name));
        let kinds: BTreeMap<&String, &String> = told.collect();
        if kinds.len() > 1 {
            report.problem(format!("durability differs: {kinds:?}"));
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
            ("stopped", Unit::Words),
            ("disk per event", Unit::Bytes),
            ("tried again", Unit::Words),
            ("errors", Unit::Words),
        ];
        let mut table = Table::new(BEST, columns);
        let ours = self
            .rows
            .iter()
            .find(|row| row.entry.name == "gesta")
            .map(Row::rate);
        for row in &self.rows {
            let rate = Some(row.rate()).filter(|rate| *rate > 0.0);
            let (least, most) = ends(&row.by_round);
            let times = ours.zip(rate).map(|(ours, rate)| ours / rate);
            let rounds = row.entry.rounds.iter();
            let disk: Vec<f64> = rounds
                .filter_map(|round| round.disk_bytes_per_event)
                .collect();
            let figures = cells![
                &row.entry.title,
                rate,
                rate.map(|_| least),
                rate.map(|_| most),
                noise(&row.by_round),
                row.best.as_ref().map(|best| best.connections),
                row.best.as_ref().map(|best| best.latency_ms.p99),
                times.filter(|_| row.whose() == Whose::Other),
                row.stopped(),
                (!disk.is_empty()).then(|| median(&disk)),
                causes(row.phases().flat_map(|phase| &phase.retries)),
                causes(row.phases().flat_map(|phase| &phase.errors)),
            ];
            table.row_of(row.whose(), figures);
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
            for (connections, (rates, p99s)) in &steps {
                let (least, most) = ends(rates);
                let is_last = steps
                    .last_key_value()
                    .is_some_and(|(last, _)| last == connections);
                let stopped = is_last.then(|| row.stopped());
                let (rate, p99) = (median(rates), median(p99s));
                let title = &row.entry.title;
                table.row_of(
                    row.whose(),
                    cells![title, *connections, rate, least, most, p99, stopped],
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
        let columns = columns.map(|column| (column, Unit::Words));
        let mut table = Table::new("How each is driven", columns).folded();
        for Row { entry, .. } in &self.rows {
            let facts = &entry.facts;
            let (is, by) = (&facts.durability, &facts.durability_detail);
            table.row(cells![&entry.title, is, by, &facts.note]);
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
        let columns = columns.into_iter().chain(Phase::COLUMNS);
        let mut table = Table::new("Every phase", columns).folded();
        for row in &self.rows {
            for (number, round) in (1_u32..).zip(&row.entry.rounds) {
                for phase in &round.phases {
                    let (title, mean) = (&row.entry.title, phase.latency_ms.mean);
                    let place: Vec<Cell> = cells![title, number, phase.connections, mean];
                    table.row_of(row.whose(), [place, phase.cells()].concat());
                }
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_half_the_range_over_the_median() {
        assert_eq!(noise(&[]), 0.0);
        assert_eq!(noise(&[100.0]), 0.0);
        assert_eq!(noise(&[90.0, 110.0]), 0.1);
        assert_eq!(noise(&[0.0, 0.0]), 0.0);
        assert_eq!(noise(&[80.0, 100.0, 100.0]), 0.1);
    }
}
