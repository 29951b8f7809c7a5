//! `torture`: real processes under load, one fault per round, and a verdict on every promise that data can show.
//!
//! Writers never let go of an append whose outcome they do not know; tails follow through all faults by
//! checkpoint. A round is over when every writer has had an append acknowledged that it began after the
//! fault had healed.

#[cfg(test)]
pub(crate) mod bumpy;
mod faults;
mod record;
mod tails;
mod world;
mod writers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gesta_core::{AllFrom, EventStore, Filter, Position, ReadAll, RecordedEvent};
use gesta_testkit::history::{Report, Violation};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) use self::faults::{Ending, restart};

use self::faults::Fault;
use self::record::{Counts, SharedRecord};
use self::tails::{Manner, Tail, TailLog};
use self::world::{DatabaseKind, Plan, World};
use self::writers::Writer;
use crate::child::ProgramArgs;
use crate::failure::{Context, Failure, Result, fail};
use crate::histogram::{Latencies, Percentiles};
use crate::random::{Bag, Random};
use crate::record::Table;
use crate::report::ReportArgs;
use crate::units;
use crate::workload::Run;

/// A writer that has no append acknowledged this long after a fault has healed is stuck.
const RECOVERY_WITHIN: Duration = Duration::from_secs(60);
/// Tails must reach the end of the log this soon after the last append.
const ARRIVAL_WITHIN: Duration = Duration::from_secs(60);
/// A database that is away for longer excuses unknown outcomes.
const DATABASE_AWAY_MAX: Duration = Duration::from_secs(10);
/// The whole store must have been read this soon.
const READ_WITHIN: Duration = Duration::from_secs(300);
/// How often waits look.
const LOOK: Duration = Duration::from_millis(5);

/// Real processes, one fault per round, nothing may be lost.
#[derive(Debug, Clone, clap::Args)]
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
    /// Stores opened in this process, beside the servers (PostgreSQL only, unless there are no servers).
    #[arg(long, default_value_t = 0)]
    pub(crate) embedded: u32,
    /// Extra round trip between the last server and the database, for example 5ms.
    #[arg(long, default_value = "0", value_parser = units::duration)]
    pub(crate) far: Duration,
    /// Logs of the store on PostgreSQL.
    #[arg(long, default_value_t = 1)]
    pub(crate) logs: u16,
    /// Writers, shared equally among the ways to the store.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) writers: u32,
    /// Pause of a writer between two appends.
    #[arg(long, default_value = "10ms", value_parser = units::duration)]
    pub(crate) pause: Duration,
    /// Only these faults.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) faults: Vec<Fault>,
    /// A folder on a small file system (a tmpfs of 1 GiB, say): SQLite files go there and the disk gets full.
    /// For PostgreSQL set TMPDIR to it too.
    #[arg(long)]
    pub(crate) small_disk: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// What one kind of fault did.
#[derive(Debug, Default)]
struct PerFault {
    rounds: u32,
    recovery: Latencies,
}

/// What happened in one world.
#[derive(Debug)]
struct Outcome {
    database: DatabaseKind,
    rounds: u32,
    per_fault: BTreeMap<Fault, PerFault>,
    counts: Vec<(String, Counts)>,
    resumed: u64,
    violations: Vec<String>,
    violation_count: u64,
    report: Report,
    complete: bool,
}

impl Outcome {
    fn is_clean(&self) -> bool {
        self.violation_count == 0 && self.report.is_clean()
    }
}

#[derive(Serialize)]
struct FaultLine {
    rounds: u32,
    recovery_ms: Percentiles,
}

