//! `schemas`: how many events does this database carry with each of the field's journal schemas, and with Gesta?
//!
//! The method is that of the published comparison: looping appends of events whose sizes are drawn from a
//! distribution, with more and more connections, until a schema's average latency passes a limit; the best rate with a
//! good 99th percentile counts. Rounds go through the schemas forwards and backwards, so that none has the machine's
//! best mood to itself, and their differences are the noise that is reported.
//! Several processes make the load together, in step (`meeting`): each has the same number of connections, and events
//! of its own, which it reads back itself. The first of them makes the tables, watches the database and reports.
//! Their rates are added, so a phase that they did not begin together is no schema's best.
//! Not here: what the figures say (`ranking`).

mod meeting;
mod ranking;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use gesta_load::counters::Watch;
use gesta_load::machine::postgres;
use gesta_load::machine::store;
use gesta_load::sizes::Sizes;
use gesta_load::target::{
    self, Beside, Claims, Events, GestaTarget, Load, Phase, PhaseRun, Target, TargetFacts,
};
use gesta_report::endpoint::Endpoint;
use gesta_report::failure::{Context, Result, fail};
use gesta_report::histogram::ends;
use gesta_report::read_back::ReadBack;
use gesta_report::units;
use gesta_report::{Report, ReportArgs};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::workload::journals;

use meeting::{Meeting, Others};
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
/// Connections beside those of the workers, of each process: for preparing, reading back, Gesta's own.
const OTHERS: u32 = 12;
/// Load processes whose windows differ by more than this share of a phase have not made its load together.
const APART_MAX: f64 = 0.1;
/// How long a process waits for the others, beside a phase: they read back, and one makes and removes tables.
const PATIENCE: Duration = Duration::from_secs(600);

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
    /// Connections that each phase adds, in each process.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    step: u32,
    /// Most connections of a process; the last phase has them.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    max: u32,
    /// Length of a phase.
    #[arg(long, default_value = "5s", value_parser = units::duration)]
    #[serde(serialize_with = "units::seconds", rename = "phase_seconds")]
    phase: Duration,
    /// Times that everything is measured.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Processes that make the load in step: phase p has processes × p × --step connections. Without --meeting this
    /// command starts the others itself.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,
    /// The same command is run --processes times, on this host or on several; they meet in the database by this name,
    /// and the first that comes reports.
    #[arg(long, requires = "processes", value_parser = meeting::name)]
    #[serde(skip)]
    meeting: Option<String>,
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
    if args.meeting.is_some() && args.store == store::NEW_SERVER {
        return fail("--meeting needs a database that all processes reach: --store postgres://…");
    }
    let mut server = None;
    let url = match args.store.as_str() {
        store::NEW_SERVER => server
            .insert(store::new_server_for(args.connections() + 40)?)
            .url(),
        url => url.to_owned(),
    };
    let mut contest = Contest {
        args,
        sizes: Sizes::named(&args.sizes)?,
        targets: targets(args, &url).await?,
        url: &url,
        watch: Watch::start(&url).await?,
        // Last: what fails from here on must remove its tables.
        meeting: args.meet(&url).await?,
        entries: BTreeMap::new(),
        controls: Vec::new(),
        complete: true,
    };
    let done = contest.run(stop).await;
    let meeting = std::mem::replace(&mut contest.meeting, Meeting::Alone);
    if let Err(why) = done {
        meeting.abandon().await;
        return Err(why);
    }
    let leads = meeting.leads();
    meeting.leave(stop).await?;
    if !leads {
        println!("The load process that came first reports.");
        return Ok(true);
    }
    let mut report = Report::begin("schemas", "Journal schemas", args.seed);
    report.store = Some(store::database_facts(&url, Duration::ZERO).await?);
    report.workload =
        json!({ "args": args, "sizes": contest.sizes, "mean_bytes": contest.sizes.mean().round() });
    let order = contest.targets.iter();
    let entries = order.filter_map(|target| contest.entries.remove(target.name()));
    let entries = entries.collect();
    let ranking = Ranking::of(entries, contest.controls, args.processes);
    ranking.tell(&mut report, &contest.sizes, contest.watch.method());
    report.finish(&args.report, contest.complete)
}

impl SchemasArgs {
    /// Connections that all processes may have together.
    fn connections(&self) -> u32 {
        self.processes * (self.max + OTHERS)
    }

