//! `torture`: real processes under load, one fault per round, and a verdict on every promise that data can show.
//!
//! Writers never let go of an append whose outcome they do not know; tails follow through all faults by checkpoint. A
//! round is over when every writer has had an append acknowledged that it began after the fault had healed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gesta_core::{AllFrom, RecordedEvent};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use gesta_report::cells;
use gesta_report::failure::{Context, Result, fail};
use gesta_report::{Report, ReportArgs, Table, Unit};
use gesta_report::units;
use gesta_load::machine::ask;
use gesta_load::machine::child::ProgramArgs;
use gesta_load::random::{Bag, Random};

use crate::faults::load::Load;
use crate::faults::per_fault::PerFault;
use crate::faults::record::COUNTED;
use crate::faults::tails::Manner;
use crate::faults::world::{DatabaseKind, Plan};
use crate::faults::writers::Claims;
use crate::faults::{Fault, Strength, World, inflict, promises};
use crate::history_file::HistoryArgs;

/// A store may need so long to come back.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// A database that is away for longer excuses unknown outcomes.
const DATABASE_AWAY_MAX: Duration = Duration::from_secs(10);
/// The whole store must have been read this soon.
const READ_WITHIN: Duration = Duration::from_secs(300);

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
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
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
    pub(crate) history: HistoryArgs,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) report: ReportArgs,
}

/// The command. True if no promise was broken.
pub(crate) async fn run(args: &TortureArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("torture", "Kills, cuts, delays and lost replies", args.seed);
    let program = args.program.find()?;
    report.workload = json!(args);
    report.workload["far_ms"] = json!(args.far.as_secs_f64() * 1_000.0);
    report.workload["small_disk"] = json!(args.small_disk.is_some());
    let history = args.history.create()?;
    let (mut rounds, mut acknowledged, mut stored) = (0, 0, 0);
    for (number, database) in (0_u64..).zip(&args.databases) {
        if stop.is_cancelled() {
            break;
        }
        let mut torture = Torture::start(args, *database, &program, number).await?;
        torture.load.history = history.clone();
        torture.rounds(args.rounds_of(*database), stop).await;
        rounds += torture.rounds;
        let verdict = torture.finish(&mut report, *database).await?;
        acknowledged += verdict.acknowledged;
        stored += verdict.events_stored;
    }
    let found = format!("{acknowledged} appends acknowledged, {stored} events stored");
    promises(&mut report, format!("{rounds} rounds, {found}"));
    let wanted = args.databases.iter().map(|kind| args.rounds_of(*kind));
    report.finish(&args.report, rounds >= wanted.sum())
}

impl TortureArgs {
    fn plan(&self, database: DatabaseKind, program: &Path) -> Plan {
        Plan {
            database,
            servers: match database {
                DatabaseKind::Sqlite => 1,
                DatabaseKind::Postgres => self.servers,
            },
            far: self.far,
            small_disk: self.small_disk.clone(),
            program: program.to_owned(),
        }
    }

    /// SQLite has fewer kinds of faults.
    fn rounds_of(&self, database: DatabaseKind) -> u32 {
        let lesser = self.rounds / 4;
        match database {
            _ if self.databases.len() == 1 => self.rounds,
            DatabaseKind::Sqlite => lesser,
            DatabaseKind::Postgres => self.rounds - lesser,
        }
    }

    /// The faults that are wanted and fit.
    fn faults(&self, world: &World) -> Result<Vec<Fault>> {
        let wanted = match self.faults.as_slice() {
            [] => Fault::of_torture(),
            some => some.to_vec(),
        };
        let (fitting, others): (Vec<Fault>, Vec<Fault>) =
            wanted.into_iter().partition(|fault| fault.fits(world));
        for fault in others {
            eprintln!("without {}: it does not fit here", fault.name());
        }
        match fitting.is_empty() {
            true => fail("none of these faults fits this database and these servers"),
            false => Ok(fitting),
        }
    }
}

/// One database, its servers, and everything that runs beside the faults.
struct Torture {
    world: World,
    load: Load,
    faults: Bag<Fault>,
    random: Random,
    rounds: u32,
    /// How long after the end of each fault everybody worked again.
    back_after: PerFault<Fault>,
    /// Rounds in which nobody is to blame for an unknown outcome.
    excused: Vec<(Instant, Instant)>,
}

