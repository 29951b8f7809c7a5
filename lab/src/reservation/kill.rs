//! `reservation-kill`: the application is killed under load, again and again; after each restart everything
//! acknowledged must be there, and no seat held twice.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gesta_core::AllFrom;
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cells;
use crate::child::{Program, Server};
use crate::failure::{Result, fail};
use crate::histogram::Latencies;
use crate::random::Random;
use crate::report::{Report, ReportArgs, Table, Unit};
use crate::reservation::drive::{Drive, Phase};
use crate::reservation::generator::{Generator, Settings};
use crate::reservation::model::SEATS_MAX;
use crate::reservation::probe;
use crate::reservation::script::{Scenario, Script};
use crate::reservation::verdict::{self, Verdict};
use crate::store::{self, StoreFacts};
use crate::workload::Run;

/// A path that every cinema answers once it is ready.
const READY_PATH: &str = "/shows/00000000-0000-0000-0000-000000000000";
/// The load must get going this soon after a restart.
const GOING_WITHIN: Duration = Duration::from_secs(60);
/// Commands that must be acknowledged between two kills.
const COMMANDS_MIN: u64 = 200;
/// How often waits look.
const LOOK: Duration = Duration::from_millis(1);
/// Of the generator; the closed loop of this command does not tick.
const TICK: Duration = Duration::from_millis(1);
/// A request without an answer has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Database {
    /// A PostgreSQL server of its own.
    Postgres,
    /// A SQLite file.
    Sqlite,
}

/// Kills the application under load, and checks after each restart.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub(crate) struct KillArgs {
    /// The application, started as `cinema --store URL --listen ADDRESS`.
    #[arg(long)]
    pub(crate) cinema: PathBuf,
    /// Kills per database.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) kills: u32,
    /// Databases, one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Database::Postgres, Database::Sqlite])]
    pub(crate) databases: Vec<Database>,
    /// Users at once, a connection each.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) closed: u32,
    /// Shows that users meet on; in every second round they create shows of their own.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) shows: u32,
    /// Seats per show.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=i64::from(SEATS_MAX)))]
    pub(crate) seats: u16,
    /// Share of reads among requests.
    #[arg(long, default_value_t = 0.05)]
    pub(crate) reads: f64,
    /// Seed of times and seats.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) report: ReportArgs,
}

/// What a database went through.
struct Survived {
    kills: u32,
    restarts: Latencies,
    verdict: Verdict,
    store: StoreFacts,
    complete: bool,
}

/// The command. True if nothing was lost or doubled.
pub(crate) async fn run(args: &KillArgs, stop: &CancellationToken) -> Result<bool> {
    let title = "A cinema that is killed";
    let mut report = Report::begin("reservation-kill", title, args.seed);
    report.workload = json!(args);
    let columns = [
        ("database", Unit::Words),
        ("kills", Unit::Count),
        ("acknowledged", Unit::Count),
        ("unknown", Unit::Count),
        ("restart p50", Unit::Millis),
        ("longest", Unit::Millis),
    ];
    let mut table = Table::new("Every database", columns);
    let (mut complete, mut kills, mut sentences) = (true, 0, Vec::new());
    for database in &args.databases {
        let survived = survive(args, *database, stop).await?;
        let (verdict, restarts) = (&survived.verdict, survived.restarts.percentiles());
        let name = survived.store.backend.as_str();
        let unknown = verdict.answers.unknown;
        table.row(cells![
            name,
            survived.kills,
            verdict.acknowledged,
            unknown,
            restarts.p50,
            restarts.max,
        ]);
        let problems = verdict.problems().into_iter();
        report
            .problems
            .extend(problems.map(|problem| format!("{name}: {problem}")));
        sentences.push(format!("{name}: {}", verdict.sentence()));
        kills += survived.kills;
        complete &= survived.complete;
        report.store = Some(survived.store);
    }
    let kept = if report.problems.is_empty() {
        "nothing"
    } else {
        "something"
    };
    report.finding =
        format!("After {kills} kills {kept} that was acknowledged was lost or doubled.");
    report.table(table);
    sentences
        .into_iter()
        .for_each(|sentence| report.text(sentence));
    report.finish(&args.report, complete)
}

