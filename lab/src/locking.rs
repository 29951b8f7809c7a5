//! `locking`: the same commands with the entity in memory, and as load, decide, append with optimistic locking.
//!
//! The same callers are spread over fewer and fewer entities. With optimistic locking the callers of one entity
//! keep refusing each other: who loses reads the stream again and tries again. Every entity is used for so many
//! commands only, so that reading it costs the same from beginning to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gesta::entity::{Context, Decider, Entities, EntityType, JsonEvents};
use gesta_core::{
    ErrorKind, EventData, EventStore, EventStoreExt, EventType, ExpectedRevision, OwnerStore,
    Revision,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cells;
use crate::entities::tally::{Command, Event, Tally};
use crate::failure::Result;
use crate::histogram::{Latencies, Percentiles};
use crate::report::{Chart, Report, ReportArgs, Scale, Table, Unit, numbers};
use crate::store::{self, StoreArgs};
use crate::units::{self, grouped};

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
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 64, 16, 4, 1])]
    entities: Vec<u64>,
    /// Commands after which another entity takes the place of one.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    commands_each: u64,
    /// How long each measurement takes.
    #[arg(long, default_value = "5s", value_parser = units::duration)]
    duration: Duration,
}

/// How commands are carried out.
#[derive(Clone)]
enum Way {
    InMemory(Entities<Tally>),
    Optimistic(Arc<dyn EventStore>),
}

/// What was measured.
struct Measured {
    per_second: f64,
    latency: Percentiles,
    /// Decisions per accepted command.
    decisions: f64,
    failures: u64,
    /// Commands accepted, and events stored for them.
    accepted: u64,
}

