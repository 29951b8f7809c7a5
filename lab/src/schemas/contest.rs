//! What happens in a run of `schemas`: rounds of schemas of phases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::steps::{Ended, Limits, Steps, told};
use super::{SchemasArgs, limits};
use crate::failure::{Context, Result};
use crate::postgres;
use crate::sizes::Sizes;
use crate::target::{self, Claims, Embedded, Events, Load, Phase, ReadBack, Target, TargetFacts};

/// Time for which the machine alone is measured before each schema.
const CONTROL: Duration = Duration::from_secs(1);

/// One schema in one round.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    pub(super) phases: Vec<Phase>,
    pub(super) ended: Option<Ended>,
    pub(super) read_back: Option<ReadBack>,
    pub(super) disk_bytes_per_event: Option<f64>,
}

impl Round {
    /// Why and where it ended, for a table.
    pub(super) fn ended_at(&self) -> String {
        let connections = self.phases.last().map_or(0, |phase| phase.connections);
        match &self.ended {
            None | Some(Ended::LargestLoad) => Ended::LargestLoad.to_string(),
            Some(ended) => format!("{ended} at {connections} connections"),
        }
    }

    /// True if it was stopped before the largest load.
    pub(super) fn was_stopped(&self) -> bool {
        !matches!(self.ended, None | Some(Ended::LargestLoad))
    }
}

/// A run.
pub(super) struct Contest {
    steps: Steps,
    limits: Limits,
    args: SchemasArgs,
    sizes: Sizes,
    targets: Vec<Arc<dyn Target>>,
    rounds: BTreeMap<String, Vec<Round>>,
    facts: BTreeMap<String, TargetFacts>,
    /// PostgreSQL, where there is one.
    database: Option<String>,
    controls: Vec<f64>,
    complete: bool,
}

impl Contest {
    pub(super) fn new(
        args: &SchemasArgs,
        steps: Steps,
        sizes: Sizes,
        targets: Vec<Arc<dyn Target>>,
        url: &str,
    ) -> Self {
        Self {
            steps,
            limits: limits(args),
            args: args.clone(),
            sizes,
            targets,
            rounds: BTreeMap::new(),
            facts: BTreeMap::new(),
            database: url.starts_with("postgres").then(|| url.to_owned()),
            controls: Vec::new(),
            complete: true,
        }
    }

    pub(super) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    pub(super) fn controls(&self) -> &[f64] {
        &self.controls
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn all_facts(&self) -> impl Iterator<Item = (&String, &TargetFacts)> {
        self.facts.iter()
    }

    /// Targets that were measured, with their rounds.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&dyn Target, &[Round])> {
        self.targets.iter().filter_map(|target| {
            let rounds = self.rounds.get(target.name())?;
            Some((target.as_ref(), rounds.as_slice()))
        })
    }

    /// Everything. What there is stays there if it is interrupted.
    pub(super) async fn run(&mut self, stop: &CancellationToken) -> Result<()> {
        self.announce();
        self.rehearse(stop).await?;
        for round in 1..=self.args.rounds {
            let mut order = self.targets.clone();
            if round % 2 == 0 {
                order.reverse();
            }
            for target in order {
                if !self.complete {
                    return Ok(());
                }
                eprintln!("round {round} of {}: {}", self.args.rounds, target.title());
                let done = self.one(&target, stop).await;
                let done = done.context(target.name().to_owned())?;
                self.complete = done.ended != Some(Ended::Interrupted);
                let rounds = self.rounds.entry(target.name().to_owned()).or_default();
                rounds.push(done);
            }
        }
        Ok(())
    }

    /// Runs the first schema once without counting it: a database that has just begun makes segments of its log and
    /// grows its caches, and whoever comes first would pay for that.
    async fn rehearse(&mut self, stop: &CancellationToken) -> Result<()> {
        let Some(target) = self.targets.first().cloned() else {
            return Ok(());
        };
        if self.database.is_none() {
            return Ok(());
        }
        eprintln!("rehearsal, not counted: {}", target.title());
        let done = self.one(&target, stop).await;
        let done = done.context(target.name().to_owned())?;
        self.complete = done.ended != Some(Ended::Interrupted);
        self.controls.clear();
        Ok(())
    }

