//! What a run of `schemas` says: each schema's best, the curves over connections, the noise, what was published, and
//! what is no result.

use std::collections::{BTreeMap, BTreeSet};

use gesta_load::counters::{self, Stretch};
use gesta_load::sizes::Sizes;
use gesta_load::target::Phase;
use gesta_report::histogram::{ends, median, noise};
use gesta_report::numbers::{bytes, count, millis, percent, times};
use gesta_report::{Chart, Report, Scale, Table, Unit, Whose, causes};

use super::{COMPRESSION, Entry, P99_MS_MAX, Round};

const BEST: &str = "Schemas, the best first";
const STEPS: &str = "Over connections, the middle of the rounds";
const PROCESSES: &str = "Every process in every phase";
/// Schemas whose processes are drawn, the best first.
const DRAWN: usize = 2;

/// All schemas, the best first.
pub(super) struct Ranking {
    rows: Vec<Entry>,
    /// How far rounds of the same differ, at most.
    noise: f64,
    controls: Vec<f64>,
    /// Processes that made the load.
    processes: u32,
}

/// The phase with the highest rate whose 99th percentile is within the limit.
fn best(round: &Round) -> Option<&Phase> {
    let is_good = |phase: &&Phase| {
        phase.complete && phase.latency_ms.count > 0 && phase.latency_ms.p99 <= P99_MS_MAX
    };
    let good = round.phases.iter().filter(is_good);
    good.max_by(|a, b| a.events_per_second.total_cmp(&b.events_per_second))
}

impl Entry {
    /// Best rates of the rounds; 0 if no phase kept the limit.
    fn by_round(&self) -> Vec<f64> {
        let rounds = self.rounds.iter();
        let rate = |round| best(round).map_or(0.0, |phase| phase.events_per_second);
        rounds.map(rate).collect()
    }

    /// The best phase of the round in the middle.
    fn best(&self) -> Option<&Phase> {
        let middle = self.rate();
        let distance = |phase: &Phase| (phase.events_per_second - middle).abs();
        let bests = self.rounds.iter().filter_map(best);
        bests.min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }

    /// The best rate, in the middle of the rounds.
    fn rate(&self) -> f64 {
        median(&self.by_round())
    }

    fn whose(&self) -> Whose {
        Whose::named(&self.name)
    }

    fn phases(&self) -> impl Iterator<Item = &Phase> {
        self.rounds.iter().flat_map(|round| &round.phases)
    }

    /// Why its rounds were stopped; empty if none was.
    fn stopped(&self) -> String {
        let rounds = self.rounds.iter();
        let all: BTreeSet<&str> = rounds
            .filter_map(|round| round.stopped.as_deref())
            .collect();
        all.into_iter().collect::<Vec<_>>().join("; ")
    }

    /// In the middle of the rounds, with indexes.
    fn disk_per_event(&self) -> Option<f64> {
        let rounds = self.rounds.iter();
        let all: Vec<f64> = rounds
            .filter_map(|round| round.disk_bytes_per_event)
            .collect();
        (!all.is_empty()).then(|| median(&all))
    }

    /// All rounds together, by connections.
    fn steps(&self) -> Vec<Step<'_>> {
        let mut steps: Vec<Step<'_>> = Vec::new();
        let counts: BTreeSet<u32> = self.phases().map(|phase| phase.connections).collect();
        for connections in counts {
            let at = || {
                self.phases()
                    .filter(move |phase| phase.connections == connections)
            };
            steps.push(Step {
                row: self,
                connections,
                rates: at().map(|phase| phase.events_per_second).collect(),
                p99s: at().map(|phase| phase.latency_ms.p99).collect(),
                is_last: false,
            });
        }
        if let Some(last) = steps.last_mut() {
            last.is_last = true;
        }
        steps
    }
}

/// What all rounds of a schema came to with so many connections.
struct Step<'a> {
    row: &'a Entry,
    connections: u32,
    rates: Vec<f64>,
    p99s: Vec<f64>,
    is_last: bool,
}

impl Ranking {
    pub(super) fn of(entries: Vec<Entry>, controls: Vec<f64>, processes: u32) -> Self {
        let mut rows = entries;
        rows.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
        let noises = rows.iter().map(|row| noise(&row.by_round()));
        let noise = noises.fold(0.0, f64::max);
        Self {
            rows,
            noise,
            controls,
            processes,
        }
    }

