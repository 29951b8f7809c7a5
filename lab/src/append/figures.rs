//! What a run came to.

use super::bare::Bare;
use crate::cells;
use crate::report::{Report, Table, Unit, Whose};
use crate::store::Pipelines;
use crate::target::{Phase, ReadBack};

/// One run of the load, or of the bare statement.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) name: String,
    pub(super) phase: Phase,
    /// What the pipelines did, if they run in this process.
    pub(super) pipelines: Option<Pipelines>,
    /// Processor time of the server that was started.
    pub(super) server_cores: Option<f64>,
    pub(super) read_back: Option<ReadBack>,
}

impl Run {
    /// The bare statement with batches of so many events.
    pub(super) fn bare(name: &str, bare: &Bare) -> Self {
        let phase = Phase {
            connections: 1,
            events_per_second: bare.events_per_second,
            appends_per_second: bare.events_per_second,
            seconds: bare.seconds,
            latency_ms: bare.latency_ms,
            cpu: bare.cpu,
            complete: true,
            ..Phase::default()
        };
        let lost = ReadBack {
            lost: u64::from(!bare.valid),
            findings: vec!["the table has not the rows that were inserted".into()],
            ..ReadBack::default()
        };
        Self {
            name: name.to_owned(),
            phase,
            pipelines: None,
            server_cores: None,
            read_back: Some(lost),
        }
    }

    pub(super) fn rate(&self) -> f64 {
        self.phase.events_per_second
    }

    /// Mean number of events per batch; none if the pipelines run elsewhere.
    pub(super) fn batch(&self) -> Option<f64> {
        let pipelines = self.pipelines.filter(|pipelines| pipelines.batches > 0)?;
        Some(pipelines.events as f64 / pipelines.batches as f64)
    }

    /// What was read back, and what keeps the run from being a result.
    pub(super) fn tell(&self, report: &mut Report) {
        for (cause, count) in &self.phase.errors {
            report.problem(format!("{}: {count} appends failed: {cause}", self.name));
        }
        if let Some(read_back) = &self.read_back {
            report.check(self.name.clone(), read_back);
        }
        if let Some(limit) = &self.phase.generator_limit {
            report.caution(format!("{}: {limit}.", self.name));
        }
    }
}

/// Title of the table.
pub(super) const TITLE: &str = "Every run";

/// One row per run.
pub(super) fn table(runs: &[Run]) -> Table {
    let first = [("run", Unit::Words), ("waiters", Unit::Count)];
    let last = [
        ("generator, cores", Unit::Cores),
        ("server, cores", Unit::Cores),
        ("server, µs per append", Unit::Count),
        ("events per batch", Unit::Count),
        ("batches that missed", Unit::Count),
    ];
    let columns = first.into_iter().chain(Phase::COLUMNS).chain(last);
    let mut table = Table::new(TITLE, columns);
    for run in runs {
        let first = cells![&run.name, run.phase.connections];
        let per_append = |cores: f64| cores * 1e6 / run.phase.appends_per_second.max(1.0);
        let last = cells![
            run.phase.cpu.own_cores,
            run.server_cores,
            run.server_cores.map(per_append),
            run.batch(),
            run.pipelines.map(|pipelines| pipelines.misses),
        ];
        let whose = match run.pipelines {
            Some(_) => Whose::Ours,
            None => Whose::Other,
        };
        table.row_of(whose, [first, run.phase.cells(), last].concat());
    }
    table
}