impl Torture {
    async fn start(
        args: &TortureArgs,
        database: DatabaseKind,
        program: &Path,
        number: u64,
    ) -> Result<Self> {
        let plan = args.plan(database, program);
        let world = World::start(&plan)
            .await
            .context("starting the processes")?;
        let seed = args.seed.wrapping_add(number);
        let mut load = Load::new(seed);
        for entry in &world.entries {
            for (name, manner) in [
                ("restless subscriber", Manner::SubscribeRestless),
                ("subscriber", Manner::Subscribe),
                ("poller", Manner::Poll),
            ] {
                let name = format!("{name} of {}", entry.name);
                load.follow(name, manner, entry.store.clone(), None);
            }
        }
        for entry in world.entries.iter().cycle().take(args.writers as usize) {
            load.write(&entry.name, entry.store.clone(), Claims::Mixed, args.pause);
        }
        load.goes_on().await.context("no writer got going")?;
        Ok(Self {
            faults: Bag::new(args.faults(&world)?, Random::fork(seed, 1)),
            world,
            load,
            random: Random::fork(seed, 2),
            rounds: 0,
            back_after: PerFault::new(&[], &["back after"]),
            excused: Vec::new(),
        })
    }

    /// Until all rounds are over, one fails, or the run is stopped.
    async fn rounds(&mut self, rounds: u32, stop: &CancellationToken) {
        while self.rounds < rounds && !stop.is_cancelled() {
            let Some(fault) = self.faults.draw() else {
                break;
            };
            let before = Duration::from_millis(50 + self.random.next() % 300);
            tokio::time::sleep(before).await;
            self.rounds += 1;
            let (number, name) = (self.rounds, fault.name());
            match self.round(fault).await {
                Ok(after) => {
                    let millis = after.as_secs_f64() * 1_000.0;
                    eprintln!("{number:>4} {name:<20} back after {millis:>6.0} ms");
                    self.back_after.add(fault, &[], &[Some(after)]);
                }
                Err(failure) => {
                    let text = format!("round {number} ({name}): {failure}");
                    self.load.record.violation(text);
                    eprintln!("{}", self.world.server_logs());
                    break;
                }
            }
        }
    }

    /// One fault; returns how long after its end everybody worked again.
    async fn round(&mut self, fault: Fault) -> Result<Duration> {
        let begun = Instant::now();
        let (world, random) = (&mut self.world, &mut self.random);
        let strength = Strength::of(Duration::from_millis(200 + random.next() % 1_300));
        let over = CancellationToken::new();
        let inflicted = inflict(fault, &strength, world, random, &over).await;
        let is_excused = fault.excuses_unknown() || begun.elapsed() > DATABASE_AWAY_MAX;
        let back_after = match inflicted {
            Ok(()) => self.load.goes_on().await,
            Err(failure) => Err(failure),
        };
        if is_excused {
            self.excused.push((begun, Instant::now()));
        }
        self.load.let_go();
        back_after
    }

    /// Ends writers, then tails, reads everything, judges, and tells what was found.
    async fn finish(
        mut self,
        report: &mut Report,
        database: DatabaseKind,
    ) -> Result<gesta_kit::history::HistoryReport> {
        self.load.end_writers().await?;
        let record = self.load.record.clone();
        let read = tokio::time::timeout(READ_WITHIN, read_everything(&self.world)).await;
        let stored = read
            .unwrap_or_else(|_| fail(format!("reading did not end within {READ_WITHIN:?}")))
            .unwrap_or_else(|failure| {
                record.violation(format!("the store cannot be read: {failure}"));
                Vec::new()
            });
        let verdict = self.load.judge(&stored).await?;
        record.settle_unknown(&self.excused);

        report.table(self.back_after.table(format!("Faults on {database:?}")));
        let columns = [("way to the store", Unit::Words)].into_iter();
        let columns = columns.chain(COUNTED.map(|what| (what, Unit::Count)));
        let mut counts = Table::new(format!("Answers on {database:?}"), columns);
        for entry in &self.world.entries {
            let counted = COUNTED.map(|what| record.counted(&entry.name, what).into());
            counts.row([cells![&entry.name], counted.to_vec()].concat());
        }
        report.table(counts);
        report.text(format!(
            "{database:?}: {verdict}; tails resumed {} times.",
            record.resumed()
        ));
        for problem in record.problems(&verdict) {
            report.problem(format!("{database:?}: {problem}"));
        }
        Ok(verdict)
    }
}

/// The whole store, tried for as long as a store may need to come back.
async fn read_everything(world: &World) -> Result<Vec<RecordedEvent>> {
    let (store, mut events) = (&world.entries[0].store, Vec::new());
    let see = |event| events.push(event);
    ask::read_all(store, AllFrom::Start, BACK_WITHIN, see).await?;
    Ok(events)
}