    /// `counted_by`: how the database was watched.
    pub(super) fn tell(&self, report: &mut Report, sizes: &Sizes, counted_by: &str) {
        report.finding = self.finding();
        let mean = bytes(sizes.mean().round());
        report.setting = format!(
            "{COMPRESSION} compression for all, events of {mean} ({})",
            sizes.name
        );
        if self.processes > 1 {
            report
                .setting
                .push_str(&format!(", {} load processes in step", self.processes));
        }
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
        self.tell_of_processes(report);
        let bests = self.rows.iter().filter_map(|row| {
            // Of one that kept no limit, the largest load.
            let best = row.best().or_else(|| row.phases().last())?;
            Some(Stretch {
                name: format!("{}, {} connections", row.title, best.connections),
                done_per_second: best.events_per_second,
                figures: best.database.as_ref()?,
            })
        });
        let bests: Vec<Stretch<'_>> = bests.collect();
        counters::tell(report, "event", &bests, counted_by);
    }

    /// What each process did, if there were several.
    fn tell_of_processes(&self, report: &mut Report) {
        if self.processes < 2 {
            return;
        }
        let mut all = Vec::new();
        for row in &self.rows {
            for (number, round) in (1_u32..).zip(&row.rounds) {
                for (together, each) in round.phases.iter().zip(&round.by_process) {
                    let each = (0_u32..).zip(each);
                    let each = each.map(|(process, phase)| (row, number, process, together, phase));
                    all.extend(each);
                }
            }
        }
        let table = Table::of(PROCESSES, &all)
            .column("schema", Unit::Words, |(row, ..)| &row.title)
            .column("round", Unit::Count, |(_, number, ..)| *number)
            .column("process", Unit::Words, |(_, _, process, ..)| {
                format!("process {process}")
            })
            .column("connections of all", Unit::Count, |(.., together, _)| {
                together.connections
            })
            .column("its connections", Unit::Count, |(.., phase)| {
                phase.connections
            })
            .column("average", Unit::Millis, |(.., phase)| phase.latency_ms.mean)
            .columns(&Phase::COLUMNS, |(.., phase)| phase.cells());
        for row in self.rows.iter().take(DRAWN) {
            for (what, column, scale) in [
                ("Events per second", "events/s", Scale::Linear),
                ("p99", "p99", Scale::Log),
            ] {
                let x = ("connections of all", Scale::Linear);
                let title = format!("{what} of each process: {}, first round", row.title);
                let chart = Chart::lines(title, PROCESSES, x, (&[column], scale)).by("process");
                report.chart(chart.only("schema", &row.title).only("round", 1_u32));
            }
        }
        report.table(table.table().folded());
    }

    fn finding(&self) -> String {
        let within = format!(
            "with 99 of 100 appends stored within {}",
            millis(P99_MS_MAX)
        );
        let Some(first) = self.rows.first().filter(|first| first.rate() > 0.0) else {
            return format!("No schema carried anything {within}.");
        };
        let (title, rate) = (&first.title, count(first.rate()));
        let ours = self.rows.iter().find(|row| row.name == "gesta");
        let rival = self.rows.iter().find(|row| row.whose() == Whose::Other);
        let (Some(ours), Some(rival)) = (ours, rival) else {
            return format!("{title} carried {rate} events/s {within}.");
        };
        let lead = ours.rate() / rival.rate().max(1e-9);
        let sure = match (lead - 1.0).abs() <= 2.0 * self.noise {
            true => format!(", which is within the noise of ±{}", percent(self.noise)),
            false => String::new(),
        };
        if first.name != ours.name {
            let share = percent(ours.rate() / first.rate());
            return format!(
                "{title} carried the most, {rate} events/s {within}; Gesta carried {share} of that{sure}."
            );
        }
        format!(
            "Gesta carried the most, {rate} events/s {within}: {} the next ({}){sure}.",
            times(lead),
            rival.title,
        )
    }

