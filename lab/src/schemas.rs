//! `schemas`: how many events does this database carry with each of the field's journal schemas, and with Gesta?
//!
//! The method is that of the published comparison: looping appends of events whose sizes are drawn from a
//! distribution, with more and more connections, until a schema's average latency passes a limit; the best rate with a
//! good 99th percentile counts. Rounds go through the schemas forwards and backwards, so that none has the machine's
//! best mood to itself, and their differences are the noise that is reported.
//! Not here: what the figures say (`ranking`).

mod ranking;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoint;
use crate::failure::{Context, Result, fail};
use crate::journals;
use crate::postgres;
use crate::read_back::ReadBack;
use crate::report::{Report, ReportArgs};
use crate::sizes::Sizes;
use crate::store;
use crate::target::{self, Claims, Events, GestaTarget, Load, Phase, Target, TargetFacts};
use crate::units;

use ranking::Ranking;

/// All tables compress large data alike: PostgreSQL's default would cost the others several times what it costs Gesta.
const COMPRESSION: &str = "lz4";
/// A schema whose average latency passes this is stopped.
const AVERAGE_MS_MAX: f64 = 500.0;
/// The best rate is the highest with a 99th percentile up to this.
const P99_MS_MAX: f64 = 100.0;
/// Events per stream; then a worker goes on with a new one.
const EVENTS_PER_STREAM: u64 = 10;
/// Time before the clock starts in each phase.
const WARM_UP: Duration = Duration::from_millis(500);
/// Time for which the machine alone is measured before each schema.
const CONTROL: Duration = Duration::from_secs(1);
/// Connections beside those of the workers: for preparing, reading back, Gesta's own.
const OTHERS: u32 = 12;

/// Events per second of the field's journal schemas and of Gesta, over rising numbers of connections.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct SchemasArgs {
    /// The database: `postgres://…` or `postgres:new`, a server started for this run.
    /// Everything is made in schemas named `gesta_lab_…` and removed afterwards.
    #[arg(long, default_value = "postgres:new")]
    #[serde(skip)]
    store: String,
    /// Only these, by name, separated by commas; the default is all.
    #[arg(long, value_delimiter = ',')]
    schemas: Vec<String>,
    /// Sizes of the events: `published`, a number of bytes, or a file of classes.
    #[arg(long, default_value = "published")]
    sizes: String,
    /// Connections that each phase adds.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    step: u32,
    /// Most connections; the last phase has them.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    max: u32,
    /// Length of a phase.
    #[arg(long, default_value = "5s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "phase_seconds")]
    phase: Duration,
    /// Times that everything is measured.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seed of sizes and contents.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &SchemasArgs, stop: &CancellationToken) -> Result<bool> {
    if args.step > args.max {
        return fail(format!("--step {} is above --max {}", args.step, args.max));
    }
    let mut server = None;
    let url = match args.store.as_str() {
        store::NEW_SERVER => server.insert(store::new_server_for(args.max + 40)?).url(),
        url => url.to_owned(),
    };
    let mut contest = Contest {
        args,
        sizes: Sizes::named(&args.sizes)?,
        targets: targets(args, &url).await?,
        url: &url,
        entries: BTreeMap::new(),
        controls: Vec::new(),
        complete: true,
    };
    contest.run(stop).await?;
    let mut report = Report::begin("schemas", "Journal schemas", args.seed);
    report.store = Some(store::database_facts(&url, Duration::ZERO).await?);
    report.workload =
        json!({ "args": args, "sizes": contest.sizes, "mean_bytes": contest.sizes.mean().round() });
    let order = contest.targets.iter();
    let entries = order.filter_map(|target| contest.entries.remove(target.name()));
    Ranking::of(entries.collect(), contest.controls).tell(&mut report, &contest.sizes);
    report.finish(&args.report, contest.complete)
}

/// The targets, in the order in which the first round goes through them.
async fn targets(args: &SchemasArgs, url: &str) -> Result<Vec<Arc<dyn Target>>> {
    if !Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres()) {
        return fail("--store is the database, postgres://… or postgres:new");
    }
    // A server that refuses a connection in the middle would spoil the run.
    let settings = postgres::settings(url).await?;
    let there = settings.get("max_connections").and_then(|n| n.parse().ok());
    let wanted = args.max + OTHERS;
    if let Some(there) = there.filter(|there: &u32| *there < wanted) {
        return fail(format!(
            "the server's max_connections is {there}; up to {wanted} are needed: raise it, or lower --max"
        ));
    }
    let gesta = || GestaTarget::new(url, Duration::ZERO, Some(COMPRESSION));
    let mut all: Vec<Arc<dyn Target>> =
        vec![Arc::new(gesta().opaque()), Arc::new(gesta().readable())];
    for name in journals::NAMES {
        let journal = journals::named(name, url, Duration::ZERO, Some(COMPRESSION))?;
        all.push(journal);
    }
    let known: Vec<String> = all.iter().map(|target| target.name().to_owned()).collect();
    if let Some(unknown) = args.schemas.iter().find(|name| !known.contains(name)) {
        let known = known.join(", ");
        return fail(format!("no schema {unknown:?}; there are {known}"));
    }
    let is_asked = |name: &str| args.schemas.is_empty() || args.schemas.iter().any(|n| n == name);
    all.retain(|target| is_asked(target.name()));
    Ok(all)
}

