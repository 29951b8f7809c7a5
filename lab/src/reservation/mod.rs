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
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, Result, fail};
use crate::record::Record;
use crate::store::{self, Opened};
use crate::workload::Run;

pub(crate) use args::ReservationArgs;
pub(crate) use judge::judge;
pub(crate) use kill::{KillArgs, run as run_kill};
pub(crate) use model::{Call, Fact, Op, Outcome, SEATS_MAX, Shows};
pub(crate) use probe::probe;
pub(crate) use wire::{parse, write_request};

use generator::Generator;
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
    overload: Option<Value>,
    verdict: Verdict,
}

/// The command. True if the run is a result.
pub(crate) async fn run(args: &ReservationArgs, stop: &CancellationToken) -> Result<bool> {
    args.load.check()?;
    let mut record = Record::begin("reservation", args.seed);
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
    report(&mut record, args, opened.as_ref(), &measured)?;
    if let Some(opened) = &opened {
        opened.store.shutdown().await?;
    }
    Ok(measured.verdict.is_clean())
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
    let (steps, overload) = if args.overload.is_some() {
        let (steps, figures) = overload::run(&mut generator, args, trees, stop)?;
        (steps, Some(figures))
    } else {
        (drive_steps(&mut generator, args, trees, stop)?, None)
    };
    let verdict = verdict::of_answers(&mut generator, &CancellationToken::new())?;
    Ok(Measured {
        generator,
        steps,
        overload,
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

fn report(
    record: &mut Record,
    args: &ReservationArgs,
    opened: Option<&Opened>,
    measured: &Measured,
) -> Result<()> {
    let Measured {
        steps,
        overload,
        verdict,
        ..
    } = measured;
    record.store = opened.map(|opened| opened.facts.clone());
    record.workload = json!(args);
    record.result = json!({
        "steps": steps.iter().map(Step::figures).collect::<Vec<_>>(),
        "highest_good": highest_good(args, steps),
        "overload": overload,
        "check": verdict,
    });
    let total = |outcome: Outcome| -> u64 {
        let of = |step: &Step| step.result.measures.over(|_, o| o == outcome).count;
        steps.iter().map(of).sum()
    };
    record.errors = json!({
        "refused": total(Outcome::Refused),
        "rejected": total(Outcome::Rejected),
        "failed": total(Outcome::Failed),
        "unsent": steps.iter().map(|step| step.result.measures.unsent()).sum::<u64>(),
    });
    record.complete = steps.iter().all(|step| step.result.complete) && !steps.is_empty();
    record.valid = verdict.is_clean();
    record.save(&args.report)?;
    print(args, measured);
    Ok(())
}

/// The last step that the stop rule did not end.
fn highest_good<'a>(args: &ReservationArgs, steps: &'a [Step]) -> Option<&'a str> {
    args.load.steps?;
    let good = |step: &&Step| !args.load.stop_rule().ends(&step.result.measures.overall());
    steps.iter().rev().find(good).map(|step| step.name.as_str())
}

fn print(args: &ReservationArgs, measured: &Measured) {
    print!("{}", step::table(&measured.steps));
    if let [step] = measured.steps.as_slice() {
        print!("\n{}", step::call_table(step));
    }
    for step in &measured.steps {
        if let Some(why) = step.generator_limit() {
            println!(
                "{}: {why}: the figures are those of the generator",
                step.name
            );
        }
        for (cause, count) in &step.result.errors {
            println!("{}: {count} x {cause}", step.name);
        }
        if args.urls.len() > 1 {
            println!("{}: {}", step.name, shares(step));
        }
    }
    if let Some(step) = highest_good(args, &measured.steps) {
        println!("highest good step: {step}");
    }
    if let Some(figures) = &measured.overload {
        overload::print(figures);
    }
    measured.verdict.print();
}

/// What each server did of the commands.
#[expect(clippy::cast_precision_loss, reason = "counts of minutes fit")]
fn shares(step: &Step) -> String {
    let all: u64 = step
        .result
        .by_target
        .iter()
        .map(|[commands, _]| commands)
        .sum();
    let of = step.result.by_target.iter().map(|[commands, reads]| {
        let share = *commands as f64 / all.max(1) as f64 * 100.0;
        format!("{commands} commands ({share:.0} %), {reads} reads")
    });
    of.collect::<Vec<_>>().join("; ")
}
