//! `torture`: real processes under load, one fault per round, and a verdict on every promise that data can show.
//!
//! Writers never let go of an append whose outcome they do not know; tails follow through all faults by
//! checkpoint. A round is over when every writer has had an append acknowledged that it began after the
//! fault had healed.

#[cfg(test)]
pub(crate) mod bumpy;
pub(crate) mod record;
pub(crate) mod writers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gesta_core::{AllFrom, Filter, Position, RecordedEvent};
use gesta_testkit::history;
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::record::{Counts, SharedRecord, TailLog, Tailed};
use self::writers::Writer;
use crate::cells;
use crate::child::ProgramArgs;
use crate::failure::{Context, Result, fail};
use crate::faults::tails::{Manner, Tail};
use crate::faults::world::{DatabaseKind, Plan};
use crate::faults::{CurrentStore, Fault, Strength, World, ask, inflict};
use crate::histogram::Latencies;
use crate::random::{Bag, Random};
use crate::report::{Report, ReportArgs, Table, Unit};
use crate::run::Run;
use crate::units;

/// A writer that has no append acknowledged this long after a fault has healed is stuck.
const RECOVERY_WITHIN: Duration = Duration::from_secs(60);
/// Tails must reach the end of the log this soon after the last append.
const ARRIVAL_WITHIN: Duration = Duration::from_secs(60);
/// A database that is away for longer excuses unknown outcomes.
const DATABASE_AWAY_MAX: Duration = Duration::from_secs(10);
/// The whole store must have been read this soon.
const READ_WITHIN: Duration = Duration::from_secs(300);
/// Most violations that are told.
const TOLD_MAX: usize = 50;
/// How often waits look.
const LOOK: Duration = Duration::from_millis(5);

/// Real processes, one fault per round, nothing may be lost.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct TortureArgs {
    /// Rounds in total, one fault each.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Seed of faults, times and appends.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// Databases, one after the other; SQLite gets a quarter of the rounds if it is not alone.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [DatabaseKind::Postgres, DatabaseKind::Sqlite])]
    pub(crate) databases: Vec<DatabaseKind>,
    /// Server processes on the database (SQLite: one).
    #[arg(long, default_value_t = 1)]
    pub(crate) servers: u32,
    /// Extra round trip between the last server and the database, for example 5ms.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    #[serde(skip)]
    pub(crate) far: Duration,
    /// Writers, shared equally among the ways to the store.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) writers: u32,
    /// Pause of a writer between two appends.
    #[arg(long, default_value = "10ms", value_parser = units::duration)]
    #[serde(skip)]
    pub(crate) pause: Duration,
    /// Only these faults.
    #[arg(long, value_enum, value_delimiter = ',')]
    #[serde(skip)]
    pub(crate) faults: Vec<Fault>,
    /// A folder on a small file system (a tmpfs of 1 GiB, say): SQLite files go there and the disk gets full.
    /// For PostgreSQL set TMPDIR to it too.
    #[arg(long)]
    #[serde(skip)]
    pub(crate) small_disk: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) report: ReportArgs,
}

/// What happened in one world.
#[derive(Debug)]
struct Outcome {
    database: DatabaseKind,
    rounds: u32,
    per_fault: BTreeMap<Fault, Latencies>,
    counts: Vec<(String, Counts)>,
    resumed: u64,
    /// The first violations that no history shows, and how many there were.
    violations: (Vec<String>, u64),
    report: history::Report,
    complete: bool,
}