#[derive(Debug, Clone)]
struct Entry {
    name: String,
    title: String,
    facts: TargetFacts,
    rounds: Vec<Round>,
}

/// One schema in one round.
#[derive(Debug, Clone, Default)]
struct Round {
    phases: Vec<Phase>,
    /// Why it was stopped before the largest load.
    stopped: Option<String>,
    read_back: Option<ReadBack>,
    disk_bytes_per_event: Option<f64>,
}

/// Why this phase was the last, if it was.
fn stopped(phase: &Phase, gave_up: u32) -> Option<String> {
    let (mean, at) = (phase.latency_ms.mean, phase.connections);
    if !phase.complete {
        Some("interrupted".into())
    } else if phase.latency_ms.count == 0 || gave_up >= phase.connections {
        let causes = phase.errors.iter().chain(&phase.retries);
        let most = causes.max_by_key(|(_, count)| **count);
        let cause = most.map_or("nothing was stored", |(cause, _)| cause.as_str());
        Some(format!("failed at {at} connections: {cause}"))
    } else {
        (mean > AVERAGE_MS_MAX).then(|| format!("average latency {mean:.0} ms at {at} connections"))
    }
}

struct Contest<'a> {
    args: &'a SchemasArgs,
    sizes: Sizes,
    targets: Vec<Arc<dyn Target>>,
    url: &'a str,
    entries: BTreeMap<String, Entry>,
    controls: Vec<f64>,
    complete: bool,
}

impl Contest<'_> {
    /// Everything. What there is stays there if it is interrupted.
    async fn run(&mut self, stop: &CancellationToken) -> Result<()> {
        // The first once without counting it: a database that has just begun makes segments of its log and grows its
        // caches, and whoever comes first would pay for that.
        for round in 0..=self.args.rounds {
            let mut order = self.targets.clone();
            match round {
                0 => order.truncate(1),
                round if round % 2 == 0 => order.reverse(),
                _ => {}
            }
            for target in order {
                if stop.is_cancelled() {
                    self.complete = false;
                    return Ok(());
                }
                eprintln!("round {round} of {}: {}", self.args.rounds, target.title());
                let done = self.one(&target, stop).await;
                let (facts, done) = done.context(target.name())?;
                if round == 0 {
                    self.controls.clear();
                    continue;
                }
                let entry = self.entries.entry(target.name().to_owned());
                let entry = entry.or_insert_with(|| Entry {
                    name: target.name().to_owned(),
                    title: target.title().to_owned(),
                    facts,
                    rounds: Vec::new(),
                });
                entry.rounds.push(done);
            }
        }
        self.complete = !stop.is_cancelled();
        Ok(())
    }

    /// One schema in one round.
    async fn one(
        &mut self,
        target: &Arc<dyn Target>,
        stop: &CancellationToken,
    ) -> Result<(TargetFacts, Round)> {
        self.control().await?;
        target.prepare().await?;
        let facts = target.facts().await?;
        let events = Arc::new(Events::new(self.sizes.clone(), 1, self.args.seed));
        let (mut round, mut claims, mut workers) = (Round::default(), Claims::default(), 0);
        let mut first_worker = 0;
        while workers < self.args.max && round.stopped.is_none() {
            workers = (workers + self.args.step).min(self.args.max);
            let load = Load {
                first_worker,
                workers,
                events: 1,
                events_per_stream: EVENTS_PER_STREAM,
                streams: 1,
                rate: None,
                warm_up: WARM_UP,
                duration: self.args.phase,
            };
            first_worker += workers;
            let (run, claimed) = target::run(target, &events, &load, stop).await?;
            claims.add(claimed);
            let phase = run.figures(workers, target.is_embedded());
            eprintln!("  {workers} connections: {}", phase.told());
            round.stopped = stopped(&phase, run.gave_up);
            round.phases.push(phase);
        }
        let read_back = target::check(target.as_ref(), &events, &claims).await?;
        let disk = target.disk_bytes().await?;
        let disk = disk.map(|bytes| bytes as f64 / read_back.found.max(1) as f64);
        round.disk_bytes_per_event = disk;
        if let Some(complaint) = read_back.complaint() {
            eprintln!("  NO RESULT: {complaint}");
        }
        round.read_back = Some(read_back);
        target.remove().await?;
        // What one schema left to be written must not slow the next. Only some roles may.
        let client = postgres::connect(self.url).await?;
        let _ = client.batch_execute("CHECKPOINT").await;
        Ok((facts, round))
    }

    /// How fast the machine is now: commits of a bare INSERT on one connection.
    async fn control(&mut self) -> Result<()> {
        let client = postgres::connect(self.url).await?;
        let make =
            "DROP TABLE IF EXISTS gesta_lab_control; CREATE TABLE gesta_lab_control (n bigint)";
        client.batch_execute(make).await.context("making a table")?;
        let insert = "INSERT INTO gesta_lab_control VALUES ($1)";
        let insert = client.prepare(insert).await?;
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
