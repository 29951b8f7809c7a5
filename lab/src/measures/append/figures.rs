//! What a run came to.

use gesta_report::read_back::ReadBack;
use gesta_report::{Report, Table, Unit, Whose};

use gesta_load::counters::DatabaseFigures;
use gesta_load::machine::store::Pipelines;
use gesta_load::target::Phase;

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
    /// What the database did, and how many events a second all that shared it stored.
    pub(super) database: Option<(DatabaseFigures, f64)>,
}

impl Run {
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
    let per_append = |run: &Run| {
        let appends = run.phase.appends_per_second.max(1.0);
        run.server_cores.map(|cores| cores * 1e6 / appends)
    };
    let misses = |run: &Run| run.pipelines.map(|pipelines| pipelines.misses);
    Table::of(TITLE, runs)
        .column("run", Unit::Words, |run| &run.name)
        .column("waiters", Unit::Count, |run| run.phase.connections)
        .columns(&Phase::COLUMNS, |run| run.phase.cells())
        .column("generator, cores", Unit::Cores, |run| {
            run.phase.cpu.own_cores
        })
        .column("server, cores", Unit::Cores, |run| run.server_cores)
        .column("server, µs per append", Unit::Count, per_append)
        .column("events per batch", Unit::Count, Run::batch)
        .column("batches that missed", Unit::Count, misses)
        .whose(|run| run.pipelines.map_or(Whose::Other, |_| Whose::Ours))
        .table()
}