/// The command. True if no promise was broken.
pub(crate) async fn run(args: &TortureArgs, stop: &CancellationToken) -> Result<bool> {
    let mut line = crate::record::Record::begin("torture", args.seed);
    let program = if args.servers > 0 {
        args.program.find()?
    } else {
        PathBuf::new()
    };
    let mut outcomes = Vec::new();
    for (number, database) in args.databases.iter().enumerate() {
        if stop.is_cancelled() {
            break;
        }
        let plan = Plan {
            database: *database,
            servers: if *database == DatabaseKind::Sqlite {
                args.servers.min(1)
            } else {
                args.servers
            },
            embedded: match database {
                DatabaseKind::Sqlite => u32::from(args.servers == 0),
                DatabaseKind::Postgres => args.embedded,
            },
            far: args.far,
            logs: if *database == DatabaseKind::Sqlite {
                1
            } else {
                args.logs
            },
            small_disk: args.small_disk.clone(),
            program: program.clone(),
        };
        let seed = args.seed.wrapping_add(number as u64);
        let outcome = run_world(args, &plan, rounds_of(args, *database), seed, stop).await?;
        print!("{}", describe(&outcome));
        outcomes.push(outcome);
    }
    let clean = outcomes.iter().all(Outcome::is_clean);
    line.workload = json!({
        "rounds": args.rounds, "servers": args.servers, "embedded": args.embedded, "logs": args.logs, "writers": args.writers,
        "far_ms": args.far.as_secs_f64() * 1_000.0, "databases": args.databases, "small_disk": args.small_disk.is_some(),
    });
    line.result = outcomes.iter().map(figures).collect();
    line.complete = outcomes.len() == args.databases.len() && outcomes.iter().all(|o| o.complete);
    line.valid = clean;
    line.save(&args.report)?;
    let rounds: u32 = outcomes.iter().map(|outcome| outcome.rounds).sum();
    let word = if clean {
        "every promise was kept"
    } else {
        "PROMISES WERE BROKEN"
    };
    let acknowledged: usize = outcomes
        .iter()
        .map(|outcome| outcome.report.acknowledged)
        .sum();
    let stored: usize = outcomes
        .iter()
        .map(|outcome| outcome.report.events_stored)
        .sum();
    println!(
        "{rounds} rounds, {acknowledged} appends acknowledged, {stored} events stored, seed {}: {word}",
        args.seed
    );
    Ok(clean)
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
        violations: Vec::new(),
        violation_count: 0,
        report: Report::default(),
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
                per_fault.rounds += 1;
                per_fault.recovery.record(recovery);
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
        Fault::ALL
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
            lab.follow(
                format!("restless subscriber of {}", entry.name),
                Manner::SubscribeRestless,
                &entry.store,
            );
            lab.follow(
                format!("subscriber of {}", entry.name),
                Manner::Subscribe,
                &entry.store,
            );
            lab.follow(
                format!("poller of {}", entry.name),
                Manner::Poll,
                &entry.store,
            );
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

    fn follow(&mut self, name: String, manner: Manner, store: &Arc<dyn EventStore>) {
        let log = Arc::new(TailLog::default());
        let id = self.record.history.tailer(&name, Vec::new(), Filter::ALL);
        self.tail_logs.push((name.clone(), Arc::clone(&log)));
        let tail = Tail {
            name,
            manner,
            store: Arc::clone(store),
            let_go: self.let_go.subscribe(),
            over: self.tails_over.clone(),
            record: Arc::clone(&self.record),
            id,
            log,
        };
        self.tails.spawn(tail.run());
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
        faults::inflict(fault, world, random).await?;
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
        outcome.violation_count = self.record.violation_count();
        let counts = self.record.counts();
        outcome.counts = world
            .entries
            .iter()
            .enumerate()
            .map(|(number, entry)| {
                (
                    entry.name.clone(),
                    counts.get(&number).cloned().unwrap_or_default(),
                )
            })
            .collect();
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
    let store = &world.entries[0].store;
    let (mut request, mut events) = (ReadAll::forwards().limit(5_000), Vec::new());
    let deadline = Instant::now() + RECOVERY_WITHIN;
    loop {
        match store.read_all(request.clone()).await {
            Ok(page) => {
                events.extend(page.events);
                if page.end {
                    return Ok(events);
                }
                request.from = AllFrom::Checkpoint(page.next);
            }
            Err(error) if error.is_retryable() && Instant::now() < deadline => {
                tokio::time::sleep(LOOK).await
            }
            Err(error) => return Err(Failure::from(error)),
        }
    }
}

fn figures(outcome: &Outcome) -> serde_json::Value {
    let faults: BTreeMap<String, FaultLine> = outcome
        .per_fault
        .iter()
        .map(|(fault, per)| {
            (
                fault.name(),
                FaultLine {
                    rounds: per.rounds,
                    recovery_ms: per.recovery.percentiles(),
                },
            )
        })
        .collect();
    let counts: BTreeMap<&String, &Counts> = outcome
        .counts
        .iter()
        .map(|(name, counts)| (name, counts))
        .collect();
    json!({
        "database": outcome.database, "rounds": outcome.rounds, "faults": faults, "counts": counts,
        "tails_resumed": outcome.resumed, "violations": outcome.violation_count, "told": outcome.violations,
        "checker": {
            "appends": outcome.report.requests, "attempts": outcome.report.attempts,
            "acknowledged": outcome.report.acknowledged, "refused": outcome.report.refused,
            "unknown_stored": outcome.report.unknown_stored, "unknown_absent": outcome.report.unknown_absent,
            "events_stored": outcome.report.events_stored, "events_tailed": outcome.report.events_tailed,
            "broken": broken(&outcome.report),
            "first": outcome.report.violations.iter().take(50).map(ToString::to_string).collect::<Vec<_>>(),
        },
    })
}

fn describe(outcome: &Outcome) -> String {
    let mut faults = Table::new(["fault", "rounds", "back after ms (median)", "max"]);
    for (fault, per) in &outcome.per_fault {
        let p = per.recovery.percentiles();
        faults.row([
            fault.name(),
            per.rounds.to_string(),
            format!("{:.0}", p.p50),
            format!("{:.0}", p.max),
        ]);
    }
    let mut counts = Table::new([
        "entry",
        "acknowledged",
        "events",
        "share",
        "refused",
        "unavailable",
        "unknown",
        "unknown, excused",
        "open",
    ]);
    let total: u64 = outcome.counts.iter().map(|(_, c)| c.acknowledged).sum();
    for (name, c) in &outcome.counts {
        counts.row([
            name.clone(),
            c.acknowledged.to_string(),
            c.events.to_string(),
            format!("{} %", c.acknowledged * 100 / total.max(1)),
            c.refused.to_string(),
            c.unavailable.to_string(),
            c.unknown.to_string(),
            c.unknown_excused.to_string(),
            c.open.to_string(),
        ]);
    }
    let broken: Vec<String> = broken(&outcome.report)
        .iter()
        .map(|(what, count)| format!("{what} {count}"))
        .collect();
    let mut text = format!(
        "{:?}: {} rounds, tails resumed {} times\n{faults}{counts}{}\n{}; without need unknown or other {}\n",
        outcome.database,
        outcome.rounds,
        outcome.resumed,
        outcome.report,
        broken.join(", "),
        outcome.violation_count
    );
    for finding in outcome.violations.iter().take(40) {
        text.push_str(&format!("  {finding}\n"));
    }
    text
}

/// How often each promise was broken; those of the acceptance also if never.
fn broken(report: &Report) -> BTreeMap<&'static str, u64> {
    let mut counts: BTreeMap<&'static str, u64> =
        ["lost", "stored_twice", "gaps", "below_a_passed_position"]
            .into_iter()
            .map(|what| (what, 0))
            .collect();
    for violation in &report.violations {
        let what = match violation {
            Violation::AcknowledgedLost { .. } => "lost",
            Violation::StoredTwice { .. } => "stored_twice",
            Violation::RevisionGap { .. } => "gaps",
            Violation::TailerOrder { .. } | Violation::AppearedBelowPassed { .. } => {
                "below_a_passed_position"
            }
            Violation::RefusedStored { .. } => "refused_but_stored",
            Violation::RefusedAfterAcknowledged { .. } => "refused_after_acknowledged",
            Violation::PartlyStored { .. } => "partly_stored",
            Violation::WrongPlace { .. } => "wrong_place",
            Violation::PositionOrder { .. } => "position_order",
            Violation::CreatedDecreased { .. } => "created_decreased",
            Violation::Vanished { .. } => "vanished",
            _ => "other",
        };
        *counts.entry(what).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests;