/// The command. True if no promise was broken.
pub(crate) async fn run(args: &TortureArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("torture", "Kills, cuts, delays and lost replies", args.seed);
    let program = match args.servers {
        0 => PathBuf::new(),
        _ => args.program.find()?,
    };
    let mut outcomes = Vec::new();
    for (number, database) in args.databases.iter().enumerate() {
        if stop.is_cancelled() {
            break;
        }
        let plan = args.plan(*database, program.clone());
        let seed = args.seed.wrapping_add(number as u64);
        let outcome = run_world(args, &plan, rounds_of(args, *database), seed, stop).await?;
        outcomes.push(outcome);
    }
    report.workload = json!(args);
    report.workload["far_ms"] = json!(args.far.as_secs_f64() * 1_000.0);
    report.workload["small_disk"] = json!(args.small_disk.is_some());
    for outcome in &outcomes {
        outcome.tell(&mut report);
    }
    let rounds: u32 = outcomes.iter().map(|outcome| outcome.rounds).sum();
    let sum = |count: fn(&history::Report) -> usize| -> usize {
        outcomes.iter().map(|outcome| count(&outcome.report)).sum()
    };
    report.finding = format!(
        "{rounds} rounds, {} appends acknowledged, {} events stored, seed {}: {}.",
        sum(|report| report.acknowledged),
        sum(|report| report.events_stored),
        args.seed,
        match report.problems.is_empty() {
            true => "every promise was kept",
            false => "PROMISES WERE BROKEN",
        }
    );
    let complete = outcomes.len() == args.databases.len() && outcomes.iter().all(|o| o.complete);
    report.finish(&args.report, complete)
}

impl TortureArgs {
    fn plan(&self, database: DatabaseKind, program: PathBuf) -> Plan {
        Plan {
            database,
            servers: match database {
                DatabaseKind::Sqlite => self.servers.min(1),
                DatabaseKind::Postgres => self.servers,
            },
            far: self.far,
            small_disk: self.small_disk.clone(),
            program,
        }
    }
}

impl Outcome {
    /// A table of the faults and one of the answers, and every promise that was broken.
    fn tell(&self, report: &mut Report) {
        let database = format!("{:?}", self.database);
        let columns = [
            ("fault", Unit::Words),
            ("rounds", Unit::Count),
            ("back after (median)", Unit::Millis),
            ("longest", Unit::Millis),
        ];
        let mut faults = Table::new(format!("Faults on {database}"), columns);
        for (fault, per) in &self.per_fault {
            let p = per.percentiles();
            faults.row(cells![fault.name(), p.count, p.p50, p.max]);
        }
        report.table(faults);
        let columns = [("way to the store", Unit::Words)];
        let counted = [
            "acknowledged",
            "events",
            "refused",
            "unavailable",
            "unknown",
            "unknown, excused",
            "open",
        ];
        let columns = columns
            .into_iter()
            .chain(counted.map(|name| (name, Unit::Count)));
        let mut counts = Table::new(format!("Answers on {database}"), columns);
        for (name, c) in &self.counts {
            counts.row(cells![
                name,
                c.acknowledged,
                c.events,
                c.refused,
                c.unavailable,
                c.unknown,
                c.unknown_excused,
                c.open,
            ]);
        }
        report.table(counts);
        report.text(format!(
            "{database}: {}; tails resumed {} times.",
            self.report, self.resumed
        ));
        let (told, count) = &self.violations;
        let of_checker = self.report.violations.iter().take(TOLD_MAX);
        let all = told
            .iter()
            .cloned()
            .chain(of_checker.map(ToString::to_string));
        for problem in all {
            report.problem(format!("{database}: {problem}"));
        }
        let more = count.saturating_sub(told.len() as u64);
        if more > 0 {
            report.problem(format!("{database}: and {more} more"));
        }
    }
}

/// SQLite has fewer kinds of faults.
fn rounds_of(args: &TortureArgs, database: DatabaseKind) -> u32 {
    let several = args.databases.len() > 1;
    let lesser = args.rounds / 4;
    match database {
        DatabaseKind::Sqlite if several => lesser,
        DatabaseKind::Postgres if several => args.rounds - lesser,
        _ => args.rounds,
    }
}

