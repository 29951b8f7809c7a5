//! `failover`: PostgreSQL in the care of Patroni fails over under load, round by round.
//!
//! Each round hurts the member that is the primary, waits until another one (or itself) takes writes, and checks. With
//! a synchronous standby nothing acknowledged may be lost, and subscriptions must go on without a skip or a double
//! (`kept`); with asynchronous standbys that lag, what was acknowledged *is* lost, and everybody must be told
//! (`lossy`). Two servers work on the database, each for itself or as nodes: one gets all appends, the other is idle
//! but for its subscribers. `losing` does without Patroni: it promotes the standby itself, so that every few seconds
//! commits are lost, on one or several databases, and looks at everybody who consumes, round after round.
//! Not here: faults of a single database (`torture`).

mod commands;
mod fault;
mod kept;
mod losing;
mod lossy;
mod probe;
mod times;
mod world;

use std::time::Duration;

use gesta_rig::Replication;
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use gesta_report::failure::Result;
use gesta_report::{Report, ReportArgs, StoreFacts};
use gesta_report::units;
use gesta_load::machine::child::ProgramArgs;
use gesta_load::random::{Bag, Random};

use self::fault::FailoverFault;
use self::world::World;
use crate::faults::{promises, wanted};

/// How the standbys follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// One standby is synchronous (`synchronous_mode: true`).
    Sync,
    /// None is, and all of them lag when the primary is hurt.
    Async,
    /// None is, all of them lag, and the lab promotes one itself: without Patroni, on one database or several, with
    /// consumer groups, entities, subscribers over HTTP and gRPC that come back in every round.
    Losing,
}

/// Fail-overs of PostgreSQL, which is installed here, by Patroni or by hand.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct FailoverArgs {
    /// How the standbys follow.
    #[arg(long, value_enum, default_value = "sync")]
    mode: Mode,
    /// Rounds, one fault each.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// PostgreSQL servers.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=5))]
    members: u16,
    /// The two servers are nodes of a cluster. With `losing` there is one server without this.
    #[arg(long)]
    nodes: bool,
    /// With `losing`: databases of the store, each with so many members.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4))]
    databases: u16,
    /// Writers.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    writers: u16,
    /// With a synchronous standby: appends go on this soon after the database takes writes again.
    #[arg(long, default_value = "1s", value_parser = units::duration)]
    #[serde(skip)]
    within: Duration,
    /// Seed of faults, times and appends.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Only these faults. Not with `losing`, which has its own.
    #[arg(long, value_enum, value_delimiter = ',')]
    #[serde(skip)]
    faults: Vec<FailoverFault>,
    #[command(flatten)]
    #[serde(skip)]
    program: ProgramArgs,
    #[command(flatten)]
    #[serde(skip)]
    report: ReportArgs,
}

/// The command. True if no promise was broken.
pub(crate) async fn run(args: &FailoverArgs, stop: &CancellationToken) -> Result<bool> {
    if args.mode == Mode::Losing {
        return losing::run(args, stop).await;
    }
    let mut report = Report::begin("failover", "Fail-overs of PostgreSQL by Patroni", args.seed);
    let fitting = match args.mode {
        Mode::Sync => FailoverFault::ALL,
        Mode::Async | Mode::Losing => FailoverFault::LOSSY,
    };
    let faults = wanted(&args.faults, fitting.to_vec())?;
    let program = args.program.find()?;
    let replication = match args.mode {
        Mode::Sync => Replication::Synchronous,
        Mode::Async | Mode::Losing => Replication::Asynchronous,
    };
    let mut world =
        World::start(&program, usize::from(args.members), replication, args.nodes).await?;
    report.store = Some(StoreFacts {
        backend: "postgres".into(),
        ..world.facts().await?
    });
    report.workload = json!(args);
    report.workload["within_ms"] = json!(args.within.as_secs_f64() * 1_000.0);
    let mut bag = Bag::new(faults, Random::fork(args.seed, 1));
    let mut kept = kept::Kept::new(args);
    let mut lossy = lossy::Lossy::new(args);
    let mut rounds = 0;
    while rounds < args.rounds && !stop.is_cancelled() {
        let Some(fault) = bag.draw() else { break };
        rounds += 1;
        let round = match args.mode {
            Mode::Sync => kept.round(&mut world, rounds, fault).await,
            Mode::Async | Mode::Losing => lossy.round(&mut world, rounds, fault).await,
        };
        let name = format!("round {rounds} ({})", fault.name());
        let (found, wrong) = match round {
            Ok((found, wrong)) => (found, wrong),
            Err(failure) => (String::new(), vec![failure.to_string()]),
        };
        eprintln!("{name}: {found}");
        let wrong = wrong.iter().map(|text| format!("{name}: {text}"));
        report.problems.extend(wrong);
        if found.is_empty() {
            eprintln!("{}", world.logs());
            break;
        }
    }
    let found = match args.mode {
        Mode::Sync => kept.tell(&mut report),
        Mode::Async | Mode::Losing => lossy.tell(&mut report),
    };
    if let Err(complaint) = world.verify(&program).await {
        report.problem(complaint.to_string());
    }
    promises(&mut report, format!("{rounds} fail-overs, {found}"));
    report.finish(&args.report, rounds >= args.rounds)
}

/// What a round has found, in a few words, and what is wrong.
type Found = (String, Vec<String>);
