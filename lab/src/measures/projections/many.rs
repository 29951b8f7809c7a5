//! Many projections of one process: what they cost the database while nothing happens, and in a burst of events that
//! another process appends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use gesta_core::EventStore;
use gesta_load::counters::{Look, Watch};
use gesta_projection::{BeginAt, Effects, Phase, Projections, Running};
use gesta_projection_postgres::PostgresTarget;
use gesta_report::Report;
use gesta_report::failure::{Context, Result, fail};

use super::ProjectionsArgs;
use super::catch_up::everything;
use super::models::{Performed, Tagged, burst};
use super::places::Place;

/// Numbers of projections that are compared; the published experiment had 35.
const NUMBERS: [usize; 3] = [1, 35, 100];
/// Effects that are performed in a burst.
const EFFECTS: usize = 35;
/// Appends of a burst under way.
const APPENDING: usize = 400;
/// How long a burst may take.
const DEADLINE: Duration = Duration::from_secs(120);

/// What some projections cost.
#[derive(Debug)]
pub(super) struct Cost {
    pub(super) projections: usize,
    pub(super) what: &'static str,
    /// How long it took until the last projection had everything, or how long the database was watched.
    pub(super) seconds: f64,
    pub(super) statements: u64,
    pub(super) reads: u64,
    pub(super) database_ms: f64,
}

pub(super) async fn measure(
    args: &ProjectionsArgs,
    place: &Place,
    costs: &mut Vec<Cost>,
    report: &mut Report,
) -> Result<()> {
    let Place::Postgres { url } = place else {
        return Ok(());
    };
    let watch = Watch::start(url).await?;
    if !watch.counts_statements() {
        report
            .caution("pg_stat_statements is not there: what many projections cost was not counted");
        return Ok(());
    }
    for number in NUMBERS {
        place.clear_rows().await?;
        // The projections' process, and the one that appends.
        let (reading, writing) = (place.open().await?, place.open().await?);
        let target = Place::postgres_target(url)?;
        let projections = add_all(Projections::on(&reading.store, target), number);
        let running = projections.start().await?;
        all_live(&running).await?;
        let (before, begin) = (watch.look().await?, Instant::now());
        tokio::time::sleep(args.idle).await;
        let seconds = begin.elapsed().as_secs_f64();
        let idle = watch.look().await?;
        costs.push(cost((&before, &idle), number, "nothing happens", seconds));
        let begin = Instant::now();
        append(&writing.store, args.burst, number, "burst").await?;
        let seconds = all_applied(&running, args.burst, begin).await?;
        let done = watch.look().await?;
        costs.push(cost((&idle, &done), number, "a burst", seconds));
        running.shutdown().await;
        let counted = counted(url, number).await?;
        let title = format!("a burst for {number} projections");
        report.check(title, &everything(args.burst, counted));
    }
    let (reading, writing) = (place.open().await?, place.open().await?);
    let performed = Arc::new(AtomicU64::new(0));
    let running = all_effects(Effects::on(&reading.store), &performed);
    let running = running.start().await?;
    for number in 0..EFFECTS {
        let mut progress = running.progress(&name(number))?;
        let live = progress.wait_for(|progress| progress.phase == Phase::Live);
        let live = tokio::time::timeout(DEADLINE, live).await;
        live.context("an effect did not become live")??;
    }
    let (before, begin) = (watch.look().await?, Instant::now());
    append(&writing.store, args.burst, EFFECTS, "effects").await?;
    while performed.load(Ordering::Relaxed) < args.burst {
        if begin.elapsed() > DEADLINE {
            return fail("not all effects of a burst were performed in time");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let seconds = begin.elapsed().as_secs_f64();
    running.shutdown().await;
    let done = watch.look().await?;
    let what = "a burst, an effect for each event";
    costs.push(cost((&before, &done), EFFECTS, what, seconds));
    let performed = performed.load(Ordering::Relaxed);
    report.check("effects of a burst", &everything(args.burst, performed));
    Ok(())
}

/// The name of the read model or effect of a number.
fn name(number: usize) -> String {
    format!("lab_t{number:02}")
}

fn all_effects(effects: Effects, count: &Arc<AtomicU64>) -> Effects {
    (0..EFFECTS).fold(effects, |effects, tag| {
        let count = Arc::clone(count);
        // A few bytes in a program that measures and ends.
        let name: &'static str = name(tag).leak();
        effects.effect_as(name, Performed { tag, count }, BeginAt::End)
    })
}

/// Adds as many read models, each of a tag. What earlier bursts have left is of no interest.
fn add_all(projections: Projections<PostgresTarget>, number: usize) -> Projections<PostgresTarget> {
    (0..number).fold(projections, |projections, tag| {
        let name = name(tag);
        let projections = projections.view_as(&name, Tagged(tag));
        projections.begin_at(&name, BeginAt::End)
    })
}

async fn all_live(running: &Running<PostgresTarget>) -> Result<()> {
    for id in running.ids() {
        let mut progress = running.progress(&id)?;
        let live = progress.wait_for(|progress| progress.phase == Phase::Live);
        let live = tokio::time::timeout(DEADLINE, live).await;
        live.context("a projection did not become live")?
            .context("a projection has ended")?;
    }
    Ok(())
}

async fn append(
    store: &Arc<dyn EventStore>,
    events: u64,
    readers: usize,
    name: &str,
) -> Result<()> {
    let appends = burst(events, readers, &format!("{name}{readers}"))?;
    let mut stored = futures::stream::iter(appends)
        .map(|append| store.append(append))
        .buffer_unordered(APPENDING);
    while let Some(stored) = stored.next().await {
        stored.context("a burst")?;
    }
    Ok(())
}

/// Waits until all events were applied; returns the seconds since the burst began.
async fn all_applied(
    running: &Running<PostgresTarget>,
    events: u64,
    begin: Instant,
) -> Result<f64> {
    let ids = running.ids().into_iter();
    let progresses: std::result::Result<Vec<_>, _> = ids.map(|id| running.progress(&id)).collect();
    let progresses = progresses?;
    loop {
        let applied: u64 = progresses
            .iter()
            .map(|progress| progress.borrow().events)
            .sum();
        if applied >= events {
            return Ok(begin.elapsed().as_secs_f64());
        }
        if begin.elapsed() > DEADLINE {
            return fail(format!(
                "{applied} of {events} events of a burst were applied in time"
            ));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn counted(url: &str, number: usize) -> Result<u64> {
    let client = Place::connect(url).await?;
    let mut sum = 0;
    for at in 0..number {
        let sql = format!("SELECT coalesce(sum(events), 0)::bigint FROM {}", name(at));
        let row = client.query_one(&sql, &[]).await.context(sql)?;
        sum += u64::try_from(row.get::<_, i64>(0)).unwrap_or(0);
    }
    Ok(sum)
}

/// The cost between two looks.
fn cost(
    (before, after): (&Look, &Look),
    projections: usize,
    what: &'static str,
    seconds: f64,
) -> Cost {
    let statements = after.since(before).statements.unwrap_or_default();
    Cost {
        projections,
        what,
        seconds,
        statements: statements.calls,
        reads: statements.reads,
        database_ms: statements.executing_ms,
    }
}