async fn run_world(
    args: &TortureArgs,
    plan: &Plan,
    rounds: u32,
    seed: u64,
    stop: &CancellationToken,
) -> Result<Outcome> {
    let mut world = World::start(plan).await.context("starting the processes")?;
    let mut bag = Bag::new(faults_of(args, &world)?, Random::fork(seed, 1));
    let mut lab = Lab::start(args, &world, seed);
    let mut outcome = Outcome {
        database: plan.database,
        rounds: 0,
        per_fault: BTreeMap::new(),
        counts: Vec::new(),
        resumed: 0,
        violations: (Vec::new(), 0),
        report: history::Report::default(),
        complete: false,
    };
    lab.wait_for_progress(Instant::now())
        .await
        .context("no writer got going")?;
    let mut random = Random::fork(seed, 2);
    while outcome.rounds < rounds && !stop.is_cancelled() {
        let Some(fault) = bag.draw() else { break };
        let before = Duration::from_millis(50 + random.next() % 300);
        tokio::time::sleep(before).await;
        let ended = lab.round(&mut world, fault, &mut random).await;
        outcome.rounds += 1;
        match ended {
            Ok(recovery) => {
                let per_fault = outcome.per_fault.entry(fault).or_default();
                per_fault.record(recovery);
                eprintln!(
                    "{:>4} {:<20} back after {:>6.0} ms",
                    outcome.rounds,
                    fault.name(),
                    recovery.as_secs_f64() * 1_000.0
                );
            }
            Err(failure) => {
                lab.record.violation(format!(
                    "round {} ({}): {failure}",
                    outcome.rounds,
                    fault.name()
                ));
                eprintln!("{}", world.server_logs());
                break;
            }
        }
    }
    outcome.complete = outcome.rounds >= rounds;
    lab.finish(&world, &mut outcome).await?;
    Ok(outcome)
}

/// The faults that are wanted and fit.
fn faults_of(args: &TortureArgs, world: &World) -> Result<Vec<Fault>> {
    let wanted = if args.faults.is_empty() {
        Fault::TORTURE
    } else {
        &args.faults
    };
    let (fitting, others): (Vec<Fault>, Vec<Fault>) =
        wanted.iter().copied().partition(|fault| fault.fits(world));
    if fitting.is_empty() {
        return fail("none of these faults fits this database and these servers");
    }
    for fault in others {
        eprintln!("without {}: it does not fit here", fault.name());
    }
    Ok(fitting)
}

/// Everything that runs beside the faults.
struct Lab {
    record: SharedRecord,
    epoch: Instant,
    progress: Vec<Arc<AtomicU64>>,
    writers: JoinSet<()>,
    writers_over: CancellationToken,
    tails: JoinSet<()>,
    tails_over: CancellationToken,
    tail_logs: Vec<(String, Arc<TailLog>)>,
    let_go: watch::Sender<u64>,
}

impl Lab {
    fn start(args: &TortureArgs, world: &World, seed: u64) -> Self {
        let mut lab = Self {
            record: SharedRecord::default(),
            epoch: Instant::now(),
            progress: Vec::new(),
            writers: JoinSet::new(),
            writers_over: CancellationToken::new(),
            tails: JoinSet::new(),
            tails_over: CancellationToken::new(),
            tail_logs: Vec::new(),
            let_go: watch::Sender::new(0),
        };
        let run = Run::random().to_string();
        for entry in &world.entries {
            for (name, manner) in [
                ("restless subscriber", Manner::SubscribeRestless),
                ("subscriber", Manner::Subscribe),
                ("poller", Manner::Poll),
            ] {
                lab.follow(format!("{name} of {}", entry.name), manner, &entry.store);
            }
        }
        for number in 0..args.writers as usize {
            let entry = number % world.entries.len();
            let progress = Arc::new(AtomicU64::new(0));
            lab.progress.push(Arc::clone(&progress));
            let writer = Writer {
                number,
                entry,
                store: Arc::clone(&world.entries[entry].store),
                pause: args.pause,
                seed,
                run: run.clone(),
                over: lab.writers_over.clone(),
                record: Arc::clone(&lab.record),
                progress,
                epoch: lab.epoch,
            };
            lab.writers.spawn(writer.run());
        }
        lab
    }

    fn follow(&mut self, name: String, manner: Manner, store: &Arc<CurrentStore>) {
        let log = Arc::new(TailLog::default());
        let id = self.record.history.tailer(&name, Vec::new(), Filter::ALL);
        self.tail_logs.push((name.clone(), Arc::clone(&log)));
        let tail = Tail {
            name,
            manner,
            store: Arc::clone(store),
            let_go: self.let_go.subscribe(),
            over: self.tails_over.clone(),
            sink: Tailed {
                record: Arc::clone(&self.record),
                id,
                log,
            },
        };
        self.tails.spawn(tail.run(None));
    }