    fn noise_told(&self) -> String {
        if self.rows.iter().all(|row| row.rounds.len() < 2) {
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
            for (number, round) in (1..).zip(&row.rounds) {
                if let Some(read_back) = &round.read_back {
                    report.check(format!("{}, round {number}", row.title), read_back);
                }
            }
            // A phase in which the generator was the limit says little about a schema's best.
            let best = row.best().map(|best| best.connections);
            let mut limited = row.phases().filter(|phase| Some(phase.connections) == best);
            if let Some(limit) = limited.find_map(|phase| phase.generator_limit.as_ref()) {
                report.problem(format!("{}: at its best, {limit}", row.name));
            }
        }
        let told = self
            .rows
            .iter()
            .map(|row| (&row.facts.durability, &row.name));
        let kinds: BTreeMap<&String, &String> = told.collect();
        if kinds.len() > 1 {
            report.problem(format!("durability differs: {kinds:?}"));
        }
    }

    fn best(&self) -> Table {
        let ours = self.rows.iter().find(|row| row.name == "gesta");
        let ours = ours.map(Entry::rate);
        let rate = |row: &Entry| Some(row.rate()).filter(|rate| *rate > 0.0);
        let times = |row: &Entry| {
            let is_other = row.whose() == Whose::Other;
            let ours = ours.filter(|_| is_other)?;
            Some(ours / rate(row)?)
        };
        let at = |row: &Entry| row.best().map(|best| best.connections);
        let p99 = |row: &Entry| row.best().map(|best| best.latency_ms.p99);
        let p999 = |row: &Entry| row.best().map(|best| best.latency_ms.p999);
        let retries = |row: &Entry| causes(row.phases().flat_map(|phase| &phase.retries));
        let errors = |row: &Entry| causes(row.phases().flat_map(|phase| &phase.errors));
        Table::of(BEST, &self.rows)
            .column("schema", Unit::Words, |row| &row.title)
            .column("best events/s", Unit::Count, rate)
            .column("least", Unit::Count, |row| {
                rate(row).map(|_| ends(&row.by_round()).0)
            })
            .column("most", Unit::Count, |row| {
                rate(row).map(|_| ends(&row.by_round()).1)
            })
            .column("noise ±", Unit::Share, |row| noise(&row.by_round()))
            .column("at connections", Unit::Count, at)
            .column("p99 there", Unit::Millis, p99)
            .column("p99.9 there", Unit::Millis, p999)
            .column("Gesta is so many times as fast", Unit::Times, times)
            .column("stopped", Unit::Words, Entry::stopped)
            .column("disk per event", Unit::Bytes, Entry::disk_per_event)
            .column("tried again", Unit::Words, retries)
            .column("errors", Unit::Words, errors)
            .whose(Entry::whose)
            .table()
    }

    fn over_connections(&self) -> Table {
        let steps: Vec<Step<'_>> = self.rows.iter().flat_map(Entry::steps).collect();
        Table::of(STEPS, &steps)
            .column("schema", Unit::Words, |step| &step.row.title)
            .column("connections", Unit::Count, |step| step.connections)
            .column("events/s", Unit::Count, |step| median(&step.rates))
            .column("least", Unit::Count, |step| ends(&step.rates).0)
            .column("most", Unit::Count, |step| ends(&step.rates).1)
            .column("p99", Unit::Millis, |step| median(&step.p99s))
            .column("stopped", Unit::Words, |step| {
                step.is_last.then(|| step.row.stopped())
            })
            .whose(|step| step.row.whose())
            .table()
            .folded()
    }

    fn driven(&self) -> Table {
        Table::of("How each is driven", &self.rows)
            .column("schema", Unit::Words, |row| &row.title)
            .column("durability", Unit::Words, |row| &row.facts.durability)
            .column("by these settings", Unit::Words, |row| {
                &row.facts.durability_detail
            })
            .column("how it is driven", Unit::Words, |row| &row.facts.note)
            .table()
            .folded()
    }

    fn every_phase(&self) -> Table {
        let mut phases = Vec::new();
        for row in &self.rows {
            for (number, round) in (1_u32..).zip(&row.rounds) {
                phases.extend(round.phases.iter().map(|phase| (row, number, phase)));
            }
        }
        Table::of("Every phase", &phases)
            .column("schema", Unit::Words, |(row, ..)| &row.title)
            .column("round", Unit::Count, |(_, number, _)| *number)
            .column("connections", Unit::Count, |(.., phase)| phase.connections)
            .column("average", Unit::Millis, |(.., phase)| phase.latency_ms.mean)
            .columns(&Phase::COLUMNS, |(.., phase)| phase.cells())
            .whose(|(row, ..)| row.whose())
            .table()
            .folded()
    }
}
