//! `locking`: the same commands with the entity in memory, and as load, decide, append with optimistic locking.
//!
//! The same callers are spread over fewer and fewer entities. With optimistic locking the callers of one entity
//! keep refusing each other: who loses reads the stream again and tries again. There every entity is used for so many
//! commands only, so that reading it costs the same from beginning to end. What entities in memory answered is compared
//! with the stored streams afterwards. With one entity, and far away, this is what deciding ahead is worth.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gesta::entity::{Config, Context, Decider, Entities};
use gesta_core::{ErrorKind, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision};
use gesta_report::failure::Result;
use gesta_report::units::{self, grouped};
use gesta_report::{Chart, Report, ReportArgs, Scale, Table, Unit, numbers};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use gesta_load::entities::calls::{Calls, drive};
use gesta_load::entities::start;
use gesta_load::entities::tally::{AnswersGiven, Command, Event, Tally, decoded, read_stream};
use gesta_load::event_ids::Run;
use gesta_load::machine::store::{self, StoreArgs};

/// Most wrong answers that are told of each number of entities.
const WRONGS_TOLD: usize = 10;

/// The entity in memory against load, decide, append with optimistic locking, at rising contention.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LockingArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    report: ReportArgs,
    /// Callers, each with one command under way.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    callers: u32,
    /// Entities that the callers share, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 64, 16, 4, 1], value_parser = clap::value_parser!(u64).range(1..))]
    entities: Vec<u64>,
    /// Commands after which another entity takes the place of one, with optimistic locking.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    commands_each: u64,
    /// How long each measurement takes.
    #[arg(long, default_value = "5s", value_parser = units::duration)]
    duration: Duration,
}

/// How commands are carried out.
#[derive(Clone)]
enum Way {
    InMemory(Entities<Tally>, Arc<AnswersGiven>),
    Optimistic(Arc<dyn EventStore>),
}

/// What was measured.
struct Measured {
    calls: Calls,
    /// Decisions per accepted command.
    decisions: f64,
}

impl Measured {
    fn p99(&self) -> f64 {
        self.calls.latencies.percentiles().p99
    }
}

/// The command. True if every accepted command is stored once.
pub(crate) async fn run(args: &LockingArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("locking", "The entity in memory, and optimistic locking", 0);
    let opened = store::open(&args.store).await?;
    let held = start(&opened.owner()?, Config::default(), None)?;
    let (mut rows, mut lost) = (Vec::new(), 0_i128);
    for entities in &args.entities {
        if stop.is_cancelled() {
            break;
        }
        // Never the entities of another measurement.
        let run = format!("{}-", Run::random());
        let given = AnswersGiven::of(&run, usize::try_from(*entities)?);
        let ways = [
            Way::InMemory(held.clone(), Arc::clone(&given)),
            Way::Optimistic(Arc::clone(&opened.store)),
        ];
        let mut pair = Vec::new();
        for way in ways {
            let before = last_position(&opened.store).await?;
            let measured = measure(&way, *entities, &run, args, stop).await;
            let stored = last_position(&opened.store).await? - before;
            let accepted = measured.calls.latencies.percentiles().count;
            lost += i128::from(stored) - i128::from(accepted);
            let rate = grouped(measured.calls.per_second());
            eprintln!("{entities} entities: {rate} commands/s");
            pair.push(measured);
        }
        let (_, wrongs) = given.check(opened.store.as_ref()).await?;
        report.problems.extend(wrongs.into_iter().take(WRONGS_TOLD));
        rows.push((*entities, pair));
    }
    // Interrupted between the two.
    rows.retain(|(_, pair)| pair.len() == 2);
    if lost != 0 {
        let problem = format!("stored events and accepted commands differ by {lost}");
        report.problem(problem);
    }
    report.store = Some(opened.facts.clone());
    report.workload = json!({
        "callers": args.callers, "commands_each": args.commands_each, "duration_seconds": args.duration.as_secs_f64(),
    });
    tell(&mut report, &rows);
    let valid = report.finish(&args.report, !stop.is_cancelled())?;
    held.shutdown().await;
    opened.store.shutdown().await?;
    Ok(valid)
}