    /// One fault; returns how long after its end everybody worked again.
    async fn round(
        &mut self,
        world: &mut World,
        fault: Fault,
        random: &mut Random,
    ) -> Result<Duration> {
        self.record.round_begins(fault);
        let begin = Instant::now();
        let strength = Strength::of(Duration::from_millis(200 + random.next() % 1_300));
        let over = CancellationToken::new();
        inflict(fault, &strength, world, random, &over).await?;
        if begin.elapsed() > DATABASE_AWAY_MAX {
            self.record.excuse_round();
        }
        let healed = Instant::now();
        self.wait_for_progress(healed).await?;
        self.record.round_ends();
        self.let_go.send_modify(|count| *count += 1);
        Ok(healed.elapsed())
    }

    /// Waits until every writer has had an append acknowledged that began after `since`.
    async fn wait_for_progress(&self, since: Instant) -> Result<()> {
        let wanted = u64::try_from((since - self.epoch).as_micros()).unwrap_or(u64::MAX);
        let deadline = Instant::now() + RECOVERY_WITHIN;
        loop {
            let behind = self
                .progress
                .iter()
                .filter(|p| p.load(Ordering::Acquire) <= wanted)
                .count();
            if behind == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return fail(format!(
                    "{behind} writers got no append through within {RECOVERY_WITHIN:?}"
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends writers, then tails, reads everything, and judges.
    async fn finish(mut self, world: &World, outcome: &mut Outcome) -> Result<()> {
        self.writers_over.cancel();
        while let Some(ended) = self.writers.join_next().await {
            ended?;
        }
        let stored = tokio::time::timeout(READ_WITHIN, read_everything(world))
            .await
            .unwrap_or_else(|_| fail(format!("reading did not end within {READ_WITHIN:?}")));
        match &stored {
            Ok(stored) => self.wait_for_tails(stored).await,
            Err(failure) => self
                .record
                .violation(format!("the store cannot be read: {failure}")),
        }
        self.tails_over.cancel();
        while let Some(ended) = self.tails.join_next().await {
            ended?;
        }
        self.record.settle_unknown();
        outcome.resumed = self.tail_logs.iter().map(|(_, log)| log.resumed()).sum();
        outcome.report = self
            .record
            .history
            .check_against(&stored.unwrap_or_default());
        if outcome.report.events_foreign > 0 {
            let foreign = outcome.report.events_foreign;
            self.record
                .violation(format!("{foreign} events are stored that nobody appended"));
        }
        outcome.violations = self.record.violations();
        let mut counts = self.record.counts();
        let entries = world.entries.iter().enumerate();
        let counts = entries.map(|(number, entry)| {
            let of_entry = counts.remove(&number).unwrap_or_default();
            (entry.name.clone(), of_entry)
        });
        outcome.counts = counts.collect();
        Ok(())
    }

    async fn wait_for_tails(&self, stored: &[RecordedEvent]) {
        let mut ends: BTreeMap<_, Position> = BTreeMap::new();
        for event in stored {
            ends.insert(event.log, event.position);
        }
        let deadline = Instant::now() + ARRIVAL_WITHIN;
        for (name, log) in &self.tail_logs {
            while ends
                .iter()
                .any(|(id, end)| log.ends().get(id).is_none_or(|at| at < end))
            {
                if Instant::now() > deadline {
                    self.record.violation(format!(
                        "{name} did not reach the end of the log within {ARRIVAL_WITHIN:?}"
                    ));
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// The whole store, tried for as long as a store may need to come back.
async fn read_everything(world: &World) -> Result<Vec<RecordedEvent>> {
    let mut events = Vec::new();
    let see = |event| events.push(event);
    ask::read_all(
        &world.entries[0].store,
        AllFrom::Start,
        RECOVERY_WITHIN,
        see,
    )
    .await?;
    Ok(events)
}

#[cfg(test)]
mod tests;
