//! `reservation`: drives any server with the cinema's HTTP interface, and proves that no seat was ever held twice.
//!
//! Not here: the users, and whether their answers can be true (`gesta_load::cinema`); an application that is killed
//! meanwhile (`gesta-chaos`).

mod args;
mod overload;
mod published;
mod step;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gesta_core::AllFrom;
use gesta_load::cinema::model::Outcome;
use gesta_load::cinema::{CinemaChecks, Drive, Generator, Ledger, Scenario, Script, Shows, alone};
use gesta_load::counters;
use gesta_load::event_ids::Run;
use gesta_load::machine::child::{Program, Server};
use gesta_load::machine::processes;
use gesta_load::machine::store::{self, NEW_SERVER};
use gesta_report::failure::Result;
use gesta_report::name_of;
use gesta_report::{Report, Table, Unit};
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::workload::ladder;
use crate::workload::watch::Watched;

pub(crate) use args::{Ladder, ReservationArgs, SEATS, STOP_P99, users_for};
pub(crate) use step::{HEAD_START, LATENCY, Step, latency_cells, run as run_steps};

/// Connections of the open loop.
pub(crate) const CONNECTIONS: u32 = 512;

struct Measured {
    ledger: Ledger,
    steps: Vec<Step>,
    checks: CinemaChecks,
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
    let (mut report, complete) = drive(args, stop).await?;
    report.finish(&args.report, complete)
}

/// Everything but the end of the report, so that another command can add what it knows before the report is kept; and
/// whether everything was run.
pub(crate) async fn drive(
    args: &ReservationArgs,
    stop: &CancellationToken,
) -> Result<(Report, bool)> {
    args.check()?;
    let mut report = Report::begin("reservation", "Seats of a cinema", args.seed);
    let mut args = args.clone();
    let mut own = Own::start(&mut args).await?;
    let shows = Shows {
        run: Run::random().number(),
        seats: args.seats,
    };
    let from = match &args.store {
        Some(url) if own.is_none() => end_of(url).await?,
        _ => AllFrom::Start,
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
    if let Some(own) = &mut own {
        // A SQLite file belongs to one process at a time.
        own.cinema.stop().await;
    }
    if let Some(url) = &args.store {
        let opened = store::open_url(url, Duration::ZERO, 1).await?;
        let (checks, ledger) = (&mut measured.checks, &measured.ledger);
        checks.add_events(&opened.store, from, ledger).await?;
        opened.store.shutdown().await?;
        report.store = Some(opened.facts.clone());
    }
    report.workload = json!(args);
    tell(&mut report, &args, &measured);
    if let Some(told) = processes::told(&watched.trees) {
        report.text(told);
    }
    if let Some(database) = &watched.database {
        step::tell_of_database(&mut report, &measured.steps, database);
    }
    let steps = &measured.steps;
    let complete = steps.iter().all(|step| step.result.complete) && !steps.is_empty();
    Ok((report, complete))
}

/// Where the store ends now. It is not open while the load runs: it would be one more process that listens to the
/// messages of the others.
async fn end_of(url: &str) -> Result<AllFrom> {
    let opened = store::open_url(url, Duration::ZERO, 1).await?;
    let end = store::end_of(opened.store.as_ref()).await?;
    opened.store.shutdown().await?;
    Ok(AllFrom::Checkpoint(end))
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
    let checks = CinemaChecks::of_answers(&generator).await;
    Ok(Measured {
        ledger: generator.into_ledger(),
        steps,
        checks,
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
                let p99 = Unit::Millis.told(step.result.served().p99);
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
        Some(wanted) => {
            // An interrupted step says nothing about the bar.
            let ended = steps.iter().filter(|step| step.result.complete);
            let reached: Vec<_> = ended.filter_map(Step::reached).collect();
            ladder::finding(&reached, wanted, args.stop_p99)
        }
        None => format!("{accepted:.0} requests/s were accepted."),
    };
    match <&[Step; 3]>::try_from(steps.as_slice()) {
        Ok(three) if args.overload.is_some() => overload::tell(report, three),
        _ => published::tell(report, steps, report.host.cores),
    }
    object(report, args, steps);
    step::tell(report, steps);
    if args.urls.len() > 1 {
        report.table(shares(steps));
    }
    measured.checks.tell(report);
}

/// Tells why the run is no result, if it is none. A ladder ends where the application fails or refuses; only its first
/// step must do neither.
fn object(report: &mut Report, args: &ReservationArgs, steps: &[Step]) {
    let Some(first) = steps.first() else { return };
    first.object(report);
    let failed = first.count(Outcome::Failed);
    if args.steps.is_some() && failed > 0 {
        report.problem(format!(
            "{}: {failed} requests failed or were not answered",
            first.name
        ));
    }
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