    fn announce(&self) {
        let phase = (self.args.phase + self.args.warm_up).as_secs_f64() + 0.5;
        let phases = f64::from(self.steps.count() * self.args.rounds);
        let targets = f64::from(u32::try_from(self.targets.len()).unwrap_or(u32::MAX));
        eprintln!(
            "{} schemas, {} phases of {:?}, {} rounds: at most {:.0} minutes and the reading back; sizes: {}",
            self.targets.len(),
            self.steps.count(),
            self.args.phase,
            self.args.rounds,
            (phase * phases * targets / 60.0).ceil(),
            self.sizes.name,
        );
    }

    /// One schema in one round.
    async fn one(&mut self, target: &Arc<dyn Target>, stop: &CancellationToken) -> Result<Round> {
        self.control().await?;
        target.prepare().await?;
        let facts = target.facts().await?;
        self.facts.insert(target.name().to_owned(), facts);
        let events = Events::new(
            self.sizes.clone(),
            self.args.payload_kind,
            self.args.categories,
            self.args.seed,
        );
        let events = Arc::new(events);
        let mut round = Round {
            ended: Some(Ended::LargestLoad),
            ..Round::default()
        };
        let mut claims = Claims::default();
        let mut first_worker = 0;
        for workers in self.steps.each() {
            let load = self.load(first_worker, workers);
            first_worker += workers;
            let (run, claimed) = target::run(target, &events, &load, stop).await?;
            claims.add(claimed);
            let phase = run.figures(workers, embedded(target.as_ref()));
            eprintln!("  {}", told(&phase));
            let ended = self.limits.ends(&phase, run.gave_up);
            round.phases.push(phase);
            if let Some(ended) = ended {
                round.ended = Some(ended);
                break;
            }
        }
        let read_back = target::check(target.as_ref(), &events, &claims).await?;
        round.disk_bytes_per_event = per_event(target.disk_bytes().await?, read_back.found);
        if let Some(complaint) = read_back.complaint() {
            eprintln!("  NO RESULT: {complaint}");
        }
        round.read_back = Some(read_back);
        target.remove().await?;
        if let Some(url) = &self.database {
            // What one schema left to be written must not slow the next. Only some roles may.
            let client = postgres::connect(url).await?;
            let _ = client.batch_execute("CHECKPOINT").await;
        }
        Ok(round)
    }

    fn load(&self, first_worker: u32, workers: u32) -> Load {
        Load {
            first_worker,
            workers,
            events: self.args.events,
            events_per_stream: self.args.events_per_stream,
            streams: 1,
            rate: None,
            warm_up: self.args.warm_up,
            duration: self.args.phase,
        }
    }

    /// How fast the machine is now: commits of a bare INSERT on one connection.
    async fn control(&mut self) -> Result<()> {
        let Some(url) = &self.database else {
            return Ok(());
        };
        let client = postgres::connect(url).await?;
        client
            .batch_execute(
                "DROP TABLE IF EXISTS gesta_lab_control; CREATE TABLE gesta_lab_control (n bigint)",
            )
            .await
            .context("making a table")?;
        let insert = client
            .prepare("INSERT INTO gesta_lab_control VALUES ($1)")
            .await?;
        let (begin, mut count) = (Instant::now(), 0_i32);
        while begin.elapsed() < CONTROL {
            client.execute(&insert, &[&i64::from(count)]).await?;
            count += 1;
        }
        let rate = f64::from(count) / begin.elapsed().as_secs_f64();
        self.controls.push(rate.round());
        client.batch_execute("DROP TABLE gesta_lab_control").await?;
        Ok(())
    }
}

fn embedded(target: &dyn Target) -> Embedded {
    if target.is_embedded() {
        Embedded::Yes
    } else {
        Embedded::No
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes of tables fit")]
fn per_event(bytes: Option<u64>, events: u64) -> Option<f64> {
    Some(bytes? as f64 / events.max(1) as f64)
}
