//! `reservation-kill`: the application is killed under load, again and again; after each restart everything
//! acknowledged must be there, and no seat held twice.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use gesta_core::AllFrom;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use gesta_report::failure::{Result, fail};
use gesta_report::histogram::Latencies;
use gesta_report::{Report, ReportArgs, Table, Unit, StoreFacts};
use gesta_load::event_ids::Run;
use gesta_load::machine::child::{Program, Server};
use gesta_load::machine::store;
use gesta_load::random::Random;

use super::generator::{Drive, Generator, Phase, windows};
use super::ledger::Ledger;
use super::model::{SEATS_MAX, Shows};
use super::script::{Scenario, Script};
use super::verdict::Verdict;
use crate::faults::world::DatabaseKind;

/// The load must get going this soon after a restart.
const GOING_WITHIN: Duration = Duration::from_secs(60);
/// Commands that must be acknowledged between two kills.
const COMMANDS_MIN: u64 = 200;
/// How often waits look.
const LOOK: Duration = Duration::from_millis(1);
/// Share of reads among requests.
const READS: f64 = 0.05;

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
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [DatabaseKind::Postgres, DatabaseKind::Sqlite])]
    pub(crate) databases: Vec<DatabaseKind>,
    /// Users at once, a connection each.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) closed: u32,
    /// Shows that users meet on; in every second round they create shows of their own.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) shows: u32,
    /// Seats per show.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=i64::from(SEATS_MAX)))]
    pub(crate) seats: u16,
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
    let mut all = Vec::new();
    for database in &args.databases {
        let survived = survive(args, *database, stop).await?;
        let name = survived.store.backend.as_str();
        let problems = survived.verdict.wrongs.told().into_iter();
        let problems = problems.map(|problem| format!("{name}: {problem}"));
        report.problems.extend(problems);
        report.store = Some(survived.store.clone());
        all.push(survived);
    }
    let kills: u32 = all.iter().map(|survived| survived.kills).sum();
    let kept = match report.problems.is_empty() {
        true => "nothing",
        false => "something",
    };
    report.finding =
        format!("After {kills} kills {kept} that was acknowledged was lost or doubled.");
    let restarts = |survived: &Survived| survived.restarts.percentiles();
    let table = Table::of("Every database", &all)
        .column("database", Unit::Words, |one| &one.store.backend)
        .column("kills", Unit::Count, |one| one.kills)
        .column("acknowledged", Unit::Count, |one| one.verdict.acknowledged)
        .column("unknown", Unit::Count, |one| one.verdict.unknown)
        .column("restart p50", Unit::Millis, |one| restarts(one).p50)
        .column("longest", Unit::Millis, |one| restarts(one).max);
    report.table(table.table());
    for one in &all {
        report.text(format!("{}: {}", one.store.backend, one.verdict.sentence()));
    }
    let complete = all.iter().all(|survived| survived.complete);
    report.finish(&args.report, complete)
}

async fn survive(
    args: &KillArgs,
    database: DatabaseKind,
    stop: &CancellationToken,
) -> Result<Survived> {
    let files = tempfile::tempdir()?;
    let (url, _server) = match database {
        DatabaseKind::Postgres => {
            let server = store::new_server()?;
            (server.url(), Some(server))
        }
        DatabaseKind::Sqlite => {
            let path = files.path().join("cinema.db");
            (format!("sqlite:{}", path.display()), None)
        }
    };
    let (own_args, own_url, log) = (args.clone(), url.clone(), files.path().join("log"));
    let own_stop = stop.clone();
    let killing =
        super::alone(move || async move { kill_all(&own_args, &own_url, &log, &own_stop).await });
    let (mut survived, ledger) = killing.await?;
    // SQLite belongs to one process at a time: now it is ours.
    let opened = store::open_url(&url, Duration::ZERO, 1).await?;
    let added = survived
        .verdict
        .add_events(&opened.store, AllFrom::Start, &ledger);
    added.await?;
    survived.store = opened.facts.clone();
    opened.store.shutdown().await?;
    Ok(survived)
}

/// Kill after kill, and what the answers tell after each.
async fn kill_all(
    args: &KillArgs,
    url: &str,
    log: &Path,
    stop: &CancellationToken,
) -> Result<(Survived, Ledger)> {
    let mut server = Server::start_program(Program::cinema(&args.cinema), url, log).await?;
    let shows = Shows {
        run: Run::random().number(),
        seats: args.seats,
    };
    let script = Script::new(Scenario::Concurrent, shows, args.shows, args.seed);
    let targets = [server.address()];
    let generator = Generator::begin(&targets, args.closed as usize, args.seed, script).await?;
    let mut random = Random::fork(args.seed, 5);
    let mut restarts = Latencies::default();
    let (mut kills, mut verdict) = (0, Verdict::default());
    while kills < args.kills && !stop.is_cancelled() {
        load_and_kill(args, &generator, &mut server, kills, &mut random).await?;
        kills += 1;
        let began = Instant::now();
        server.launch().await?;
        restarts.record(began.elapsed());
        verdict = Verdict::of_answers(&generator).await;
        if !verdict.wrongs.is_empty() {
            let log = server.log_tail();
            eprintln!("kill {kills}: a promise was broken; the server's last words:\n{log}");
            break;
        }
    }
    if !server.stop().await {
        eprintln!("the application had to be killed at the end");
    }
    let survived = Survived {
        kills,
        restarts,
        complete: kills == args.kills,
        verdict,
        store: StoreFacts::default(),
    };
    Ok((survived, generator.into_ledger()))
}

/// Load until the application is killed in the midst of it.
async fn load_and_kill(
    args: &KillArgs,
    generator: &Rc<Generator>,
    server: &mut Server,
    round: u32,
    random: &mut Random,
) -> Result<()> {
    let phase = Phase {
        drive: Drive::Closed(args.closed as usize),
        reads: READS,
        warm_up: Duration::ZERO,
        duration: GOING_WITHIN * 2,
        slow: GOING_WITHIN,
    };
    generator.switch(match round % 2 {
        0 => Scenario::Concurrent,
        _ => Scenario::Serial,
    });
    let acknowledged = || generator.with_ledger(|ledger| ledger.acknowledged);
    let wanted = acknowledged() + COMMANDS_MIN;
    let over = CancellationToken::new();
    let windows = windows(&[phase], Instant::now());
    let delay = Duration::from_millis(random.below(300) as u64);
    let kill = async {
        let deadline = Instant::now() + GOING_WITHIN;
        while acknowledged() < wanted && Instant::now() < deadline {
            sleep(LOOK).await;
        }
        let is_going = acknowledged() >= wanted;
        sleep(delay).await;
        server.kill();
        over.cancel();
        is_going
    };
    match tokio::join!(generator.run(&windows, &over), kill).1 {
        true => Ok(()),
        false => fail(format!(
            "fewer than {COMMANDS_MIN} commands were acknowledged in {} s",
            GOING_WITHIN.as_secs()
        )),
    }
}
