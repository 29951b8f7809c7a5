//! A run of `schemas` and its contenders.

use crate::histogram::median;
use crate::page::lines::Line;
use crate::page::look::Look;
use crate::page::numbers::{capitalised, list, percent, plural, spelled};
use crate::page::section::{engine, is_ours, range};

/// What `ended` says of a schema that was never stopped.
const LARGEST: &str = "the largest load";

/// One line.
pub(super) struct Run<'a> {
    pub(super) line: &'a Line,
    pub(super) contenders: Vec<Contender<'a>>,
}

/// One schema in it.
#[derive(Clone, Copy)]
pub(super) struct Contender<'a> {
    pub(super) look: Look<'a>,
    pub(super) name: &'a str,
    pub(super) title: &'a str,
}

/// What all rounds did with so many connections.
pub(super) struct Step {
    pub(super) connections: f64,
    pub(super) rates: Vec<f64>,
    pub(super) p99s: Vec<f64>,
}

impl<'a> Run<'a> {
    pub(super) fn of(line: &'a Line) -> Self {
        let contenders = line.result().get("targets").items().map(|look| {
            let name = look.get("name").text().unwrap_or("unnamed");
            Contender {
                look,
                name,
                title: look.get("title").text().unwrap_or(name),
            }
        });
        Self {
            line,
            contenders: contenders.collect(),
        }
    }

    /// What must be the same in runs that are compared.
    pub(super) fn key(&self) -> String {
        let workload = self.line.workload();
        let parts = [
            "compression",
            "sizes.name",
            "sizes.mean_bytes",
            "events_per_append",
            "payload_kind",
            "round_trip_ms",
            "categories",
            "processes",
        ];
        let parts = parts.map(|path| workload.get(path).told());
        let build = self.line.get("build").told();
        format!("{} {build} {}", engine(self.line), parts.join(" "))
    }

    /// How large data are compressed, in words.
    pub(super) fn compression(&self) -> String {
        match self.line.workload().text_or_empty("compression") {
            "own" => "each with its own compression".into(),
            "none" => "no compression".into(),
            "" => "unknown compression".into(),
            method => format!("{method} compression for all"),
        }
    }

    /// The best first.
    pub(super) fn ranked(&self) -> Vec<Contender<'a>> {
        let mut ranked = self.contenders.clone();
        ranked.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
        ranked
    }

    /// A best rate needs a 99th percentile up to this.
    pub(super) fn p99_limit(&self) -> f64 {
        self.line
            .workload()
            .get("p99_ms_max")
            .number()
            .unwrap_or(100.0)
    }

    /// How far rounds of the same schema differed at most: ± this share.
    pub(super) fn noise(&self) -> f64 {
        let said = self.line.result().get("noise").number();
        let of_all = || {
            self.contenders
                .iter()
                .map(Contender::noise)
                .fold(0.0, f64::max)
        };
        said.unwrap_or_else(of_all)
    }

    /// Gesta's best against the best of the others.
    pub(super) fn lead(&self) -> Option<f64> {
        let ours = self
            .contenders
            .iter()
            .find(|one| one.name == "gesta")?
            .rate();
        let others = self.contenders.iter().filter(|one| !is_ours(one.name));
        let best = others.map(Contender::rate).fold(0.0, f64::max);
        (best > 0.0 && ours > 0.0).then(|| ours / best)
    }

    /// Least and most of the rounds of a schema.
    pub(super) fn range(&self, one: &Contender<'_>) -> Option<(f64, f64)> {
        range(&one.look.get("best_by_round").numbers()).filter(|(least, most)| most > least)
    }

    /// What the noise is.
    pub(super) fn noise_told(&self) -> String {
        let rounds = self
            .contenders
            .iter()
            .map(|one| one.look.get("rounds").items().count());
        let rounds = rounds.max().unwrap_or(0);
        if rounds < 2 {
            return "Every schema was measured in one round only, so nothing is known about the noise: \
                    take differences below a fifth for nothing."
                .into();
        }
        let control = self.line.result().get("control_noise").number();
        let control = control.or_else(|| {
            let (least, most) = range(
                &self
                    .line
                    .result()
                    .get("control_events_per_second")
                    .numbers(),
            )?;
            (most > 0.0).then(|| (most - least) / (most + least))
        });
        let control = control.map(|noise| {
            format!(
                "; a bare INSERT, repeated in between to watch the machine itself, differed by ±{}",
                percent(noise)
            )
        });
        format!(
            "Noise: {} of the same schema differed by at most ±{}{}.",
            plural(rounds, "round"),
            percent(self.noise()),
            control.unwrap_or_default()
        )
    }
}

impl<'a> Contender<'a> {
    /// The best rate; 0 if no phase kept the limit.
    pub(super) fn rate(&self) -> f64 {
        self.look.number_or_0("best.events_per_second").max(0.0)
    }

    pub(super) fn noise(&self) -> f64 {
        self.look.number_or_0("noise")
    }

    pub(super) fn phases(&self) -> impl Iterator<Item = Look<'a>> + use<'a> {
        let rounds = self.look.get("rounds").items();
        rounds.flat_map(|round| round.get("phases").items())
    }

    pub(super) fn disk(&self) -> Option<f64> {
        let rounds = self.look.get("rounds").items();
        let disk: Vec<f64> = rounds
            .filter_map(|r| r.get("disk_bytes_per_event").number())
            .collect();
        (!disk.is_empty()).then(|| median(&disk))
    }