async fn survive(
    args: &KillArgs,
    database: Database,
    stop: &CancellationToken,
) -> Result<Survived> {
    let files = tempfile::tempdir()?;
    let (url, _server) = match database {
        Database::Postgres => {
            let server = store::new_server()?;
            (server.url(), Some(server))
        }
        Database::Sqlite => {
            let path = files.path().join("cinema.db");
            (format!("sqlite:{}", path.display()), None)
        }
    };
    let program = Program {
        path: args.cinema.clone(),
        arguments: Vec::new(),
        ready_path: READY_PATH,
        ready_status: &[200, 404],
    };
    let mut server = Server::start_program(program, &url, &files.path().join("log")).await?;
    let mut generator = begin(args, &server, stop).await?;
    let mut random = Random::fork(args.seed, 5);
    let mut restarts = Latencies::default();
    let (mut kills, mut verdict) = (0, Verdict::default());
    while kills < args.kills && !stop.is_cancelled() {
        generator = ride(args, generator, &mut server, kills, &mut random).await?;
        kills += 1;
        let began = Instant::now();
        server.launch().await?;
        restarts.record(began.elapsed());
        (generator, verdict) = super::blocking(move || {
            let verdict = verdict::of_answers(&mut generator, &CancellationToken::new())?;
            Ok((generator, verdict))
        })
        .await?;
        if !verdict.is_clean() {
            eprintln!(
                "kill {kills}: a promise was broken; the server's last words:\n{}",
                server.log_tail()
            );
            break;
        }
    }
    if !server.stop().await {
        eprintln!("the application had to be killed at the end");
    }
    // SQLite belongs to one process at a time: now it is ours.
    let opened = store::open_url(&url, Duration::ZERO, 1).await?;
    verdict::add_events(
        &mut verdict,
        opened.store.as_ref(),
        AllFrom::Start,
        &generator.ledger,
    )
    .await?;
    let facts = opened.facts.clone();
    opened.store.shutdown().await?;
    Ok(Survived {
        kills,
        restarts,
        complete: kills == args.kills,
        verdict,
        store: facts,
    })
}

/// A generator with the shows that users meet on.
async fn begin(args: &KillArgs, server: &Server, stop: &CancellationToken) -> Result<Generator> {
    let (args, address, stop) = (args.clone(), server.address(), stop.clone());
    super::blocking(move || {
        let shows = probe::probe(address, Run::random().number(), args.seats)?;
        let settings = Settings {
            targets: vec![address],
            timeout: TIMEOUT,
            tick: TICK,
            seed: args.seed,
        };
        let script = Script::new(Scenario::Concurrent, shows, args.shows, args.seed);
        let mut generator = Generator::new(&settings, shows, script)?;
        generator.connect(args.closed as usize)?;
        super::create(&mut generator, args.shows, &stop)?;
        Ok(generator)
    })
    .await
}

/// Load until the application is killed in the midst of it.
async fn ride(
    args: &KillArgs,
    mut generator: Generator,
    server: &mut Server,
    round: u32,
    random: &mut Random,
) -> Result<Generator> {
    let over = CancellationToken::new();
    let phase = Phase {
        drive: Drive::Closed(args.closed as usize),
        reads: args.reads.clamp(0.0, 0.9),
        warm_up: Duration::ZERO,
        duration: GOING_WITHIN * 2,
        slow: TIMEOUT,
        grace: Duration::ZERO,
    };
    let acknowledged = std::sync::Arc::clone(&generator.acknowledged);
    let before = acknowledged.load(Ordering::Relaxed);
    let ended = over.clone();
    generator.script.switch(match round % 2 {
        0 => Scenario::Concurrent,
        _ => Scenario::Serial,
    });
    let load = super::blocking(move || {
        generator.run(&[phase], Instant::now(), &ended)?;
        Ok(generator)
    });
    let load = tokio::spawn(load);
    let going = wait_for(&acknowledged, before + COMMANDS_MIN).await;
    let delay = u64::try_from(random.below(300)).unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(delay)).await;
    server.kill();
    over.cancel();
    let generator = load.await??;
    match going {
        true => Ok(generator),
        false => fail(format!(
            "fewer than {COMMANDS_MIN} commands were acknowledged in {} s",
            GOING_WITHIN.as_secs()
        )),
    }
}

async fn wait_for(count: &AtomicU64, least: u64) -> bool {
    let deadline = Instant::now() + GOING_WITHIN;
    while count.load(Ordering::Relaxed) < least {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    true
}
