//! `reservation`: drives any server with the cinema's HTTP interface, and proves that no seat was ever held twice.
//!
//! Read `model` and `script` first (what is asked), then `generator` (how), then `ledger` (what was answered) and
//! `gesta_kit::judge::seats` (whether the answers can be true). `kill` does the same to an application that is killed
//! again and again.

mod args;
mod generator;
mod kill;
mod ledger;
mod measure;
mod model;
mod overload;
mod published;
mod routes;
mod script;
mod step;
mod stored;
mod verdict;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::AllFrom;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use crate::event_ids::Run;
use crate::failure::{Failure, Result};
use crate::faults::name_of;
use crate::machine::child::{Program, Server};
use crate::machine::store::{self, NEW_SERVER};
use crate::report::{Report, Table, Unit};
use crate::workload::counters;
use crate::workload::ladder;
use crate::workload::watch::Watched;

pub(crate) use args::{Ladder, ReservationArgs, SEATS, STOP_P99, users_for};
pub(crate) use kill::{KillArgs, run as run_kill};

pub(crate) use generator::{Drive, Generator, Phase, windows};
pub(crate) use ledger::Ledger;
pub(crate) use model::Shows;
pub(crate) use routes::{Arrival, Routes, To};
pub(crate) use script::{Scenario, Script};
pub(crate) use verdict::{Verdict, Wrong, Wrongs};

pub(crate) use step::{HEAD_START, LATENCY, Step, latency_cells, run as run_steps};

/// Connections of the open loop.
pub(crate) const CONNECTIONS: u32 = 512;

struct Measured {
    ledger: Ledger,
    steps: Vec<Step>,
    verdict: Verdict,
}

/// A cinema that was started for this run, on a store that nobody else uses.
struct Own {
    cinema: Server,
    #[expect(dead_code, reason = "lives as long as the cinema")]
    database: Option<gesta_rig::Server>,
    #[expect(dead_code, reason = "live as long as the cinema")]
    files: TempDir,
}

impl Own {
    /// Starts it, and says in the arguments where it is.
    async fn start(args: &mut ReservationArgs) -> Result<Option<Self>> {
        let Some(program) = &args.cinema else {
            return Ok(None);
        };
        let (files, mut database) = (tempfile::tempdir()?, None);
        let url = args.store.as_deref().unwrap_or(NEW_SERVER);
        let url = store::resolve(url, &mut database)?;
        let log = files.path().join("log");
        let cinema = Server::start_program(Program::cinema(program), &url, &log).await?;
        (args.urls, args.store) = (vec![cinema.url()], Some(url));
        Ok(Some(Self {
            cinema,
            database,
            files,
        }))
    }
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &ReservationArgs, stop: &CancellationToken) -> Result<bool> {
    args.check()?;
    let mut report = Report::begin("reservation", "Seats of a cinema", args.seed);
    let mut args = args.clone();
    let mut own = Own::start(&mut args).await?;
    let mut opened = match &args.store {
        Some(url) if own.is_none() => Some(store::open_url(url, Duration::ZERO, 1).await?),
        _ => None,
    };
    let shows = Shows {
        run: Run::random().number(),
        seats: args.seats,
    };
    let from = match &opened {
        Some(opened) => AllFrom::Checkpoint(store::end_of(opened.store.as_ref()).await?),
        None => AllFrom::Start,
    };
    let watched = Watched {
        trees: args.trees()?,
        database: match &args.store {
            Some(url) => counters::watch(url).await?.map(Arc::new),
            None => None,
        },
    };
    let (own_args, own_watched, own_stop) = (args.clone(), watched.clone(), stop.clone());
    let mut measured = alone(move || measure(own_args, shows, own_watched, own_stop)).await?;
    if let (Some(own), Some(url)) = (&mut own, &args.store) {
        // A SQLite file belongs to one process at a time.
        own.cinema.stop().await;
        opened = Some(store::open_url(url, Duration::ZERO, 1).await?);
    }
    if let Some(opened) = &opened {
        let (verdict, ledger) = (&mut measured.verdict, &measured.ledger);
        verdict.add_events(&opened.store, from, ledger).await?;
        opened.store.shutdown().await?;
    }
    report.store = opened.map(|opened| opened.facts.clone());
    report.workload = json!(args);
    tell(&mut report, &args, &measured);
    if let Some(database) = &watched.database {
        step::tell_of_database(&mut report, &measured.steps, database);
    }
    let steps = &measured.steps;
    let complete = steps.iter().all(|step| step.result.complete) && !steps.is_empty();
    report.finish(&args.report, complete)
}

