//! `reservation`: drives any server with the cinema's HTTP interface, and proves that no seat was ever held twice.
//!
//! Read `model` and `script` first (what is asked), then `generator` and `drive` (how), then `ledger` and `history`
//! (whether the answers can be true). `kill` does the same to an application that is killed again and again.

mod args;
mod batch;
mod connection;
mod drive;
mod generator;
mod history;
mod judge;
mod kill;
mod ledger;
mod measure;
mod model;
mod overload;
mod pace;
mod probe;
mod processes;
mod published;
mod script;
mod step;
mod stored;
mod verdict;
mod wire;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use gesta_core::AllFrom;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cells;
use crate::failure::{Failure, Result, fail};
use crate::report::{Report, Table, Unit};
use crate::store;
use crate::workload::Run;

pub(crate) use args::ReservationArgs;
pub(crate) use kill::{KillArgs, run as run_kill};
pub(crate) use wire::parse;

use generator::Generator;
use model::{Call, Op, Shows};
use probe::probe;
use processes::Tree;
use script::{Scenario, Script};
use step::Step;
use verdict::Verdict;

/// Connections of the open loop.
const CONNECTIONS: u32 = 512;
/// Connections with which shows are created before the clock starts.
const PREPARING: usize = 64;

/// A finished run.
struct Measured {
    generator: Generator,
    steps: Vec<Step>,
    verdict: Verdict,
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &ReservationArgs, stop: &CancellationToken) -> Result<bool> {
    args.load.check()?;
    let mut report = Report::begin("reservation", "Seats of a cinema", args.seed);
    let trees = args.trees()?;
    let opened = match &args.store {
        Some(url) => Some(store::open_url(url, std::time::Duration::ZERO, 1).await?),
        None => None,
    };
    let shows = find_out(args).await?;
    let from = match &opened {
        Some(opened) => Some(AllFrom::Checkpoint(
            store::end_of(opened.store.as_ref()).await?,
        )),
        None => None,
    };
    let (own_args, own_stop) = (args.clone(), stop.clone());
    let mut measured = blocking(move || measure(&own_args, shows, &trees, &own_stop)).await?;
    if let (Some(opened), Some(from)) = (&opened, from) {
        let ledger = &measured.generator.ledger;
        verdict::add_events(&mut measured.verdict, opened.store.as_ref(), from, ledger).await?;
    }
    report.store = opened.as_ref().map(|opened| opened.facts.clone());
    report.workload = json!(args);
    tell(&mut report, args, &measured);
    if let Some(opened) = &opened {
        opened.store.shutdown().await?;
    }
    let steps = &measured.steps;
    let complete = steps.iter().all(|step| step.result.complete) && !steps.is_empty();
    report.finish(&args.report, complete)
}

/// Runs what blocks on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (send, receive) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("generator".into())
        .spawn(move || send.send(work()))?;
    match receive.await {
        Ok(result) => result,
        Err(_) => Err(Failure("the generator has failed".into())),
    }
}

/// Asks every server whether it is a cinema.
async fn find_out(args: &ReservationArgs) -> Result<Shows> {
    let (targets, seats) = (args.targets()?, args.seats);
    blocking(move || {
        let mut found: Option<Shows> = None;
        for target in targets {
            // The id of the probe's show must be new on each server.
            let run = Run::random().number();
            let shows = probe(target, run, seats)?;
            found.get_or_insert(shows);
        }
        found.ok_or_else(|| Failure("no server was named".into()))
    })
    .await
}

/// Everything that happens between the first request and the last.
fn measure(
    args: &ReservationArgs,
    shows: Shows,
    trees: &[Tree],
    stop: &CancellationToken,
) -> Result<Measured> {
    let mut generator = prepared(args, shows, stop)?;
    let steps = match args.overload {
        Some(_) => overload::run(&mut generator, args, trees, stop)?,
        None => drive_steps(&mut generator, args, trees, stop)?,
    };
    let verdict = verdict::of_answers(&mut generator, &CancellationToken::new())?;
    Ok(Measured {
        generator,
        steps,
        verdict,
    })
}

/// A generator, and the shows that the scenario needs.
fn prepared(args: &ReservationArgs, shows: Shows, stop: &CancellationToken) -> Result<Generator> {
    let existing = match args.scenario {
        Scenario::Serial => 0,
        Scenario::Concurrent => args.shows,
    };
    let script = Script::new(args.scenario, shows, existing, args.seed);
    let mut generator = Generator::new(&args.settings()?, shows, script)?;
    // No more than the load itself may use.
    let first = args.load.drives().first().map_or(PREPARING, |(_, drive)| {
        args.connections_for(*drive, CONNECTIONS)
    });
    generator.connect(first.min(PREPARING))?;
    create(&mut generator, existing, stop)?;
    Ok(generator)
}

/// Creates the first shows.
fn create(generator: &mut Generator, count: u32, stop: &CancellationToken) -> Result<()> {
    let creations = (0..count).map(|show| Op {
        call: Call::Create,
        show,
        seat: 0,
    });
    generator.batch(creations, 0..1, stop)?;
    let missing = count as usize - generator.ledger.created().count().min(count as usize);
    match missing {
        0 => Ok(()),
        _ => fail(format!("{missing} of {count} shows could not be created")),
    }
}

/// Runs the steps until one is bad.
fn drive_steps(
    generator: &mut Generator,
    args: &ReservationArgs,
    trees: &[Tree],
    stop: &CancellationToken,
) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    for (name, drive) in args.load.drives() {
        if stop.is_cancelled() {
            break;
        }
        generator.connect(args.connections_for(drive, CONNECTIONS))?;
        eprintln!("{name}");
        let phases = [(name, args.load.phase(drive))];
        let step = step::run(generator, &phases, trees, stop)?;
        let bad = step
            .iter()
            .any(|step| args.load.stop_rule().ends(&step.result.measures.overall()));
        steps.extend(step);
        if bad && args.load.steps.is_some() {
            break;
        }
    }
    Ok(steps)
}

/// The last step that the stop rule did not end.
fn highest_good<'a>(args: &ReservationArgs, steps: &'a [Step]) -> Option<&'a str> {
    args.load.steps?;
    let good = |step: &&Step| !args.load.stop_rule().ends(&step.result.measures.overall());
    steps.iter().rev().find(good).map(|step| step.name.as_str())
}

fn tell(report: &mut Report, args: &ReservationArgs, measured: &Measured) {
    let steps = &measured.steps;
    let last = steps
        .last()
        .map_or(0.0, |step| step.result.accepted_per_second());
    report.finding = match highest_good(args, steps) {
        Some(step) => format!("The highest good step is {step}."),
        None => format!("{last:.0} requests/s were accepted."),
    };
    if let Ok(three) = <&[Step; 3]>::try_from(steps.as_slice())
        && args.overload.is_some()
    {
        overload::tell(report, three);
    }
    if args.overload.is_none() {
        published::tell(report, steps);
    }
    step::tell(report, steps);
    if args.urls.len() > 1 {
        report.table(shares(steps));
    }
    measured.verdict.tell(report);
}

/// What each server did of each step.
fn shares(steps: &[Step]) -> Table {
    let columns = [
        ("step", Unit::Words),
        ("server", Unit::Count),
        ("commands accepted", Unit::Count),
        ("reads", Unit::Count),
    ];
    let mut table = Table::new("Every server", columns);
    for step in steps {
        for (server, [commands, reads]) in step.result.by_target.iter().enumerate() {
            table.row(cells![&step.name, server, *commands, *reads]);
        }
    }
    table
}