    /// Why its rounds ended.
    pub(super) fn ended(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for round in self.look.get("rounds").items() {
            let Some(ended) = round.get("ended").text() else {
                continue;
            };
            let last = round.get("phases").items().next_back();
            let connections = last.and_then(|phase| phase.get("connections").whole());
            let told = match connections {
                Some(connections) if ended != LARGEST => {
                    format!("{ended}, at {connections} connections")
                }
                _ => ended.to_owned(),
            };
            if !all.contains(&told) {
                all.push(told);
            }
        }
        all
    }

    pub(super) fn was_stopped(&self) -> bool {
        self.ended().iter().any(|ended| ended != LARGEST)
    }

    /// All rounds together, by connections.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for phase in self.phases() {
            let Some(connections) = phase.get("connections").number() else {
                continue;
            };
            let rate = phase.number_or_0("events_per_second");
            let p99 = phase.number_or_0("latency_ms.p99");
            match steps
                .iter_mut()
                .find(|step| step.connections == connections)
            {
                Some(step) => {
                    step.rates.push(rate);
                    step.p99s.push(p99);
                }
                None => steps.push(Step {
                    connections,
                    rates: vec![rate],
                    p99s: vec![p99],
                }),
            }
        }
        steps.sort_by(|a, b| a.connections.total_cmp(&b.connections));
        steps
    }

    /// The rate with so many connections.
    pub(super) fn rate_at(&self, connections: f64) -> Option<f64> {
        let steps = self.steps();
        let step = steps.iter().find(|step| step.connections == connections)?;
        Some(median(&step.rates))
    }
}

/// Whether several runs agree within the noise that they report; none of fewer than two.
pub(super) fn agreement(runs: &[Run<'_>]) -> Option<String> {
    let runs: Vec<&Run<'_>> = runs.iter().filter(|run| run.line.is_valid()).collect();
    if runs.len() < 2 {
        return None;
    }
    let how_many = capitalised(&spelled(runs.len()));
    if runs.iter().any(|run| run.noise() <= 0.0) {
        return Some(format!(
            "{how_many} runs: not all report a noise, so whether they agree cannot be said."
        ));
    }
    let mut worst: Option<(f64, String)> = None;
    let mut apart = Vec::new();
    for one in &runs[0].contenders {
        let rates: Vec<(f64, f64)> = runs
            .iter()
            .filter_map(|run| {
                let same = run.contenders.iter().find(|other| other.name == one.name)?;
                Some((same.rate(), run.noise()))
            })
            .filter(|(rate, _)| *rate > 0.0)
            .collect();
        let Some((least, most)) = range(&rates.iter().map(|(rate, _)| *rate).collect::<Vec<_>>())
        else {
            continue;
        };
        if rates.len() < 2 {
            continue;
        }
        let difference = (most - least) / (most + least);
        if worst.as_ref().is_none_or(|(most, _)| difference > *most) {
            worst = Some((difference, one.title.to_owned()));
        }
        let from = rates
            .iter()
            .map(|(rate, noise)| rate * (1.0 - noise))
            .fold(0.0, f64::max);
        let to = rates
            .iter()
            .map(|(rate, noise)| rate * (1.0 + noise))
            .fold(f64::MAX, f64::min);
        if from > to {
            apart.push(format!("{} (±{})", one.title, percent(difference)));
        }
    }
    let (difference, title) = worst?;
    let noises: Vec<String> = runs
        .iter()
        .map(|run| format!("±{}", percent(run.noise())))
        .collect();
    Some(if apart.is_empty() {
        format!(
            "{how_many} runs agree: every schema's best rates lie within the noise that the runs report ({}); \
             the largest difference is ±{} ({title}).",
            list(&noises),
            percent(difference)
        )
    } else {
        format!(
            "{how_many} runs do not agree on {}: more than the noise that they report ({}).",
            list(&apart),
            list(&noises)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::lines::Lines;

    fn lines(runs: &[(f64, f64)]) -> Lines {
        let mut lines = Lines::default();
        for (rate, noise) in runs {
            let line = serde_json::json!({
                "format": 1, "kind": "schemas", "valid": true,
                "result": {"noise": noise, "targets": [
                    {"name": "gesta", "title": "Gesta", "best": {"events_per_second": 9_000.0}},
                    {"name": "jdbc", "title": "JDBC", "best": {"events_per_second": rate}},
                ]},
            });
            lines.add(std::path::Path::new("a"), format!("{line}\n").as_bytes());
        }
        lines
    }

    fn told(runs: &[(f64, f64)]) -> String {
        let lines = lines(runs);
        let runs: Vec<Run<'_>> = lines.all.iter().map(Run::of).collect();
        agreement(&runs).unwrap_or_default().replace('\u{a0}', " ")
    }

    #[test]
    fn runs_agree_within_the_noise_that_they_report() {
        let agree = told(&[(1_000.0, 0.05), (1_080.0, 0.05)]);
        assert!(agree.starts_with("Two runs agree"), "{agree}");
        assert!(
            agree.ends_with("the largest difference is ±3.8 % (JDBC)."),
            "{agree}"
        );
        let apart = told(&[(1_000.0, 0.05), (1_200.0, 0.05)]);
        assert!(
            apart.starts_with("Two runs do not agree on JDBC (±9.1 %)"),
            "{apart}"
        );
        let unknown = told(&[(1_000.0, 0.05), (1_000.0, 0.0)]);
        assert!(unknown.contains("cannot be said"), "{unknown}");
        assert_eq!(told(&[(1_000.0, 0.05)]), "");
    }
}
