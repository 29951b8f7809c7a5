//! What happens in a run of `schemas`: rounds of schemas of phases, in step with the other processes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::meeting::Meeting;
use super::steps::{Ended, Limits, Steps, told};
use super::{SchemasArgs, limits};
use crate::failure::{Context, Result};
use crate::postgres;
use crate::sizes::Sizes;
use crate::target::{
    self, Claims, Embedded, Events, Load, Phase, PhaseRun, ReadBack, Target, TargetFacts,
};

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
    pub(super) fn figures(&self) -> Value {
        json!({
            "phases": self.phases,
            "ended": self.ended.as_ref().map(ToString::to_string),
            "read_back": self.read_back,
            "disk_bytes_per_event": self.disk_bytes_per_event.map(f64::round),
        })
    }

    /// Why and where it ended, for a table.
    pub(super) fn ended_at(&self) -> String {
        let connections = self.phases.last().map_or(0, |phase| phase.connections);
        match &self.ended {
            None | Some(Ended::LargestLoad) => Ended::LargestLoad.to_string(),
            Some(ended) => format!("{ended} at {connections} connections"),
        }
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

    pub(super) fn facts(&self, name: &str) -> Option<&TargetFacts> {
        self.facts.get(name)
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
    pub(super) async fn run(
        &mut self,
        meeting: &mut Meeting,
        stop: &CancellationToken,
    ) -> Result<()> {
        self.announce(meeting);
        self.rehearse(meeting, stop).await?;
        for round in 1..=self.args.rounds {
            let mut order = self.targets.clone();
            if round % 2 == 0 {
                order.reverse();
            }
            for target in order {
                if !self.complete {
                    return Ok(());
                }
                if meeting.number() == 0 {
                    eprintln!("round {round} of {}: {}", self.args.rounds, target.title());
                }
                let done = self.one(&target, meeting, stop).await;
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
    async fn rehearse(&mut self, meeting: &mut Meeting, stop: &CancellationToken) -> Result<()> {
        let Some(target) = self.targets.first().cloned() else {
            return Ok(());
        };
        if self.database.is_none() {
            return Ok(());
        }
        if meeting.number() == 0 {
            eprintln!("rehearsal, not counted: {}", target.title());
        }
        let done = self.one(&target, meeting, stop).await;
        let done = done.context(target.name().to_owned())?;
        self.complete = done.ended != Some(Ended::Interrupted);
        self.controls.clear();
        Ok(())
    }

    fn announce(&self, meeting: &Meeting) {
        if meeting.number() > 0 {
            return;
        }
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
    async fn one(
        &mut self,
        target: &Arc<dyn Target>,
        meeting: &mut Meeting,
        stop: &CancellationToken,
    ) -> Result<Round> {
        if meeting.number() == 0 {
            self.control().await?;
            target.prepare().await?;
            let facts = target.facts().await?;
            self.facts.insert(target.name().to_owned(), facts);
        }
        let process = meeting.number();
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
        for each in self.steps.each() {
            let load = self.load(process, first_worker, each);
            first_worker += each;
            meeting.start(stop).await?;
            let (own, claimed) = target::run(target, &events, &load, stop).await?;
            claims.add(claimed);
            let all = together(meeting, own, stop).await?;
            let phase = all.figures(self.steps.together(each), embedded(target.as_ref()));
            if process == 0 {
                eprintln!("  {}", told(&phase));
            }
            let ended = self.limits.ends(&phase, all.gave_up);
            round.phases.push(phase);
            if let Some(ended) = ended {
                round.ended = Some(ended);
                break;
            }
        }
        let found = target::check(target.as_ref(), &events, process, &claims).await?;
        let found = meeting.gather(serde_json::to_string(&found)?, stop).await?;
        let mut read_back = ReadBack::default();
        for text in found {
            read_back.add(serde_json::from_str(&text)?);
        }
        if process == 0 {
            round.disk_bytes_per_event = per_event(target.disk_bytes().await?, read_back.found);
            if let Some(complaint) = read_back.complaint() {
                eprintln!("  NO RESULT: {complaint}");
            }
        }
        round.read_back = Some(read_back);
        self.clear(target, meeting, stop).await?;
        Ok(round)
    }

    fn load(&self, process: u8, first_worker: u32, each: u32) -> Load {
        Load {
            process,
            first_worker,
            workers: each,
            events: self.args.events,
            events_per_stream: self.args.events_per_stream,
            streams: 1,
            rate: None,
            warm_up: self.args.warm_up,
            duration: self.args.phase,
        }
    }

    /// Every process closes what it has open; the first removes the tables at last.
    async fn clear(
        &self,
        target: &Arc<dyn Target>,
        meeting: &mut Meeting,
        stop: &CancellationToken,
    ) -> Result<()> {
        if meeting.number() > 0 {
            target.close().await?;
        }
        meeting.gather(String::new(), stop).await?;
        if meeting.number() == 0 {
            target.remove().await?;
            if let Some(url) = &self.database {
                // What one schema left to be written must not slow the next. Only some roles may.
                let client = postgres::connect(url).await?;
                let _ = client.batch_execute("CHECKPOINT").await;
            }
        }
        Ok(())
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

/// What all processes did in a phase.
async fn together(
    meeting: &mut Meeting,
    own: PhaseRun,
    stop: &CancellationToken,
) -> Result<PhaseRun> {
    if let Meeting::Alone = meeting {
        return Ok(own);
    }
    let texts = meeting.gather(serde_json::to_string(&own)?, stop).await?;
    let mut all = PhaseRun {
        complete: true,
        ..PhaseRun::default()
    };
    for text in texts {
        all.add(serde_json::from_str(&text)?);
    }
    Ok(all)
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