/// The report: with so many entities, in memory and with optimistic locking.
fn tell(report: &mut Report, rows: &[(u64, Vec<Measured>)]) {
    const WAYS: &str = "Commands with fewer and fewer entities";
    const NAMES: [&str; 2] = ["in memory", "optimistic locking"];
    let rate = |pair: &[Measured], way: usize| pair[way].calls.per_second();
    let ratio = |pair: &[Measured]| rate(pair, 0) / rate(pair, 1).max(1.0);
    let failed =
        |pair: &[Measured]| -> usize { pair.iter().map(|one| one.calls.wrongs.len()).sum() };
    let ratios: Vec<f64> = rows.iter().map(|(_, pair)| ratio(pair)).collect();
    report.finding = match ratios.as_slice() {
        [] => "Interrupted before anything was measured.".into(),
        ratios => format!(
            "With the entity in memory, {} as many commands as with optimistic locking.",
            numbers::times_between(ratios)
        ),
    };
    let title = "Commands per second over entities";
    let x = ("entities", Scale::Log);
    report.chart(Chart::lines(title, WAYS, x, (&NAMES, Scale::Log)).y_name("commands/s"));
    let table = Table::of(WAYS, rows)
        .column("entities", Unit::Count, |(entities, _)| *entities)
        .column(NAMES[0], Unit::Count, |(_, pair)| rate(pair, 0))
        .column(NAMES[1], Unit::Count, |(_, pair)| rate(pair, 1))
        .column("times as many", Unit::Times, |(_, pair)| ratio(pair))
        .column("p99 in memory", Unit::Millis, |(_, pair)| pair[0].p99())
        .column("p99 optimistic", Unit::Millis, |(_, pair)| pair[1].p99())
        .column(
            "decisions per command, optimistic",
            Unit::Count,
            |(_, pair)| pair[1].decisions,
        )
        .column("failed", Unit::Count, |(_, pair)| failed(pair));
    report.table(table.table());
}

async fn last_position(store: &Arc<dyn EventStore>) -> Result<u64> {
    Ok(store.info().await?.heads.iter().map(|head| head.0).sum())
}

async fn measure(
    way: &Way,
    entities: u64,
    run: &str,
    args: &LockingArgs,
    stop: &CancellationToken,
) -> Measured {
    let (next, decisions) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (way, run, each) = (way.clone(), run.to_owned(), args.commands_each);
    let decided = Arc::clone(&decisions);
    let calls = drive(0..args.callers, args.duration, stop, move |by, _| {
        let n = next.fetch_add(1, Ordering::Relaxed);
        let (entity, command) = (n % entities, Command::Count { by, n });
        let (way, decided) = (way.clone(), Arc::clone(&decided));
        let id = match way {
            Way::InMemory(..) => format!("{run}{entity}"),
            // Entity of its generation, which ends when each has had its commands.
            Way::Optimistic(_) => format!("{run}{}x{entity}", n / (entities * each)),
        };
        async move {
            Some(match &way {
                Way::InMemory(held, given) => {
                    let entity = usize::try_from(entity).expect("there are so many entities");
                    let before = given.before(entity);
                    let answered = held.execute(&id, command).await;
                    let answered =
                        answered.map(|reply| given.after(entity, before, command, reply));
                    answered.map_err(|error| error.to_string())
                }
                Way::Optimistic(store) => optimistic(&**store, &id, command, &decided).await,
            })
        }
    });
    let calls = calls.await;
    let decided = decisions.load(Ordering::Relaxed) as f64;
    let accepted = calls.latencies.percentiles().count as f64;
    Measured {
        calls,
        decisions: decided / accepted.max(1.0),
    }
}

/// Load, decide, append; again when somebody else was faster. Counts how often it was decided.
async fn optimistic(
    store: &dyn EventStore,
    id: &str,
    command: Command,
    decisions: &AtomicU64,
) -> std::result::Result<(), String> {
    let stream = format!("tried-{id}");
    loop {
        decisions.fetch_add(1, Ordering::Relaxed);
        match try_once(store, &stream, command).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(failure) => return Err(failure.0),
        }
    }
}

/// False if somebody else was faster.
async fn try_once(store: &dyn EventStore, stream: &str, command: Command) -> Result<bool> {
    let mut tally = Tally::default();
    let mut expected = ExpectedRevision::NoStream;
    for event in read_stream(store, stream).await? {
        tally.evolve(&decoded(&event.data)?);
        expected = ExpectedRevision::Exact(event.revision);
    }
    let context = Context::new(stream, gesta_core::Timestamp(0));
    let decided = match tally.decide(&command, &context) {
        Ok(events) => events,
        Err(never) => match never {},
    };
    let mut events = Vec::with_capacity(decided.len());
    for Event::Counted { by, n } in decided {
        let data = format!("{{\"by\":{by},\"n\":{n}}}");
        events.push(EventData::json(EventType::new("counted")?, data).without_id());
    }
    match store.append_to(stream, expected, events).await {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