/// Runs the generator on a thread of its own.
pub(crate) async fn alone<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>>,
{
    let (send, receive) = tokio::sync::oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = move || send.send(LocalSet::new().block_on(&runtime, work()));
    std::thread::Builder::new()
        .name("generator".into())
        .spawn(run)?;
    match receive.await {
        Ok(result) => result,
        Err(_) => Err(Failure("the generator has failed".into())),
    }
}

/// Everything that happens between the first request and the last.
async fn measure(
    args: ReservationArgs,
    shows: Shows,
    watched: Watched,
    stop: CancellationToken,
) -> Result<Measured> {
    let existing = match args.scenario {
        Scenario::Serial => 0,
        Scenario::Concurrent => args.shows,
    };
    let script = Script::new(args.scenario, shows, existing, args.seed);
    let drives = args.drives();
    let connections = drives
        .iter()
        .map(|(_, drive)| args.connections_for(*drive, CONNECTIONS));
    let connections = connections.max().unwrap_or(1);
    let generator = Generator::begin(&args.targets()?, connections, args.seed, script).await?;
    let steps = match args.overload {
        Some(_) => overload::run(&generator, &args, &watched, &stop).await?,
        None => climb(&generator, &args, drives, &watched, &stop).await,
    };
    let verdict = Verdict::of_answers(&generator).await;
    Ok(Measured {
        ledger: generator.into_ledger(),
        steps,
        verdict,
    })
}

/// Runs one load after the other; steps end at the bar.
async fn climb(
    generator: &Rc<Generator>,
    args: &ReservationArgs,
    drives: Vec<(String, Drive)>,
    watched: &Watched,
    stop: &CancellationToken,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for (name, drive) in drives {
        eprintln!("{name}");
        let phases = [(name, args.phase(drive))];
        for mut step in step::run(generator, &phases, watched, stop).await {
            if args.steps.is_some() && step.result.complete {
                step.stopped = step
                    .reached()
                    .and_then(|reached| reached.breaks(args.stop_p99));
                let p99 = Unit::Millis.told(step.result.overall().p99);
                eprintln!("  p99 {p99}; {}", step.stopped.as_deref().unwrap_or("held"));
            }
            steps.push(step);
        }
        if stop.is_cancelled() || steps.last().is_some_and(|step| step.stopped.is_some()) {
            break;
        }
    }
    steps
}

fn tell(report: &mut Report, args: &ReservationArgs, measured: &Measured) {
    let steps = &measured.steps;
    report.setting = format!("{}, {}", name_of(args.scenario), args.load_told());
    let last = steps.last();
    let accepted = last.map_or(0.0, |step| step.result.accepted_per_second());
    report.finding = match args.steps {
        Some(_) => {
            // An interrupted step says nothing about the bar.
            let ended = steps.iter().filter(|step| step.result.complete);
            let reached: Vec<_> = ended.filter_map(Step::reached).collect();
            ladder::finding(&reached, args.stop_p99)
        }
        None => format!("{accepted:.0} requests/s were accepted."),
    };
    match <&[Step; 3]>::try_from(steps.as_slice()) {
        Ok(three) if args.overload.is_some() => overload::tell(report, three),
        _ => published::tell(report, steps, report.host.cores),
    }
    step::tell(report, steps);
    if args.urls.len() > 1 {
        report.table(shares(steps));
    }
    measured.verdict.tell(report);
}

/// What each server did of each step.
fn shares(steps: &[Step]) -> Table {
    let mut parts = Vec::new();
    for step in steps {
        let servers = step.result.by_server.iter().enumerate();
        parts.extend(servers.map(|(server, counts)| (&step.name, server, counts)));
    }
    Table::of("Every server", &parts)
        .column("step", Unit::Words, |(step, ..)| *step)
        .column("server", Unit::Count, |(_, server, _)| *server)
        .column("commands accepted", Unit::Count, |(.., counts)| counts[0])
        .column("reads", Unit::Count, |(.., counts)| counts[1])
        .table()
}