    /// What all processes must have been given alike.
    fn told(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// This process's place among those that make the load; the others are started, unless they come by themselves.
    async fn meet(&self, url: &str) -> Result<Meeting> {
        if self.processes == 1 {
            return Ok(Meeting::Alone);
        }
        let (patience, given) = (PATIENCE + self.phase, self.meeting.as_ref());
        let random = || format!("run_{:016x}", uuid::Uuid::new_v4().as_u64_pair().0);
        let name = given.cloned().unwrap_or_else(random);
        let mut meeting = Meeting::join(url, &name, self.processes, patience).await?;
        if given.is_some() {
            return Ok(meeting);
        }
        match Others::start(self.processes - 1, &self.for_others(url, &name)) {
            Ok(others) => meeting.keep(others),
            Err(why) => {
                meeting.abandon().await;
                return Err(why);
            }
        }
        Ok(meeting)
    }

    /// The command of a process that comes to the meeting.
    fn for_others(&self, url: &str, name: &str) -> Vec<String> {
        let phase = format!("{}s", self.phase.as_secs_f64());
        let numbers = [self.step, self.max, self.rounds, self.processes].map(|n| n.to_string());
        let [step, max, rounds, processes] = numbers;
        let (seed, schemas) = (self.seed.to_string(), self.schemas.join(","));
        let mut all: Vec<String> = vec!["schemas".into()];
        for (option, value) in [
            ("--store", url),
            ("--meeting", name),
            ("--processes", &processes),
            ("--schemas", &schemas),
            ("--sizes", &self.sizes),
            ("--step", &step),
            ("--max", &max),
            ("--phase", &phase),
            ("--rounds", &rounds),
            ("--seed", &seed),
        ] {
            if !value.is_empty() {
                all.extend([option.to_owned(), value.to_owned()]);
            }
        }
        all
    }
}

/// The targets, in the order in which the first round goes through them.
async fn targets(args: &SchemasArgs, url: &str) -> Result<Vec<Arc<dyn Target>>> {
    if !Endpoint::parse(url).is_some_and(|endpoint| endpoint.is_postgres()) {
        return fail("--store is the database, postgres://… or postgres:new");
    }
    // A server that refuses a connection in the middle would spoil the run.
    let settings = postgres::settings(url).await?;
    let there = settings.get("max_connections").and_then(|n| n.parse().ok());
    let wanted = args.connections();
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
    /// The same phases of each process, if there are several.
    by_process: Vec<Vec<Phase>>,
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

/// What a process tells the others of a phase.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Post {
    run: PhaseRun,
    /// How long after the common moment it began.
    late_ms: f64,
}

/// Why the rates of a phase cannot be added, if they cannot: they are not of the same stretch of time.
fn apart(posts: &[Post], seconds: f64) -> Option<String> {
    let late: Vec<f64> = posts.iter().map(|post| post.late_ms).collect();
    let (least, most) = ends(&late);
    let apart = most - least;
    let is_much = posts.len() > 1 && apart > seconds * 1_000.0 * APART_MAX;
    is_much.then(|| format!("the load processes began {apart:.0} ms apart"))
}

/// What the processes did together in a phase. `connections`: those of each.
fn together(posts: &[Post], connections: u32, is_embedded: bool) -> (Phase, Vec<Phase>, u32) {
    let each: Vec<Phase> = posts
        .iter()
        .map(|post| post.run.figures(connections, is_embedded))
        .collect();
    let (first, others) = posts.split_first().expect("this process is one of them");
    let mut all = first.run.clone();
    for other in others.iter().map(|post| &post.run) {
        all.lag.merge(&other.lag);
        all.complete &= other.complete;
        all.add(other.clone());
    }
    let count = u32::try_from(posts.len()).unwrap_or(1);
    let mut phase = all.figures(connections * count, is_embedded);
    // Windows of processes may differ in their length.
    let sum = |rate: fn(&Phase) -> f64| each.iter().map(rate).sum();
    phase.events_per_second = sum(|one| one.events_per_second);
    phase.appends_per_second = sum(|one| one.appends_per_second);
    // Each process is the limit or not by its own measure.
    let limit = each.iter().find_map(|one| one.generator_limit.clone());
    phase.generator_limit = limit.or_else(|| apart(posts, phase.seconds));
    (phase, each, all.gave_up)
}

struct Contest<'a> {
    args: &'a SchemasArgs,
    sizes: Sizes,
    targets: Vec<Arc<dyn Target>>,
    url: &'a str,
    meeting: Meeting,
    watch: Watch,
    entries: BTreeMap<String, Entry>,
    controls: Vec<f64>,
    complete: bool,
}

impl Contest<'_> {
    /// Everything. What there is stays there if it is interrupted.
    async fn run(&mut self, stop: &CancellationToken) -> Result<()> {
        let given = self.meeting.gather(self.args.told()?, stop).await?;
        if given.iter().any(|other| *other != given[0]) {
            return fail(format!(
                "load processes were given different parameters: {}",
                given.join(" and ")
            ));
        }
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
                // One that was interrupted ends all.
                let is_over = stop.is_cancelled().to_string();
                let over = self.meeting.gather(is_over, stop).await?;
                if over.iter().any(|over| over == "true") {
                    self.complete = false;
                    return Ok(());
                }
                if self.meeting.leads() {
                    eprintln!("round {round} of {}: {}", self.args.rounds, target.title());
                }
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
        if self.meeting.leads() {
            self.control().await?;
            target.prepare().await?;
        }
        self.meeting.wait(stop).await?;
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
            let leads = self.meeting.leads();
            let beside = Beside {
                database: leads.then_some(&self.watch),
                start: Some(self.meeting.start(stop).boxed()),
                ..Beside::default()
            };
            let targets = std::slice::from_ref(target);
            let (runs, claimed) = target::run_all(targets, &events, &load, beside, stop).await?;
            claims.add(claimed);
            let post = Post {
                run: runs.into_iter().next().unwrap_or_default(),
                late_ms: self.meeting.late_ms(),
            };
            let posts = self
                .meeting
                .gather(serde_json::to_string(&post)?, stop)
                .await?;
            let posts: Result<Vec<Post>> = posts
                .iter()
                .map(|post| Ok(serde_json::from_str(post)?))
                .collect();
            let (phase, each, gave_up) = together(&posts?, workers, target.is_embedded());
            if leads {
                eprintln!("  {} connections: {}", phase.connections, phase.told());
            }
            round.stopped = stopped(&phase, gave_up);
            round.phases.push(phase);
            round.by_process.push(each);
        }
        let own = target::check(target.as_ref(), &events, &claims).await?;
        if !self.meeting.leads() {
            target.close().await?;
        }
        let posts = self
            .meeting
            .gather(serde_json::to_string(&own)?, stop)
            .await?;
        if !self.meeting.leads() {
            return Ok((facts, round));
        }
        let mut read_back = ReadBack::default();
        for post in posts {
            read_back.add(serde_json::from_str(&post)?);
        }
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