/// The command. True if every accepted command is stored once.
pub(crate) async fn run(args: &LockingArgs, stop: &CancellationToken) -> Result<bool> {
    let mut report = Report::begin("locking", "The entity in memory, and optimistic locking", 0);
    let opened = store::open(&args.store).await?;
    let owner = opened.owner()?;
    let kind = EntityType::new("held", JsonEvents::<Event>::new())?;
    let held = Entities::start(Arc::clone(&owner) as Arc<dyn OwnerStore>, kind);
    let (mut rows, mut lost) = (Vec::new(), 0_i128);
    for entities in &args.entities {
        if stop.is_cancelled() {
            break;
        }
        let ways = [
            Way::InMemory(held.clone()),
            Way::Optimistic(Arc::clone(&opened.store)),
        ];
        let mut pair = Vec::new();
        for way in ways {
            let before = last_position(&opened.store).await?;
            let measured = measure(&way, *entities, args, stop).await?;
            let stored = last_position(&opened.store).await? - before;
            lost += i128::from(stored) - i128::from(measured.accepted);
            eprintln!(
                "{entities} entities: {} commands/s",
                grouped(measured.per_second)
            );
            pair.push(measured);
        }
        rows.push((*entities, pair));
    }
    if lost != 0 {
        report.problem(format!(
            "stored events and accepted commands differ by {lost}"
        ));
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
    let columns = [
        ("entities", Unit::Count),
        ("in memory", Unit::Count),
        ("optimistic locking", Unit::Count),
        ("times as many", Unit::Times),
        ("p99 in memory", Unit::Millis),
        ("p99 optimistic", Unit::Millis),
        ("decisions per command, optimistic", Unit::Count),
        ("failed", Unit::Count),
    ];
    let (mut table, mut ratios) = (Table::new(WAYS, columns), Vec::new());
    for (entities, pair) in rows {
        if let [memory, optimistic] = pair.as_slice() {
            let ratio = memory.per_second / optimistic.per_second.max(1.0);
            ratios.push(ratio);
            table.row(cells![
                *entities,
                memory.per_second,
                optimistic.per_second,
                ratio,
                memory.latency.p99,
                optimistic.latency.p99,
                optimistic.decisions,
                memory.failures + optimistic.failures,
            ]);
        }
    }
    report.finding = match ratios.as_slice() {
        [] => "Interrupted before anything was measured.".into(),
        ratios => format!(
            "With the entity in memory, {} as many commands as with optimistic locking.",
            numbers::times_between(ratios)
        ),
    };
    let ways = (&["in memory", "optimistic locking"][..], Scale::Log);
    report.chart(
        Chart::lines(
            "Commands per second over entities",
            WAYS,
            ("entities", Scale::Log),
            ways,
        )
        .y_name("commands/s"),
    );
    report.table(table);
}

async fn last_position(store: &Arc<dyn EventStore>) -> Result<u64> {
    Ok(store.info().await?.heads.iter().map(|head| head.0).sum())
}

async fn measure(
    way: &Way,
    entities: u64,
    args: &LockingArgs,
    stop: &CancellationToken,
) -> Result<Measured> {
    // Never the entities of another measurement.
    let run = uuid::Uuid::new_v4().simple().to_string();
    let next = Arc::new(AtomicU64::new(0));
    let decisions = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let until = began + args.duration;
    let mut tasks = tokio::task::JoinSet::new();
    for by in 0..args.callers {
        let (way, run, stop) = (way.clone(), run.clone(), stop.clone());
        let (next, decisions) = (Arc::clone(&next), Arc::clone(&decisions));
        let each = args.commands_each;
        tasks.spawn(async move {
            let mut latencies = Latencies::default();
            let mut failures = 0_u64;
            while Instant::now() < until && !stop.is_cancelled() {
                let n = next.fetch_add(1, Ordering::Relaxed);
                // Entity `n mod entities` of its generation, which ends when each has had its commands.
                let id = format!("{run}x{}x{}", n / (entities * each), n % entities);
                let sent = Instant::now();
                let command = Command::Count { by, n };
                let done = match &way {
                    Way::InMemory(held) => held.execute(&id, command).await.is_ok(),
                    Way::Optimistic(store) => {
                        let (done, tries) = optimistic(&**store, &id, command).await;
                        decisions.fetch_add(tries, Ordering::Relaxed);
                        done
                    }
                };
                if done {
                    latencies.record(sent.elapsed());
                } else {
                    failures += 1;
                }
            }
            (latencies, failures)
        });
    }
    let (mut latencies, mut failures) = (Latencies::default(), 0);
    while let Some(done) = tasks.join_next().await {
        let (some, failed) = done?;
        latencies.merge(&some);
        failures += failed;
    }
    let latency = latencies.percentiles();
    let (accepted, tried) = (
        latency.count as f64,
        decisions.load(Ordering::Relaxed) as f64,
    );
    Ok(Measured {
        per_second: accepted / began.elapsed().as_secs_f64(),
        latency,
        decisions: if tried > 0.0 {
            tried / accepted.max(1.0)
        } else {
            1.0
        },
        failures,
        accepted: latency.count,
    })
}

/// Load, decide, append; again when somebody else was faster. True once it is stored, and how often it was decided.
async fn optimistic(store: &dyn EventStore, id: &str, command: Command) -> (bool, u64) {
    let stream = format!("tried-{id}");
    let mut tries = 0;
    loop {
        tries += 1;
        match try_once(store, &stream, command).await {
            Ok(true) => return (true, tries),
            Ok(false) => {}
            Err(_) => return (false, tries),
        }
    }
}

/// False if somebody else was faster.
async fn try_once(store: &dyn EventStore, stream: &str, command: Command) -> Result<bool> {
    let mut tally = Tally::default();
    let mut expected = ExpectedRevision::NoStream;
    match store.read_whole_stream(stream).await {
        Ok(events) => {
            for event in &events {
                tally.evolve(&crate::entities::tally::decoded(&event.data)?);
                expected = ExpectedRevision::Exact(Revision(event.revision.0));
            }
        }
        Err(error) if matches!(error.kind(), ErrorKind::StreamNotFound(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let context = Context::new(stream, gesta_core::Timestamp(0));
    let decided = match tally.decide(&command, &context) {
        Ok(events) => events,
        Err(never) => match never {},
    };
    let mut events = Vec::with_capacity(decided.len());
    for Event::Counted { by, n } in decided {
        let data = format!("{{\"by\":{by},\"n\":{n}}}");
        events.push(EventData::json(EventType::new("counted")?, data));
    }
    match store.append_to(stream, expected, events).await {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WrongExpectedRevision { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
